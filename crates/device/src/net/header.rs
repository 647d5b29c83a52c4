//! The header before every frame (virtio 1.3 §5.1.6).
//!
//! What a driver writes is checked against what it negotiated and against the frame itself (§5.1.6.2); what the device
//! writes never says more than the driver accepted (§5.1.6.4).

use softdpu_virtio::{Checksum, Segmentation, SegmentationKind};
use thiserror::Error;

use super::abi::{ETHERNET, MAX_FRAME, feature, header};

/// The header of a frame that a driver sends. Checked: the checksum lies within the frame, a frame to be cut up has a
/// partial checksum and a size, and everything was negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxHeader {
    /// Never [`Checksum::Valid`]: that a driver cannot say.
    pub checksum: Checksum,
    /// Whether, and how, it is to be cut up.
    pub segmentation: Option<Segmentation>,
}

/// Why a frame of a driver is dropped. The queue goes on: the chain is completed with used length 0.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq, Hash)]
pub enum TxDrop {
    /// The chain ends within the header.
    #[error("a chain of {0} bytes is too short for the header of {size} bytes", size = header::SIZE)]
    Header(u32),
    /// The frame ends within its Ethernet header.
    #[error("a frame of {0} bytes is too short for an Ethernet header")]
    Short(u32),
    /// More than any driver may send.
    #[error("a frame of {0} bytes is longer than {MAX_FRAME}")]
    Long(u32),
    /// NEEDS_CSUM without CSUM.
    #[error("a partial checksum, but VIRTIO_NET_F_CSUM was not negotiated")]
    ChecksumNotNegotiated,
    /// The checksum field is not in the frame.
    #[error("a checksum from byte {start} at offset {offset} is not within a frame of {len} bytes")]
    ChecksumOutside {
        /// `csum_start`.
        start: u16,
        /// `csum_offset`.
        offset: u16,
        /// Bytes of the frame.
        len: u32,
    },
    /// A `gso_type` that is unknown or was not negotiated.
    #[error("segmentation of type {0:#04x} is unknown or was not negotiated")]
    SegmentationNotNegotiated(u8),
    /// `gso_type` without NEEDS_CSUM.
    #[error("a frame to be cut up has no partial checksum (virtio 1.3 §5.1.6.2)")]
    SegmentationWithoutChecksum,
    /// `gso_size` is 0.
    #[error("a frame to be cut up into segments of 0 bytes")]
    SegmentSize,
}

impl TxDrop {
    /// One word for a metric's label.
    pub fn word(&self) -> &'static str {
        match self {
            TxDrop::Header(_) => "short-header",
            TxDrop::Short(_) => "short-frame",
            TxDrop::Long(_) => "long-frame",
            TxDrop::ChecksumNotNegotiated => "checksum-not-negotiated",
            TxDrop::ChecksumOutside { .. } => "checksum-outside",
            TxDrop::SegmentationNotNegotiated(_) => "segmentation-not-negotiated",
            TxDrop::SegmentationWithoutChecksum => "segmentation-without-checksum",
            TxDrop::SegmentSize => "segment-size",
        }
    }
}

