//! Sessions that outlive the process.

mod common;

use common::*;
use softdpu_transport::vhost_user::*;

/// A session with everything in it.
fn full() -> Link {
    let mut link = Link::ready();
    link.ok(Message::SetOwner);
    link.ok(Message::SetBackendReqFd);
    link.ok(Message::AddMemReg(region(0x20_0000, 0x1000, USER + 0x20_0000, 0x3000)));
    link.ok(Message::SetFeatures(RING | F_PROTOCOL_FEATURES | F_LOG_ALL));
    link.ok(Message::SetLogBase(LogDescription { size: 4096, offset: 64 }));
    link.ok(Message::SetLogFd);
    let inflight =
        InflightDescription { mmap_size: 8320, mmap_offset: 64, num_queues: 2, queue_size: 256, padded: true };
    link.ok(Message::SetInflightFd(inflight));
    link.ok(Message::NetSetMtu(1500));
    link.ok(Message::SetStatus(15));
    for queue in 0..2 {
        link.ok(call(queue));
        link.ok(err(queue));
        link.ok(Message::SetVringBase(VringState { index: queue, num: 100 + queue }));
        link.start(queue);
    }
    link.ok(enable(0, 1));
    link.ok(stop(1));
    link
}

/// Every format this release reads.
const GOLDEN: [&str; 1] = [include_str!("golden/session-1.json")];

/// If this fails because the format was changed on purpose: can the release before this one read the new file, and this
/// one the old? Keep the old file beside the new one, and add it to `GOLDEN`.
#[test]
fn the_format_has_not_changed() {
    let link = full();
    let text = serde_json::to_string_pretty(&link.session.save()).unwrap();
    assert_eq!(text.trim(), GOLDEN[0].trim(), "tests/golden/session-1.json and the format differ");
}

#[test]
fn golden_files_can_be_read() {
    for text in GOLDEN {
        let saved: SavedSession = serde_json::from_str(text).unwrap();
        let restored = Session::restore(saved, &Disk::new()).unwrap();
        assert_eq!(restored.session.running().collect::<Vec<_>>(), [QueueIndex(0)]);
    }
}

#[test]
fn a_restored_session_continues_where_it_was() {
    let mut link = full();
    let text = serde_json::to_string(&link.session.save()).unwrap();
    let restored = Session::restore(serde_json::from_str(&text).unwrap(), &link.disk).unwrap();
    assert_eq!(restored.session.save(), link.session.save());
    assert!(restored.session.descriptors().eq(link.open()));

    let [memory, log, mtu, status, queue] = &restored.commands[..] else { panic!("{:?}", restored.commands) };
    assert!(matches!(memory, Command::MemoryChange { regions, broken } if regions.len() == 2 && broken.is_empty()));
    assert!(matches!(log, Command::DirtyLog(DirtyLog { memory: Some((_, 64, 4096)), event: Some(_), logging: true })));
    assert_eq!((mtu, status), (&Command::SetMtu(1500), &Command::Status(15)));
    let Command::QueueStart(start) = queue else { panic!("{queue:?}") };
    assert!(start.resumed && start.enabled && start.kick.is_some() && start.call.is_some() && start.err.is_some());
    assert_eq!((start.index, start.base), (QueueIndex(0), VringBase::Split { next_available: 100 }));
    assert_eq!(start.inflight.map(|it| (it.offset, it.bytes)), Some((64, 4160)));

    let mut twin = link.reborn(restored.session);
    assert_eq!(twin.ok(stop(0)).replies, link.ok(stop(0)).replies);
    assert_eq!(twin.ok(stop(1)).replies, link.ok(stop(1)).replies);
}

/// The holder of the connection keeps a message until it has the reply: so the message comes again, and must find what
/// it found the first time.
#[test]
fn a_session_saved_before_the_acknowledgement_is_the_one_before_the_message() {
    let mut link = Link::ready();
    link.start(0);
    let before = link.session.save();
    let bytes = stop(0).encode(false);
    let header = Header::request(request::GET_VRING_BASE, false, 8);
    let first = link.session.message(&link.disk, header, &bytes[HEADER_SIZE..], vec![]).unwrap();
    assert!(!link.session.ready());
    assert_eq!(link.session.waiting().map(|(_, request)| request), Some(RequestId(request::GET_VRING_BASE)));
    assert_eq!(link.session.save(), before);

    let mut again = Session::restore(link.session.save(), &link.disk).unwrap().session;
    let [Action::Command { command, .. }] = &first[..] else { panic!("{first:?}") };
    let second = again.message(&link.disk, header, &bytes[HEADER_SIZE..], vec![]).unwrap();
    assert!(matches!(&second[..], [Action::Command { command: same, .. }] if same == command));
}

