//! Blocks, appended to a buffer. Little-endian, times in nanoseconds.

use crate::options::{COMMENT, END, interface, packet, section, statistics};
use crate::{BYTE_ORDER, Direction, EnhancedPacket, FRAME, Interface, Statistics, kind};

/// 10^-9 (`if_tsresol`).
const NANOSECONDS: u8 = 9;
/// In a Section Header: the section's length is not known.
const UNKNOWN_LENGTH: u64 = u64::MAX;
/// In `if_filter`: a text follows.
const FILTER_TEXT: u8 = 0;

/// A Section Header, written by `application`.
pub fn section_header(out: &mut Vec<u8>, application: &str) {
    block(out, kind::SECTION, |out| {
        out.extend(BYTE_ORDER.to_le_bytes());
        out.extend(1u16.to_le_bytes());
        out.extend(0u16.to_le_bytes());
        out.extend(UNKNOWN_LENGTH.to_le_bytes());
        option(out, section::APPLICATION, application.as_bytes());
        end_options(out);
    });
}

/// An Interface Description: times of packets are in nanoseconds.
pub fn interface_description(out: &mut Vec<u8>, described: &Interface<'_>) {
    block(out, kind::INTERFACE, |out| {
        out.extend(described.link_type.to_le_bytes());
        out.extend(0u16.to_le_bytes());
        out.extend(described.snaplen.to_le_bytes());
        for (code, text) in [(interface::NAME, &described.name), (interface::DESCRIPTION, &described.description)] {
            if let Some(text) = text {
                option(out, code, text.as_bytes());
            }
        }
        option(out, interface::RESOLUTION, &[NANOSECONDS]);
        if let Some(filter) = &described.filter {
            option(out, interface::FILTER, &[&[FILTER_TEXT], filter.as_bytes()].concat());
        }
        end_options(out);
    });
}

/// An Enhanced Packet. One without a time has the time 0.
pub fn enhanced_packet(out: &mut Vec<u8>, written: &EnhancedPacket<'_>) {
    block(out, kind::ENHANCED_PACKET, |out| {
        let time = written.time.unwrap_or(0);
        out.extend(written.interface.to_le_bytes());
        out.extend(((time >> 32) as u32).to_le_bytes());
        out.extend((time as u32).to_le_bytes());
        out.extend((written.bytes.len() as u32).to_le_bytes());
        out.extend(written.original.to_le_bytes());
        out.extend_from_slice(&written.bytes);
        pad(out, written.bytes.len());
        for comment in &written.comments {
            option(out, COMMENT, comment.as_bytes());
        }
        if let Some(direction) = written.direction {
            let flags = match direction {
                Direction::In => packet::IN,
                Direction::Out => packet::OUT,
            };
            option(out, packet::FLAGS, &flags.to_le_bytes());
        }
        if let Some(lost) = written.lost {
            option(out, packet::LOST, &lost.to_le_bytes());
        }
        if !written.comments.is_empty() || written.direction.is_some() || written.lost.is_some() {
            end_options(out);
        }
    });
}

/// Interface Statistics, taken at `time`, nanoseconds since 1970.
pub fn interface_statistics(out: &mut Vec<u8>, time: u64, counts: &Statistics) {
    block(out, kind::STATISTICS, |out| {
        out.extend(counts.interface.to_le_bytes());
        out.extend(((time >> 32) as u32).to_le_bytes());
        out.extend((time as u32).to_le_bytes());
        for (code, count) in [
            (statistics::RECEIVED, counts.received),
            (statistics::ACCEPTED, counts.accepted),
            (statistics::LOST, counts.lost),
            (statistics::DELIVERED, counts.delivered),
        ] {
            if let Some(count) = count {
                option(out, code, &count.to_le_bytes());
            }
        }
        end_options(out);
    });
}

/// A block of type `kind` around what `body` appends.
fn block(out: &mut Vec<u8>, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    body(out);
    // Frames and options end far below 4 GiB.
    let len = (out.len() - start + FRAME - 8) as u32;
    out[start + 4..start + 8].copy_from_slice(&len.to_le_bytes());
    out.extend(len.to_le_bytes());
}

/// An option; of a value that is longer than one can be, the beginning.
fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    let value = &value[..value.len().min(usize::from(u16::MAX))];
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    out.extend_from_slice(value);
    pad(out, value.len());
}

fn end_options(out: &mut Vec<u8>) {
    option(out, END, &[]);
}

/// To the next multiple of four behind `len` bytes.
fn pad(out: &mut Vec<u8>, len: usize) {
    out.extend(std::iter::repeat_n(0, len.next_multiple_of(4) - len));
}
