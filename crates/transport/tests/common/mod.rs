//! A front end and a device that do what a test tells them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;

use softdpu_transport::vhost_user::*;

pub const VERSION_1: u64 = 1 << 32;
pub const RING: u64 = VERSION_1 | 1 << 28 | 1 << 29;

pub struct Disk {
    pub features: u64,
    pub protocol_features: ProtocolFeatures,
    pub queues: u16,
    pub needs_reset: Cell<bool>,
    pub config: RefCell<Vec<u8>>,
}

impl Disk {
    pub fn new() -> Self {
        Disk {
            features: RING | F_RING_PACKED,
            protocol_features: ProtocolFeatures::IMPLEMENTED,
            queues: 4,
            needs_reset: Cell::new(false),
            config: RefCell::new((0..60).collect()),
        }
    }
}

impl DeviceModel for Disk {
    fn features(&self) -> u64 {
        self.features
    }

    fn check_features(&self, features: u64) -> Result<(), String> {
        if features & VERSION_1 == 0 { Err("VIRTIO_F_VERSION_1 is missing".into()) } else { Ok(()) }
    }

    fn protocol_features(&self) -> ProtocolFeatures {
        self.protocol_features
    }

    fn queue_limit(&self) -> u16 {
        self.queues
    }

    fn queue_size_limit(&self) -> u16 {
        1024
    }

    fn memory_slots(&self) -> usize {
        16
    }

    fn needs_reset(&self) -> bool {
        self.needs_reset.get()
    }

    fn read_config(&self, offset: u32, into: &mut [u8]) -> Result<(), String> {
        let config = self.config.borrow();
        for (at, byte) in (offset as usize..).zip(into) {
            *byte = config.get(at).copied().unwrap_or(0);
        }
        if offset >= 128 { Err("no field begins there".into()) } else { Ok(()) }
    }
}

/// Everything a message led to.
#[derive(Debug, Default, PartialEq)]
pub struct Outcome {
    pub commands: Vec<Command>,
    /// Payloads of the replies, and the descriptors with them.
    pub replies: Vec<(Vec<u8>, Vec<FdId>)>,
    pub backend: Vec<BackendMessage>,
    pub released: Vec<FdId>,
    pub refused: Option<Fault>,
}

impl Outcome {
    /// The one reply, as a number.
    pub fn number(&self) -> u64 {
        let [(payload, fds)] = &self.replies[..] else { panic!("expected one reply: {self:?}") };
        assert!(fds.is_empty());
        u64::from_ne_bytes(payload[..].try_into().unwrap())
    }

    /// The one command.
    pub fn command(&self) -> &Command {
        let [command] = &self.commands[..] else { panic!("expected one command: {self:?}") };
        command
    }

    pub fn start(&self) -> &QueueStart {
        let Command::QueueStart(start) = self.command() else { panic!("expected a queue start: {self:?}") };
        start
    }

    pub fn is_silent(&self) -> bool {
        *self == Outcome::default()
    }
}

/// A connection to a data plane that carries out every command, or fails every one.
pub struct Link {
    pub disk: Disk,
    pub session: Session,
    pub need_reply: bool,
    pub failing: Option<&'static str>,
    /// Where stopped queues say they stand.
    pub position: u32,
    next_fd: u32,
    open: BTreeSet<FdId>,
}

impl Link {
    pub fn new() -> Self {
        Self::to(Disk::new())
    }

    pub fn to(disk: Disk) -> Self {
        let session = Session::new(&disk);
        Link { disk, session, need_reply: false, failing: None, position: 7, next_fd: 0, open: BTreeSet::new() }
    }

    /// The same descriptors, another process.
    pub fn reborn(&self, session: Session) -> Self {
        Link { session, next_fd: self.next_fd, open: self.open.clone(), ..Link::new() }
    }

    pub fn last_fd(&self) -> FdId {
        FdId(self.next_fd)
    }

    pub fn open(&self) -> Vec<FdId> {
        self.open.iter().copied().collect()
    }

    fn receive(&mut self) -> FdId {
        self.next_fd += 1;
        self.open.insert(FdId(self.next_fd));
        FdId(self.next_fd)
    }

    /// Sends a message with as many descriptors as it should have.
    pub fn send(&mut self, message: Message) -> Result<Outcome, Fault> {
        let fds = message.fds();
        self.send_with(message, fds)
    }

    pub fn send_with(&mut self, message: Message, fds: usize) -> Result<Outcome, Fault> {
        let bytes = message.encode(self.need_reply);
        self.send_raw(message.id().0, &bytes[HEADER_SIZE..], fds)
    }

    pub fn send_raw(&mut self, request: u32, payload: &[u8], fds: usize) -> Result<Outcome, Fault> {
        let header = Header::request(request, self.need_reply, payload.len() as u32);
        let fds = (0..fds).map(|_| self.receive()).collect();
        let result = self.session.message(&self.disk, header, payload, fds);
        let result = self.drive(result);
        if let Err(error) = &result {
            assert_eq!(error.request, RequestId(request));
        }
        result.map_err(|error| error.fault)
    }

    /// Sends what must succeed.
    pub fn ok(&mut self, message: Message) -> Outcome {
        let outcome = self.send(message.clone()).unwrap_or_else(|fault| panic!("{message:?}: {fault}"));
        assert_eq!(outcome.refused, None, "{message:?}");
        if self.need_reply && !message.id().has_reply() {
            assert_eq!(outcome.number(), 0, "{message:?}");
        }
        outcome
    }

