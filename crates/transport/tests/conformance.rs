//! For each request: what comes in, what comes out.

mod common;

use common::*;
use softdpu_transport::vhost_user::*;

fn all() -> u64 {
    RING | F_PROTOCOL_FEATURES
}

#[test]
fn every_request_is_gated_by_its_protocol_feature() {
    let mut disk = Disk::new();
    disk.protocol_features = ProtocolFeatures::REPLY_ACK;
    let mut link = Link::to(disk);
    link.negotiate(all(), ProtocolFeatures::REPLY_ACK);
    let inflight = InflightDescription { mmap_size: 0, mmap_offset: 0, num_queues: 1, queue_size: 1, padded: false };
    let config = || ConfigSpace { offset: 0, flags: 0, bytes: vec![0] };
    let cases = [
        (Message::GetQueueNum, ProtocolFeatures::MQ),
        (Message::SetLogBase(LogDescription { size: 1, offset: 0 }), ProtocolFeatures::LOG_SHMFD),
        (Message::SendRarp(0), ProtocolFeatures::RARP),
        (Message::NetSetMtu(1500), ProtocolFeatures::MTU),
        (Message::SetBackendReqFd, ProtocolFeatures::BACKEND_REQ),
        (Message::GetConfig(config()), ProtocolFeatures::CONFIG),
        (Message::SetConfig(config()), ProtocolFeatures::CONFIG),
        (Message::GetInflightFd(inflight), ProtocolFeatures::INFLIGHT_SHMFD),
        (Message::SetInflightFd(inflight), ProtocolFeatures::INFLIGHT_SHMFD),
        (Message::ResetDevice, ProtocolFeatures::RESET_DEVICE),
        (Message::GetMaxMemSlots, ProtocolFeatures::CONFIGURE_MEM_SLOTS),
        (Message::AddMemReg(region(0, 4096, USER, 0)), ProtocolFeatures::CONFIGURE_MEM_SLOTS),
        (Message::RemMemReg(region(0, 4096, USER, 0)), ProtocolFeatures::CONFIGURE_MEM_SLOTS),
        (Message::SetStatus(1), ProtocolFeatures::STATUS),
        (Message::GetStatus, ProtocolFeatures::STATUS),
    ];
    for (message, feature) in cases {
        assert_eq!(link.fault(message), Fault::NotNegotiated { feature });
    }
    let log = F_LOG_ALL;
    assert!(matches!(link.fault(Message::SetFeatures(all() | log)), Fault::NotOffered { bits, .. } if bits == log));
}

#[test]
fn every_payload_must_have_the_size_of_its_request() {
    let mut link = Link::ready();
    for id in RequestId::ALL {
        for size in [1, 7, 9, 13, 23, 25, 41, 4096] {
            let fault = link.fault_raw(id.0, &vec![0; size], 0);
            let by_size = matches!(fault, Fault::PayloadSize { found, expected } if found == size && expected != size);
            // GET_CONFIG and SET_CONFIG say in the payload how long it is, and a length of 0 is refused first.
            let by_field = matches!(fault, Fault::Range { field: "size", found: 0, .. });
            assert!(by_size || by_field, "{id} with {size} bytes: {fault}");
        }
    }
}

#[test]
fn every_request_must_have_the_descriptors_it_says() {
    let mut link = Link::ready();
    let none = FdPresence { index: 0, present: false };
    let cases = [
        (Message::GetFeatures, 1),
        (Message::SetFeatures(all()), 1),
        (Message::SetOwner, 8),
        (Message::SetMemTable(vec![region(0, 4096, USER, 0)]), 0),
        (Message::SetMemTable(vec![region(0, 4096, USER, 0)]), 2),
        (Message::SetLogBase(LogDescription { size: 4096, offset: 0 }), 0),
        (Message::SetLogFd, 0),
        (kick(0), 0),
        (kick(0), 2),
        (Message::SetVringKick(none), 1),
        (call(0), 0),
        (Message::SetVringErr(none), 1),
        (Message::SetBackendReqFd, 0),
        (Message::AddMemReg(region(0x20_0000, 4096, USER, 0)), 0),
        (Message::AddMemReg(region(0x20_0000, 4096, USER, 0)), 2),
        (Message::RemMemReg(region(0, 0x10_0000, USER, 0)), 2),
        (Message::GetStatus, 1),
    ];
    for (message, found) in cases {
        let expected = message.fds();
        let fault = link.fault_with(message.clone(), found);
        assert_eq!(fault, Fault::FileDescriptors { found, expected }, "{message:?}");
    }
}

