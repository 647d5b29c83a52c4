//! I/O commands: what a volume is asked, and the status of everything that can be wrong.

use softdpu_device::nvme::{Command, Commands, DESCRIPTORS, NvmeIo, NvmeOp, NvmeParsed};

use super::*;

/// Command dwords: index and value.
type Dwords<'a> = &'a [(usize, u32)];

/// What a command came to.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    /// Operation, offset, length, durable.
    Io(&'static str, u64, u64, bool),
    Status(u16),
}

fn word(op: &NvmeOp) -> &'static str {
    match op {
        NvmeOp::Read(_) => "read",
        NvmeOp::Write(_) => "write",
        NvmeOp::Flush => "flush",
        NvmeOp::WriteZeroes { unmap: false } => "zeroes",
        NvmeOp::WriteZeroes { unmap: true } => "zeroes, deallocated",
        NvmeOp::Discard(_) => "discard",
        NvmeOp::Compare(_) => "compare",
        NvmeOp::Verify => "verify",
    }
}

fn parse(host: &Host, opcode: u8, nsid: u32, dwords: &[(usize, u32)]) -> NvmeParsed {
    let mut bytes = command(opcode, 1, dwords);
    bytes[4..8].copy_from_slice(&nsid.to_le_bytes());
    host.controller.commands().parse(&Command(bytes), &host.view)
}

fn seen(host: &Host, opcode: u8, nsid: u32, dwords: &[(usize, u32)]) -> Seen {
    match parse(host, opcode, nsid, dwords) {
        NvmeParsed::Io(NvmeIo { op, offset, len, durable, .. }) => Seen::Io(word(&op), offset, len, durable),
        NvmeParsed::Finished(status) => Seen::Status(status.0),
    }
}

const AT: (usize, u32) = (6, DATA as u32);

#[test]
fn commands_are_what_a_volume_is_asked() {
    let host = Host::enabled();
    let cases: &[(u8, u32, Dwords, Seen)] = &[
        (0x02, 1, &[AT, (10, 8), (12, 7)], Seen::Io("read", 4096, 4096, false)),
        (0x02, 3, &[AT, (10, 8), (12, 0)], Seen::Io("read", 32768, 4096, false)),
        (0x02, 1, &[AT, (10, 8), (12, 7 | 1 << 30)], Seen::Io("read", 4096, 4096, false)),
        (0x01, 1, &[AT, (10, 2047), (12, 0)], Seen::Io("write", 2047 * 512, 512, false)),
        (0x01, 1, &[AT, (10, 0), (12, 1 << 30)], Seen::Io("write", 0, 512, true)),
        (0x00, 1, &[], Seen::Io("flush", 0, 0, false)),
        (0x00, !0, &[], Seen::Io("flush", 0, 0, false)),
        (0x08, 1, &[(12, 2047)], Seen::Io("zeroes", 0, 1 << 20, false)),
        (0x08, 1, &[(10, 8), (12, 7 | 1 << 25 | 1 << 30)], Seen::Io("zeroes, deallocated", 4096, 4096, true)),
        (0x05, 1, &[AT, (10, 1), (12, 1)], Seen::Io("compare", 512, 1024, false)),
        (0x0c, 1, &[(10, 1), (12, 1)], Seen::Io("verify", 512, 1024, false)),
    ];
    for (opcode, nsid, dwords, expected) in cases {
        assert_eq!(seen(&host, *opcode, *nsid, dwords), *expected, "{opcode:#x} {dwords:x?}");
    }
}

#[test]
fn without_a_write_cache_writes_are_durable() {
    let mut host = Host::enabled();
    assert_eq!(host.run(0x09, &[(10, 6), (11, 0)]), (OK, 0));
    assert_eq!(seen(&host, 1, 1, &[AT]), Seen::Io("write", 0, 512, true));
    assert_eq!(seen(&host, 8, 1, &[]), Seen::Io("zeroes", 0, 512, true));
    assert_eq!(seen(&host, 2, 1, &[AT]), Seen::Io("read", 0, 512, false));
}

