//! A driver of one request at a time: lays it out in memory, has it parsed, and tells what a guest would see.
#![allow(dead_code)]

use std::sync::Arc;

use softdpu_device::block::{Block, BlockConfig, BlockOp, Io, Parsed, Requests, Status};
use softdpu_memory::{GuestAddress, GuestBuffer, Mapping, Region, UserAddress, View};

/// What is in the status byte and in writable memory before the device touches it.
pub const UNTOUCHED: u8 = 0xee;

/// Bytes of a 1 MiB disk.
pub const CAPACITY: u64 = 1 << 20;
/// Sectors of it.
pub const SECTORS: u64 = CAPACITY / 512;

/// Guest memory: two adjacent regions, so that a piece can cross from one into the other.
pub fn memory() -> Arc<View> {
    let region = |at| Region::new(GuestAddress(at), UserAddress(at), 0x1_0000, Mapping::heap(0x1_0000), 0);
    View::new(vec![region(0), region(0x1_0000)]).unwrap()
}

/// A request as its driver thinks of it.
#[derive(Clone, Debug)]
pub struct Request {
    /// Device-readable bytes: header and data.
    pub readable: Vec<u8>,
    /// Number of device-writable bytes, status included.
    pub writable: usize,
}

impl Request {
    pub fn new(kind: u32, sector: u64, data: &[u8], writable: usize) -> Self {
        let mut readable = kind.to_le_bytes().to_vec();
        readable.extend(0u32.to_le_bytes());
        readable.extend(sector.to_le_bytes());
        readable.extend(data);
        Request { readable, writable }
    }
}

/// One segment of a discard or write-zeroes request.
pub fn segment(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}

/// What the driver and the storage see of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Work: operation, offset, length, durable.
    Io(BlockOp, u64, u64, bool),
    /// Answered at once: status, used length.
    Answer(Status, u32),
    /// The queue breaks.
    Broken,
}

/// A parsed request with its memory.
pub struct Run {
    pub parsed: Parsed,
    pub buffer: GuestBuffer,
    pub readable: usize,
}

impl Run {
    pub fn seen(&self) -> Seen {
        match &self.parsed {
            Parsed::Io(io) => Seen::Io(io.op, io.offset, io.len, io.durable),
            Parsed::Finished { status, written } => Seen::Answer(*status, *written),
            Parsed::Broken(_) => Seen::Broken,
        }
    }

    pub fn io(&self) -> &Io {
        let Parsed::Io(io) = &self.parsed else { panic!("expected work, got {:?}", self.parsed) };
        io
    }

    /// The device-writable bytes, the status last.
    pub fn written(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.buffer.len() as usize - self.readable];
        self.buffer.read_at(self.readable as u64, &mut bytes).unwrap();
        bytes
    }

    /// The data of the Io, by its pieces' own account.
    pub fn data_len(&self) -> u64 {
        self.buffer.len_of(self.io().data.clone())
    }
}

/// Lays `request` out with a descriptor boundary at each of `cuts` (beside that between readable and writable, which is
/// always one) and has it parsed. With `scatter`, neighbours in the request are not neighbours in memory.
pub fn run_cut(requests: &Requests, request: &Request, cuts: &[usize], scatter: bool) -> Run {
    let view = memory();
    let readable = request.readable.len();
    let total = readable + request.writable;
    let mut ends: Vec<usize> = cuts.iter().copied().filter(|cut| (1..total).contains(cut)).collect();
    ends.extend([readable, total]);
    ends.sort_unstable();
    ends.dedup();
    let mut buffer = GuestBuffer::new(&view);
    let mut readable_pieces = 0;
    let mut start = 0;
    let mut at = 0xfff0;
    for end in ends {
        let len = end - start;
        if len == 0 {
            continue;
        }
        buffer.append(GuestAddress(at as u64), len as u64).unwrap();
        at += len + if scatter { 7 } else { 0 };
        start = end;
        if end <= readable {
            readable_pieces = buffer.pieces();
        }
    }
    buffer.write_at(0, &request.readable).unwrap();
    buffer.fill(readable as u64, request.writable as u64, UNTOUCHED).unwrap();
    let parsed = requests.parse(&mut buffer, readable_pieces);
    Run { parsed, buffer, readable }
}

/// As [`run_cut`], cut as drivers do: header, data, status.
pub fn run(requests: &Requests, request: &Request) -> Run {
    run_cut(requests, request, &[16, (request.readable.len() + request.writable).saturating_sub(1)], true)
}

/// The parser of a device with every feature negotiated.
pub fn parser(change: impl FnOnce(&mut BlockConfig)) -> Requests {
    parser_of(change, u64::MAX)
}

/// The parser of a device with the features `negotiated`.
pub fn parser_of(change: impl FnOnce(&mut BlockConfig), negotiated: u64) -> Requests {
    let mut config = BlockConfig::new(CAPACITY);
    config.serial = "disk-0123456789".parse().unwrap();
    change(&mut config);
    Block::new(config).unwrap().requests(negotiated)
}
