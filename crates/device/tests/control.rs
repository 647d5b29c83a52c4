//! What the control side and the transport see: features, configuration space, growing, saved state.

mod rig;

use rig::{Request, Seen, run};
use softdpu_device::RestoreError;
use softdpu_device::block::abi::{config, feature, request};
use softdpu_device::block::{
    Block, BlockConfig, BlockConfigError, BlockOp, BlockState, ConfigSpaceError, DiscardLimits, GrowError, Serial,
    SerialError, Status, Topology, WriteZeroesLimits,
};

/// A change to a configuration, and what is expected of it.
type Case<E> = (E, fn(&mut BlockConfig));

fn block(change: impl FnOnce(&mut BlockConfig)) -> Block {
    let mut config = BlockConfig::new(1 << 30);
    change(&mut config);
    Block::new(config).unwrap()
}

fn space(block: &Block) -> [u8; config::SIZE] {
    let mut bytes = [0xaa; config::SIZE];
    block.read_config(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn the_configuration_space_is_laid_out_as_in_the_specification() {
    let block = block(|c| {
        c.block_size = 4096;
        c.topology =
            Topology { physical_block_exp: 2, alignment_offset: 3, min_io_blocks: 0x0405, opt_io_blocks: 0x0607 };
        c.queues = 0x0102;
        c.size_max = Some(0x0010_0000);
        c.seg_max = 126;
        c.discard = Some(DiscardLimits { max_sectors: 0x1000, alignment_sectors: 16 });
        c.write_zeroes = Some(WriteZeroesLimits { max_sectors: 0x2000, may_unmap: true });
    });
    #[rustfmt::skip]
    let expected: [u8; 60] = [
        0, 0, 0x20, 0, 0, 0, 0, 0,  // capacity: 1 GiB in sectors
        0, 0, 0x10, 0,              // size_max
        126, 0, 0, 0,               // seg_max
        0, 0, 0, 0,                 // geometry: not offered
        0, 0x10, 0, 0,              // blk_size
        2, 3, 5, 4, 7, 6, 0, 0,     // topology
        1,                          // writeback
        0,                          // unused0
        2, 1,                       // num_queues
        0, 0x10, 0, 0,              // max_discard_sectors
        1, 0, 0, 0,                 // max_discard_seg
        16, 0, 0, 0,                // discard_sector_alignment
        0, 0x20, 0, 0,              // max_write_zeroes_sectors
        1, 0, 0, 0,                 // max_write_zeroes_seg
        1, 0, 0, 0,                 // write_zeroes_may_unmap, unused1
    ];
    let space = space(&block);
    assert_eq!(space[..60], expected);
    assert_eq!(space[60..], [0; 36], "secure erase and zoned are not offered");
}

#[test]
fn any_part_of_the_space_can_be_read_and_nothing_beyond() {
    let block = block(|_| {});
    let whole = space(&block);
    for offset in 0..=config::SIZE {
        for len in 0..=config::SIZE - offset {
            let mut part = vec![0xaa; len];
            block.read_config(offset as u32, &mut part).unwrap();
            assert_eq!(part, whole[offset..offset + len]);
        }
    }
    for (offset, len) in [(0, 97), (96, 1), (97, 0), (u32::MAX, 1), (95, 2)] {
        let error = block.read_config(offset, &mut vec![0; len]);
        assert_eq!(error, Err(ConfigSpaceError::Beyond { offset, len }));
        assert_eq!(block.write_config(offset, &vec![0; len]), Err(ConfigSpaceError::Beyond { offset, len }));
    }
}

#[test]
fn features_follow_the_configuration() {
    let always = feature::VERSION_1
        | feature::RING_INDIRECT_DESC
        | feature::RING_EVENT_IDX
        | feature::SEG_MAX
        | feature::BLK_SIZE
        | feature::FLUSH
        | feature::TOPOLOGY
        | feature::CONFIG_WCE;
    let least = |c: &mut BlockConfig| {
        (c.packed, c.discard, c.write_zeroes) = (false, None, None);
    };
    assert_eq!(block(least).features(), always);
    for (name, bit, change) in [
        ("packed", feature::RING_PACKED, (|c| c.packed = true) as fn(&mut BlockConfig)),
        ("size_max", feature::SIZE_MAX, |c| c.size_max = Some(65536)),
        ("two queues", feature::MQ, |c| c.queues = 2),
        ("read-only", feature::RO, |c| c.read_only = true),
        ("discard", feature::DISCARD, |c| c.discard = Some(DiscardLimits::default())),
        ("write zeroes", feature::WRITE_ZEROES, |c| c.write_zeroes = Some(WriteZeroesLimits::default())),
    ] {
        let with = block(|c| {
            least(c);
            change(c);
        });
        assert_eq!(with.features(), always | bit, "{name}");
    }
    let read_only = block(|c| c.read_only = true);
    assert_eq!(read_only.features() & (feature::DISCARD | feature::WRITE_ZEROES), 0);
    assert_eq!(space(&read_only)[36..], [0; 60], "and no limits of what is not offered");
}

#[test]
fn discards_are_never_aligned_to_less_than_a_block() {
    for (block_size, alignment_sectors, told) in
        [(512, 1, 1), (512, 8, 8), (4096, 1, 8), (65536, 8, 128), (4096, 12, 16)]
    {
        let block = block(|c| {
            c.block_size = block_size;
            c.discard = Some(DiscardLimits { alignment_sectors, ..DiscardLimits::default() });
        });
        let mut field = [0; 4];
        block.read_config(config::DISCARD_SECTOR_ALIGNMENT as u32, &mut field).unwrap();
        assert_eq!(u32::from_le_bytes(field), told);
    }
}

#[test]
fn a_driver_switches_the_cache_mode_while_requests_run() {
    let block = block(|_| {});
    let requests = block.requests(block.features());
    let write = Request::new(request::OUT, 0, &[0; 512], 1);
    let durable = || run(&requests, &write).io().durable;
    let writeback = |value| block.write_config(config::WRITEBACK as u32, &[value]);
    assert!(!durable());
    writeback(0).unwrap();
    assert!(durable());
    assert_eq!(space(&block)[config::WRITEBACK], 0);
    writeback(1).unwrap();
    assert!(!durable());
    assert_eq!(writeback(2), Err(ConfigSpaceError::Value(2)));
    writeback(0).unwrap();
    block.reset();
    assert!(!durable(), "a reset device is as configured");
}

#[test]
fn without_flush_the_cache_mode_begins_as_write_through() {
    let block = block(|_| {});
    block.requests(block.features() & !feature::FLUSH);
    assert_eq!(space(&block)[config::WRITEBACK], 0, "virtio 1.3 §5.2.5.2");
}

#[test]
fn a_driver_writes_no_other_field() {
    let block = block(|_| {});
    let before = space(&block);
    for (offset, len) in [(0, 1), (0, 8), (31, 1), (31, 2), (32, 2), (33, 1), (0, 60)] {
        let error = block.write_config(offset, &vec![1; len]);
        assert_eq!(error, Err(ConfigSpaceError::ReadOnly { offset, len }));
    }
    assert_eq!(space(&block), before);
}

#[test]
fn a_device_grows_and_running_parsers_follow() {
    let block = block(|c| c.capacity = 1 << 20);
    let requests = block.requests(block.features());
    let beyond = Request::new(request::IN, 2048, &[], 513);
    assert_eq!(run(&requests, &beyond).seen(), Seen::Answer(Status::IoErr, 1));
    block.grow(2 << 20).unwrap();
    assert_eq!(run(&requests, &beyond).seen(), Seen::Io(BlockOp::Read, 1 << 20, 512, false));
    assert_eq!(space(&block)[..8], 4096u64.to_le_bytes());
    assert_eq!(block.grow(2 << 20), Ok(()), "as large as it is");
    assert_eq!(block.grow(1 << 20), Err(GrowError::Shrink { current: 2 << 20, capacity: 1 << 20 }));
    let odd = BlockConfigError::Capacity { capacity: (4 << 20) + 1, block_size: 512 };
    assert_eq!(block.grow((4 << 20) + 1), Err(GrowError::Capacity(odd)));
    assert_eq!(block.capacity(), 2 << 20);
}

#[test]
fn a_configuration_that_makes_no_sense_is_refused_by_name() {
    use BlockConfigError as E;
    let cases: [Case<E>; 15] = [
        (E::BlockSize(0), |c| c.block_size = 0),
        (E::BlockSize(256), |c| c.block_size = 256),
        (E::BlockSize(1536), |c| c.block_size = 1536),
        (E::Capacity { capacity: 0, block_size: 512 }, |c| c.capacity = 0),
        (E::Capacity { capacity: 513, block_size: 512 }, |c| c.capacity = 513),
        (E::PhysicalBlock(17), |c| c.topology.physical_block_exp = 17),
        (E::NoQueues, |c| c.queues = 0),
        (E::QueueSize(100), |c| c.queue_size = 100),
        (E::QueueSize(2), |c| c.queue_size = 2),
        (E::SegMax { seg_max: 0, most: 254 }, |c| c.seg_max = 0),
        (E::SegMax { seg_max: 255, most: 254 }, |c| c.seg_max = 255),
        (E::SegMax { seg_max: 2000, most: 1022 }, |c| (c.queue_size, c.seg_max) = (4096, 2000)),
        (E::SizeMax(512), |c| c.size_max = Some(512)),
        (E::Limit { field: "discard.max_sectors", value: 0, sectors: 1 }, |c| {
            c.discard.as_mut().unwrap().max_sectors = 0;
        }),
        (E::DiscardAlignment, |c| {
            c.discard.as_mut().unwrap().alignment_sectors = 0;
        }),
    ];
    for (expected, change) in cases {
        let mut config = BlockConfig::new(1 << 20);
        change(&mut config);
        assert_eq!(Block::new(config).err(), Some(expected));
    }
    assert!(Block::new(BlockConfig::new(1 << 20)).is_ok());
}

#[test]
fn a_serial_is_short_printable_ascii() {
    let serial: Serial = "abc 123".parse().unwrap();
    assert_eq!(serial.to_string(), "abc 123");
    assert_eq!(serial.bytes(), b"abc 123\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert!("12345678901234567890".parse::<Serial>().is_ok());
    let long = "123456789012345678901";
    assert_eq!(long.parse::<Serial>(), Err(SerialError::Long { text: long.to_owned(), len: 21 }));
    assert!(matches!("na\u{ef}ve".parse::<Serial>(), Err(SerialError::Character { found: '\u{ef}', .. })));
    assert!(matches!("a\0b".parse::<Serial>(), Err(SerialError::Character { .. })));
}

const GOLDEN: &str = include_str!("golden/block-state-v1.json");

/// The device in the golden file's state.
fn golden() -> Block {
    let block = block(|c| {
        c.block_size = 4096;
        c.queues = 4;
    });
    block.grow(2 << 30).unwrap();
    block.write_config(config::WRITEBACK as u32, &[0]).unwrap();
    block
}

#[test]
fn the_saved_state_is_what_the_golden_file_holds() {
    let saved = serde_json::to_string_pretty(&golden().save()).unwrap();
    assert_eq!(saved, GOLDEN.trim_end(), "a format in the field: add fields, never change or remove one");
}

fn other_side(change: impl FnOnce(&mut BlockConfig)) -> Block {
    block(|c| {
        (c.block_size, c.queues, c.capacity) = (4096, 4, 4 << 30);
        change(c);
    })
}

#[test]
fn a_restored_device_is_as_its_driver_knows_it() {
    let state: BlockState = serde_json::from_str(GOLDEN).unwrap();
    let block = other_side(|_| {});
    block.restore(&state).unwrap();
    assert_eq!(space(&block), space(&golden()));
    assert_eq!(block.save(), state);
    block.grow(4 << 30).unwrap();
}

#[test]
fn the_state_of_the_next_release_is_read_and_of_the_one_after_refused() {
    let mut json: serde_json::Value = serde_json::from_str(GOLDEN).unwrap();
    json["version"] = 2.into();
    json["something_new"] = "unknown here".into();
    let next: BlockState = serde_json::from_value(json.clone()).unwrap();
    assert_eq!(other_side(|_| {}).restore(&next), Ok(()));
    json["version"] = 3.into();
    let after: BlockState = serde_json::from_value(json).unwrap();
    assert_eq!(other_side(|_| {}).restore(&after), Err(RestoreError::Version { found: 3, newest: 2 }));
}

#[test]
fn a_device_that_cannot_keep_the_promises_is_left_as_it_was() {
    use RestoreError as E;
    let state: BlockState = serde_json::from_str(GOLDEN).unwrap();
    let cases: [Case<E>; 6] = [
        (E::Features(feature::RING_PACKED), |c| c.packed = false),
        (E::Features(feature::DISCARD), |c| c.discard = None),
        (E::BlockSize { saved: 4096, configured: 512 }, |c| c.block_size = 512),
        (E::Promise { field: "capacity", saved: 2 << 30, configured: 1 << 30 }, |c| c.capacity = 1 << 30),
        (E::Promise { field: "queues", saved: 4, configured: 2 }, |c| c.queues = 2),
        (E::Promise { field: "seg_max", saved: 254, configured: 126 }, |c| c.seg_max = 126),
    ];
    for (expected, change) in cases {
        let block = other_side(change);
        let before = space(&block);
        assert_eq!(block.restore(&state), Err(expected));
        assert_eq!(space(&block), before);
    }
}
