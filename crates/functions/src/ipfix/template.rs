//! What is in a record, field by field (RFC 7011 §3.4.1).

/// An information element and its bytes.
type Field = (u16, u16);

/// The fields of records of one kind.
pub(super) struct Template {
    /// 256 and up (RFC 7011 §3.4.1).
    pub id: u16,
    addresses: [Field; 2],
}

/// Of IPv4 flows: sourceIPv4Address, destinationIPv4Address.
pub(super) const V4: Template = Template { id: 256, addresses: [(8, 4), (12, 4)] };
/// Of IPv6 flows: sourceIPv6Address, destinationIPv6Address.
pub(super) const V6: Template = Template { id: 257, addresses: [(27, 16), (28, 16)] };

/// What follows the addresses: elements of IANA's "IPFIX Information Elements".
const REST: [Field; 11] = [
    (7, 2),   // sourceTransportPort
    (11, 2),  // destinationTransportPort
    (4, 1),   // protocolIdentifier
    (6, 2),   // tcpControlBits (RFC 7125)
    (61, 1),  // flowDirection
    (351, 8), // layer2SegmentId (RFC 7133)
    (1, 8),   // octetDeltaCount
    (2, 8),   // packetDeltaCount
    (152, 8), // flowStartMilliseconds
    (153, 8), // flowEndMilliseconds
    (136, 1), // flowEndReason
];

impl Template {
    /// Bytes of its records.
    pub const fn len(&self) -> usize {
        let (mut len, mut at) = (self.addresses[0].1 as usize + self.addresses[1].1 as usize, 0);
        while at < REST.len() {
            len += REST[at].1 as usize;
            at += 1;
        }
        len
    }

    /// Bytes of the template itself.
    pub const fn size(&self) -> usize {
        4 + 4 * (self.addresses.len() + REST.len())
    }

    /// Writes the template record.
    pub fn write(&self, to: &mut Vec<u8>) {
        let fields = self.addresses.iter().chain(&REST);
        to.extend(self.id.to_be_bytes());
        to.extend(((self.addresses.len() + REST.len()) as u16).to_be_bytes());
        for (element, len) in fields {
            to.extend(element.to_be_bytes());
            to.extend(len.to_be_bytes());
        }
    }
}
