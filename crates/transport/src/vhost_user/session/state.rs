//! The state of a session, plain data that outlives the process, and what each message does to it.
//!
//! ```text
//!  Negotiation    features, protocol features, device status
//!  MemoryTable    regions of guest memory           Vrings     sizes, addresses, positions, descriptors, states
//!  LogFiles       where dirty pages are logged      Inflight   where requests in flight are recorded
//!  BackendChannel what is sent without being asked for
//! ```
//!
//! Each part takes the messages that concern it alone. [`State`] does what joins several of them.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::backend_channel::BackendChannel;
use super::command::{Ack, BackendMessage, Command, DirtyLog, FdId, ResetCause};
use super::inflight::{Inflight, InflightSize};
use super::log::LogFiles;
use super::memory::MemoryTable;
use super::negotiation::{self, Negotiation, require_offered};
use super::step::{Answer, Finish, Step};
use super::vring::StartContext;
use super::vrings::{Kicked, Vrings};
use super::{DeviceModel, config_space};
use crate::vhost_user::codec::Writer;
use crate::vhost_user::error::Fault;
use crate::vhost_user::features::{F_PROTOCOL_FEATURES, ProtocolFeatures};
use crate::vhost_user::messages::{InflightDescription, Message};

/// What has been agreed with the front end. The parts' fields are one flat object when saved. Fields may be added with
/// a default; see [`super::saved`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct State {
    #[serde(flatten)]
    pub(super) negotiation: Negotiation,
    #[serde(rename = "regions")]
    pub(super) memory: MemoryTable,
    #[serde(flatten)]
    log: LogFiles,
    inflight: Option<Inflight>,
    #[serde(flatten)]
    pub(super) backend_channel: BackendChannel,
    pub(super) mtu: Option<u16>,
    pub(super) vrings: Vrings,
}

impl State {
    /// A device of `queues` queues, and a new connection.
    pub(super) fn new(queues: u16) -> Self {
        State { vrings: Vrings::new(queues), ..State::default() }
    }

    /// Every descriptor the state refers to.
    pub(super) fn descriptors(&self) -> BTreeSet<FdId> {
        let regions = self.memory.regions().iter().map(|region| region.fd);
        let inflight = self.inflight.as_ref().map(Inflight::descriptor);
        let others = self.log.descriptors().chain(inflight).chain(self.backend_channel.descriptor());
        self.vrings.descriptors().chain(regions).chain(others).collect()
    }

    pub(super) fn dirty_log(&self) -> DirtyLog {
        self.log.describe(self.negotiation.logging())
    }

    /// The message that was kept back until a queue runs.
    pub(super) fn deferred_config_change(&mut self) -> Option<BackendMessage> {
        if !self.vrings.is_any_running() {
            return None;
        }
        self.backend_channel.deferred_config_change(&self.negotiation)
    }

    /// What queues need to start.
    pub(super) fn start_context<'a>(&'a self, device: &'a dyn DeviceModel) -> StartContext<'a> {
        let State { negotiation, memory, inflight, .. } = self;
        StartContext { device, negotiation, memory, inflight: inflight.as_ref() }
    }

