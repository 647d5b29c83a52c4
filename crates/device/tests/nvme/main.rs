//! An NVMe controller, driven through its registers and its admin queue as a host drives it.

mod admin;
mod commands;
mod hostile;
mod registers;
mod restart;

use std::collections::BTreeSet;
use std::sync::Arc;

use softdpu_device::block::Serial;
use softdpu_device::nvme::{Action, Controller, ControllerConfig, ControllerMemory, NamespaceConfig, Status};
use softdpu_memory::{GuestAddress, Mapping, Region, UserAddress, View, Window};
use softdpu_ring::nvme::driver::{Completion, PairDriver};
use softdpu_ring::nvme::{Doorbells, PairConfig, QueueMemory};

const MEMORY: u64 = 0x10_0000;
const ASQ: u64 = 0x1_0000;
const ACQ: u64 = 0x2_0000;
/// Where data of admin commands goes.
const DATA: u64 = 0x8_0000;
const ENTRIES: u16 = 16;

const CC: u64 = 0x14;
const CSTS: u64 = 0x1c;
/// IOSQES 6, IOCQES 4, EN.
const ENABLE: u32 = 6 << 16 | 4 << 20 | 1;

/// Status fields, with Do Not Retry.
const OK: u16 = 0;
const DNR: u16 = 1 << 14;
const INVALID_OPCODE: u16 = 0x01 | DNR;
const INVALID_FIELD: u16 = 0x02 | DNR;
const DATA_TRANSFER: u16 = 0x04 | DNR;
const INVALID_NAMESPACE: u16 = 0x0b | DNR;
const SEQUENCE: u16 = 0x0c | DNR;
const PRP_OFFSET: u16 = 0x13 | DNR;

/// A command specific status.
const fn specific(code: u16) -> u16 {
    1 << 8 | code | DNR
}

