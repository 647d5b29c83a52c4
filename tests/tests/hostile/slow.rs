//! Front ends that make the kernel slow wherever softdpu touches what is theirs: a call eventfd with many watches, and
//! memory that is being punched.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Resource, getrlimit, setrlimit};
use softdpu_memory::GuestAddress;
use softdpu_ring::driver::Piece;
use softdpu_tests::{Context, Failure};
use softdpu_transport::vhost_user::{FdPresence, Message};

use crate::client::{BLOCK, DATA, FrontEnd, GUEST, HEADERS, IN, MEMORY, Memory, PATIENCE, STATUSES, Settings};

/// Between two polls of a driver that takes no interrupts.
const LOOK: Duration = Duration::from_micros(20);

/// Copies of the call eventfd, and epoll instances: each of the latter watches each of the former. A signal visits all
/// watches, with interrupts off.
const SIDE: usize = 450;

/// Descriptors that this process may have to have.
const DESCRIPTORS: u64 = 4096;

/// A front end with a call eventfd that some 200,000 watches make slow to signal.
pub struct Watched {
    front: FrontEnd,
    watchers: Vec<OwnedFd>,
}

impl Watched {
    pub fn start(socket: &Path) -> Result<Watched, Failure> {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum.map_or(Some(DESCRIPTORS), |most| Some(most.min(DESCRIPTORS)));
        setrlimit(Resource::Nofile, limit).context("descriptors for many watches")?;
        let front = FrontEnd::start(socket, Arc::new(Memory::new(MEMORY)?), Settings::SPLIT)?;
        let copies = (0..SIDE).map(|_| front.call.try_clone().context("copying an eventfd"));
        let copies = copies.collect::<Result<Vec<_>, _>>()?;
        let watcher = || {
            let watcher = epoll::create(epoll::CreateFlags::CLOEXEC).context("an epoll instance")?;
            for copy in &copies {
                epoll::add(&watcher, copy, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
                    .context("watching an eventfd")?;
            }
            Ok::<_, Failure>(watcher)
        };
        let watchers = (0..SIDE).map(|_| watcher()).collect::<Result<Vec<_>, _>>()?;
        // The watches stay for as long as any copy of what is watched is open.
        Ok(Watched { front, watchers })
    }

    /// Passes the call eventfd again and again for so long, each of which is followed by an interrupt.
    pub fn pass_for(&mut self, time: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        while start.elapsed() < time {
            let call = self.front.call.try_clone().context("copying an eventfd")?;
            self.front.call(&Message::SetVringCall(FdPresence { index: 0, present: true }), &[call.as_fd()])?;
        }
        Ok(())
    }

    /// Ends all watches.
    pub fn unwatch(&mut self) {
        self.watchers.clear();
    }

    /// Reads for so long, one block after the other, each of which ends with an interrupt.
    pub fn read_for(&mut self, time: Duration) -> Result<(), Failure> {
        let start = Instant::now();
        read_until(&mut self.front, DATA, || start.elapsed() >= time)
    }
}

/// Bytes of memory that are punched at once, behind those that the rings are in.
const PUNCHED: u64 = 1 << 30;

/// A front end that punches much of its memory at once, and has blocks read into it meanwhile: a fault there waits
/// until the last page is freed.
pub struct Puncher {
    front: FrontEnd,
}

impl Puncher {
    pub fn start(socket: &Path) -> Result<Puncher, Failure> {
        let memory = Arc::new(Memory::new(MEMORY + PUNCHED)?);
        Ok(Puncher { front: FrontEnd::start(socket, memory, Settings::SPLIT)? })
    }

    /// Gives the memory pages, which a punch has to free.
    pub fn fill(&self) -> Result<(), Failure> {
        fallocate(&self.front.memory.fd, FallocateFlags::empty(), MEMORY, PUNCHED).context("filling memory")
    }

    /// Punches it, and has blocks read into its last page until that is done, or not.
    pub fn punch(&mut self, reads: bool) -> Result<(), Failure> {
        let memory = Arc::clone(&self.front.memory);
        std::thread::scope(|scope| {
            let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let puncher = scope.spawn(move || fallocate(&memory.fd, punch, MEMORY, PUNCHED));
            if reads {
                let last = MEMORY + PUNCHED - BLOCK as u64;
                read_until(&mut self.front, last, || puncher.is_finished())?;
            }
            puncher.join().map_err(|_| Failure::new("the puncher panicked"))?.context("punching memory")
        })
    }
}

/// Reads one block after the other into memory at `data`, and waits for each by polling, until `is_over`.
fn read_until(front: &mut FrontEnd, data: u64, is_over: impl Fn() -> bool) -> Result<(), Failure> {
    let place = |offset: u64| GuestAddress(GUEST + offset);
    while !is_over() {
        let asked = Instant::now();
        front.header(0, IN, 0);
        let request = [
            Piece::readable(place(HEADERS), 16),
            Piece { address: place(data), len: BLOCK as u32, writable: true },
            Piece::writable(place(STATUSES), 1),
        ];
        front.driver.add(&request).ok_or_else(|| Failure::new("the ring has no room for one request"))?;
        front.publish();
        while front.driver.take().is_none() {
            if asked.elapsed() > PATIENCE {
                return Err(Failure::new("a read did not come back"));
            }
            std::thread::sleep(LOOK);
        }
        if front.status(0) != 0 {
            return Err(Failure::new(format!("a read ended with status {}", front.status(0))));
        }
    }
    Ok(())
}
