//! A guest's interface without a guest: any chain, any header, any bytes in the rings.

use std::path::Path;
use std::time::{Duration, Instant};

use softdpu_device::net::abi::{feature, header};
use softdpu_frontend::{Format, NetFrontEnd, NetOptions, Virtqueue};
use softdpu_memory::GuestAddress;
use softdpu_ring::driver::Piece;
use softdpu_tests::descriptor::Descriptor;
use softdpu_tests::{Context, Failure};

use crate::SOON;
use crate::packets::{ARP, GATEWAY, MALLORY, arp};

/// Descriptors of a queue, if nothing else is wanted.
pub const SIZE: u16 = 256;
/// Bytes for buffers.
const MEMORY: u64 = 8 << 20;
/// Receive buffers and their bytes, for answers.
const BUFFERS: u64 = 16;
const BUFFER: u32 = 2048;

/// All offloads of a sender.
pub const OFFLOADS: &[(u64, &str)] = &[
    (feature::CSUM, "CSUM"),
    (feature::HOST_TSO4, "HOST_TSO4"),
    (feature::HOST_TSO6, "HOST_TSO6"),
    (feature::HOST_ECN, "HOST_ECN"),
    (feature::HOST_USO, "HOST_USO"),
];
pub const INDIRECTION: &[(u64, &str)] = &[(feature::RING_INDIRECT_DESC, "INDIRECT_DESC")];

/// What a driver negotiates and does by itself.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Descriptors of a queue.
    pub size: u16,
    pub format: Format,
    pub features: &'static [(u64, &'static str)],
    /// Buffers for answers are made available.
    pub receives: bool,
}

impl Settings {
    pub const PLAIN: Settings = Settings { size: SIZE, format: Format::Split, features: &[], receives: true };
}

/// Which of the two queues.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Receive,
    Transmit,
}

pub struct Nic {
    pub port: NetFrontEnd,
    format: Format,
    /// Memory to place things in, from which everything is taken in turn.
    area: GuestAddress,
    at: u64,
    /// By what the ring calls a receive buffer: where it is.
    buffers: Vec<(u16, GuestAddress)>,
}

impl Nic {
    pub fn connect(socket: &Path, settings: Settings) -> Result<Nic, Failure> {
        let options = NetOptions {
            queue_size: settings.size,
            format: settings.format,
            required: settings.features.to_vec(),
            memory: MEMORY + BUFFERS * u64::from(BUFFER),
            timeout: SOON,
            status: true,
        };
        let mut port = NetFrontEnd::connect(socket, &options).context("connecting an interface")?;
        let area = port.memory.allocate(MEMORY, 4096).context("memory")?;
        let mut nic = Nic { port, format: settings.format, area, at: 0, buffers: Vec::new() };
        if settings.receives {
            let base = nic.port.memory.allocate(BUFFERS * u64::from(BUFFER), 64).context("memory")?;
            for index in 0..BUFFERS {
                let address = GuestAddress(base.0 + index * u64::from(BUFFER));
                let id = nic.port.receive.driver.add(&[Piece::writable(address, BUFFER)]);
                nic.buffers.push((id.ok_or_else(|| Failure::new("no room for receive buffers"))?, address));
            }
            nic.port.receive.publish();
        }
        Ok(nic)
    }

    /// `len` bytes of memory that were not used for the last few megabytes.
    pub fn room(&mut self, len: usize) -> GuestAddress {
        let len = (len as u64).next_multiple_of(64);
        if self.at + len > MEMORY {
            self.at = 0;
        }
        let place = GuestAddress(self.area.0 + self.at);
        self.at += len;
        place
    }

    /// Writes bytes somewhere.
    pub fn place(&mut self, bytes: &[u8]) -> Result<GuestAddress, Failure> {
        let place = self.room(bytes.len());
        self.write(place, bytes)?;
        Ok(place)
    }

    pub fn write(&self, at: GuestAddress, bytes: &[u8]) -> Result<(), Failure> {
        let buffer = self.port.memory.view().buffer(at, bytes.len() as u64).context("outside the memory")?;
        buffer.write_at(0, bytes).context("writing guest memory")
    }

    /// Sends a chain and waits until it is given back.
    pub fn send_chain(&mut self, pieces: &[Piece]) -> Result<(), Failure> {
        self.offer_chain(pieces)?;
        self.sent(1)
    }

    /// Makes a transmit chain available.
    pub fn offer_chain(&mut self, pieces: &[Piece]) -> Result<(), Failure> {
        let driver = &mut self.port.transmit.driver;
        driver.add(pieces).ok_or_else(|| Failure::new("no room in the transmit queue"))?;
        self.port.transmit.publish();
        Ok(())
    }

