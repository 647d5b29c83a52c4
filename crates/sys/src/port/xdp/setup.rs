//! Making an AF_XDP socket ready.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::ring::Ring;
use super::umem::{CHUNK, Umem};
use super::{BusyPoll, CopyMode, XdpOptions, XdpProgram, XdpSocket, bpf};
use crate::port::link::Links;
use crate::port::option::{get, last_error, set};
use crate::port::{Counters, InterfaceName, PortError};

pub(super) fn open(program: &XdpProgram, queue: u32, options: &XdpOptions) -> Result<XdpSocket, PortError> {
    let name = program.name();
    let frames = options.frames;
    if !frames.is_power_of_two() || !(64..=32_768).contains(&frames) {
        let problem = format!("AF_XDP rings of {frames} frames: a power of two from 64 to 32,768 is needed");
        return Err(PortError::Setting { name: name.to_owned(), problem });
    }
    let interface = InterfaceName::new(name)?;
    let index = Links::new()?.index(&interface)?;
    let at = |doing| move |errno: Errno| PortError::at(name, doing, "CAP_NET_RAW", errno);
    let memory = |errno| match errno {
        Errno::NOBUFS | Errno::NOMEM => PortError::Setting {
            name: name.to_owned(),
            problem: format!(
                "no {} MiB of locked memory for AF_XDP; raise LimitMEMLOCK (ulimit -l) or lower the number of frames",
                (2 * frames as usize * CHUNK) >> 20
            ),
        },
        errno => at("registering AF_XDP memory")(errno),
    };
    let fd =
        socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None).map_err(|errno| match errno {
            Errno::AFNOSUPPORT => PortError::Unsupported {
                name: name.to_owned(),
                what: "AF_XDP (CONFIG_XDP_SOCKETS)",
                remedy: "use an AF_PACKET port",
            },
            errno => at("opening an AF_XDP socket")(errno),
        })?;
    let umem = Umem::new(2 * frames as usize).map_err(memory)?;
    set(fd.as_fd(), libc::SOL_XDP, libc::XDP_UMEM_REG, &umem.registration()).map_err(memory)?;
    for ring in [libc::XDP_UMEM_FILL_RING, libc::XDP_UMEM_COMPLETION_RING, libc::XDP_RX_RING, libc::XDP_TX_RING] {
        set(fd.as_fd(), libc::SOL_XDP, ring, &frames).map_err(memory)?;
    }
    let offsets: libc::xdp_mmap_offsets =
        get(fd.as_fd(), libc::SOL_XDP, libc::XDP_MMAP_OFFSETS).map_err(at("reading the rings' layout"))?;
    let mapping = at("mapping the rings");
    let mut fill = Ring::new(fd.as_fd(), libc::XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, frames).map_err(mapping)?;
    let completion =
        Ring::new(fd.as_fd(), libc::XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, frames).map_err(mapping)?;
    let rx = Ring::new(fd.as_fd(), libc::XDP_PGOFF_RX_RING as u64, &offsets.rx, frames).map_err(mapping)?;
    let tx = Ring::new(fd.as_fd(), libc::XDP_PGOFF_TX_RING as u64, &offsets.tx, frames).map_err(mapping)?;
    for chunk in 0..frames {
        fill.write(chunk, u64::from(chunk) * CHUNK as u64);
    }
    fill.produce(frames);
    if let Some(busy_poll) = options.busy_poll {
        prefer_busy_poll(fd.as_fd(), busy_poll).map_err(at("switching busy polling on"))?;
    }
    patiently(|| bind(fd.as_fd(), index, queue, options.copy)).map_err(|errno| explain(name, queue, errno))?;
    let answer: libc::xdp_options =
        get(fd.as_fd(), libc::SOL_XDP, libc::XDP_OPTIONS).map_err(at("reading the copy mode"))?;
    bpf::set_socket(program.map(), queue, fd.as_fd()).map_err(|errno| match errno {
        Errno::TOOBIG => {
            let problem = format!("the XDP program was attached for fewer queues than {}", u64::from(queue) + 1);
            PortError::Setting { name: name.to_owned(), problem }
        }
        errno => PortError::at(name, "giving the queue to the socket", "CAP_BPF", errno),
    })?;
    Ok(XdpSocket {
        fill,
        completion,
        rx,
        tx,
        fd,
        umem,
        name: interface,
        zero_copy: answer.flags & libc::XDP_OPTIONS_ZEROCOPY != 0,
        busy_poll: options.busy_poll.is_some(),
        free: (frames..2 * frames).map(|chunk| u64::from(chunk) * CHUNK as u64).collect(),
        open: None,
        committed: 0,
        counters: Counters::default(),
    })
}

fn prefer_busy_poll(fd: BorrowedFd<'_>, options: BusyPoll) -> Result<(), Errno> {
    set(fd, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, &1)?;
    set(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, &options.micros)?;
    set(fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL_BUDGET, &u32::from(options.budget))
}

/// How long a queue may stay busy: the kernel takes its memory from an owner that has ended a few milliseconds later,
/// and a data plane that is started again is faster than that.
const PATIENCE: Duration = Duration::from_millis(500);

/// Tries again while the queue is busy.
fn patiently(mut bind: impl FnMut() -> Result<(), Errno>) -> Result<(), Errno> {
    let start = Instant::now();
    loop {
        match bind() {
            Err(Errno::BUSY) if start.elapsed() < PATIENCE => std::thread::sleep(Duration::from_millis(2)),
            other => return other,
        }
    }
}

fn bind(fd: BorrowedFd<'_>, interface: u32, queue: u32, copy: CopyMode) -> Result<(), Errno> {
    // Without a flag the kernel tries zero-copy first.
    let mode = match copy {
        CopyMode::Auto => 0,
        CopyMode::Copy => libc::XDP_COPY,
        CopyMode::ZeroCopy => libc::XDP_ZEROCOPY,
    };
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_USE_NEED_WAKEUP | mode,
        sxdp_ifindex: interface,
        sxdp_queue_id: queue,
        sxdp_shared_umem_fd: 0,
    };
    // SAFETY: a sockaddr_xdp of that length, borrowed for the call and only read.
    let answer = unsafe {
        let len = size_of::<libc::sockaddr_xdp>() as libc::socklen_t;
        libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len)
    };
    if answer < 0 { Err(last_error()) } else { Ok(()) }
}

fn explain(name: &str, queue: u32, errno: Errno) -> PortError {
    let owned = name.to_owned();
    match errno {
        Errno::BUSY => PortError::Busy {
            name: owned,
            doing: "binding the AF_XDP socket to its queue",
            remedy: "each queue has one socket; `ss --xdp -p` lists them",
        },
        Errno::INVAL => {
            let problem = format!("it has no queue {queue}; `ls /sys/class/net/{name}/queues` lists them");
            PortError::Setting { name: owned, problem }
        }
        Errno::OPNOTSUPP => PortError::Unsupported {
            name: owned,
            what: "zero-copy AF_XDP",
            remedy: "leave the copy mode to the kernel, or use a driver that has it",
        },
        errno => PortError::at(name, "binding the AF_XDP socket", "CAP_NET_RAW", errno),
    }
}
