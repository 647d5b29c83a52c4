//! The controller: its registers, and what becomes of it when they are written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use softdpu_memory::{GuestAddress, View, Window};
use softdpu_ring::nvme::{Doorbells, PairConfig, PairRecords, QueueMemory, QueuePair, Shadow};

use super::abi::{PAGE, VERSION, event, register};
use super::action::Action;
use super::admin::{Outcome, Pending};
use super::config::{ControllerConfig, ControllerConfigError};
use super::events::Events;
use super::features::Features;
use super::io::{Commands, Shared};
use super::logs::{ErrorLog, Health};
use super::queues::Queues;

/// Memory of a controller that outlives the process.
#[derive(Debug)]
pub struct ControllerMemory {
    /// The page of doorbell registers.
    pub doorbells: Doorbells,
    /// The in-flight record of the admin queue: at least [`ControllerMemory::ADMIN_BYTES`].
    pub admin: Window,
}

impl ControllerMemory {
    /// Bytes of the admin queue's record: of the largest queues that a host may choose.
    pub const ADMIN_BYTES: usize = PairRecords::bytes(super::MAX_ENTRIES, super::MAX_ENTRIES);
}

/// How far the controller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// CC.EN is 0 and CSTS.RDY is 0.
    Disabled,
    /// CSTS.RDY is 1.
    Ready,
    /// CC.EN has become 0: queues are being stopped, CSTS.RDY is still 1.
    Disabling,
    /// CC.EN is 1, but it could not become ready: CSTS.CFS.
    Refused,
}

/// CSTS.SHST (Base §3.1.3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shutdown {
    None = 0,
    /// Volumes are being flushed.
    Occurring = 1,
    Complete = 2,
}

/// Registers that the host writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Registers {
    pub cc: u32,
    pub interrupt_mask: u32,
    pub aqa: u32,
    pub asq: u64,
    pub acq: u64,
}

/// An NVMe controller.
pub struct Controller {
    pub(super) config: ControllerConfig,
    pub(super) shared: Arc<Shared>,
    pub(super) view: Arc<View>,
    pub(super) memory: ControllerMemory,
    pub(super) registers: Registers,
    pub(super) phase: Phase,
    pub(super) shutdown: Shutdown,
    /// Why it cannot go on (CSTS.CFS).
    pub(super) failed: Option<String>,
    pub(super) admin: Option<QueuePair>,
    pub(super) queues: Queues,
    pub(super) features: Features,
    pub(super) events: Events,
    pub(super) errors: ErrorLog,
    pub(super) health: Health,
    pub(super) shadow: Option<Shadow>,
    /// Of admin commands that are done; the host does not know.
    pub(super) outcomes: Vec<Outcome>,
    /// Admin commands that wait for an answer to an action.
    pub(super) pending: Vec<Pending>,
    pub(super) actions: VecDeque<Action>,
    /// Wall-clock time, milliseconds since 1970.
    pub(super) now_ms: u64,
}

