//! The session: one front end's connection, from its first message to its last.

mod command;
mod config;
mod inflight;
mod log;
mod memory;
mod negotiation;
mod saved;
mod state;
mod vring;

pub use command::{
    Ack, Action, BackendMessage, Command, CommandId, DirtyLog, FdId, InflightRef, MemoryRegion, QueueChange,
    QueueIndex, QueueStart, Refused, ResetCause,
};
pub use saved::{Restored, SavedSession};

use self::state::State;
use super::codec::Writer;
use super::error::{Fault, ProtocolError};
use super::features::ProtocolFeatures;
use super::framing::{Header, MAX_FDS};
use super::layout::{RingFormat, VringBase};
use super::messages::{InflightDescription, Message, RequestId, request};

/// What a session has to know about the device behind it. Answers must not change while a connection lasts, but for
/// [`read_config`](DeviceModel::read_config) and [`needs_reset`](DeviceModel::needs_reset).
pub trait DeviceModel {
    /// Virtio feature bits to offer: the device's and the ring's. The protocol adds its own two.
    fn features(&self) -> u64;

    /// Refuses combinations of offered features that the device cannot run with; the reason is logged.
    fn check_features(&self, features: u64) -> Result<(), String> {
        let _ = features;
        Ok(())
    }

    /// Protocol features wanted; what this crate does not implement is ignored.
    fn protocol_features(&self) -> ProtocolFeatures;

    /// Queues the device has, 1 to 256: a queue index on the wire has eight bits.
    fn queue_limit(&self) -> u16;

    /// The largest queue size, up to 32768.
    fn queue_size_limit(&self) -> u16;

    /// Memory regions a front end may register. 509 is what the kernel's vhost and libvhost-user allow.
    fn memory_slots(&self) -> usize {
        509
    }

    /// Reads the configuration space. Bytes behind the fields the device has are zero, so that a front end that knows a
    /// longer structure can read it; `offset` plus the length is at most 256.
    fn read_config(&self, offset: u32, into: &mut [u8]) -> Result<(), String>;

    /// Whether the device status has to show DEVICE_NEEDS_RESET (virtio 1.3 §2.1.2).
    fn needs_reset(&self) -> bool {
        false
    }
}

/// The queues a device has, within what the wire can name.
fn queue_limit(device: &dyn DeviceModel) -> u16 {
    device.queue_limit().clamp(1, 256)
}

/// The back end's side of one connection.
#[derive(Clone, Debug)]
pub struct Session {
    state: State,
    pending: Option<Pending>,
    next_command: u64,
}

/// A message whose command has not been acknowledged.
#[derive(Clone, Debug)]
struct Pending {
    id: CommandId,
    header: Option<Header>,
    received: Vec<FdId>,
    draft: State,
    finish: Finish,
}

/// What a handler makes of a message, its draft aside.
enum Step {
    /// The draft holds, this is the reply.
    Done(Answer),
    /// The draft holds once the command is acknowledged.
    Then(Command, Finish),
}

impl Step {
    /// Nothing to be told beyond success.
    const OK: Result<Step, Fault> = Ok(Step::Done(Answer::Status));
}

/// What to send back.
enum Answer {
    /// A status of zero, if it was asked for.
    Status,
    /// The request's own reply.
    Payload(Vec<u8>),
}

impl Answer {
    fn number(value: u64) -> Self {
        Answer::Payload(Writer::new().u64(value).done())
    }
}

/// How to go on after the acknowledgement.
#[derive(Clone, Debug)]
enum Finish {
    /// A status of zero, if it was asked for.
    Status,
    /// A queue runs: what was kept back for that moment is sent.
    Started,
    /// SET_LOG_BASE has a reply of its own: its payload.
    Log(Vec<u8>),
    /// GET_VRING_BASE: position into the draft and into the reply.
    Base(QueueIndex),
    /// The status was set to 0: positions of the queues that ran, into the draft.
    Reset,
    /// Positions of the queues that lost their memory, into the draft.
    Broken(Vec<QueueIndex>),
    /// GET_INFLIGHT_FD: describe the file and attach it.
    Inflight(InflightDescription),
}

