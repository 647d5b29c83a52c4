//! Old connections that do not end.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use softdpu_storage::*;

use crate::server::*;

#[test]
fn an_old_connection_that_keeps_sending_does_not_hold_activation_for_ever() {
    let (_folder, socket) = serve(|mut stream, _| {
        handshake(&mut stream);
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let broker = PathBroker::new();
    let (old, mut server) = UnixStream::pair().unwrap();
    broker.keep("nbd/h/0", std::os::fd::AsFd::as_fd(&old)).unwrap();
    drop(old);
    std::thread::spawn(move || while server.write_all(&[0; 1 << 20]).is_ok() {});
    let timeout = Duration::from_secs(1);
    let volume = Volume::open(spec(&socket, timeout), &broker).unwrap();
    // In a thread of its own, as it is what might never return.
    let (over, is_over) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let before = Instant::now();
        let first = volume.activate().unwrap();
        crate::common::activate(&volume);
        over.send((first, before.elapsed()))
    });
    let (first, after) = is_over.recv_timeout(Duration::from_secs(60)).expect("activation ends");
    assert!(matches!(first, Activation::Busy { .. }), "{first:?}");
    assert!(after >= timeout, "it has its time to close: {after:?}");
}

#[test]
fn a_look_at_an_old_connection_reads_a_bounded_number_of_times() {
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
    let (_folder, socket) = serve(|mut stream, _| {
        handshake(&mut stream);
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    // Of these sockets a read gets one message, however short: as from a server that is always just ahead of its
    // reader.
    let (old, server) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let broker = PathBroker::new();
    broker.keep("nbd/h/0", std::os::fd::AsFd::as_fd(&old)).unwrap();
    for _ in 0..100 {
        send(&server, b"x", SendFlags::DONTWAIT).unwrap();
    }
    drop((old, server));
    let volume = Volume::open(spec(&socket, Duration::from_secs(10)), &broker).unwrap();
    assert!(matches!(volume.activate().unwrap(), Activation::Busy { .. }), "there is more to read");
    assert_eq!(volume.activate().unwrap(), Activation::Active, "the rest, and its end");
}

#[test]
fn the_fence_of_a_server_that_is_waited_for_for_ever_holds_up_nobody_and_says_what_it_waits_for() {
    let (_folder, socket) = serve(|mut stream, _| {
        handshake(&mut stream);
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let broker = PathBroker::new();
    let (old, server) = UnixStream::pair().unwrap();
    broker.keep("nbd/h/0", std::os::fd::AsFd::as_fd(&old)).unwrap();
    drop(old);
    let volume = Volume::open(spec(&socket, Duration::from_secs(10 * 365 * 24 * 3600)), &broker).unwrap();
    for _ in 0..3 {
        let before = Instant::now();
        assert!(matches!(volume.activate().unwrap(), Activation::Busy { .. }));
        // Not for ever.
        assert!(before.elapsed() < Duration::from_secs(20));
    }
    let status = volume.status();
    assert_eq!(status.state, VolumeState::Opened);
    assert!(status.detail.contains("has not yet ended"), "{status:?}");
    drop(server);
    crate::common::activate(&volume);
}
