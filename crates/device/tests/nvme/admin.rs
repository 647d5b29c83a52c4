//! Admin commands: what each does, and the status of everything that can be wrong with it.

use softdpu_device::nvme::Action;

use super::*;

fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Identify with this CNS, into the data page.
fn identify(host: &mut Host, nsid: u32, cns: u32) -> Vec<u8> {
    host.write(DATA, &[0xee; 4096]);
    assert_eq!(host.run(0x06, &[(1, nsid), (6, DATA as u32), (10, cns)]), (OK, 0), "CNS {cns:#x}");
    host.read(DATA, 4096)
}

#[test]
fn identify_tells_what_the_controller_can_do() {
    let mut host = Host::enabled();
    let page = identify(&mut host, 0, 1);
    assert_eq!(&page[4..24], b"serial-1            ");
    assert_eq!(&page[24..36], b"softdpu NVMe");
    assert_eq!(page[77], 7, "MDTS: 512 KiB");
    assert_eq!(le32(&page, 80), 0x0002_0000);
    assert_eq!((page[512], page[513]), (0x66, 0x44));
    assert_eq!(le32(&page, 516), 256, "NN");
    assert_eq!(page[520], 0b1101_1101, "ONCS");
    assert_eq!((page[522], page[525]), (0, 7), "FUSES, VWC");
    assert_eq!(le32(&page, 536), 1, "SGLS");
    assert_eq!(page[257], 1, "OACS: Doorbell Buffer Config");
    assert_eq!(&page[768..788], b"nqn.2026-11.test:one");
}

#[test]
fn identify_tells_what_namespaces_there_are() {
    let mut host = Host::enabled();
    let page = identify(&mut host, 1, 0);
    assert_eq!((le64(&page, 0), le64(&page, 8), le64(&page, 16)), (2048, 2048, 2048));
    assert_eq!(page[128 + 2], 9, "LBADS");
    let page = identify(&mut host, 3, 0);
    assert_eq!((le64(&page, 0), page[128 + 2]), (1024, 12));
    assert!(identify(&mut host, 2, 0).iter().all(|byte| *byte == 0), "none there");
    let list = identify(&mut host, 0, 2);
    assert_eq!((le32(&list, 0), le32(&list, 4), le32(&list, 8)), (1, 3, 0));
    let list = identify(&mut host, 1, 2);
    assert_eq!((le32(&list, 0), le32(&list, 4)), (3, 0));
    for cns in [7, 0x10] {
        assert_eq!(le32(&identify(&mut host, 0, cns), 4), 3);
    }
    let descriptors = identify(&mut host, 1, 3);
    assert_eq!((descriptors[0], descriptors[1], descriptors[20], descriptors[21]), (2, 16, 4, 1));
    assert_ne!(descriptors[4..20], identify(&mut host, 3, 3)[4..20], "each has its own NGUID");
    assert_eq!(identify(&mut host, 1, 8)[14], 1, "ready");
    assert_eq!(identify(&mut host, 0, 6)[0], 7, "VSL");
    identify(&mut host, 1, 5);
    assert_eq!(identify(&mut host, 1, 0x12)[..4], [1, 0, 1, 0]);
    assert_eq!(identify(&mut host, 0, 0x13)[..4], [1, 0, 1, 0]);
    assert_eq!(identify(&mut host, 0, 0x13 | 2 << 16)[..4], [0, 0, 0, 0]);
    assert_eq!(identify(&mut host, 0, 0x1c)[0], 1);
    assert_eq!(le64(&identify(&mut host, 3, 0x11), 0), 1024);
}

