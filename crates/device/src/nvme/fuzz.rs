//! Hostile hosts from a string of bytes: what a fuzzer, and a property test, feed in.
//!
//! The bytes are read as a program of register accesses, admin commands, I/O commands, writes into guest memory,
//! answers to what the controller asks for, and restarts. Whatever they are, nothing panics, an I/O command that is
//! accepted lies inside its namespace, and a reset brings the controller back.

use std::sync::Arc;

use softdpu_memory::{GuestAddress, Mapping, Region, UserAddress, View, Window};
use softdpu_ring::nvme::Doorbells;

use super::abi::register;
use super::{
    Action, Command, Controller, ControllerConfig, ControllerMemory, NamespaceConfig, NvmeIo, NvmeOp, NvmeParsed,
};
use crate::block::Serial;

/// Guest memory: two adjacent regions of this size.
const REGION: u64 = 0x2_0000;
const ASQ: u64 = 0x1000;
const ACQ: u64 = 0x2000;
const CAPACITY: u64 = 1 << 20;
/// Entries of the admin queues.
const ENTRIES: u32 = 16;
const ENABLE: u32 = 6 << 16 | 4 << 20 | register::CC_EN;

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Zero at the end.
    fn byte(&mut self) -> u8 {
        self.next().unwrap_or(0)
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }
}

struct World {
    view: Arc<View>,
    doorbells: Arc<Mapping>,
    admin: Arc<Mapping>,
    controller: Controller,
    tail: u32,
    /// Starts and stops that were asked for, and not answered.
    asked: Vec<Action>,
}

/// Plays `program` against a controller.
///
/// # Panics
/// When the controller breaks one of its promises.
pub fn nvme_controller(program: &[u8]) {
    let mut bytes = Bytes(program);
    let region = |at| Region::new(GuestAddress(at), UserAddress(at), REGION, Mapping::heap(REGION as usize), 0);
    let view = View::new(vec![region(0), region(REGION)]).expect("adjacent regions");
    let (doorbells, admin) = (Mapping::heap(Doorbells::BYTES), Mapping::heap(ControllerMemory::ADMIN_BYTES));
    let controller = controller(&doorbells, &admin);
    let mut world = World { view, doorbells, admin, controller, tail: 0, asked: Vec::new() };
    world.controller.set_view(&Arc::clone(&world.view));
    world.enable();
    while let Some(action) = bytes.next() {
        world.act(action, &mut bytes);
        world.settle(action & 0x80 == 0);
    }
    world.settle(true);
    world.set(register::CC, 0);
    world.settle(true);
    world.controller.flushed(Ok(()));
    let status = world.controller.status();
    assert_eq!(status & (register::CSTS_RDY | register::CSTS_CFS), 0, "a reset brings it back: {status:#x}");
    world.enable();
    assert_eq!(world.controller.status(), register::CSTS_RDY, "{:?}", world.controller.failure());
}

fn controller(doorbells: &Arc<Mapping>, admin: &Arc<Mapping>) -> Controller {
    let mut config = ControllerConfig::new(Serial::default(), "nqn.fuzz");
    config.namespaces = vec![NamespaceConfig::new(1, CAPACITY, "one"), NamespaceConfig::new(2, CAPACITY, "two")];
    config.namespaces[1].block_size = 4096;
    config.namespaces[1].read_only = true;
    let memory = ControllerMemory {
        doorbells: Doorbells::new(Window::of_mapping(Arc::clone(doorbells))).expect("a page"),
        admin: Window::of_mapping(Arc::clone(admin)),
    };
    Controller::new(config, memory).expect("the configuration makes sense")
}

impl World {
    fn set(&mut self, offset: u64, value: u32) {
        self.controller.write(offset, &value.to_le_bytes());
    }

    fn enable(&mut self) {
        self.set(register::AQA, (ENTRIES - 1) << 16 | (ENTRIES - 1));
        self.controller.write(register::ASQ, &ASQ.to_le_bytes());
        self.controller.write(register::ACQ, &ACQ.to_le_bytes());
        self.set(register::CC, ENABLE);
        self.tail = 0;
    }

    fn act(&mut self, action: u8, bytes: &mut Bytes<'_>) {
        match action % 12 {
            0 => {
                let offset = u64::from(bytes.byte() & 0x1f) * 4;
                let value = bytes.u32();
                self.set(offset, value);
            }
            1 => {
                let (offset, len) = (u64::from(bytes.u32()), usize::from(bytes.byte() & 15));
                self.controller.write(offset, &bytes.u32().to_le_bytes().repeat(4)[..len]);
            }
            2 => {
                let (index, value) = (u64::from(bytes.byte()), u32::from(bytes.byte()));
                self.set(register::DOORBELLS + 4 * index, value);
            }
            3..=6 => self.admin(bytes),
            7 | 8 => self.io(bytes),
            9 => self.poke(bytes),
            10 => self.restart(),
            _ => match bytes.byte() % 4 {
                0 => drop(self.controller.grow(1, CAPACITY + u64::from(bytes.byte()) * 512)),
                1 => drop(self.controller.attach(1 + u32::from(bytes.byte() & 1), bytes.byte() & 1 != 0)),
                2 => self.controller.queue_broken(bytes.byte().into(), "fuzzed"),
                _ => self.enable(),
            },
        }
    }

