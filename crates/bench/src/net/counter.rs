//! The far end of the underlay's wire: counts the frames that come out of it.

use rustix::event::{PollFd, PollFlags};
use softdpu_frontend::load::FrameSink;
use softdpu_frontend::net::CorruptFrame;
use softdpu_frontend::{Frames, Station};
use softdpu_sys::port::packet::{PacketOptions, PacketSocket};
use softdpu_sys::port::{Frame, MAX_BATCH};

/// Bytes that VXLAN over IPv4 puts before a frame: Ethernet, IPv4, UDP, VXLAN (RFC 7348 §5).
const OUTER: usize = 14 + 20 + 8 + 8;
/// Offset of the outer UDP destination port.
const OUTER_PORT: usize = 14 + 20 + 2;
/// The UDP port of VXLAN.
const VXLAN: [u8; 2] = 4789u16.to_be_bytes();
/// Slots of the counter's ring: many times what is on its way.
const SLOTS: usize = 4096;

/// The far end of the underlay's wire: counts what comes out of it, in VXLAN or bare.
pub struct Counter {
    socket: PacketSocket,
    arrivals: Arrivals,
    interrupts: u64,
}

/// What has arrived at a [`Counter`].
struct Arrivals {
    frames: Frames,
    /// Frames, or the segments of frames that stand for several.
    pieces: u64,
    bytes: u64,
    next: u64,
    /// Of frames that stand for several: the number of the first one whose segments `pieces_before` do not count.
    first: u64,
    pieces_before: u64,
}

impl Counter {
    /// Listens on an interface of the calling thread's network namespace.
    ///
    /// # Errors
    /// A sentence, where the kernel does not let it.
    pub fn open(interface: &str, frames: Frames) -> Result<Counter, String> {
        let options = PacketOptions { ring_frames: SLOTS, ..PacketOptions::default() };
        let socket = PacketSocket::open(interface, &options).map_err(|error| error.to_string())?;
        Ok(Counter { socket, arrivals: Arrivals::new(frames), interrupts: 0 })
    }
}

impl Arrivals {
    fn new(frames: Frames) -> Arrivals {
        Arrivals { frames, pieces: 0, bytes: 0, next: 0, first: 0, pieces_before: 0 }
    }

    /// Frames so far.
    fn whole(&self) -> u64 {
        self.pieces / self.frames.segments()
    }

    /// Counts frames of the wire; those that the sending guest has not sent are the machine's own.
    fn take(&mut self, frames: &mut [Frame<'_>]) -> Result<(), CorruptFrame> {
        let mut last = None;
        for frame in frames.iter() {
            let inner = bare(frame.bytes);
            if inner.get(6..12) != Some(&Station::A.mac[..]) {
                continue;
            }
            let pieces = match self.frames.pieces(inner.len()) {
                0 => return Err(CorruptFrame::Length { len: inner.len(), expected: self.frames.lengths() }),
                pieces => pieces,
            };
            self.pieces += pieces;
            self.bytes += inner.len() as u64;
            last = Some(inner);
        }
        let Some(last) = last else { return Ok(()) };
        if self.frames.segments() > 1 {
            // Only a first segment has a number. They come in order, so counting tells as much.
            self.next = self.first + (self.pieces - self.pieces_before) / self.frames.segments();
            return Ok(());
        }
        let found = self.frames.sequence_in(last).ok_or(CorruptFrame::Contents)?;
        if found < self.next {
            return Err(CorruptFrame::Order { found, next: self.next });
        }
        self.next = found + 1;
        if self.pieces > self.next {
            return Err(CorruptFrame::Twice { received: self.pieces, sent: self.next });
        }
        Ok(())
    }
}

/// What is in the tunnel, or the frame itself where it is in none.
fn bare(frame: &[u8]) -> &[u8] {
    let tunnelled = frame.len() > OUTER
        && frame[12..14] == [8, 0]
        && frame[14] == 0x45
        && frame[23] == 17
        && frame[OUTER_PORT..OUTER_PORT + 2] == VXLAN;
    if tunnelled { &frame[OUTER..] } else { frame }
}

impl FrameSink for Counter {
    fn take(&mut self, most: usize) -> Result<usize, CorruptFrame> {
        let before = self.arrivals.whole();
        let mut result = Ok(());
        let arrivals = &mut self.arrivals;
        // It has no errors: an interface that is gone brings no frames, which the load notices.
        let _ = self.socket.receive(most.min(MAX_BATCH), |frames| result = arrivals.take(frames));
        result?;
        Ok((self.arrivals.whole() - before) as usize)
    }

