//! Sessions driven in the order of real front ends.

mod common;

use common::*;
use softdpu_transport::vhost_user::*;

/// QEMU 7.2: vhost_user_backend_connect, vhost_dev_init, vhost_user_blk_start, vhost_dev_start, vhost_dev_stop.
#[test]
fn qemu_connects_starts_stops_and_starts_again() {
    let mut link = Link::new();
    let offered = link.ok(Message::GetFeatures).number();
    assert_eq!(offered, RING | F_RING_PACKED | F_PROTOCOL_FEATURES | F_LOG_ALL);
    let protocol = ProtocolFeatures(link.ok(Message::GetProtocolFeatures).number());
    assert_eq!(protocol, ProtocolFeatures::IMPLEMENTED);
    let protocol = ProtocolFeatures::BLOCK.without(ProtocolFeatures::GET_VRING_BASE_INFLIGHT);
    link.ok(Message::SetProtocolFeatures(protocol.0));
    assert_eq!(link.ok(Message::GetQueueNum).number(), 4);
    assert_eq!(link.ok(Message::GetMaxMemSlots).number(), 16);
    link.need_reply = true;
    link.ok(Message::SetBackendReqFd);
    let channel = link.last_fd();
    link.need_reply = false;
    link.ok(Message::SetOwner);
    link.ok(Message::GetFeatures);
    for queue in 0..2 {
        assert!(link.ok(call(queue)).is_silent(), "QEMU sets the call descriptors before anything is negotiated");
    }
    let config = ConfigSpace { offset: 0, flags: 0, bytes: vec![0; 96] };
    let reply = link.ok(Message::GetConfig(config));
    assert_eq!(reply.replies[0].0.len(), 12 + 96);
    assert_eq!(reply.replies[0].0[12..72], (0..60).collect::<Vec<u8>>());

    let features = RING | F_PROTOCOL_FEATURES;
    link.ok(Message::SetFeatures(features));
    let empty = InflightDescription { mmap_size: 0, mmap_offset: 0, num_queues: 2, queue_size: 256, padded: true };
    let created = link.ok(Message::GetInflightFd(empty));
    let bytes = 2 * 4160;
    assert_eq!(
        created.command(),
        &Command::CreateInflight { queues: 2, queue_size: 256, format: RingFormat::Split, bytes }
    );
    let (payload, fds) = &created.replies[0];
    assert_eq!(payload[..8], bytes.to_ne_bytes());
    assert_eq!((payload.len(), fds, &created.released), (24, &vec![link.last_fd()], &vec![link.last_fd()]));

    for round in 0..2 {
        link.ok(Message::SetInflightFd(InflightDescription { mmap_size: bytes, ..empty }));
        let inflight = link.last_fd();
        link.ok(Message::SetFeatures(features));
        link.need_reply = true;
        for region in [region(0, 0xa_0000, USER, 0), region(0xc_0000, 0x10_0000, USER + 0xc_0000, 0xc_0000)] {
            if round == 0 {
                link.ok(Message::AddMemReg(region));
            }
        }
        link.need_reply = false;
        for queue in 0..2 {
            link.ok(Message::SetVringNum(VringState { index: queue, num: 128 }));
            link.ok(Message::SetVringBase(VringState { index: queue, num: 7 * round }));
            link.ok(Message::SetVringAddr(ring(queue)));
            let started = link.ok(kick(queue));
            let kick = link.last_fd();
            let start = started.start();
            assert_eq!((start.index, start.size, start.format), (QueueIndex(queue as u16), 128, RingFormat::Split));
            assert_eq!(start.base, VringBase::Split { next_available: 7 * round as u16 });
            assert_eq!((start.kick, start.enabled, start.resumed), (Some(kick), false, false));
            let expected = InflightRef { fd: inflight, offset: 4160 * u64::from(queue), bytes: 4160, queue_size: 256 };
            assert_eq!(start.inflight, Some(expected));
            let called = link.ok(call(queue));
            let change = QueueChange::Call(Some(link.last_fd()));
            assert_eq!(called.command(), &Command::QueueUpdate { index: QueueIndex(queue as u16), change });
            assert_eq!(called.released.len(), 1, "the descriptor before is not needed any longer");
        }
        for queue in 0..2 {
            let change = QueueChange::Enabled(true);
            let index = QueueIndex(queue as u16);
            assert_eq!(link.ok(enable(queue, 1)).commands, [Command::QueueUpdate { index, change }]);
        }
        for status in [1, 3, 15] {
            link.ok(Message::GetStatus);
            assert_eq!(link.ok(Message::SetStatus(status)).commands, [Command::Status(status as u8)]);
        }
        assert!(link.session.config_changed().is_some_and(|message| message.channel == channel));

        for queue in 0..2 {
            link.ok(enable(queue, 0));
        }
        for queue in 0..2 {
            let stopped = link.ok(stop(queue));
            let index = QueueIndex(queue as u16);
            assert_eq!(stopped.command(), &Command::QueueStop(index));
            assert_eq!(stopped.replies[0].0, [queue.to_ne_bytes(), 7u32.to_ne_bytes()].concat());
        }
    }
    assert_eq!(link.ok(Message::SetStatus(0)).commands, [Command::Reset(ResetCause::Status)]);
    assert_eq!(link.session.features(), None);
    assert_eq!(link.open().len(), 2 + 2 + 1, "memory, call descriptors and the back-end channel outlive a reset");

    let gone = link.session.disconnect();
    let outcome = link.drive(Ok(gone)).unwrap();
    assert_eq!(outcome.commands, [Command::Reset(ResetCause::Disconnect)]);
    assert_eq!(link.open(), []);
    assert_eq!(link.session.save(), Session::new(&link.disk).save());
}