/// A command by its dwords: (index, value).
fn command(opcode: u8, id: u16, dwords: &[(usize, u32)]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[0] = opcode;
    bytes[2..4].copy_from_slice(&id.to_le_bytes());
    for (index, value) in dwords {
        bytes[index * 4..index * 4 + 4].copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

fn config() -> ControllerConfig {
    let mut config = ControllerConfig::new("serial-1".parse::<Serial>().unwrap(), "nqn.2026-11.test:one");
    config.namespaces = vec![NamespaceConfig::new(1, 1 << 20, "first"), NamespaceConfig::new(3, 1 << 22, "third")];
    config.namespaces[1].block_size = 4096;
    config
}

/// A host with its controller.
struct Host {
    view: Arc<View>,
    doorbells: Arc<Mapping>,
    admin: Arc<Mapping>,
    controller: Controller,
    driver: Option<PairDriver>,
    /// I/O queue pairs that the program around the controller serves.
    running: BTreeSet<u16>,
    /// What it was asked, but Start and Stop, which it does.
    actions: Vec<Action>,
    /// Starts and stops are answered.
    answers: bool,
    /// What a start is answered with.
    start: Result<(), String>,
    next: u16,
}

impl Host {
    fn new(config: ControllerConfig) -> Host {
        let mapping = Mapping::heap(MEMORY as usize);
        let view = View::new(vec![Region::new(GuestAddress(0), UserAddress(0), MEMORY, mapping, 0)]).unwrap();
        let doorbells = Mapping::heap(Doorbells::BYTES);
        let admin = Mapping::heap(ControllerMemory::ADMIN_BYTES);
        let mut controller = Controller::new(config, memory(&doorbells, &admin)).unwrap();
        controller.set_view(&view);
        let (running, actions) = (BTreeSet::new(), Vec::new());
        let (answers, start) = (true, Ok(()));
        Host { view, doorbells, admin, controller, driver: None, running, actions, answers, start, next: 100 }
    }

    /// One that is enabled.
    fn enabled() -> Host {
        let mut host = Host::new(config());
        host.enable();
        host
    }

    fn doorbells(&self) -> Doorbells {
        Doorbells::new(Window::of_mapping(Arc::clone(&self.doorbells))).unwrap()
    }

    fn set(&mut self, offset: u64, value: u32) {
        self.controller.write(offset, &value.to_le_bytes());
        self.settle();
    }

    fn get(&self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.controller.read(offset, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// What the program around does after each access.
    fn settle(&mut self) {
        loop {
            while let Some(action) = self.controller.next_action() {
                match action {
                    Action::Start { pair, .. } if self.answers => {
                        if self.start.is_ok() {
                            assert!(self.running.insert(pair.sq.id), "it runs already");
                        }
                        self.controller.started(pair.sq.id, self.start.clone());
                    }
                    Action::Stop { sq } if self.answers => {
                        self.running.remove(&sq);
                        self.controller.stopped(sq);
                    }
                    other => self.actions.push(other),
                }
            }
            if !self.controller.has_outcomes() {
                return;
            }
            let state = serde_json::to_string(&self.controller.save()).unwrap();
            assert!(state.contains("outcomes"));
            self.controller.publish();
        }
    }

    fn enable(&mut self) {
        self.set(0x24, u32::from(ENTRIES - 1) << 16 | u32::from(ENTRIES - 1));
        self.controller.write(0x28, &ASQ.to_le_bytes());
        self.controller.write(0x30, &ACQ.to_le_bytes());
        let queue = |address| QueueMemory { id: 0, address: GuestAddress(address), size: ENTRIES };
        let pair = PairConfig { sq: queue(ASQ), cq: queue(ACQ), interrupts: true, resumed: false };
        self.driver = Some(PairDriver::new(&self.view, pair, self.doorbells()).unwrap());
        self.set(CC, ENABLE);
        assert_eq!(self.get(CSTS), 1, "{:?}", self.controller.failure());
    }

    /// Puts a command into the admin queue and rings; returns its identifier.
    fn submit(&mut self, opcode: u8, dwords: &[(usize, u32)]) -> u16 {
        let id = self.next;
        self.next += 1;
        assert!(self.driver.as_mut().unwrap().submit(&command(opcode, id, dwords)), "the admin queue is full");
        self.ring();
        id
    }

    /// Rings the admin queue's tail doorbell, which traps.
    fn ring(&mut self) {
        self.driver.as_mut().unwrap().ring();
        let tail = self.doorbells().load(0);
        self.set(0x1000, tail);
    }

    fn take(&mut self) -> Option<Completion> {
        let driver = self.driver.as_mut().unwrap();
        let from = driver.head();
        let completion = driver.take();
        driver.ring_head(from);
        if completion.is_some() {
            let head = self.doorbells().load(1);
            self.set(0x1004, head);
        }
        completion
    }

    /// Runs an admin command; returns its status and dword 0.
    fn run(&mut self, opcode: u8, dwords: &[(usize, u32)]) -> (u16, u32) {
        let id = self.submit(opcode, dwords);
        let done = self.take().unwrap_or_else(|| panic!("command {opcode:#x} did not complete"));
        assert_eq!((done.command, done.sq), (id, 0));
        (done.status, done.result)
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.view.buffer(GuestAddress(at), len as u64).unwrap().read_at(0, &mut bytes).unwrap();
        bytes
    }

    fn write(&self, at: u64, bytes: &[u8]) {
        self.view.buffer(GuestAddress(at), bytes.len() as u64).unwrap().write_at(0, bytes).unwrap();
    }

    /// Creates the completion queue and the submission queue `id`, of 8 entries.
    fn create_pair(&mut self, id: u16) {
        let id32 = u32::from(id);
        let at = 0x3_0000 + 0x2000 * id32;
        assert_eq!(self.run(0x05, &[(6, at), (10, 7 << 16 | id32), (11, id32 << 16 | 3)]), (OK, 0));
        assert_eq!(self.run(0x01, &[(6, at + 0x1000), (10, 7 << 16 | id32), (11, id32 << 16 | 1)]), (OK, 0));
        assert!(!self.answers || self.running.contains(&id));
    }
}

fn memory(doorbells: &Arc<Mapping>, admin: &Arc<Mapping>) -> ControllerMemory {
    ControllerMemory {
        doorbells: Doorbells::new(Window::of_mapping(Arc::clone(doorbells))).unwrap(),
        admin: Window::of_mapping(Arc::clone(admin)),
    }
}

#[test]
fn statuses_are_what_the_specification_numbers() {
    assert_eq!(Status::INVALID_FIELD.0, INVALID_FIELD);
    assert_eq!(Status::QUEUE_IDENTIFIER.0, specific(1));
    assert_eq!((Status::COMPARE_FAILURE.code_type(), Status::COMPARE_FAILURE.code()), (2, 0x85));
    assert!(Status::SUCCESS.is_success() && !Status::INTERNAL.is_success());
}
