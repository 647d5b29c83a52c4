//! Entry points for fuzzing. Each takes any bytes, and panics only where the code under test has a defect.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// Drives a session with messages made of `data`: raw ones, and mostly valid ones of a front end that knows the
/// protocol and breaks its rules. A model of the caller checks every action: descriptors are released once and only
/// when nothing refers to them, commands fit the state of the queues they name, and a restored session equals the saved
/// one.
pub fn session(data: &[u8]) {
    drive(data);
}

/// Says which commands were reached, so that a test can tell whether the inputs go deep enough.
fn drive(data: &[u8]) -> BTreeSet<&'static str> {
    let mut source = Source(data);
    let device = Device { queues: u16::from(source.u8() % 4) + 1, packed: source.u8().is_multiple_of(2) };
    let mut seen = BTreeSet::new();
    let mut world = World::new(&device);
    world.introduce(&mut source);
    while !source.0.is_empty() {
        let (header, payload) = source.message(&device);
        let fds = (0..source.descriptors(&header, &payload)).map(|_| world.receive()).collect();
        if !world.message(header, &payload, fds, &mut source) {
            // The connection is to be closed: what the session does not know is the caller's to release.
            let known: BTreeSet<FdId> = world.session.descriptors().collect();
            world.held.retain(|fd| known.contains(fd));
            world.disconnect();
            assert!(world.held.is_empty(), "descriptors {:?} were never released", world.held);
            seen.append(&mut world.seen);
            world = World::new(&device);
            world.introduce(&mut source);
        }
    }
    world.disconnect();
    assert!(world.held.is_empty(), "descriptors {:?} were never released", world.held);
    seen.append(&mut world.seen);
    seen
}

struct Device {
    queues: u16,
    packed: bool,
}

impl DeviceModel for Device {
    fn features(&self) -> u64 {
        1 << 32 | 1 << 28 | 1 << 29 | if self.packed { F_RING_PACKED } else { 0 }
    }

    fn check_features(&self, features: u64) -> Result<(), String> {
        let packed_legacy = features & F_RING_PACKED != 0 && features & 1 << 32 == 0;
        if packed_legacy { Err("packed rings need VIRTIO_F_VERSION_1".into()) } else { Ok(()) }
    }

    fn protocol_features(&self) -> ProtocolFeatures {
        ProtocolFeatures::IMPLEMENTED
    }

    fn queue_limit(&self) -> u16 {
        self.queues
    }

    fn queue_size_limit(&self) -> u16 {
        256
    }

    fn memory_slots(&self) -> usize {
        4
    }

    fn read_config(&self, offset: u32, into: &mut [u8]) -> Result<(), String> {
        assert!(offset as usize + into.len() <= MAX_CONFIG_SIZE as usize);
        into.fill(7);
        if offset > 200 { Err("nothing there".into()) } else { Ok(()) }
    }
}

struct World<'a> {
    device: &'a Device,
    session: Session,
    held: BTreeSet<FdId>,
    next_fd: u32,
    regions: Vec<MemoryRegion>,
    running: BTreeMap<QueueIndex, RingFormat>,
    seen: BTreeSet<&'static str>,
}

impl<'a> World<'a> {
    fn new(device: &'a Device) -> Self {
        let session = Session::new(device);
        World {
            device,
            session,
            held: BTreeSet::new(),
            next_fd: 0,
            regions: Vec::new(),
            running: BTreeMap::new(),
            seen: BTreeSet::new(),
        }
    }

    /// Negotiates and gives memory, mostly: of messages in any order few would get past that.
    fn introduce(&mut self, source: &mut Source<'_>) {
        if source.u8().is_multiple_of(8) {
            return;
        }
        let features = self.device.features() | F_PROTOCOL_FEATURES;
        let region = RegionDescription { guest_address: 0, size: 0x4_0000, user_address: 0x10_0000, mmap_offset: 0 };
        for message in [
            Message::SetProtocolFeatures(ProtocolFeatures::IMPLEMENTED.0),
            Message::SetFeatures(features),
            Message::SetMemTable(vec![region]),
            Message::SetVringNum(VringState { index: 0, num: 256 }),
            Message::SetVringAddr(VringAddress {
                index: 0,
                flags: 0,
                descriptor: 0x10_0000,
                available: 0x10_1000,
                used: 0x10_2000,
                log: 0,
            }),
            Message::SetVringKick(FdPresence { index: 0, present: true }),
        ] {
            let bytes = message.encode(false);
            let header = Header::parse(bytes.first_chunk().expect("encoded messages have headers"));
            let fds = (0..message.fds()).map(|_| self.receive()).collect();
            let ok = self.message(header.expect("a valid header"), &bytes[HEADER_SIZE..], fds, &mut Source(&[1]));
            assert!(ok, "{message:?} was refused");
        }
    }

