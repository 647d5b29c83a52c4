//! Routes of all networks: by exact match where no two prefixes of a table overlap, by longest prefix match where they
//! do (Zephyrus §4.3). That is found out when tables are built, and [`Prefixes::lookups`] tells it.

use std::net::IpAddr;

use softdpu_lpm::coalesce::{Conflict, Lengths, coalesce};
use softdpu_lpm::{Capacity, Full, Lpm, Prefix, mask};

use super::loaded::LoadedNetworkId;
use crate::exact::{ExactKey, ExactTable};
use crate::id::{NetworkId, RouteTableId, ids};

ids! {
    /// A table of prefixes: a network's, or a route table's, which are behind those of all networks.
    PrefixTableId;
}

impl From<NetworkId> for PrefixTableId {
    #[inline(always)]
    fn from(network: NetworkId) -> PrefixTableId {
        PrefixTableId::new(network.number())
    }
}

impl From<LoadedNetworkId> for PrefixTableId {
    #[inline(always)]
    fn from(network: LoadedNetworkId) -> PrefixTableId {
        PrefixTableId::new(network.number())
    }
}

impl PrefixTableId {
    /// The table of prefixes of a route table, where there are so many networks.
    #[inline(always)]
    pub fn of_route_table(networks: usize, table: RouteTableId) -> PrefixTableId {
        PrefixTableId::new(networks as u32 + table.number())
    }
}

/// Tables from prefixes to values.
#[derive(Clone, Debug)]
pub struct Prefixes<V> {
    /// By table, IPv4 and IPv6.
    forms: Box<[[Form<V>; 2]]>,
    exact: ExactTable<V>,
    /// The tables with prefixes that overlap.
    lpm: Lpm<V>,
}

/// How a table's prefixes of one family are looked up.
#[derive(Clone, Copy, Debug)]
enum Form<V> {
    /// By exact match; what matches nothing has the value of the default route.
    Exact(Lengths, Option<V>),
    /// By longest prefix match, for this reason.
    Longest(Conflict),
}

