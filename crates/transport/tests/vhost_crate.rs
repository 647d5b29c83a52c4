//! The `vhost` crate's front end, over a real socket: an encoder and decoder of others. Every message it has
//! goes through, and so does what it thinks of the answers.

mod common;

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::thread;

use common::{Disk, RING, USER};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use softdpu_transport::vhost_user::*;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserDirtyLogRegion, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

/// Reads exactly `into.len()` bytes; false at the end of the stream.
fn read(socket: &UnixStream, into: &mut [u8], fds: &mut Vec<OwnedFd>) -> bool {
    let mut done = 0;
    while done < into.len() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut into[done..])];
        let got = recvmsg(socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = message {
                fds.extend(received);
            }
        }
        if got.bytes == 0 {
            return false;
        }
        done += got.bytes;
    }
    true
}

fn write(socket: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    let sent = sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    assert_eq!(sent, bytes.len());
}

/// Serves one connection; gives every command it led to, the reset of the disconnect last.
fn serve(socket: UnixStream) -> Vec<Command> {
    let disk = Disk::new();
    let mut session = Session::new(&disk);
    let mut commands = Vec::new();
    let mut next_fd = 0;
    loop {
        let mut fds = Vec::new();
        let mut bytes = [0; HEADER_SIZE];
        if !read(&socket, &mut bytes, &mut fds) {
            break;
        }
        let header = Header::parse(&bytes).unwrap();
        let mut payload = vec![0; header.size as usize];
        assert!(read(&socket, &mut payload, &mut fds));
        let ids = fds.iter().map(|_| (next_fd += 1, FdId(next_fd)).1).collect();
        let mut actions = session.message(&disk, header, &payload, ids).unwrap();
        while let Some(action) = (!actions.is_empty()).then(|| actions.remove(0)) {
            match action {
                Action::Command { id, command } => {
                    let ack = match &command {
                        Command::QueueStop { .. } => Ack::Stopped { base: VringBase::Split { next_available: 77 } },
                        Command::CreateInflight { .. } => Ack::Memory(FdId(u32::MAX)),
                        _ => Ack::Done,
                    };
                    commands.push(command);
                    actions.extend(session.acknowledge(id, ack).unwrap());
                }
                Action::Reply { bytes, fds } => {
                    let attached: Vec<_> = fds.iter().map(|_| OwnedFd::from(memory())).collect();
                    write(&socket, &bytes, &attached);
                }
                Action::Refused(error) => eprintln!("{error}"),
                Action::Backend(_) | Action::Release(_) => {}
            }
        }
    }
    commands
}

fn memory() -> File {
    rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
}

#[test]
fn the_vhost_crates_front_end_is_understood_and_understands() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(move || serve(ours));
    let mut front = Frontend::from_stream(theirs, 4);
    let file = memory();

    front.set_owner().unwrap();
    let offered = front.get_features().unwrap();
    assert_eq!(offered, RING | F_RING_PACKED | F_PROTOCOL_FEATURES | F_LOG_ALL);
    let protocol = front.get_protocol_features().unwrap();
    let known = VhostUserProtocolFeatures::from_bits_truncate(ProtocolFeatures::IMPLEMENTED.0);
    assert_eq!(protocol, known);
    front.set_protocol_features(protocol).unwrap();
    front.set_features(RING | F_PROTOCOL_FEATURES).unwrap();
    front.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
    assert_eq!(front.get_queue_num().unwrap(), 4);
    assert_eq!(front.get_max_mem_slots().unwrap(), 16);
    front.set_backend_request_fd(&file).unwrap();

    let flags = VhostUserConfigFlags::WRITABLE;
    let (_, config) = front.get_config(8, 60, flags, &[0; 60]).unwrap();
    assert_eq!(config[..52], (8..60).collect::<Vec<u8>>());
    front.set_config(32, flags, &[1]).unwrap();

    let region = |guest_phys_addr: u64| VhostUserMemoryRegionInfo {
        guest_phys_addr,
        memory_size: 0x10_0000,
        userspace_addr: USER + guest_phys_addr,
        mmap_offset: guest_phys_addr,
        mmap_handle: file.as_raw_fd(),
    };
    front.set_mem_table(&[region(0), region(0x20_0000)]).unwrap();
    front.add_mem_region(&region(0x40_0000)).unwrap();
    assert!(front.add_mem_region(&region(0x40_0000)).is_err(), "it overlaps");
    front.remove_mem_region(&region(0x20_0000)).unwrap();

    let (made, _) = front.get_inflight_fd(&VhostUserInflight::new(0, 0, 2, 256)).unwrap();
    assert_eq!((made.mmap_size, made.mmap_offset, made.num_queues, made.queue_size), (8320, 0, 2, 256));
    front.set_inflight_fd(&made, file.as_raw_fd()).unwrap();

    let event = EventFd::new(0).unwrap();
    let ring = common::ring(1);
    let config = |flags, log_addr| VringConfigData {
        queue_max_size: 256,
        queue_size: 256,
        flags,
        desc_table_addr: ring.descriptor,
        used_ring_addr: ring.used,
        avail_ring_addr: ring.available,
        log_addr,
    };
    front.set_vring_num(1, 256).unwrap();
    front.set_vring_base(1, 5).unwrap();
    front.set_vring_addr(1, &config(0, None)).unwrap();
    front.set_vring_call(1, &event).unwrap();
    front.set_vring_err(1, &event).unwrap();
    assert!(front.set_vring_kick(0, &event).is_err(), "queue 0 has no rings");
    front.set_vring_kick(1, &event).unwrap();
    front.set_vring_enable(1, true).unwrap();

    let log = VhostUserDirtyLogRegion { mmap_size: 4096, mmap_offset: 0, mmap_handle: file.as_raw_fd() };
    front.set_log_base(0, Some(log)).unwrap();
    front.set_log_fd(event.as_raw_fd()).unwrap();
    front.set_features(RING | F_PROTOCOL_FEATURES | F_LOG_ALL).unwrap();
    front.set_vring_addr(1, &config(1, Some(0x2000))).unwrap();
    assert_eq!(front.get_vring_base(1).unwrap(), 77);
    front.reset_device().unwrap();
    front.reset_owner().unwrap();
    drop(front);

    let commands = server.join().unwrap();
    let index = QueueIndex(1);
    let names: Vec<_> = commands.iter().map(name).collect();
    let expected = "SetConfig MemoryChange MemoryChange MemoryChange CreateInflight QueueStart QueueUpdate DirtyLog \
                    DirtyLog DirtyLog QueueUpdate QueueStop Reset";
    assert_eq!(names.join(" "), expected);
    let Command::QueueStart(start) = &commands[5] else { unreachable!() };
    assert_eq!((start.index, start.size, start.base), (index, 256, VringBase::Split { next_available: 5 }));
    assert_eq!((start.descriptor, start.driver, start.device), (ring.descriptor, ring.available, ring.used));
    assert!(start.kick.is_some() && start.call.is_some() && start.err.is_some() && start.inflight.is_some());
    assert_eq!(commands[10], Command::QueueUpdate { index, change: QueueChange::Log(Some(0x2000)) });
    assert_eq!(commands[11], Command::QueueStop(index));
}

fn name(command: &Command) -> String {
    format!("{command:?}").split([' ', '(', '{']).next().unwrap_or_default().to_owned()
}