    /// Waits until `count` transmit chains were given back.
    pub fn sent(&mut self, count: usize) -> Result<(), Failure> {
        let start = Instant::now();
        let mut done = 0;
        while done < count {
            if let Some(completion) = self.port.transmit.driver.take() {
                done += 1;
                if completion.written != 0 {
                    return Err(Failure::new(format!("{} bytes written to a sender", completion.written)));
                }
            } else if start.elapsed() > SOON {
                return Err(Failure::new(format!("{done} of {count} chains were given back")));
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        Ok(())
    }

    /// Sends a frame behind a header, in one piece, and waits until it is given back.
    pub fn send(&mut self, header: [u8; header::SIZE], frame: &[u8]) -> Result<(), Failure> {
        let bytes = [&header[..], frame].concat();
        let at = self.place(&bytes)?;
        self.send_chain(&[Piece::readable(at, bytes.len() as u32)])
    }

    /// Sends frames that claim nothing in their headers; how many.
    pub fn send_all(&mut self, frames: &[Vec<u8>]) -> Result<u64, Failure> {
        for frame in frames {
            self.send([0; header::SIZE], frame)?;
        }
        Ok(frames.len() as u64)
    }

    /// The next frame that was received, without its header.
    pub fn received(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        let Some(done) = self.port.receive.driver.take() else { return Ok(None) };
        let at = self.buffers.iter().position(|(id, _)| *id == done.id);
        let (_, address) = self.buffers.swap_remove(at.ok_or_else(|| Failure::new("a buffer that was never given"))?);
        let mut bytes = vec![0; done.written as usize];
        let buffer = self.port.memory.view().buffer(address, done.written.into()).context("a buffer")?;
        buffer.read_at(0, &mut bytes).context("reading a buffer")?;
        if let Some(id) = self.port.receive.driver.add(&[Piece::writable(address, BUFFER)]) {
            self.buffers.push((id, address));
        }
        self.port.receive.publish();
        Ok(Some(bytes.split_off(header::SIZE.min(bytes.len()))))
    }

    /// Asks for the gateway's MAC address until it answers: services may have been asked too often a moment before.
    pub fn probe(&mut self) -> Result<(), Failure> {
        let start = Instant::now();
        let question = arp(1, MALLORY.mac, MALLORY.address, GATEWAY);
        while start.elapsed() < SOON {
            self.send([0; header::SIZE], &question)?;
            let asked = Instant::now();
            while asked.elapsed() < Duration::from_millis(50) {
                if let Some(frame) = self.received()?
                    && frame.get(12..14) == Some(&ARP.to_be_bytes())
                    && frame.get(28..32) == Some(&GATEWAY.octets())
                {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        Err(Failure::new("the gateway does not answer"))
    }

    /// Whether it has buffers for answers.
    pub fn can_be_asked(&self) -> bool {
        !self.buffers.is_empty()
    }

    /// Asks the gateway once, to be answered into whatever the receive queue holds.
    pub fn ask(&mut self) -> Result<(), Failure> {
        self.send([0; header::SIZE], &arp(1, MALLORY.mac, MALLORY.address, GATEWAY))
    }

    pub fn ring(&self, side: Side) -> &Virtqueue {
        if side == Side::Receive { &self.port.receive } else { &self.port.transmit }
    }

    /// Whether the error eventfd of one of its rings was signalled.
    pub fn error_signalled(&self) -> bool {
        self.port.receive.error_signalled() || self.port.transmit.error_signalled()
    }

    /// Where a ring is for the guest: descriptors, driver area.
    fn areas(&self, side: Side) -> [GuestAddress; 2] {
        let addresses = self.ring(side).addresses();
        let base = self.port.memory.user(GuestAddress(0)).0;
        [addresses.descriptors, addresses.driver].map(|area| GuestAddress(area.0.wrapping_sub(base)))
    }

    /// Where a ring's descriptors are.
    pub fn descriptors(&self, side: Side) -> GuestAddress {
        self.areas(side)[0]
    }

    /// Writes descriptors from entry 0 of a table on.
    pub fn describe(&self, table: GuestAddress, descriptors: &[Descriptor]) -> Result<(), Failure> {
        // The first one last: a packed ring's flags make it available.
        for (entry, descriptor) in (0..).zip(descriptors).collect::<Vec<(u64, &Descriptor)>>().into_iter().rev() {
            let bytes = match self.format {
                Format::Split => descriptor.split(),
                Format::Packed => descriptor.packed(),
            };
            let at = table.0 + 16 * entry;
            self.write(GuestAddress(at), &bytes[..8])?;
            self.write(GuestAddress(at + 8), &bytes[8..])?;
        }
        Ok(())
    }

    /// Writes the entries of a split ring's available ring and its index, and kicks.
    pub fn offer(&mut self, side: Side, heads: &[u16], index: u16) -> Result<(), Failure> {
        let [_, driver] = self.areas(side);
        for (slot, head) in (0..).zip(heads) {
            self.write(GuestAddress(driver.0 + 4 + 2 * slot), &head.to_le_bytes())?;
        }
        self.write(GuestAddress(driver.0 + 2), &index.to_le_bytes())?;
        self.kick(side);
        Ok(())
    }

    pub fn kick(&mut self, side: Side) {
        match side {
            Side::Receive => self.port.receive.kick(),
            Side::Transmit => self.port.transmit.kick(),
        }
    }
}
