//! Descriptors and indirect tables, split and packed.

use std::time::{Duration, Instant};

use softdpu_tests::descriptor::{AVAIL, Descriptor, INDIRECT, NEXT, USED, WRITE};

use super::raw::{data, header, raw, status};
use super::scene::Expect::{Breaks, Harmless, Survives};
use super::scene::{Abuse, Seen};
use crate::client::{BLOCK, DATA, GUEST, HEADERS, IN, MEMORY, SCRATCH, Settings, TABLES};

const NO_INDIRECT: Settings = Settings { indirect: false, ..Settings::SPLIT };

/// Behind the last byte of the guest's memory.
const OUTSIDE: u64 = GUEST + MEMORY + 0x10_0000;

pub fn abuses() -> Vec<Abuse> {
    [split(), indirect(), packed()].into_iter().flatten().collect()
}

fn split() -> Vec<Abuse> {
    vec![
        Abuse::new("loop", "two descriptors that follow each other", Breaks("it loops"), |f| {
            f.chain(&[header(1), raw(GUEST + DATA, 8, NEXT, 0)])
        }),
        Abuse::new("self-loop", "a descriptor that follows itself", Breaks("it loops"), |f| {
            f.chain(&[raw(GUEST + HEADERS, 16, NEXT, 0)])
        }),
        Abuse::new("next out of range", "next is the queue's size", Breaks("goes on at descriptor 16"), |f| {
            f.chain(&[header(16)])
        }),
        Abuse::new("head out of range", "head 65535", Breaks("names descriptor 65535"), |f| {
            f.offer(&[0xffff], 1);
            Ok(Seen::Nothing)
        }),
        Abuse::new("address outside memory", "data behind the last byte", Breaks("not inside the memory"), |f| {
            f.chain(&[header(1), raw(OUTSIDE, BLOCK as u32, NEXT | WRITE, 2), status()])
        }),
        Abuse::new("address before memory", "data at guest address 0", Breaks("not inside the memory"), |f| {
            f.chain(&[header(1), raw(0, BLOCK as u32, NEXT | WRITE, 2), status()])
        }),
        Abuse::new("buffer across the end", "data that ends a byte too late", Breaks("not inside the memory"), |f| {
            f.chain(&[header(1), raw(GUEST + MEMORY - 511, 512, NEXT | WRITE, 2), status()])
        }),
        Abuse::new("address wraps", "address + length passes 2^64", Breaks("not inside the memory"), |f| {
            f.chain(&[header(1), raw(u64::MAX - 511, BLOCK as u32, NEXT | WRITE, 2), status()])
        }),
        Abuse::new("length overflow", "4 GiB - 1 from a good address", Breaks("over 2^32 - 1"), |f| {
            f.chain(&[header(1), raw(GUEST + DATA, u32::MAX, NEXT | WRITE, 2), status()])
        }),
        Abuse::new("zero length", "a chain without a byte", Breaks("has no bytes"), |f| {
            f.chain(&[raw(GUEST + DATA, 0, WRITE, 0)])
        }),
        Abuse::new("readable after writable", "header behind the data", Breaks("after a device-writable one"), |f| {
            f.chain(&[data(1), raw(GUEST + HEADERS, 16, NEXT, 2), status()])
        }),
        Abuse::new("no writable byte", "a header alone", Breaks("no device-writable byte"), |f| {
            f.chain(&[raw(GUEST + HEADERS, 16, 0, 0)])
        }),
        Abuse::new("status not writable", "a read whose status is readable", Breaks("after a device-writable"), |f| {
            f.chain(&[header(1), data(2), raw(status().addr, 1, 0, 0)])
        }),
        Abuse::new("same head twice in flight", "two available entries, one head", Breaks("before it was used"), |f| {
            f.header(0, IN, 0);
            f.describe(&[header(1), data(2), status()]);
            f.offer(&[0, 0], 2);
            Ok(Seen::Nothing)
        }),
        Abuse::new("descriptors change after the kick", "lengths flip while chains are read", Survives, |f| {
            let start = Instant::now();
            let mut index = 0u16;
            f.header(0, IN, 0);
            f.describe(&[header(1), data(2), status()]);
            while start.elapsed() < Duration::from_millis(60) {
                index = index.wrapping_add(1);
                f.offer(&[0; 16], index);
                for len in [u32::MAX, BLOCK as u32, 1, BLOCK as u32] {
                    f.memory.write(16 + 8, &len.to_le_bytes());
                }
                let until = Instant::now() + Duration::from_millis(2);
                while f.used_index() != index && Instant::now() < until {}
            }
            Ok(Seen::Nothing)
        }),
        Abuse::new("header changes while it is read", "type and sector flip for 60 ms", Survives, |f| {
            let start = Instant::now();
            let mut index = 0u16;
            f.describe(&[header(1), data(2), status()]);
            while start.elapsed() < Duration::from_millis(60) {
                index = index.wrapping_add(1);
                f.header(0, IN, 0);
                f.offer(&[0; 16], index);
                for (kind, sector) in [(0xdead, u64::MAX), (IN, 0), (8, 1 << 60), (IN, 0)] {
                    f.header(0, kind, sector);
                }
                let until = Instant::now() + Duration::from_millis(2);
                while f.used_index() != index && Instant::now() < until {}
            }
            Ok(Seen::Nothing)
        }),
        Abuse::new("data over the ring", "a read into the ring's own pages", Survives, |f| {
            f.chain(&[header(1), raw(GUEST, BLOCK as u32, NEXT | WRITE, 2), status()])?;
            std::thread::sleep(Duration::from_millis(20));
            f.offer(&[0, 0, 0], 3);
            Ok(Seen::Nothing)
        }),
    ]
}

