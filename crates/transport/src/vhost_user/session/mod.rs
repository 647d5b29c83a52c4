//! The session: one front end's connection, from its first message to its last.

mod backend_channel;
mod command;
mod config_space;
mod inflight;
mod log;
mod memory;
mod negotiation;
mod saved;
mod state;
mod step;
mod vring;
mod vrings;

pub use command::{
    Ack, Action, BackendMessage, Command, CommandId, DirtyLog, FdId, InflightRef, MemoryRegion, QueueChange,
    QueueIndex, QueueStart, Refused, ResetCause,
};
pub use saved::{Restored, SESSION_FORMAT, SavedSession};

use self::state::State;
use self::step::{Answer, Finish, Step};
use self::vring::RingState;
use super::codec::Writer;
use super::error::{Fault, ProtocolError};
use super::features::ProtocolFeatures;
use super::framing::{Header, MAX_FDS};
use super::layout::VringBase;
use super::messages::{Message, RequestId, request};

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

/// A message that waits for the acknowledgement of its command.
#[derive(Clone, Debug)]
struct Pending {
    id: CommandId,
    header: Option<Header>,
    received: Vec<FdId>,
    draft: State,
    finish: Finish,
}

impl Session {
    /// A connection without a message so far.
    pub fn new(device: &dyn DeviceModel) -> Self {
        Session { state: State::new(queue_limit(device)), pending: None, next_command: 1 }
    }

    /// Whether a message can be handed over: no command waits for its acknowledgement.
    pub fn ready(&self) -> bool {
        self.pending.is_none()
    }

    /// The request that waits for the acknowledgement of its command.
    pub fn waiting(&self) -> Option<(CommandId, RequestId)> {
        let pending = self.pending.as_ref()?;
        Some((pending.id, RequestId(pending.header.map_or(0, |header| header.request))))
    }

    /// Negotiated virtio feature bits, once there are any.
    pub fn features(&self) -> Option<u64> {
        self.state.negotiation.features()
    }

    /// Negotiated protocol features.
    pub fn protocol_features(&self) -> ProtocolFeatures {
        self.state.negotiation.protocol_features()
    }

    /// The device status as the driver last wrote it (virtio 1.3 §2.1).
    pub fn status(&self) -> u8 {
        self.state.negotiation.status()
    }

    /// The queues that run.
    pub fn running(&self) -> impl Iterator<Item = QueueIndex> + '_ {
        self.state.vrings.in_state(RingState::Running).map(|(index, _)| index)
    }

    /// The queues that a memory change left without their rings, and their positions.
    pub fn broken(&self) -> impl Iterator<Item = (QueueIndex, VringBase)> + '_ {
        let format = self.state.negotiation.format();
        self.state.vrings.in_state(RingState::Broken).map(move |(index, ring)| (index, ring.base(format)))
    }

    /// The eventfd to signal when a queue breaks, if the front end has sent one (vhost-user: SET_VRING_ERR).
    pub fn error_descriptor(&self, queue: QueueIndex) -> Option<FdId> {
        self.state.vrings.get(queue)?.err
    }

    /// Every descriptor the session still refers to, ascending. After a restart all others can be closed.
    pub fn descriptors(&self) -> impl Iterator<Item = FdId> + '_ {
        self.state.descriptors().into_iter()
    }

    /// Takes one message. `payload` are the `header.size` bytes after the header, `fds` the handles of all descriptors
    /// that came with it, in their order.
    ///
    /// # Errors
    /// The connection must be closed with this reason logged: no status was asked for that could carry it. The
    /// session is as it was before the message; what came with the message and [`Session::descriptors`] does not name
    /// is the caller's to close. Go on with [`Session::disconnect`]. Messages that ask for a status are
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
        let draft = State::new(self.state.vrings.count());
        self.suspend(None, received, draft, Command::Reset(ResetCause::Disconnect), Finish::Status)
    }

    /// The device's configuration space changed. The message to be sent to the front end now; nothing if the front end
    /// did not ask for such messages, or if no queue runs, in which case it is sent when one starts (vhost-user:
    /// Suspended device state).
    pub fn config_changed(&mut self) -> Option<BackendMessage> {
        if self.state.vrings.is_any_running() {
            return self.state.backend_channel.config_change(&self.state.negotiation);
        }
        self.state.backend_channel.defer_config_change();
        if let Some(pending) = self.pending.as_mut().filter(|pending| pending.header.is_some()) {
            pending.draft.backend_channel.defer_config_change();
        }
        None
    }

    /// The device needs a reset from now on, which it has to tell "by sending a device configuration change
    /// notification" (virtio 1.3 §2.1.2). As [`config_changed`](Self::config_changed), if the front end can read the
    /// device's status.
    pub fn needs_reset(&mut self) -> Option<BackendMessage> {
        if self.state.negotiation.has(ProtocolFeatures::STATUS) { self.config_changed() } else { None }
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
        let acknowledged = draft.negotiation.has(ProtocolFeatures::REPLY_ACK);
        let payload = match answer {
            Answer::Payload(payload) => Some(payload),
            Answer::Status if acknowledged && header.is_some_and(|header| header.need_reply) => {
                Some(Writer::new().u64(0).done())
            }
            Answer::Status => None,
        };
        let mut gone = self.state.descriptors();
        gone.extend(received.iter().chain(&fds));
        if let (Some(payload), Some(header)) = (payload, header) {
            actions.push(Action::Reply { bytes: Header::reply(header.request, 0).frame(&payload), fds });
        }
        actions.extend(draft.deferred_config_change().map(Action::Backend));
        let held = draft.descriptors();
        actions.extend(gone.difference(&held).copied().map(Action::Release));
        self.state = draft;
        actions
    }

    /// Answers with a failure if the message asks for an answer that can carry it; otherwise the connection has to go.
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
            request::GET_CONFIG => Some(config_space::none()),
            // What libvhost-user does, and QEMU takes for "no in-flight region".
            request::GET_INFLIGHT_FD if matches!(error.fault, Fault::Device(_)) => Some(inflight::none(header.size)),
            id if RequestId(id).has_reply() => None,
            _ if header.need_reply && self.state.negotiation.has(ProtocolFeatures::REPLY_ACK) => {
                Some(Writer::new().u64(1).done())
            }
            _ => None,
        };
        let Some(payload) = payload else {
            return Err(error);
        };
        let held = self.state.descriptors();
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
