//! File descriptors: missing, too many, of the wrong kind, cut short, foreign, and connections without end.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::fs::{Mode, OFlags, SealFlags, fcntl_add_seals, fcntl_setfl, ftruncate};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use softdpu_tests::{Context, Failure};
use softdpu_transport::vhost_user::{FdPresence, InflightDescription, LogDescription, Message, VringState};

use super::messages::sends;
use super::raw::{data, header, status};
use super::scene::Expect::{Breaks, Closes, Harmless, Refused};
use super::scene::{Abuse, Seen, second_socket};
use crate::client::{BLOCK, FrontEnd, IN, MEMORY, Memory, Settings};

const THERE: FdPresence = FdPresence { index: 0, present: true };

fn pipe() -> Result<OwnedFd, Failure> {
    Ok(rustix::pipe::pipe().context("pipe")?.1)
}

fn as_kick(front: &mut FrontEnd, fd: impl AsFd) -> Result<Seen, Failure> {
    sends(front, &Message::SetVringKick(THERE), &[fd.as_fd()])
}

fn as_call(front: &mut FrontEnd, fd: impl AsFd) -> Result<Seen, Failure> {
    sends(front, &Message::SetVringCall(THERE), &[fd.as_fd()])
}

/// SET_MEM_TABLE with another descriptor than the memory's.
fn as_memory(front: &mut FrontEnd, fd: impl AsFd) -> Result<Seen, Failure> {
    let region = front.memory.region();
    sends(front, &Message::SetMemTable(vec![region]), &[fd.as_fd()])
}

/// The same memory, opened again.
fn reopened(front: &FrontEnd, flags: OFlags) -> Result<OwnedFd, Failure> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", front.memory.fd.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty()).context("opening the memory again")
}

pub fn abuses() -> Vec<Abuse> {
    [counts(), kinds(), memory()].into_iter().flatten().collect()
}

fn counts() -> Vec<Abuse> {
    vec![
        Abuse::new("memory without a descriptor", "SET_MEM_TABLE", Refused("SET_MEM_TABLE"), |f| {
            let region = f.memory.region();
            sends(f, &Message::SetMemTable(vec![region]), &[])
        }),
        Abuse::new("kick without the descriptor it announces", "SET_VRING_KICK", Refused("SET_VRING_KICK"), |f| {
            sends(f, &Message::SetVringKick(THERE), &[])
        }),
        Abuse::new("three descriptors for one kick", "SET_VRING_KICK", Refused("SET_VRING_KICK"), |f| {
            let kick = f.kick.try_clone().context("copying")?;
            sends(f, &Message::SetVringKick(THERE), &[kick.as_fd(); 3])
        }),
        Abuse::new("descriptors where none belong", "SET_VRING_NUM with 8", Refused("SET_VRING_NUM"), |f| {
            let kick = f.kick.try_clone().context("copying")?;
            sends(f, &Message::SetVringNum(VringState { index: 1, num: 16 }), &[kick.as_fd(); 8])
        }),
        Abuse::new("60 descriptors with one message", "GET_FEATURES", Closes("file descriptors"), |f| {
            let kick = f.kick.try_clone().context("copying")?;
            sends(f, &Message::GetFeatures, &[kick.as_fd(); 60])
        }),
        Abuse::new("a descriptor with every byte", "12 packets of 2 for one header", Closes("file descriptors"), |f| {
            let kick = f.kick.try_clone().context("copying")?;
            for byte in Message::GetFeatures.encode(false) {
                if f.send(&[byte], &[kick.as_fd(); 4]).is_err() {
                    break;
                }
            }
            Ok(Seen::Nothing)
        }),
        Abuse::new("no eventfds at all", "a queue without kick, call and error", Harmless, |f| {
            let gone = FdPresence { index: 0, present: false };
            f.call(&Message::SetVringCall(gone), &[])?;
            f.call(&Message::SetVringErr(gone), &[])?;
            sends(f, &Message::SetVringKick(gone), &[])
        }),
    ]
}