#[test]
fn identify_refuses_what_is_not_there() {
    let mut host = Host::enabled();
    let cases: &[(u32, u32, u32, u16)] = &[
        (0, 0, 0, INVALID_NAMESPACE),
        (257, 0, 0, INVALID_NAMESPACE),
        (0xffff_ffff, 0, 0, INVALID_NAMESPACE),
        (0xffff_fffe, 2, 0, INVALID_NAMESPACE),
        (0xffff_ffff, 7, 0, INVALID_NAMESPACE),
        (0xffff_ffff, 0x10, 0, INVALID_NAMESPACE),
        (2, 3, 0, INVALID_NAMESPACE),
        (2, 5, 0, INVALID_NAMESPACE),
        (2, 8, 0, INVALID_NAMESPACE),
        (2, 0x11, 0, INVALID_NAMESPACE),
        (1, 5, 1 << 24, specific(0x2d)),
        (0, 6, 2 << 24, specific(0x2d)),
        (0, 7, 1 << 24, specific(0x2d)),
        (0, 4, 0, INVALID_FIELD),
        (0, 0x14, 0, INVALID_FIELD),
        (0, 0xff, 0, INVALID_FIELD),
    ];
    for (nsid, cns, cdw11, status) in cases {
        let done = host.run(0x06, &[(1, *nsid), (6, DATA as u32), (10, *cns), (11, *cdw11)]);
        assert_eq!(done, (*status, 0), "CNS {cns:#x} of {nsid:#x}");
    }
    for (prp1, status) in [(MEMORY as u32, DATA_TRANSFER), (DATA as u32 + 2, PRP_OFFSET), (0xffff_f000, DATA_TRANSFER)]
    {
        assert_eq!(host.run(0x06, &[(6, prp1), (10, 1)]), (status, 0));
    }
    // Over two pages.
    assert_eq!(host.run(0x06, &[(6, DATA as u32 + 0x800), (8, 0x9_0000), (10, 1)]), (OK, 0));
    assert_eq!(host.run(0x06, &[(6, DATA as u32 + 0x800), (8, 0x9_0008), (10, 1)]), (PRP_OFFSET, 0));
}

#[test]
fn opcodes_that_are_not_there_fused_commands_and_sgls_are_refused() {
    let mut host = Host::enabled();
    let there = [0x00, 0x01, 0x02, 0x04, 0x05, 0x06, 0x08, 0x09, 0x0a, 0x0c, 0x7c];
    for opcode in (0..=255).filter(|opcode| !there.contains(opcode)) {
        assert_eq!(host.run(opcode, &[]), (INVALID_OPCODE, 0), "{opcode:#x}");
    }
    // Format NVM, Security Send and Receive, Sanitize, Keep Alive, Namespace Management are among them.
    for flags in [1 << 8, 2 << 8, 1 << 14, 2 << 14, 3 << 14] {
        let mut bytes = command(0x06, 7, &[(6, DATA as u32), (10, 1)]);
        bytes[1] = (flags >> 8) as u8;
        host.driver.as_mut().unwrap().submit(&bytes);
        host.ring();
        assert_eq!(host.take().unwrap().status, INVALID_FIELD);
    }
}

#[test]
fn queues_are_created_and_deleted_in_order() {
    let mut host = Host::enabled();
    host.create_pair(1);
    host.create_pair(4);
    assert_eq!(host.run(0x04, &[(10, 1)]), (specific(0x0c), 0), "its submission queue is there");
    assert_eq!(host.run(0x00, &[(10, 1)]), (OK, 0));
    assert!(!host.running.contains(&1) && host.running.contains(&4));
    assert_eq!(host.run(0x00, &[(10, 1)]), (specific(1), 0), "twice");
    assert_eq!(host.run(0x04, &[(10, 1)]), (OK, 0));
    assert_eq!(host.run(0x04, &[(10, 1)]), (specific(1), 0));
    host.create_pair(1);
}

