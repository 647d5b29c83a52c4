//! virtio 1.3 §5.2.6 as tables: a request in, what its driver and the storage see out.

mod rig;

use std::sync::Arc;

use rig::{CAPACITY, Request, SECTORS, Seen, UNTOUCHED, parser, parser_of, run, run_cut, segment};
use softdpu_device::block::Status::{IoErr, Ok as Good, Unsupp};
use softdpu_device::block::abi::{feature, request::*};
use softdpu_device::block::{
    BlockConfig, BlockError, BlockOp, Cache, Parsed, Requests, Status, WriteZeroesLimits, mark_dirty,
};
use softdpu_memory::{DirtyBitmap, GuestAddress, GuestBuffer, Mapping};

const ALL: u64 = u64::MAX;

fn io(op: BlockOp, offset: u64, len: u64) -> Seen {
    Seen::Io(op, offset, len, false)
}

fn refused(status: Status) -> Seen {
    Seen::Answer(status, 1)
}

/// Runs a table; each row is checked for what is seen and for the status byte in guest memory.
fn check(requests: &Requests, rows: &[(&str, Request, Seen)]) {
    for (name, request, expected) in rows {
        let run = run(requests, request);
        assert_eq!(run.seen(), *expected, "{name}");
        let status = run.written().last().copied();
        match expected {
            Seen::Io(..) => assert_eq!(status, Some(UNTOUCHED), "{name}: no status before the work is done"),
            Seen::Answer(answer, _) => assert_eq!(status, Some(*answer as u8), "{name}: status byte"),
            Seen::Broken => {}
        }
        if *expected == refused(IoErr) || *expected == refused(Unsupp) {
            let written = run.written();
            let data = &written[..written.len() - 1];
            assert!(data.iter().all(|byte| *byte == UNTOUCHED), "{name}: a refused request writes no data");
        }
    }
}

fn read(sector: u64, len: usize) -> Request {
    Request::new(IN, sector, &[], len + 1)
}

fn write(sector: u64, len: usize) -> Request {
    Request::new(OUT, sector, &vec![0x5a; len], 1)
}

#[test]
fn reads_and_writes() {
    check(
        &parser(|_| {}),
        &[
            ("first sector", read(0, 512), io(BlockOp::Read, 0, 512)),
            ("a page", read(8, 4096), io(BlockOp::Read, 4096, 4096)),
            ("last sector", read(SECTORS - 1, 512), io(BlockOp::Read, CAPACITY - 512, 512)),
            ("write a page", write(8, 4096), io(BlockOp::Write, 4096, 4096)),
            ("write the last sector", write(SECTORS - 1, 512), io(BlockOp::Write, CAPACITY - 512, 512)),
            ("nothing to read", read(0, 0), Seen::Answer(Good, 1)),
            ("nothing to write", write(0, 0), Seen::Answer(Good, 1)),
            ("nothing at the end", read(SECTORS, 0), Seen::Answer(Good, 1)),
            ("nothing beyond the end", read(SECTORS + 1, 0), refused(IoErr)),
            ("one sector beyond", read(SECTORS, 512), refused(IoErr)),
            ("half inside", read(SECTORS - 1, 1024), refused(IoErr)),
            ("write half inside", write(SECTORS - 1, 1024), refused(IoErr)),
            ("far beyond", write(1 << 40, 512), refused(IoErr)),
            ("byte offset overflows", read(1 << 55, 512), refused(IoErr)),
            ("byte offset overflows to 0", write(1 << 55, 512), refused(IoErr)),
            ("largest sector", read(u64::MAX, 512), refused(IoErr)),
            ("end overflows", read(u64::MAX / 512, 1024), refused(IoErr)),
            ("a byte short of a sector", read(0, 511), refused(IoErr)),
            ("a byte more than a sector", write(0, 513), refused(IoErr)),
            ("a read that gives data", Request::new(IN, 0, &[0; 512], 513), refused(IoErr)),
            ("a read that only gives data", Request::new(IN, 0, &[0; 512], 1), refused(IoErr)),
            ("a write that wants data", Request::new(OUT, 0, &[0; 512], 513), refused(IoErr)),
            ("a write that only wants data", Request::new(OUT, 0, &[], 513), refused(IoErr)),
        ],
    );
}

