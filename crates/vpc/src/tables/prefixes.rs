//! Longest prefix match: one exact table for all prefixes of all networks, and for each network and family the lengths that
//! occur, longest first. A look-up probes each length once; a VPC has few.

use std::net::IpAddr;

use super::exact::{Exact, Key};
use crate::spec::{Prefix, mask};

/// A table from prefixes to values, for each network its own.
#[derive(Clone, Debug)]
pub struct Prefixes<V> {
    entries: Exact<V>,
    /// By network number, IPv4 and IPv6: lengths that occur, longest first.
    lengths: Box<[[Box<[u8]>; 2]]>,
}

/// The key's space is network, family and length: there are at most [`Prefixes::NETWORKS`] networks.
fn key(network: u32, address: IpAddr, length: u8) -> Key {
    let bits = match mask(address, length) {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    };
    Key::new(network << 9 | u32::from(address.is_ipv6()) << 8 | u32::from(length), bits)
}

impl<V: Copy + Default> Prefixes<V> {
    /// Most networks there can be.
    pub const NETWORKS: usize = 1 << 22;

    /// A table for `networks` networks (at most [`NETWORKS`](Self::NETWORKS)) of entries whose (network, prefix) differ.
    pub fn build(networks: usize, entries: &[(u32, Prefix, V)]) -> Prefixes<V> {
        let mut lengths = vec![[Vec::new(), Vec::new()]; networks];
        for (network, prefix, _) in entries {
            if let Some(families) = lengths.get_mut(*network as usize) {
                families[usize::from(prefix.address().is_ipv6())].push(prefix.length());
            }
        }
        let longest_first = |mut lengths: Vec<u8>| {
            lengths.sort_unstable_by(|a, b| b.cmp(a));
            lengths.dedup();
            lengths.into_boxed_slice()
        };
        let keyed: Vec<_> = entries
            .iter()
            .map(|(network, prefix, value)| (key(*network, prefix.address(), prefix.length()), *value))
            .collect();
        Prefixes {
            entries: Exact::build(&keyed, 0),
            lengths: lengths.into_iter().map(|families| families.map(longest_first)).collect(),
        }
    }

    /// The value of the longest prefix of network number `network` that has `address`.
    pub fn longest(&self, network: u32, address: IpAddr) -> Option<V> {
        let lengths = &self.lengths.get(network as usize)?[usize::from(address.is_ipv6())];
        lengths.iter().find_map(|&length| self.entries.get(&key(network, address, length)))
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

    proptest! {
        #[test]
        fn the_longest_of_all_that_contain_it(
            entries in prop::collection::hash_map((0u32..2, prefix()), any::<u16>(), 0..60),
            addresses in prop::collection::vec(address(), 1..60),
        ) {
            let listed: Vec<_> = entries.iter().map(|(&(network, prefix), &value)| (network, prefix, value)).collect();
            let table = Prefixes::build(2, &listed);
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
            let table = Prefixes::build(1, &entries.iter().map(|(&prefix, &value)| (0, prefix, value)).collect::<Vec<_>>());
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
