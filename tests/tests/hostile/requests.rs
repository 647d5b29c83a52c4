//! Requests that a ring can carry and a block device must refuse (virtio 1.3 §5.2.6).

use softdpu_tests::Failure;

use softdpu_tests::descriptor::{Descriptor, NEXT, WRITE};

use super::raw::{data, header, raw, status};
use super::scene::Expect::Fails;
use super::scene::{Abuse, Seen};
use crate::client::{BLOCK, DATA, FrontEnd, GUEST, HEADERS, IN, MEMORY, OUT, SCRATCH};

/// VIRTIO_BLK_S_IOERR and VIRTIO_BLK_S_UNSUPP.
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

/// Request types beyond reading and writing.
const FLUSH_OUT: u32 = 5;
const SCSI_CMD: u32 = 2;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
const SECURE_ERASE: u32 = 14;

/// Sends one request with these descriptors between header and status, and waits for it.
fn request(front: &mut FrontEnd, kind: u32, sector: u64, between: &[Descriptor]) -> Result<Seen, Failure> {
    front.header(0, kind, sector);
    let count = between.len() as u16;
    let middle = (2..).zip(between).map(|(next, descriptor)| Descriptor { last: next, ..*descriptor });
    let descriptors: Vec<Descriptor> = [header(1)].into_iter().chain(middle).chain([status()]).collect();
    debug_assert_eq!(descriptors.len(), usize::from(count) + 2);
    front.describe(&descriptors);
    front.offer(&[0], 1);
    front.completed()
}

/// A discard or write-zeroes request with one segment.
fn segment(front: &mut FrontEnd, kind: u32, sector: u64, sectors: u32, flags: u32) -> Result<Seen, Failure> {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&sector.to_le_bytes());
    bytes[8..12].copy_from_slice(&sectors.to_le_bytes());
    bytes[12..].copy_from_slice(&flags.to_le_bytes());
    front.memory.write(SCRATCH, &bytes);
    request(front, kind, 0, &[given(16)])
}

/// Data the device reads.
fn given(len: u32) -> Descriptor {
    raw(GUEST + SCRATCH, len, NEXT, 0)
}

/// Data the device writes.
fn wanted(len: u32) -> Descriptor {
    raw(GUEST + DATA, len, NEXT | WRITE, 0)
}

pub fn abuses() -> Vec<Abuse> {
    vec![
        Abuse::new("header short", "8 of 16 bytes", Fails(IOERR), |f| {
            f.header(0, IN, 0);
            f.describe(&[raw(GUEST + HEADERS, 8, NEXT, 1), data(2), status()]);
            f.offer(&[0], 1);
            f.completed()
        }),
        Abuse::new("header writable", "nothing readable at all", Fails(IOERR), |f| {
            f.header(0, IN, 0);
            f.describe(&[raw(GUEST + HEADERS, 16, NEXT | WRITE, 1), data(2), status()]);
            f.offer(&[0], 1);
            f.completed()
        }),
        Abuse::new("unknown type", "request type 0xdead", Fails(UNSUPP), |f| request(f, 0xdead, 0, &[wanted(512)])),
        Abuse::new("SCSI command", "request type 2 of legacy devices", Fails(UNSUPP), |f| {
            request(f, SCSI_CMD, 0, &[wanted(512)])
        }),
        Abuse::new("secure erase", "a type that was not offered", Fails(UNSUPP), |f| {
            request(f, SECURE_ERASE, 0, &[given(16)])
        }),
        Abuse::new("legacy flush", "request type 5", Fails(UNSUPP), |f| request(f, FLUSH_OUT, 0, &[])),
        Abuse::new("sector overflow", "sector 2^64 - 1", Fails(IOERR), |f| request(f, IN, u64::MAX, &[wanted(512)])),
        Abuse::new("sector times 512 wraps to 0", "sector 2^55", Fails(IOERR), |f| {
            request(f, IN, 1 << 55, &[wanted(512)])
        }),
        Abuse::new("read across the end", "the last sector and one more", Fails(IOERR), |f| {
            request(f, IN, (8 << 20) / 512 - 1, &[wanted(1024)])
        }),
        Abuse::new("write behind the end", "the sector after the last", Fails(IOERR), |f| {
            request(f, OUT, (8 << 20) / 512, &[given(512)])
        }),
        Abuse::new("length not of sectors", "a read of 100 bytes", Fails(IOERR), |f| request(f, IN, 0, &[wanted(100)])),
        Abuse::new("write length not of sectors", "a write of 513 bytes", Fails(IOERR), |f| {
            request(f, OUT, 0, &[given(513)])
        }),
        Abuse::new("read with data to read", "a read that gives data", Fails(IOERR), |f| {
            request(f, IN, 0, &[given(512), wanted(512)])
        }),
        Abuse::new("write with data to write", "a write that wants data", Fails(IOERR), |f| {
            request(f, OUT, 0, &[wanted(512)])
        }),
        Abuse::new("read larger than the disk", "14 times all memory", Fails(IOERR), |f| {
            request(f, IN, 0, &[raw(GUEST, MEMORY as u32, NEXT | WRITE, 0); 14])
        }),
        Abuse::new("get-id short", "19 of 20 bytes", Fails(IOERR), |f| request(f, GET_ID, 0, &[wanted(19)])),
        Abuse::new("discard without segment", "no data", Fails(IOERR), |f| request(f, DISCARD, 0, &[])),
        Abuse::new("discard with half a segment", "8 of 16 bytes", Fails(IOERR), |f| {
            request(f, DISCARD, 0, &[given(8)])
        }),
        Abuse::new("discard with two segments", "one was advertised", Fails(IOERR), |f| {
            request(f, DISCARD, 0, &[given(32)])
        }),
        Abuse::new("discard segment writable", "wrong direction", Fails(IOERR), |f| {
            request(f, DISCARD, 0, &[wanted(16)])
        }),
        Abuse::new("discard with a flag", "unmap is for write-zeroes", Fails(UNSUPP), |f| segment(f, DISCARD, 0, 8, 1)),
        Abuse::new("discard overflow", "sector 2^64 - 8 and 16 more", Fails(IOERR), |f| {
            segment(f, DISCARD, u64::MAX - 7, 16, 0)
        }),
        Abuse::new("discard of 2 TiB", "sectors 2^32 - 1", Fails(IOERR), |f| segment(f, DISCARD, 0, u32::MAX, 0)),
        Abuse::new("write-zeroes unknown flag", "bit 31", Fails(UNSUPP), |f| segment(f, WRITE_ZEROES, 0, 8, 1 << 31)),
        Abuse::new("write-zeroes behind the end", "one sector too many", Fails(IOERR), |f| {
            segment(f, WRITE_ZEROES, (8 << 20) / 512 - 7, 8, 0)
        }),
        Abuse::new(
            "data in 512-byte splinters out of order",
            "a block read as 8 pieces and a ninth",
            Fails(IOERR),
            |f| {
                let mut pieces = [wanted(BLOCK as u32 / 8); 9];
                pieces[8].len = 1;
                request(f, IN, 0, &pieces)
            },
        ),
    ]
}
