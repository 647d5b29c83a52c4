//! A guest's memory and one core, for tests of volumes.
#![allow(dead_code, reason = "each test uses its part")]

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use softdpu_memory::{GuestAddress, GuestBuffer, Mapping, Region, UserAddress, View};
use softdpu_storage::*;

pub const MIB: u64 = 1 << 20;

/// 4 MiB of guest memory.
pub fn guest() -> Arc<View> {
    let len = 4 * MIB;
    let region = Region::new(GuestAddress(0), UserAddress(0), len, Mapping::heap(len as usize), 0);
    View::new(vec![region]).unwrap()
}

/// A core that runs one request at a time, with a volume attached.
pub struct Core {
    pub context: IoContext,
    pub to: Attachment,
    pub volume: Arc<Volume>,
    pub view: Arc<View>,
    next: u64,
}

/// A key file that only its owner can read.
pub fn write_key(path: &Path, bytes: impl IntoIterator<Item = u8>) {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).unwrap();
    file.write_all(&bytes.into_iter().collect::<Vec<u8>>()).unwrap();
}

pub fn activate(volume: &Volume) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Activation::Busy { why } = volume.activate().unwrap() {
        assert!(Instant::now() < deadline, "still busy: {why}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Core {
    pub fn new(spec: VolumeSpec) -> Core {
        Core::with(Volume::open(spec, &PathBroker::new()).unwrap())
    }

    pub fn with(volume: Arc<Volume>) -> Core {
        activate(&volume);
        let mut context = IoContext::new(32).unwrap();
        let to = context.attach(&volume).unwrap();
        Core { context, to, volume, view: guest(), next: 0 }
    }

    /// Header, data pieces of these lengths, status: as a virtio-blk request lies in memory. `base` is where the data
    /// is.
    pub fn request_at(&mut self, op: BlockOp, offset: u64, pieces: &[u64], base: u64) -> Request {
        let mut buffer = GuestBuffer::new(&self.view);
        buffer.append(GuestAddress(0), 16).unwrap();
        let mut at = base;
        for len in pieces {
            buffer.append(GuestAddress(at), *len).unwrap();
            at += len.next_multiple_of(4096);
        }
        buffer.append(GuestAddress(0x100), 1).unwrap();
        self.next += 1;
        let data = 1..1 + pieces.len();
        Request { token: self.next, op, offset, len: pieces.iter().sum(), buffer, data, durable: false }
    }

    pub fn request(&mut self, op: BlockOp, offset: u64, len: u64) -> Request {
        match op {
            BlockOp::Read | BlockOp::Write => self.request_at(op, offset, &[len], 0x1000),
            _ => Request { len, ..self.request_at(op, offset, &[], 0x1000) },
        }
    }

    pub fn submit(&mut self, request: Request) -> Option<Done> {
        let mut done = Vec::new();
        self.context.submit(self.to, &mut vec![request], &mut done);
        self.context.flush();
        done.pop()
    }

    pub fn wait(&mut self, limit: Duration) -> Option<Done> {
        let deadline = Instant::now() + limit;
        let mut done = Vec::new();
        while done.is_empty() && Instant::now() < deadline {
            self.context.tick(Instant::now());
            self.context.poll(&mut done);
            if done.is_empty() {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
        assert!(done.len() <= 1);
        done.pop()
    }

    pub fn run(&mut self, request: Request) -> Done {
        let token = request.token;
        let done = self.submit(request).or_else(|| self.wait(Duration::from_secs(20))).expect("an answer");
        assert_eq!(done.token, token);
        done
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        let request = self.request(BlockOp::Write, offset, data.len() as u64);
        request.buffer.write_at(16, data).unwrap();
        self.run(request).result
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
        let request = self.request(BlockOp::Read, offset, len as u64);
        let done = self.run(request);
        let mut data = vec![0; len];
        done.buffer.read_at(16, &mut data).unwrap();
        done.result.map(|()| data)
    }

    pub fn op(&mut self, op: BlockOp, offset: u64, len: u64) -> Result<(), IoError> {
        let request = self.request(op, offset, len);
        self.run(request).result
    }
}