    fn receive(&mut self) -> FdId {
        self.next_fd += 1;
        self.held.insert(FdId(self.next_fd));
        FdId(self.next_fd)
    }

    /// Whether the connection goes on.
    fn message(&mut self, header: Header, payload: &[u8], fds: Vec<FdId>, source: &mut Source<'_>) -> bool {
        let before = self.session.save();
        let Ok(mut actions) = self.session.message(self.device, header, payload, fds) else {
            assert_eq!(self.session.save(), before, "a refused message changed the session");
            return false;
        };
        while let Some((id, command)) = self.carry_out(actions) {
            assert_eq!(self.session.save(), before, "a message took effect before its command");
            assert!(!self.session.ready());
            let wrong = CommandId(id.0 + 1);
            assert!(self.session.acknowledge(wrong, Ack::Done).is_err_and(|error| error.fault.is_misuse()));
            if source.u8() % 16 == 15 {
                match self.session.acknowledge(id, Ack::Failed("the device is on strike".into())) {
                    Ok(more) => actions = more,
                    Err(_) => return false,
                }
            } else {
                let ack = self.apply(command);
                actions = self.session.acknowledge(id, ack).expect("the right acknowledgement was not taken");
            }
        }
        self.check();
        true
    }

    fn disconnect(&mut self) {
        let actions = self.session.disconnect();
        let (id, command) = self.carry_out(actions).expect("a disconnect resets the device");
        let ack = self.apply(command);
        let actions = self.session.acknowledge(id, ack).expect("a reset was acknowledged");
        assert!(self.carry_out(actions).is_none());
    }

    fn carry_out(&mut self, actions: Vec<Action>) -> Option<(CommandId, Command)> {
        let mut found = None;
        for action in actions {
            match action {
                Action::Command { id, command } => assert!(found.replace((id, command)).is_none(), "two commands"),
                Action::Release(fd) => assert!(self.held.remove(&fd), "{fd:?} was released twice"),
                Action::Reply { bytes, fds } => {
                    let header = Header::parse(bytes.first_chunk().expect("a reply has a header")).unwrap();
                    assert!(header.reply && bytes.len() == HEADER_SIZE + header.size as usize);
                    assert!(fds.iter().all(|fd| self.held.contains(fd)));
                }
                Action::Backend(message) => assert!(self.held.contains(&message.channel)),
                Action::Refused(error) => assert!(!error.fault.is_misuse()),
            }
        }
        found
    }

    fn apply(&mut self, command: Command) -> Ack {
        self.seen.insert(match &command {
            Command::MemoryChange { broken, .. } if broken.is_empty() => "memory change",
            Command::MemoryChange { .. } => "memory change that breaks a queue",
            Command::QueueStart(start) if start.inflight.is_some() => "queue start with an in-flight region",
            Command::QueueStart(_) => "queue start",
            Command::QueueUpdate { .. } => "queue update",
            Command::QueueStop { .. } => "queue stop",
            Command::CreateInflight { .. } => "in-flight region made",
            Command::Reset(_) => "reset",
            Command::SetConfig { .. } => "configuration written",
            Command::DirtyLog(_) => "dirty log",
            Command::Status(_) => "status",
            Command::SetMtu(_) => "MTU",
            Command::SendRarp { .. } => "RARP",
        });
        match command {
            Command::MemoryChange { regions, broken } => {
                self.regions = regions;
                assert!(self.regions.len() <= 8, "the table outgrew its slots");
                let bases: Vec<_> =
                    broken.iter().map(|queue| self.running.remove(queue).expect("it ran").initial_base()).collect();
                if bases.is_empty() { Ack::Done } else { Ack::Broken(bases) }
            }
            Command::QueueStart(start) => {
                self.check_start(&start);
                assert!(self.running.insert(start.index, start.format).is_none(), "started twice");
                Ack::Done
            }
            Command::QueueUpdate { index, .. } => {
                assert!(self.running.contains_key(&index));
                Ack::Done
            }
            Command::QueueStop(index) => {
                let format = self.running.remove(&index).expect("only a running queue is stopped");
                Ack::Stopped { base: format.initial_base() }
            }
            Command::CreateInflight { bytes, .. } => {
                assert!(bytes <= 1 << 20);
                Ack::Memory(self.receive())
            }
            Command::Reset(_) => {
                self.running.clear();
                Ack::Done
            }
            Command::SetConfig { offset, bytes, .. } => {
                assert!(offset as usize + bytes.len() <= MAX_CONFIG_SIZE as usize);
                Ack::Done
            }
            Command::DirtyLog(_) | Command::Status(_) | Command::SetMtu(_) | Command::SendRarp { .. } => Ack::Done,
        }
    }

