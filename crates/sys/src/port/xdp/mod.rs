//! AF_XDP: frames of one queue of a NIC, without the kernel's network stack.
//!
//! An [`XdpProgram`] on the interface gives the frames to the sockets of its queues, each an [`XdpSocket`]; it leaves
//! all that is not selected to the kernel, so that the host keeps using its NIC. Zero-copy where the driver has it (the
//! NIC writes into the socket's memory), else with one copy.
//!
//! **Queues.** A NIC spreads tunnels over all its receive queues by their outer UDP source ports: open a socket for
//! each, or steer the port to one (`ethtool -N eth0 flow-type udp4 dst-port 4789 action 0`). What arrives at a queue
//! without socket goes to the kernel.
//!
//! **No offloads.** A frame is what the wire carries: at most [`MAX_LEN`] bytes, its checksum finished. That is also
//! what a NIC delivers. *Not so veth:* its frames carry the sender's unfinished checksums, and nothing tells. Set
//! `ethtool -K … tx off` on the far end, or use [`PacketSocket`](super::packet::PacketSocket), which is faster on veth
//! anyway.

mod bpf;
mod instructions;
mod program;
mod ring;
mod setup;
mod umem;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use smallvec::SmallVec;

use self::ring::Ring;
use self::umem::{CHUNK, Umem};
use super::option::{get, last_error};
use super::{Counters, Frame, InterfaceName, MAX_BATCH, Outgoing, PortError, VnetHeader};
use crate::IoMemory;
use crate::iovec::Cursor;

pub use self::bpf::XdpMode;
pub use self::program::{Selection, XdpProgram};

/// The longest frame, in bytes: a page less the room that XDP keeps before a received frame.
pub const MAX_LEN: usize = CHUNK - 256;

/// Whether frames are copied between the driver and the socket's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// Not if the driver can do without.
    #[default]
    Auto,
    /// Always.
    Copy,
    /// Never: opening fails if the driver cannot.
    ZeroCopy,
}

/// Lets the thread that polls the socket run the driver, instead of interrupts (Linux 5.11). Pair it with
/// `napi_defer_hard_irqs` and `gro_flush_timeout` of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// How long a call may poll the driver, in microseconds.
    pub micros: u32,
    /// Frames a call may take, at most 64 without CAP_NET_ADMIN.
    pub budget: u16,
}

/// How an AF_XDP socket is opened.
#[derive(Clone, Copy, Debug)]
pub struct XdpOptions {
    /// Copying or not.
    pub copy: CopyMode,
    /// Entries of the rings in each direction, and chunks of a page: a power of two, 64 to 32,768.
    pub frames: u32,
    /// Polling the driver from the thread that uses the socket.
    pub busy_poll: Option<BusyPoll>,
}

impl Default for XdpOptions {
    fn default() -> Self {
        XdpOptions { copy: CopyMode::Auto, frames: 2048, busy_poll: None }
    }
}

/// What the kernel counted at a socket (XDP_STATISTICS).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpStatistics {
    /// Frames dropped as they did not fit, or for other reasons.
    pub dropped: u64,
    /// Frames dropped as the receive ring was full.
    pub ring_full: u64,
    /// Times a driver wanted memory for a frame and there was none.
    pub fill_empty: u64,
}

/// A socket that receives and sends whole frames at one queue of an interface.
///
/// ```text
///  fill ─▶ kernel ─▶ rx ─▶ batch ─▶ fill        chunks 0 .. frames
///  free ─▶ reserved ─▶ tx ─▶ kernel ─▶ completion ─▶ free        chunks frames .. 2 frames
/// ```
pub struct XdpSocket {
    fill: Ring<u64>,
    completion: Ring<u64>,
    rx: Ring<libc::xdp_desc>,
    tx: Ring<libc::xdp_desc>,
    // Closed before its memory is unmapped.
    fd: OwnedFd,
    umem: Umem,
    name: InterfaceName,
    zero_copy: bool,
    busy_poll: bool,
    /// Sending chunks that are ours and not committed.
    free: Vec<u64>,
    /// Bytes of the frame that is being written to the last of `free`.
    open: Option<usize>,
    /// Committed frames end here in the transmit ring.
    committed: u32,
    counters: Counters,
}

