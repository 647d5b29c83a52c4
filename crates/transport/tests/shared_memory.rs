//! What a front end shares: guest memory, dirty log, in-flight region, configuration space.

mod common;

use common::*;
use softdpu_transport::vhost_user::*;

const PAGE: u64 = 4096;

#[test]
fn a_memory_region_must_make_sense() {
    let mut link = Link::ready();
    let last = !(PAGE - 1);
    let wraps = |field, start, len| Fault::Wraps { field, start, len };
    let cases = [
        (region(0, 0, USER, 0), Fault::Field { field: "size of a memory region", found: 0, expected: "at least 1" }),
        (region(last, PAGE, USER, 0), wraps("guest address", last, PAGE)),
        (region(0, u64::MAX, PAGE, 0), wraps("user address", PAGE, u64::MAX)),
        (region(0, PAGE, USER, last), wraps("mmap offset", last, PAGE)),
        (
            region(0, PAGE, USER, i64::MAX as u64 & !(PAGE - 1)),
            wraps("mmap offset", i64::MAX as u64 & !(PAGE - 1), PAGE),
        ),
        (
            region(0, PAGE, USER, 8),
            Fault::Field {
                field: "mmap offset",
                found: 8,
                expected: "the same offset within a page as the user address",
            },
        ),
    ];
    for (region, fault) in cases {
        assert_eq!(link.fault(Message::SetMemTable(vec![region])), fault);
        assert_eq!(link.fault(Message::AddMemReg(region)), fault);
    }
}

#[test]
fn memory_regions_must_not_overlap() {
    let mut link = Link::ready();
    let table = |second| Message::SetMemTable(vec![region(0x8000, 0x8000, USER, 0), second]);
    for guest in [0x8000, 0x7000, 0xf000] {
        let fault = link.fault(table(region(guest, 0x2000, USER + 0x10_0000, 0)));
        assert!(matches!(fault, Fault::Overlap { space: "guest address", .. }), "{fault}");
    }
    let fault = link.fault(table(region(0x10_0000, 0x1000, USER + 0x1000, 0)));
    assert_eq!(fault, Fault::Overlap { space: "user address", first: USER, second: USER + 0x1000 });
    let alias = region(0x10_0000, 0x1000, USER + 0x1000, 0x1000);
    link.ok(table(alias));
    link.ok(table(region(0x1_0000, 0x1000, USER + 0x8000, 0)));
    let hidden = Message::SetMemTable(vec![
        region(0, 0x10_000, USER, 0),
        region(0x10_0000, 0x1000, USER + 0x1000, 0x1000),
        region(0x20_0000, 0x1000, USER + 0x3000, 0),
    ]);
    assert!(matches!(link.fault(hidden), Fault::Overlap { space: "user address", .. }), "behind a shorter alias");
}

#[test]
fn a_table_has_eight_regions_at_most_and_slots_have_a_limit() {
    let mut link = Link::ready();
    let at = |slot: u64| region(slot * 0x10_0000, PAGE, USER + slot * 0x10_0000, 0);
    let fault = link.fault_with(Message::SetMemTable((0..9).map(at).collect()), 8);
    assert_eq!(fault, Fault::Range { field: "num regions", found: 9, least: 0, most: 8 });
    let mut payload = u32::MAX.to_ne_bytes().to_vec();
    payload.extend_from_slice(&[0; 260]);
    let fault = link.fault_raw(request::SET_MEM_TABLE, &payload, 0);
    assert_eq!(fault, Fault::Range { field: "num regions", found: u32::MAX.into(), least: 0, most: 8 });
    link.ok(Message::SetMemTable((0..8).map(at).collect()));
    for slot in 8..16 {
        link.ok(Message::AddMemReg(at(slot)));
    }
    assert_eq!(link.fault(Message::AddMemReg(at(16))), Fault::TooManyRegions { found: 17, most: 16 });
    link.ok(Message::RemMemReg(at(3)));
    link.ok(Message::AddMemReg(at(16)));
    assert_eq!(link.open().len(), 16);
}

