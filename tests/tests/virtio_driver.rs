//! The `virtio-driver` crate as a client: a driver of other authors, with rings of both formats.

#![allow(missing_docs)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use softdpu_tests::{Context, Disk, Failure, Lab, Server, ServerKind, skip};
use virtio_driver::{VhostUser, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags};

const MIB: usize = 1 << 20;
const BLOCK: usize = 4096;
/// Requests in flight at once.
const DEPTH: usize = 32;
const DEADLINE: Duration = Duration::from_secs(30);

/// Memory the driver may use for data.
///
/// The driver only ever computes with the addresses of `place`; the bytes are those of the file, which the server maps
/// and this test reads and writes.
struct Data {
    file: File,
    place: Vec<u8>,
    start: usize,
}

impl Data {
    fn new(transport: &mut VirtioBlkTransport, len: usize) -> Result<Data, Failure> {
        let file = File::from(rustix::fs::memfd_create("data", MemfdFlags::CLOEXEC).context("making a memfd")?);
        file.set_len(len as u64).context("sizing a memfd")?;
        // softdpu refuses what cannot be mapped page by page as the driver sees it.
        let align = transport.mem_region_alignment().max(4096);
        let place = vec![0; len + align];
        let start = place.as_ptr().align_offset(align);
        let address = place[start..].as_ptr() as usize;
        transport.map_mem_region(address, len, file.as_raw_fd(), 0).context("sharing the data memory")?;
        Ok(Data { file, place, start })
    }

    fn slot(&mut self, slot: usize) -> &mut [u8] {
        &mut self.place[self.start + slot * BLOCK..][..BLOCK]
    }
}

/// What block `index` is filled with.
fn pattern(index: usize) -> [u8; BLOCK] {
    std::array::from_fn(|at| (index.wrapping_mul(31) ^ (at / 512) ^ at) as u8)
}

struct Client<'a> {
    transport: Box<VirtioBlkTransport>,
    queue: VirtioBlkQueue<'a, usize>,
    data: Data,
}

impl Client<'_> {
    fn connect(socket: &str, features: VirtioFeatureFlags) -> Result<Self, Failure> {
        let wanted = (VirtioFeatureFlags::VERSION_1 | features).bits() | 1 << 9;
        let mut transport: Box<VirtioBlkTransport> =
            Box::new(VhostUser::new(socket, wanted).context("connecting virtio-driver")?);
        let packed = VirtioFeatureFlags::RING_PACKED.bits();
        assert_eq!(transport.get_features() & packed, features.bits() & packed, "the ring format that was asked for");
        let mut queues = VirtioBlkQueue::setup_queues(&mut *transport, 1, 256).context("setting up queues")?;
        let data = Data::new(&mut *transport, DEPTH * BLOCK)?;
        let queue = queues.pop().ok_or_else(|| Failure::new("virtio-driver made no queue"))?;
        Ok(Client { transport, queue, data })
    }

    /// Kicks where the device wants it and waits for `count` completions; their slots.
    fn finish(&mut self, count: usize) -> Result<Vec<usize>, Failure> {
        if self.queue.avail_notif_needed() {
            self.transport.get_submission_notifier(0).notify().context("kicking")?;
        }
        let start = Instant::now();
        let mut slots = Vec::new();
        while slots.len() < count {
            for done in self.queue.completions() {
                assert_eq!(done.ret, 0, "the request of slot {} failed", done.context);
                slots.push(done.context);
            }
            if start.elapsed() > DEADLINE {
                return Err(Failure::new(format!("{} of {count} requests came back in time", slots.len())));
            }
            std::thread::yield_now();
        }
        slots.sort_unstable();
        Ok(slots)
    }
}

/// Writes every block of the first 4 MiB in batches, reads all back from the other end, and compares with what the file
/// holds.
fn write_and_verify(features: VirtioFeatureFlags) {
    let blocks = 4 * MIB / BLOCK;
    Lab::run("virtio-driver", |lab| {
        let image = lab.image("data.img", 64 * MIB as u64)?;
        let server = Server::start(ServerKind::from_environment()?, lab, &[Disk::new("data", image.clone()).packed()])?;
        let socket = server.guest_disk("data")?.socket;
        let mut client = Client::connect(&socket.to_string_lossy(), features)?;
        for first in (0..blocks).step_by(DEPTH) {
            for slot in 0..DEPTH {
                client.data.file.write_all_at(&pattern(first + slot), (slot * BLOCK) as u64).context("filling")?;
                let offset = ((first + slot) * BLOCK) as u64;
                client.queue.write(offset, client.data.slot(slot), slot).context("adding a write")?;
            }
            assert_eq!(client.finish(DEPTH)?, (0..DEPTH).collect::<Vec<_>>(), "each request comes back once");
        }
        client.queue.flush(0).context("adding a flush")?;
        client.finish(1)?;
        for first in (0..blocks).step_by(DEPTH).rev() {
            for slot in 0..DEPTH {
                let offset = ((first + slot) * BLOCK) as u64;
                client.queue.read(offset, client.data.slot(slot), slot).context("adding a read")?;
            }
            client.finish(DEPTH)?;
            for slot in 0..DEPTH {
                let mut found = [0; BLOCK];
                client.data.file.read_exact_at(&mut found, (slot * BLOCK) as u64).context("looking")?;
                assert!(found == pattern(first + slot), "block {} holds something else", first + slot);
            }
        }
        drop(client);
        let bytes = std::fs::read(&image).context("reading the volume's file")?;
        for index in 0..blocks {
            assert!(bytes[index * BLOCK..][..BLOCK] == pattern(index), "the file's block {index} holds something else");
        }
        server.stop()
    });
}

#[test]
fn virtio_driver_writes_and_verifies_through_a_split_ring() {
    write_and_verify(VirtioFeatureFlags::RING_EVENT_IDX);
}

#[test]
fn virtio_driver_writes_and_verifies_through_a_split_ring_with_indirect_tables() {
    write_and_verify(VirtioFeatureFlags::RING_EVENT_IDX | VirtioFeatureFlags::RING_INDIRECT_DESC);
}

#[test]
fn virtio_driver_writes_and_verifies_through_a_packed_ring() {
    if matches!(ServerKind::from_environment(), Ok(ServerKind::StorageDaemon)) {
        return skip("virtio_driver_packed", "qemu-storage-daemon offers no packed rings");
    }
    write_and_verify(VirtioFeatureFlags::RING_EVENT_IDX | VirtioFeatureFlags::RING_PACKED);
}