#[test]
fn unknown_requests_and_stray_replies_are_refused() {
    let mut link = Link::ready();
    // Among them: IOTLB_MSG, SET_VRING_ENDIAN, crypto, postcopy, GPU, in-band kicks, shared objects, device state.
    for id in [0, 22, 23, 26, 27, 28, 29, 30, 33, 35, 41, 42, 43, 44, 45, 1000, u32::MAX] {
        assert_eq!(link.fault_raw(id, &[0; 8], 0), Fault::UnknownRequest);
        assert_eq!(link.fault_raw(id, &[], 1), Fault::UnknownRequest);
    }
    let header = Header::reply(request::GET_FEATURES, 0);
    let error = link.session.message(&link.disk, header, &[], vec![]).unwrap_err();
    assert_eq!(error.to_string(), "GET_FEATURES: the reply flag is set, expected a request");
    let header = Header::request(request::SET_FEATURES, true, 8);
    let error = link.session.message(&link.disk, header, &[0; 4], vec![]).unwrap_err_or_refused();
    assert_eq!(error.to_string(), "SET_FEATURES: payload is 4 bytes, expected 8");
}

trait Refusal {
    fn unwrap_err_or_refused(self) -> ProtocolError;
}

impl Refusal for Result<Vec<Action>, ProtocolError> {
    fn unwrap_err_or_refused(self) -> ProtocolError {
        match self {
            Err(error) => error,
            Ok(actions) => actions
                .into_iter()
                .find_map(|action| if let Action::Refused(error) = action { Some(error) } else { None })
                .expect("a refusal"),
        }
    }
}

#[test]
fn a_status_is_sent_exactly_when_it_was_negotiated_and_asked_for() {
    let mut link = Link::new();
    link.need_reply = true;
    assert!(link.ok_silent(Message::SetOwner), "REPLY_ACK has not been negotiated");
    assert_eq!(link.ok(Message::SetProtocolFeatures(ProtocolFeatures::IMPLEMENTED.0)).number(), 0);
    assert_eq!(link.ok(Message::SetFeatures(all())).number(), 0);
    assert_eq!(link.ok(Message::SetMemTable(vec![region(0, 0x10_0000, USER, 0)])).number(), 0);
    assert_eq!(link.ok(Message::GetQueueNum).number(), 4, "requests with a reply of their own get no second one");
    link.need_reply = false;
    assert!(link.ok(Message::SetOwner).is_silent());
}

impl Link {
    fn ok_silent(&mut self, message: Message) -> bool {
        self.send(message).unwrap().is_silent()
    }
}

#[test]
fn features_must_have_been_offered_and_acceptable() {
    let mut link = Link::new();
    let platform = 1 << 33;
    let offered = RING | F_RING_PACKED | F_PROTOCOL_FEATURES | F_LOG_ALL;
    assert_eq!(link.fault(Message::SetFeatures(all() | platform)), Fault::NotOffered { bits: platform, offered });
    assert_eq!(link.fault(Message::SetFeatures(0)), Fault::Device("VIRTIO_F_VERSION_1 is missing".into()));
    let inband = 1 << 14;
    let fault = link.fault(Message::SetProtocolFeatures(inband));
    assert_eq!(fault, Fault::NotOffered { bits: inband, offered: ProtocolFeatures::IMPLEMENTED.0 });
    let (feature, needs) = (ProtocolFeatures::GET_VRING_BASE_INFLIGHT, ProtocolFeatures::INFLIGHT_SHMFD);
    let fault = link.fault(Message::SetProtocolFeatures(feature.0));
    assert_eq!(fault, Fault::FeatureNeeds { feature, needs });
}

