//! TAP: an interface of the host with its other end in this process, with virtio-net's offloads.
//!
//! A frame a read or write, as the kernel has no batch call for TAP; large frames (64 KiB with segmentation offload)
//! make up for it.

mod offloads;

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fcntl_getfl, fcntl_setfl, open};
use rustix::io::Errno;
use smallvec::SmallVec;

use self::offloads::negotiate;
use super::outbox::Outbox;
use super::scatter::{NotAdded, Scatter};
use super::{Counters, Frame, InterfaceName, MAX_BATCH, MAX_FRAME, Outgoing, PortError, VnetHeader, link};
use crate::IoMemory;

pub use self::offloads::Offloads;

/// Memory of a receive batch: at least seven of the largest frames, hundreds of small ones.
const INBOX: usize = 512 * 1024;
/// Space a frame needs before it is read; one byte more than the largest, so that a longer one shows.
const LARGEST: usize = VnetHeader::SIZE + MAX_FRAME + 1;

/// How a TAP is opened.
#[derive(Clone, Copy, Debug)]
pub struct TapOptions {
    /// Several queues: open the same name as often as there are to be queues.
    pub multi_queue: bool,
    /// The interface stays when its last descriptor is closed (`ip link del` removes it).
    pub persistent: bool,
    /// What the host's stack may leave to us; the port offers the part of it that the kernel has.
    pub offloads: Offloads,
}

impl Default for TapOptions {
    fn default() -> Self {
        TapOptions { multi_queue: false, persistent: false, offloads: Offloads::ALL }
    }
}

/// One queue of a TAP interface.
pub struct Tap {
    fd: OwnedFd,
    name: InterfaceName,
    offloads: Offloads,
    inbox: Box<[u8]>,
    outbox: Outbox,
    counters: Counters,
}

impl Tap {
    /// Makes the interface, or attaches to it if it is there, in the calling thread's network namespace (see
    /// [`namespace::within`](crate::namespace::within)). It is down at first; [`link::Links`] sets it up.
    ///
    /// # Errors
    /// [`PortError::NotPermitted`] without CAP_NET_ADMIN, [`PortError::Busy`] if another process has the queue,
    /// [`PortError::Unsupported`] without TAP in the kernel or with an older one than 4.8.
    pub fn open(name: &str, options: &TapOptions) -> Result<Self, PortError> {
        let interface = InterfaceName::new(name)?;
        let fd = device(name)?;
        let mut request = interface.request();
        let mut flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
        if options.multi_queue {
            flags |= libc::IFF_MULTI_QUEUE;
        }
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        link::ioctl(fd.as_fd(), libc::TUNSETIFF as _, &mut request, name, "making the TAP").map_err(explain)?;
        if options.persistent {
            set(fd.as_fd(), libc::TUNSETPERSIST as _, 1, name, "making it persistent")?;
        }
        Self::adopt(fd, options.offloads)
    }

    /// Takes over a queue of a TAP that another process opened (a supervisor). It becomes non-blocking, and has
    /// `offloads` from now on as far as the kernel has them.
    ///
    /// # Errors
    /// [`PortError::WrongDescriptor`] if it is no TAP, or one without virtio-net's header.
    pub fn adopt(fd: OwnedFd, offloads: Offloads) -> Result<Self, PortError> {
        let wrong = |name: &str, problem: String| PortError::WrongDescriptor { name: name.to_owned(), problem };
        // SAFETY: ifreq is plain data for which zeroes are valid.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        link::ioctl(fd.as_fd(), libc::TUNGETIFF as _, &mut request, "TAP", "reading its name")
            .map_err(|error| wrong("TAP", format!("is no attached TAP ({error})")))?;
        let name = InterfaceName::new(&InterfaceName::in_request(&request))?;
        // SAFETY: TUNGETIFF filled in this member.
        let flags = i32::from(unsafe { request.ifr_ifru.ifru_flags });
        for (bit, problem) in [
            (libc::IFF_TAP, "is a TUN, which has no Ethernet; make it with `ip tuntap add mode tap`"),
            (libc::IFF_NO_PI, "has packet information in front of frames; open it with IFF_NO_PI"),
            (libc::IFF_VNET_HDR, "has no virtio-net header; open it with IFF_VNET_HDR"),
        ] {
            if flags & bit == 0 {
                return Err(wrong(name.as_str(), problem.to_owned()));
            }
        }
        let text = name.as_str();
        let status = fcntl_getfl(&fd).map_err(|errno| at(text, "reading its status", errno))?;
        fcntl_setfl(&fd, status | OFlags::NONBLOCK).map_err(|errno| at(text, "making it non-blocking", errno))?;
        set(fd.as_fd(), libc::TUNSETVNETHDRSZ as _, VnetHeader::SIZE as i32, text, "setting the header's size")?;
        let offloads = negotiate(fd.as_fd(), text, offloads)?;
        Ok(Tap {
            fd,
            name,
            offloads,
            inbox: vec![0; INBOX].into_boxed_slice(),
            outbox: Outbox::new(VnetHeader::SIZE),
            counters: Counters::default(),
        })
    }