fn indirect() -> Vec<Abuse> {
    vec![
        Abuse::new("indirect without the feature", "not negotiated", Breaks("was not negotiated"), |f| {
            let table = f.table(TABLES, &[header(1), data(2), status()]);
            f.chain(&[table])
        })
        .with(NO_INDIRECT),
        Abuse::new("indirect in indirect", "a table in a table", Breaks("is itself indirect"), |f| {
            let inner = f.table(SCRATCH, &[data(1), status()]);
            let table = f.table(TABLES, &[header(1), inner]);
            f.chain(&[table])
        }),
        Abuse::new("indirect and next", "both flags on one descriptor", Breaks("is indirect and has a next"), |f| {
            let table = f.table(TABLES, &[header(1), data(2), status()]);
            f.chain(&[Descriptor { flags: INDIRECT | NEXT, last: 1, ..table }, status()])
        }),
        Abuse::new("indirect length 17", "not a multiple of 16", Breaks("not a multiple of 16"), |f| {
            f.chain(&[raw(GUEST + TABLES, 17, INDIRECT, 0)])
        }),
        Abuse::new("indirect length 0", "a table without entries", Breaks("not a multiple of 16"), |f| {
            f.chain(&[raw(GUEST + TABLES, 0, INDIRECT, 0)])
        }),
        Abuse::new("indirect length huge", "268 million entries", Breaks("the indirect table of the chain"), |f| {
            f.chain(&[raw(GUEST + TABLES, 0xffff_fff0, INDIRECT, 0)])
        }),
        Abuse::new("indirect table outside memory", "the table is nowhere", Breaks("not inside the memory"), |f| {
            f.chain(&[raw(OUTSIDE, 48, INDIRECT, 0)])
        }),
        Abuse::new("indirect table wraps", "the table passes 2^64", Breaks("not inside the memory"), |f| {
            f.chain(&[raw(u64::MAX - 15, 48, INDIRECT, 0)])
        }),
        Abuse::new("indirect next out of range", "next leaves the table", Breaks("goes on at descriptor 9"), |f| {
            let table = f.table(TABLES, &[header(9), status()]);
            f.chain(&[table])
        }),
        Abuse::new("indirect loop", "entries that follow each other", Breaks("it loops"), |f| {
            let table = f.table(TABLES, &[header(1), raw(GUEST + DATA, 16, NEXT, 0)]);
            f.chain(&[table])
        }),
        Abuse::new("chain longer than the device takes", "4096 entries", Breaks("the chain at 0"), |f| {
            let entries: Vec<Descriptor> = (1..4096).map(header).chain([status()]).collect();
            let table = f.table(SCRATCH, &entries);
            f.chain(&[table])
        }),
    ]
}