#[test]
fn a_new_table_replaces_the_descriptors_of_the_old_one() {
    let mut link = Link::ready();
    let old = link.last_fd();
    let outcome = link.ok(Message::SetMemTable(vec![region(0, 0x20_0000, USER, 0)]));
    let fd = link.last_fd();
    let regions = vec![MemoryRegion { guest_address: 0, size: 0x20_0000, user_address: USER, mmap_offset: 0, fd }];
    assert_eq!(outcome.commands, [Command::MemoryChange { regions, broken: vec![] }]);
    assert_eq!(outcome.released, [old]);
}

#[test]
fn a_region_is_removed_by_its_addresses_and_a_descriptor_with_it_is_closed() {
    let mut link = Link::ready();
    let other = region(0x20_0000, PAGE, USER + 0x20_0000, 0);
    link.ok(Message::AddMemReg(other));
    for wrong in [
        region(0x20_0000, PAGE * 2, USER + 0x20_0000, 0),
        region(0x20_0000, PAGE, USER, 0),
        region(0x30_0000, PAGE, USER + 0x20_0000, 0),
    ] {
        let RegionDescription { guest_address, size, user_address, .. } = wrong;
        let fault = link.fault(Message::RemMemReg(wrong));
        assert_eq!(fault, Fault::NoSuchRegion { guest_address, user_address, size });
    }
    let region_fd = link.last_fd();
    let outcome = link.send_with(Message::RemMemReg(RegionDescription { mmap_offset: 99, ..other }), 1).unwrap();
    assert_eq!(outcome.released, [region_fd, link.last_fd()]);
}

#[test]
fn queues_whose_rings_leave_memory_break_and_the_others_go_on() {
    let mut link = Link::ready();
    let far = region(0x20_0000, 0x10_0000, USER + 0x20_0000, 0);
    link.ok(Message::AddMemReg(far));
    link.start(0);
    link.ok(Message::SetVringNum(VringState { index: 1, num: 256 }));
    let start = USER + 0x20_0000;
    let away = VringAddress { descriptor: start, available: start + 0x1000, used: start + 0x2000, ..ring(1) };
    link.ok(Message::SetVringAddr(away));
    link.ok(kick(1));
    link.position = 99;
    let outcome = link.ok(Message::RemMemReg(far));
    let Command::MemoryChange { broken, regions } = outcome.command() else { panic!("{outcome:?}") };
    assert_eq!((&broken[..], regions.len()), (&[QueueIndex(1)][..], 1));
    assert_eq!(link.session.running().collect::<Vec<_>>(), [QueueIndex(0)]);
    link.ok(Message::AddMemReg(far));
    for message in [kick(1), Message::SetVringAddr(away), Message::SetVringNum(VringState { index: 1, num: 16 })] {
        assert_eq!(link.fault(message), Fault::Broken { queue: 1 });
    }
    let stopped = link.ok(stop(1));
    assert_eq!((stopped.commands.len(), &stopped.replies[0].0[4..]), (0, &99u32.to_ne_bytes()[..]));
    assert_eq!(link.ok(kick(1)).start().base, VringBase::Split { next_available: 99 });
}

#[test]
fn an_empty_table_takes_all_memory_away() {
    let mut link = Link::ready();
    link.start(0);
    let outcome = link.ok(Message::SetMemTable(vec![]));
    assert_eq!(outcome.commands, [Command::MemoryChange { regions: vec![], broken: vec![QueueIndex(0)] }]);
    assert_eq!(link.open(), []);
}

#[test]
fn a_device_that_cannot_map_says_so_and_keeps_its_memory() {
    let mut link = Link::ready();
    let saved = link.session.save();
    link.failing = Some("the file is shorter than the region");
    let table = Message::SetMemTable(vec![region(0, 0x20_0000, USER, 0)]);
    assert_eq!(link.fault(table), Fault::Device("the file is shorter than the region".into()));
    assert_eq!(link.session.save(), saved);
    assert!(matches!(link.fault(kick(0)), Fault::OutOfOrder { .. }));
}

