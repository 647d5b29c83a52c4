//! Requests that are longer than a core may take for one of them at a time.

mod common;

use std::time::Instant;

use common::{Core, MIB};
use softdpu_storage::*;

/// The most bytes of a memory volume that a core moves in one call.
const STEP: usize = 256 << 10;

fn core() -> Core {
    Core::new(VolumeSpec::new("long", VolumeKind::Memory { size: 64 * MIB }))
}

#[test]
fn a_long_request_on_a_memory_volume_is_copied_a_step_at_a_time() {
    let mut core = core();
    let pattern: Vec<u8> = (0..3 * MIB as usize).map(|at| (at / 512 % 251) as u8).collect();
    let long = core.request(BlockOp::Write, MIB, 3 * MIB);
    long.buffer.write_at(16, &pattern).unwrap();
    assert!(core.submit(long).is_none(), "not within the call that takes it");
    assert_eq!(core.context.outstanding(), 1);
    assert!(core.context.next_deadline().is_some_and(|at| at <= Instant::now()), "a core does not sleep meanwhile");
    let (mut done, mut polls) = (Vec::new(), 0);
    while done.is_empty() {
        core.context.poll(&mut done);
        polls += 1;
    }
    assert_eq!(polls, 3 * MIB as usize / STEP);
    assert_eq!((done[0].result, core.context.outstanding()), (Ok(()), 0));
    assert!(core.read(MIB, 3 * MIB as usize).unwrap() == pattern);
    assert_eq!(core.op(BlockOp::WriteZeroes { unmap: true }, MIB, 2 * MIB), Ok(()));
    assert!(core.read(MIB, 2 * MIB as usize).unwrap().iter().all(|byte| *byte == 0));
    assert!(core.read(3 * MIB, MIB as usize).unwrap() == pattern[2 * MIB as usize..]);
}

#[test]
fn short_requests_do_not_wait_for_long_ones_and_many_short_ones_count_as_a_long_one() {
    let mut core = core();
    let long = core.request(BlockOp::Write, 0, 3 * MIB);
    let short = core.request(BlockOp::Read, 32 * MIB, 4096);
    let (first, second) = (long.token, short.token);
    assert!(core.submit(long).is_none());
    assert_eq!(core.submit(short).map(|done| done.token), Some(second));
    assert_eq!(core.wait(std::time::Duration::from_secs(10)).map(|done| done.token), Some(first));

    let requests: Vec<_> = (0..16).map(|_| core.request(BlockOp::Read, 0, STEP as u64 / 4)).collect();
    let (mut requests, mut done) = (requests, Vec::new());
    core.context.submit(core.to, &mut requests, &mut done);
    assert_eq!(done.len(), 4, "as many as fit into a step");
    core.context.poll(&mut done);
    assert_eq!(done.len(), 8);
}

#[test]
fn a_long_request_can_be_given_up_and_ends_with_its_attachment() {
    let mut core = core();
    let (a, b) = (core.request(BlockOp::Write, 0, 3 * MIB), core.request(BlockOp::Write, 0, 3 * MIB));
    let token = a.token;
    assert!(core.submit(a).is_none() && core.submit(b).is_none());
    let mut given_up = Vec::new();
    core.context.abandon(&mut |other| other == token, &mut given_up);
    assert_eq!((given_up.as_slice(), core.context.outstanding()), (&[token][..], 1));
    core.context.detach(core.to);
    assert_eq!(core.context.outstanding(), 0);
    assert_eq!(core.volume.status().errors.abandoned, 2);
}
