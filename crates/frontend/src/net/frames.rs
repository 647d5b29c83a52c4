//! The frames of a load. Each has a sequence number.
//!
//! ```text
//!  slot  0            12          26        46     54    56         64
//!        │ virtio-net │ Ethernet  │ IPv4    │ UDP  │mark│ sequence │ zeroes …   UDP
//!        │ header     │           │         │ TCP         │mark│ sequence │ …    TCP: mark at 70, sequence at 72
//! ```
//!
//! A slot is a multiple of 64, so the sequence number is one aligned word, for 60-byte frames in the line that a switch
//! reads anyway. Lengths are those in a virtqueue: no frame check sequence, no virtio-net header.

use std::fmt;
use std::net::Ipv4Addr;
use std::sync::atomic::Ordering::Relaxed;

use softdpu_device::net::abi::{ETHERNET, feature, header};
use softdpu_memory::Window;

const IPV4: usize = 20;
const UDP: usize = 8;
const TCP: usize = 20;
/// EtherType of IPv4.
const TYPE_IPV4: u16 = 0x0800;
const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
/// Bytes of a frame check sequence, which is on a wire and not in a virtqueue.
const FCS: usize = 4;
/// MTU of a network without an underlay.
const MTU: usize = 1500;
/// TCP payload of a packet of [`MTU`] bytes.
const SEGMENT: usize = MTU - IPV4 - TCP;
/// Segments that a 64 KiB frame stands for: as many as an IPv4 total length has room for.
const SEGMENTS: usize = (u16::MAX as usize - IPV4 - TCP) / SEGMENT;
/// Two bytes before each sequence number, which tell a frame of a load from another one.
const MARK: u16 = 0x5d5d;
/// Source port of the first flow. Flows differ in the source port.
const PORT: u16 = 0x4000;
/// Destination port: the discard service.
const DESTINATION_PORT: u16 = 9;
/// The lengths of IMIX in the order they are sent: 7 of 64 bytes, 4 of 570, 1 of 1518, each with its FCS.
const IMIX: [usize; 12] = [60, 566, 60, 60, 566, 60, 60, 1514, 60, 566, 60, 566];

/// Sizes of the frames of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Frames {
    /// 64 bytes with FCS, the smallest of Ethernet.
    Smallest,
    /// IMIX: of every twelve 7 of 64 bytes, 4 of 570, 1 of 1518, each with FCS.
    Imix,
    /// IP packets of 1500 bytes.
    Mtu,
    /// TCP frames for segmentation offload, each of 44 segments of 1,460 bytes, with checksums left to the device.
    Tso,
}

/// A host of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Station {
    /// MAC address.
    pub mac: [u8; 6],
    /// IPv4 address.
    pub address: Ipv4Addr,
}

impl Station {
    /// The sending guest of a load between two.
    pub const A: Station = Station { mac: [0x02, 0x5d, 0, 0, 0, 0x0a], address: Ipv4Addr::new(10, 0, 0, 10) };
    /// The receiving guest.
    pub const B: Station = Station { mac: [0x02, 0x5d, 0, 0, 0, 0x0b], address: Ipv4Addr::new(10, 0, 0, 11) };

    /// The MAC address as text.
    pub fn mac_text(&self) -> String {
        mac_text(self.mac)
    }
}