fn packed() -> Vec<Abuse> {
    let all = vec![
        Abuse::new("packed: id out of range", "buffer id 16 of 16", Breaks("carries buffer id 16"), |f| {
            f.packed_chain(&[raw(GUEST + HEADERS, 16, NEXT, 16), data(16), Descriptor { last: 16, ..status() }])
        }),
        Abuse::new("packed: flags of the next wrap counter", "flags say used, not available", Harmless, |f| {
            f.packed_raw(&[raw(GUEST + HEADERS, 16, USED, 0)])?;
            std::thread::sleep(Duration::from_millis(20));
            Ok(Seen::Nothing)
        }),
        Abuse::new(
            "packed: next slot not available",
            "wrap bits wrong inside a chain",
            Breaks("is not available"),
            |f| {
                f.header(0, IN, 0);
                f.packed_raw(&[raw(GUEST + HEADERS, 16, NEXT | AVAIL, 0), raw(GUEST + DATA, 512, USED | WRITE, 0)])
            },
        ),
        Abuse::new("packed: chain round the ring", "16 of 16 slots have a next", Breaks("the chain at 0"), |f| {
            f.packed_chain(&[raw(GUEST + HEADERS, 16, NEXT, 0); 16])
        }),
        Abuse::new("packed: same id twice in flight", "two chains, one id", Breaks("before it was used"), |f| {
            let one = raw(GUEST + HEADERS, 16, NEXT, 0);
            f.packed_chain(&[one, data(0), status(), one, data(0), status()])
        }),
        Abuse::new("packed: address outside memory", "data nowhere", Breaks("not inside the memory"), |f| {
            f.packed_chain(&[raw(GUEST + HEADERS, 16, NEXT, 0), raw(OUTSIDE, 512, NEXT | WRITE, 0), status()])
        }),
        Abuse::new("packed: readable after writable", "header last", Breaks("after a device-writable one"), |f| {
            f.packed_chain(&[Descriptor { flags: NEXT | WRITE, ..status() }, raw(GUEST + HEADERS, 16, 0, 0)])
        }),
        Abuse::new("packed: indirect and next", "both flags", Breaks("is indirect and has a next"), |f| {
            let table = f.packed_table(TABLES, &[raw(GUEST + HEADERS, 16, 0, 0), status()]);
            f.packed_chain(&[Descriptor { flags: INDIRECT | NEXT, ..table }, status()])
        }),
        Abuse::new("packed: indirect in indirect", "a table in a table", Breaks("is itself indirect"), |f| {
            let inner = raw(GUEST + SCRATCH, 16, INDIRECT, 0);
            let table = f.packed_table(TABLES, &[raw(GUEST + HEADERS, 16, 0, 0), inner]);
            f.packed_chain(&[table])
        }),
        Abuse::new("packed: indirect length 24", "one and a half entries", Breaks("not a multiple of 16"), |f| {
            f.packed_chain(&[raw(GUEST + TABLES, 24, INDIRECT, 0)])
        }),
        Abuse::new("packed: no writable byte", "a header alone", Breaks("no device-writable byte"), |f| {
            f.packed_chain(&[raw(GUEST + HEADERS, 16, 0, 0)])
        }),
    ];
    all.into_iter().map(|abuse| abuse.with(Settings::PACKED)).collect()
}