#[test]
fn commands_that_cannot_be_are_refused() {
    let mut host = Host::enabled();
    host.controller.attach(3, false);
    let range = 0x80 | DNR;
    let cases: &[(u8, u32, Dwords, u16)] = &[
        (0x04, 1, &[], INVALID_OPCODE),
        (0x0d, 1, &[], INVALID_OPCODE),
        (0x0e, 1, &[], INVALID_OPCODE),
        (0x11, 1, &[], INVALID_OPCODE),
        (0x15, 1, &[], INVALID_OPCODE),
        (0x19, 1, &[], INVALID_OPCODE),
        (0x80, 1, &[], INVALID_OPCODE),
        (0xff, 1, &[], INVALID_OPCODE),
        (0x02, 0, &[AT], INVALID_NAMESPACE),
        (0x02, 2, &[AT], INVALID_NAMESPACE),
        (0x02, !0, &[AT], INVALID_NAMESPACE),
        (0x02, 3, &[AT], INVALID_FIELD),
        (0x00, 2, &[], INVALID_NAMESPACE),
        (0x00, 3, &[], INVALID_FIELD),
        (0x02, 1, &[AT, (10, 2048)], range),
        (0x02, 1, &[AT, (10, 2047), (12, 1)], range),
        (0x02, 1, &[AT, (10, !0), (11, !0), (12, 1)], range),
        (0x01, 1, &[AT, (11, 1)], range),
        (0x05, 1, &[AT, (10, 2048)], range),
        (0x08, 1, &[(10, 1), (12, 2047)], range),
        (0x0c, 1, &[(10, 2048)], range),
        (0x02, 1, &[AT, (12, 1024)], INVALID_FIELD),
        (0x01, 1, &[AT, (12, 1024)], INVALID_FIELD),
        (0x05, 1, &[AT, (12, 1024)], INVALID_FIELD),
        (0x0c, 1, &[(12, 1024)], INVALID_FIELD),
        (0x02, 1, &[AT, (12, 1 << 29)], specific(0x81)),
        (0x01, 1, &[AT, (12, 1 << 26)], specific(0x81)),
        (0x02, 1, &[(6, MEMORY as u32)], DATA_TRANSFER),
        (0x01, 1, &[(6, MEMORY as u32 - 256), (8, MEMORY as u32)], DATA_TRANSFER),
        (0x01, 1, &[AT, (7, 1)], DATA_TRANSFER),
        (0x02, 1, &[(6, DATA as u32 + 1)], PRP_OFFSET),
    ];
    for (opcode, nsid, dwords, expected) in cases {
        let found = seen(&host, *opcode, *nsid, dwords);
        assert_eq!(found, Seen::Status(*expected), "{opcode:#x} of {nsid:#x} {dwords:x?}");
    }
    for fuse in [1, 2] {
        let mut bytes = command(0x05, 1, &[(1, 1), AT]);
        bytes[1] = fuse;
        let parsed = host.controller.commands().parse(&Command(bytes), &host.view);
        assert!(matches!(parsed, NvmeParsed::Finished(status) if status.0 == INVALID_FIELD));
    }
}

#[test]
fn a_read_only_namespace_refuses_what_writes() {
    let mut config = config();
    config.namespaces[0].read_only = true;
    let mut host = Host::new(config);
    host.enable();
    let protected = Seen::Status(0x20 | DNR);
    assert_eq!(seen(&host, 1, 1, &[AT]), protected);
    assert_eq!(seen(&host, 8, 1, &[]), protected);
    assert_eq!(seen(&host, 9, 1, &[AT, (11, 4)]), protected);
    assert_eq!(seen(&host, 9, 1, &[AT, (11, 3)]), Seen::Status(OK), "hints");
    assert!(matches!(seen(&host, 2, 1, &[AT]), Seen::Io("read", ..)));
    assert!(matches!(seen(&host, 0, 1, &[]), Seen::Io("flush", ..)));
}