#[test]
fn flush_and_its_data_and_sector_are_ignored() {
    check(
        &parser(|_| {}),
        &[
            ("flush", Request::new(FLUSH, 0, &[], 1), io(BlockOp::Flush, 0, 0)),
            ("flush with a sector", Request::new(FLUSH, u64::MAX, &[], 1), io(BlockOp::Flush, 0, 0)),
            ("flush with data", Request::new(FLUSH, 0, &[1; 100], 101), io(BlockOp::Flush, 0, 0)),
        ],
    );
    check(
        &parser_of(|_| {}, ALL & !feature::FLUSH),
        &[("flush that was not negotiated", Request::new(FLUSH, 0, &[], 1), refused(Unsupp))],
    );
}

#[test]
fn get_id() {
    let requests = parser(|_| {});
    check(
        &requests,
        &[
            ("20 bytes", Request::new(GET_ID, 0, &[], 21), Seen::Answer(Good, 21)),
            ("more room", Request::new(GET_ID, 0, &[], 513), Seen::Answer(Good, 21)),
            ("19 bytes", Request::new(GET_ID, 0, &[], 20), refused(IoErr)),
            ("no room", Request::new(GET_ID, 0, &[], 1), refused(IoErr)),
            ("given, not wanted", Request::new(GET_ID, 0, &[0; 20], 1), refused(IoErr)),
        ],
    );
    let run = run(&requests, &Request::new(GET_ID, 0, &[], 21));
    assert_eq!(run.written(), b"disk-0123456789\0\0\0\0\0\0", "padded with NUL, then status OK");
}

#[test]
fn discard() {
    let one = |sector, sectors, flags| Request::new(DISCARD, 0, &segment(sector, sectors, flags), 1);
    let limit = |config: &mut BlockConfig| config.discard.as_mut().unwrap().max_sectors = 64;
    check(
        &parser(limit),
        &[
            ("a range", one(8, 16, 0), io(BlockOp::Discard, 4096, 8192)),
            ("as many as allowed", one(0, 64, 0), io(BlockOp::Discard, 0, 32768)),
            ("more than allowed", one(0, 65, 0), refused(IoErr)),
            ("nothing", one(0, 0, 0), Seen::Answer(Good, 1)),
            ("to the end", one(SECTORS - 1, 1, 0), io(BlockOp::Discard, CAPACITY - 512, 512)),
            ("beyond the end", one(SECTORS - 1, 2, 0), refused(IoErr)),
            ("overflow", one(u64::MAX, 1, 0), refused(IoErr)),
            ("most sectors", one(0, u32::MAX, 0), refused(IoErr)),
            ("unmap", one(0, 8, 1), refused(Unsupp)),
            ("reserved flag", one(0, 8, 2), refused(Unsupp)),
            ("last reserved flag", one(0, 8, 1 << 31), refused(Unsupp)),
            ("no segment", Request::new(DISCARD, 0, &[], 1), refused(IoErr)),
            ("15 bytes", Request::new(DISCARD, 0, &segment(0, 8, 0)[..15], 1), refused(IoErr)),
            ("17 bytes", Request::new(DISCARD, 0, &[0; 17], 1), refused(IoErr)),
            (
                "two segments",
                Request::new(DISCARD, 0, &[segment(0, 8, 0), segment(8, 8, 0)].concat(), 1),
                refused(IoErr),
            ),
            ("wants data", Request::new(DISCARD, 0, &segment(0, 8, 0), 17), refused(IoErr)),
        ],
    );
    let unsupported = [("not negotiated", one(0, 8, 0), refused(Unsupp))];
    check(&parser_of(|_| {}, ALL & !feature::DISCARD), &unsupported);
    check(&parser(|config| config.discard = None), &unsupported);
}

#[test]
fn write_zeroes() {
    let one = |sector, sectors, flags| Request::new(WRITE_ZEROES, 0, &segment(sector, sectors, flags), 1);
    let zeroes = |unmap| BlockOp::WriteZeroes { unmap };
    check(
        &parser(|_| {}),
        &[
            ("a range", one(8, 16, 0), io(zeroes(false), 4096, 8192)),
            ("may be deallocated", one(8, 16, 1), io(zeroes(true), 4096, 8192)),
            ("reserved flag", one(0, 8, 2), refused(Unsupp)),
            ("reserved flag beside unmap", one(0, 8, 3), refused(Unsupp)),
            ("beyond the end", one(SECTORS, 1, 0), refused(IoErr)),
            ("no segment", Request::new(WRITE_ZEROES, 0, &[], 1), refused(IoErr)),
            ("two segments", Request::new(WRITE_ZEROES, 0, &[0; 32], 1), refused(IoErr)),
        ],
    );
    check(
        &parser(|config| config.write_zeroes = Some(WriteZeroesLimits { max_sectors: 8, may_unmap: false })),
        &[
            ("unmap permits, it does not demand", one(0, 8, 1), io(zeroes(false), 0, 4096)),
            ("more than allowed", one(0, 9, 0), refused(IoErr)),
        ],
    );
    let unsupported = [("not negotiated", one(0, 8, 0), refused(Unsupp))];
    check(&parser_of(|_| {}, ALL & !feature::WRITE_ZEROES), &unsupported);
    check(&parser(|config| config.write_zeroes = None), &unsupported);
}