#[test]
fn queues_that_cannot_be_are_refused() {
    let mut host = Host::enabled();
    host.create_pair(1);
    let at = 0x4_0000;
    // (opcode, PRP1, CDW10, CDW11, status)
    let cases: &[(u8, u32, u32, u32, u16)] = &[
        (5, at, 7 << 16, 1, specific(1)),
        (5, at, 7 << 16 | 5, 1, specific(1)),
        (5, at, 7 << 16 | 1, 1, specific(1)),
        (5, at, 2, 1, specific(2)),
        (5, at, 1024 << 16 | 2, 1, specific(2)),
        (5, at, 7 << 16 | 2, 0, INVALID_FIELD),
        (5, at + 8, 7 << 16 | 2, 1, PRP_OFFSET),
        (5, MEMORY as u32, 7 << 16 | 2, 1, DATA_TRANSFER),
        (5, at, 7 << 16 | 2, 5 << 16 | 3, specific(8)),
        (5, at, 7 << 16 | 2, 99 << 16 | 1, OK),
        (1, at, 7 << 16, 1 << 16 | 1, specific(1)),
        (1, at, 7 << 16 | 5, 1 << 16 | 1, specific(1)),
        (1, at, 7 << 16 | 1, 1 << 16 | 1, specific(1)),
        (1, at, 2, 2 << 16 | 1, specific(2)),
        (1, at, 1024 << 16 | 2, 2 << 16 | 1, specific(2)),
        (1, at, 7 << 16 | 2, 2 << 16, INVALID_FIELD),
        (1, at + 4, 7 << 16 | 2, 2 << 16 | 1, PRP_OFFSET),
        (1, MEMORY as u32 - 0x1000, 512 << 16 | 2, 2 << 16 | 1, DATA_TRANSFER),
        (1, at, 7 << 16 | 2, 1, specific(0)),
        (1, at, 7 << 16 | 2, 3 << 16 | 1, specific(0)),
        (1, at, 7 << 16 | 2, 1 << 16 | 1, specific(0)),
        (1, at, 7 << 16 | 2, 0xffff_0001, specific(0)),
        (0, 0, 0, 0, specific(1)),
        (0, 0, 2, 0, specific(1)),
        (0, 0, 0xffff, 0, specific(1)),
        (4, 0, 0, 0, specific(1)),
        (4, 0, 3, 0, specific(1)),
        (4, 0, 0xffff, 0, specific(1)),
    ];
    for (opcode, prp1, cdw10, cdw11, status) in cases {
        let done = host.run(*opcode, &[(6, *prp1), (10, *cdw10), (11, *cdw11)]);
        assert_eq!(done, (*status, 0), "{opcode:#x} {prp1:#x} {cdw10:#x} {cdw11:#x}");
    }
    host.set(CC, 0);
    // Entry sizes that the controller does not have.
    host.enable();
    host.set(CC, 1 | 6 << 16 | 5 << 20);
    assert_eq!(host.run(5, &[(6, at), (10, 7 << 16 | 2), (11, 1)]), (INVALID_FIELD, 0));
}

#[test]
fn a_queue_that_no_core_could_serve_is_an_error_of_its_creation() {
    let mut host = Host::enabled();
    assert_eq!(host.run(5, &[(6, 0x3_0000), (10, 7 << 16 | 1), (11, 1)]), (OK, 0));
    host.start = Err("no memory".to_owned());
    let create = [(6, 0x3_1000), (10, 7 << 16 | 1), (11, 1 << 16 | 1)];
    assert_eq!(host.run(1, &create), (0x06, 0));
    host.start = Ok(());
    assert_eq!(host.run(1, &create), (OK, 0), "and can be tried again");
}

#[test]
fn a_deletion_is_complete_when_the_queue_is_gone() {
    let mut host = Host::enabled();
    host.create_pair(1);
    host.answers = false;
    host.submit(0x00, &[(10, 1)]);
    assert_eq!(host.take(), None, "commands are in flight");
    assert_eq!(host.actions, [Action::Stop { sq: 1 }]);
    assert_eq!(host.run(0x00, &[(10, 1)]), (specific(1), 0), "it is being deleted");
    host.controller.stopped(1);
    host.settle();
    assert_eq!(host.take().unwrap().status, OK);
}

#[test]
fn features_are_set_read_and_reset() {
    let mut host = Host::enabled();
    // (identifier, CDW11 to set, CDW11 to read, what is read, default)
    let features: &[(u32, u32, u32, u32, u32)] = &[
        (0x01, 0x0706_0503, 0, 0x0706_0503, 0),
        (0x02, 0, 0, 0, 0),
        (0x04, 350, 0, 350, 343),
        (0x04, 1 << 20 | 280, 1 << 20, 280, 0),
        (0x06, 0, 0, 0, 1),
        (0x08, 0x0a07, 0, 0x0a07, 0),
        (0x09, 2 | 1 << 16, 2, 2 | 1 << 16, 2),
        (0x0a, 1, 0, 1, 0),
        (0x0b, 0x100, 0, 0x100, 0),
    ];
    for (id, set, get, value, default) in features {
        assert_eq!(host.run(0x0a, &[(10, *id), (11, *get)]), (OK, *default), "{id:#x} at first");
        assert_eq!(host.run(0x09, &[(10, *id), (11, *set)]), (OK, 0), "{id:#x}");
        assert_eq!(host.run(0x0a, &[(10, *id), (11, *get)]), (OK, *value), "{id:#x}");
        assert_eq!(host.run(0x0a, &[(10, *id | 1 << 8), (11, *get)]), (OK, *default), "default of {id:#x}");
        assert_eq!(host.run(0x0a, &[(10, *id | 2 << 8), (11, *get)]), (OK, *default), "saved {id:#x}");
        assert_eq!(host.run(0x0a, &[(10, *id | 3 << 8)]), (OK, 4), "capabilities of {id:#x}");
    }
    host.set(CC, 0);
    host.enable();
    for (id, _, get, _, default) in features {
        assert_eq!(host.run(0x0a, &[(10, *id), (11, *get)]), (OK, *default), "{id:#x} after a reset");
    }
}

