//! Datagrams of which the first fragment passed a moment ago: their later ones, which have no ports, are let through
//! after it.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use softdpu_vpc::packet::Ip;

/// For how long after the first fragment others pass, nanoseconds: what a path may reorder, and little for an attacker
/// that guesses numbers.
const TIME: u64 = 1_000_000_000;
/// Datagrams that are remembered; the newest in each place.
const PLACES: usize = 256;

/// What the fragments of a datagram have in common, at an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Datagram {
    port: u32,
    source: IpAddr,
    destination: IpAddr,
    id: u32,
    /// Of IPv6 a later fragment need not say what the first one begins with: it is not compared (RFC 8200 §4.5).
    protocol: Option<u8>,
}

impl Datagram {
    pub fn of(port: u32, ip: &Ip, id: u32) -> Datagram {
        let protocol = (!ip.is_ipv6()).then_some(ip.protocol);
        Datagram { port, source: ip.source, destination: ip.destination, id, protocol }
    }
}

/// Those that passed.
#[derive(Debug)]
pub(crate) struct Fragments {
    places: Box<[Option<(Datagram, u64)>]>,
    /// A sender of fragments is not to know which place they take.
    seed: RandomState,
}

impl Fragments {
    pub fn new() -> Fragments {
        Fragments { places: vec![None; PLACES].into(), seed: RandomState::new() }
    }

    fn place(&self, datagram: &Datagram) -> usize {
        self.seed.hash_one(datagram) as usize % PLACES
    }

    /// The first fragment passed at `now`.
    pub fn pass(&mut self, datagram: Datagram, now: u64) {
        let place = self.place(&datagram);
        self.places[place] = Some((datagram, now.saturating_add(TIME)));
    }

    /// Whether it did, a moment before `now`.
    pub fn passed(&self, datagram: Datagram, now: u64) -> bool {
        self.places[self.place(&datagram)].is_some_and(|(known, until)| known == datagram && now < until)
    }
}