/// Writes ranges of Dataset Management: (blocks, first block).
fn ranges(host: &Host, ranges: &[(u32, u64)]) {
    let bytes: Vec<u8> = ranges
        .iter()
        .flat_map(|(blocks, first)| [&0_u32.to_le_bytes()[..], &blocks.to_le_bytes(), &first.to_le_bytes()].concat())
        .collect();
    host.write(DATA, &bytes);
}

#[test]
fn deallocation_is_of_ranges_neighbours_joined() {
    let host = Host::enabled();
    ranges(&host, &[(8, 0), (8, 8), (0, 99), (1, 100)]);
    let NvmeParsed::Io(io) = parse(&host, 9, 1, &[AT, (10, 3), (11, 4)]) else { panic!("refused") };
    assert!(matches!(&io.op, NvmeOp::Discard(list) if *list == [(0, 8192), (51200, 512)]), "{:?}", io.op);
    assert_eq!((io.len, io.nsid), (8704, 1));
    ranges(&host, &[(0, 0)]);
    assert_eq!(seen(&host, 9, 1, &[AT, (11, 4)]), Seen::Status(OK), "nothing");
    ranges(&host, &[(8, 0), (1, 2048)]);
    assert_eq!(seen(&host, 9, 1, &[AT, (10, 1), (11, 4)]), Seen::Status(0x80 | DNR));
    assert_eq!(seen(&host, 9, 1, &[(6, MEMORY as u32), (10, 255), (11, 4)]), Seen::Status(DATA_TRANSFER));
    let mut config = config();
    config.namespaces[0].discard = false;
    let mut host = Host::new(config);
    host.enable();
    ranges(&host, &[(8, 0)]);
    assert_eq!(seen(&host, 9, 1, &[AT, (11, 4)]), Seen::Status(OK), "a volume that cannot");
}

/// The guest memory of a read of `blocks` blocks: its pieces' lengths, by the marks that are in it.
fn read_of(host: &Host, blocks: u32, bytes: [u8; 64]) -> Result<Vec<u8>, u16> {
    let mut bytes = bytes;
    bytes[0] = 2;
    bytes[4] = 1;
    bytes[48..52].copy_from_slice(&(blocks - 1).to_le_bytes());
    match host.controller.commands().parse(&Command(bytes), &host.view) {
        NvmeParsed::Io(NvmeIo { op: NvmeOp::Read(buffer), .. }) => {
            assert_eq!(buffer.len(), u64::from(blocks) * 512);
            let mut marks = vec![0; buffer.len() as usize];
            buffer.read_at(0, &mut marks).unwrap();
            Ok(marks.chunks(512).map(|block| block[0]).collect())
        }
        NvmeParsed::Finished(status) => Err(status.0),
        other => panic!("{other:?}"),
    }
}

/// Each page has its number in all of its bytes.
fn mark_pages(host: &Host) {
    for page in 0..MEMORY / 4096 {
        host.write(page * 4096, &[page as u8; 4096]);
    }
}

fn prps(prp1: u64, prp2: u64) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[24..32].copy_from_slice(&prp1.to_le_bytes());
    bytes[32..40].copy_from_slice(&prp2.to_le_bytes());
    bytes
}

fn list(host: &Host, at: u64, entries: &[u64]) {
    let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    host.write(at, &bytes);
}

#[test]
fn prps_are_pages_in_any_order_and_lists_go_on() {
    let host = Host::enabled();
    mark_pages(&host);
    assert_eq!(read_of(&host, 2, prps(0x8_0000, 0)).unwrap(), [0x80, 0x80]);
    assert_eq!(read_of(&host, 2, prps(0x8_0e00, 0x4_3000)).unwrap(), [0x80, 0x43]);
    assert_eq!(read_of(&host, 16, prps(0x8_0000, 0x2_0000)).unwrap()[8..], [0x20; 8]);
    // A list in the middle of a page.
    list(&host, 0xc_0100, &[0x3_0000, 0x2_0000]);
    let found = read_of(&host, 24, prps(0x8_0000, 0xc_0100)).unwrap();
    assert_eq!((found[0], found[8], found[16]), (0x80, 0x30, 0x20));
    // A list whose last entry names the next one.
    list(&host, 0xc_0ff0, &[0x3_0000, 0xc_1000]);
    list(&host, 0xc_1000, &[0x4_0000, 0x5_0000]);
    let found = read_of(&host, 32, prps(0x8_0000, 0xc_0ff0)).unwrap();
    assert_eq!((found[8], found[16], found[24]), (0x30, 0x40, 0x50));
    // Just as many as fit: no pointer.
    list(&host, 0xc_0ff0, &[0x3_0000, 0x6_0000]);
    let found = read_of(&host, 24, prps(0x8_0000, 0xc_0ff0)).unwrap();
    assert_eq!((found[8], found[16]), (0x30, 0x60));
}