#[test]
fn features_that_cannot_be_are_refused() {
    let mut host = Host::enabled();
    let cases: &[(u8, u32, u32, u32, u16)] = &[
        (0x09, 0, 0x00, 0, INVALID_FIELD),
        (0x09, 0, 0x03, 0, INVALID_FIELD),
        (0x09, 0, 0x0f, 5000, INVALID_FIELD),
        (0x09, 0, 0xff, 0, INVALID_FIELD),
        (0x09, 0, 0x06 | 1 << 31, 0, specific(0x0d)),
        (0x09, 0, 0x02, 1, INVALID_FIELD),
        (0x09, 0, 0x04, 2 << 20, INVALID_FIELD),
        (0x09, 0, 0x04, 3 << 16, INVALID_FIELD),
        (0x09, 1, 0x05, 1 << 16, INVALID_FIELD),
        (0x09, 2, 0x05, 0, INVALID_NAMESPACE),
        (0x09, 0, 0x07, 0xffff, INVALID_FIELD),
        (0x09, 0, 0x07, 0xffff_0000, INVALID_FIELD),
        (0x09, 0, 0x09, 5, INVALID_FIELD),
        (0x0a, 0, 0x09, 5, INVALID_FIELD),
        (0x0a, 0, 0x0f, 0, INVALID_FIELD),
        (0x0a, 0, 0x06 | 4 << 8, 0, INVALID_FIELD),
        (0x0a, 2, 0x05, 0, INVALID_NAMESPACE),
    ];
    for (opcode, nsid, cdw10, cdw11, status) in cases {
        let done = host.run(*opcode, &[(1, *nsid), (10, *cdw10), (11, *cdw11)]);
        assert_eq!(done, (*status, 0), "{opcode:#x} {cdw10:#x} {cdw11:#x}");
    }
    assert_eq!(host.run(0x09, &[(1, 1), (10, 5), (11, 100)]), (OK, 0));
}

#[test]
fn queues_are_granted_before_there_are_any() {
    let mut host = Host::enabled();
    assert_eq!(host.run(0x09, &[(10, 7), (11, 63 << 16 | 63)]), (OK, 3 << 16 | 3));
    assert_eq!(host.run(0x0a, &[(10, 7)]), (OK, 3 << 16 | 3));
    host.create_pair(1);
    assert_eq!(host.run(0x09, &[(10, 7), (11, 0)]), (SEQUENCE, 0));
}