#[inline(always)]
fn le16(bytes: &[u8; header::SIZE], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

impl TxHeader {
    /// Of a frame to which nothing is left to do.
    pub const FINISHED: TxHeader = TxHeader { checksum: Checksum::Complete, segmentation: None };

    /// Reads the header of a frame of `len` bytes from a driver that accepted `negotiated`.
    ///
    /// Flags this device does not know are ignored (§5.1.6.2.2), as are `hdr_len`, a hint, and `num_buffers`.
    ///
    /// # Errors
    /// What is wrong with it.
    #[inline]
    pub fn parse(bytes: &[u8; header::SIZE], len: u32, negotiated: u64) -> Result<TxHeader, TxDrop> {
        if len < ETHERNET as u32 {
            return Err(TxDrop::Short(len));
        }
        if len > MAX_FRAME as u32 {
            return Err(TxDrop::Long(len));
        }
        if bytes[header::FLAGS] & header::F_NEEDS_CSUM == 0 && bytes[header::GSO_TYPE] == header::GSO_NONE {
            return Ok(TxHeader::FINISHED);
        }
        let checksum = if bytes[header::FLAGS] & header::F_NEEDS_CSUM == 0 {
            Checksum::Complete
        } else {
            partial(le16(bytes, header::CSUM_START), le16(bytes, header::CSUM_OFFSET), len, negotiated)?
        };
        let gso = bytes[header::GSO_TYPE];
        let segmentation = if gso == header::GSO_NONE {
            None
        } else {
            let segmentation = segmentation(gso, le16(bytes, header::GSO_SIZE), negotiated)?;
            if checksum == Checksum::Complete {
                return Err(TxDrop::SegmentationWithoutChecksum);
            }
            Some(segmentation)
        };
        Ok(TxHeader { checksum, segmentation })
    }
}

fn partial(start: u16, offset: u16, len: u32, negotiated: u64) -> Result<Checksum, TxDrop> {
    if negotiated & feature::CSUM == 0 {
        return Err(TxDrop::ChecksumNotNegotiated);
    }
    // The field has two bytes.
    if u32::from(start) + u32::from(offset) + 2 > len {
        return Err(TxDrop::ChecksumOutside { start, offset, len });
    }
    Ok(Checksum::Partial { start, offset })
}

fn segmentation(gso: u8, size: u16, negotiated: u64) -> Result<Segmentation, TxDrop> {
    let refused = TxDrop::SegmentationNotNegotiated(gso);
    let ecn = gso & header::GSO_ECN != 0;
    let (kind, needs) = match gso & !header::GSO_ECN {
        header::GSO_TCPV4 => (SegmentationKind::TcpV4, feature::HOST_TSO4),
        header::GSO_TCPV6 => (SegmentationKind::TcpV6, feature::HOST_TSO6),
        header::GSO_UDP_L4 if !ecn => (SegmentationKind::Udp, feature::HOST_USO),
        _ => return Err(refused),
    };
    let needs = needs | if ecn { feature::HOST_ECN } else { 0 };
    if negotiated & needs != needs {
        return Err(refused);
    }
    if size == 0 {
        return Err(TxDrop::SegmentSize);
    }
    Ok(Segmentation { kind, size, ecn })
}

/// The header of a frame that the device delivers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxHeader {
    /// What is known about the checksum.
    pub checksum: Checksum,
    /// The frame is to be segmented; its checksum is then partial.
    pub segmentation: Option<Segmentation>,
    /// With `segmentation`: bytes of its headers, the transport's included; never less (§5.1.6.4.1).
    pub headers: u16,
    /// UDP over IPv6 is negotiated by itself; only looked at with [`SegmentationKind::Udp`].
    pub ipv6: bool,
}

/// What has to be done to a frame before its driver can be given it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Lacking {
    /// Finish the checksum: without GUEST_CSUM.
    #[error("the driver takes no partial checksums: finish it first")]
    Checksum,
    /// Cut it up: the driver did not accept this kind.
    #[error("the driver takes no such frames that stand for several: cut it up first")]
    Segmentation,
}

impl RxHeader {
    /// The header for a driver that accepted `negotiated`, `num_buffers` as it is for one buffer.
    ///
    /// # Errors
    /// What the driver does not take.
    #[inline]
    pub fn build(&self, negotiated: u64) -> Result<[u8; header::SIZE], Lacking> {
        let mut bytes = [0; header::SIZE];
        // 1 also without MRG_RXBUF (§5.1.6.4.1).
        bytes[header::NUM_BUFFERS] = 1;
        if let Some(segmentation) = self.segmentation {
            let (gso, needs) = match (segmentation.kind, self.ipv6) {
                (SegmentationKind::TcpV4, _) => (header::GSO_TCPV4, feature::GUEST_TSO4),
                (SegmentationKind::TcpV6, _) => (header::GSO_TCPV6, feature::GUEST_TSO6),
                (SegmentationKind::Udp, false) => (header::GSO_UDP_L4, feature::GUEST_USO4),
                (SegmentationKind::Udp, true) => (header::GSO_UDP_L4, feature::GUEST_USO6),
            };
            let (mark, and) = if segmentation.ecn { (header::GSO_ECN, feature::GUEST_ECN) } else { (0, 0) };
            // A driver sums none of the segments, so their checksum has to be partial (§5.1.6.4.1).
            let partial = matches!(self.checksum, Checksum::Partial { .. });
            if negotiated & (needs | and) != needs | and || !partial || segmentation.size == 0 {
                return Err(Lacking::Segmentation);
            }
            bytes[header::GSO_TYPE] = gso | mark;
            put(&mut bytes, header::HDR_LEN, self.headers);
            put(&mut bytes, header::GSO_SIZE, segmentation.size);
        }
        match self.checksum {
            Checksum::Complete => {}
            // A driver without GUEST_CSUM checks it by itself.
            Checksum::Valid if negotiated & feature::GUEST_CSUM == 0 => {}
            Checksum::Valid => bytes[header::FLAGS] = header::F_DATA_VALID,
            Checksum::Partial { .. } if negotiated & feature::GUEST_CSUM == 0 => return Err(Lacking::Checksum),
            Checksum::Partial { start, offset } => {
                bytes[header::FLAGS] = header::F_NEEDS_CSUM;
                put(&mut bytes, header::CSUM_START, start);
                put(&mut bytes, header::CSUM_OFFSET, offset);
            }
        }
        Ok(bytes)
    }
}

#[inline(always)]
fn put(bytes: &mut [u8; header::SIZE], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}