impl Controller {
    /// A controller that its host has not enabled, with guest memory that is not there yet.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn new(config: ControllerConfig, memory: ControllerMemory) -> Result<Controller, ControllerConfigError> {
        config.check()?;
        let shared = Arc::new(Shared::new(&config));
        Ok(Controller {
            features: Features::new(&config),
            queues: Queues::new(config.queues),
            shared,
            view: View::empty(),
            memory,
            registers: Registers::default(),
            phase: Phase::Disabled,
            shutdown: Shutdown::None,
            failed: None,
            admin: None,
            events: Events::default(),
            errors: ErrorLog::default(),
            health: Health::default(),
            shadow: None,
            outcomes: Vec::new(),
            pending: Vec::new(),
            actions: VecDeque::new(),
            now_ms: 0,
            config,
        })
    }

    /// As it is configured.
    pub fn config(&self) -> &ControllerConfig {
        &self.config
    }

    /// The parser of its I/O commands.
    pub fn commands(&self) -> Commands {
        Commands { shared: Arc::clone(&self.shared) }
    }

    /// What is to be done next. The caller takes all of them after each call that changes the controller.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The time now: milliseconds since 1970, for the Timestamp feature.
    pub fn set_time(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// What the SMART log page tells.
    pub fn set_health(&mut self, health: Health) {
        self.health = health;
    }

    /// Guest memory has changed. (That of I/O queues is changed with the engine's update of a queue.)
    pub fn set_view(&mut self, view: &Arc<View>) {
        self.view = Arc::clone(view);
        if let Some(admin) = &mut self.admin
            && let Err(error) = admin.remap(view)
        {
            self.fail(format!("the admin queue: {error}"));
        }
    }

    /// Why it cannot go on until its host resets it.
    pub fn failure(&self) -> Option<&str> {
        self.failed.as_deref()
    }

    /// Whether the host has it enabled (CSTS.RDY).
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready | Phase::Disabling)
    }

    /// Whether the host has configured shadow doorbells.
    pub fn shadow(&self) -> Option<Shadow> {
        self.shadow
    }

    /// The engine has found that the host broke a pair: CSTS.CFS. One that is being stopped by a reset is forgiven.
    pub fn queue_broken(&mut self, sq: u16, reason: &str) {
        if self.phase == Phase::Ready && self.queues.sq(sq).is_some() {
            self.fail(format!("I/O queue {sq}: {reason}"));
        }
    }

    pub(super) fn fail(&mut self, reason: String) {
        if self.failed.is_none() {
            self.actions.push_back(Action::Failed(reason.clone()));
            self.failed = Some(reason);
        }
    }

    // Registers.

    /// Controller Capabilities (Base §3.1.3.1).
    fn capabilities(&self) -> u64 {
        /// CAP.TO: 15 s, in units of 500 ms.
        const TIMEOUT: u64 = 30;
        let entries = u64::from(self.config.entries) - 1;
        // MQES, CQR, TO, CSS (the NVM command set), CRMS (ready with media).
        entries | 1 << 16 | TIMEOUT << 24 | 1 << 37 | 1 << 59
    }

    /// CSTS (Base §3.1.3.6).
    pub fn status(&self) -> u32 {
        let ready = if self.is_ready() { register::CSTS_RDY } else { 0 };
        let fatal = if self.failed.is_some() { register::CSTS_CFS } else { 0 };
        ready | fatal | (self.shutdown as u32) << register::CSTS_SHST
    }

    /// The dword of the registers at `offset`, a multiple of 4.
    fn dword(&self, offset: u64) -> u32 {
        let half = |word: u64, at: u64| if offset == at { word as u32 } else { (word >> 32) as u32 };
        match offset {
            0x00 | 0x04 => half(self.capabilities(), register::CAP),
            register::VS => VERSION,
            register::INTMS | register::INTMC => self.registers.interrupt_mask,
            register::CC => self.registers.cc,
            register::CSTS => self.status(),
            register::AQA => self.registers.aqa,
            0x28 | 0x2c => half(self.registers.asq, register::ASQ),
            0x30 | 0x34 => half(self.registers.acq, register::ACQ),
            // CRWMT, in units of 500 ms: as CAP.TO.
            register::CRTO => 30,
            _ => 0,
        }
    }

    /// Reads registers from BAR0. What is not there reads as 0, doorbells do, too (PCIe §3.1.2.1: write only).
    pub fn read(&self, offset: u64, to: &mut [u8]) {
        for (index, byte) in to.iter_mut().enumerate() {
            let at = offset.saturating_add(index as u64);
            let word = if at < register::DOORBELLS { self.dword(at & !3) } else { 0 };
            *byte = word.to_le_bytes()[(at & 3) as usize];
        }
    }

    /// Writes registers in BAR0, in dwords or qwords that are aligned; anything else changes nothing (Base §3.1.1:
    /// undefined). Admin commands that the write brings are executed; their completions are to be
    /// [published](Self::publish).
    pub fn write(&mut self, offset: u64, from: &[u8]) {
        if !matches!(from.len(), 4 | 8) || !offset.is_multiple_of(4) {
            return;
        }
        for (index, bytes) in from.chunks_exact(4).enumerate() {
            let mut word = [0; 4];
            word.copy_from_slice(bytes);
            self.write_dword(offset.saturating_add(4 * index as u64), u32::from_le_bytes(word));
        }
    }

    fn write_dword(&mut self, offset: u64, value: u32) {
        let low = |word: u64| word & !0xffff_ffff | u64::from(value);
        let high = |word: u64| word & 0xffff_ffff | u64::from(value) << 32;
        // Queue addresses are those of pages (Base §3.1.3.9, §3.1.3.10: bits 11:0 are reserved).
        let address = |word: u64| word & !(PAGE - 1);
        let is_enabled = self.registers.cc & register::CC_EN != 0;
        match offset {
            register::INTMS => self.registers.interrupt_mask |= value,
            register::INTMC => self.registers.interrupt_mask &= !value,
            register::CC => self.configure(value),
            // Not while the controller is enabled: that is undefined.
            register::AQA if !is_enabled => self.registers.aqa = value & 0x0fff_0fff,
            0x28 if !is_enabled => self.registers.asq = address(low(self.registers.asq)),
            0x2c if !is_enabled => self.registers.asq = high(self.registers.asq),
            0x30 if !is_enabled => self.registers.acq = address(low(self.registers.acq)),
            0x34 if !is_enabled => self.registers.acq = high(self.registers.acq),
            register::DOORBELLS.. => self.ring(((offset - register::DOORBELLS) / 4) as usize, value),
            _ => {}
        }
    }

    /// Controller Configuration (Base §3.1.3.5).
    fn configure(&mut self, value: u32) {
        let before = std::mem::replace(&mut self.registers.cc, value & 0x01ff_fff1);
        let (was_enabled, is_enabled) = (before & register::CC_EN != 0, value & register::CC_EN != 0);
        let (asked_before, asks) = (before >> 14 & 3, value >> 14 & 3);
        if was_enabled && !is_enabled {
            self.disable();
        } else if !was_enabled && is_enabled && self.phase == Phase::Disabled {
            self.enable();
        }
        // SHN: normal or abrupt. What is written is made durable with either.
        if asks != 0 && asked_before == 0 && self.shutdown == Shutdown::None {
            self.shutdown = Shutdown::Occurring;
            self.actions.push_back(Action::Flush);
        }
    }

    /// The answer to [`Action::Flush`]: whether all is durable. With an error the shutdown does not complete.
    pub fn flushed(&mut self, result: Result<(), String>) {
        if self.shutdown != Shutdown::Occurring {
            return;
        }
        match result {
            Ok(()) => self.shutdown = Shutdown::Complete,
            Err(error) => self.fail(format!("the flush of a shutdown: {error}")),
        }
    }

    /// CC.EN became 1.
    fn enable(&mut self) {
        self.shutdown = Shutdown::None;
        self.failed = None;
        match self.admin_pair(false) {
            Ok(pair) => {
                self.admin = Some(pair);
                self.phase = Phase::Ready;
            }
            Err(reason) => {
                self.phase = Phase::Refused;
                self.fail(format!("it cannot be enabled: {reason}"));
            }
        }
    }

    /// The admin queue, as the registers say.
    pub(super) fn admin_pair(&self, resumed: bool) -> Result<QueuePair, String> {
        let Registers { cc, aqa, asq, acq, .. } = self.registers;
        for (field, shift, mask) in [("CC.CSS", 4, 7), ("CC.MPS", 7, 15), ("CC.AMS", 11, 7)] {
            let found = cc >> shift & mask;
            if found != 0 {
                return Err(format!("{field} is {found}; only 0 is supported"));
            }
        }
        let queue = |address, size: u32| QueueMemory {
            id: 0,
            address: GuestAddress(address),
            // 0's based, 12 bits.
            size: (size & 0xfff) as u16 + 1,
        };
        let (sq, cq) = (queue(asq, aqa), queue(acq, aqa >> 16));
        let config = PairConfig { sq, cq, interrupts: true, resumed };
        let whole = self.memory.admin.part(0, self.memory.admin.len());
        let records = whole.map(PairRecords::new).ok_or("the record of the admin queue is not there")?;
        QueuePair::new(&self.view, config, self.memory.doorbells.share(), None, records)
            .map_err(|error| format!("the admin queue: {error}"))
    }

    /// CC.EN became 0: a controller reset (Base §3.7.2).
    fn disable(&mut self) {
        self.pending.clear();
        self.outcomes.clear();
        // From here on, nothing is posted there.
        if let Some(mut admin) = self.admin.take() {
            admin.delete();
        }
        for sq in self.queues.stop_all() {
            self.actions.push_back(Action::Stop { sq });
        }
        if self.phase == Phase::Refused {
            self.phase = Phase::Disabled;
        } else if self.phase == Phase::Ready {
            self.phase = Phase::Disabling;
        }
        self.finish_disabling();
    }

    /// The reset is complete when no queue is left.
    pub(super) fn finish_disabling(&mut self) {
        if self.queues.is_any_running() || self.phase == Phase::Ready {
            return;
        }
        self.forget();
        self.phase = Phase::Disabled;
        if self.registers.cc & register::CC_EN != 0 {
            // The host did not wait for RDY.
            self.enable();
        }
    }

    /// What a controller reset forgets: all but the admin queue's registers and the doorbell page's memory.
    fn forget(&mut self) {
        self.queues = Queues::new(self.config.queues);
        self.features.reset(&self.config);
        self.events.reset();
        self.shadow = None;
        self.shared.write_cache.store(true, Ordering::Release);
        self.failed = None;
        self.shutdown = Shutdown::None;
        self.memory.doorbells.clear();
        if let Some(whole) = self.memory.admin.part(0, self.memory.admin.len()) {
            PairRecords::new(whole).clear();
        }
    }

    /// A reset of the whole device, as of its PCI function: as if the host had cleared CC.EN, and the registers with
    /// it.
    pub fn reset(&mut self) {
        let was_enabled = self.registers.cc & register::CC_EN != 0;
        self.registers = Registers::default();
        if was_enabled {
            self.disable();
        }
    }

    // Doorbells.

    /// The doorbell `index` was written: two for each queue identifier.
    fn ring(&mut self, index: usize, value: u32) {
        if self.phase != Phase::Ready || self.failed.is_some() {
            return;
        }
        let (id, is_tail) = (index / 2, index.is_multiple_of(2));
        let size = match (u16::try_from(id), &self.admin) {
            (Ok(0), Some(admin)) => {
                let config = admin.pair_config();
                Some(if is_tail { config.sq.size } else { config.cq.size })
            }
            (Ok(id), _) if is_tail => self.queues.sq_size(id),
            (Ok(id), _) => self.queues.cq_size(id),
            _ => None,
        };
        let Some(size) = size else { return self.doorbell_error(event::INVALID_DOORBELL, id as u16) };
        if value >= u32::from(size) {
            return self.doorbell_error(event::INVALID_DOORBELL_VALUE, id as u16);
        }
        self.memory.doorbells.store(index, value);
        if id == 0 {
            self.run_admin();
        } else if let Some(sq) = self.queues.served_by(id as u16, is_tail) {
            self.actions.push_back(Action::Kick { sq });
        }
    }

    fn doorbell_error(&mut self, info: u8, queue: u16) {
        self.errors.add_event(queue);
        self.event(event::ERROR, info, super::abi::log::ERRORS);
    }

    // Namespaces.

    /// A namespace has grown to `capacity` bytes, with its volume. False: there is no such namespace, or that is not
    /// more than it had.
    pub fn grow(&mut self, nsid: u32, capacity: u64) -> bool {
        let Some(namespace) = self.shared.find(nsid) else { return false };
        let blocks = capacity >> namespace.shift;
        if blocks <= namespace.blocks.load(Ordering::Acquire) {
            return false;
        }
        namespace.blocks.store(blocks, Ordering::Release);
        self.namespace_changed(nsid);
        true
    }

    /// Attaches a namespace to the controller, or detaches it: the host is told. False: there is no such namespace, or
    /// it was so already.
    pub fn attach(&mut self, nsid: u32, attached: bool) -> bool {
        let Some(namespace) = self.shared.find(nsid) else { return false };
        if namespace.attached.swap(attached, Ordering::AcqRel) == attached {
            return false;
        }
        self.namespace_changed(nsid);
        true
    }

    fn namespace_changed(&mut self, nsid: u32) {
        if self.is_ready() {
            self.events.namespace_changed(nsid);
            if self.features.events & event::ENABLE_NAMESPACES != 0 {
                self.event(event::NOTICE, event::NAMESPACES_CHANGED, super::abi::log::CHANGED);
            }
        }
    }
}