#[test]
fn time_and_host_identifiers_are_data() {
    let mut host = Host::enabled();
    host.controller.set_time(1_000_000);
    host.write(DATA, &500_u64.to_le_bytes());
    assert_eq!(host.run(0x09, &[(6, DATA as u32), (10, 0x0e)]), (OK, 0));
    host.controller.set_time(1_000_250);
    assert_eq!(host.run(0x0a, &[(6, DATA as u32), (10, 0x0e)]), (OK, 0));
    let stamp = le64(&host.read(DATA, 8), 0);
    assert_eq!((stamp & 0xffff_ffff_ffff, stamp >> 49 & 7), (750, 1));
    host.write(DATA, &[7; 16]);
    assert_eq!(host.run(0x09, &[(6, DATA as u32), (10, 0x81), (11, 1)]), (OK, 0));
    host.write(DATA, &[0; 16]);
    assert_eq!(host.run(0x0a, &[(6, DATA as u32), (10, 0x81), (11, 1)]), (OK, 1));
    assert_eq!(host.read(DATA, 16), [7; 16]);
    host.write(DATA, &[1; 512]);
    assert_eq!(host.run(0x09, &[(6, DATA as u32), (10, 0x16)]), (OK, 0));
    assert_eq!(host.run(0x0a, &[(6, DATA as u32), (10, 0x16)]), (OK, 0));
    assert_eq!(host.read(DATA, 2), [1, 0]);
    host.write(DATA, &[2; 512]);
    assert_eq!(host.run(0x09, &[(6, DATA as u32), (10, 0x16)]), (INVALID_FIELD, 0));
    for id in [0x0e, 0x16, 0x81] {
        assert_eq!(host.run(0x09, &[(6, MEMORY as u32), (10, id)]), (DATA_TRANSFER, 0));
        assert_eq!(host.run(0x0a, &[(6, MEMORY as u32), (10, id)]), (DATA_TRANSFER, 0));
    }
}

/// Get Log Page of `len` bytes from `offset`.
fn log(host: &mut Host, page: u32, len: u32, offset: u32) -> (u16, u32) {
    host.run(0x02, &[(1, 0xffff_ffff), (6, DATA as u32), (10, (len / 4 - 1) << 16 | page), (12, offset)])
}

#[test]
fn log_pages_are_read_whole_and_in_parts() {
    let mut host = Host::enabled();
    for page in [0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x12] {
        assert_eq!(log(&mut host, page, 512, 0), (OK, 0), "{page:#x}");
    }
    assert_eq!(log(&mut host, 0x05, 4096, 0), (OK, 0));
    let effects = host.read(DATA, 4096);
    assert_eq!((le32(&effects, 4 * 6), le32(&effects, 1024 + 4), le32(&effects, 1024 + 8)), (1, 3, 1));
    assert_eq!(le32(&effects, 4 * 0x80), 0, "no Format");
    assert_eq!(log(&mut host, 0x05, 4, 1024 + 4), (OK, 0));
    assert_eq!(le32(&host.read(DATA, 4), 0), 3);
    assert_eq!(log(&mut host, 0x00, 1024, 0), (OK, 0));
    assert_eq!(le32(&host.read(DATA, 1024), 4 * 0x12), 1);
    // An error is in the error log.
    assert_eq!(host.run(0xff, &[(1, 9)]).0, INVALID_OPCODE);
    assert_eq!(log(&mut host, 0x01, 64, 0), (OK, 0));
    let entry = host.read(DATA, 64);
    assert_eq!((le64(&entry, 0), le32(&entry, 24)), (1, 9));
    assert_eq!(u16::from_le_bytes([entry[12], entry[13]]), INVALID_OPCODE << 1);
}

#[test]
fn log_pages_that_cannot_be_are_refused() {
    let mut host = Host::enabled();
    for page in [0x06, 0x0c, 0x0d, 0x70, 0x80, 0xc0] {
        assert_eq!(log(&mut host, page, 512, 0), (specific(9), 0), "{page:#x}");
    }
    assert_eq!(log(&mut host, 2, 512, 2), (INVALID_FIELD, 0));
    assert_eq!(log(&mut host, 2, 512, 516), (INVALID_FIELD, 0));
    assert_eq!(host.run(2, &[(1, 1), (6, DATA as u32), (10, 127 << 16 | 2)]), (INVALID_FIELD, 0));
    assert_eq!(host.run(2, &[(6, DATA as u32), (10, 0xffff_0002), (11, 0xffff)]), (INVALID_FIELD, 0), "over MDTS");
    assert_eq!(host.run(2, &[(6, DATA as u32), (10, 127 << 16 | 2), (14, 1 << 23)]), (INVALID_FIELD, 0));
    assert_eq!(host.run(2, &[(6, MEMORY as u32), (10, 127 << 16 | 2)]), (DATA_TRANSFER, 0));
}

