//! What a driver may try: each abuse has its own error, breaks the queue, and nothing is written.

use softdpu_memory::AccessError;

use super::*;
use crate::error::Part;
use crate::layout::{AVAIL, DESCRIPTOR, Descriptor, INDIRECT, NEXT, PackedDescriptor, SplitDescriptor, USED, WRITE};

const SIZE: u16 = 8;

/// Address, length, flags.
type Laid = (u64, u32, u16);

/// Writes descriptors into slots from 0 on, linked one to the next (split), with the first wrap counter and the buffer
/// id 0 (packed), and makes them available.
fn lay(rig: &Rig, descriptors: &[Laid]) {
    for (at, laid) in descriptors.iter().enumerate() {
        put(rig, at as u16, *laid, at as u16 + 1);
    }
    if rig.config.format == Format::Split {
        offer(rig, &[0], 1);
    }
}

/// `other` is `next` (split) or ignored (packed).
fn put(rig: &Rig, at: u16, (addr, len, flags): Laid, other: u16) {
    match rig.config.format {
        Format::Split => write(rig, at, SplitDescriptor { addr, len, flags, next: other }),
        Format::Packed => write(rig, at, PackedDescriptor { addr, len, id: 0, flags: flags ^ AVAIL }),
    }
}

fn write(rig: &Rig, at: u16, descriptor: impl Descriptor) {
    let offset = usize::from(at) * DESCRIPTOR;
    rig.ring().u64(offset).store(descriptor.addr(), std::sync::atomic::Ordering::Relaxed);
    rig.ring().u64(offset + 8).store(descriptor.meta(), std::sync::atomic::Ordering::Relaxed);
}

/// Split: puts heads into the available ring and sets its index.
fn offer(rig: &Rig, heads: &[u16], idx: u16) {
    let ring = rig.ring();
    for (at, head) in heads.iter().enumerate() {
        ring.u16(rig.layout.driver + 4 + 2 * at).store(*head, std::sync::atomic::Ordering::Relaxed);
    }
    ring.u16(rig.layout.driver + 2).store(idx, std::sync::atomic::Ordering::Release);
}

/// Writes an indirect table of raw entries: address, length, flags, next.
fn table(rig: &Rig, entries: &[(u64, u32, u16, u16)]) {
    for (at, (addr, len, flags, next)) in entries.iter().enumerate() {
        let (addr, len, flags, next) = (*addr, *len, *flags, *next);
        let meta = match rig.config.format {
            Format::Split => SplitDescriptor { addr, len, flags, next }.meta(),
            Format::Packed => PackedDescriptor { addr, len, id: 0, flags }.meta(),
        };
        let entry = rig.view.buffer(GuestAddress(TABLES + at as u64 * 16), 16).unwrap();
        entry.write_at(0, &addr.to_le_bytes()).unwrap();
        entry.write_at(8, &meta.to_le_bytes()).unwrap();
    }
}

/// The queue refuses what is in the ring with exactly this error, is inert from then on, and nothing changes.
#[track_caller]
fn refuses(rig: &Rig, expected: QueueError) {
    let mut queue = rig.queue();
    refuses_in(rig, &mut queue, expected);
}

#[track_caller]
fn refuses_in(rig: &Rig, queue: &mut Queue, expected: QueueError) {
    let before = rig.snapshot();
    let flight = queue.in_flight();
    let mut chains = Vec::new();
    assert_eq!(queue.pop(&mut chains, 32), Err(expected), "{:?}", rig.config.format);
    assert!(chains.is_empty(), "nothing is handed out");
    assert!(queue.is_broken());
    assert!(!queue.has_work());
    assert_eq!(queue.in_flight(), flight);
    assert_eq!(queue.pop(&mut chains, 32), Err(QueueError::Broken));
    assert_eq!(queue.arm(), Err(QueueError::Broken));
    assert_eq!(queue.complete(&[Used { id: 0, descriptors: 1, written: 0 }]), Err(QueueError::Broken));
    queue.disarm();
    assert_eq!(rig.snapshot(), before, "nothing is written");
    assert!(!expected.to_string().is_empty());
}