    fn check_start(&self, start: &QueueStart) {
        assert!(start.index.0 < self.device.queues && (1..=256).contains(&start.size));
        let layout = start.format.layout(start.size);
        let parts =
            [(start.descriptor, layout.descriptor), (start.driver, layout.driver), (start.device, layout.device)];
        for (address, (len, align)) in parts {
            assert_eq!(address % align, 0);
            let end = address.checked_add(len).expect("a ring does not wrap");
            let inside =
                |region: &&MemoryRegion| region.user_address <= address && end <= region.user_address + region.size;
            assert!(self.regions.iter().find(inside).is_some_and(|it| it.mmap_offset % 16 == it.user_address % 16));
        }
        for fd in [start.kick, start.call, start.err].into_iter().flatten() {
            assert!(self.held.contains(&fd));
        }
        if let Some(inflight) = start.inflight {
            assert!(self.held.contains(&inflight.fd) && inflight.queue_size >= start.size);
        }
    }

    fn check(&mut self) {
        assert!(self.session.ready());
        assert!(self.session.running().eq(self.running.keys().copied()));
        assert!(self.session.descriptors().eq(self.held.iter().copied()), "the session and the table disagree");
        let saved = self.session.save();
        let restored = Session::restore(saved.clone(), self.device).expect("a live session can be restored");
        assert_eq!(restored.session.save(), saved);
        let starts = restored.commands.iter().filter(|command| matches!(command, Command::QueueStart(_)));
        assert_eq!(starts.count(), self.running.len());
    }
}

/// Bytes, and what can be made of them. Zeros once they are used up.
struct Source<'a>(&'a [u8]);