#[test]
fn a_host_hears_of_changed_namespaces_once_until_it_reads_the_log() {
    let mut host = Host::enabled();
    assert_eq!(host.run(0x09, &[(10, 0x0b), (11, 0x100)]), (OK, 0));
    let event = host.submit(0x0c, &[]);
    let second = host.submit(0x0c, &[]);
    assert_eq!(host.take(), None);
    assert!(host.controller.grow(1, 2 << 20));
    host.settle();
    let done = host.take().unwrap();
    assert_eq!((done.command, done.status, done.result), (event, OK, 2 | 4 << 16));
    assert!(host.controller.attach(3, false));
    host.settle();
    assert_eq!(host.take(), None, "masked");
    assert_eq!(host.run_behind(0x02, &[(1, !0), (6, DATA as u32), (10, 1023 << 16 | 4)]), [(second, 2 | 4 << 16)]);
    let list = host.read(DATA, 12);
    assert_eq!((le32(&list, 0), le32(&list, 4), le32(&list, 8)), (1, 3, 0));
    assert_eq!(le64(&identify(&mut host, 1, 0), 0), 4096, "the new size");
    assert!(identify(&mut host, 3, 0).iter().all(|byte| *byte == 0), "detached");
    assert!(!host.controller.grow(1, 1 << 20) && !host.controller.attach(3, false) && !host.controller.grow(9, 1));
}

impl Host {
    /// Runs a command that succeeds, while others complete before or behind it; returns those.
    fn run_behind(&mut self, opcode: u8, dwords: &[(usize, u32)]) -> Vec<(u16, u32)> {
        let id = self.submit(opcode, dwords);
        let all: Vec<Completion> = std::iter::from_fn(|| self.take()).collect();
        assert!(all.iter().any(|done| done.command == id && done.status == OK));
        all.iter().filter(|done| done.command != id).map(|done| (done.command, done.result)).collect()
    }
}

#[test]
fn event_requests_are_limited_and_can_be_aborted() {
    let mut host = Host::enabled();
    let requests: Vec<u16> = (0..4).map(|_| host.submit(0x0c, &[])).collect();
    assert_eq!(host.run(0x0c, &[]), (specific(5), 0));
    let abort = host.submit(0x08, &[(10, u32::from(requests[1]) << 16)]);
    let done: Vec<_> =
        std::iter::from_fn(|| host.take()).map(|done| (done.command, done.status, done.result)).collect();
    assert_eq!(done, [(requests[1], 0x07, 0), (abort, OK, 0)]);
    assert_eq!(host.run(0x08, &[(10, 77 << 16)]), (OK, 1), "not there");
    assert_eq!(host.run(0x08, &[(10, 77 << 16 | 3)]), (OK, 1), "a command of an I/O queue is on its way");
}

#[test]
fn a_host_that_has_mapped_the_doorbells_is_polled() {
    let mut host = Host::enabled();
    host.driver.as_mut().unwrap().submit(&command(0x0a, 5, &[(10, 7)]));
    // Into the page, without an access that traps.
    host.driver.as_mut().unwrap().ring();
    host.settle();
    assert_eq!(host.take(), None);
    host.controller.poll();
    host.settle();
    assert_eq!(host.take().unwrap().status, OK);
}

#[test]
fn shadow_doorbells_are_for_pages_that_are_there_and_forgotten_by_a_reset() {
    let mut host = Host::enabled();
    for (prp1, prp2, status) in [
        (0x9_0004, 0x9_1000, INVALID_FIELD),
        (0x9_0000, 0x9_1008, INVALID_FIELD),
        (MEMORY as u32, 0x9_1000, DATA_TRANSFER),
        (0x9_0000, MEMORY as u32, DATA_TRANSFER),
    ] {
        assert_eq!(host.run(0x7c, &[(6, prp1), (8, prp2)]), (status, 0));
    }
    assert_eq!(host.run(0x7c, &[(6, 0x9_0000), (8, 0x9_1000)]), (OK, 0));
    assert!(matches!(host.actions[..], [Action::Shadow(shadow)] if shadow.events == GuestAddress(0x9_1000)));
    assert!(host.controller.shadow().is_some());
    host.set(CC, 0);
    assert_eq!(host.controller.shadow(), None);
    let mut config = config();
    config.shadow_doorbells = false;
    let mut host = Host::new(config);
    host.enable();
    assert_eq!(host.run(0x7c, &[(6, 0x9_0000), (8, 0x9_1000)]), (INVALID_OPCODE, 0));
}