/// QEMU before 8.1 pauses a guest or moves it: the status becomes 0, and then it asks where the rings stand.
#[test]
fn where_a_ring_stood_is_known_after_the_status_became_0() {
    let mut link = Link::ready();
    link.start(0);
    link.position = 1222;
    assert_eq!(link.ok(Message::SetStatus(0)).commands, [Command::Reset(ResetCause::Status)]);
    let stopped = link.ok(stop(0));
    assert_eq!(stopped.commands, [], "it does not run any more");
    assert_eq!(stopped.replies[0].0, [0u32.to_ne_bytes(), 1222u32.to_ne_bytes()].concat());

    // A ring that is started anew without a base starts at its beginning.
    link.ok(Message::SetFeatures(RING | F_PROTOCOL_FEATURES));
    let started = link.start(0);
    assert_eq!(started.start().base, VringBase::Split { next_available: 0 });
    link.position = 3;
    for _ in 0..2 {
        assert_eq!(link.ok(stop(0)).replies[0].0, [0u32.to_ne_bytes(), 3u32.to_ne_bytes()].concat());
    }
}

/// libblkio and the `virtio-driver` crate: features before protocol features, every message acknowledged, memory by
/// slots, call after kick, and a base of 0 even for packed rings.
#[test]
fn libblkio_runs_a_packed_queue() {
    let mut link = Link::new();
    link.ok(Message::SetOwner);
    link.ok(Message::GetFeatures);
    link.ok(Message::SetFeatures(RING | F_RING_PACKED | F_PROTOCOL_FEATURES));
    let wanted = ProtocolFeatures::REPLY_ACK
        .with(ProtocolFeatures::CONFIG)
        .with(ProtocolFeatures::CONFIGURE_MEM_SLOTS)
        .with(ProtocolFeatures::MQ);
    assert!(ProtocolFeatures(link.ok(Message::GetProtocolFeatures).number()).contains(wanted));
    link.ok(Message::SetProtocolFeatures(wanted.0));
    link.need_reply = true;
    link.ok(Message::GetQueueNum);
    link.ok(Message::GetMaxMemSlots);
    // Queue memory ends where the queues end, and its guest address is the client's own.
    let queues = region(USER, 0x2004, USER, 0);
    let buffers = region(USER + 0x10_0000, 0x1_0000, USER + 0x10_0000, 0);
    link.ok(Message::AddMemReg(queues));
    link.ok(Message::SetVringNum(VringState { index: 0, num: 64 }));
    link.ok(Message::SetVringBase(VringState { index: 0, num: 0 }));
    link.ok(Message::SetVringAddr(ring(0)));
    let started = link.ok(kick(0));
    assert_eq!(started.start().format, RingFormat::Packed);
    assert!(started.start().base.may_be_fresh());
    assert_eq!(started.start().inflight, None);
    link.ok(call(0));
    link.ok(enable(0, 1));
    let added = link.ok(Message::AddMemReg(buffers));
    let Command::MemoryChange { regions, broken } = added.command() else { panic!("{added:?}") };
    assert_eq!((regions.len(), &broken[..]), (2, &[][..]), "memory comes while queues run");
    let removed = link.ok(Message::RemMemReg(buffers));
    assert_eq!(removed.released.len(), 1);
}

