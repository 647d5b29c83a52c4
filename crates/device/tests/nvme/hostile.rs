//! Hosts that do what no driver does.

use proptest::prelude::*;

use super::*;

#[test]
fn accesses_of_other_widths_and_places_change_nothing_and_read_as_zero() {
    let mut host = Host::enabled();
    let before = host.controller.save();
    for offset in [0x14, 0x15, 0x16, 0x1000, 0x1001, 0x2000] {
        for len in [0, 1, 2, 3, 5, 6, 7, 9, 16, 4096] {
            host.controller.write(offset, &vec![0xff; len]);
        }
    }
    for offset in [0x00, 0x04, 0x08, 0x1c, 0x20, 0x38, 0x3c, 0x60, 0x68, 0x100, 0xfff, 0xffc, 0x15, 0x17] {
        host.controller.write(offset, &[0xff; 4]);
    }
    assert_eq!(host.controller.save(), before);
    for offset in [0x20, 0x38, 0x40, 0x6c, 0x100, 0xffc, 0x1000, 0x1ffc, 0x2000, u64::MAX - 3] {
        assert_eq!(host.get(offset), 0, "{offset:#x}");
    }
    let mut long = vec![0xee; 5000];
    host.controller.read(0xffe, &mut long);
    assert!(long.iter().all(|byte| *byte == 0));
}

#[test]
fn doorbells_that_make_no_sense_are_events_and_change_nothing() {
    let mut host = Host::enabled();
    host.create_pair(1);
    // (doorbell, value, event information)
    let cases: &[(u64, u32, u32)] = &[
        (2 * 2, 0, 0),
        (2 * 2 + 1, 0, 0),
        (2 * 5, 1, 0),
        (2 * 64, 1, 0),
        (2 * 511 + 1, 1, 0),
        (2 * 512, 1, 0),
        (2 * 0x10000, 1, 0),
        (2, 8, 1),
        (2, u32::MAX, 1),
        (3, 8, 1),
        (0, 16, 1),
        (1, 0x1_0000, 1),
    ];
    for (index, value, info) in cases {
        let request = host.submit(0x0c, &[]);
        host.set(0x1000 + 4 * index, *value);
        let done = host.take().unwrap_or_else(|| panic!("no event for doorbell {index} = {value}"));
        assert_eq!((done.command, done.status, done.result), (request, OK, info << 8 | 1 << 16));
        // Read the error log, so that the next is told.
        assert_eq!(host.run(2, &[(1, !0), (6, DATA as u32), (10, 15 << 16 | 1)]), (OK, 0));
    }
    assert_eq!(host.get(CSTS), 1);
    assert_eq!((host.doorbells().load(2), host.doorbells().load(3)), (0, 0));
    host.create_pair(2);
}

#[test]
fn an_admin_tail_over_memory_that_is_not_there_does_nothing_worse_than_fail() {
    let mut host = Host::enabled();
    // Garbage in each entry: every command is refused or done, none is lost.
    for at in 0..u64::from(ENTRIES) {
        host.write(ASQ + at * 64, &[0xa5; 64]);
    }
    host.set(0x1000, u32::from(ENTRIES) - 1);
    let done = std::iter::from_fn(|| host.take()).count();
    assert_eq!(done, usize::from(ENTRIES) - 1);
    assert_eq!(host.get(CSTS), 1);
}

#[test]
fn an_admin_completion_queue_that_is_never_read_stops_the_admin_queue_and_nothing_else() {
    let mut host = Host::enabled();
    for _ in 0..3 {
        for _ in 0..ENTRIES - 1 {
            if !host.driver.as_mut().unwrap().submit(&command(0x06, 1, &[(6, DATA as u32), (10, 1)])) {
                break;
            }
        }
        host.ring();
    }
    assert_eq!(host.get(CSTS), 1);
    let done = std::iter::from_fn(|| host.take()).count();
    assert_eq!(done, usize::from(ENTRIES) - 1);
    assert_eq!(host.run(0x06, &[(6, DATA as u32), (10, 1)]), (OK, 0));
}

