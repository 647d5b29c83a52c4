//! MAC addresses: read, written, and derived where a site file gives none.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use softdpu_vpc::Mac;

/// An Ethernet address (EUI-48), written as `"02:5d:00:00:00:02"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddress(pub [u8; 6]);

/// How every derived address begins. Bit 1 of the first byte says that it is locally administered, bit 0 that it is one
/// station's (IEEE 802 §8.4).
const DERIVED: [u8; 2] = [0x02, 0x5d];

impl MacAddress {
    /// The address of the interface that has `address` in the network called `network`: the same on every host and in
    /// every release, since guests remember it.
    ///
    /// The last four bytes are the IPv4 address mixed with the network's name by XOR: no two IPv4 addresses of a
    /// network have the same, and the same address in two networks has two. IPv6 addresses are folded to four bytes
    /// first, where two may meet: the rules over a site find that.
    pub fn derived(network: &str, address: IpAddr) -> MacAddress {
        let address = match address {
            IpAddr::V4(address) => u32::from(address),
            IpAddr::V6(address) => fnv1a(&address.octets()),
        };
        let [a, b, c, d] = (address ^ fnv1a(network.as_bytes())).to_be_bytes();
        MacAddress([DERIVED[0], DERIVED[1], a, b, c, d])
    }

    /// Whether one station can have it: it is neither a group's address nor all zeroes.
    pub fn is_unicast(self) -> bool {
        Mac(self.0).is_station()
    }
}

/// FNV-1a, 32 bits (RFC 9923 §2).
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Why a MAC address could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("six pairs of hexadecimal digits with colons between them, such as 02:5d:00:00:00:02")]
pub struct MacError;

impl FromStr for MacAddress {
    type Err = MacError;
    fn from_str(text: &str) -> Result<MacAddress, MacError> {
        text.parse().map(|Mac(bytes)| MacAddress(bytes)).map_err(|_| MacError)
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Mac(self.0).fmt(f)
    }
}

impl Serialize for MacAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MacAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_read_in_one_form_only() {
        assert_eq!("02:5D:00:00:00:0a".parse(), Ok(MacAddress([2, 0x5d, 0, 0, 0, 10])));
        let bad =
            ["", "02:5d:00:00:00", "02:5d:00:00:00:02:03", "2:5d:0:0:0:2", "02-5d-00-00-00-02", "+2:5d:00:00:00:02"];
        for text in bad {
            assert_eq!(text.parse::<MacAddress>(), Err(MacError), "{text}");
        }
    }

    /// Computed from the definition by other means.
    const GOLDEN: [&str; 3] = ["02:5d:30:df:ff:db", "02:5d:4b:84:f6:74", "02:5d:93:00:eb:3e"];

    #[test]
    fn a_derived_address_stays_what_it_was() {
        let mac = |network: &str, address: &str| MacAddress::derived(network, address.parse().unwrap()).to_string();
        assert_eq!(mac("acme-vpc", "10.0.0.2"), GOLDEN[0]);
        assert_eq!(mac("acme-vpc", "2001:db8::2"), GOLDEN[1]);
        assert_eq!(mac("globex-vpc", "10.0.0.2"), GOLDEN[2]);
    }

    proptest! {
        #[test]
        fn ipv4_addresses_of_a_network_never_share_one(network in "[a-z]{1,8}", a in any::<u32>(), b in any::<u32>()) {
            let mac = |address: u32| MacAddress::derived(&network, IpAddr::V4(address.into()));
            prop_assert_eq!(mac(a) == mac(b), a == b);
            prop_assert!(mac(a).is_unicast());
            prop_assert_eq!(mac(a).to_string().parse(), Ok(mac(a)));
        }
    }
}
