//! What makes packets ones of a connection, and which way they go.

use std::net::IpAddr;

use crate::hash::folded_multiply;

/// A space of addresses with connections of its own, with a share of the table: a network's, or a port's (Linux:
/// conntrack zone). A small index.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Zone(pub u32);

impl Zone {
    /// The number as a place in a table.
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The packets of one direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The zone of the addresses.
    pub zone: Zone,
    /// Source address.
    pub source: IpAddr,
    /// Destination address. Of the same family.
    pub destination: IpAddr,
    /// IANA protocol number.
    pub protocol: u8,
    /// Source port. Of an echo: the identifier in requests, 0 in replies, so that two hosts that ping each other have
    /// two connections. 0 for protocols without ports.
    pub source_port: u16,
    /// Destination port. Of an echo: 0 in requests, the identifier in replies.
    pub destination_port: u16,
}

/// Which way a packet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// As the first one went.
    Original,
    /// Against it.
    Reply,
}

impl Direction {
    /// The other one.
    pub fn other(self) -> Direction {
        match self {
            Direction::Original => Direction::Reply,
            Direction::Reply => Direction::Original,
        }
    }
}

/// Both directions of a connection: its two ends in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    low: u128,
    high: u128,
    low_port: u16,
    high_port: u16,
    protocol: u8,
    is_ipv6: bool,
    zone: Zone,
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

impl Key {
    /// The packets that go back.
    pub fn reversed(&self) -> Key {
        Key {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..*self
        }
    }

    /// The same hash for both directions, keyed by `seed`.
    pub(crate) fn hash_of_both(&self, seed: [u64; 2]) -> u64 {
        self.pair().0.hash(seed)
    }

    /// The connection, and whether this is the direction from its lower to its higher end.
    #[inline]
    pub(super) fn pair(&self) -> (Pair, bool) {
        let from = (bits(self.source), self.source_port);
        let to = (bits(self.destination), self.destination_port);
        let ascends = from <= to;
        let ((low, low_port), (high, high_port)) = if ascends { (from, to) } else { (to, from) };
        let (zone, protocol, is_ipv6) = (self.zone, self.protocol, self.source.is_ipv6());
        (Pair { low, high, low_port, high_port, protocol, is_ipv6, zone }, ascends)
    }
}

impl Pair {
    /// Its hash, keyed by `seed`: guests choose what is in it, so every factor that they choose is hidden by a secret.
    /// With a factor that is known an attacker makes it zero, and the hash says nothing of the other.
    #[inline]
    pub fn hash(&self, seed: [u64; 2]) -> u64 {
        let halves = |bits: u128| ((bits >> 64) as u64, bits as u64);
        let ((low_high, low), (high_high, high)) = (halves(self.low), halves(self.high));
        let ports = u64::from(self.low_port) << 32 | u64::from(self.high_port) << 16 | u64::from(self.protocol);
        let [first, second] = seed;
        let addresses = folded_multiply(low ^ first, high ^ second)
            ^ folded_multiply(low_high ^ first.rotate_left(21), high_high ^ second.rotate_left(42));
        folded_multiply(addresses ^ ports, (second.rotate_left(13) ^ u64::from(self.zone.0) << 1) | 1)
    }

    /// Of the direction from the lower to the higher end, or of the other.
    pub fn key(&self, ascends: bool) -> Key {
        let address = |bits: u128| match self.is_ipv6 {
            false => IpAddr::V4((bits as u32).into()),
            true => IpAddr::V6(bits.into()),
        };
        let key = Key {
            zone: self.zone,
            source: address(self.low),
            destination: address(self.high),
            protocol: self.protocol,
            source_port: self.low_port,
            destination_port: self.high_port,
        };
        if ascends { key } else { key.reversed() }
    }

    pub fn zone(&self) -> Zone {
        self.zone
    }

    /// Its ends as words, without its zone, which has another number in another process.
    pub fn to_words(self) -> [u64; 5] {
        let halves = |bits: u128| [bits as u64, (bits >> 64) as u64];
        let ([low, low_high], [high, high_high]) = (halves(self.low), halves(self.high));
        let ports = u64::from(self.low_port) << 48 | u64::from(self.high_port) << 32;
        [low, low_high, high, high_high, ports | u64::from(self.protocol) << 8 | u64::from(self.is_ipv6)]
    }

    /// What [`to_words`](Self::to_words) was of; None of other words.
    pub fn from_words([low, low_high, high, high_high, rest]: [u64; 5], zone: Zone) -> Option<Pair> {
        let whole = |low: u64, high: u64| u128::from(low) | u128::from(high) << 64;
        let pair = Pair {
            low: whole(low, low_high),
            high: whole(high, high_high),
            low_port: (rest >> 48) as u16,
            high_port: (rest >> 32) as u16,
            protocol: (rest >> 8) as u8,
            is_ipv6: rest & 1 == 1,
            zone,
        };
        // Addresses of its family, and the lower end first.
        (pair.key(true).pair() == (pair, true) && pair.to_words()[4] == rest).then_some(pair)
    }

    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// Its hash whatever the zone's number is, keyed by `seed` and by the name of the zone.
    pub fn hash_in(&self, zone_name: u64, [first, second]: [u64; 2]) -> u64 {
        Pair { zone: Zone::default(), ..*self }.hash([first ^ zone_name, second])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_directions_are_one_pair_and_come_out_again() {
        for (source, destination) in [("10.0.0.9", "10.0.0.1"), ("2001:db8::1", "2001:db8::9")] {
            let key = Key {
                zone: Zone(7),
                source: source.parse().unwrap(),
                destination: destination.parse().unwrap(),
                protocol: 6,
                source_port: 4000,
                destination_port: 80,
            };
            let ((pair, ascends), (back, descends)) = (key.pair(), key.reversed().pair());
            assert_eq!((pair, ascends), (back, !descends));
            assert_eq!((pair.key(ascends), pair.key(!ascends)), (key, key.reversed()));
            assert_ne!(pair.hash([1, 2]), pair.hash([2, 1]));
            assert_ne!(pair, Key { zone: Zone(8), ..key }.pair().0);
        }
    }
}