#[test]
fn while_a_queue_runs_only_logging_may_change() {
    let mut link = Link::ready();
    link.start(1);
    let running = |field| Fault::Running { field, queue: 1 };
    let packed = Message::SetFeatures(all() | F_RING_PACKED);
    assert_eq!(link.fault(packed), running("features other than VHOST_F_LOG_ALL"));
    let fewer = ProtocolFeatures::REPLY_ACK.0;
    assert_eq!(link.fault(Message::SetProtocolFeatures(fewer)), running("protocol features"));
    assert_eq!(link.fault(Message::SetVringNum(VringState { index: 1, num: 128 })), running("num"));
    assert_eq!(link.fault(Message::SetVringBase(VringState { index: 1, num: 0 })), running("base"));
    let moved = VringAddress { descriptor: USER, ..ring(1) };
    assert_eq!(link.fault(Message::SetVringAddr(moved)), running("ring addresses"));
    let inflight =
        InflightDescription { mmap_size: 1 << 20, mmap_offset: 0, num_queues: 1, queue_size: 256, padded: true };
    assert_eq!(link.fault(Message::SetInflightFd(inflight)), running("the in-flight region"));
    link.ok(Message::SetVringNum(VringState { index: 2, num: 128 }));
    link.ok(Message::SetFeatures(all() | F_LOG_ALL));
}

#[test]
fn rings_are_set_up_in_order_and_within_limits() {
    let mut link = Link::new();
    link.ok(Message::SetProtocolFeatures(ProtocolFeatures::IMPLEMENTED.0));
    let first = |id| Fault::OutOfOrder { first: RequestId(id) };
    let state = |index, num| VringState { index, num };
    let features = first(request::SET_FEATURES);
    assert_eq!(link.fault(Message::SetVringNum(state(0, 256))), features);
    assert_eq!(link.fault(Message::SetVringBase(state(0, 0))), features);
    assert_eq!(link.fault(Message::SetVringAddr(ring(0))), features);
    assert_eq!(link.fault(kick(0)), features);
    link.ok(Message::SetFeatures(all()));
    assert_eq!(link.fault(kick(0)), first(request::SET_VRING_NUM));
    for num in [0, 2048, u32::MAX] {
        let expected = Fault::Range { field: "num", found: num.into(), least: 1, most: 1024 };
        assert_eq!(link.fault(Message::SetVringNum(state(0, num))), expected);
    }
    let expected = "a power of two for a split ring";
    let fault = link.fault(Message::SetVringNum(state(0, 100)));
    assert_eq!(fault, Fault::Field { field: "num", found: 100, expected });
    link.ok(Message::SetVringNum(state(0, 256)));
    assert_eq!(link.fault(kick(0)), first(request::SET_VRING_ADDR));
    let base = Fault::Range { field: "num", found: 0x1_0000, least: 0, most: 0xffff };
    assert_eq!(link.fault(Message::SetVringBase(state(0, 0x1_0000))), base);
    link.ok(Message::SetVringAddr(ring(0)));
    assert_eq!(link.fault(kick(0)), first(request::SET_MEM_TABLE));
    link.ok(Message::SetMemTable(vec![region(0, 0x10_0000, USER, 0)]));
    link.ok(kick(0));

    for index in [4, 255, u32::MAX] {
        let expected = Fault::Range { field: "vring index", found: index.into(), least: 0, most: 3 };
        let mut messages =
            vec![Message::SetVringNum(state(index, 1)), stop(index), enable(index, 1), Message::SetVringAddr(ring(4))];
        if let Message::SetVringAddr(address) = &mut messages[3] {
            address.index = index;
        }
        if index < 256 {
            messages.extend([kick(index), call(index), err(index)]);
        }
        for message in messages {
            assert_eq!(link.fault(message), expected);
        }
    }
    let fault = link.fault_raw(request::SET_VRING_KICK, &0x300u64.to_ne_bytes(), 0);
    assert!(matches!(fault, Fault::Field { field: "u64", found: 0x300, .. }));
    assert_eq!(link.fault(enable(0, 2)), Fault::Range { field: "num", found: 2, least: 0, most: 1 });
}

