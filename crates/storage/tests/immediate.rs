//! Volumes that answer within `submit`: null and memory.

use std::sync::Arc;

use softdpu_memory::{GuestAddress, GuestBuffer, Mapping, Region, UserAddress, View};
use softdpu_storage::*;

fn guest() -> Arc<View> {
    let region = Region::new(GuestAddress(0), UserAddress(0), 1 << 20, Mapping::heap(1 << 20), 0);
    View::new(vec![region]).unwrap()
}

/// Header, data, status: as a virtio-blk request lies in memory.
fn request(view: &Arc<View>, op: BlockOp, offset: u64, len: u64) -> Request {
    let mut buffer = GuestBuffer::new(view);
    buffer.append(GuestAddress(0), 16).unwrap();
    let mut data = 1..1;
    if matches!(op, BlockOp::Read | BlockOp::Write) {
        buffer.append(GuestAddress(0x1000), len).unwrap();
        data = 1..2;
    }
    buffer.append(GuestAddress(0x100), 1).unwrap();
    Request { token: offset ^ len, op, offset, len, buffer, data, durable: false }
}

fn run(context: &mut IoContext, to: Attachment, request: Request) -> Result<(), IoError> {
    let mut done = Vec::new();
    context.submit(to, &mut vec![request], &mut done);
    assert_eq!(done.len(), 1, "answered at once");
    done.pop().unwrap().result
}

fn byte_of(volume: &Arc<Volume>, write: Option<u8>) -> u8 {
    assert_eq!(volume.activate().unwrap(), Activation::Active);
    let view = guest();
    let mut context = IoContext::new(8).unwrap();
    let to = context.attach(volume).unwrap();
    let data = view.buffer(GuestAddress(0x1000), 512).unwrap();
    if let Some(byte) = write {
        data.fill(0, 512, byte).unwrap();
        run(&mut context, to, request(&view, BlockOp::Write, 0, 512)).unwrap();
    }
    run(&mut context, to, request(&view, BlockOp::Read, 0, 512)).unwrap();
    let mut bytes = [0xff; 1];
    data.read_at(0, &mut bytes).unwrap();
    bytes[0]
}

#[test]
fn the_next_volume_of_a_deleted_ones_name_begins_with_zeroes() {
    let broker = PathBroker::new();
    let open = |name: &str| Volume::open(VolumeSpec::new(name, VolumeKind::Memory { size: 4096 }), &broker).unwrap();
    byte_of(&open("m"), Some(0x5a));
    byte_of(&open("m2"), Some(0x77));
    assert_eq!(byte_of(&open("m"), None), 0x5a, "until it is deleted its bytes are kept");
    Volume::forget_kept("m", &*broker);
    assert_eq!(byte_of(&open("m"), None), 0);
    assert_eq!(byte_of(&open("m2"), None), 0x77, "a name that begins like it is another volume's");
}

#[test]
fn of_a_deleted_volume_all_that_was_kept_is_forgotten() {
    let broker = PathBroker::new();
    let file = tempfile::tempfile().unwrap();
    let other = ["memory/vv", "nbd-export/vv", "nbd/vv/0", "memory/w", "nbd/w/0", "elsewhere/v"];
    for key in ["memory/v", "nbd-export/v", "nbd/v/0", "nbd/v/17", "user/v"].iter().chain(&other) {
        broker.keep(key, std::os::fd::AsFd::as_fd(&file)).unwrap();
    }
    Volume::forget_kept("v", &*broker);
    let left: Vec<String> = broker.kept("").unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(left, other);
}

#[test]
fn requests_need_an_active_volume() {
    let volume = Volume::open(VolumeSpec::new("n", VolumeKind::Null { size: 4096 }), &PathBroker::new()).unwrap();
    let mut context = IoContext::new(8).unwrap();
    assert!(matches!(context.attach(&volume), Err(VolumeError::NotActive { .. })));
    assert_eq!(volume.activate().unwrap(), Activation::Active);
    let to = context.attach(&volume).unwrap();
    context.detach(to);
    assert_eq!(run(&mut context, to, request(&guest(), BlockOp::Read, 0, 512)), Err(IoError::Gone));
}

#[test]
fn null_checks_ranges_and_nothing_else() {
    let volume = Volume::open(VolumeSpec::new("n", VolumeKind::Null { size: 8192 }), &PathBroker::new()).unwrap();
    volume.activate().unwrap();
    let mut context = IoContext::new(8).unwrap();
    let to = context.attach(&volume).unwrap();
    let view = guest();
    assert_eq!(run(&mut context, to, request(&view, BlockOp::Read, 4096, 4096)), Ok(()));
    assert_eq!(run(&mut context, to, request(&view, BlockOp::Write, 4096, 4097)), Err(IoError::OutOfRange));
    assert_eq!(run(&mut context, to, request(&view, BlockOp::Discard, u64::MAX, 2)), Err(IoError::OutOfRange));
    assert_eq!(volume.status().errors.refused, 2);
    volume.grow(16384).unwrap();
    assert_eq!(run(&mut context, to, request(&view, BlockOp::Write, 8192, 8192)), Ok(()));
    assert!(matches!(volume.grow(8192), Err(VolumeError::Shrink { size: 16384, asked: 8192, .. })));
}

#[test]
fn memory_holds_what_was_written_and_outlives_its_volume() {
    let broker = PathBroker::new();
    let spec = VolumeSpec::new("m", VolumeKind::Memory { size: 1 << 20 });
    let view = guest();
    let data: Vec<u8> = (0..4096u32).map(|i| (i * 7) as u8).collect();
    for life in 0..2 {
        let volume = Volume::open(spec.clone(), &broker).unwrap();
        volume.activate().unwrap();
        let mut context = IoContext::new(8).unwrap();
        let to = context.attach(&volume).unwrap();
        if life == 0 {
            let write = request(&view, BlockOp::Write, 8192, 4096);
            write.buffer.write_at(16, &data).unwrap();
            assert_eq!(run(&mut context, to, write), Ok(()));
            volume.grow(2 << 20).unwrap();
            assert_eq!(run(&mut context, to, request(&view, BlockOp::Write, 1 << 20, 512)), Ok(()));
        }
        assert_eq!(volume.size(), 2 << 20, "what was grown stays grown");
        let mut done = Vec::new();
        context.submit(to, &mut vec![request(&view, BlockOp::Read, 8192, 4096)], &mut done);
        let mut read = vec![0; 4096];
        done[0].buffer.read_at(16, &mut read).unwrap();
        assert_eq!(read, data);
    }
}

#[test]
fn a_read_only_volume_refuses_what_would_change_it() {
    let spec = VolumeSpec { read_only: true, ..VolumeSpec::new("m", VolumeKind::Memory { size: 1 << 20 }) };
    let volume = Volume::open(spec, &PathBroker::new()).unwrap();
    volume.activate().unwrap();
    assert_eq!(volume.limits().discard, None);
    let mut context = IoContext::new(8).unwrap();
    let to = context.attach(&volume).unwrap();
    let view = guest();
    for op in
        [BlockOp::Write, BlockOp::Discard, BlockOp::WriteZeroes { unmap: true }, BlockOp::WriteZeroes { unmap: false }]
    {
        assert_eq!(run(&mut context, to, request(&view, op, 0, 4096)), Err(IoError::ReadOnly));
    }
    assert_eq!(run(&mut context, to, request(&view, BlockOp::Flush, 0, 0)), Ok(()));
    assert_eq!(run(&mut context, to, request(&view, BlockOp::Read, 0, 4096)), Ok(()));
}
