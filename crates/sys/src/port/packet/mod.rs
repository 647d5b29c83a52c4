//! AF_PACKET: a copy of an interface's traffic, with virtio-net's offloads.
//!
//! The fall-back underlay where AF_XDP does not go: any driver, any interface, and large frames and unfinished
//! checksums pass whole, which makes it the faster of the two between namespaces of one host (veth).
//!
//! **The kernel keeps its share.** A socket gets copies: the host's own stack sees the same frames and acts on them.
//! With a [filter](PacketOptions::udp_port) the copies are limited to one UDP port, and a [`PortSink`] keeps the host
//! from answering those with ICMP port unreachable. ARP and neighbour discovery stay the kernel's. Frames of VLANs on
//! top of the interface are left alone and counted; open the VLAN's interface for them.
//!
//! **How frames travel.** Received ones come through a TPACKET_V2 ring, without a system call. Sent ones go with
//! sendmmsg, which copies: TPACKET's transmit ring would not, but the kernel reports a slot as free as soon as the
//! frame leaves its socket's account, and on veth that is before the receiver has read it.

mod filter;
mod ring;
mod setup;
mod sink;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType, socket_with};
use smallvec::SmallVec;

use self::ring::{Ring, Slot};
use self::setup::{bind, configure};
use super::option::get;
use super::outbox::Outbox;
use super::scatter::{NotAdded, Scatter};
use super::{Counters, Frame, InterfaceName, MAX_BATCH, MAX_FRAME, Outgoing, PortError, VnetHeader, link};
use crate::IoMemory;

pub use self::sink::PortSink;

/// Bytes of virtio-net's header before a frame: the short form. Linux 6.4 has the long one too (PACKET_VNET_HDR_SZ),
/// with a zero at its end, but writes it to the ring where the short one would be.
const HEADER: usize = VnetHeader::LEGACY_SIZE;
/// Memory for large frames of one batch: seven of the largest.
const LARGE: usize = 512 * 1024;
/// Space a large frame needs before it is read; one byte more than the largest, so that a longer one shows.
const LARGEST: usize = HEADER + MAX_FRAME + 1;

/// How sockets of one group share the interface's frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FanoutMode {
    /// By flow (addresses and ports of the outermost headers).
    Hash,
    /// In turns.
    RoundRobin,
    /// By the processor that received them.
    Cpu,
    /// By the receive queue of the driver.
    Queue,
}

/// A group of sockets of which each frame goes to one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fanout {
    /// Names the group within the network namespace.
    pub group: u16,
    /// Which of them gets a frame.
    pub mode: FanoutMode,
}

/// How an AF_PACKET socket is opened.
#[derive(Clone, Copy, Debug)]
pub struct PacketOptions {
    /// Only unfragmented UDP to this port, over IPv4 and IPv6; all frames if none.
    pub udp_port: Option<u16>,
    /// Shares the frames with other sockets.
    pub fanout: Option<Fanout>,
    /// Sends past the interface's queueing discipline: faster, and a full queue drops instead of waiting.
    pub bypass_qdisc: bool,
    /// Slots of the receive ring, 64 to 65,536. At an MTU of 1,500 each is 2 KiB.
    pub ring_frames: usize,
}

impl Default for PacketOptions {
    fn default() -> Self {
        PacketOptions { udp_port: None, fanout: None, bypass_qdisc: true, ring_frames: 4096 }
    }
}

/// A socket that receives and sends whole frames at an interface.
pub struct PacketSocket {
    ring: Ring,
    fd: OwnedFd,
    name: InterfaceName,
    large: Box<[u8]>,
    outbox: Outbox,
    counters: Counters,
    kernel_drops: u64,
}

impl PacketSocket {
    /// Opens a socket on an interface of the calling thread's network namespace (see
    /// [`namespace::within`](crate::namespace::within)).
    ///
    /// # Errors
    /// [`PortError::NotPermitted`] without CAP_NET_RAW, [`PortError::NoInterface`], and what the kernel says.
    pub fn open(name: &str, options: &PacketOptions) -> Result<Self, PortError> {
        Self::adopt(Self::socket(name)?, name, options)
    }

