//! The admin queue: its commands are executed here, and their outcomes published.

use softdpu_ring::Chain;
use softdpu_ring::nvme::Shadow;

use softdpu_memory::GuestAddress;

use super::abi::{PAGE, admin};
use super::controller::Phase;
use super::{Action, Command, Controller, Status, prp};

/// An admin command that is done, and that the host does not know of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Outcome {
    pub slot: u16,
    /// The number under which the command was taken: the slot may have had others.
    pub number: u64,
    /// Dword 0.
    pub result: u32,
    pub status: Status,
}

/// An admin command that waits for a queue to start or stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pending {
    pub slot: u16,
    pub sq: u16,
}

/// What a command came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// Success, with this dword 0.
    Now(u32),
    Later,
}

/// Commands that are taken from the admin queue at a time.
const BATCH: usize = 32;

impl Controller {
    /// Whether there are outcomes to be [published](Self::publish), before which the state is to be
    /// [saved](Self::save).
    pub fn has_outcomes(&self) -> bool {
        !self.outcomes.is_empty()
    }

    /// Executes what has come into the admin queue without a register access: where the host has mapped the page of
    /// doorbells. Its doorbells are then checked when the queue is looked at.
    pub fn poll(&mut self) {
        if self.phase == Phase::Ready && self.failed.is_none() {
            self.run_admin();
        }
    }

    /// Shows the host the outcomes of admin commands. Returns whether it is to be interrupted, with vector 0. Commands
    /// that waited for room in the completion queue may have run; ask again whether there are
    /// [outcomes](Self::has_outcomes).
    pub fn publish(&mut self) -> bool {
        let outcomes = std::mem::take(&mut self.outcomes);
        let Some(pair) = &mut self.admin else { return false };
        let posted = pair.post(outcomes.iter().map(|outcome| (outcome.slot, outcome.result, outcome.status.0)));
        match posted {
            Ok(interrupts) => {
                self.run_admin();
                interrupts
            }
            Err(error) => {
                self.fail(format!("the admin queue: {error}"));
                false
            }
        }
    }

    /// A command is over.
    pub(super) fn finish(&mut self, slot: u16, result: Result<u32, Status>) {
        let number = self.admin.as_ref().map_or(0, |pair| pair.number(slot));
        let (result, status) = match result {
            Ok(result) => (result, Status::SUCCESS),
            Err(status) => (0, status),
        };
        self.outcomes.push(Outcome { slot, number, result, status });
    }

    /// Executes what has come into the admin queue.
    pub(super) fn run_admin(&mut self) {
        loop {
            let Some(pair) = self.admin.as_mut().filter(|pair| pair.has_work()) else { return };
            let mut chains: Vec<Chain> = Vec::new();
            if let Err(error) = pair.pop(&mut chains, BATCH) {
                return self.fail(format!("the admin queue: {error}"));
            }
            if chains.is_empty() {
                return;
            }
            for chain in &chains {
                let slot = chain.id;
                let number = self.admin.as_ref().map_or(0, |pair| pair.number(slot));
                // Executed by a process before this one.
                if self.outcomes.iter().any(|outcome| outcome.slot == slot && outcome.number == number) {
                    continue;
                }
                let command = Command::read(&chain.buffer);
                match self.execute(&command, slot) {
                    Ok(Done::Now(result)) => self.finish(slot, Ok(result)),
                    Ok(Done::Later) => {}
                    Err(status) => {
                        self.errors.add(0, command.id(), status, command.nsid());
                        self.finish(slot, Err(status));
                    }
                }
                // Requests that came after the event.
                self.report_events();
            }
        }
    }

    fn execute(&mut self, command: &Command, slot: u16) -> Result<Done, Status> {
        if !is_supported(command.opcode(), self.config.shadow_doorbells) {
            return Err(Status::INVALID_OPCODE);
        }
        command.check_admin()?;
        match command.opcode() {
            admin::DELETE_SQ => self.delete_sq(command, slot),
            admin::CREATE_SQ => self.create_sq(command, slot),
            admin::GET_LOG_PAGE => self.get_log_page(command),
            admin::DELETE_CQ => self.delete_cq(command),
            admin::CREATE_CQ => self.create_cq(command),
            admin::IDENTIFY => self.identify(command),
            admin::ABORT => Ok(self.abort(command)),
            admin::SET_FEATURES => self.set_features(command),
            admin::GET_FEATURES => self.get_features(command),
            admin::ASYNC_EVENT => self.async_event(slot),
            admin::DOORBELL_BUFFER => self.configure_doorbells(command),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Abort (Base §5.1): an Asynchronous Event Request can be aborted; other commands are on their way, and bit 0 of
    /// dword 0 says so.
    fn abort(&mut self, command: &Command) -> Done {
        let cdw10 = command.dword(10);
        let (sq, id) = (cdw10 as u16, (cdw10 >> 16) as u16);
        let of = |slot: &u16| sq == 0 && self.command_id(*slot) == Some(id);
        let Some(at) = self.events.requests.iter().position(of) else { return Done::Now(1) };
        let slot = self.events.requests.remove(at);
        self.finish(slot, Err(Status::ABORT_REQUESTED));
        Done::Now(0)
    }

    fn command_id(&self, slot: u16) -> Option<u16> {
        self.admin.as_ref()?.command_id(slot)
    }

    /// Doorbell Buffer Config (Base §5.11).
    fn configure_doorbells(&mut self, command: &Command) -> Result<Done, Status> {
        let (doorbells, events) = (command.qword(6), command.qword(8));
        if !doorbells.is_multiple_of(PAGE) || !events.is_multiple_of(PAGE) {
            return Err(Status::INVALID_FIELD);
        }
        let shadow = Shadow { doorbells: GuestAddress(doorbells), events: GuestAddress(events) };
        for address in [shadow.doorbells, shadow.events] {
            self.view.guest_window(address, PAGE as usize, 8).map_err(|_| Status::DATA_TRANSFER)?;
        }
        self.shadow = Some(shadow);
        self.actions.push_back(Action::Shadow(shadow));
        Ok(Done::Now(0))
    }

    /// Gives the host data of an admin command, from the page that its PRPs name.
    pub(super) fn give(&self, command: &Command, data: &[u8]) -> Result<(), Status> {
        let buffer = prp(&self.view, command.qword(6), command.qword(8), data.len() as u64)?;
        buffer.write_at(0, data).map_err(|_| Status::DATA_TRANSFER)?;
        buffer.mark_dirty_in(&self.view, 0, data.len() as u64);
        Ok(())
    }

    /// Takes the host's data of an admin command.
    pub(super) fn take(&self, command: &Command, data: &mut [u8]) -> Result<(), Status> {
        let buffer = prp(&self.view, command.qword(6), command.qword(8), data.len() as u64)?;
        buffer.read_at(0, data).map_err(|_| Status::DATA_TRANSFER)
    }
}

/// Whether there is such an admin command. Keep Alive is not: its timer is optional over PCIe, and Identify says that
/// it is not supported (KAS 0).
pub(super) fn is_supported(opcode: u8, shadow_doorbells: bool) -> bool {
    match opcode {
        admin::DELETE_SQ
        | admin::CREATE_SQ
        | admin::GET_LOG_PAGE
        | admin::DELETE_CQ
        | admin::CREATE_CQ
        | admin::IDENTIFY
        | admin::ABORT
        | admin::SET_FEATURES
        | admin::GET_FEATURES
        | admin::ASYNC_EVENT => true,
        admin::DOORBELL_BUFFER => shadow_doorbells,
        _ => false,
    }
}