/// A MAC address as text.
pub fn mac_text(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

impl Frames {
    /// Lengths of frames, in the order they are sent. The order repeats.
    pub fn lengths(self) -> &'static [usize] {
        match self {
            Frames::Smallest => &IMIX[..1],
            Frames::Imix => &IMIX,
            Frames::Mtu => &[ETHERNET + MTU],
            Frames::Tso => &[ETHERNET + IPV4 + TCP + SEGMENTS * SEGMENT],
        }
    }

    /// Length of the longest frame.
    pub fn longest(self) -> usize {
        self.lengths().iter().copied().max().unwrap_or_default()
    }

    /// Mean length.
    pub fn mean(self) -> f64 {
        self.lengths().iter().sum::<usize>() as f64 / self.lengths().len() as f64
    }

    /// Tells whether there are frames of `len` bytes.
    #[inline]
    pub fn has(self, len: usize) -> bool {
        self.lengths().contains(&len)
    }

    /// Number of segments of a frame.
    pub fn segments(self) -> u64 {
        if self == Frames::Tso { SEGMENTS as u64 } else { 1 }
    }

    /// Number of segments of a frame of `len` bytes on a wire, where a large frame may have been segmented. 0 where no
    /// such frame was sent.
    pub fn pieces(self, len: usize) -> u64 {
        match self {
            _ if self.has(len) => self.segments(),
            Frames::Tso if len == ETHERNET + MTU => 1,
            _ => 0,
        }
    }

    /// Features the sender's device has to offer.
    pub fn sender_features(self) -> &'static [(u64, &'static str)] {
        match self {
            Frames::Tso => &[(feature::CSUM, "VIRTIO_NET_F_CSUM"), (feature::HOST_TSO4, "VIRTIO_NET_F_HOST_TSO4")],
            _ => &[],
        }
    }

    /// Features the receiver's device has to offer.
    pub fn receiver_features(self) -> &'static [(u64, &'static str)] {
        match self {
            Frames::Tso => &[
                (feature::MRG_RXBUF, "VIRTIO_NET_F_MRG_RXBUF"),
                (feature::GUEST_CSUM, "VIRTIO_NET_F_GUEST_CSUM"),
                (feature::GUEST_TSO4, "VIRTIO_NET_F_GUEST_TSO4"),
            ],
            _ => &[],
        }
    }

    /// Bytes of the headers of a frame.
    pub fn headers(self) -> usize {
        ETHERNET + IPV4 + if self == Frames::Tso { TCP } else { UDP }
    }

    /// Offset of the sequence number in a slot, a multiple of 8.
    pub fn sequence_at(self) -> usize {
        (header::SIZE + self.headers() + size_of_val(&MARK)).next_multiple_of(8)
    }

    /// Tells whether frames of one length between the same stations differ at offset `at` of a slot: in source port and
    /// sequence number.
    pub(crate) fn varies(self, at: usize) -> bool {
        let port = header::SIZE + ETHERNET + IPV4;
        let sequence = self.sequence_at();
        (port..port + 2).contains(&at) || (sequence..sequence + size_of::<u64>()).contains(&at)
    }

    /// Builds frame number `index` of a sender with its virtio-net header, and with sequence number 0.
    pub fn build(self, index: usize, flows: u16, from: Station, to: Station) -> Vec<u8> {
        let len = self.lengths()[index % self.lengths().len()];
        let mut slot = vec![0; header::SIZE + len];
        let (virtio, frame) = slot.split_at_mut(header::SIZE);
        let source_port = PORT + (index % usize::from(flows.max(1))) as u16;
        frame[..6].copy_from_slice(&to.mac);
        frame[6..12].copy_from_slice(&from.mac);
        put(frame, 12, TYPE_IPV4);
        let (ip, transport) = frame[ETHERNET..].split_at_mut(IPV4);
        // Lengths end at 65,495.
        let total = (IPV4 + transport.len()) as u16;
        ip[0] = 0x45;
        put(ip, 2, total);
        put(ip, 6, 0x4000); // don't fragment
        ip[8] = 64; // time to live
        ip[12..16].copy_from_slice(&from.address.octets());
        ip[16..20].copy_from_slice(&to.address.octets());
        put(transport, 0, source_port);
        put(transport, 2, DESTINATION_PORT);
        let transport_len = transport.len() as u16;
        if self == Frames::Tso {
            ip[9] = PROTOCOL_TCP;
            transport[12] = 5 << 4; // data offset
            transport[13] = 0x10; // ACK
            put(transport, 14, u16::MAX); // window
            // What the device finishes starts with the pseudo header's sum (virtio 1.3 §5.1.6.2).
            put(transport, 16, sum(&[&ip[12..20], &[0, PROTOCOL_TCP], &transport_len.to_be_bytes()]));
            virtio[header::FLAGS] = header::F_NEEDS_CSUM;
            virtio[header::GSO_TYPE] = header::GSO_TCPV4;
            let mut little = |at: usize, value: usize| {
                virtio[at..at + 2].copy_from_slice(&(value as u16).to_le_bytes());
            };
            little(header::HDR_LEN, self.headers());
            little(header::GSO_SIZE, SEGMENT);
            little(header::CSUM_START, ETHERNET + IPV4);
            little(header::CSUM_OFFSET, 16);
        } else {
            ip[9] = PROTOCOL_UDP;
            put(transport, 4, transport_len);
            // The checksum stays 0: none was made (RFC 768).
        }
        let checksum = checksum(ip);
        put(ip, 10, checksum);
        let mark = self.sequence_at() - size_of_val(&MARK);
        slot[mark..mark + 2].copy_from_slice(&MARK.to_ne_bytes());
        slot
    }

    /// Writes a sequence number into the frame whose slot begins at `slot`.
    #[inline(always)]
    pub fn number(self, memory: &Window, slot: usize, sequence: u64) {
        memory.u64(slot + self.sequence_at()).store(sequence, Relaxed);
    }

    /// The sequence number of the frame in the buffer at `slot`; none where there is another frame.
    #[inline]
    pub fn sequence(self, memory: &Window, slot: usize) -> Option<u64> {
        let at = slot + self.sequence_at();
        let mark = memory.u16(at - size_of_val(&MARK)).load(Relaxed);
        (mark == MARK).then(|| memory.u64(at).load(Relaxed))
    }
}

