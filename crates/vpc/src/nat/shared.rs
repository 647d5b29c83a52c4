//! Which ports of which outside address an inside address has: by its place among the sources (RFC 7422), so that no
//! allocation is shared, none has to be logged, and no inside address gets at another's ports.
//!
//! ```text
//!   place = addresses of the sources before + place in its own prefix
//!   outside address = place / blocks of an address        first port = first + place % blocks * ports of each
//! ```

use std::net::Ipv4Addr;

use crate::spec::{Prefix, SharedSpec};

/// A block of ports of an outside address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub address: Ipv4Addr,
    pub first: u16,
    pub count: u16,
}

impl Block {
    pub fn has(&self, address: Ipv4Addr, port: u16) -> bool {
        self.address == address && port.wrapping_sub(self.first) < self.count
    }
}

/// Outside addresses that inside addresses share.
#[derive(Debug)]
pub(super) struct Shared {
    /// Prefixes, with the addresses of those before.
    sources: Box<[(Prefix, u64)]>,
    pub addresses: Box<[Ipv4Addr]>,
    ports: (u16, u16),
    per_guest: u16,
}

/// How many addresses an IPv4 prefix has.
pub(super) fn size(prefix: Prefix) -> u64 {
    1 << (32 - u64::from(prefix.length().min(32)))
}

fn first_of(prefix: Prefix) -> u32 {
    match prefix.address() {
        std::net::IpAddr::V4(address) => address.to_bits(),
        std::net::IpAddr::V6(_) => 0,
    }
}

/// Blocks of ports that one outside address has.
pub(super) fn blocks((first, last): (u16, u16), per_guest: u16) -> u64 {
    u64::from(last.saturating_sub(first)).wrapping_add(1) / u64::from(per_guest.max(1))
}

impl Shared {
    /// Of a rule that was checked.
    pub fn new(spec: &SharedSpec) -> Shared {
        let mut before = 0;
        let source = |prefix: &Prefix| {
            let first = before;
            before += size(*prefix);
            (*prefix, first)
        };
        Shared {
            sources: spec.sources.iter().map(source).collect(),
            addresses: spec.addresses.as_slice().into(),
            ports: spec.ports,
            per_guest: spec.ports_per_guest,
        }
    }

    /// The ports of an inside address, if it is one of the sources.
    pub fn block(&self, inside: Ipv4Addr) -> Option<Block> {
        let (prefix, before) = self.sources.iter().find(|(prefix, _)| prefix.contains(inside.into()))?;
        let place = before + u64::from(inside.to_bits() - first_of(*prefix));
        let blocks = blocks(self.ports, self.per_guest);
        let address = *self.addresses.get(usize::try_from(place / blocks).ok()?)?;
        let first = self.ports.0 + u16::try_from(place % blocks * u64::from(self.per_guest)).ok()?;
        Some(Block { address, first, count: self.per_guest })
    }

    /// The inside address that has a port of the outside address at `at`.
    pub fn inside(&self, at: usize, port: u16) -> Option<Ipv4Addr> {
        let offset = port.checked_sub(self.ports.0).filter(|_| port <= self.ports.1)?;
        let (block, blocks) = (u64::from(offset / self.per_guest), blocks(self.ports, self.per_guest));
        let place = (block < blocks).then_some(at as u64 * blocks + block)?;
        let (prefix, before) =
            self.sources.iter().find(|(prefix, before)| (*before..before + size(*prefix)).contains(&place))?;
        Some(Ipv4Addr::from_bits(first_of(*prefix) + u32::try_from(place - before).ok()?))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shared(per_guest: u16) -> Shared {
        Shared::new(&SharedSpec {
            sources: vec!["10.0.0.0/24".parse().unwrap(), "10.9.0.0/30".parse().unwrap()],
            addresses: vec![[203, 0, 113, 1].into(), [203, 0, 113, 2].into()],
            ports: (1024, 65_535),
            ports_per_guest: per_guest,
        })
    }

    #[test]
    fn blocks_follow_from_the_place_of_an_address() {
        let shared = shared(256);
        let block = |last: [u8; 4], count| {
            let Block { address, first, count: of } = shared.block(last.into()).unwrap();
            assert_eq!(of, count);
            (address.octets()[3], first)
        };
        // 252 blocks of 256 ports an address.
        assert_eq!(block([10, 0, 0, 0], 256), (1, 1024));
        assert_eq!(block([10, 0, 0, 251], 256), (1, 1024 + 251 * 256));
        assert_eq!(block([10, 0, 0, 252], 256), (2, 1024));
        assert_eq!(block([10, 9, 0, 3], 256), (2, 1024 + 7 * 256));
        assert_eq!(shared.block([10, 9, 0, 4].into()), None);
        assert_eq!(shared.inside(1, 1024 + 8 * 256), None, "no source has it");
        assert_eq!(shared.inside(0, 1023), None);
    }

    proptest! {
        #[test]
        fn a_port_is_one_inside_addresss(
            per_guest in 240u16..496, last in 0u8..=255, at in 0usize..2, port in any::<u16>(),
        ) {
            let shared = shared(per_guest);
            let inside = Ipv4Addr::from([10, 0, 0, last]);
            let block = shared.block(inside).expect("room for all");
            let of = shared.addresses.iter().position(|address| *address == block.address).unwrap();
            prop_assert_eq!(shared.inside(of, block.first), Some(inside));
            prop_assert_eq!(shared.inside(of, block.first + (block.count - 1)), Some(inside));
            if let Some(other) = shared.inside(at, port) {
                prop_assert!(shared.block(other).unwrap().has(shared.addresses[at], port));
            }
        }
    }
}