/// Chains that are wrong in both formats alike.
#[test]
fn a_bad_chain_is_refused_for_what_is_wrong_with_it() {
    let outside = |address, len: u32| QueueError::Address { head: 0, source: AccessError { address, len: len.into() } };
    let end = GUEST + MEMORY;
    let length = |len| QueueError::IndirectLength { head: 0, len, limit: 1 << 20 };
    let abuses: &[(&str, &[Laid], QueueError)] = &[
        ("below memory", &[(0x1000, 16, 0)], outside(0x1000, 16)),
        ("across the end of memory", &[(end - 8, 16, 0)], outside(end - 8, 16)),
        ("beyond memory", &[(end, 1, WRITE)], outside(end, 1)),
        ("wraps", &[(u64::MAX - 7, 16, 0)], outside(u64::MAX - 7, 16)),
        ("the second one outside", &[(DATA, 16, NEXT), (0, 4, WRITE)], outside(0, 4)),
        (
            "readable after writable",
            &[(DATA, 16, NEXT | WRITE), (DATA, 16, 0)],
            QueueError::ReadableAfterWritable { head: 0 },
        ),
        ("no bytes", &[(DATA, 0, 0)], QueueError::Empty { head: 0 }),
        ("no bytes in two", &[(DATA, 0, NEXT), (0, 0, WRITE)], QueueError::Empty { head: 0 }),
        ("table of no bytes", &[(TABLES, 0, INDIRECT)], length(0)),
        ("table of half an entry", &[(TABLES, 24, INDIRECT)], length(24)),
        ("table of too many entries", &[(TABLES, (1 << 20) + 16, INDIRECT)], length((1 << 20) + 16)),
        ("table and next", &[(TABLES, 16, INDIRECT | NEXT), (DATA, 1, 0)], QueueError::IndirectWithNext { head: 0 }),
        ("table outside", &[(end - 16, 32, INDIRECT)], outside(end - 16, 32)),
        ("table wraps", &[(u64::MAX - 15, 32, INDIRECT)], outside(u64::MAX - 15, 32)),
    ];
    for format in FORMATS {
        for (name, descriptors, expected) in abuses {
            println!("{format:?}: {name}");
            let rig = Rig::new(format, SIZE);
            lay(&rig, descriptors);
            refuses(&rig, *expected);
        }
    }
}

#[test]
fn a_bad_table_is_refused_for_what_is_wrong_with_it() {
    for format in FORMATS {
        let rig = Rig::new(format, SIZE);
        table(&rig, &[(DATA, 16, NEXT, 1), (TABLES, 16, INDIRECT, 0)]);
        lay(&rig, &[(TABLES, 32, INDIRECT)]);
        refuses(&rig, QueueError::IndirectInIndirect { head: 0, entry: 1 });

        let rig = Rig::new(format, SIZE);
        table(&rig, &[(DATA, 16, NEXT | WRITE, 1), (DATA, 16, 0, 0)]);
        lay(&rig, &[(TABLES, 32, INDIRECT)]);
        refuses(&rig, QueueError::ReadableAfterWritable { head: 0 });

        let rig = Rig::new(format, SIZE);
        table(&rig, &[(GUEST - 1, 16, 0, 0)]);
        lay(&rig, &[(TABLES, 16, INDIRECT)]);
        refuses(&rig, QueueError::Address { head: 0, source: AccessError { address: GUEST - 1, len: 16 } });

        let rig = Rig::new(format, SIZE);
        let entries: Vec<_> = (1..=17).map(|next| (DATA, 1, if next < 17 { NEXT } else { 0 }, next)).collect();
        table(&rig, &entries);
        lay(&rig, &[(TABLES, 17 * 16, INDIRECT)]);
        refuses(&rig, QueueError::TooLong { head: 0, limit: 16 });

        let rig = Rig::with(QueueConfig { indirect: false, ..Rig::new(format, SIZE).config });
        table(&rig, &[(DATA, 16, 0, 0)]);
        lay(&rig, &[(TABLES, 16, INDIRECT)]);
        refuses(&rig, QueueError::IndirectNotNegotiated { head: 0 });
    }
}

#[test]
fn a_split_table_that_loops_or_leaves_itself_is_refused() {
    let rig = Rig::new(Format::Split, SIZE);
    table(&rig, &[(DATA, 1, NEXT, 1), (DATA, 1, NEXT, 0)]);
    lay(&rig, &[(TABLES, 32, INDIRECT)]);
    refuses(&rig, QueueError::Loop { head: 0, size: 2 });

    let rig = Rig::new(Format::Split, SIZE);
    table(&rig, &[(DATA, 1, NEXT, 2), (DATA, 1, 0, 0)]);
    lay(&rig, &[(TABLES, 32, INDIRECT)]);
    refuses(&rig, QueueError::NextOutOfRange { head: 0, next: 2, size: 2 });
}