#[test]
fn prps_that_make_no_sense_are_refused_and_loops_end() {
    let host = Host::enabled();
    let gone = MEMORY;
    for (prp1, prp2, blocks, status) in [
        (0x8_0001, 0, 1, PRP_OFFSET),
        (0x8_0000, 0x4_0200, 16, PRP_OFFSET),
        (0x8_0000, gone, 16, DATA_TRANSFER),
        (gone, 0, 1, DATA_TRANSFER),
        (!3, 0, 1, DATA_TRANSFER),
        (!0xfff, 0x8_0000, 16, DATA_TRANSFER),
        (0x8_0000, 0xc_0004, 24, PRP_OFFSET),
        (0x8_0000, gone, 24, DATA_TRANSFER),
        (0x8_0000, !7, 24, DATA_TRANSFER),
    ] {
        assert_eq!(read_of(&host, blocks, prps(prp1, prp2)), Err(status), "{prp1:#x} {prp2:#x}");
    }
    list(&host, 0xc_0000, &[0x3_0000, 0x2_0200]);
    assert_eq!(read_of(&host, 24, prps(0x8_0000, 0xc_0000)), Err(PRP_OFFSET));
    list(&host, 0xc_0000, &[0x3_0000, gone]);
    assert_eq!(read_of(&host, 24, prps(0x8_0000, 0xc_0000)), Err(DATA_TRANSFER));
    // Pointers to lists that do not begin a page: the one that would loop for ever without data among them.
    list(&host, 0xc_0ff8, &[0xc_0ff8]);
    assert_eq!(read_of(&host, 24, prps(0x8_0000, 0xc_0ff8)), Err(PRP_OFFSET));
    list(&host, 0xc_0ff8, &[0xc_1008]);
    assert_eq!(read_of(&host, 24, prps(0x8_0000, 0xc_0ff8)), Err(PRP_OFFSET));
    // A list that is itself the data, and goes on in itself: as long as the transfer.
    let all: Vec<u64> = vec![0xc_0000; 512];
    list(&host, 0xc_0000, &all);
    assert_eq!(read_of(&host, 1024, prps(0x8_0000, 0xc_0000)).unwrap().len(), 1024);
}

/// An SGL descriptor.
fn descriptor(kind: u8, address: u64, len: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&address.to_le_bytes());
    bytes[8..12].copy_from_slice(&len.to_le_bytes());
    bytes[15] = kind << 4;
    bytes
}

fn sgl(first: [u8; 16]) -> [u8; 64] {
    let mut bytes = [0; 64];
    bytes[1] = 1 << 6;
    bytes[24..40].copy_from_slice(&first);
    bytes
}

const DATA_BLOCK: u8 = 0;
const SEGMENT: u8 = 2;
const LAST: u8 = 3;

#[test]
fn sgls_are_blocks_of_any_size_in_segments() {
    let host = Host::enabled();
    mark_pages(&host);
    assert_eq!(read_of(&host, 2, sgl(descriptor(DATA_BLOCK, 0x8_0003, 1024))).unwrap(), [0x80, 0x80]);
    let blocks =
        [descriptor(DATA_BLOCK, 0x3_0000, 100), descriptor(DATA_BLOCK, 0, 0), descriptor(DATA_BLOCK, 0x4_0000, 412)];
    host.write(0xc_0001, &blocks.concat());
    assert_eq!(read_of(&host, 1, sgl(descriptor(LAST, 0xc_0001, 48))).unwrap(), [0x30]);
    let first = [descriptor(DATA_BLOCK, 0x5_0000, 512), descriptor(LAST, 0xc_0001, 48)];
    host.write(0xc_1000, &first.concat());
    assert_eq!(read_of(&host, 2, sgl(descriptor(SEGMENT, 0xc_1000, 32))).unwrap(), [0x50, 0x30]);
}