    fn received(&self) -> (u64, u64) {
        (self.arrivals.whole(), self.arrivals.bytes)
    }

    fn next(&self) -> u64 {
        self.arrivals.next
    }

    fn write_off(&mut self, sent: u64) {
        (self.arrivals.first, self.arrivals.pieces_before) = (sent, self.arrivals.pieces);
    }

    fn signals(&self) -> (u64, u64) {
        (0, self.interrupts)
    }

    fn kick(&mut self) {}

    fn arm(&mut self) -> bool {
        false
    }

    fn poll_fd(&self) -> PollFd<'_> {
        PollFd::from_borrowed_fd(self.socket.fd(), PollFlags::IN)
    }

    fn woken(&mut self) {
        self.interrupts += 1;
    }
}

#[cfg(test)]
mod tests {
    use softdpu_device::net::abi::header;
    use softdpu_sys::port::VnetHeader;

    use super::*;

    fn arrive(arrivals: &mut Arrivals, bytes: &[u8]) -> Result<(), CorruptFrame> {
        let mut bytes = bytes.to_vec();
        arrivals.take(&mut [Frame { header: VnetHeader::default(), bytes: &mut bytes }])
    }

    fn tunnelled(inner: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; OUTER];
        frame[12..15].copy_from_slice(&[8, 0, 0x45]);
        frame[23] = 17;
        frame[OUTER_PORT..OUTER_PORT + 2].copy_from_slice(&VXLAN);
        frame.extend(inner);
        frame
    }

    #[test]
    fn frames_count_in_a_tunnel_and_bare_and_the_machines_own_do_not() {
        let mut arrivals = Arrivals::new(Frames::Smallest);
        let slot = Frames::Smallest.build(0, 1, Station::A, Station::B);
        arrive(&mut arrivals, &tunnelled(&slot[header::SIZE..])).unwrap();
        arrive(&mut arrivals, &[0xff; 60]).unwrap();
        assert_eq!((arrivals.whole(), arrivals.bytes, arrivals.next), (1, 60, 1));
        let again = arrive(&mut arrivals, &slot[header::SIZE..]);
        assert_eq!(again, Err(CorruptFrame::Order { found: 0, next: 1 }));
        let short = arrive(&mut arrivals, &slot[header::SIZE..header::SIZE + 59]);
        assert!(matches!(short, Err(CorruptFrame::Length { len: 59, .. })));
    }

    #[test]
    fn segments_of_a_large_frame_count_as_one_when_all_are_there() {
        let mut arrivals = Arrivals::new(Frames::Tso);
        let slot = Frames::Tso.build(0, 1, Station::A, Station::B);
        let segment = &slot[header::SIZE..header::SIZE + Frames::Mtu.longest()];
        for count in 1..=44 {
            assert_eq!((arrivals.whole(), arrivals.next), (0, 0), "{count}");
            arrive(&mut arrivals, segment).unwrap();
        }
        assert_eq!((arrivals.whole(), arrivals.next), (1, 1));
        arrive(&mut arrivals, &slot[header::SIZE..]).unwrap();
        assert_eq!((arrivals.whole(), arrivals.next), (2, 2), "one that was not segmented");
    }
}