fn kinds() -> Vec<Abuse> {
    vec![
        Abuse::new("a pipe as kick", "not an eventfd", Refused("not an eventfd"), |f| as_kick(f, pipe()?)),
        Abuse::new("a regular file as kick", "not an eventfd", Refused("not an eventfd"), |f| {
            as_kick(f, File::open("/proc/self/exe").context("a file")?)
        }),
        Abuse::new("a socket as kick", "not an eventfd", Refused("not an eventfd"), |f| {
            as_kick(f, UnixStream::pair().context("sockets")?.0)
        }),
        Abuse::new("an epoll as kick", "not an eventfd", Refused("not an eventfd"), |f| {
            as_kick(f, epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?)
        }),
        Abuse::new("a memfd as call", "not an eventfd", Refused("not an eventfd"), |f| {
            let memory = Arc::clone(&f.memory);
            as_call(f, &memory.fd)
        }),
        Abuse::new("a full pipe as call", "a write would block", Refused("not an eventfd"), |f| {
            let (_reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).context("pipe")?;
            while rustix::io::write(&writer, &[0; 4096]).is_ok() {}
            as_call(f, writer)
        }),
        Abuse::new("the connection itself as call", "its own socket", Refused("not an eventfd"), |f| {
            let socket = f.socket.try_clone().context("copying")?;
            as_call(f, socket)
        }),
        Abuse::new("/dev/zero as error", "not an eventfd", Refused("not an eventfd"), |f| {
            let zero = File::open("/dev/zero").context("/dev/zero")?;
            sends(f, &Message::SetVringErr(THERE), &[zero.as_fd()])
        }),
        Abuse::new("a semaphore eventfd as kick", "counts one at a time", Harmless, |f| {
            let event = eventfd(1 << 20, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE).context("eventfd")?;
            as_kick(f, event)
        }),
        Abuse::new("a call eventfd made blocking again, full", "a write would block", Harmless, |f| {
            let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context("eventfd")?;
            as_call(f, &event)?;
            // A front end can fill it at any time, and make it block its writers.
            rustix::io::write(&event, &(u64::MAX - 2).to_ne_bytes()).context("filling the eventfd")?;
            while rustix::io::write(&event, &1u64.to_ne_bytes()).is_ok() {}
            fcntl_setfl(&event, OFlags::empty()).context("fcntl")?;
            f.add(0, 0, None);
            f.publish();
            f.completed()
        }),
        Abuse::new("a blocking eventfd as call, full", "an interrupt would block", Harmless, |f| {
            let event = eventfd(0, EventfdFlags::CLOEXEC).context("eventfd")?;
            rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).context("filling it")?;
            let seen = as_call(f, &event)?;
            for slot in 0..4 {
                f.add(slot, slot.into(), None);
                f.publish();
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok(seen)
        }),
        Abuse::new("eventfds closed at once", "the front end forgets them", Harmless, |f| {
            let event = || eventfd(0, EventfdFlags::CLOEXEC).context("eventfd");
            as_call(f, event()?)?;
            as_kick(f, event()?)
        }),
        Abuse::new("one eventfd for everything", "kick, call and error are one", Harmless, |f| {
            let event = eventfd(0, EventfdFlags::CLOEXEC).context("eventfd")?;
            as_call(f, &event)?;
            sends(f, &Message::SetVringErr(THERE), &[event.as_fd()])?;
            let seen = as_kick(f, &event)?;
            f.add(0, 0, None);
            f.publish();
            std::thread::sleep(Duration::from_millis(20));
            Ok(seen)
        }),
    ]
}

