//! Ends that are guests of one host: drivers of virtio-net interfaces over vhost-user.

use std::sync::atomic::Ordering::Relaxed;

use softdpu_device::net::abi::{ETHERNET, header};
use softdpu_frontend::{Frames, FrontEndError, NetFrontEnd, Station, Virtqueue};
use softdpu_memory::{GuestAddress, Window};
use softdpu_ring::driver::Piece;

use super::GatewayError;
use super::ends::Ends;

/// What is sent: frames that tax the gateway and not the memory.
pub(super) const FRAMES: Frames = Frames::Smallest;
/// Bytes of a buffer.
const BUFFER: u32 = 2048;
/// Bytes of a frame with its virtio-net header.
const LEN: u32 = (header::SIZE + 60) as u32;

/// Two guests of one network.
pub(super) struct Guests {
    a: NetFrontEnd,
    b: NetFrontEnd,
    near: Near,
    far: Far,
}

impl Guests {
    /// Frames go from `a` to `b`, of so many flows, by queues of `size` descriptors.
    pub(super) fn new(mut a: NetFrontEnd, mut b: NetFrontEnd, size: u16, flows: u16) -> Result<Guests, FrontEndError> {
        let (near, far) = (Near::new(&mut a, size, flows, Station::A, Station::B)?, Far::new(&mut b, size)?);
        // The server may have looked at the empty queues already, and gone to sleep.
        for port in [&mut a, &mut b] {
            port.transmit.kick();
            port.receive.kick();
        }
        Ok(Guests { a, b, near, far })
    }
}

impl Ends for Guests {
    fn send(&mut self, sequence: u64) -> bool {
        self.near.send(&mut self.a, sequence)
    }

    fn publish(&mut self) -> Result<(), GatewayError> {
        self.a.transmit.publish();
        Ok(())
    }

    fn answer(&mut self, most: usize) -> Result<(), GatewayError> {
        self.far.answer(&mut self.b, most);
        Ok(())
    }

    fn take(&mut self, most: usize, see: &mut dyn FnMut(Option<u64>)) -> usize {
        self.near.take(&mut self.a, most, see)
    }
}

/// Buffers of guest memory, each in the receive queue, in the transmit queue, or at hand.
struct Buffers {
    memory: Window,
    base: u64,
}

impl Buffers {
    fn new(port: &mut NetFrontEnd, count: u16) -> Result<Buffers, FrontEndError> {
        let bytes = u64::from(count) * u64::from(BUFFER);
        let base = port.memory.allocate(bytes, u64::from(BUFFER))?;
        Ok(Buffers { memory: port.memory.window(base, bytes as usize)?, base: base.0 })
    }

    fn at(index: u16) -> usize {
        usize::from(index) * BUFFER as usize
    }

    fn address(&self, index: u16) -> GuestAddress {
        GuestAddress(self.base + Self::at(index) as u64)
    }

    /// A chain for each buffer that stays as it is; by what the ring calls it: the buffer.
    fn prepare(
        &self,
        ring: &mut Virtqueue,
        count: u16,
        piece: impl Fn(GuestAddress) -> Piece,
    ) -> Result<Chains, FrontEndError> {
        let mut chains = Chains { buffer_of: vec![0; count.into()], id_of: vec![0; count.into()] };
        for index in 0..count {
            let full = FrontEndError::Full { queue: 0, outstanding: index.into() };
            let id = ring.driver.prepare(&[piece(self.address(index))]).ok_or(full)?;
            chains.buffer_of[usize::from(id)] = index;
            chains.id_of[usize::from(index)] = id;
        }
        ring.driver.disarm();
        Ok(chains)
    }
}

struct Chains {
    buffer_of: Vec<u16>,
    id_of: Vec<u16>,
}

/// Memory that an end needs, bytes, with queues of `size`.
pub(super) fn memory(size: u16) -> u64 {
    (2 * u64::from(size) + 2) * u64::from(BUFFER)
}

/// A receive queue whose buffers are always in the device's hands, but for a moment.
struct Inbox {
    buffers: Buffers,
    chains: Chains,
}

impl Inbox {
    fn new(port: &mut NetFrontEnd, size: u16) -> Result<Inbox, FrontEndError> {
        let buffers = Buffers::new(port, size)?;
        let chains = buffers.prepare(&mut port.receive, size, |at| Piece::writable(at, BUFFER))?;
        for id in &chains.id_of {
            port.receive.driver.repeat(*id);
        }
        port.receive.publish();
        Ok(Inbox { buffers, chains })
    }

    /// Shows up to `most` frames that are there, and gives their buffers back; how many.
    fn take(&mut self, ring: &mut Virtqueue, most: usize, mut see: impl FnMut(&Window, usize, u32)) -> usize {
        let mut count = 0;
        while count < most
            && let Some(done) = ring.driver.take()
        {
            let Some(&index) = self.chains.buffer_of.get(usize::from(done.id)) else { continue };
            see(&self.buffers.memory, Buffers::at(index), done.written);
            ring.driver.repeat(done.id);
            count += 1;
        }
        if count > 0 {
            ring.keep_quiet(count);
            ring.publish();
        }
        count
    }
}