#[test]
fn rings_must_be_aligned_and_inside_one_region() {
    for (features, driver_align) in [(all(), 2), (all() | F_RING_PACKED, 4)] {
        let mut link = Link::with_features(features);
        link.ok(Message::SetVringNum(VringState { index: 0, num: 256 }));
        let good = ring(0);
        let cases = [
            (VringAddress { descriptor: USER + 8, ..good }, "descriptor", USER + 8, 16),
            (VringAddress { available: USER + 1, ..good }, "available", USER + 1, driver_align),
            (VringAddress { used: USER + 2, ..good }, "used", USER + 2, 4),
        ];
        for (address, field, found, align) in cases {
            assert_eq!(link.fault(Message::SetVringAddr(address)), Fault::Alignment { field, found, align });
        }
        let fault = link.fault(Message::SetVringAddr(VringAddress { flags: 2, ..good }));
        assert!(matches!(fault, Fault::Field { field: "flags", found: 2, .. }));
        let layout = RingFormat::of(features).layout(256);
        let end = USER + 0x10_0000;
        let cases = [
            (VringAddress { descriptor: USER - 16, ..good }, "descriptor", USER - 16, layout.descriptor.0),
            (VringAddress { descriptor: end - 16, ..good }, "descriptor", end - 16, layout.descriptor.0),
            (VringAddress { available: end, ..good }, "available", end, layout.driver.0),
            (VringAddress { used: u64::MAX - 3, ..good }, "used", u64::MAX - 3, layout.device.0),
            (VringAddress { used: 0, ..good }, "used", 0, layout.device.0),
        ];
        for (wrong, part, address, len) in cases {
            link.ok(Message::SetVringAddr(wrong));
            assert_eq!(link.fault(kick(0)), Fault::NotMapped { part, queue: 0, address, len });
        }
        let last = VringAddress { used: end - layout.device.0.next_multiple_of(4), ..good };
        link.ok(Message::SetVringAddr(last));
        link.ok(kick(0));
    }
}

#[test]
fn a_packed_position_must_be_in_the_ring() {
    let mut link = Link::with_features(all() | F_RING_PACKED);
    let base = |num| Message::SetVringBase(VringState { index: 0, num });
    link.ok(Message::SetVringNum(VringState { index: 0, num: 100 }));
    let range = |field, found| Fault::Range { field, found, least: 0, most: 99 };
    assert_eq!(link.fault(base(100)), range("next available descriptor", 100));
    assert_eq!(link.fault(base(100 << 16)), range("next used descriptor", 100));
    link.ok(base(0x8063_0063));
    link.ok(Message::SetVringNum(VringState { index: 0, num: 64 }));
    link.ok(Message::SetVringAddr(ring(0)));
    let fault = link.fault(kick(0));
    assert_eq!(fault, Fault::Range { field: "next available descriptor", found: 99, least: 0, most: 63 });
    link.ok(Message::SetVringNum(VringState { index: 0, num: 100 }));
    let started = link.ok(kick(0));
    let expected = VringBase::Packed { next_available: 99, available_wrap: false, next_used: 99, used_wrap: true };
    assert_eq!(started.start().base, expected);
}

#[test]
fn a_packed_queue_without_a_base_starts_at_its_beginning() {
    let mut link = Link::with_features(all() | F_RING_PACKED);
    assert_eq!(link.start(0).start().base, RingFormat::Packed.initial_base());
    assert_eq!(link.ok(stop(3)).replies[0].0, [3u32.to_ne_bytes(), 0x8000_8000u32.to_ne_bytes()].concat());
}

type Maker = fn(FdPresence) -> Message;
type Change = fn(Option<FdId>) -> QueueChange;