impl Frames {
    /// The sequence number of a frame without virtio-net header; none where there is another frame.
    pub fn sequence_in(self, frame: &[u8]) -> Option<u64> {
        let at = self.sequence_at() - header::SIZE;
        let mark = frame.get(at - size_of_val(&MARK)..at)?;
        let sequence = frame.get(at..at + size_of::<u64>())?;
        (mark == MARK.to_ne_bytes()).then_some(())?;
        Some(u64::from_ne_bytes(sequence.try_into().ok()?))
    }

    /// Writes a sequence number into a frame without virtio-net header that [`build`](Self::build) has made.
    pub fn number_in(self, frame: &mut [u8], sequence: u64) {
        let at = self.sequence_at() - header::SIZE;
        frame[at..at + size_of::<u64>()].copy_from_slice(&sequence.to_ne_bytes());
    }
}

/// The checksum of an IPv4 header whose checksum field is 0.
pub fn checksum(header: &[u8]) -> u16 {
    !sum(&[header])
}

/// Writes a big-endian field.
pub fn put(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

/// The one's complement sum of `parts`, each of an even length, not inverted (RFC 1071).
fn sum(parts: &[&[u8]]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks_exact(2));
    let mut sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

impl fmt::Display for Frames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Frames::Smallest => "64",
            Frames::Imix => "imix",
            Frames::Mtu => "1500",
            Frames::Tso => "64k",
        })
    }
}

const _: () = assert!(IMIX[0] + FCS == 64 && IMIX[1] + FCS == 570 && IMIX[7] + FCS == 1518);

#[cfg(test)]
mod tests {
    use super::*;

    const A: Station = Station { mac: [2, 0x5d, 0, 0, 0, 1], address: Ipv4Addr::new(10, 0, 0, 2) };
    const B: Station = Station { mac: [2, 0x5d, 0, 0, 0, 2], address: Ipv4Addr::new(10, 0, 0, 3) };

    #[test]
    fn a_frame_has_the_addresses_lengths_and_checksum_its_receiver_expects() {
        for frames in [Frames::Smallest, Frames::Imix, Frames::Mtu, Frames::Tso] {
            for index in 0..12 {
                let slot = frames.build(index, 4, A, B);
                let frame = &slot[header::SIZE..];
                assert!(frames.has(frame.len()), "{frames}: {}", frame.len());
                assert_eq!((&frame[..6], &frame[6..12]), (&B.mac[..], &A.mac[..]));
                let ip = &frame[ETHERNET..];
                assert_eq!(usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip.len());
                assert_eq!(sum(&[&ip[..IPV4]]), 0xffff, "{frames}: a header with its checksum sums to all ones");
                let port = u16::from_be_bytes([ip[20], ip[21]]);
                assert_eq!(port, PORT + index as u16 % 4, "four flows");
            }
        }
    }

    #[test]
    fn a_large_frame_says_how_it_is_cut_up_and_what_is_left_to_sum() {
        let slot = Frames::Tso.build(0, 1, A, B);
        assert_eq!(slot[..header::SIZE], [1, 1, 54, 0, 0xb4, 5, 34, 0, 16, 0, 0, 0]);
        // The pseudo header: addresses, protocol, length.
        let tcp = (slot.len() - header::SIZE - ETHERNET - IPV4) as u16;
        let pseudo = [10, 0, 0, 2, 10, 0, 0, 3, 0, 6, (tcp >> 8) as u8, tcp as u8];
        let field = header::SIZE + ETHERNET + IPV4 + 16;
        assert_eq!(u16::from_be_bytes([slot[field], slot[field + 1]]), sum(&[&pseudo]));
    }

    #[test]
    fn the_mix_is_the_documented_one() {
        let count = |len| Frames::Imix.lengths().iter().filter(|has| **has == len).count();
        assert_eq!((count(60), count(566), count(1514)), (7, 4, 1));
    }

    #[test]
    fn every_frame_has_room_for_its_number() {
        for frames in [Frames::Smallest, Frames::Imix, Frames::Mtu, Frames::Tso] {
            let shortest = frames.lengths().iter().min().unwrap();
            assert!(frames.sequence_at() + 8 <= header::SIZE + shortest, "{frames}");
        }
    }
}
