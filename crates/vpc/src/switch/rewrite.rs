//! Changes to headers in place, with their checksums brought up to date incrementally (RFC 1624, equation 3).

use crate::packet::{Checksum, Ip, Layer4, Mac, checksum};

/// TCP flags: SYN.
const SYN: u8 = 0x02;
/// TCP options (RFC 9293 §3.2).
const END: u8 = 0;
const NOP: u8 = 1;
const MAXIMUM_SEGMENT_SIZE: u8 = 2;

#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

#[inline]
fn set_word(bytes: &mut [u8], at: usize, word: u16) {
    if let Some(bytes) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *bytes = word.to_be_bytes();
    }
}

/// Changes a word of an IPv4 header together with the header's checksum.
#[inline]
fn change_ipv4(frame: &mut [u8], header: usize, at: usize, change: impl FnOnce(u16) -> u16) {
    if let (Some(old), Some(sum)) = (word(frame, header + at), word(frame, header + 10)) {
        let new = change(old);
        set_word(frame, header + at, new);
        set_word(frame, header + 10, checksum::update(sum, old, new));
    }
}

/// Sets the Ethernet addresses.
#[inline(always)]
pub(super) fn set_macs(frame: &mut [u8], destination: Mac, source: Option<Mac>) {
    // Arrays, not slices: a store of six bytes, where a slice's are copied by a call.
    if let Some((to, rest)) = frame.split_first_chunk_mut()
        && let Some(from) = rest.first_chunk_mut()
    {
        *to = destination.0;
        if let Some(source) = source {
            *from = source.0;
        }
    }
}

/// Takes one off the hop limit, which is not 0, of the IP header at `header`.
#[inline]
pub(super) fn decrement_hop_limit(frame: &mut [u8], header: usize, is_ipv6: bool) {
    if is_ipv6 {
        if let Some(hop_limit) = frame.get_mut(header + 7) {
            *hop_limit = hop_limit.saturating_sub(1);
        }
    } else {
        change_ipv4(frame, header, 8, |word| word.wrapping_sub(0x100));
    }
}

/// Sets the two bits of ECN of the IP header at `header`.
#[inline]
pub(super) fn set_ecn(frame: &mut [u8], header: usize, is_ipv6: bool, ecn: u8) {
    if is_ipv6 {
        // The traffic class lies across the first two bytes (RFC 8200 §3).
        if let Some(byte) = frame.get_mut(header + 1) {
            *byte = *byte & 0xcf | ecn << 4;
        }
    } else {
        change_ipv4(frame, header, 0, |word| word & 0xfffc | u16::from(ecn));
    }
}

/// Lowers the maximum segment size that a SYN announces to what packets of `mtu` bytes carry.
#[inline]
pub(super) fn clamp_mss(frame: &mut [u8], ip: &Ip, checksum: Checksum, mtu: u16) {
    if let Layer4::Tcp { flags, header, .. } = ip.layer4
        && flags & SYN != 0
    {
        clamp_options(frame, ip, usize::from(header), checksum, mtu);
    }
}

fn clamp_options(frame: &mut [u8], ip: &Ip, header: usize, checksum: Checksum, mtu: u16) {
    let transport = usize::from(ip.transport);
    let most = mtu.saturating_sub(if ip.is_ipv6() { 60 } else { 40 });
    let end = (transport + header).min(frame.len());
    let mut at = transport + 20;
    while at < end {
        let length = match (frame[at], frame.get(at + 1)) {
            (END, _) => return,
            (NOP, _) => 1,
            (_, Some(&length)) if length >= 2 => usize::from(length),
            _ => return,
        };
        if frame[at] == MAXIMUM_SEGMENT_SIZE && length == 4 && at + 4 <= end {
            let Some(old) = word(frame, at + 2).filter(|&mss| mss > most) else { return };
            set_word(frame, at + 2, most);
            // With Partial the field holds the pseudo header's sum, which options are not in.
            if !matches!(checksum, Checksum::Partial { start, .. } if start == ip.transport) {
                // At an odd offset the value's bytes lie in two words, each in the other's place.
                let swap = |word: u16| if (at - transport) % 2 == 0 { word } else { word.swap_bytes() };
                if let Some(sum) = word(frame, transport + 16) {
                    set_word(frame, transport + 16, checksum::update(sum, swap(old), swap(most)));
                }
            }
            return;
        }
        at += length;
    }
}
