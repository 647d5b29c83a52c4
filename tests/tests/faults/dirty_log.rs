//! The log of written pages that a migration reads (vhost-user: Migration).

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use softdpu_bench::front_end::{FrontEnd, Options};
use softdpu_device::block::abi::request;
use softdpu_memory::GuestAddress;
use softdpu_ring::driver::Piece;
use softdpu_tests::{Context, Daemon, Failure, Lab};
use softdpu_transport::vhost_user::{F_LOG_ALL, LogDescription, Message, ProtocolFeatures, VringAddress};

use crate::common::*;

const PAGE: u64 = 4096;
/// VHOST_VRING_F_LOG: writes to the used ring are logged.
const VRING_F_LOG: u32 = 1;

struct Log {
    file: OwnedFd,
    bytes: u64,
}

impl Log {
    /// A log of `bytes` bytes, a bit a page.
    fn new(bytes: u64) -> Result<Log, Failure> {
        let file = rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC).context("a memfd")?;
        rustix::fs::ftruncate(&file, bytes).context("sizing the log")?;
        Ok(Log { file, bytes })
    }

    fn announce(&self, front_end: &mut FrontEnd) -> Result<(), Failure> {
        let message = Message::SetLogBase(LogDescription { size: self.bytes, offset: 0 });
        front_end.control().call(&message, &[self.file.as_fd()]).context("SET_LOG_BASE").map(|_| ())
    }

    /// The pages that were written, and forgets them.
    fn take(&self) -> Result<BTreeSet<u64>, Failure> {
        let mut bytes = vec![0; self.bytes as usize];
        let read = rustix::io::pread(&self.file, &mut bytes, 0).context("reading the log")?;
        assert_eq!(read, bytes.len());
        rustix::io::pwrite(&self.file, &vec![0; bytes.len()], 0).context("clearing the log")?;
        let pages = (0..self.bytes * 8).filter(|page| bytes[(page / 8) as usize] & (1 << (page % 8)) != 0);
        Ok(pages.collect())
    }
}

/// A read of two pages, with header, data and status on pages of their own.
struct Chain {
    header: GuestAddress,
    data: GuestAddress,
    status: GuestAddress,
}

impl Chain {
    fn new(front_end: &mut FrontEnd) -> Result<Chain, Failure> {
        let mut page = |count| front_end.memory().allocate(count * PAGE, PAGE).context("guest memory");
        Ok(Chain { header: page(1)?, data: page(2)?, status: page(1)? })
    }

    fn run(&self, front_end: &mut FrontEnd, kind: u32) -> Result<(), Failure> {
        let header = front_end.memory().window(self.header, request::HEADER).context("the header")?;
        header.buffer().write_at(0, &kind.to_le_bytes()).context("writing the header")?;
        let data = if kind == request::IN { Piece::writable } else { Piece::readable };
        let pieces = [
            Piece::readable(self.header, request::HEADER as u32),
            data(self.data, 2 * PAGE as u32),
            Piece::writable(self.status, 1),
        ];
        let queue = front_end.queue_mut(0);
        queue.driver().add(&pieces).ok_or_else(|| Failure::new("the ring has no room"))?;
        queue.publish();
        let start = Instant::now();
        while queue.driver().take().is_none() {
            if start.elapsed() > WAIT {
                return Err(Failure::new(format!("waited {WAIT:?} in vain for a request")));
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

#[test]
fn a_migration_log_has_the_pages_that_were_written_and_no_others() {
    if !possible("dirty log", &[]) {
        return;
    }
    Lab::run("dirty-log", |lab| {
        let daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("data", "memory = { size = \"1 MiB\" }", 1)))?;
        let options = Options { protocol: ProtocolFeatures::LOG_SHMFD, spare_memory: 16 * PAGE, ..Options::default() };
        let mut front_end = connect(&daemon, "data", &options)?;
        let chain = Chain::new(&mut front_end)?;
        let region = front_end.memory().region();
        let pages = (region.guest_address + region.size).div_ceil(PAGE);
        // Used ring: its address is the front end's, what is logged is the guest's.
        let ring = front_end.queue_mut(0).addresses();
        let used = ring.device.0 - region.user_address + region.guest_address;
        let used_page = used / PAGE;
        let log_ring = |front_end: &mut FrontEnd, flags| {
            let message = Message::SetVringAddr(VringAddress {
                index: 0,
                flags,
                descriptor: ring.descriptors.0,
                used: ring.device.0,
                available: ring.driver.0,
                log: used,
            });
            front_end.control().call(&message, &[]).context("SET_VRING_ADDR").map(|_| ())
        };
        let features = front_end.negotiated().features;
        let with_features = |front_end: &mut FrontEnd, bits| {
            front_end.control().call(&Message::SetFeatures(bits), &[]).context("SET_FEATURES").map(|_| ())
        };
        chain.run(&mut front_end, request::IN)?;

        // As QEMU does it while the guest runs: log, feature, rings.
        let log = Log::new(pages.div_ceil(8).next_multiple_of(8))?;
        log.announce(&mut front_end)?;
        with_features(&mut front_end, features | F_LOG_ALL)?;
        log_ring(&mut front_end, VRING_F_LOG)?;
        log.take()?;

        chain.run(&mut front_end, request::IN)?;
        let page = |address: GuestAddress| address.0 / PAGE;
        let status = page(chain.status);
        let wanted = BTreeSet::from([page(chain.data), page(chain.data) + 1, status, used_page]);
        assert_eq!(log.take()?, wanted, "a read: its data, its status, the used ring");
        chain.run(&mut front_end, request::OUT)?;
        assert_eq!(log.take()?, BTreeSet::from([status, used_page]), "a write: its status, the used ring");

        // A ring that is not to be logged is not; what the device writes is, for as long as the feature is there.
        log_ring(&mut front_end, 0)?;
        log.take()?;
        chain.run(&mut front_end, request::OUT)?;
        assert_eq!(log.take()?, BTreeSet::from([status]));
        with_features(&mut front_end, features)?;
        log.take()?;
        chain.run(&mut front_end, request::IN)?;
        assert_eq!(log.take()?, BTreeSet::new());
        drop(front_end);
        daemon.stop()
    });
}

#[test]
fn a_log_that_does_not_cover_the_guests_memory_is_refused() {
    if !possible("dirty log that is too small", &[]) {
        return;
    }
    Lab::run("small-log", |lab| {
        let daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("data", "memory = { size = \"1 MiB\" }", 1)))?;
        let options = Options { protocol: ProtocolFeatures::LOG_SHMFD, ..Options::default() };
        let mut front_end = connect(&daemon, "data", &options)?;
        let features = front_end.negotiated().features;
        let asked = Log::new(8)?.announce(&mut front_end).and_then(|()| {
            let message = Message::SetFeatures(features | F_LOG_ALL);
            front_end.control().call(&message, &[]).context("SET_FEATURES").map(|_| ())
        });
        assert!(asked.is_err(), "a log of 64 pages was taken for guest memory above 1 MiB");
        // Whether the connection survives is the daemon's choice; the next one has to work.
        drop(front_end);
        let mut front_end = connect(&daemon, "data", &Options::default())?;
        write(&mut front_end, 0, &[1; 512])?;
        drop(front_end);
        daemon.stop()
    });
}