/// A front end of before protocol features: one feature exchange, rings enabled from the start.
#[test]
fn an_old_front_end_gets_enabled_rings() {
    let mut link = Link::new();
    link.ok(Message::SetOwner);
    link.ok(Message::SetFeatures(RING));
    link.ok(Message::SetMemTable(vec![region(0, 0x10_0000, USER, 0)]));
    assert!(link.start(0).start().enabled);
    assert_eq!(link.fault(enable(0, 0)), Fault::OutOfOrder { first: RequestId(request::SET_PROTOCOL_FEATURES) });
}

/// QEMU's vhost-user-net has a vhost device for each queue pair on one connection, and starts them one after the other.
#[test]
fn a_second_queue_pair_repeats_the_features_while_the_first_runs() {
    let mut link = Link::ready();
    link.start(0);
    link.start(1);
    assert!(link.ok(Message::SetFeatures(RING | F_PROTOCOL_FEATURES)).is_silent());
    link.start(2);
    assert_eq!(link.session.running().count(), 3);
    let Command::SetMtu(9000) = link.ok(Message::NetSetMtu(9000)).commands[0] else { panic!() };
    let mac = u64::from_ne_bytes([2, 0x5d, 0, 0, 0, 9, 0, 0]);
    assert_eq!(link.ok(Message::SendRarp(mac)).commands, [Command::SendRarp { mac: [2, 0x5d, 0, 0, 0, 9] }]);
}

/// QEMU's order for live migration: log, features, then every ring's address again with VHOST_VRING_F_LOG.
#[test]
fn migration_switches_logging_on_and_off_while_queues_run() {
    let mut link = Link::ready();
    link.start(0);
    let log = LogDescription { size: 0x1000, offset: 0 };
    let outcome = link.ok(Message::SetLogBase(log));
    let memory = Some((link.last_fd(), 0, 0x1000));
    assert_eq!(outcome.commands, [Command::DirtyLog(DirtyLog { memory, event: None, logging: false })]);
    assert_eq!(outcome.replies.len(), 1, "SET_LOG_BASE is always answered");
    let outcome = link.ok(Message::SetFeatures(RING | F_PROTOCOL_FEATURES | F_LOG_ALL));
    assert_eq!(outcome.commands, [Command::DirtyLog(DirtyLog { memory, event: None, logging: true })]);
    let index = QueueIndex(0);
    for log in [Some(0x2000), None] {
        let flags = log.map_or(0, |_| 1);
        let address = VringAddress { flags, log: log.unwrap_or(0), ..ring(0) };
        let outcome = link.ok(Message::SetVringAddr(address));
        assert_eq!(outcome.commands, [Command::QueueUpdate { index, change: QueueChange::Log(log) }]);
    }
    let outcome = link.ok(Message::SetFeatures(RING | F_PROTOCOL_FEATURES));
    assert_eq!(outcome.commands, [Command::DirtyLog(DirtyLog { memory, event: None, logging: false })]);
    let first = link.open();
    let outcome = link.ok(Message::SetLogBase(LogDescription { size: 0x2000, offset: 0 }));
    assert_eq!(outcome.released.len(), 1, "the log before is not needed any longer");
    assert_eq!(link.open().len(), first.len());
}