#[test]
fn sgls_that_make_no_sense_are_refused_and_loops_end() {
    let host = Host::enabled();
    const SGL_SEGMENT: u16 = 0x0d | DNR;
    const SGL_COUNT: u16 = 0x0e | DNR;
    const SGL_LENGTH: u16 = 0x0f | DNR;
    const SGL_TYPE: u16 = 0x11 | DNR;
    for kind in [1, 4, 5, 6, 15] {
        assert_eq!(read_of(&host, 1, sgl(descriptor(kind, DATA, 512))), Err(SGL_TYPE), "type {kind}");
    }
    let mut sub_type = descriptor(DATA_BLOCK, DATA, 512);
    sub_type[15] = 1;
    for (first, status) in [
        (sub_type, SGL_TYPE),
        (descriptor(DATA_BLOCK, DATA, 511), SGL_LENGTH),
        (descriptor(DATA_BLOCK, DATA, 513), SGL_LENGTH),
        (descriptor(DATA_BLOCK, MEMORY, 512), DATA_TRANSFER),
        (descriptor(DATA_BLOCK, u64::MAX, 512), DATA_TRANSFER),
        (descriptor(LAST, DATA, 0), SGL_SEGMENT),
        (descriptor(LAST, DATA, 15), SGL_SEGMENT),
        (descriptor(SEGMENT, DATA, 17), SGL_SEGMENT),
        (descriptor(LAST, MEMORY, 16), DATA_TRANSFER),
        (descriptor(LAST, u64::MAX - 7, 16), DATA_TRANSFER),
        (descriptor(LAST, DATA, 16 * (DESCRIPTORS as u32 + 1)), SGL_COUNT),
    ] {
        assert_eq!(read_of(&host, 1, sgl(first)), Err(status), "{first:x?}");
    }
    // A segment without another behind it, one in the middle, and one in a last segment.
    host.write(DATA, &descriptor(DATA_BLOCK, 0x9_0000, 512));
    assert_eq!(read_of(&host, 1, sgl(descriptor(SEGMENT, DATA, 16))), Err(SGL_SEGMENT));
    host.write(DATA, &[descriptor(LAST, DATA, 16), descriptor(DATA_BLOCK, 0x9_0000, 512)].concat());
    assert_eq!(read_of(&host, 1, sgl(descriptor(SEGMENT, DATA, 32))), Err(SGL_SEGMENT));
    host.write(DATA, &descriptor(SEGMENT, DATA, 16));
    assert_eq!(read_of(&host, 1, sgl(descriptor(LAST, DATA, 16))), Err(SGL_SEGMENT));
    // A segment that goes on in itself.
    assert_eq!(read_of(&host, 1, sgl(descriptor(SEGMENT, DATA, 16))), Err(SGL_COUNT));
    let mut both = sgl(descriptor(DATA_BLOCK, DATA, 512));
    both[1] = 3 << 6;
    assert_eq!(read_of(&host, 1, both), Err(INVALID_FIELD), "PSDT 3");
}

#[test]
fn a_namespace_that_grows_can_be_read_at_once() {
    let mut host = Host::enabled();
    let commands: Commands = host.controller.commands();
    assert_eq!(seen(&host, 2, 1, &[AT, (10, 2048)]), Seen::Status(0x80 | DNR));
    host.controller.grow(1, 2 << 20);
    let bytes = command(2, 1, &[(1, 1), AT, (10, 2048)]);
    assert!(matches!(commands.parse(&Command(bytes), &host.view), NvmeParsed::Io(_)));
}