impl Session {
    /// A connection on which nothing has been said.
    pub fn new(device: &dyn DeviceModel) -> Self {
        let vrings = vec![state::Vring::default(); queue_limit(device).into()];
        Session { state: State { vrings, ..State::default() }, pending: None, next_command: 1 }
    }

    /// Whether a message can be handed over: no command waits for its acknowledgement.
    pub fn ready(&self) -> bool {
        self.pending.is_none()
    }

    /// The request whose command waits for its acknowledgement.
    pub fn waiting(&self) -> Option<(CommandId, RequestId)> {
        let pending = self.pending.as_ref()?;
        Some((pending.id, RequestId(pending.header.map_or(0, |header| header.request))))
    }

    /// Negotiated virtio feature bits, once there are any.
    pub fn features(&self) -> Option<u64> {
        self.state.features
    }

    /// Negotiated protocol features.
    pub fn protocol_features(&self) -> ProtocolFeatures {
        self.state.protocol_features.unwrap_or_default()
    }

    /// The device status as the driver last wrote it (virtio 1.3 §2.1).
    pub fn status(&self) -> u8 {
        self.state.status
    }

    /// The queues that run.
    pub fn running(&self) -> impl Iterator<Item = QueueIndex> + '_ {
        let rings = self.state.vrings.iter().enumerate();
        rings.filter(|(_, ring)| ring.run == state::VringRun::Running).map(|(index, _)| QueueIndex(index as u16))
    }

    /// The queues that a memory change left without their rings, and where they stand.
    pub fn broken(&self) -> impl Iterator<Item = (QueueIndex, VringBase)> + '_ {
        let format = RingFormat::of(self.state.features.unwrap_or(0));
        let rings = self.state.vrings.iter().enumerate().filter(|(_, ring)| ring.run == state::VringRun::Broken);
        rings.map(move |(index, ring)| {
            let base = ring.base.map_or(format.initial_base(), |number| VringBase::from_wire(format, number));
            (QueueIndex(index as u16), base)
        })
    }

    /// The eventfd that tells the front end of a broken queue, if it wants to know (vhost-user: SET_VRING_ERR).
    pub fn error_descriptor(&self, queue: QueueIndex) -> Option<FdId> {
        self.state.vrings.get(usize::from(queue.0))?.err
    }

    /// Every descriptor the session still refers to, ascending. After a restart all others can be closed.
    pub fn descriptors(&self) -> impl Iterator<Item = FdId> + '_ {
        self.state.held().into_iter()
    }

    /// Takes one message. `payload` are the `header.size` bytes after the header, `fds` the handles of all descriptors
    /// that came with it, in their order.
    ///
    /// # Errors
    /// The connection must be closed with this reason logged: nobody waits for a status that could carry it. The
    /// session is as it was before the message; what came with the message and [`Session::descriptors`] does not name
    /// is the caller's to close. Go on with [`Session::disconnect`]. Messages whose sender waits for a status are
    /// answered with a failure instead, and come back as [`Action::Refused`].
    pub fn message(
        &mut self,
        device: &dyn DeviceModel,
        header: Header,
        payload: &[u8],
        fds: Vec<FdId>,
    ) -> Result<Vec<Action>, ProtocolError> {
        if let Some(pending) = &self.pending {
            return Err(ProtocolError::new(header.request, Fault::Busy(pending.id.0)));
        }
        if fds.len() > MAX_FDS {
            return Err(ProtocolError::new(header.request, Fault::TooManyHandles(fds.len())));
        }
        let mut draft = self.state.clone();
        let step = Message::decode(&header, payload).and_then(|message| {
            check_fds(&message, &fds)
                .and_then(|()| draft.handle(device, message, &fds))
                .map_err(|fault| ProtocolError::new(header.request, fault))
        });
        match step {
            Ok(Step::Done(answer)) => Ok(self.commit(draft, Some(header), &fds, answer, Vec::new())),
            Ok(Step::Then(command, finish)) => Ok(self.suspend(Some(header), fds, draft, command, finish)),
            Err(error) => self.refuse(header, &fds, error),
        }
    }

    /// Takes the outcome of a command.
    ///
    /// # Errors
    /// As for [`Session::message`]. If the error is the caller's own ([`Fault::is_misuse`]), or the reset of a
    /// disconnect failed, the command still waits.
    pub fn acknowledge(&mut self, id: CommandId, ack: Ack) -> Result<Vec<Action>, ProtocolError> {
        let Some(pending) = self.pending.take_if(|pending| pending.id == id) else {
            return Err(ProtocolError::new(0, Fault::NotWaiting(id.0)));
        };
        let Pending { header, received, mut draft, finish, .. } = pending.clone();
        if let Ack::Failed(reason) = ack {
            let error = ProtocolError::new(header.map_or(0, |header| header.request), Fault::Device(reason));
            return match header {
                Some(header) => self.refuse(header, &received, error),
                None => {
                    self.pending = Some(pending);
                    Err(error)
                }
            };
        }
        match draft.finish(finish, ack) {
            Ok((answer, fds)) => Ok(self.commit(draft, header, &received, answer, fds)),
            Err(fault) => {
                self.pending = Some(pending);
                Err(ProtocolError::new(header.map_or(0, |header| header.request), fault))
            }
        }
    }

    /// The connection is gone, or is to be closed. An unacknowledged command is abandoned; the reset that comes back
    /// must end with its effects undone, too. After its acknowledgement every descriptor has been released and the
    /// session is as new.
    pub fn disconnect(&mut self) -> Vec<Action> {
        let received = self.pending.take().map_or(Vec::new(), |pending| pending.received);
        let vrings = vec![state::Vring::default(); self.state.vrings.len()];
        let draft = State { vrings, ..State::default() };
        self.suspend(None, received, draft, Command::Reset(ResetCause::Disconnect), Finish::Status)
    }

    /// The device's configuration space changed. The message to be sent to the front end now; nothing if the front end
    /// did not ask for such messages, or if no queue runs, in which case it is sent when one starts (vhost-user:
    /// Suspended device state).
    pub fn config_changed(&mut self) -> Option<BackendMessage> {
        if self.state.running().is_some() {
            return self.state.config_change_message();
        }
        self.state.config_changed = true;
        if let Some(pending) = &mut self.pending {
            pending.draft.config_changed = pending.header.is_some();
        }
        None
    }

    /// The device needs a reset from now on, which it has to tell "by sending a device configuration change
    /// notification" (virtio 1.3 §2.1.2). As [`config_changed`](Self::config_changed), if the front end can read the
    /// device's status.
    pub fn needs_reset(&mut self) -> Option<BackendMessage> {
        if self.state.has(ProtocolFeatures::STATUS) { self.config_changed() } else { None }
    }

    fn suspend(
        &mut self,
        header: Option<Header>,
        received: Vec<FdId>,
        draft: State,
        command: Command,
        finish: Finish,
    ) -> Vec<Action> {
        let id = CommandId(self.next_command);
        self.next_command += 1;
        self.pending = Some(Pending { id, header, received, draft, finish });
        vec![Action::Command { id, command }]
    }

    /// Makes the draft the state, answers, and releases what the new state does not hold.
    fn commit(
        &mut self,
        mut draft: State,
        header: Option<Header>,
        received: &[FdId],
        answer: Answer,
        fds: Vec<FdId>,
    ) -> Vec<Action> {
        let mut actions = Vec::new();
        let acknowledged = draft.has(ProtocolFeatures::REPLY_ACK);
        let payload = match answer {
            Answer::Payload(payload) => Some(payload),
            Answer::Status if acknowledged && header.is_some_and(|header| header.need_reply) => {
                Some(Writer::new().u64(0).done())
            }
            Answer::Status => None,
        };
        let mut gone = self.state.held();
        gone.extend(received.iter().chain(&fds));
        if let (Some(payload), Some(header)) = (payload, header) {
            actions.push(Action::Reply { bytes: Header::reply(header.request, 0).frame(&payload), fds });
        }
        if draft.config_changed && draft.running().is_some() {
            draft.config_changed = false;
            actions.extend(draft.config_change_message().map(Action::Backend));
        }
        let held = draft.held();
        actions.extend(gone.difference(&held).copied().map(Action::Release));
        self.state = draft;
        actions
    }

    /// Answers with a failure if the sender waits for an answer that can carry it; otherwise the connection has to go.
    fn refuse(
        &mut self,
        header: Header,
        received: &[FdId],
        error: ProtocolError,
    ) -> Result<Vec<Action>, ProtocolError> {
        let payload = match header.request {
            _ if error.fault == Fault::NotARequest => None,
            // vhost-user, GET_CONFIG: "uses zero length of payload to indicate an error": of the contents, as the
            // `vhost` crate's back end reads it. QEMU sees by the size of the message that it failed.
            request::GET_CONFIG => Some(config::none()),
            // What libvhost-user does, and QEMU takes for "no in-flight region".
            request::GET_INFLIGHT_FD if matches!(error.fault, Fault::Device(_)) => Some(inflight::none(header.size)),
            id if RequestId(id).has_reply() => None,
            _ if header.need_reply && self.state.has(ProtocolFeatures::REPLY_ACK) => Some(Writer::new().u64(1).done()),
            _ => None,
        };
        let Some(payload) = payload else {
            return Err(error);
        };
        let held = self.state.held();
        let mut actions =
            vec![Action::Reply { bytes: Header::reply(header.request, 0).frame(&payload), fds: Vec::new() }];
        actions.extend(received.iter().filter(|fd| !held.contains(fd)).copied().map(Action::Release));
        actions.push(Action::Refused(error));
        Ok(actions)
    }
}

