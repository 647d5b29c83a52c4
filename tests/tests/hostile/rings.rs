//! Positions, notifications and the in-flight region.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use softdpu_ring::driver::Layout;
use softdpu_tests::{Context, Failure};
use softdpu_transport::vhost_user::{Message, VringState};

use super::raw::{data, header, status};
use super::scene::Expect::{Breaks, Harmless, Survives};
use super::scene::{Abuse, Seen};
use crate::client::{FrontEnd, IN, Memory, PATIENCE, Settings, signalled};

const EVENT_IDX: Settings = Settings { event_idx: true, ..Settings::SPLIT };
const PACKED_EVENT: Settings = Settings { event_idx: true, ..Settings::PACKED };
const INFLIGHT: Settings = Settings { inflight: true, ..Settings::SPLIT };
const PACKED_INFLIGHT: Settings = Settings { inflight: true, ..Settings::PACKED };

/// Reads blocks while `disturb` does something before each.
fn reads(front: &mut FrontEnd, times: u64, disturb: impl Fn(&FrontEnd, u64)) -> Result<Seen, Failure> {
    for round in 0..times {
        disturb(front, round);
        let id = front.add(0, round % 16, None).ok_or_else(|| Failure::new("no room"))?;
        front.driver.publish();
        front.ring_kick();
        // Polled: what is disturbed may be what would wake a driver.
        let start = Instant::now();
        while front.driver.take().map(|done| done.id) != Some(id) {
            if start.elapsed() > PATIENCE {
                return Err(Failure::new(format!("read {round} did not come back")));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        if front.status(0) != 0 {
            return Ok(Seen::Status(front.status(0)));
        }
    }
    Ok(Seen::Status(0))
}

/// Stops the queue, spoils the in-flight region with `spoil`, and starts the queue with it.
fn spoiled_records(front: &mut FrontEnd, spoil: impl Fn(&mut [u8])) -> Result<Seen, Failure> {
    front.call(&Message::GetVringBase(VringState { index: 0, num: 0 }), &[])?;
    front.prepare_queue()?;
    let (description, fd) = front.inflight.as_ref().ok_or_else(|| Failure::new("there is no in-flight region"))?;
    let mut bytes = vec![0; description.mmap_size as usize];
    rustix::io::pread(fd, &mut bytes[..], description.mmap_offset).context("reading the in-flight region")?;
    spoil(&mut bytes);
    rustix::io::pwrite(fd, &bytes, description.mmap_offset).context("writing the in-flight region")?;
    front.kick_off()?;
    Ok(Seen::Nothing)
}

/// The same, with these values in the region's fields, by their offsets.
fn spoiled_fields(front: &mut FrontEnd, fields: &[(usize, u16)]) -> Result<Seen, Failure> {
    spoiled_records(front, |bytes| {
        for (at, value) in fields {
            bytes[*at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
    })
}

/// Offsets of the fields that both formats have (vhost-user: Inflight I/O tracking), of two of a split queue's, and of
/// its first record, which begins with `inflight`.
const VERSION: usize = 8;
const DESC_NUM: usize = 10;
const LAST_BATCH_HEAD: usize = 12;
const USED_IDX: usize = 14;
const RECORDS: usize = 16;

pub fn abuses() -> Vec<Abuse> {
    vec![
        Abuse::new("available index jumps", "17 entries in a ring of 16", Breaks("the available index jumped"), |f| {
            f.offer(&[0], 17);
            Ok(Seen::Nothing)
        }),
        Abuse::new("available index goes back", "65535 after 0", Breaks("the available index jumped"), |f| {
            f.offer(&[0], 0xffff);
            Ok(Seen::Nothing)
        }),
        Abuse::new("driver writes the used index", "the device's own field", Harmless, |f| {
            let used = Layout::new(f.settings.format, f.settings.size).device as u64 + 2;
            f.memory.write(used, &0x7777u16.to_le_bytes());
            f.header(0, IN, 0);
            f.describe(&[header(1), data(2), status()]);
            f.offer(&[0], 1);
            // No device writes the status that is there before, and the used index says nothing about it.
            let start = Instant::now();
            while f.status(0) == 0xff && start.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(Seen::Status(f.status(0)))
        }),
        Abuse::new("kick storm", "100,000 kicks for nothing", Harmless, |f| {
            for _ in 0..100_000 {
                f.ring_kick();
            }
            reads(f, 10, |_, _| ())
        }),
        Abuse::new("kick counter full", "the eventfd holds 2^64 - 2", Harmless, |f| {
            // Full is full: what does not fit is not written.
            let _ = rustix::io::write(&f.kick, &(u64::MAX - 1).to_ne_bytes());
            reads(f, 10, |f, _| f.ring_kick())
        }),
        Abuse::new("call counter full", "an interrupt would block", Harmless, |f| {
            signalled(f.call.as_fd(), Duration::ZERO);
            rustix::io::write(&f.call, &(u64::MAX - 1).to_ne_bytes()).context("filling the call eventfd")?;
            let seen = reads(f, 50, |_, _| ())?;
            rustix::io::read(&f.call, &mut [0; 8]).context("emptying the call eventfd")?;
            Ok(seen)
        }),
        Abuse::new("event index nonsense", "used_event jumps about", Harmless, |f| {
            let size = u64::from(f.settings.size);
            let event = Layout::new(f.settings.format, f.settings.size).driver as u64 + 4 + 2 * size;
            reads(f, 300, |f, round| f.memory.write(event, &(round as u16).wrapping_mul(0x9e37).to_le_bytes()))
        })
        .with(EVENT_IDX),
        Abuse::new("packed: event structure nonsense", "reserved flags, slots that are none", Harmless, |f| {
            let event = Layout::new(f.settings.format, f.settings.size).driver as u64;
            reads(f, 300, |f, round| {
                f.memory.write(event, &(round as u32).wrapping_mul(0x9e37_79b9).to_le_bytes());
            })
        })
        .with(PACKED_EVENT),
        Abuse::new("available flags nonsense", "reserved bits", Harmless, |f| {
            let flags = Layout::new(f.settings.format, f.settings.size).driver as u64;
            reads(f, 50, |f, round| f.memory.write(flags, &(round as u16 | 0xfff0).to_le_bytes()))
        }),
        Abuse::new("in-flight region for another size", "desc_num is 8", Breaks("in-flight records"), |f| {
            spoiled_fields(f, &[(VERSION, 1), (DESC_NUM, 8)])
        })
        .with(INFLIGHT),
        Abuse::new("in-flight region of version 99", "not 1", Breaks("in-flight records"), |f| {
            spoiled_fields(f, &[(VERSION, 99), (DESC_NUM, 16)])
        })
        .with(INFLIGHT),
        Abuse::new("in-flight used_idx far away", "no batch is that large", Breaks("are damaged"), |f| {
            spoiled_fields(f, &[(VERSION, 1), (DESC_NUM, 16), (USED_IDX, 0x4000), (RECORDS, 1)])
        })
        .with(INFLIGHT),
        Abuse::new("in-flight batch head out of range", "last_batch_head is 999", Breaks("are damaged"), |f| {
            let fields = [(VERSION, 1), (DESC_NUM, 16), (LAST_BATCH_HEAD, 999), (USED_IDX, 0xffff), (RECORDS, 1)];
            spoiled_fields(f, &fields)
        })
        .with(INFLIGHT),
        Abuse::new("in-flight says all is in flight", "16 requests that were never made", Survives, |f| {
            let records = (0..16).map(|record| (RECORDS + 16 * record, 1));
            spoiled_fields(f, &[(VERSION, 1), (DESC_NUM, 16)].into_iter().chain(records).collect::<Vec<_>>())
        })
        .with(INFLIGHT),
        Abuse::new("packed: in-flight region of 0xff", "nonsense in every field", Breaks("in-flight records"), |f| {
            spoiled_records(f, |bytes| bytes.fill(0xff))
        })
        .with(PACKED_INFLIGHT),
        Abuse::new("packed: in-flight free list is a loop", "indexes out of range", Breaks("are damaged"), |f| {
            spoiled_records(f, |bytes| {
                bytes[16..].fill(0xfe);
                bytes[VERSION..][..2].copy_from_slice(&1u16.to_le_bytes());
                bytes[DESC_NUM..][..2].copy_from_slice(&16u16.to_le_bytes());
            })
        })
        .with(PACKED_INFLIGHT),
        Abuse::new("in-flight region cut short while it runs", "ftruncate to 0", Breaks("in-flight region"), |f| {
            let (_, fd) = f.inflight.as_ref().ok_or_else(|| Failure::new("there is no in-flight region"))?;
            rustix::fs::ftruncate(fd, 0).context("truncating the in-flight region")?;
            f.add(0, 0, None);
            f.publish();
            std::thread::sleep(Duration::from_millis(50));
            Ok(Seen::Nothing)
        })
        .with(INFLIGHT),
        Abuse::new("position far from the ring", "SET_VRING_BASE 0x8000 of a ring at 0", Breaks("jumped"), |f| {
            f.call(&Message::GetVringBase(VringState { index: 0, num: 0 }), &[])?;
            f.prepare_queue()?;
            f.call(&Message::SetVringBase(VringState { index: 0, num: 0x8000 }), &[])?;
            f.kick_off()?;
            Ok(Seen::Nothing)
        }),
        Abuse::new(
            "ring goes with its memory",
            "SET_MEM_TABLE without the ring's region",
            Breaks("its rings are not in"),
            |f| {
                let other = Memory::new(1 << 20)?;
                let mut region = other.region();
                region.guest_address += 1 << 32;
                region.user_address += 1 << 32;
                // The domain knows the file; the ring's addresses are not in the table any more.
                let mut moved = f.memory.region();
                moved.user_address += 1 << 33;
                let memory = Arc::clone(&f.memory);
                f.call(&Message::SetMemTable(vec![moved, region]), &[memory.fd.as_fd(), other.fd.as_fd()])?;
                Ok(Seen::Nothing)
            },
        ),
    ]
}