    /// Applies a message to this draft. On an error the draft is thrown away.
    pub(super) fn handle(&mut self, device: &dyn DeviceModel, message: Message, fds: &[FdId]) -> Result<Step, Fault> {
        let fd = fds.first().copied();
        match message {
            Message::GetFeatures => Step::number(negotiation::offered(device)),
            Message::SetFeatures(features) => self.set_features(device, features),
            Message::GetProtocolFeatures => Step::number(negotiation::offered_protocol(device).0),
            Message::SetProtocolFeatures(features) => {
                self.negotiation.set_protocol_features(device, ProtocolFeatures(features), &self.vrings)
            }
            Message::SetOwner => {
                self.negotiation.set_owner();
                Step::OK
            }
            // vhost-user, RESET_OWNER: "It is recommended that back-ends either ignore this message, or use it to
            // disable all rings." QEMU sends it only to back ends without RESET_DEVICE.
            Message::ResetOwner => Step::OK,
            Message::ResetDevice => {
                self.negotiation.require(ProtocolFeatures::RESET_DEVICE)?;
                self.reset();
                Step::command(Command::Reset(ResetCause::FrontEnd))
            }
            Message::GetQueueNum => negotiation::queue_num(device),
            Message::GetStatus => self.negotiation.get_status(device),
            Message::SetStatus(status) => self.set_status(status),
            Message::SetMemTable(regions) => {
                self.memory.set(&regions, fds, device.memory_slots())?;
                Ok(self.memory_changed())
            }
            Message::AddMemReg(region) => {
                self.negotiation.require(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                self.memory.add(region, fd, device.memory_slots())?;
                Ok(self.memory_changed())
            }
            Message::RemMemReg(region) => {
                self.negotiation.require(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                self.memory.remove(region)?;
                Ok(self.memory_changed())
            }
            Message::GetMaxMemSlots => {
                self.negotiation.require(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                Step::number(device.memory_slots() as u64)
            }
            Message::SetLogBase(log) => {
                self.negotiation.require(ProtocolFeatures::LOG_SHMFD)?;
                let reply = self.log.set_base(log, fd, self.memory.end())?;
                Ok(Step::Then(Command::DirtyLog(self.dirty_log()), Finish::Log(reply)))
            }
            Message::SetLogFd => {
                self.log.set_event(fd);
                Step::command(Command::DirtyLog(self.dirty_log()))
            }
            Message::SetVringNum(ring) => self.vrings.set_num(device, self.negotiation.acknowledged_format()?, ring),
            Message::SetVringAddr(ring) => self.vrings.set_address(self.negotiation.acknowledged_format()?, ring),
            Message::SetVringBase(ring) => self.vrings.set_base(self.negotiation.acknowledged_format()?, ring),
            Message::GetVringBase(ring) => self.vrings.get_base(self.negotiation.format(), ring),
            Message::SetVringKick(ring) => self.set_vring_kick(device, ring.index.into(), fd),
            Message::SetVringCall(ring) => self.vrings.set_call(ring.index.into(), fd),
            Message::SetVringErr(ring) => self.vrings.set_err(ring.index.into(), fd),
            Message::SetVringEnable(ring) => {
                self.negotiation.require_protocol_features()?;
                self.vrings.set_enable(ring)
            }
            Message::GetConfig(config) => {
                self.negotiation.require(ProtocolFeatures::CONFIG)?;
                config_space::get(device, config)
            }
            Message::SetConfig(config) => {
                self.negotiation.require(ProtocolFeatures::CONFIG)?;
                config_space::set(config)
            }
            Message::SetBackendReqFd => {
                require_offered(device, ProtocolFeatures::BACKEND_REQ)?;
                self.backend_channel.set(fd);
                Step::OK
            }
            Message::SendRarp(mac) => {
                require_offered(device, ProtocolFeatures::RARP)?;
                config_space::send_rarp(mac)
            }
            Message::NetSetMtu(mtu) => {
                require_offered(device, ProtocolFeatures::MTU)?;
                let mtu = config_space::mtu(mtu)?;
                self.mtu = Some(mtu);
                Step::command(Command::SetMtu(mtu))
            }
            Message::GetInflightFd(inflight) => {
                let size = InflightSize::of(device, &self.negotiation, &self.vrings, &inflight)?;
                Ok(size.create(inflight))
            }
            Message::SetInflightFd(inflight) => self.set_inflight_fd(device, inflight, fd),
        }
    }

    fn set_features(&mut self, device: &dyn DeviceModel, features: u64) -> Result<Step, Fault> {
        let before = self.dirty_log();
        self.negotiation.set_features(device, features, &self.vrings)?;
        // vhost-user, Ring states: "upon receiving a VHOST_USER_SET_FEATURES message from the front-end without
        // VHOST_USER_F_PROTOCOL_FEATURES set, the back-end must enable all rings immediately".
        if features & F_PROTOCOL_FEATURES == 0 && !self.vrings.is_any_running() {
            self.vrings.enable_all();
        }
        let now = self.dirty_log();
        if now == before { Step::OK } else { Step::command(Command::DirtyLog(now)) }
    }

    fn set_status(&mut self, status: u64) -> Result<Step, Fault> {
        // virtio 1.3 §2.1.2: "The device MUST reset when 0 is written to the device status".
        if self.negotiation.set_status(status)? == 0 {
            self.reset();
            return Ok(Step::Then(Command::Reset(ResetCause::Status), Finish::Reset));
        }
        Step::command(Command::Status(self.negotiation.status()))
    }

    /// Back to before SET_FEATURES. Kept is what the front end believes to be kept and does not send again: the memory
    /// table, of which QEMU sends only differences, protocol features, the back-end channel, logs, and the call and
    /// error descriptors, which QEMU sends when it connects.
    fn reset(&mut self) {
        self.vrings.reset();
        self.negotiation.reset();
        self.inflight = None;
        self.mtu = None;
    }

    /// Tells the device of the memory table, and finds the running queues that have lost their rings.
    fn memory_changed(&mut self) -> Step {
        let broken = self.vrings.unmapped(&self.memory, self.negotiation.format());
        let finish = if broken.is_empty() { Finish::Status } else { Finish::Broken(broken.clone()) };
        Step::Then(Command::MemoryChange { regions: self.memory.regions().to_vec(), broken }, finish)
    }

    fn set_vring_kick(&mut self, device: &dyn DeviceModel, index: u32, fd: Option<FdId>) -> Result<Step, Fault> {
        self.negotiation.acknowledged()?;
        match self.vrings.set_kick(index, fd)? {
            Kicked::Updated(step) => Ok(step),
            Kicked::Started(index) => {
                let start = self.vrings.start(index, self.start_context(device), false)?;
                Step::command(Command::QueueStart(start))
            }
        }
    }

    fn set_inflight_fd(
        &mut self,
        device: &dyn DeviceModel,
        inflight: InflightDescription,
        fd: Option<FdId>,
    ) -> Result<Step, Fault> {
        let expected = InflightSize::of(device, &self.negotiation, &self.vrings, &inflight)?;
        let fd = fd.ok_or(Fault::FileDescriptors { found: 0, expected: 1 })?;
        self.vrings.require_stopped("the in-flight region")?;
        self.inflight = Some(Inflight::new(inflight, fd, expected)?);
        Step::OK
    }

    /// Completes this draft with what the acknowledgement says. On an error the draft is unchanged.
    pub(super) fn finish(&mut self, finish: Finish, ack: Ack) -> Result<(Answer, Vec<FdId>), Fault> {
        let wrong = |ack: &Ack, expected| Err(Fault::WrongAck { found: ack.name().to_owned(), expected });
        let format = self.negotiation.format();
        match (finish, ack) {
            (Finish::Status | Finish::Reset, Ack::Done) => Ok((Answer::Status, Vec::new())),
            (Finish::Log(payload), Ack::Done) => Ok((Answer::Payload(payload), Vec::new())),
            (Finish::Base(index), Ack::Stopped { base }) => Ok((self.vrings.stopped(index, base, format)?, Vec::new())),
            (Finish::Reset, Ack::Reset(positions)) => {
                self.vrings.reset_at(&positions);
                Ok((Answer::Status, Vec::new()))
            }
            (Finish::Broken(queues), Ack::Broken(bases)) if queues.len() == bases.len() => {
                self.vrings.broken(&queues, &bases, format)?;
                Ok((Answer::Status, Vec::new()))
            }
            (Finish::Inflight(description), Ack::Memory(fd)) => {
                Ok((Answer::Payload(description.encode(Writer::new()).done()), vec![fd]))
            }
            (Finish::Status | Finish::Log(_), ack) => wrong(&ack, "Done"),
            (Finish::Reset, ack) => wrong(&ack, "Done, or Reset with positions"),
            (Finish::Base(_), ack) => wrong(&ack, "Stopped"),
            (Finish::Broken(_), ack) => wrong(&ack, "Broken with the position of each broken queue"),
            (Finish::Inflight(_), ack) => wrong(&ack, "Memory"),
        }
    }
}