fn check_fds(message: &Message, fds: &[FdId]) -> Result<(), Fault> {
    let (found, expected) = (fds.len(), message.fds());
    // vhost-user, REM_MEM_REG: "the back-end MAY accept messages with one file descriptor", and must only close it.
    let tolerated = matches!(message, Message::RemMemReg(_)) && found == 1;
    if found == expected || tolerated { Ok(()) } else { Err(Fault::FileDescriptors { found, expected }) }
}

impl State {
    /// Applies a message to this draft. On an error the draft is thrown away.
    fn handle(&mut self, device: &dyn DeviceModel, message: Message, fds: &[FdId]) -> Result<Step, Fault> {
        let fd = fds.first().copied();
        match message {
            Message::GetFeatures => Ok(Step::Done(Answer::number(negotiation::offered(device)))),
            Message::SetFeatures(features) => self.set_features(device, features),
            Message::GetProtocolFeatures => Ok(Step::Done(Answer::number(negotiation::offered_protocol(device).0))),
            Message::SetProtocolFeatures(features) => self.set_protocol_features(device, ProtocolFeatures(features)),
            Message::SetOwner => {
                self.owned = true;
                Step::OK
            }
            // vhost-user, RESET_OWNER: "It is recommended that back-ends either ignore this message, or use it to
            // disable all rings." QEMU sends it only to back ends without RESET_DEVICE.
            Message::ResetOwner => Step::OK,
            Message::ResetDevice => {
                self.require(ProtocolFeatures::RESET_DEVICE)?;
                Ok(self.reset(ResetCause::FrontEnd))
            }
            Message::GetQueueNum => negotiation::queue_num(device),
            Message::GetStatus => self.get_status(device),
            Message::SetStatus(status) => self.set_status(status),
            Message::SetMemTable(regions) => self.set_mem_table(device, &regions, fds),
            Message::AddMemReg(region) => self.add_mem_reg(device, region, fd),
            Message::RemMemReg(region) => self.rem_mem_reg(region),
            Message::GetMaxMemSlots => {
                self.require(ProtocolFeatures::CONFIGURE_MEM_SLOTS)?;
                Ok(Step::Done(Answer::number(device.memory_slots() as u64)))
            }
            Message::SetLogBase(log) => self.set_log_base(log, fd),
            Message::SetLogFd => self.set_log_fd(fd),
            Message::SetVringNum(ring) => self.set_vring_num(device, ring),
            Message::SetVringAddr(ring) => self.set_vring_addr(ring),
            Message::SetVringBase(ring) => self.set_vring_base(ring),
            Message::GetVringBase(ring) => self.get_vring_base(ring),
            Message::SetVringKick(ring) => self.set_vring_kick(device, ring, fd),
            Message::SetVringCall(ring) => self.set_vring_call(ring, fd),
            Message::SetVringErr(ring) => self.set_vring_err(ring, fd),
            Message::SetVringEnable(ring) => self.set_vring_enable(ring),
            Message::GetConfig(config) => self.get_config(device, config),
            Message::SetConfig(config) => self.set_config(config),
            Message::SetBackendReqFd => self.set_backend_req_fd(device, fd),
            Message::SendRarp(mac) => self.send_rarp(device, mac),
            Message::NetSetMtu(mtu) => self.net_set_mtu(device, mtu),
            Message::GetInflightFd(inflight) => self.get_inflight_fd(device, inflight),
            Message::SetInflightFd(inflight) => self.set_inflight_fd(device, inflight, fd),
        }
    }

