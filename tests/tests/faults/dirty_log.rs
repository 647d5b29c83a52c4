//! The log of written pages that a migration reads (vhost-user: Migration).

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use softdpu_device::block::abi::request;
use softdpu_frontend::{BlockFrontEnd, BlockOptions, Connection, Format, Frames, NetFrontEnd, NetOptions, Station};
use softdpu_memory::GuestAddress;
use softdpu_ring::driver::Piece;
use softdpu_tests::{Context, Daemon, Failure, Lab, Site, skip};
use softdpu_transport::vhost_user::{F_LOG_ALL, LogDescription, Message, ProtocolFeatures, VringAddress};

use crate::common::*;

const PAGE: u64 = 4096;
/// Within this time what was written is marked.
const MARKED: Duration = Duration::from_secs(10);
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

    fn announce(&self, control: &mut Connection) -> Result<(), Failure> {
        let message = Message::SetLogBase(LogDescription { size: self.bytes, offset: 0 });
        control.call(&message, &[self.file.as_fd()]).context("SET_LOG_BASE").map(|_| ())
    }

    /// The pages that were written, and forgets them; all of `wanted` if they are marked soon: a page is marked a
    /// moment after the driver sees what was written.
    fn written(&self, wanted: &[u64]) -> Result<BTreeSet<u64>, Failure> {
        let start = Instant::now();
        while start.elapsed() < MARKED {
            let pages = self.pages()?;
            if wanted.iter().all(|page| pages.contains(page)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.take()
    }

    /// The pages that were written, and forgets them.
    fn take(&self) -> Result<BTreeSet<u64>, Failure> {
        let pages = self.pages()?;
        rustix::io::pwrite(&self.file, &vec![0; self.bytes as usize], 0).context("clearing the log")?;
        Ok(pages)
    }

    /// The pages that were written so far.
    fn pages(&self) -> Result<BTreeSet<u64>, Failure> {
        let mut bytes = vec![0; self.bytes as usize];
        let read = rustix::io::pread(&self.file, &mut bytes, 0).context("reading the log")?;
        assert_eq!(read, bytes.len());
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
    fn new(front_end: &mut BlockFrontEnd) -> Result<Chain, Failure> {
        let mut page = |count| front_end.memory().allocate(count * PAGE, PAGE).context("guest memory");
        Ok(Chain { header: page(1)?, data: page(2)?, status: page(1)? })
    }

    fn run(&self, front_end: &mut BlockFrontEnd, kind: u32) -> Result<(), Failure> {
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
        given_back(|| queue.driver().take().is_some())
    }
}

#[test]
fn a_migration_log_has_the_pages_that_were_written_and_no_others() {
    run_disks("dirty-log", &disk("data", MEMORY, 1), |_, daemon| {
        let options =
            BlockOptions { protocol: ProtocolFeatures::LOG_SHMFD, spare_memory: 16 * PAGE, ..BlockOptions::default() };
        let mut front_end = connect(daemon, "data", &options)?;
        let chain = Chain::new(&mut front_end)?;
        let region = front_end.memory().region();
        let pages = (region.guest_address + region.size).div_ceil(PAGE);
        // Used ring: its address is the front end's, what is logged is the guest's.
        let ring = front_end.queue_mut(0).addresses();
        let used = ring.device.0 - region.user_address + region.guest_address;
        let used_page = used / PAGE;
        let log_ring = |front_end: &mut BlockFrontEnd, flags| {
            let message = Message::SetVringAddr(VringAddress {
                index: 0,
                flags,
                descriptor: ring.descriptors.0,
                used: ring.device.0,
                available: ring.driver.0,
                log: used,
            });
            front_end.connection().call(&message, &[]).context("SET_VRING_ADDR").map(|_| ())
        };
        let features = front_end.negotiated().features;
        let with_features = |front_end: &mut BlockFrontEnd, bits| {
            front_end.connection().call(&Message::SetFeatures(bits), &[]).context("SET_FEATURES").map(|_| ())
        };
        chain.run(&mut front_end, request::IN)?;

        // As QEMU does it while the guest runs: log, feature, rings.
        let log = Log::new(pages.div_ceil(8).next_multiple_of(8))?;
        log.announce(front_end.connection())?;
        with_features(&mut front_end, features | F_LOG_ALL)?;
        log_ring(&mut front_end, VRING_F_LOG)?;
        log.take()?;

        chain.run(&mut front_end, request::IN)?;
        let page = |address: GuestAddress| address.0 / PAGE;
        let status = page(chain.status);
        let wanted = BTreeSet::from([page(chain.data), page(chain.data) + 1, status, used_page]);
        let pages: Vec<u64> = wanted.iter().copied().collect();
        assert_eq!(log.written(&pages)?, wanted, "a read: its data, its status, the used ring");
        chain.run(&mut front_end, request::OUT)?;
        let written = log.written(&[status, used_page])?;
        assert_eq!(written, BTreeSet::from([status, used_page]), "a write: its status, the used ring");

        // A ring that is not to be logged is not; what the device writes is, for as long as the feature is there.
        log_ring(&mut front_end, 0)?;
        log.take()?;
        chain.run(&mut front_end, request::OUT)?;
        assert_eq!(log.written(&[status])?, BTreeSet::from([status]));
        with_features(&mut front_end, features)?;
        log.take()?;
        chain.run(&mut front_end, request::IN)?;
        assert_eq!(log.take()?, BTreeSet::new());
        Ok(())
    });
}

#[test]
fn a_log_that_does_not_cover_the_guests_memory_is_refused() {
    run_disks("small-log", &disk("data", MEMORY, 1), |_, daemon| {
        let options = BlockOptions { protocol: ProtocolFeatures::LOG_SHMFD, ..BlockOptions::default() };
        let mut front_end = connect(daemon, "data", &options)?;
        let features = front_end.negotiated().features;
        let asked = Log::new(8)?.announce(front_end.connection()).and_then(|()| {
            let message = Message::SetFeatures(features | F_LOG_ALL);
            front_end.connection().call(&message, &[]).context("SET_FEATURES").map(|_| ())
        });
        assert!(asked.is_err(), "a log of 64 pages was taken for guest memory above 1 MiB");
        // Whether the connection survives is the daemon's choice; the next one has to work.
        drop(front_end);
        write(&mut connect(daemon, "data", &BlockOptions::default())?, 0, &[1; 512])
    });
}

/// A site with a network of two interfaces.
fn site(cores: &[u32]) -> String {
    let interface = |name: &str, Station { mac, address }: Station| {
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        let keys = format!("network = 'acme', address = '{address}', mac = '{mac}', packed = true");
        format!("virtio-net = {{ {keys}, socket = '{name}.sock' }}")
    };
    let site = Site::on(cores).network("acme", 5001, &["10.0.0.0/24"]);
    site.device("a", &interface("a", A)).device("b", &interface("b", B)).to_string()
}

const A: Station = Station { mac: [2, 0x5d, 0, 0, 0, 0xa], address: std::net::Ipv4Addr::new(10, 0, 0, 10) };
const B: Station = Station { mac: [2, 0x5d, 0, 0, 0, 0xb], address: std::net::Ipv4Addr::new(10, 0, 0, 11) };

/// Waits until a ring's device has given a chain back, which `took` looks for.
fn given_back(mut took: impl FnMut() -> bool) -> Result<(), Failure> {
    let start = Instant::now();
    while !took() {
        if start.elapsed() > WAIT {
            return Err(Failure::new(format!("waited {WAIT:?} in vain for a chain")));
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

/// Sends a frame, and waits until it has arrived.
fn send(a: &mut NetFrontEnd, b: &mut NetFrontEnd, frames: Frames) -> Result<(), Failure> {
    let bytes = frames.build(0, 1, A, B);
    let at = a.memory.allocate(PAGE, PAGE).context("a frame")?;
    let window = a.memory.window(at, bytes.len()).context("a frame")?;
    window.buffer().write_at(0, &bytes).context("writing a frame")?;
    let added = a.transmit.driver.add(&[Piece::readable(at, bytes.len() as u32)]);
    added.ok_or_else(|| Failure::new("no room for a frame"))?;
    a.transmit.publish();
    given_back(|| b.receive.driver.take().is_some())?;
    given_back(|| a.transmit.driver.take().is_some())
}

/// An interface under a log.
struct Logged {
    port: NetFrontEnd,
    log: Log,
    format: Format,
}

impl Logged {
    fn new(lab: &Lab, name: &str, format: Format) -> Result<Logged, Failure> {
        let options = NetOptions {
            queue_size: 16,
            format,
            required: Vec::new(),
            memory: 32 * PAGE,
            timeout: WAIT,
            status: false,
        };
        let port = NetFrontEnd::connect(&lab.path().join(format!("{name}.sock")), &options)
            .context(format_args!("connecting {name}"))?;
        let region = port.memory.region();
        let pages = (region.guest_address + region.size).div_ceil(PAGE);
        Ok(Logged { port, log: Log::new(pages.div_ceil(8).next_multiple_of(8))?, format })
    }

    /// Begins to log, queue `index` and all that is received.
    fn begin(&mut self, index: u32) -> Result<(), Failure> {
        let ring = if index == 0 { &self.port.receive } else { &self.port.transmit };
        let addresses = ring.addresses();
        let log = self.guest(self.written(index));
        let features = self.port.negotiated().features | F_LOG_ALL;
        let control = self.port.connection().ok_or_else(|| Failure::new("the interface has no connection"))?;
        self.log.announce(control)?;
        control.call(&Message::SetFeatures(features), &[]).context("SET_FEATURES")?;
        let message = Message::SetVringAddr(VringAddress {
            index,
            flags: VRING_F_LOG,
            descriptor: addresses.descriptors.0,
            used: addresses.device.0,
            available: addresses.driver.0,
            log,
        });
        control.call(&message, &[]).context("SET_VRING_ADDR")?;
        self.log.take().map(drop)
    }

    /// The part of a ring into which its device writes what it has used, as the front end sees it.
    fn written(&self, index: u32) -> u64 {
        let ring = if index == 0 { &self.port.receive } else { &self.port.transmit };
        match self.format {
            Format::Split => ring.addresses().device.0,
            Format::Packed => ring.addresses().descriptors.0,
        }
    }

    fn guest(&self, user: u64) -> u64 {
        let region = self.port.memory.region();
        user - region.user_address + region.guest_address
    }

    /// Pages into which a device may write of a ring: entries, and the area where it asks for notifications.
    fn ring_pages(&self, index: u32) -> [u64; 2] {
        let ring = if index == 0 { &self.port.receive } else { &self.port.transmit };
        [self.written(index), ring.addresses().device.0].map(|at| self.guest(at) / PAGE)
    }
}

/// The pages of a log are those that had to be written, and none beside those that may.
fn check(what: &str, found: &BTreeSet<u64>, written: &[u64], may: &[u64]) {
    let missing: Vec<_> = written.iter().filter(|page| !found.contains(page)).collect();
    assert!(missing.is_empty(), "{what}: pages {missing:?} were written and are not marked: {found:?}");
    let other: Vec<_> = found.iter().filter(|page| !written.contains(page) && !may.contains(page)).collect();
    assert!(other.is_empty(), "{what}: pages {other:?} are marked and were not written: {found:?}");
}

#[test]
fn a_migration_log_has_the_pages_into_which_frames_were_written() {
    let cores: &[u32] = if cpus() < 2 { &[0] } else { &[0, 1] };
    if cores.len() < 2 {
        skip("a log of frames from another core", "this machine has one CPU");
    }
    run("dirty-log-net", &[], |lab| {
        let daemon = Daemon::start(lab.path(), &site(cores))?;
        for (format, sender) in
            [Format::Split, Format::Packed].into_iter().flat_map(|f| cores.iter().map(move |c| (f, c)))
        {
            let what = format!("{format:?}, the sender on core {sender}, the receiver on core 0");
            let (mut a, mut b) = (Logged::new(lab, "a", format)?, Logged::new(lab, "b", format)?);
            daemon.command(&["queue", "move", "a", "1", &sender.to_string()])?;
            daemon.command(&["queue", "move", "b", "0", "0"])?;
            // Of 2,048 bytes each, over the end of a page: a frame of 1,514 bytes behind its header lies on two pages,
            // one of 60 bytes on one.
            let buffers = b.port.memory.allocate(12 * PAGE, PAGE).context("receive buffers")?;
            let buffer = |number: u64| GuestAddress(buffers.0 + (2 * number + 1) * PAGE - 1000);
            for number in 0..4 {
                let added = b.port.receive.driver.add(&[Piece::writable(buffer(number), 2048)]);
                added.ok_or_else(|| Failure::new("no room for a buffer"))?;
            }
            b.port.receive.publish();
            // Before anything is logged: the queues work.
            send(&mut a.port, &mut b.port, Frames::Smallest)?;
            b.begin(0)?;
            a.begin(1)?;
            let page = |number| buffer(number).0 / PAGE;
            for (frames, pages) in [(Frames::Mtu, vec![page(1), page(1) + 1]), (Frames::Smallest, vec![page(2)])] {
                send(&mut a.port, &mut b.port, frames)?;
                let ring = b.ring_pages(0);
                let wanted = [&pages[..], &ring[..1]].concat();
                check(&format!("{what}, a frame of {frames}"), &b.log.written(&wanted)?, &wanted, &ring);
                // The sender's memory is written to nowhere but in its ring.
                let ring = a.ring_pages(1);
                check(&format!("{what}, the sender"), &a.log.written(&ring[..1])?, &ring[..1], &ring);
            }
        }
        daemon.stop()
    });
}