/// The key's space is table, family and length.
fn key(table: PrefixTableId, address: IpAddr, length: u8) -> ExactKey {
    let bits = match mask(address, length) {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    ExactKey::new(table.number() << 9 | u32::from(address.is_ipv6()) << 8 | u32::from(length), bits)
}

impl<V: Copy + Default> Prefixes<V> {
    /// Most tables there can be.
    pub const TABLES: usize = 1 << 22;

    /// `tables` tables (at most [`TABLES`](Self::TABLES)) of entries with pairs of table and prefix that differ.
    ///
    /// # Errors
    /// [`Full`]: there is not enough memory.
    pub fn build(tables: usize, entries: &[(PrefixTableId, Prefix, V)]) -> Result<Prefixes<V>, Full> {
        let mut sorted = vec![[Vec::new(), Vec::new()]; tables];
        for (table, prefix, value) in entries {
            if let Some(families) = sorted.get_mut(table.index()) {
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
        for ((table, forms), families) in (0..).map(PrefixTableId::new).zip(&forms).zip(&sorted) {
            for (form, entries) in forms.iter().zip(families) {
                match form {
                    Form::Exact(..) => keyed.extend(
                        entries.iter().map(|(prefix, value)| (key(table, prefix.address(), prefix.length()), *value)),
                    ),
                    Form::Longest(_) => longest.extend(entries.iter().map(|(prefix, value)| (table, *prefix, *value))),
                }
            }
        }
        let mut lpm = Lpm::new(Capacity::worst_case(if longest.is_empty() { 0 } else { tables }, longest.len()))?;
        for (table, prefix, value) in longest {
            lpm.insert(table.number(), prefix, value)?;
        }
        lpm.settle();
        Ok(Prefixes { forms, exact: ExactTable::build(&keyed, 0), lpm })
    }

    /// The value of the longest prefix of `table` that contains `address`.
    pub fn longest(&self, table: PrefixTableId, address: IpAddr) -> Option<V> {
        match &self.forms.get(table.index())?[usize::from(address.is_ipv6())] {
            Form::Exact(lengths, default) => {
                let found = lengths.iter().find_map(|length| self.exact.get(&key(table, address, length)));
                found.or(*default)
            }
            Form::Longest(_) => self.lpm.lookup(table.number(), address),
        }
    }

    /// The value of `prefix` itself.
    pub fn get(&self, table: PrefixTableId, prefix: Prefix) -> Option<V> {
        match self.forms.get(table.index())?[usize::from(prefix.address().is_ipv6())] {
            Form::Exact(_, default) if prefix.length() == 0 => default,
            Form::Exact(..) => self.exact.get(&key(table, prefix.address(), prefix.length())),
            Form::Longest(_) => self.lpm.get(table.number(), prefix),
        }
    }

    /// Gives `prefix`, if it is there, another value; the one that it had.
    pub fn replace(&mut self, table: PrefixTableId, prefix: Prefix, value: V) -> Option<V> {
        let before = self.get(table, prefix)?;
        match &mut self.forms.get_mut(table.index())?[usize::from(prefix.address().is_ipv6())] {
            Form::Exact(_, default) if prefix.length() == 0 => default.replace(value),
            Form::Exact(..) => self.exact.set(key(table, prefix.address(), prefix.length()), value),
            // There is room for what is there.
            Form::Longest(_) => self.lpm.insert(table.number(), prefix, value).ok().flatten(),
        };
        Some(before)
    }

    /// Removes `prefix`; the value that it had. What is left is looked up as before.
    pub fn remove(&mut self, table: PrefixTableId, prefix: Prefix) -> Option<V> {
        match &mut self.forms.get_mut(table.index())?[usize::from(prefix.address().is_ipv6())] {
            Form::Exact(_, default) if prefix.length() == 0 => default.take(),
            Form::Exact(..) => self.exact.remove(&key(table, prefix.address(), prefix.length())),
            Form::Longest(_) => self.lpm.remove(table.number(), prefix),
        }
    }

    /// Whether prefixes of a table's families, IPv4 and IPv6, are looked up by exact match, or why by longest prefix
    /// match; None of a family without any.
    pub fn lookups(&self, table: PrefixTableId) -> [Option<Result<(), Conflict>>; 2] {
        let lookup = |form: &Form<V>| match form {
            Form::Exact(lengths, None) if lengths.iter().next().is_none() => None,
            Form::Exact(..) => Some(Ok(())),
            Form::Longest(conflict) => Some(Err(*conflict)),
        };
        self.forms.get(table.index()).map_or([None; 2], |families| families.each_ref().map(lookup))
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
        let of =
            |table, prefix: &str, value: u16| (PrefixTableId::new(table), prefix.parse::<Prefix>().unwrap(), value);
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
        let told = |number| {
            table.lookups(PrefixTableId::new(number)).map(|family| family.map(|it| it.map_err(|why| why.to_string())))
        };
        assert_eq!(told(0), [Some(Ok(())), None]);
        assert_eq!(told(1), [Some(Err("10.0.0.0/24 is inside 10.0.0.0/8".to_owned())), Some(Ok(()))]);
        assert_eq!(told(2), [None, None]);
        let longest = |number, address: &str| table.longest(PrefixTableId::new(number), address.parse().unwrap());
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
            let listed: Vec<_> = entries.iter().map(|(&(table, prefix), &value)| (PrefixTableId::new(table), prefix, value)).collect();
            let table = Prefixes::build(2, &listed).unwrap();
            let both = |address: &IpAddr| [0, 1].map(|table| (PrefixTableId::new(table), *address));
            for (number, address) in addresses.iter().flat_map(both) {
                let naive = listed
                    .iter()
                    .filter(|(n, prefix, _)| *n == number && prefix.contains(address))
                    .max_by_key(|(_, prefix, _)| prefix.length());
                prop_assert_eq!(table.longest(number, address), naive.map(|(_, _, value)| *value));
            }
        }

        #[test]
        fn prefix_trie_says_the_same(
            entries in prop::collection::hash_map(prefix(), any::<u16>(), 0..60),
            addresses in prop::collection::vec(address(), 1..60),
        ) {
            let table = Prefixes::build(1, &entries.iter().map(|(&prefix, &value)| (PrefixTableId::new(0), prefix, value)).collect::<Vec<_>>()).unwrap();
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
                prop_assert_eq!(table.longest(PrefixTableId::new(0), address), oracle);
            }
        }
    }
}