impl XdpSocket {
    /// Opens a socket for `queue` of the interface `program` is on. The calling thread is in the interface's network
    /// namespace (see [`namespace::within`](crate::namespace::within)). Waits up to half a second for an owner of the
    /// queue that has just ended.
    ///
    /// # Errors
    /// [`PortError::NotPermitted`] without CAP_NET_RAW; [`PortError::Busy`] if the queue has a socket;
    /// [`PortError::Unsupported`] if zero-copy was demanded; [`PortError::Setting`] for a queue that is not there.
    pub fn open(program: &XdpProgram, queue: u32, options: &XdpOptions) -> Result<Self, PortError> {
        setup::open(program, queue, options)
    }

    /// For poll, epoll and io_uring's poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The interface.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// Whether the NIC works on the socket's memory itself.
    pub fn zero_copy(&self) -> bool {
        self.zero_copy
    }

    /// Whether that memory is in huge pages.
    pub fn huge_pages(&self) -> bool {
        self.umem.is_huge()
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What the kernel counted. A system call.
    pub fn statistics(&self) -> XdpStatistics {
        get::<libc::xdp_statistics>(self.fd(), libc::SOL_XDP, libc::XDP_STATISTICS).map_or_else(
            |_| XdpStatistics::default(),
            |all| XdpStatistics {
                dropped: all.rx_dropped,
                ring_full: all.rx_ring_full,
                fill_empty: all.rx_fill_ring_empty_descs,
            },
        )
    }

    /// Gives up to `max` frames (at most [`MAX_BATCH`]) that are there to `batch`, which is not called when there are
    /// none. How many there were.
    ///
    /// # Errors
    /// [`PortError::Down`] and [`PortError::NoInterface`], noticed when the kernel has to be woken up.
    pub fn receive(&mut self, max: usize, batch: impl FnOnce(&mut [Frame<'_>])) -> Result<usize, PortError> {
        let first = self.rx.consumed();
        let there = self.rx.produced().wrapping_sub(first) as usize;
        let taken = there.min(max).min(MAX_BATCH) as u32;
        if there == 0 && (self.busy_poll || self.fill.needs_wakeup()) {
            self.wake_receiver()?;
        }
        if taken == 0 {
            return Ok(0);
        }
        let mut frames = SmallVec::<[Frame<'_>; MAX_BATCH]>::new();
        for position in 0..taken {
            let descriptor = self.rx.read(first.wrapping_add(position));
            // SAFETY: a chunk in the receive ring is ours until it is in the fill ring again, which is below, after
            // `frames` is gone; the kernel has put it there once.
            match unsafe { self.umem.bytes(descriptor.addr, descriptor.len as usize) } {
                Some(bytes) => frames.push(Frame { header: VnetHeader::default(), bytes }),
                None => self.counters.truncated += 1,
            }
        }
        let count = self.counters.deliver(&mut frames, batch);
        drop(frames);
        // There are as many chunks as the fill ring has entries, so they always fit.
        let fill = self.fill.produced();
        for position in 0..taken {
            let address = self.rx.read(first.wrapping_add(position)).addr;
            self.fill.write(fill.wrapping_add(position), address - address % CHUNK as u64);
        }
        self.fill.produce(fill.wrapping_add(taken));
        self.rx.consume(first.wrapping_add(taken));
        Ok(count)
    }

    /// Space for a frame of `len` bytes, at most [`MAX_LEN`]; none while all chunks wait for the NIC
    /// ([`flush`](Self::flush)). Every byte has to be written: older frames are still in it.
    pub fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.open = None;
        if len > MAX_LEN {
            return None;
        }
        if self.free.is_empty() {
            self.complete();
        }
        let address = *self.free.last()?;
        self.open = Some(len);
        // SAFETY: a free chunk is ours; the slice borrows the socket, so that it ends before the chunk is committed or
        // reserved again.
        unsafe { self.umem.bytes(address, len) }
    }

    /// Queues the first `len` bytes of the space last reserved. Whether there was any. A frame with a header that asks
    /// for offloads is refused and counted.
    pub fn commit(&mut self, header: VnetHeader, len: usize) -> bool {
        let Some(reserved) = self.open.take() else { return false };
        if !header.is_plain() {
            self.counters.refused += 1;
            return false;
        }
        let Some(addr) = self.free.pop() else { return false };
        // As many chunks as the transmit ring has entries: there is always one.
        self.tx.write(self.committed, libc::xdp_desc { addr, len: len.min(reserved) as u32, options: 0 });
        self.committed = self.committed.wrapping_add(1);
        true
    }

    /// Frames that are queued and not yet with the kernel.
    pub fn waiting(&self) -> usize {
        self.committed.wrapping_sub(self.tx.consumed()) as usize
    }

    /// Hands queued frames to the kernel until it takes no more. How many it took in this call.
    ///
    /// # Errors
    /// [`PortError::Down`] and [`PortError::NoInterface`]; the frames wait on.
    pub fn flush(&mut self) -> Result<usize, PortError> {
        let before = self.tx.consumed();
        self.tx.produce(self.committed);
        let mut position = before;
        // In copy mode a call takes 32 frames or so; a driver takes them on its own time.
        while position != self.committed && (self.busy_poll || self.tx.needs_wakeup()) {
            let woken = self.wake_sender();
            let now = self.tx.consumed();
            match woken {
                Ok(()) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) if now == position => break,
                Ok(()) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => position = now,
                Err(errno) => return Err(PortError::at(self.name(), "sending", "CAP_NET_RAW", errno)),
            }
        }
        self.complete();
        Ok(self.tx.consumed().wrapping_sub(before) as usize)
    }

    /// Hands frames with their payload elsewhere to the kernel, after those that are queued; they are copied. So many
    /// of the first are gone: queued for the NIC, or dropped and counted; the rest is to be tried again later.
    ///
    /// # Errors
    /// As for [`flush`](Self::flush).
    pub fn send<M: IoMemory>(&mut self, frames: &[Outgoing<'_, M>]) -> Result<usize, PortError> {
        let mut gone = 0;
        for frame in frames {
            let len = frame.head.len() + frame.body.as_ref().map_or(0, |&(_, _, len)| len);
            if len > MAX_LEN {
                self.counters.refused += 1;
                gone += 1;
                continue;
            }
            let Some(space) = self.reserve(len) else { break };
            if gather(frame, space) {
                self.commit(frame.header, len);
            } else {
                self.counters.refused += 1;
            }
            gone += 1;
        }
        self.flush()?;
        Ok(gone)
    }

    /// Takes back the chunks of frames that were sent.
    fn complete(&mut self) {
        let (first, last) = (self.completion.consumed(), self.completion.produced());
        let count = last.wrapping_sub(first);
        for position in 0..count {
            let address = self.completion.read(first.wrapping_add(position));
            self.free.push(address - address % CHUNK as u64);
        }
        self.completion.consume(last);
        self.counters.sent += u64::from(count);
    }

    fn wake_sender(&self) -> Result<(), Errno> {
        // SAFETY: no memory is involved: nothing is sent but the wake-up.
        let answer =
            unsafe { libc::sendto(self.fd.as_raw_fd(), std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
        if answer < 0 { Err(last_error()) } else { Ok(()) }
    }

    fn wake_receiver(&self) -> Result<(), PortError> {
        // SAFETY: no memory is involved: nothing is received but the wake-up.
        let answer = unsafe {
            let (none, no_address) = (std::ptr::null_mut(), std::ptr::null_mut());
            libc::recvfrom(self.fd.as_raw_fd(), none, 0, libc::MSG_DONTWAIT, no_address, std::ptr::null_mut())
        };
        match if answer < 0 { last_error() } else { Errno::AGAIN } {
            Errno::AGAIN | Errno::BUSY | Errno::INTR | Errno::NOBUFS => Ok(()),
            errno => Err(PortError::at(self.name(), "receiving", "CAP_NET_RAW", errno)),
        }
    }
}

/// Copies a frame's parts behind each other. Whether all of its body is there.
fn gather<M: IoMemory>(frame: &Outgoing<'_, M>, space: &mut [u8]) -> bool {
    let (head, mut rest) = space.split_at_mut(frame.head.len());
    head.copy_from_slice(frame.head);
    let Some((memory, skip, _)) = frame.body else { return true };
    let mut cursor = Cursor::new(memory.iovecs(), skip);
    while !rest.is_empty() {
        let Some(piece) = cursor.piece() else { return false };
        let part = piece.len().min(rest.len());
        let (now, later) = rest.split_at_mut(part);
        // SAFETY: the piece is mapped while its owner lives (IoMemory), which is borrowed, and has `part` bytes; `now`
        // is other memory, as there is no reference to the piece.
        unsafe { std::ptr::copy_nonoverlapping(piece.base().cast_const(), now.as_mut_ptr(), part) };
        cursor.advance(part);
        rest = later;
    }
    true
}