    /// Sends what must be refused, once to a session that can say so, and once to one that has to close.
    pub fn fault(&mut self, message: Message) -> Fault {
        let fds = message.fds();
        self.fault_with(message, fds)
    }

    pub fn fault_with(&mut self, message: Message, fds: usize) -> Fault {
        let bytes = message.encode(false);
        self.fault_raw(message.id().0, &bytes[HEADER_SIZE..], fds)
    }

    pub fn fault_raw(&mut self, request: u32, payload: &[u8], fds: usize) -> Fault {
        let before = self.session.save();
        let known = self.open.clone();
        let asked = std::mem::replace(&mut self.need_reply, true);
        if !RequestId(request).has_reply() && self.session.protocol_features().contains(ProtocolFeatures::REPLY_ACK) {
            let outcome = self.send_raw(request, payload, fds).expect("a status was asked for");
            assert_ne!(outcome.number(), 0);
            assert!(outcome.refused.is_some());
            assert_eq!(self.open, known, "descriptors of a refused message stay open");
        }
        self.need_reply = false;
        let fault = match self.send_raw(request, payload, fds) {
            Err(fault) => fault,
            Ok(Outcome { refused: Some(fault), .. }) => fault,
            Ok(outcome) => panic!("request {request} was accepted: {outcome:?}"),
        };
        self.need_reply = asked;
        self.open = known;
        assert_eq!(self.session.save(), before, "a refused message changed the session");
        assert!(self.session.ready());
        fault
    }

    pub fn drive(&mut self, result: Result<Vec<Action>, ProtocolError>) -> Result<Outcome, ProtocolError> {
        let mut outcome = Outcome::default();
        let mut actions = result?;
        loop {
            let mut waiting = None;
            for action in actions {
                match action {
                    Action::Command { id, command } => waiting = Some((id, command)),
                    Action::Reply { bytes, fds } => {
                        let header = Header::parse(bytes.first_chunk().unwrap()).unwrap();
                        assert!(header.reply);
                        outcome.replies.push((bytes[HEADER_SIZE..].to_vec(), fds));
                    }
                    Action::Backend(message) => outcome.backend.push(message),
                    Action::Release(fd) => {
                        assert!(self.open.remove(&fd), "{fd:?} released twice");
                        outcome.released.push(fd);
                    }
                    Action::Refused(error) => outcome.refused = Some(error.fault),
                }
            }
            let Some((id, command)) = waiting else {
                return Ok(outcome);
            };
            assert!(!self.session.ready());
            let ack = self.ack(&command);
            outcome.commands.push(command);
            actions = self.session.acknowledge(id, ack)?;
        }
    }

    fn ack(&mut self, command: &Command) -> Ack {
        let base = VringBase::from_wire(RingFormat::of(self.session.features().unwrap_or(0)), self.position);
        match (self.failing, command) {
            (Some(reason), _) => Ack::Failed(reason.into()),
            (None, Command::QueueStop { .. }) => Ack::Stopped { base },
            (None, Command::Reset(ResetCause::Status)) => Ack::Reset(vec![(QueueIndex(0), base)]),
            (None, Command::CreateInflight { .. }) => Ack::Memory(self.receive()),
            (None, Command::MemoryChange { broken, .. }) if !broken.is_empty() => Ack::Broken(vec![base; broken.len()]),
            _ => Ack::Done,
        }
    }

    pub fn negotiate(&mut self, features: u64, protocol: ProtocolFeatures) {
        self.ok(Message::SetProtocolFeatures(protocol.0));
        self.ok(Message::SetFeatures(features));
    }

    /// A session with everything negotiated and one region of memory.
    pub fn ready() -> Self {
        Self::with_features(RING | F_PROTOCOL_FEATURES)
    }

    pub fn with_features(features: u64) -> Self {
        let mut link = Link::new();
        link.negotiate(features, ProtocolFeatures::IMPLEMENTED);
        link.ok(Message::SetMemTable(vec![region(0, 0x10_0000, USER, 0)]));
        link
    }

    /// Starts queue `index` of 256 entries.
    pub fn start(&mut self, index: u32) -> Outcome {
        self.ok(Message::SetVringNum(VringState { index, num: 256 }));
        self.ok(Message::SetVringAddr(ring(index)));
        self.ok(kick(index))
    }
}

/// Where the front end sees its memory.
pub const USER: u64 = 0x7f00_0000_0000;

pub fn region(guest_address: u64, size: u64, user_address: u64, mmap_offset: u64) -> RegionDescription {
    RegionDescription { guest_address, size, user_address, mmap_offset }
}

/// Rings of up to 256 entries, in the first megabyte.
pub fn ring(index: u32) -> VringAddress {
    let start = USER + 0x1_0000 * u64::from(index);
    VringAddress { index, flags: 0, descriptor: start, available: start + 0x1000, used: start + 0x2000, log: 0 }
}

pub fn kick(index: u32) -> Message {
    Message::SetVringKick(FdPresence { index: index as u8, present: true })
}

pub fn call(index: u32) -> Message {
    Message::SetVringCall(FdPresence { index: index as u8, present: true })
}

pub fn err(index: u32) -> Message {
    Message::SetVringErr(FdPresence { index: index as u8, present: true })
}

pub fn stop(index: u32) -> Message {
    Message::GetVringBase(VringState { index, num: 0 })
}

pub fn enable(index: u32, num: u32) -> Message {
    Message::SetVringEnable(VringState { index, num })
}