/// A transmit queue with frames that are made and not sent.
struct Outbox {
    buffers: Buffers,
    chains: Chains,
    free: Vec<u16>,
}

impl Outbox {
    fn new(port: &mut NetFrontEnd, size: u16) -> Result<Outbox, FrontEndError> {
        let buffers = Buffers::new(port, size)?;
        let chains = buffers.prepare(&mut port.transmit, size, |at| Piece::readable(at, LEN))?;
        Ok(Outbox { buffers, chains, free: (0..size).rev().collect() })
    }

    fn reap(&mut self, ring: &mut Virtqueue) {
        let mut completed = 0;
        while let Some(done) = ring.driver.take() {
            self.free.extend(self.chains.buffer_of.get(usize::from(done.id)));
            completed += 1;
        }
        ring.keep_quiet(completed);
    }

    /// A buffer to be filled; None: the queue is full.
    fn next(&mut self, ring: &mut Virtqueue) -> Option<u16> {
        if self.free.is_empty() {
            self.reap(ring);
        }
        self.free.pop()
    }
}

/// The end that asks.
struct Near {
    inbox: Inbox,
    outbox: Outbox,
}

impl Near {
    fn new(port: &mut NetFrontEnd, size: u16, flows: u16, from: Station, to: Station) -> Result<Near, FrontEndError> {
        let (inbox, outbox) = (Inbox::new(port, size)?, Outbox::new(port, size)?);
        for index in 0..size {
            let frame = FRAMES.build(index.into(), flows, from, to);
            let view = port.memory.view();
            view.buffer(outbox.buffers.address(index), frame.len() as u64)?.write_at(0, &frame)?;
        }
        Ok(Near { inbox, outbox })
    }

    /// Sends a frame with the number `sequence`; false: the queue is full.
    fn send(&mut self, port: &mut NetFrontEnd, sequence: u64) -> bool {
        let Some(index) = self.outbox.next(&mut port.transmit) else { return false };
        FRAMES.number(&self.outbox.buffers.memory, Buffers::at(index), sequence);
        port.transmit.driver.repeat(self.outbox.chains.id_of[usize::from(index)])
    }

    /// Takes up to `most` answers; `see` gets their numbers, None for a frame that is no answer.
    fn take(&mut self, port: &mut NetFrontEnd, most: usize, see: &mut dyn FnMut(Option<u64>)) -> usize {
        self.inbox.take(&mut port.receive, most, |memory, at, written| {
            see(if written == LEN { FRAMES.sequence(memory, at) } else { None });
        })
    }
}

/// The end that answers.
struct Far {
    inbox: Inbox,
    outbox: Outbox,
}

impl Far {
    fn new(port: &mut NetFrontEnd, size: u16) -> Result<Far, FrontEndError> {
        Ok(Far { inbox: Inbox::new(port, size)?, outbox: Outbox::new(port, size)? })
    }

    /// Sends up to `most` frames back, source and destination swapped: MAC addresses, IP addresses, ports. Those for
    /// which its own queue has no room wait where they are.
    fn answer(&mut self, port: &mut NetFrontEnd, most: usize) -> usize {
        let Far { inbox, outbox } = self;
        let NetFrontEnd { receive, transmit, .. } = port;
        if outbox.free.len() < most {
            outbox.reap(transmit);
        }
        let count = inbox.take(receive, most.min(outbox.free.len()), |memory, at, written| {
            if written == LEN
                && let Some(index) = outbox.free.pop()
            {
                swap(memory, at, &outbox.buffers.memory, Buffers::at(index));
                transmit.driver.repeat(outbox.chains.id_of[usize::from(index)]);
            }
        });
        if count > 0 {
            transmit.publish();
        }
        count
    }
}

/// Copies a frame, with what says where it is from and what says where it goes exchanged. The virtio-net header becomes
/// that of a frame without offloads.
fn swap(from: &Window, at: usize, to: &Window, target: usize) {
    const IP: usize = header::SIZE + ETHERNET;
    for offset in (0..LEN as usize).step_by(2) {
        let source = match offset {
            0..header::SIZE => {
                to.u16(target + offset).store(0, Relaxed);
                continue;
            }
            // Ethernet: six bytes each.
            12 | 14 | 16 => offset + 6,
            18 | 20 | 22 => offset - 6,
            // IPv4: four bytes each, from byte 12 on; UDP: two each.
            _ if offset == IP + 12 || offset == IP + 14 => offset + 4,
            _ if offset == IP + 16 || offset == IP + 18 => offset - 4,
            _ if offset == IP + 20 => offset + 2,
            _ if offset == IP + 22 => offset - 2,
            other => other,
        };
        to.u16(target + offset).store(from.u16(at + source).load(Relaxed), Relaxed);
    }
}
