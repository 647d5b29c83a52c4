//! A port's socket in the kernel.

use std::os::fd::BorrowedFd;

use softdpu_device::net::{self, TxHeader};
use softdpu_sys::port::packet::PacketSocket;
use softdpu_sys::port::tap::Tap;
use softdpu_sys::port::{Frame, PortError, VnetHeader};
use softdpu_vpc::{Checksum, Packet, Segmentation};

use super::offload;
use super::xdp_queues::XdpQueues;

/// A socket of the kernel that carries frames. It never blocks.
pub struct Socket {
    kind: SocketKind,
    /// Frames that were dropped as the kernel did not take them, since the last look.
    dropped: u64,
}

enum SocketKind {
    /// The host's network stack, or a container's.
    Tap(Tap),
    /// An interface of the host, with a copy of its frames from the kernel: the underlay.
    Packet(PacketSocket),
    /// The same, with the frames themselves, before the kernel's stack: those of some of the interface's queues.
    Xdp(XdpQueues),
}

macro_rules! each {
    ($self:expr, $socket:ident => $body:expr) => {
        match &mut $self.kind {
            SocketKind::Tap($socket) => $body,
            SocketKind::Packet($socket) => $body,
            SocketKind::Xdp($socket) => $body,
        }
    };
}

impl From<Tap> for Socket {
    fn from(tap: Tap) -> Self {
        Socket { kind: SocketKind::Tap(tap), dropped: 0 }
    }
}

impl From<PacketSocket> for Socket {
    fn from(socket: PacketSocket) -> Self {
        Socket { kind: SocketKind::Packet(socket), dropped: 0 }
    }
}

impl From<XdpQueues> for Socket {
    fn from(queues: XdpQueues) -> Self {
        Socket { kind: SocketKind::Xdp(queues), dropped: 0 }
    }
}

impl Socket {
    /// Descriptors of which one is readable when there are frames.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (one, queues) = match &self.kind {
            SocketKind::Tap(tap) => (Some(tap.fd()), None),
            SocketKind::Packet(socket) => (Some(socket.fd()), None),
            SocketKind::Xdp(queues) => (None, Some(queues.fds())),
        };
        one.into_iter().chain(queues.into_iter().flatten())
    }

    /// Gives up to `max` frames to `batch`; how many there were.
    ///
    /// # Errors
    /// What the kernel said; the port goes on.
    pub(crate) fn receive(&mut self, max: usize, batch: impl FnOnce(&mut [Frame<'_>])) -> Result<usize, PortError> {
        each!(self, socket => socket.receive(max, batch))
    }

    /// Space for a frame of `len` bytes, all of which are to be written before it is [committed](Self::commit). None:
    /// there is no room.
    pub(crate) fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        // What waits is handed over to make room. What a failure drops is counted.
        if self.waiting() >= softdpu_sys::port::MAX_BATCH {
            let _ = self.flush();
        }
        each!(self, socket => socket.reserve(len))
    }

    /// Puts the frame in the space last reserved behind those that wait.
    pub(crate) fn commit(&mut self, header: VnetHeader, len: usize) -> bool {
        each!(self, socket => socket.commit(header, len))
    }

    /// Frames that wait to be handed to the kernel.
    pub(crate) fn waiting(&self) -> usize {
        match &self.kind {
            SocketKind::Tap(socket) => socket.waiting(),
            SocketKind::Packet(socket) => socket.waiting(),
            SocketKind::Xdp(socket) => socket.waiting(),
        }
    }

    /// Hands what waits to the kernel.
    ///
    /// # Errors
    /// What the kernel said; what waited is dropped, or on AF_XDP waits on.
    pub(crate) fn flush(&mut self) -> Result<usize, PortError> {
        let waited = self.waiting();
        if waited == 0 {
            return Ok(0);
        }
        let flushed = each!(self, socket => socket.flush());
        if flushed.is_err() {
            self.dropped += waited.saturating_sub(self.waiting()) as u64;
        }
        flushed
    }

    /// Frames that flushes dropped since the last call, those that made room for others included.
    pub(crate) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }
}

/// The offloads that the kernel left to do to a frame. None: its header does not fit the frame.
pub(crate) fn pending_offload(header: &VnetHeader, len: usize) -> Option<(Checksum, Option<Segmentation>)> {
    let len = u32::try_from(len).ok()?;
    let parsed = TxHeader::parse(&header.to_bytes(), len, u64::MAX).ok()?;
    let checksum = match parsed.checksum {
        Checksum::Complete if header.flags & VnetHeader::DATA_VALID != 0 => Checksum::Valid,
        checksum => checksum,
    };
    Some((checksum, parsed.segmentation))
}

/// The header with the offloads that are left to the kernel.
pub(crate) fn header(packet: &Packet) -> VnetHeader {
    match offload::header(packet).build(u64::MAX) {
        Ok(bytes) => VnetHeader::from_bytes(&bytes),
        Err(net::Lacking::Checksum | net::Lacking::Segmentation) => VnetHeader::default(),
    }
}