#[test]
fn a_chain_longer_than_the_device_takes_is_refused() {
    for format in FORMATS {
        let rig = Rig::with(QueueConfig { max_pieces: 2, ..Rig::new(format, SIZE).config });
        lay(&rig, &[(DATA, 1, NEXT), (DATA, 1, NEXT), (DATA, 1, 0)]);
        refuses(&rig, QueueError::TooLong { head: 0, limit: 2 });
    }
}

#[test]
fn a_chain_of_more_pieces_than_the_device_takes_is_refused_however_few_its_descriptors() {
    for format in FORMATS {
        // As a front end's regions of a byte each, one behind the other: a descriptor is as many pieces as it has
        // bytes.
        let rig = Rig::crumbled(QueueConfig { max_pieces: 8, ..Rig::new(format, SIZE).config }, 64);
        lay(&rig, &[(DATA, 4, NEXT), (DATA, 4, 0)]);
        assert_eq!(pop(&mut rig.queue())[0].buffer.pieces(), 8);
        lay(&rig, &[(DATA, 64, 0)]);
        refuses(&rig, QueueError::TooLong { head: 0, limit: 8 });
        lay(&rig, &[(DATA, 4, NEXT), (DATA, 5, 0)]);
        refuses(&rig, QueueError::TooLong { head: 0, limit: 8 });
    }
}

#[test]
fn lengths_that_sum_to_4_gib_are_refused_before_anything_is_looked_up() {
    for format in FORMATS {
        let rig = Rig::new(format, SIZE);
        lay(&rig, &[(DATA, 1, NEXT), (DATA, u32::MAX, 0)]);
        refuses(&rig, QueueError::TooManyBytes { head: 0, len: 1 << 32 });
    }
}

#[test]
fn a_good_chain_before_a_bad_one_is_not_handed_out_either() {
    for format in FORMATS {
        let mut rig = Rig::new(format, SIZE);
        let mut queue = rig.queue();
        rig.request(1).unwrap();
        rig.driver.publish();
        let first = pop(&mut queue);
        rig.request(1).unwrap();
        rig.driver.publish();
        match format {
            Format::Split => {
                put(&rig, 2, (0, 1, 0), 0);
                offer(&rig, &[0, 1, 2], 3);
            }
            Format::Packed => write(&rig, 2, PackedDescriptor { addr: 0, len: 1, id: 2, flags: AVAIL }),
        }
        let source = AccessError { address: 0, len: 1 };
        refuses_in(&rig, &mut queue, QueueError::Address { head: 2, source });
        drop(first);
    }
}

#[test]
fn a_split_ring_that_is_not_one_is_refused() {
    let cases: &[(&[u16], u16, QueueError)] = &[
        (&[0], SIZE + 1, QueueError::AvailJumped { last: 0, found: SIZE + 1, size: SIZE }),
        (&[0], 0xffff, QueueError::AvailJumped { last: 0, found: 0xffff, size: SIZE }),
        (&[SIZE], 1, QueueError::HeadOutOfRange { slot: 0, head: SIZE, size: SIZE }),
        (&[0, 0xffff], 2, QueueError::HeadOutOfRange { slot: 1, head: 0xffff, size: SIZE }),
        (&[0, 1, 0], 3, QueueError::InFlight { id: 0 }),
    ];
    for (heads, idx, expected) in cases {
        let rig = Rig::new(Format::Split, SIZE);
        for at in 0..SIZE {
            put(&rig, at, (DATA, 16, 0), 0);
        }
        offer(&rig, heads, *idx);
        refuses(&rig, *expected);
    }

    let rig = Rig::new(Format::Split, SIZE);
    for at in 0..SIZE {
        put(&rig, at, (DATA, 1, NEXT), (at + 1) % SIZE);
    }
    offer(&rig, &[3], 1);
    refuses(&rig, QueueError::Loop { head: 3, size: SIZE.into() });

    let rig = Rig::new(Format::Split, SIZE);
    put(&rig, 0, (DATA, 1, NEXT), SIZE);
    offer(&rig, &[0], 1);
    refuses(&rig, QueueError::NextOutOfRange { head: 0, next: SIZE, size: SIZE.into() });
}