fn memory() -> Vec<Abuse> {
    vec![
        Abuse::new("memory file too short", "half of the region", Refused("the file has"), |f| {
            as_memory(f, Memory::new(MEMORY / 2)?.fd)
        }),
        Abuse::new("a sparse file of 64 TiB as memory", "half the address space", Refused("bytes mapped"), |f| {
            let memory = Memory::new(MEMORY)?;
            ftruncate(&memory.fd, 1 << 46).context("making it long")?;
            let mut region = f.memory.region();
            region.size = 1 << 46;
            sends(f, &Message::SetMemTable(vec![region]), &[memory.fd.as_fd()])
        }),
        Abuse::new("a dirty log of 64 TiB", "a sparse file", Closes("bytes mapped"), |f| {
            let memory = Memory::new(4096)?;
            ftruncate(&memory.fd, 1 << 46).context("making it long")?;
            let features = f.features | softdpu_transport::vhost_user::F_LOG_ALL;
            f.call(&Message::SetFeatures(features), &[])?;
            sends(f, &Message::SetLogBase(LogDescription { size: 1 << 46, offset: 0 }), &[memory.fd.as_fd()])
        }),
        Abuse::new("an eventfd as memory", "no file", Refused("SET_MEM_TABLE"), |f| {
            as_memory(f, eventfd(0, EventfdFlags::CLOEXEC).context("eventfd")?)
        }),
        Abuse::new("a pipe as memory", "no file", Refused("SET_MEM_TABLE"), |f| as_memory(f, pipe()?)),
        Abuse::new("a socket as memory", "no file", Refused("SET_MEM_TABLE"), |f| {
            as_memory(f, UnixStream::pair().context("sockets")?.0)
        }),
        Abuse::new("a directory as memory", "no file", Refused("SET_MEM_TABLE"), |f| {
            as_memory(f, File::open("/").context("/")?)
        }),
        Abuse::new("memory that another program serves", "a file on procfs", Refused("file system"), |f| {
            as_memory(f, File::open("/proc/self/environ").context("a file")?)
        }),
        Abuse::new("/dev/null as memory", "nothing to map", Refused("SET_MEM_TABLE"), |f| {
            as_memory(f, File::options().read(true).write(true).open("/dev/null").context("/dev/null")?)
        }),
        Abuse::new("read-only memory", "a memfd opened O_RDONLY", Refused("SET_MEM_TABLE"), |f| {
            let memory = reopened(f, OFlags::RDONLY)?;
            elsewhere(f, memory)
        }),
        Abuse::new("an O_PATH descriptor as memory", "only a name", Refused("SET_MEM_TABLE"), |f| {
            let memory = reopened(f, OFlags::PATH)?;
            elsewhere(f, memory)
        }),
        Abuse::new("memory sealed against writing", "F_SEAL_FUTURE_WRITE", Refused("SET_MEM_TABLE"), |f| {
            let memory = Arc::clone(&f.memory);
            fcntl_add_seals(&memory.fd, SealFlags::FUTURE_WRITE).context("sealing")?;
            elsewhere(f, &memory.fd)
        }),
        Abuse::new("another guest's memory", "a file the domain does not know", Refused("none of these"), |f| {
            let path = second_socket(f)?;
            let mut second = FrontEnd::connect(&path, Arc::clone(&f.memory), Settings::SPLIT)?;
            second.share_memory()?;
            as_memory(f, Memory::new(MEMORY)?.fd)
        }),
        Abuse::new("all memory replaced by another file", "by the only device of the domain", Harmless, |f| {
            f.call(&Message::GetVringBase(VringState { index: 0, num: 0 }), &[])?;
            f.memory = Arc::new(Memory::new(MEMORY)?);
            let (memory, region) = (Arc::clone(&f.memory), f.memory.region());
            let seen = sends(f, &Message::SetMemTable(vec![region]), &[memory.fd.as_fd()])?;
            if seen == Seen::Accepted {
                f.start_queue()?;
            }
            Ok(seen)
        }),
        Abuse::new("memory cut short while I/O runs", "ftruncate to one page", Breaks("cut short"), |f| {
            let memory = Arc::clone(&f.memory);
            // What is written after the cut lies in the page that is left: this process would lose the rest, too.
            f.header(0, IN, 0);
            f.describe(&[header(1), data(2), status()]);
            ftruncate(&memory.fd, BLOCK as u64).context("truncating the memory")?;
            f.offer(&[0], 1);
            Ok(Seen::Nothing)
        })
        .reconnecting(),
        Abuse::new(
            "in-flight file shorter than it says",
            "SET_INFLIGHT_FD of an empty file",
            Breaks("in-flight"),
            |f| {
                f.call(&Message::GetVringBase(VringState { index: 0, num: 0 }), &[])?;
                f.prepare_queue()?;
                let empty = Memory::new(4096)?;
                ftruncate(&empty.fd, 0).context("emptying")?;
                let inflight = InflightDescription {
                    mmap_size: 4096,
                    mmap_offset: 0,
                    num_queues: 1,
                    queue_size: 16,
                    padded: true,
                };
                f.call(&Message::SetInflightFd(inflight), &[empty.fd.as_fd()])?;
                f.kick_off()?;
                Ok(Seen::Nothing)
            },
        )
        .with(Settings { inflight: true, ..Settings::SPLIT }),
        Abuse::new("dirty log cut short", "a log of 4 KiB in an empty file", Closes("dirty log"), |f| {
            let memory = Memory::new(4096)?;
            ftruncate(&memory.fd, 0).context("emptying")?;
            let features = f.features | softdpu_transport::vhost_user::F_LOG_ALL;
            f.call(&Message::SetFeatures(features), &[])?;
            sends(f, &Message::SetLogBase(LogDescription { size: 4096, offset: 0 }), &[memory.fd.as_fd()])
        }),
        Abuse::new("100 connections at once", "one is served, the rest wait and go", Harmless, |f| {
            let address = f.socket.peer_addr().context("the peer's address")?;
            let path = address.as_pathname().ok_or_else(|| Failure::new("the peer has no path"))?;
            let mut waiting = Vec::new();
            for _ in 0..100 {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).context("socket")?;
                // A full backlog is an answer, too.
                if connect(&socket, &SocketAddrUnix::new(path).context("address")?).is_err() {
                    break;
                }
                waiting.push(socket);
            }
            Ok(Seen::Nothing)
        }),
    ]
}