    /// For poll, epoll and io_uring's poll.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The interface.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    /// What the host's stack leaves to us. Frames towards it may have all that virtio-net has.
    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Changes what the host's stack may leave to us; what the kernel has of it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_offloads(&mut self, offloads: Offloads) -> Result<Offloads, PortError> {
        self.offloads = negotiate(self.fd.as_fd(), self.name.as_str(), offloads)?;
        Ok(self.offloads)
    }

    /// Lets the interface stay, or go, when its last descriptor is closed.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn set_persistent(&self, persistent: bool) -> Result<(), PortError> {
        let name = self.name.as_str();
        set(self.fd.as_fd(), libc::TUNSETPERSIST as _, i32::from(persistent), name, "making it persistent or not")
    }

    /// Gives up to `max` frames (at most [`MAX_BATCH`]) that are there to `batch`, which is not called when there are
    /// none. How many there were.
    ///
    /// # Errors
    /// [`PortError::Kernel`] when the interface was removed.
    pub fn receive(&mut self, max: usize, batch: impl FnOnce(&mut [Frame<'_>])) -> Result<usize, PortError> {
        let mut frames = SmallVec::<[Frame<'_>; MAX_BATCH]>::new();
        let mut rest = &mut self.inbox[..];
        let mut outcome = Ok(());
        while frames.len() < max.min(MAX_BATCH) && rest.len() >= LARGEST {
            let len = match rustix::io::read(&self.fd, &mut rest[..LARGEST]) {
                Ok(len) => len,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => continue,
                Err(errno) => {
                    outcome = Err(at(self.name.as_str(), "receiving from the TAP", errno));
                    break;
                }
            };
            if !(VnetHeader::SIZE..LARGEST).contains(&len) {
                self.counters.truncated += 1;
                continue;
            }
            let (used, behind) = rest.split_at_mut(len);
            let (header, bytes) = used.split_at_mut(VnetHeader::SIZE);
            frames.push(Frame { header: VnetHeader::from_bytes(header), bytes });
            rest = behind;
        }
        match self.counters.deliver(&mut frames, batch) {
            0 => outcome.map(|()| 0),
            count => Ok(count),
        }
    }

    /// Space for a frame of `len` bytes; none while frames wait that fill the port's memory ([`flush`](Self::flush)).
    /// Every byte has to be written: older frames are still in it.
    pub fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.outbox.reserve(len)
    }

    /// Queues the first `len` bytes of the space last reserved. Whether there was any.
    pub fn commit(&mut self, header: VnetHeader, len: usize) -> bool {
        self.outbox.commit(header, len)
    }

    /// Frames that are queued and not yet with the kernel.
    pub fn waiting(&self) -> usize {
        self.outbox.waiting().len()
    }

    /// Hands queued frames to the kernel until it takes no more. How many are gone: sent, or dropped and counted.
    ///
    /// # Errors
    /// [`PortError::Down`]; the frames that wait are dropped.
    pub fn flush(&mut self) -> Result<usize, PortError> {
        let mut done = 0;
        let mut outcome = Ok(());
        for frame in self.outbox.waiting() {
            match Verdict::of(rustix::io::write(&self.fd, frame)) {
                Verdict::Later => break,
                Verdict::Sent => self.counters.sent += 1,
                Verdict::Refused => self.counters.refused += 1,
                Verdict::Down(errno) => {
                    outcome = Err(errno);
                    self.counters.refused += (self.outbox.waiting().len() - done) as u64;
                    done = self.outbox.waiting().len();
                    break;
                }
            }
            done += 1;
        }
        self.outbox.advance(done);
        outcome.map(|()| done).map_err(|errno| self.down(errno))
    }

    /// Hands frames with their payload elsewhere to the kernel, after those that are queued. So many of the first are
    /// gone: sent, or dropped and counted; the rest is to be tried again later.
    ///
    /// # Errors
    /// [`PortError::Down`]; none of the rest was sent.
    pub fn send<M: IoMemory>(&mut self, frames: &[Outgoing<'_, M>]) -> Result<usize, PortError> {
        self.flush()?;
        if self.waiting() > 0 {
            return Ok(0);
        }
        for (index, frame) in frames.iter().enumerate() {
            let header = frame.header.to_bytes();
            let mut scatter = Scatter::new();
            let verdict = match scatter.add(&header, frame) {
                // SAFETY: `header` and `frame` are borrowed until after the call.
                Ok(span) => Verdict::of(unsafe { scatter.write(self.fd.as_fd(), span) }),
                Err(NotAdded::Full | NotAdded::Impossible) => Verdict::Refused,
            };
            match verdict {
                Verdict::Sent => self.counters.sent += 1,
                Verdict::Refused => self.counters.refused += 1,
                Verdict::Later => return Ok(index),
                Verdict::Down(errno) => return Err(self.down(errno)),
            }
        }
        Ok(frames.len())
    }

    fn down(&self, errno: Errno) -> PortError {
        // EIO is the driver's word for an interface that is not up.
        if errno == Errno::IO {
            return PortError::Down { name: self.name.as_str().to_owned() };
        }
        at(self.name.as_str(), "sending to the TAP", errno)
    }
}

/// What became of a frame.
enum Verdict {
    Sent,
    /// The interface's queue is full.
    Later,
    /// The kernel does not take such a frame.
    Refused,
    /// The interface takes none.
    Down(Errno),
}

impl Verdict {
    fn of(written: Result<usize, Errno>) -> Verdict {
        match written {
            Ok(_) => Verdict::Sent,
            Err(Errno::AGAIN | Errno::INTR) => Verdict::Later,
            Err(errno @ (Errno::IO | Errno::BADFD | Errno::NODEV | Errno::FAULT)) => Verdict::Down(errno),
            Err(_) => Verdict::Refused,
        }
    }
}

fn at(name: &str, doing: &'static str, errno: impl Into<io::Error>) -> PortError {
    PortError::at(name, doing, "CAP_NET_ADMIN", errno)
}

fn device(name: &str) -> Result<OwnedFd, PortError> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open("/dev/net/tun", flags, Mode::empty()).map(File::from).map(OwnedFd::from).map_err(|errno| match errno {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => PortError::Unsupported {
            name: name.to_owned(),
            what: "TAP",
            remedy: "`modprobe tun` loads it; a container needs the device /dev/net/tun",
        },
        errno => at(name, "opening /dev/net/tun", errno),
    })
}

fn explain(error: PortError) -> PortError {
    match error {
        PortError::Kernel { name, doing, source } => match source.raw_os_error() {
            Some(libc::EBUSY) => PortError::Busy {
                name,
                doing,
                remedy: "`ip -d tuntap` lists processes; several queues need multi-queue on all of them",
            },
            Some(libc::EINVAL) => PortError::Setting {
                problem: format!(
                    "there is an interface of this name that is no TAP, or one with other flags (multi-queue); \
                     `ip -d link show {name}` tells"
                ),
                name,
            },
            _ => PortError::Kernel { name, doing, source },
        },
        error => error,
    }
}

/// An ioctl of the TAP driver that takes a pointer to an int.
fn set(
    fd: BorrowedFd<'_>,
    number: libc::c_ulong,
    value: i32,
    name: &str,
    doing: &'static str,
) -> Result<(), PortError> {
    // TUNSETPERSIST takes the value itself, TUNSETVNETHDRSZ a pointer to it.
    let persist = number == libc::TUNSETPERSIST as libc::c_ulong;
    // SAFETY: the argument is an integer, or points to one that lives through the call and is only read.
    let answer = unsafe {
        if persist {
            libc::ioctl(fd.as_raw_fd(), number as _, libc::c_ulong::from(value != 0))
        } else {
            libc::ioctl(fd.as_raw_fd(), number as _, &value as *const i32)
        }
    };
    if answer < 0 { Err(at(name, doing, io::Error::last_os_error())) } else { Ok(()) }
}