    /// A socket that receives nothing yet, for another process to [`adopt`](Self::adopt): only this part needs
    /// CAP_NET_RAW.
    ///
    /// # Errors
    /// [`PortError::NotPermitted`], [`PortError::BadName`].
    pub fn socket(name: &str) -> Result<OwnedFd, PortError> {
        InterfaceName::new(name)?;
        // Protocol 0: no frame arrives before the socket is bound.
        socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
            .map_err(|errno| PortError::at(name, "opening a packet socket", "CAP_NET_RAW", errno))
    }

    /// Takes over a packet socket that another process opened (a supervisor) and that may have served another process
    /// on the same interface before. Frames that came meanwhile are lost.
    ///
    /// # Errors
    /// [`PortError::WrongDescriptor`] if it is no packet socket; as for [`open`](Self::open).
    pub fn adopt(fd: OwnedFd, name: &str, options: &PacketOptions) -> Result<Self, PortError> {
        let interface = InterfaceName::new(name)?;
        let mut request = interface.request();
        link::ioctl(fd.as_fd(), libc::SIOCGIFINDEX as _, &mut request, name, "looking up its index")?;
        // SAFETY: SIOCGIFINDEX filled in this member.
        let index = unsafe { request.ifr_ifru.ifru_ifindex };
        link::ioctl(fd.as_fd(), libc::SIOCGIFMTU as _, &mut request, name, "reading its MTU")?;
        // SAFETY: SIOCGIFMTU filled in this member.
        let mtu = unsafe { request.ifr_ifru.ifru_mtu }.max(0) as usize;
        let at = |doing| move |errno: Errno| PortError::at(name, doing, "CAP_NET_RAW", errno);
        Ring::remove(fd.as_fd()).map_err(|errno| match errno {
            Errno::NOPROTOOPT | Errno::NOTSOCK | Errno::OPNOTSUPP => {
                PortError::WrongDescriptor { name: name.to_owned(), problem: "is no AF_PACKET socket".to_owned() }
            }
            errno => at("removing an earlier ring")(errno),
        })?;
        configure(fd.as_fd(), options).map_err(at("setting its options"))?;
        let ring = Ring::new(fd.as_fd(), mtu, options.ring_frames).map_err(at("making its receive ring"))?;
        bind(fd.as_fd(), index, options.fanout).map_err(|(doing, errno)| at(doing)(errno))?;
        Ok(PacketSocket {
            ring,
            fd,
            name: interface,
            large: vec![0; LARGE].into_boxed_slice(),
            outbox: Outbox::new(HEADER),
            counters: Counters::default(),
            kernel_drops: 0,
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

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Frames that the kernel dropped so far as the ring was full. A system call.
    pub fn kernel_drops(&mut self) -> u64 {
        // The kernel counts from the last call.
        if let Ok(statistics) = get::<libc::tpacket_stats>(self.fd(), libc::SOL_PACKET, libc::PACKET_STATISTICS) {
            self.kernel_drops += u64::from(statistics.tp_drops);
        }
        self.kernel_drops
    }

    /// Whether the interface still works: to be asked when `fd()` has an error, or now and then. A system call.
    ///
    /// # Errors
    /// [`PortError::Down`] when it was set down since the last call, [`PortError::NoInterface`] when it is gone.
    pub fn check(&self) -> Result<(), PortError> {
        let pending = get::<i32>(self.fd(), libc::SOL_SOCKET, libc::SO_ERROR);
        let errno = match pending {
            Ok(0) => return Ok(()),
            Ok(number) => Errno::from_raw_os_error(number),
            Err(errno) => errno,
        };
        Err(PortError::at(self.name(), "receiving", "CAP_NET_RAW", errno))
    }

    /// Gives up to `max` frames (at most [`MAX_BATCH`]) that are there to `batch`, which is not called when there are
    /// none. How many there were.
    ///
    /// # Errors
    /// None: [`check`](Self::check) tells about the interface. Other ports have some.
    pub fn receive(&mut self, max: usize, batch: impl FnOnce(&mut [Frame<'_>])) -> Result<usize, PortError> {
        let mut frames = SmallVec::<[Frame<'_>; MAX_BATCH]>::new();
        let mut rest = &mut self.large[..];
        while frames.len() < max.min(MAX_BATCH) && rest.len() >= LARGEST {
            let Some((slot, tagged)) = self.ring.next() else { break };
            let frame = match slot {
                Slot::Whole(base, len) => {
                    // SAFETY: the slot is ours until `release` below, after `frames` is gone; the ring hands out each
                    // slot once until then, and the header is the bytes before the frame, inside the slot
                    // (`Ring::next`).
                    unsafe {
                        let header = std::slice::from_raw_parts(base.sub(HEADER), HEADER);
                        let bytes = std::slice::from_raw_parts_mut(base, len);
                        Some(Frame { header: VnetHeader::from_bytes(header), bytes })
                    }
                }
                Slot::Queued => match rustix::net::recv(&self.fd, &mut rest[..LARGEST], RecvFlags::DONTWAIT) {
                    Ok((len, _)) if (HEADER..LARGEST).contains(&len) => {
                        let (used, behind) = rest.split_at_mut(len);
                        rest = behind;
                        let (header, bytes) = used.split_at_mut(HEADER);
                        Some(Frame { header: VnetHeader::from_bytes(header), bytes })
                    }
                    Ok(_) | Err(_) => None,
                },
                Slot::Truncated => None,
            };
            match frame {
                _ if tagged => self.counters.tagged += 1,
                Some(frame) => frames.push(frame),
                None => self.counters.truncated += 1,
            }
        }
        let count = self.counters.deliver(&mut frames, batch);
        drop(frames);
        self.ring.release();
        Ok(count)
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
    /// [`PortError::Down`] and [`PortError::NoInterface`]; the frames that wait are dropped.
    pub fn flush(&mut self) -> Result<usize, PortError> {
        let mut gone = 0;
        while self.waiting() > 0 {
            let mut scatter = Scatter::new();
            let spans: SmallVec<[_; MAX_BATCH]> =
                self.outbox.waiting().take(MAX_BATCH).map_while(|frame| scatter.add_whole(frame)).collect();
            // SAFETY: the frames are in the outbox, which is not touched before the call is over.
            let sent = unsafe { scatter.send(self.fd.as_fd(), &spans) };
            let step = self.account(sent);
            let done = match &step {
                Ok(done) => *done,
                Err(_) => self.waiting(),
            };
            self.outbox.advance(done);
            if let Err(error) = step {
                self.counters.refused += done as u64;
                return Err(error);
            }
            if done == 0 {
                break;
            }
            gone += done;
        }
        Ok(gone)
    }

    /// Hands frames with their payload elsewhere to the kernel, after those that are queued. So many of the first are
    /// gone: sent, or dropped and counted; the rest is to be tried again later.
    ///
    /// # Errors
    /// [`PortError::Down`] and [`PortError::NoInterface`]; none of the rest was sent.
    pub fn send<M: IoMemory>(&mut self, frames: &[Outgoing<'_, M>]) -> Result<usize, PortError> {
        self.flush()?;
        if self.waiting() > 0 {
            return Ok(0);
        }
        let mut gone = 0;
        while gone < frames.len() {
            let batch = &frames[gone..frames.len().min(gone + MAX_BATCH)];
            let headers: SmallVec<[_; MAX_BATCH]> = batch.iter().map(|frame| frame.header.to_bytes()).collect();
            let mut scatter = Scatter::new();
            let mut spans = SmallVec::<[_; MAX_BATCH]>::new();
            let mut impossible = false;
            for (header, frame) in headers.iter().zip(batch) {
                match scatter.add(&header[..HEADER], frame) {
                    Ok(span) => spans.push(span),
                    Err(NotAdded::Full) => break,
                    Err(NotAdded::Impossible) => {
                        impossible = true;
                        break;
                    }
                }
            }
            if spans.is_empty() && impossible {
                self.counters.refused += 1;
                gone += 1;
                continue;
            }
            // SAFETY: `headers` and `frames` are borrowed until after the call.
            let sent = unsafe { scatter.send(self.fd.as_fd(), &spans) };
            match self.account(sent)? {
                0 => break,
                done => gone += done,
            }
        }
        Ok(gone)
    }

    /// Counts what a call did. How many frames are done with; 0 if the kernel takes no more now.
    fn account(&mut self, sent: Result<usize, Errno>) -> Result<usize, PortError> {
        match sent {
            Ok(count) => {
                self.counters.sent += count as u64;
                Ok(count)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(Errno::NOBUFS) => {
                self.counters.overrun += 1;
                Ok(1)
            }
            Err(errno @ (Errno::NETDOWN | Errno::NXIO | Errno::NODEV)) => {
                Err(PortError::at(self.name(), "sending", "CAP_NET_RAW", errno))
            }
            Err(_) => {
                self.counters.refused += 1;
                Ok(1)
            }
        }
    }
}