/// SET_MEM_TABLE with the memory as it is, and a part of it once more through `fd`, which has to be mapped anew.
fn elsewhere(front: &mut FrontEnd, fd: impl AsFd) -> Result<Seen, Failure> {
    let memory = Arc::clone(&front.memory);
    let mut part = memory.region();
    part.guest_address += 1 << 40;
    part.user_address += 1 << 40;
    part.size -= BLOCK as u64;
    sends(front, &Message::SetMemTable(vec![memory.region(), part]), &[memory.fd.as_fd(), fd.as_fd()])
}

/// Connects and disconnects, in turn at once, in the middle of a message, with a running queue, with requests in
/// flight.
pub fn connect_and_go(path: &Path, times: u32) -> Result<(), Failure> {
    let memory = Arc::new(Memory::new(MEMORY)?);
    for round in 0..times {
        match round % 4 {
            0 => drop(UnixStream::connect(path).context("connecting")?),
            1 => {
                let front = FrontEnd::connect(path, Arc::clone(&memory), Settings::SPLIT)?;
                front.send(&Message::GetFeatures.encode(false)[..7], &[])?;
            }
            2 => drop(FrontEnd::start(path, Arc::clone(&memory), Settings { inflight: true, ..Settings::PACKED })?),
            _ => {
                let mut front = FrontEnd::start(path, Arc::clone(&memory), Settings::SPLIT)?;
                front.add(0, 0, None);
                front.add(1, 1, None);
                front.publish();
            }
        }
    }
    Ok(())
}
