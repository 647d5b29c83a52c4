//! What the fuzzer and the property tests call: arbitrary bytes become a device, a driver's choices and a descriptor
//! chain, and what the parser makes of it is checked against what must always hold.

use std::sync::Arc;

use softdpu_memory::{GuestAddress, GuestBuffer, Mapping, Region, UserAddress, View};

use crate::block::abi::{feature, request};
use crate::block::{
    Block, BlockConfig, BlockOp, Cache, DATA_OFFSET, DiscardLimits, Io, Parsed, Requests, Status, WriteZeroesLimits,
};

pub use crate::nvme::fuzz::nvme_controller;

/// Guest memory of a fuzzed request: two regions of this size, adjacent.
const REGION: u64 = 0x4000;
/// Bytes of the fuzzed disk.
const CAPACITY: u64 = 1 << 20;

/// One virtio-blk request from arbitrary bytes: device configuration, negotiated features, up to 15 descriptors
/// anywhere in guest memory (overlapping, too), then the bytes the driver writes into the chain.
///
/// # Panics
/// Where the parser breaks a promise: that is a finding.
pub fn block_request(data: &[u8]) {
    let mut input = Input(data);
    let device = Block::new(configuration(&mut input)).expect("the configurations made here make sense");
    let dropped = [0, feature::FLUSH, feature::CONFIG_WCE, feature::DISCARD | feature::WRITE_ZEROES | feature::SEG_MAX];
    let requests = device.requests(device.features() & !dropped[usize::from(input.byte() & 3)]);

    let memory = view(&[REGION, REGION]);
    let mut buffer = GuestBuffer::new(&memory);
    let descriptors = input.byte() & 15;
    let readable_descriptors = input.byte() & 15;
    let mut readable = 0;
    for index in 0..descriptors {
        let (address, len) = (u64::from(input.word()) % (2 * REGION), u64::from(input.word() & 0x1fff));
        // One outside memory is refused by the ring before it gets here.
        if buffer.append(GuestAddress(address), len).is_ok() && index < readable_descriptors {
            readable = buffer.pieces();
        }
    }
    let bytes = &input.0[..input.0.len().min(buffer.len() as usize)];
    buffer.write_at(0, bytes).expect("not longer than the buffer");

    let given = copy_of(&buffer, readable);
    let whole = buffer.len();
    let parsed = requests.parse(&mut buffer, readable);
    assert_eq!(buffer.len(), whole, "parsing adds and loses no byte");
    promises(&parsed, &buffer, given.len() as u64, &device);
    if device.config().size_max.is_none() {
        let plain = plainly_framed(&requests, &given, whole - given.len() as u64);
        assert_eq!(outcome(&parsed), outcome(&plain), "framing changes nothing (virtio 1.3 §2.7.4)");
    }
}

fn configuration(input: &mut Input) -> BlockConfig {
    let bits = input.byte();
    let has = |bit: u8| bits & (1 << bit) != 0;
    let mut config = BlockConfig::new(CAPACITY);
    config.block_size = if has(0) { 4096 } else { 512 };
    config.read_only = has(1);
    config.write_cache = if has(2) { Cache::WriteThrough } else { Cache::WriteBack };
    config.discard = has(3).then_some(DiscardLimits { max_sectors: 256, alignment_sectors: 8 });
    config.write_zeroes = has(4).then_some(WriteZeroesLimits { max_sectors: 256, may_unmap: has(5) });
    config.size_max = has(6).then_some(4096);
    config
}

/// Checks what holds for every request.
fn promises(parsed: &Parsed, buffer: &GuestBuffer, readable: u64, device: &Block) {
    let status = |buffer: &GuestBuffer| {
        let mut byte = [0];
        buffer.read_at(buffer.len() - 1, &mut byte).expect("a parsed request has a status byte");
        byte[0]
    };
    match parsed {
        Parsed::Broken(_) => {
            assert_eq!(readable, buffer.len(), "only a chain without a writable byte breaks the queue")
        }
        Parsed::Finished { status: answer, written } => {
            assert!(u64::from(*written) <= buffer.len() - readable, "not more than there is room for");
            assert_eq!(status(buffer), *answer as u8);
        }
        Parsed::Io(io) => {
            work(io, buffer, readable, device);
            for answer in [Status::Unsupp, Status::IoErr, Status::Ok] {
                let written = io.finish(buffer, answer);
                assert!(u64::from(written) <= buffer.len() - readable);
                assert_eq!(status(buffer), answer as u8);
            }
        }
    }
}