#[test]
fn a_dirty_log_covers_guest_memory() {
    let mut link = Link::ready();
    let log = |size, offset| Message::SetLogBase(LogDescription { size, offset });
    // 1 MiB of guest memory is 256 pages.
    assert_eq!(link.fault(log(31, 0)), Fault::LogTooSmall { found: 31, expected: 32 });
    assert_eq!(link.fault(log(0, 0)), Fault::LogTooSmall { found: 0, expected: 32 });
    let wraps = Fault::Wraps { field: "log offset", start: u64::MAX, len: 64 };
    assert_eq!(link.fault(log(64, u64::MAX)), wraps);
    assert!(matches!(link.fault(log(1 << 60, 0)), Fault::Range { field: "log size", .. }));
    let outcome = link.ok(log(32, 4096));
    let memory = Some((link.last_fd(), 4096, 32));
    assert_eq!(outcome.commands, [Command::DirtyLog(DirtyLog { memory, event: None, logging: false })]);
    assert_eq!(outcome.replies[0].0, [32u64.to_ne_bytes(), 4096u64.to_ne_bytes()].concat());
    let outcome = link.ok(Message::SetLogFd);
    let event = Some(link.last_fd());
    assert_eq!(outcome.commands, [Command::DirtyLog(DirtyLog { memory, event, logging: false })]);
}

fn inflight(mmap_size: u64, num_queues: u16, queue_size: u16) -> InflightDescription {
    InflightDescription { mmap_size, mmap_offset: 0, num_queues, queue_size, padded: true }
}

#[test]
fn an_inflight_region_must_fit_its_queues() {
    let mut link = Link::ready();
    let range = |field, found, most| Fault::Range { field, found, least: 1, most };
    for message in [Message::GetInflightFd, Message::SetInflightFd] {
        assert_eq!(link.fault(message(inflight(1 << 30, 0, 256))), range("num queues", 0, 4));
        assert_eq!(link.fault(message(inflight(1 << 30, 5, 256))), range("num queues", 5, 4));
        assert_eq!(link.fault(message(inflight(1 << 30, u16::MAX, 256))), range("num queues", 65535, 4));
        assert_eq!(link.fault(message(inflight(1 << 30, 1, 0))), range("num", 0, 1024));
        assert_eq!(link.fault(message(inflight(1 << 30, 1, 2048))), range("num", 2048, 1024));
        assert!(matches!(link.fault(message(inflight(1 << 30, 1, 100))), Fault::Field { field: "num", .. }));
    }
    let set = Message::SetInflightFd;
    assert_eq!(link.fault(set(inflight(8319, 2, 256))), Fault::InflightTooSmall { found: 8319, expected: 8320 });
    let offset = InflightDescription { mmap_offset: 32, ..inflight(8320, 2, 256) };
    assert_eq!(link.fault(set(offset)), Fault::Alignment { field: "mmap offset", found: 32, align: 64 });
    let wraps = InflightDescription { mmap_offset: u64::MAX - 63, ..inflight(8320, 2, 256) };
    assert!(matches!(link.fault(set(wraps)), Fault::Wraps { field: "mmap offset", .. }));

    link.ok(set(InflightDescription { mmap_offset: 128, ..inflight(8320, 2, 256) }));
    let fd = link.last_fd();
    let expected = InflightRef { fd, offset: 128 + 4160, bytes: 4160, queue_size: 256 };
    assert_eq!(link.start(1).start().inflight, Some(expected));
    link.ok(Message::SetVringNum(VringState { index: 0, num: 512 }));
    link.ok(Message::SetVringAddr(VringAddress { used: USER + 0x8000, ..ring(0) }));
    let field = "queue size in the in-flight region";
    assert_eq!(link.fault(kick(0)), Fault::Range { field, found: 512, least: 1, most: 256 });
    link.ok(Message::SetVringNum(VringState { index: 2, num: 256 }));
    link.ok(Message::SetVringAddr(ring(2)));
    let field = "queue of the in-flight region";
    assert_eq!(link.fault(kick(2)), Fault::Range { field, found: 2, least: 0, most: 1 });
}

#[test]
fn an_inflight_region_is_checked_again_when_the_ring_format_changed() {
    let mut link = Link::ready();
    link.ok(Message::SetInflightFd(inflight(8320, 2, 256)));
    link.ok(Message::SetFeatures(RING | F_PROTOCOL_FEATURES | F_RING_PACKED));
    link.ok(Message::SetVringNum(VringState { index: 0, num: 256 }));
    link.ok(Message::SetVringAddr(ring(0)));
    assert_eq!(link.fault(kick(0)), Fault::InflightTooSmall { found: 8320, expected: 2 * 8256 });
}