#[test]
fn a_head_that_is_still_in_flight_is_refused() {
    let mut rig = Rig::new(Format::Split, SIZE);
    let mut queue = rig.queue();
    let id = rig.request(1).unwrap();
    rig.driver.publish();
    assert_eq!(pop(&mut queue).len(), 1);
    offer(&rig, &[id, id], 2);
    refuses_in(&rig, &mut queue, QueueError::InFlight { id });

    let mut rig = Rig::new(Format::Packed, SIZE);
    let mut queue = rig.queue();
    let id = rig.request(1).unwrap();
    rig.driver.publish();
    assert_eq!(pop(&mut queue).len(), 1);
    write(&rig, 1, PackedDescriptor { addr: DATA, len: 16, id, flags: AVAIL });
    refuses_in(&rig, &mut queue, QueueError::InFlight { id });
}

#[test]
fn a_packed_ring_that_is_not_one_is_refused() {
    let descriptor = |id, flags| PackedDescriptor { addr: DATA, len: 16, id, flags };
    let cases: &[(&[PackedDescriptor], QueueError)] = &[
        (&[descriptor(SIZE, AVAIL)], QueueError::IdOutOfRange { slot: 0, id: SIZE, size: SIZE }),
        (
            &[descriptor(0, AVAIL | NEXT), descriptor(0xffff, AVAIL)],
            QueueError::IdOutOfRange { slot: 1, id: 0xffff, size: SIZE },
        ),
        (&[descriptor(0, AVAIL | NEXT)], QueueError::NotAvailable { head: 0, slot: 1, flags: 0 }),
        (
            &[descriptor(0, AVAIL | NEXT), descriptor(0, AVAIL | USED)],
            QueueError::NotAvailable { head: 0, slot: 1, flags: AVAIL | USED },
        ),
        (
            &[descriptor(0, AVAIL | NEXT), descriptor(0, USED)],
            QueueError::NotAvailable { head: 0, slot: 1, flags: USED },
        ),
        (&[descriptor(0, AVAIL | NEXT); SIZE as usize], QueueError::Overrun { head: 0, free: SIZE }),
    ];
    for (ring, expected) in cases {
        let rig = Rig::new(Format::Packed, SIZE);
        for (at, descriptor) in ring.iter().enumerate() {
            write(&rig, at as u16, *descriptor);
        }
        refuses(&rig, *expected);
    }
}

#[test]
fn a_packed_chain_that_runs_into_what_is_in_flight_is_refused() {
    let mut rig = Rig::new(Format::Packed, SIZE);
    let mut queue = rig.queue();
    rig.request(5).unwrap();
    rig.driver.publish();
    assert_eq!(pop(&mut queue).len(), 1);
    for at in 5..SIZE {
        write(&rig, at, PackedDescriptor { addr: DATA, len: 16, id: 1, flags: AVAIL | NEXT });
    }
    // The flags of the next time around, in a slot that is still ours.
    write(&rig, 0, PackedDescriptor { addr: DATA, len: 16, id: 1, flags: USED });
    refuses_in(&rig, &mut queue, QueueError::Overrun { head: 5, free: 3 });
}

#[test]
fn completing_what_is_not_in_flight_is_our_error_and_breaks_the_queue() {
    for format in FORMATS {
        for (id, descriptors) in [(5, 1), (0, 2), (SIZE, 1), (0xffff, 1)] {
            let mut rig = Rig::new(format, SIZE);
            let mut queue = rig.queue();
            rig.request(1).unwrap();
            rig.driver.publish();
            let chains = pop(&mut queue);
            let before = rig.snapshot();
            let done = [chains[0].used(1), Used { id, descriptors, written: 1 }];
            assert_eq!(queue.complete(&done), Err(QueueError::NotInFlight { id, descriptors }));
            assert!(queue.is_broken());
            assert_eq!(rig.snapshot(), before);
        }
        let mut rig = Rig::new(format, SIZE);
        let mut queue = rig.queue();
        rig.request(1).unwrap();
        rig.driver.publish();
        let done = pop(&mut queue)[0].used(0);
        assert_eq!(
            queue.complete(&[done, done]),
            Err(QueueError::NotInFlight { id: done.id, descriptors: 1 }),
            "twice"
        );
    }
}