fn work(io: &Io, buffer: &GuestBuffer, readable: u64, device: &Block) {
    let block = u64::from(device.config().block_size);
    assert!(io.offset.checked_add(io.len).is_some_and(|end| end <= CAPACITY), "inside the capacity");
    assert!(io.offset.is_multiple_of(block) && io.len.is_multiple_of(block), "whole blocks");
    assert!((io.len == 0) == (io.op == BlockOp::Flush), "work has a length, a flush has none");
    assert!(
        !device.config().read_only || matches!(io.op, BlockOp::Read | BlockOp::Flush),
        "a read-only device is not written"
    );
    let last = buffer.pieces() - 1;
    assert_eq!(buffer.len_of(last..last + 1), 1, "the status byte is a piece");
    if matches!(io.op, BlockOp::Read | BlockOp::Write) {
        assert_eq!(buffer.len_of(0..io.data.start), DATA_OFFSET);
        assert_eq!(buffer.len_of(io.data.clone()), io.len);
        assert_eq!(io.data.end, last);
        let expected = if io.op == BlockOp::Read { DATA_OFFSET } else { DATA_OFFSET + io.len };
        assert_eq!(readable, expected, "data in its direction");
    } else {
        assert!(io.data.is_empty());
    }
}

/// The same request in fresh memory, framed as drivers do: header, data given, data wanted, status.
fn plainly_framed(requests: &Requests, given: &[u8], wanted: u64) -> Parsed {
    let len = given.len() as u64 + wanted;
    if len == 0 {
        return requests.parse(&mut GuestBuffer::new(&View::empty()), 0);
    }
    let memory = view(&[len.next_multiple_of(0x1000)]);
    let mut buffer = GuestBuffer::new(&memory);
    let header = given.len().min(request::HEADER) as u64;
    let data = given.len() as u64 - header;
    let mut at = 0;
    let mut readable = 0;
    for (index, part) in [header, data, wanted.saturating_sub(1), wanted.min(1)].into_iter().enumerate() {
        buffer.append(GuestAddress(at), part).expect("inside the memory made for it");
        at += part;
        if index < 2 {
            readable = buffer.pieces();
        }
    }
    buffer.write_at(0, given).expect("inside the buffer");
    requests.parse(&mut buffer, readable)
}

/// A result without what depends on the framing: the piece numbers.
fn outcome(parsed: &Parsed) -> Parsed {
    match parsed {
        Parsed::Io(io) => Parsed::Io(Io { data: 0..0, ..io.clone() }),
        other => other.clone(),
    }
}

fn view(regions: &[u64]) -> Arc<View> {
    let mut at = 0;
    let regions = regions.iter().map(|len| {
        let region = Region::new(GuestAddress(at), UserAddress(at), *len, Mapping::heap(*len as usize), 0);
        at += len;
        region
    });
    View::new(regions.collect()).expect("adjacent regions")
}

fn copy_of(buffer: &GuestBuffer, pieces: usize) -> Vec<u8> {
    let mut bytes = vec![0; buffer.len_of(0..pieces) as usize];
    buffer.read_at(0, &mut bytes).expect("a part of the buffer");
    bytes
}

/// Takes bytes off the front; zeroes when there are no more.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn arbitrary_bytes_keep_every_promise(data in prop::collection::vec(any::<u8>(), 0..200)) {
            block_request(&data);
        }

        /// As above, with a well-framed chain in front: most get past the header.
        #[test]
        fn arbitrary_headers_keep_every_promise(
            config: u8, dropped: u8, given in 0..1100u16, wanted in 0..1100u16, kind in 0..16u8, sector in 0..2100u64,
            rest in prop::collection::vec(any::<u8>(), 0..64),
        ) {
            let mut data = vec![config, dropped, 4, 2];
            for (address, len) in [(0x100u16, 16u16), (0x3ff0, given), (0x5000, wanted), (0x200, 1)] {
                data.extend(address.to_le_bytes());
                data.extend(len.to_le_bytes());
            }
            data.extend([kind, 0, 0, 0, 0, 0, 0, 0]);
            data.extend(sector.to_le_bytes());
            data.extend(rest);
            block_request(&data);
        }
    }
}