#[test]
fn every_other_type_is_unsupported() {
    let requests = parser(|_| {});
    // 2: SCSI command of legacy devices; 10, 14: lifetime, secure erase; 15 to 26: zoned; bit 31: legacy barrier.
    let known = [IN, OUT, FLUSH, GET_ID, DISCARD, WRITE_ZEROES];
    for kind in (0..64).chain([0x100, 0x8000_0000, 0x8000_0001, u32::MAX]).filter(|kind| !known.contains(kind)) {
        for (data, writable) in [(0, 1), (512, 1), (0, 513), (16, 17)] {
            check(&requests, &[("unknown type", Request::new(kind, 0, &vec![0; data], writable), refused(Unsupp))]);
        }
    }
}

#[test]
fn a_header_that_is_too_short_is_an_io_error() {
    let requests = parser(|_| {});
    for len in 0..16 {
        let request = Request { readable: vec![0; len], writable: 513 };
        check(&requests, &[("short header", request, refused(IoErr))]);
    }
}

#[test]
fn a_request_without_a_status_byte_breaks_the_queue() {
    let requests = parser(|_| {});
    for len in [1, 15, 16, 17, 528] {
        let run = run(&requests, &Request { readable: vec![0; len], writable: 0 });
        assert_eq!(run.parsed, Parsed::Broken(BlockError::NoStatus { len: len as u64 }));
    }
    let empty = run(&requests, &Request { readable: vec![], writable: 0 });
    assert_eq!(empty.seen(), Seen::Broken);
}

#[test]
fn a_read_only_device_writes_nothing() {
    let rows = [
        ("read", read(0, 512), io(BlockOp::Read, 0, 512)),
        ("flush", Request::new(FLUSH, 0, &[], 1), io(BlockOp::Flush, 0, 0)),
        ("write", write(0, 512), refused(IoErr)),
        ("empty write", write(0, 0), refused(IoErr)),
        ("malformed write", write(0, 5), refused(IoErr)),
        ("discard", Request::new(DISCARD, 0, &segment(0, 8, 0), 1), refused(Unsupp)),
        ("write zeroes", Request::new(WRITE_ZEROES, 0, &segment(0, 8, 0), 1), refused(Unsupp)),
    ];
    check(&parser(|config| config.read_only = true), &rows);
    // §5.2.6.2 says "if offered": a driver that did not accept RO is refused all the same.
    check(&parser_of(|config| config.read_only = true, ALL & !feature::RO), &rows);
}

#[test]
fn requests_are_whole_blocks() {
    let one = |kind, sector, sectors| Request::new(kind, 0, &segment(sector, sectors, 0), 1);
    check(
        &parser(|config| config.block_size = 4096),
        &[
            ("a block", read(8, 4096), io(BlockOp::Read, 4096, 4096)),
            ("part of a block", read(8, 512), refused(IoErr)),
            ("a block that begins inside one", write(1, 4096), refused(IoErr)),
            ("discard part of a block", one(DISCARD, 0, 4), refused(IoErr)),
            ("discard a block", one(DISCARD, 8, 8), io(BlockOp::Discard, 4096, 4096)),
            ("zero part of a block", one(WRITE_ZEROES, 4, 8), refused(IoErr)),
        ],
    );
}