    /// A command: bytes, of which those that make sense as fields are likely to.
    fn command(bytes: &mut Bytes<'_>, opcodes: &[u8]) -> [u8; 64] {
        let mut command = [0; 64];
        let opcode = bytes.byte();
        command[0] = opcodes.get(usize::from(opcode)).copied().unwrap_or(opcode);
        command[1] = if opcode & 1 == 0 { 0 } else { bytes.byte() };
        for _ in 0..bytes.byte() % 12 {
            let at = 4 + 4 * usize::from(bytes.byte() % 15);
            let word = match bytes.byte() % 6 {
                0 => u32::from(bytes.byte()) << 12,
                1 => u32::from(bytes.byte()) << 16 | u32::from(bytes.byte()),
                2 => u32::from(bytes.byte()) << 3,
                3 => 1,
                4 => u32::from(bytes.byte()),
                _ => bytes.u32(),
            };
            command[at..at + 4].copy_from_slice(&word.to_le_bytes());
        }
        command
    }

    fn admin(&mut self, bytes: &mut Bytes<'_>) {
        let command = World::command(bytes, &[0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 0x7c, 5, 1]);
        let at = GuestAddress(ASQ + 64 * u64::from(self.tail));
        if let Ok(entry) = self.view.buffer(at, 64) {
            entry.write_at(0, &command).expect("as long as a command");
        }
        self.tail = (self.tail + 1) % ENTRIES;
        self.set(register::DOORBELLS, self.tail);
        // The host reads all of its completion queue.
        self.settle(true);
        self.set(register::DOORBELLS + 4, self.tail);
    }

    fn io(&mut self, bytes: &mut Bytes<'_>) {
        let command = Command(World::command(bytes, &[0, 1, 2, 5, 8, 9, 12]));
        let parsed = self.controller.commands().parse(&command, &self.view);
        self.controller.commands().estimate(&command);
        let NvmeParsed::Io(NvmeIo { nsid, op, offset, len, .. }) = parsed else { return };
        // Namespace 1 may have grown.
        let (most, block) = if nsid == 2 { (CAPACITY, 4096) } else { (CAPACITY + 256 * 512, 512) };
        assert!(offset + len <= most || matches!(op, NvmeOp::Discard(_)), "inside the namespace");
        assert!(offset.is_multiple_of(block) && len.is_multiple_of(block), "whole blocks");
        match op {
            NvmeOp::Read(buffer) | NvmeOp::Compare(buffer) => {
                assert_eq!(buffer.len(), len);
                let mut copy = vec![0; len as usize];
                buffer.read_at(0, &mut copy).expect("each byte is guest memory");
            }
            NvmeOp::Write(buffer) => assert!(buffer.len() == len && nsid != 2),
            NvmeOp::Discard(ranges) => {
                assert!(nsid != 2 && !ranges.is_empty() && ranges.len() <= 256);
                assert!(ranges.iter().all(|(at, len)| *len > 0 && at + len <= most));
                assert_eq!(ranges.iter().map(|(_, len)| len).sum::<u64>(), len);
            }
            NvmeOp::WriteZeroes { .. } => assert_ne!(nsid, 2, "a read-only namespace is not written"),
            NvmeOp::Flush | NvmeOp::Verify => {}
        }
    }

    /// Writes a word into guest memory: an entry of a list, a descriptor, a queue.
    fn poke(&mut self, bytes: &mut Bytes<'_>) {
        let at = (u64::from(bytes.u32()) % (2 * REGION)) & !7;
        let word = match bytes.byte() % 3 {
            0 => u64::from(bytes.byte()) << 12,
            1 => u64::from(bytes.u32()) << 32 | u64::from(bytes.u32()),
            _ => u64::from(bytes.byte()) << 60 | u64::from(bytes.byte()) << 4,
        };
        if let Ok(buffer) = self.view.buffer(GuestAddress(at), 8) {
            buffer.write_at(0, &word.to_le_bytes()).expect("eight bytes");
        }
    }

    /// The process is replaced, with what was asked of it unanswered.
    fn restart(&mut self) {
        let state = self.controller.save();
        let mut next = controller(&self.doorbells, &self.admin);
        next.grow(1, CAPACITY + 256 * 512);
        next.restore(&state, &self.view).expect("a state that was just saved");
        self.controller = next;
        self.asked.clear();
    }

    /// Does what the controller asks for; starts and stops are answered if `answers`.
    fn settle(&mut self, answers: bool) {
        loop {
            while let Some(action) = self.controller.next_action() {
                match action {
                    Action::Start { .. } | Action::Stop { .. } | Action::Flush => self.asked.push(action),
                    Action::Shadow(_) | Action::Kick { .. } | Action::Failed(_) => {}
                }
            }
            for action in self.asked.drain(..).filter(|_| answers) {
                match action {
                    Action::Start { pair, .. } => self.controller.started(pair.sq.id, Ok(())),
                    Action::Stop { sq } => self.controller.stopped(sq),
                    _ => self.controller.flushed(Ok(())),
                }
            }
            if !self.controller.has_outcomes() {
                return;
            }
            self.controller.publish();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_program_of_a_host_breaks_a_promise(program in prop::collection::vec(any::<u8>(), 0..400)) {
            super::nvme_controller(&program);
        }
    }
}
