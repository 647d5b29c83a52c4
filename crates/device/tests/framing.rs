//! A driver may cut a request into descriptors wherever it likes (virtio 1.3 §2.7.4): nothing depends on it.

mod rig;

use proptest::prelude::*;
use rig::{CAPACITY, Request, Run, SECTORS, parser, parser_of, run, run_cut, segment};
use softdpu_device::block::abi::{feature, request::*};
use softdpu_device::block::{BlockOp, Parsed, Status};

/// Requests that are right, almost right, or anything.
fn requests() -> impl Strategy<Value = Request> {
    let kinds = prop_oneof![
        4 => Just(IN), 4 => Just(OUT), 1 => Just(FLUSH), 1 => Just(GET_ID), 2 => Just(DISCARD), 2 => Just(WRITE_ZEROES),
        1 => any::<u32>(),
    ];
    let sectors = prop_oneof![4 => 0..SECTORS, 2 => SECTORS - 4..SECTORS + 4, 1 => any::<u64>()];
    let lens = prop_oneof![4 => (0..9usize).prop_map(|n| n * 512), 1 => Just(20), 1 => 0..2000usize];
    let segments = (0..SECTORS + 8, 0..5000u32, prop_oneof![3 => Just(0), 2 => Just(1), 1 => any::<u32>()]);
    (kinds, sectors, lens, segments, 0..10u8).prop_map(|(kind, sector, len, (at, count, flags), twist)| {
        let (given, wanted) = match kind {
            OUT => (vec![0x5a; len], 0),
            DISCARD | WRITE_ZEROES => (segment(at, count, flags), 0),
            _ => (vec![], len),
        };
        let mut request = Request::new(kind, sector, &given, wanted + 1);
        match twist {
            0 => request.readable.truncate(len % 17),
            1 => request.readable.push(0),
            2 => request.writable = 0,
            3 => request.writable += 1,
            _ => {}
        }
        request
    })
}

fn same(plain: &Run, cut: &Run) {
    assert_eq!(plain.seen(), cut.seen());
    assert_eq!(plain.written(), cut.written());
    let Parsed::Io(io) = &cut.parsed else { return };
    if matches!(io.op, BlockOp::Read | BlockOp::Write) {
        assert_eq!(cut.data_len(), io.len);
        assert_eq!(cut.buffer.len_of(0..io.data.start), 16);
    }
    for status in [Status::Ok, Status::IoErr] {
        assert_eq!(io.finish(&cut.buffer, status), plain.io().finish(&plain.buffer, status));
        assert_eq!(plain.written(), cut.written());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn every_framing_of_a_request_gives_the_same(
        request in requests(),
        cuts in prop::collection::vec(prop_oneof![0..40usize, 0..5000usize], 0..24),
        at_the_end in 0..4usize,
        scatter: bool,
        flags in prop_oneof![Just(u64::MAX), Just(!feature::FLUSH), Just(!feature::DISCARD)],
    ) {
        let requests = parser_of(|_| {}, flags);
        let total = request.readable.len() + request.writable;
        let cuts: Vec<usize> = cuts.into_iter().chain(total.checked_sub(at_the_end)).collect();
        same(&run(&requests, &request), &run_cut(&requests, &request, &cuts, scatter));
    }
}

#[test]
fn a_request_cut_into_single_bytes_is_read() {
    let requests = parser(|_| {});
    let request = Request::new(IN, 8, &[], 513);
    // More data pieces than segments allowed would be refused: the data stays whole.
    let cuts: Vec<usize> = (1..=16).collect();
    let run = run_cut(&requests, &request, &cuts, true);
    assert_eq!(run.io().offset, 4096);
    assert_eq!(run.io().data, 16..17);
}

#[test]
fn header_and_data_in_one_descriptor_and_data_and_status_in_another() {
    let requests = parser(|_| {});
    let write = run_cut(&requests, &Request::new(OUT, 0, &[7; 512], 1), &[], true);
    assert_eq!((write.data_len(), write.io().data.clone()), (512, 1..2));
    let read = run_cut(&requests, &Request::new(IN, CAPACITY / 512 - 1, &[], 513), &[16], true);
    assert_eq!((read.data_len(), read.io().data.clone()), (512, 1..2));
}
