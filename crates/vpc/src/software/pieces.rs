//! Packets that are too long for where they go and may be cut up (IPv4 without DF): they go there in fragments.

use super::nat;
use crate::nat::Binding;
use crate::packet::fragment::Fragments;
use crate::packet::segment::Segmenter;
use crate::packet::vxlan::OVERHEAD_V6;
use crate::packet::{Checksum, Head, Packet, parse};
use crate::switch::{Frame, Metadata, Stop, after, complete_udp6};
use crate::tables::Tables;
use crate::verdict::{DropReason, Reply, Verdict};

/// Sends the packet in `frame` in pieces of at most `mtu` bytes. What is still to be done to it (checksum,
/// segmentation) is done first: a fragment leaves nothing open.
pub(super) fn send(
    tables: &Tables,
    packet: &Packet,
    (arrived, metadata): (&Frame, &Metadata),
    frame: &[u8],
    mtu: u16,
    id: u16,
    out: &mut Vec<Reply>,
) -> Verdict {
    let before = out.len();
    match all(tables, packet, (arrived, metadata), frame, mtu.into(), id, out) {
        Ok(()) => Verdict::Consumed,
        Err(reason) => {
            // Some of a packet's fragments are of no use.
            out.truncate(before);
            Verdict::Drop(reason)
        }
    }
}

fn all(
    tables: &Tables,
    packet: &Packet,
    (arrived, metadata): (&Frame, &Metadata),
    frame: &[u8],
    mtu: usize,
    id: u16,
    out: &mut Vec<Reply>,
) -> Result<(), DropReason> {
    let (outer, checksum) = match metadata.tunnel() {
        None => (0, packet.checksum),
        // The outer headers come off here.
        Some(_) => (arrived.outer.into(), arrived.checksum),
    };
    let ip = arrived.parsed.ip().ok_or(DropReason::EtherType)?;
    let inner = frame.get(outer..).and_then(|inner| inner.get(..ip.end as usize)).ok_or(DropReason::Truncated)?;
    let head = Head::of(inner);
    let rest = &inner[head.len()..];
    let whole =
        Packet { head, tail: rest.len() as u32, checksum, segmentation: packet.segmentation, port: packet.port };
    let segmenter = Segmenter::new(&whole, 0, usize::MAX)?;
    let mut segment = Vec::new();
    for index in 0..segmenter.segments() {
        segment.resize(segmenter.len(index), 0);
        segmenter.write(index, rest, &mut segment).map_err(|_| DropReason::Truncated)?;
        if let Some(crossing) = metadata.crossing {
            // Before it is cut up: only the first piece has ports.
            let of = (arrived, metadata);
            let translation = nat::translate(tables, packet, of, crossing, 0, Binding::Peek)?;
            translation.apply(&mut segment, Checksum::Complete).ok_or(DropReason::Headers)?;
        }
        let parsed = parse(&segment, segment.len())?;
        let ip = parsed.ip().ok_or(DropReason::EtherType)?;
        for piece in Fragments::new(&segment, ip, mtu).ok_or(DropReason::PathMtu)? {
            let checksum = Checksum::Complete;
            let parsed = Frame { parsed: parse(&piece, piece.len())?, outer: 0, checksum, ..*arrived };
            let id = id.wrapping_add(out.len() as u16);
            out.push(one(tables, packet, (&parsed, metadata), &piece, id)?);
        }
    }
    Ok(())
}

/// One fragment as it leaves.
fn one(
    tables: &Tables,
    packet: &Packet,
    (arrived, metadata): (&Frame, &Metadata),
    piece: &[u8],
    id: u16,
) -> Result<Reply, DropReason> {
    let head = Head::of(piece);
    let rest = &piece[head.len()..];
    let checksum = Checksum::Complete;
    let mut packet = Packet { head, tail: rest.len() as u32, checksum, segmentation: None, port: packet.port };
    let departure = after::check(tables, &packet, arrived, metadata).map_err(|stop| match stop {
        Stop::Drop(reason) => reason,
        Stop::Ask(_) => DropReason::PathMtu,
    })?;
    let verdict = after::send(&mut packet, arrived, metadata, &departure, id);
    let mut frame = [packet.head.bytes(), rest].concat();
    match verdict {
        Verdict::Local { port, .. } => Ok(Reply { port, frame }),
        Verdict::Underlay { port, overhead, .. } => {
            if usize::from(overhead) == OVERHEAD_V6 {
                complete_udp6(&mut frame);
            }
            Ok(Reply { port, frame })
        }
        Verdict::Drop(reason) => Err(reason),
        Verdict::Software | Verdict::Consumed => Err(DropReason::Unresolved),
    }
}