#[test]
fn a_ring_that_is_not_in_memory_does_not_start() {
    for format in FORMATS {
        let rig = Rig::new(format, SIZE);
        let start = Position::start(format);
        let begin = |addresses| Queue::new(&rig.view, rig.config, addresses, start, None).err();
        let unmapped = |part| move |error: Option<QueueError>| matches!(error, Some(QueueError::Unmapped { part: found, .. }) if found == part);
        let near_end = UserAddress(USER + MEMORY - 2);
        let odd = |address: UserAddress| UserAddress(address.0 + 1);
        let good = rig.addresses;
        for address in [UserAddress(0), near_end, odd(good.descriptors)] {
            assert!(unmapped(Part::Descriptors)(begin(RingAddresses { descriptors: address, ..good })));
        }
        for address in [UserAddress(0), near_end, odd(good.driver)] {
            assert!(unmapped(Part::Driver)(begin(RingAddresses { driver: address, ..good })));
        }
        for address in [UserAddress(u64::MAX), near_end, odd(good.device)] {
            assert!(unmapped(Part::Device)(begin(RingAddresses { device: address, ..good })));
        }
    }
}

#[test]
fn sizes_and_positions_a_format_does_not_have_are_refused() {
    let sizes =
        [(Format::Split, 0), (Format::Split, 12), (Format::Split, 65535), (Format::Packed, 0), (Format::Packed, 40000)];
    for (format, size) in sizes {
        let rig = Rig::new(format, SIZE);
        let config = QueueConfig { size, ..rig.config };
        let error = Queue::new(&rig.view, config, rig.addresses, Position::start(format), None).err();
        assert_eq!(error, Some(QueueError::Size { size, format }));
    }
    for (format, position) in [
        (Format::Split, Position::start(Format::Packed)),
        (Format::Packed, Position::start(Format::Split)),
        (Format::Packed, Position::from_base(Format::Packed, 0x8000_8008)),
        (Format::Packed, Position::from_base(Format::Packed, 0x8008_8000)),
    ] {
        let rig = Rig::new(format, SIZE);
        let error = Queue::new(&rig.view, rig.config, rig.addresses, position, None).err();
        assert_eq!(error, Some(QueueError::Position { position, format, size: SIZE }));
    }
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of regions: minutes")]
fn damaged_records_are_refused_by_name() {
    for format in FORMATS {
        let mut rig = Rig::new(format, SIZE);
        let mut queue = rig.recorded().unwrap();
        rig.request(2).unwrap();
        rig.request(1).unwrap();
        rig.driver.publish();
        pop(&mut queue);
        drop(queue);
        let good: Vec<u8> = bytes(&rig);
        // Each 16-bit word of the region in turn, set to something it cannot be; what is not refused is harmless.
        let mut refused = 0;
        for at in (0..good.len()).step_by(2) {
            for value in [0xffff_u16, 0x0103] {
                Window::of_mapping(Arc::clone(&rig.region)).u16(at).store(value, std::sync::atomic::Ordering::Relaxed);
                match rig.recorded() {
                    Err(QueueError::RecordsDamaged { .. } | QueueError::RecordsMismatch { .. }) => refused += 1,
                    Err(other) => panic!("{other}"),
                    Ok(mut queue) => {
                        let _ = queue.resubmit(&mut Vec::new());
                        let _ = queue.pop(&mut Vec::new(), 8);
                    }
                }
                Window::of_mapping(Arc::clone(&rig.region)).buffer().write_at(0, &good).unwrap();
            }
        }
        assert!(refused >= 5, "{format:?}: only {refused}");
        let small = InflightRecords::new(Window::of_mapping(Mapping::heap(4096)).part(0, 64).unwrap());
        let error = Queue::new(&rig.view, rig.config, rig.addresses, Position::start(format), Some(small)).err();
        let expected = InflightRecords::bytes(format, SIZE);
        assert_eq!(error, Some(QueueError::RecordsTooSmall { found: 64, expected }));
    }
}

fn bytes(rig: &Rig) -> Vec<u8> {
    let window = Window::of_mapping(Arc::clone(&rig.region));
    let mut bytes = vec![0; window.len()];
    window.buffer().read_at(0, &mut bytes).unwrap();
    bytes
}