#[test]
fn a_device_without_memory_for_an_inflight_region_says_that_there_is_none() {
    for (padded, len) in [(true, 24), (false, 20)] {
        let mut link = Link::ready();
        link.failing = Some("no memory");
        let outcome = link.send(Message::GetInflightFd(InflightDescription { padded, ..inflight(0, 1, 256) })).unwrap();
        assert_eq!(outcome.replies, [(vec![0; len], vec![])]);
        assert_eq!(outcome.refused, Some(Fault::Device("no memory".into())));
        link.failing = None;
        let outcome = link.ok(Message::GetInflightFd(InflightDescription { padded, ..inflight(0, 1, 256) }));
        assert_eq!(outcome.replies[0].0.len(), len, "the reply has the form of the request");
    }
}

#[test]
fn configuration_space_is_read_within_bounds() {
    let mut link = Link::ready();
    let read = |offset, len| Message::GetConfig(ConfigSpace { offset, flags: 0, bytes: vec![0xff; len] });
    let reply = link.ok(read(56, 8));
    let fields = [56u32.to_ne_bytes(), 8u32.to_ne_bytes(), 0u32.to_ne_bytes()].concat();
    assert_eq!(reply.replies[0].0, [fields, vec![56, 57, 58, 59, 0, 0, 0, 0]].concat());
    let cases = [
        (0, 0, Fault::Range { field: "size", found: 0, least: 1, most: 256 }),
        (0, 257, Fault::Range { field: "size", found: 257, least: 1, most: 256 }),
        (250, 8, Fault::Range { field: "offset", found: 250, least: 0, most: 248 }),
        (u32::MAX, 8, Fault::Range { field: "offset", found: u32::MAX.into(), least: 0, most: 248 }),
        (128, 8, Fault::Device("no field begins there".into())),
    ];
    for (offset, len, fault) in cases {
        let outcome = link.send(read(offset, len)).unwrap();
        assert_eq!(outcome.replies, [(vec![0; 12], vec![])], "contents of length 0 are how GET_CONFIG fails");
        assert_eq!(outcome.refused, Some(fault));
    }
}

#[test]
fn configuration_writes_go_to_the_device() {
    let mut link = Link::ready();
    let write = |flags| Message::SetConfig(ConfigSpace { offset: 32, flags, bytes: vec![1] });
    for (flags, live_migration) in [(0, false), (1, true)] {
        let outcome = link.ok(write(flags));
        assert_eq!(outcome.commands, [Command::SetConfig { offset: 32, bytes: vec![1], live_migration }]);
    }
    assert!(matches!(link.fault(write(2)), Fault::Field { field: "flags", found: 2, .. }));
    link.failing = Some("capacity is read-only");
    assert_eq!(link.fault(write(0)), Fault::Device("capacity is read-only".into()));
}

#[test]
fn the_front_end_hears_of_a_changed_configuration_when_it_runs_and_asked_for_it() {
    let mut link = Link::ready();
    assert_eq!(link.session.config_changed(), None);
    assert_eq!(link.start(0).backend, [], "there is no channel");
    link.ok(stop(0));

    link.ok(Message::SetBackendReqFd);
    let channel = link.last_fd();
    let expected = BackendMessage { channel, bytes: Header::request(2, false, 0).encode().to_vec() };
    assert_eq!(link.session.config_changed(), None, "a suspended device sends nothing");
    assert_eq!(link.ok(kick(0)).backend.as_slice(), std::slice::from_ref(&expected));
    assert_eq!(link.ok(call(0)).backend, [], "once");
    assert_eq!(link.session.config_changed(), Some(expected));

    let outcome = link.ok(Message::SetBackendReqFd);
    assert_eq!(outcome.released, [channel]);
    link.ok(Message::GetStatus);
    let mut quiet = Link::ready();
    quiet.ok(Message::SetProtocolFeatures(ProtocolFeatures::IMPLEMENTED.without(ProtocolFeatures::CONFIG).0));
    quiet.ok(Message::SetBackendReqFd);
    quiet.start(0);
    assert_eq!(quiet.session.config_changed(), None);
}

#[test]
fn an_mtu_is_at_least_68() {
    let mut link = Link::ready();
    for found in [0, 67, 65536, u64::MAX] {
        let fault = Fault::Range { field: "MTU", found, least: 68, most: 65535 };
        assert_eq!(link.fault(Message::NetSetMtu(found)), fault);
    }
    assert_eq!(link.ok(Message::NetSetMtu(68)).commands, [Command::SetMtu(68)]);
}