#[test]
fn a_caller_that_mixes_up_acknowledgements_is_told() {
    let mut link = Link::ready();
    link.start(0);
    let bytes = stop(0).encode(false);
    let header = Header::request(request::GET_VRING_BASE, false, 8);
    let actions = link.session.message(&link.disk, header, &bytes[HEADER_SIZE..], vec![]).unwrap();
    let [Action::Command { id, .. }] = actions[..] else { panic!("{actions:?}") };
    let busy = link.session.message(&link.disk, header, &bytes[HEADER_SIZE..], vec![]).unwrap_err();
    assert_eq!(busy.fault, Fault::Busy(id.0));
    let packed = Ack::Stopped { base: RingFormat::Packed.initial_base() };
    for ack in [Ack::Done, Ack::Memory(FdId(1)), Ack::Broken(vec![]), packed] {
        let error = link.session.acknowledge(id, ack).unwrap_err();
        assert!(matches!(error.fault, Fault::WrongAck { .. }), "{error}");
        assert!(!link.session.ready(), "the command still waits");
    }
    let stopped = Ack::Stopped { base: RingFormat::Split.initial_base() };
    assert_eq!(
        link.session.acknowledge(CommandId(id.0 + 1), stopped.clone()).unwrap_err().fault,
        Fault::NotWaiting(id.0 + 1)
    );
    link.session.acknowledge(id, stopped.clone()).unwrap();
    assert_eq!(link.session.acknowledge(id, stopped).unwrap_err().fault, Fault::NotWaiting(id.0));
}

#[test]
fn a_disconnect_abandons_the_command_that_waits() {
    let mut link = full();
    let table = Message::SetMemTable(vec![region(0, 0x10_0000, USER, 0)]);
    let bytes = table.encode(false);
    let header = Header::request(request::SET_MEM_TABLE, false, 40);
    let fd = FdId(1000);
    link.session.message(&link.disk, header, &bytes[HEADER_SIZE..], vec![fd]).unwrap();
    let actions = link.session.disconnect();
    let [Action::Command { id, command: Command::Reset(ResetCause::Disconnect) }] = actions[..] else {
        panic!("{actions:?}")
    };
    let actions = link.session.acknowledge(id, Ack::Done).unwrap();
    let mut expected = link.open();
    expected.push(fd);
    assert_eq!(actions, expected.into_iter().map(Action::Release).collect::<Vec<_>>());
    assert_eq!(link.session.save(), Session::new(&link.disk).save());
}

#[test]
fn a_session_is_not_restored_onto_another_device() {
    let saved = || full().session.save();
    let mut disk = Disk::new();
    disk.features &= !(1 << 29);
    assert_eq!(Session::restore(saved(), &disk).unwrap_err(), RestoreError::Features { bits: 1 << 29 });
    let mut disk = Disk::new();
    disk.protocol_features = ProtocolFeatures::IMPLEMENTED.without(ProtocolFeatures::RARP);
    let error = Session::restore(saved(), &disk).unwrap_err();
    assert_eq!(error, RestoreError::ProtocolFeatures(ProtocolFeatures::RARP));
    let mut disk = Disk::new();
    disk.queues = 1;
    assert_eq!(Session::restore(saved(), &disk).unwrap_err(), RestoreError::Queues { queue: 1, limit: 1 });

    let mut value = serde_json::to_value(saved()).unwrap();
    value["format"] = 7.into();
    let error = Session::restore(serde_json::from_value(value).unwrap(), &Disk::new()).unwrap_err();
    assert_eq!(error, RestoreError::Format { found: 7, expected: 1 });
    let mut value = serde_json::to_value(saved()).unwrap();
    value["state"]["vrings"][0]["address"]["device"] = 3.into();
    let error = Session::restore(serde_json::from_value(value).unwrap(), &Disk::new()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the saved session is damaged: SET_VRING_KICK: used is 0x3, expected a multiple of 4"
    );
}