impl Source<'_> {
    fn u8(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    fn u64(&mut self) -> u64 {
        u64::from_ne_bytes([0; 8].map(|_: u8| self.u8()))
    }

    /// One of `usual`, or now and then anything.
    fn pick(&mut self, usual: &[u64]) -> u64 {
        let choice = self.u8();
        if choice >= 250 { self.u64() } else { usual[usize::from(choice) % usual.len()] }
    }

    fn descriptors(&mut self, header: &Header, payload: &[u8]) -> usize {
        let usual = Message::decode(header, payload).map_or(0, |message| message.fds());
        let choice = self.u8();
        if choice >= 250 { usize::from(choice) % (MAX_FDS + 2) } else { usual }
    }

    fn message(&mut self, device: &Device) -> (Header, Vec<u8>) {
        let choice = self.u8();
        if choice >= 240 {
            let payload: Vec<u8> = (0..self.u8() % 64).map(|_| self.u8()).collect();
            let header = Header {
                request: u32::from(self.u8() % 48),
                reply: choice >= 254,
                need_reply: choice.is_multiple_of(2),
                size: payload.len() as u32,
            };
            return (header, payload);
        }
        let bytes = self.valid(device).encode(!choice.is_multiple_of(4));
        let header = Header::parse(bytes.first_chunk().expect("encoded messages have headers"));
        (header.expect("encoded headers are valid"), bytes[HEADER_SIZE..].to_vec())
    }

    fn valid(&mut self, device: &Device) -> Message {
        let index = u32::from(self.u8()) % (u32::from(device.queues) + 1);
        let region = |source: &mut Self| RegionDescription {
            guest_address: source.pick(&[0, 0x10000, 0x20000]),
            size: source.pick(&[0x10000, 0x8000, 0x20000]),
            user_address: source.pick(&[0x10_0000, 0x11_0000, 0x12_0000]),
            mmap_offset: source.pick(&[0, 0x1000]),
        };
        let inflight = |source: &mut Self| InflightDescription {
            mmap_size: source.pick(&[1 << 20, 0]),
            mmap_offset: source.pick(&[0, 64]),
            num_queues: source.pick(&[1, device.queues.into()]) as u16,
            queue_size: source.pick(&[256, 16]) as u16,
            padded: source.u8().is_multiple_of(2),
        };
        let fd = |source: &mut Self| FdPresence { index: index as u8, present: !source.u8().is_multiple_of(4) };
        match self.u8() % 36 {
            0 => Message::GetFeatures,
            1 | 2 => Message::SetFeatures({
                let all = device.features() | F_PROTOCOL_FEATURES;
                self.pick(&[all, all | F_LOG_ALL, all & !F_RING_PACKED, all & !F_PROTOCOL_FEATURES])
            }),
            3 => Message::SetOwner,
            4 => Message::ResetOwner,
            5 => Message::SetMemTable((0..self.u8() % 3).map(|_| region(self)).collect()),
            6 => Message::SetLogBase(LogDescription { size: self.pick(&[64, 0]), offset: self.pick(&[0]) }),
            7 => Message::SetLogFd,
            8 | 9 => Message::SetVringNum(VringState { index, num: self.pick(&[256, 16, 0]) as u32 }),
            10..=12 => {
                let start = self.pick(&[0x10_0000, 0x11_0000, 0x12_0000]);
                Message::SetVringAddr(VringAddress {
                    index,
                    flags: self.pick(&[0, 1]) as u32,
                    descriptor: start,
                    available: start.wrapping_add(self.pick(&[0x1000, 0x1001])),
                    used: start.wrapping_add(self.pick(&[0x2000, 0x2002])),
                    log: self.pick(&[0x2000]),
                })
            }
            13 => Message::SetVringBase(VringState { index, num: self.pick(&[0, 0x8000_8000, 300]) as u32 }),
            14 | 15 => Message::GetVringBase(VringState { index, num: 0 }),
            16..=18 => Message::SetVringKick(fd(self)),
            19 => Message::SetVringCall(fd(self)),
            20 => Message::SetVringErr(fd(self)),
            21 => Message::GetProtocolFeatures,
            22 | 23 => Message::SetProtocolFeatures(self.pick(&[ProtocolFeatures::IMPLEMENTED.0])),
            24 => Message::GetQueueNum,
            25 => Message::SetVringEnable(VringState { index, num: self.pick(&[0, 1]) as u32 }),
            26 => Message::SendRarp(self.u64()),
            27 => Message::NetSetMtu(self.pick(&[1500, 9000])),
            28 => Message::SetBackendReqFd,
            29 | 30 => {
                let bytes = vec![0; self.pick(&[60, 1, 256]) as usize % 300];
                let config = ConfigSpace { offset: self.pick(&[0, 8]) as u32, flags: self.pick(&[0, 1]) as u32, bytes };
                if self.u8().is_multiple_of(2) { Message::GetConfig(config) } else { Message::SetConfig(config) }
            }
            31 => Message::GetInflightFd(inflight(self)),
            32 => Message::SetInflightFd(inflight(self)),
            33 => Message::ResetDevice,
            34 => match self.u8() % 3 {
                0 => Message::GetMaxMemSlots,
                1 => Message::AddMemReg(region(self)),
                _ => Message::RemMemReg(region(self)),
            },
            _ => match self.u8() % 2 {
                0 => Message::SetStatus(self.pick(&[0, 1, 3, 15, 79])),
                _ => Message::GetStatus,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

    fn run(mut runner: TestRunner) -> BTreeSet<&'static str> {
        let seen = RefCell::new(BTreeSet::new());
        let result = runner.run(&prop::collection::vec(any::<u8>(), 0..1500), |data| {
            seen.borrow_mut().append(&mut super::drive(&data));
            Ok(())
        });
        result.unwrap();
        seen.into_inner()
    }

    fn config() -> Config {
        Config { cases: 3000, failure_persistence: None, ..Config::default() }
    }

    #[test]
    fn no_sequence_of_messages_breaks_the_session() {
        run(TestRunner::new(config()));
    }

    #[test]
    fn the_sequences_reach_every_command() {
        let seen = run(TestRunner::new_with_rng(config(), TestRng::deterministic_rng(RngAlgorithm::ChaCha)));
        assert_eq!(seen.len(), 13, "only {seen:?} were reached");
    }
}