    /// Completes this draft with what the acknowledgement says. On an error the draft is unchanged.
    fn finish(&mut self, finish: Finish, ack: Ack) -> Result<(Answer, Vec<FdId>), Fault> {
        let wrong = |ack: &Ack, expected| Err(Fault::WrongAck { found: ack.kind().to_owned(), expected });
        match (finish, ack) {
            (Finish::Status | Finish::Started, Ack::Done) => Ok((Answer::Status, Vec::new())),
            (Finish::Log(payload), Ack::Done) => Ok((Answer::Payload(payload), Vec::new())),
            (Finish::Base(index), Ack::Stopped { base }) => Ok((self.stopped(index, base)?, Vec::new())),
            (Finish::Reset, Ack::Done) => Ok((Answer::Status, Vec::new())),
            (Finish::Reset, Ack::Reset(bases)) => {
                for (index, base) in bases {
                    if let Some(ring) = self.vrings.get_mut(usize::from(index.0)) {
                        ring.left_at = Some(base.to_wire());
                    }
                }
                Ok((Answer::Status, Vec::new()))
            }
            (Finish::Broken(queues), Ack::Broken(bases)) if queues.len() == bases.len() => {
                self.broken(&queues, &bases)?;
                Ok((Answer::Status, Vec::new()))
            }
            (Finish::Inflight(description), Ack::Memory(fd)) => {
                Ok((Answer::Payload(description.encode(Writer::new()).done()), vec![fd]))
            }
            (Finish::Status | Finish::Started | Finish::Log(_), ack) => wrong(&ack, "Done"),
            (Finish::Reset, ack) => wrong(&ack, "Done, or Reset with positions"),
            (Finish::Base(_), ack) => wrong(&ack, "Stopped"),
            (Finish::Broken(_), ack) => wrong(&ack, "Broken with the position of each broken queue"),
            (Finish::Inflight(_), ack) => wrong(&ack, "Memory"),
        }
    }
}

/// Keeps an acknowledged position within what the ring can have.
fn check_position(base: VringBase, expected: super::layout::RingFormat) -> Result<(), Fault> {
    if base.format() == expected {
        Ok(())
    } else {
        Err(Fault::WrongAck { found: format!("{base:?}"), expected: "a position in the ring's own format" })
    }
}