#[test]
fn a_write_is_durable_when_its_driver_could_not_make_it_so() {
    let durable = |requests: &Requests| run(requests, &write(0, 512)).io().durable;
    let through = |config: &mut BlockConfig| config.write_cache = Cache::WriteThrough;
    for (negotiated, write_back, write_through) in [
        (ALL, false, true),
        (ALL & !feature::CONFIG_WCE, false, true),
        (ALL & !feature::FLUSH, true, true),
        (ALL & !feature::FLUSH & !feature::CONFIG_WCE, true, true),
    ] {
        assert_eq!(durable(&parser_of(|_| {}, negotiated)), write_back, "write-back, {negotiated:#x}");
        assert_eq!(durable(&parser_of(through, negotiated)), write_through, "write-through, {negotiated:#x}");
    }
    let requests = parser(through);
    let zeroes = Request::new(WRITE_ZEROES, 0, &segment(0, 8, 0), 1);
    assert!(run(&requests, &zeroes).io().durable);
    assert!(!run(&requests, &read(0, 512)).io().durable, "a read has nothing to make durable");
}

#[test]
fn segments_are_limited_as_advertised() {
    let few = parser(|config| config.seg_max = 2);
    // Memory has two regions, so one segment may be two pieces; see the parser.
    let cut = |count: usize| (0..=count).map(|i| 16 + i * 512).collect::<Vec<_>>();
    let scattered = |requests: &Requests, segments| run_cut(requests, &read(0, segments * 512), &cut(segments), true);
    assert_eq!(scattered(&few, 2).seen(), io(BlockOp::Read, 0, 1024));
    assert_eq!(scattered(&few, 4).seen(), refused(IoErr));
    let unaware = parser_of(|config| config.seg_max = 2, ALL & !feature::SEG_MAX);
    assert_eq!(scattered(&unaware, 4).seen(), io(BlockOp::Read, 0, 2048));

    let small = parser(|config| config.size_max = Some(4096));
    assert_eq!(run(&small, &read(0, 4096)).seen(), io(BlockOp::Read, 0, 4096));
    assert_eq!(run(&small, &read(0, 4608)).seen(), refused(IoErr));
    assert_eq!(run_cut(&small, &read(0, 8192), &[16, 16 + 4096, 16 + 8192], true).seen(), io(BlockOp::Read, 0, 8192));
    let unaware = parser_of(|config| config.size_max = Some(4096), ALL & !feature::SIZE_MAX);
    assert_eq!(run(&unaware, &read(0, 4608)).seen(), io(BlockOp::Read, 0, 4608));
}

#[test]
fn the_used_length_counts_what_was_written() {
    let requests = parser(|_| {});
    for (request, status, used) in [
        (read(0, 4096), Good, 4097),
        (read(0, 4096), IoErr, 1),
        (write(0, 4096), Good, 1),
        (write(0, 4096), IoErr, 1),
        (Request::new(FLUSH, 0, &[], 1), Good, 1),
        (Request::new(DISCARD, 0, &segment(0, 8, 0), 1), Unsupp, 1),
    ] {
        let run = run(&requests, &request);
        assert_eq!(run.io().finish(&run.buffer, status), used, "{request:?}");
        let written = run.written();
        let (byte, data) = written.split_last().unwrap();
        assert_eq!(*byte, status as u8);
        assert!(data.iter().all(|byte| *byte == UNTOUCHED), "finishing touches the status only");
    }
}

#[test]
fn the_header_is_read_once() {
    let requests = parser(|_| {});
    let run = run(&requests, &read(8, 4096));
    run.buffer.write_at(0, &[0xff; 16]).unwrap();
    assert_eq!(run.seen(), io(BlockOp::Read, 4096, 4096));
    assert_eq!(run.io().finish(&run.buffer, Good), 4097);
}

#[test]
fn what_was_written_to_the_guest_is_reported_dirty() {
    let view = rig::memory();
    let bitmap = Arc::new(DirtyBitmap::new(Mapping::heap(4096), 0, 4096).unwrap());
    let tracked = view.with_dirty([Arc::clone(&bitmap)]);
    let mut buffer = GuestBuffer::new(&view);
    // Header in page 1, data in pages 3 and 4, status in page 6.
    for (address, len) in [(0x1000, 16), (0x3e00, 1024), (0x6000, 1)] {
        buffer.append(GuestAddress(address), len).unwrap();
    }
    let marked = || (0..32).filter(|page| bitmap.is_marked(GuestAddress(page * 0x1000))).collect::<Vec<_>>();
    let Parsed::Io(io) = parser(|_| {}).parse(&mut buffer, 1) else { panic!("a read of two sectors") };
    mark_dirty(&buffer, &tracked, 0);
    assert_eq!(marked(), [6], "a status alone");
    mark_dirty(&buffer, &tracked, io.to_guest());
    assert_eq!(marked(), [3, 4, 6], "data and status, not the header");
}
