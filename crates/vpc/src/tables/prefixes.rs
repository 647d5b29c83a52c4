//! Routes of all networks: where no two prefixes of a network overlap, by exact match; where they do, by longest prefix match
//! (Zephyrus §4.3). Which it is, is found out before the tables are installed, and can be asked.

use std::net::IpAddr;

use crate::exact::{ExactKey, ExactTable};
use softdpu_lpm::coalesce::{Conflict, Lengths, coalesce};
use softdpu_lpm::{Capacity, Full, Lpm, Prefix, mask};

/// A table from prefixes to values, for each network its own.
#[derive(Clone, Debug)]
pub struct Prefixes<V> {
    /// By network number, IPv4 and IPv6.
    forms: Box<[[Form<V>; 2]]>,
    exact: ExactTable<V>,
    /// Of networks whose prefixes overlap.
    lpm: Lpm<V>,
}

/// How a network's prefixes of one family are looked up.
#[derive(Clone, Copy, Debug)]
enum Form<V> {
    /// By exact match; what matches nothing has the value of the default route.
    Exact(Lengths, Option<V>),
    /// By longest prefix match, for this reason.
    Longest(Conflict),
}

/// The key's space is network, family and length: there are at most [`Prefixes::NETWORKS`] networks.
fn key(network: u32, address: IpAddr, length: u8) -> ExactKey {
    let bits = match mask(address, length) {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    ExactKey::new(network << 9 | u32::from(address.is_ipv6()) << 8 | u32::from(length), bits)
}

impl<V: Copy + Default> Prefixes<V> {
    /// Most networks there can be.
    pub const NETWORKS: usize = 1 << 22;

    /// A table for `networks` networks (at most [`NETWORKS`](Self::NETWORKS)) of entries whose (network, prefix) differ.
    ///
    /// # Errors
    /// [`Full`]: there is not enough memory.
    pub fn build(networks: usize, entries: &[(u32, Prefix, V)]) -> Result<Prefixes<V>, Full> {
        let mut sorted = vec![[Vec::new(), Vec::new()]; networks];
        for (network, prefix, value) in entries {
            if let Some(families) = sorted.get_mut(*network as usize) {
                families[usize::from(prefix.address().is_ipv6())].push((*prefix, *value));
            }
        }
        let form = |entries: &Vec<(Prefix, V)>| match coalesce(entries.iter().map(|(prefix, _)| *prefix)) {
            Ok(lengths) => {
                let default = entries.iter().find(|(prefix, _)| prefix.length() == 0);
                Form::Exact(lengths, default.map(|(_, value)| *value))
            }
            Err(conflict) => Form::Longest(conflict),
        };
        let forms: Box<[_]> = sorted.iter().map(|families| families.each_ref().map(form)).collect();
        let (mut keyed, mut longest) = (Vec::new(), Vec::new());
        for (network, families) in sorted.iter().enumerate() {
            for (form, entries) in forms[network].iter().zip(families) {
                match form {
                    Form::Exact(..) => keyed.extend(
                        entries
                            .iter()
                            .map(|(prefix, value)| (key(network as u32, prefix.address(), prefix.length()), *value)),
                    ),
                    Form::Longest(_) => {
                        longest.extend(entries.iter().map(|(prefix, value)| (network as u32, *prefix, *value)));
                    }
                }
            }
        }
        let mut lpm = Lpm::new(Capacity::worst_case(if longest.is_empty() { 0 } else { networks }, longest.len()))?;
        for (network, prefix, value) in longest {
            lpm.insert(network, prefix, value)?;
        }
        lpm.settle();
        Ok(Prefixes { forms, exact: ExactTable::build(&keyed, 0), lpm })
    }

    /// The value of the longest prefix of network number `network` that has `address`.
    pub fn longest(&self, network: u32, address: IpAddr) -> Option<V> {
        match &self.forms.get(network as usize)?[usize::from(address.is_ipv6())] {
            Form::Exact(lengths, default) => {
                let found = lengths.iter().find_map(|length| self.exact.get(&key(network, address, length)));
                found.or(*default)
            }
            Form::Longest(_) => self.lpm.lookup(network, address),
        }
    }

    /// Whether prefixes of a network's families, IPv4 and IPv6, are looked up by exact match, or why by longest prefix match; None of a
    /// family without any.
    pub fn lookups(&self, network: u32) -> [Option<Result<(), Conflict>>; 2] {
        let lookup = |form: &Form<V>| match form {
            Form::Exact(lengths, None) if lengths.iter().next().is_none() => None,
            Form::Exact(..) => Some(Ok(())),
            Form::Longest(conflict) => Some(Err(*conflict)),
        };
        self.forms.get(network as usize).map_or([None; 2], |families| families.each_ref().map(lookup))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};

    use proptest::prelude::*;

    use super::*;

    fn address() -> impl Strategy<Value = IpAddr> {
        // Few bits that differ, so that prefixes nest.
        prop_oneof![
            (0u32..256).prop_map(|bits| Ipv4Addr::from_bits(bits.rotate_right(6)).into()),
            (0u128..256).prop_map(|bits| Ipv6Addr::from_bits(bits.rotate_right(6)).into()),
        ]
    }

    fn prefix() -> impl Strategy<Value = Prefix> {
        (address(), 0u8..=128).prop_map(|(address, length)| {
            let length = if address.is_ipv4() { length % 33 } else { length };
            Prefix::new(mask(address, length), length).expect("masked")
        })
    }

    #[test]
    fn disjoint_prefixes_are_exact_and_others_say_why_not() {
        let of = |network, prefix: &str, value: u16| (network, prefix.parse::<Prefix>().unwrap(), value);
        let table = Prefixes::build(
            2,
            &[
                of(0, "0.0.0.0/0", 1),
                of(0, "10.0.0.0/24", 2),
                of(0, "10.0.1.0/24", 3),
                of(1, "10.0.0.0/8", 4),
                of(1, "10.0.0.0/24", 5),
                of(1, "2001:db8::/64", 6),
            ],
        )
        .unwrap();
        let told = |network| table.lookups(network).map(|family| family.map(|it| it.map_err(|why| why.to_string())));
        assert_eq!(told(0), [Some(Ok(())), None]);
        assert_eq!(told(1), [Some(Err("10.0.0.0/24 is inside 10.0.0.0/8".to_owned())), Some(Ok(()))]);
        assert_eq!(told(2), [None, None]);
        let longest = |network, address: &str| table.longest(network, address.parse().unwrap());
        assert_eq!(
            [longest(0, "10.0.0.7"), longest(0, "10.0.1.7"), longest(0, "10.0.2.7")],
            [Some(2), Some(3), Some(1)]
        );
        assert_eq!([longest(1, "10.0.0.7"), longest(1, "10.9.0.7"), longest(1, "11.0.0.1")], [Some(5), Some(4), None]);
        assert_eq!(
            [longest(1, "2001:db8::1"), longest(0, "2001:db8::1"), longest(2, "10.0.0.7")],
            [Some(6), None, None]
        );
    }

    proptest! {
        #[test]
        fn the_longest_of_all_that_contain_it(
            entries in prop::collection::hash_map((0u32..2, prefix()), any::<u16>(), 0..60),
            addresses in prop::collection::vec(address(), 1..60),
        ) {
            let listed: Vec<_> = entries.iter().map(|(&(network, prefix), &value)| (network, prefix, value)).collect();
            let table = Prefixes::build(2, &listed).unwrap();
            for (network, address) in addresses.iter().flat_map(|address| [(0, *address), (1, *address)]) {
                let naive = listed
                    .iter()
                    .filter(|(n, prefix, _)| *n == network && prefix.contains(address))
                    .max_by_key(|(_, prefix, _)| prefix.length());
                prop_assert_eq!(table.longest(network, address), naive.map(|(_, _, value)| *value));
            }
        }

        #[test]
        fn prefix_trie_says_the_same(
            entries in prop::collection::hash_map(prefix(), any::<u16>(), 0..60),
            addresses in prop::collection::vec(address(), 1..60),
        ) {
            let table = Prefixes::build(1, &entries.iter().map(|(&prefix, &value)| (0, prefix, value)).collect::<Vec<_>>()).unwrap();
            let mut four = prefix_trie::PrefixMap::<(u32, u8), u16>::new();
            let mut six = prefix_trie::PrefixMap::<(u128, u8), u16>::new();
            for (prefix, value) in &entries {
                match prefix.address() {
                    IpAddr::V4(address) => four.insert((address.to_bits(), prefix.length()), *value),
                    IpAddr::V6(address) => six.insert((address.to_bits(), prefix.length()), *value),
                };
            }
            for address in addresses {
                let oracle = match address {
                    IpAddr::V4(address) => four.get_lpm(&(address.to_bits(), 32)).map(|(_, value)| *value),
                    IpAddr::V6(address) => six.get_lpm(&(address.to_bits(), 128)).map(|(_, value)| *value),
                };
                prop_assert_eq!(table.longest(0, address), oracle);
            }
        }
    }
}
