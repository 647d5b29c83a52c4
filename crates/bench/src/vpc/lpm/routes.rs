//! Routing tables to measure with: the lengths are those of real ones, the prefixes are scattered at random, which is
//! harder on a cache than real ones are. The same seed gives the same table.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fastrand::Rng;
use softdpu_lpm::Prefix;

/// What a table is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// The Internet's IPv4 table: 60% /24, /8 to /24.
    Internet,
    /// A provider's IPv4 networks: hosts, and subnets of /16 to /28, in private space.
    Vpc,
    /// The Internet's IPv6 table: /48, /32, /44, /40, …
    Internet6,
}

impl Mix {
    pub fn name(self) -> &'static str {
        match self {
            Mix::Internet => "IPv4, as the Internet's",
            Mix::Vpc => "IPv4, a provider's",
            Mix::Internet6 => "IPv6, as the Internet's",
        }
    }

    /// Lengths and how many of 100,000 prefixes have them.
    fn lengths(self) -> &'static [(u8, usize)] {
        match self {
            Mix::Internet => &[
                (24, 60_000),
                (22, 11_500),
                (23, 10_400),
                (21, 5_300),
                (20, 4_600),
                (19, 2_700),
                (16, 1_440),
                (18, 1_500),
                (17, 900),
                (15, 220),
                (14, 120),
                (13, 60),
                (12, 30),
                (11, 10),
                (10, 5),
                (9, 2),
                (8, 2),
            ],
            Mix::Vpc => &[(32, 50_000), (24, 25_000), (28, 10_000), (26, 7_000), (22, 5_000), (20, 2_500), (16, 500)],
            Mix::Internet6 => &[
                (48, 47_000),
                (32, 13_000),
                (44, 11_000),
                (40, 9_000),
                (36, 5_000),
                (46, 4_000),
                (47, 3_000),
                (33, 2_000),
                (29, 2_500),
                (42, 2_000),
                (34, 1_000),
                (35, 500),
            ],
        }
    }

    fn prefix(self, random: &mut Rng) -> Prefix {
        let mut pick = random.usize(..self.lengths().iter().map(|(_, share)| share).sum::<usize>());
        let mut length = 0;
        for &(this, share) in self.lengths() {
            length = this;
            match pick.checked_sub(share) {
                Some(rest) => pick = rest,
                None => break,
            }
        }
        let address: IpAddr = match self {
            // 1.0.0.0 to 223.255.255.255.
            Mix::Internet => Ipv4Addr::from_bits((1 << 24) + random.usize(..223 << 24) as u32).into(),
            // 10.0.0.0/8 and 100.64.0.0/10.
            Mix::Vpc if random.usize(..5) != 0 => Ipv4Addr::from_bits(0x0a00_0000 | random.u32(..) >> 8).into(),
            Mix::Vpc => Ipv4Addr::from_bits(0x6440_0000 | random.u32(..) >> 10).into(),
            // 2000::/3, of which registries have given out some 4,000 /20s.
            Mix::Internet6 => {
                let registry = 0x2_0000 + 0x10 * (random.usize(..4096) as u128);
                Ipv6Addr::from_bits(registry << 108 | random.u128(..) >> 20).into()
            }
        };
        cut(address, length)
    }

    /// `count` prefixes, each once, in no order.
    pub fn prefixes(self, count: usize, random: &mut Rng) -> Vec<Prefix> {
        let mut seen = HashSet::with_capacity(count);
        let mut prefixes = Vec::with_capacity(count);
        while prefixes.len() < count {
            let prefix = self.prefix(random);
            if seen.insert(prefix) {
                prefixes.push(prefix);
            }
        }
        prefixes
    }
}

/// The prefix of `length` that contains `address`.
fn cut(address: IpAddr, length: u8) -> Prefix {
    let masked: IpAddr = match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    };
    Prefix::new(masked, length).expect("the bits behind the length are 0")
}

/// How often a route is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skew {
    /// One as often as the other.
    Uniform,
    /// The n-th most wanted one 1/n as often as the first (Zipf's law).
    Zipf,
}

impl Skew {
    pub fn name(self) -> &'static str {
        match self {
            Skew::Uniform => "uniform",
            Skew::Zipf => "Zipf",
        }
    }

    /// One of `count`.
    pub fn pick(self, count: usize, random: &mut Rng) -> usize {
        match self {
            Skew::Uniform => random.usize(..count),
            // Under Zipf's law with exponent 1, the logarithm of the rank is uniform.
            Skew::Zipf => ((count as f64).powf(random.f64()) as usize - 1).min(count - 1),
        }
    }
}

/// An address in `prefix`.
pub fn inside(prefix: Prefix, random: &mut Rng) -> IpAddr {
    let length = u32::from(prefix.length());
    match prefix.address() {
        IpAddr::V4(address) => {
            let host = u32::MAX.checked_shr(length).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() | random.u32(..) & host).into()
        }
        IpAddr::V6(address) => {
            let host = u128::MAX.checked_shr(length).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() | random.u128(..) & host).into()
        }
    }
}
