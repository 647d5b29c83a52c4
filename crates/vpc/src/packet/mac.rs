//! Ethernet addresses.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

use thiserror::Error;

/// An Ethernet (MAC) address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations of the segment.
    pub const BROADCAST: Mac = Mac([0xff; 6]);

    /// Whether it names a group: multicast or broadcast (IEEE 802-2014 §8.2.2, the I/G bit).
    #[inline]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Whether it can be an interface's own: not a group, not all zero.
    pub const fn is_station(self) -> bool {
        !self.is_group()
            && u64::from_be_bytes([0, 0, self.0[0], self.0[1], self.0[2], self.0[3], self.0[4], self.0[5]]) != 0
    }

    /// The IPv6 link-local address made of it (RFC 4291 appendix A, modified EUI-64).
    pub const fn link_local(self) -> Ipv6Addr {
        let [a, b, c, d, e, f] = self.0;
        Ipv6Addr::from_bits(0xfe80_u128 << 112 | u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]) as u128)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

/// A text that is no MAC address.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{0:?} is not a MAC address: expected six hexadecimal bytes with colons between, such as 02:5d:00:00:00:02")]
pub struct MacError(String);

impl FromStr for Mac {
    type Err = MacError;

    fn from_str(text: &str) -> Result<Mac, MacError> {
        let error = || MacError(text.to_owned());
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next().ok_or_else(error)?;
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(error());
            }
            *byte = u8::from_str_radix(part, 16).map_err(|_| error())?;
        }
        if parts.next().is_some() { Err(error()) } else { Ok(Mac(bytes)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_bytes_are_one_address() {
        let mac: Mac = "02:5d:00:00:00:1F".parse().unwrap();
        assert_eq!(mac.to_string(), "02:5d:00:00:00:1f");
        for wrong in ["", "02:5d:00:00:00", "02:5d:00:00:00:02:03", "2:5d:0:0:0:2", "+2:5d:00:00:00:02"] {
            assert!(wrong.parse::<Mac>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_link_local_address_is_the_modified_eui_64() {
        assert_eq!(Mac([0x02, 0x5d, 0, 0, 0, 2]).link_local().to_string(), "fe80::5d:ff:fe00:2");
    }

    #[test]
    fn groups_and_zero_are_no_stations() {
        assert!(Mac([2, 0, 0, 0, 0, 0]).is_station());
        assert!(
            !Mac::BROADCAST.is_station() && !Mac::default().is_station() && !Mac([0x33, 0x33, 0, 0, 0, 1]).is_station()
        );
    }
}