#[test]
fn a_head_that_makes_no_sense_breaks_the_controller_until_it_is_reset() {
    let mut host = Host::enabled();
    for _ in 0..ENTRIES - 1 {
        host.driver.as_mut().unwrap().submit(&command(0x0a, 1, &[(10, 1)]));
    }
    host.ring();
    // Fifteen were posted, and read; one more was posted behind them.
    host.set(0x1004, 15);
    host.set(0x1000, 0);
    host.set(0x1004, 3);
    host.set(0x1000, 15);
    assert_eq!(host.get(CSTS) & 2, 2, "{:?}", host.controller.failure());
    assert!(host.controller.failure().unwrap().contains("completion queue head"), "{:?}", host.controller.failure());
    host.set(CC, 0);
    assert_eq!(host.get(CSTS), 0);
    host.enable();
    host.create_pair(1);
}

#[test]
fn a_queue_that_broke_is_a_fatal_status_and_doorbells_mean_nothing_then() {
    let mut host = Host::enabled();
    host.create_pair(1);
    host.controller.queue_broken(1, "its tail is 99");
    assert_eq!(host.get(CSTS), 3);
    assert_eq!(host.controller.failure(), Some("I/O queue 1: its tail is 99"));
    host.actions.clear();
    host.settle();
    host.actions.clear();
    host.set(0x1008, 1);
    assert!(host.actions.is_empty(), "{:?}", host.actions);
    host.set(CC, 0);
    host.enable();
}

/// An access of a host: mostly registers that there are, and queues that make some sense.
fn access() -> impl Strategy<Value = (u64, u32)> {
    let register =
        prop::sample::select(vec![0x00, 0x0c, 0x10, 0x14, 0x1c, 0x24, 0x28, 0x2c, 0x30, 0x34, 0x1000, 0x1004]);
    let value = prop_oneof![
        Just(ENABLE),
        Just(0),
        Just(ENABLE | 1 << 14),
        Just(0x000f_000f),
        Just(ASQ as u32),
        Just(ACQ as u32),
        0..40u32,
        any::<u32>(),
    ];
    prop_oneof![4 => (register, value.clone()), 1 => (0x1000..0x1100u64, value.clone()), 1 => (any::<u64>(), value)]
}

/// A command of a host: mostly opcodes that there are.
fn any_command() -> impl Strategy<Value = [u8; 64]> {
    let opcode = prop::sample::select(vec![0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 0x7c, 0x80, 0x18]);
    let dword = prop_oneof![
        Just(0u32),
        Just(1),
        Just(DATA as u32),
        Just(7 << 16 | 1),
        Just(1 << 16 | 1),
        0..300u32,
        any::<u32>()
    ];
    (opcode, prop::collection::vec((1..16usize, dword), 0..8)).prop_map(|(opcode, dwords)| command(opcode, 9, &dwords))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever a host writes, nothing panics, and after a reset the controller is as new.
    #[test]
    fn no_sequence_of_accesses_and_commands_outlives_a_reset(
        steps in prop::collection::vec((access(), any_command(), 0..4u8), 0..80),
    ) {
        let mut host = Host::enabled();
        for ((offset, value), bytes, kind) in steps {
            match kind {
                0 => host.set(offset, value),
                1 => host.answers = value & 1 == 0,
                _ => {
                    if let Some(driver) = &mut host.driver && driver.submit(&bytes) {
                        host.ring();
                        host.take();
                    }
                }
            }
        }
        host.answers = true;
        host.set(CC, 0);
        // What was not answered is.
        for sq in 1..5 {
            host.running.remove(&sq);
            host.controller.stopped(sq);
        }
        host.controller.flushed(Ok(()));
        host.settle();
        host.set(CC, 0);
        // A shutdown of a controller that was not enabled stays complete until it is.
        prop_assert_eq!(host.get(CSTS) & !(3 << 2), 0);
        host.enable();
        host.create_pair(1);
    }
}
