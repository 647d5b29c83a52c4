//! Prefixes of addresses, IPv4 and IPv6.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

/// The addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

/// A text that is no prefix, or a prefix that is none.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum PrefixError {
    /// Not of the form.
    #[error("{0:?} is not a prefix: expected an address and a length, such as 10.0.0.0/16 or 2001:db8::/64")]
    Form(String),
    /// Longer than an address.
    #[error("prefix length {length} of {address} is more than {most}")]
    Length {
        /// The address.
        address: IpAddr,
        /// The length.
        length: u8,
        /// The most an address of its family has.
        most: u8,
    },
    /// Bits behind the length are set.
    #[error("{address}/{length} has bits set behind its length: the prefix is {prefix}")]
    HostBits {
        /// The address.
        address: IpAddr,
        /// The length.
        length: u8,
        /// What was meant.
        prefix: Prefix,
    },
}

impl Prefix {
    /// The addresses with the first `length` bits of `address`; its other bits are 0.
    ///
    /// # Errors
    /// [`PrefixError`] for a length that the family does not have, and for bits behind it.
    pub fn new(address: IpAddr, length: u8) -> Result<Prefix, PrefixError> {
        let most = if address.is_ipv4() { 32 } else { 128 };
        if length > most {
            return Err(PrefixError::Length { address, length, most });
        }
        let prefix = Prefix { address: mask(address, length), length };
        if prefix.address == address { Ok(prefix) } else { Err(PrefixError::HostBits { address, length, prefix }) }
    }

    /// The first address.
    pub const fn address(self) -> IpAddr {
        self.address
    }

    /// How many bits are the same.
    pub const fn length(self) -> u8 {
        self.length
    }

    /// Whether `address` is one of them.
    pub fn contains(self, address: IpAddr) -> bool {
        self.address.is_ipv4() == address.is_ipv4() && mask(address, self.length) == self.address
    }

    /// Whether all of `other`'s addresses are among these, and not the other way round.
    pub fn has_inside(self, other: Prefix) -> bool {
        self.length < other.length && self.contains(other.address)
    }

    /// Whether any address is in both.
    pub fn overlaps(self, other: Prefix) -> bool {
        if self.length <= other.length { self.contains(other.address) } else { other.contains(self.address) }
    }
}

/// `address` with all bits behind the first `length` cleared.
pub fn mask(address: IpAddr, length: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0);
            Ipv4Addr::from_bits(address.to_bits() & mask).into()
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length.min(128))).unwrap_or(0);
            Ipv6Addr::from_bits(address.to_bits() & mask).into()
        }
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Prefix {
    type Err = PrefixError;

    fn from_str(text: &str) -> Result<Prefix, PrefixError> {
        let form = || PrefixError::Form(text.to_owned());
        let (address, length) = text.split_once('/').ok_or_else(form)?;
        Prefix::new(address.parse().map_err(|_| form())?, length.parse().map_err(|_| form())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_says_what_is_wrong_with_it() {
        let prefix: Prefix = "10.1.0.0/16".parse().unwrap();
        assert_eq!(prefix.to_string(), "10.1.0.0/16");
        let error = "10.1.2.0/16".parse::<Prefix>().unwrap_err();
        assert_eq!(error.to_string(), "10.1.2.0/16 has bits set behind its length: the prefix is 10.1.0.0/16");
        assert!(matches!("10.0.0.0/33".parse::<Prefix>(), Err(PrefixError::Length { most: 32, .. })));
        assert!(matches!("10.0.0.0".parse::<Prefix>(), Err(PrefixError::Form(_))));
    }

    #[test]
    fn containing_and_overlapping_stay_in_the_family() {
        let (all, all6): (Prefix, Prefix) = ("0.0.0.0/0".parse().unwrap(), "::/0".parse().unwrap());
        assert!(all.contains("10.0.0.1".parse().unwrap()) && !all.contains("::ffff:10.0.0.1".parse().unwrap()));
        assert!(!all.overlaps(all6));
        let (wide, narrow): (Prefix, Prefix) = ("10.0.0.0/8".parse().unwrap(), "10.9.0.0/16".parse().unwrap());
        assert!(wide.overlaps(narrow) && narrow.overlaps(wide));
        assert!(!narrow.overlaps("10.8.0.0/16".parse().unwrap()));
    }
}