#[test]
fn kick_call_and_err_can_be_replaced_and_taken_away_while_a_queue_runs() {
    let mut link = Link::ready();
    link.start(0);
    let index = QueueIndex(0);
    let none = FdPresence { index: 0, present: false };
    let makers: [(Maker, Change); 3] = [
        (Message::SetVringKick, QueueChange::Kick),
        (Message::SetVringCall, QueueChange::Call),
        (Message::SetVringErr, QueueChange::Err),
    ];
    for (message, change) in makers {
        let set = link.ok(message(FdPresence { present: true, ..none }));
        let fd = link.last_fd();
        assert_eq!(set.commands, [Command::QueueUpdate { index, change: change(Some(fd)) }]);
        let cleared = link.ok(message(none));
        assert_eq!(cleared.commands, [Command::QueueUpdate { index, change: change(None) }]);
        assert_eq!(cleared.released, [fd]);
    }
}

#[test]
fn a_queue_without_a_kick_descriptor_is_polled() {
    let mut link = Link::ready();
    link.ok(Message::SetVringNum(VringState { index: 0, num: 256 }));
    link.ok(Message::SetVringAddr(ring(0)));
    let started = link.ok(Message::SetVringKick(FdPresence { index: 0, present: false }));
    assert_eq!((started.start().kick, started.start().call), (None, None));
}

#[test]
fn stopping_gives_the_position_and_needs_a_new_kick_to_start_again() {
    let mut link = Link::ready();
    let started = link.start(0);
    let kick_fd = started.start().kick.unwrap();
    link.position = 0x1234;
    let stopped = link.ok(stop(0));
    assert_eq!(stopped.commands.len(), 1);
    assert_eq!(stopped.released, [kick_fd]);
    let again = link.ok(stop(0));
    assert_eq!((again.commands.len(), &again.replies), (0, &stopped.replies), "a stopped queue keeps its position");
    assert_eq!(link.ok(kick(0)).start().base, VringBase::Split { next_available: 0x1234 });
}

#[test]
fn reset_forgets_what_the_driver_negotiated_and_keeps_what_the_front_end_does_not_send_again() {
    let mut link = Link::ready();
    link.ok(Message::SetBackendReqFd);
    link.ok(call(0));
    link.ok(enable(0, 1));
    let kick_fd = link.start(0).start().kick.unwrap();
    link.ok(Message::SetStatus(15));
    let before = link.open().len();
    let reset = link.ok(Message::ResetDevice);
    assert_eq!(reset.commands, [Command::Reset(ResetCause::FrontEnd)]);
    assert_eq!(reset.released, [kick_fd]);
    assert_eq!(link.open().len(), before - 1);
    assert_eq!((link.session.features(), link.session.status()), (None, 0));
    assert_eq!(link.session.protocol_features(), ProtocolFeatures::IMPLEMENTED);
    link.ok(Message::SetFeatures(all()));
    let started = link.start(0);
    assert!(!started.start().enabled && started.start().call.is_some());
    assert!(link.ok(Message::ResetOwner).is_silent(), "deprecated, and to be ignored");
    assert_eq!(link.session.running().count(), 1);
}

#[test]
fn status_is_kept_reported_and_zero_is_a_reset() {
    let mut link = Link::ready();
    link.ok(Message::SetStatus(3));
    assert_eq!(link.ok(Message::GetStatus).number(), 3);
    link.disk.needs_reset.set(true);
    assert_eq!(link.ok(Message::GetStatus).number(), 0x43);
    assert_eq!(link.ok(Message::SetStatus(0x47)).commands, [Command::Status(7)]);
    link.disk.needs_reset.set(false);
    assert_eq!(link.ok(Message::GetStatus).number(), 7);
    assert_eq!(link.fault(Message::SetStatus(256)), Fault::Range { field: "status", found: 256, least: 0, most: 255 });
    assert_eq!(link.ok(Message::SetStatus(0)).commands, [Command::Reset(ResetCause::Status)]);
}
