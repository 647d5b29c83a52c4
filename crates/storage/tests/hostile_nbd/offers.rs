//! Servers that offer something else than before.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use softdpu_storage::*;

use crate::common::Core;
use crate::server::*;

#[test]
fn an_export_that_comes_back_smaller_is_not_used() {
    let (_folder, socket) = serve(|mut stream, number| {
        greet(&mut stream);
        let size = if number == 0 { SIZE } else { SIZE / 2 };
        stream.write_all(&[info_export(size, 0b1_0110_1101), option_reply(1, &[])].concat()).unwrap();
        if number == 0 {
            request(&mut stream);
            return;
        }
        let _ = std::io::copy(&mut stream, &mut std::io::sink());
    });
    let mut core = Core::new(spec(&socket, Duration::from_secs(2)));
    assert_eq!(core.read(0, 512), Err(IoError::Timeout));
    let status = core.volume.status();
    assert_eq!(status.state, VolumeState::Failed);
    assert!(status.detail.contains("has shrunk"), "{status:?}");
}

#[test]
fn a_server_without_flush_and_trim_is_not_asked_for_them() {
    let (_folder, socket) = serve(|mut stream, _| {
        handshake_with(&mut stream, HAS_FLAGS);
        serve_plain(&mut stream);
    });
    let mut core = Core::new(spec(&socket, Duration::from_secs(10)));
    assert_eq!(core.op(BlockOp::Flush, 0, 0), Ok(()));
    assert_eq!(core.op(BlockOp::Discard, 0, 4096), Ok(()));
    let durable = Request { durable: true, ..core.request(BlockOp::Write, 0, 512) };
    assert_eq!(core.run(durable).result, Ok(()));
    // With what it does offer before and behind them.
    let requests =
        [(BlockOp::Read, 512), (BlockOp::Flush, 0), (BlockOp::Write, 512), (BlockOp::Flush, 0), (BlockOp::Read, 512)];
    let mut requests = requests.map(|(op, len)| core.request(op, 0, len)).into();
    let mut done = Vec::new();
    core.context.submit(core.to, &mut requests, &mut done);
    let deadline = Instant::now() + Duration::from_secs(60);
    while done.len() < 5 {
        core.context.flush();
        core.context.poll(&mut done);
        assert!(Instant::now() < deadline, "{done:?}");
    }
    assert!(done.iter().all(|done| done.result == Ok(())), "{done:?}");
    assert_eq!(core.context.outstanding(), 0);
}

#[test]
fn what_may_be_sent_is_what_the_present_connection_offers() {
    // Offers flushes and trims at first, hangs up on the first command, and comes back without them.
    let (_folder, socket) = serve(|mut stream, number| {
        if number == 0 {
            handshake_with(&mut stream, HAS_FLAGS | SEND_FLUSH | SEND_TRIM);
            request(&mut stream);
            return;
        }
        handshake_with(&mut stream, HAS_FLAGS);
        serve_plain(&mut stream);
    });
    let mut core = Core::new(spec(&socket, Duration::from_secs(10)));
    assert_eq!(core.op(BlockOp::Flush, 0, 0), Ok(()), "sent, not answered, and then moot");
    assert_eq!(core.op(BlockOp::Discard, 0, 4096), Ok(()));
    assert_eq!(core.read(0, 512), Ok(vec![0; 512]));
    assert_eq!(core.volume.status().errors.disconnects, 1);
}

/// Promises multi-conn to the first `promised` connections and to no other; hangs up on the requests of those.
fn serve_fickle(promised: usize) -> (tempfile::TempDir, PathBuf) {
    serve(move |mut stream, number| {
        let fickle = number < promised;
        handshake_with(&mut stream, HAS_FLAGS | SEND_FLUSH | if fickle { MULTI_CONN } else { 0 });
        if fickle {
            request(&mut stream);
            return;
        }
        serve_plain(&mut stream);
    })
}

#[test]
fn a_server_that_no_longer_promises_multi_conn_is_refused_where_several_cores_have_a_connection() {
    let (_folder, socket) = serve_fickle(2);
    let broker = PathBroker::new();
    let volume = Volume::open(spec(&socket, Duration::from_secs(2)), &broker).unwrap();
    let (mut a, mut b) = (Core::with(volume.clone()), Core::with(volume.clone()));
    let deadline = Instant::now() + Duration::from_secs(20);
    while volume.status().state != VolumeState::Active {
        b.context.tick(Instant::now());
        assert!(Instant::now() < deadline, "{:?}", volume.status());
    }
    assert_eq!(b.read(0, 512), Err(IoError::Timeout));
    assert_eq!(a.read(0, 512), Err(IoError::Timeout));
    let status = volume.status();
    assert_eq!(status.state, VolumeState::Failed);
    assert!(status.detail.contains("multi-conn") && status.detail.contains("2 cores"), "{status:?}");
    drop((a, b, volume));

    // The next process has been told: its cores share a connection.
    let volume = Volume::open(spec(&socket, Duration::from_secs(10)), &broker).unwrap();
    let (mut a, mut b) = (Core::with(volume.clone()), Core::with(volume.clone()));
    assert_eq!((a.read(0, 512), b.read(0, 512)), (Ok(vec![0; 512]), Ok(vec![0; 512])));
    assert_eq!(volume.status().state, VolumeState::Active);
}

#[test]
fn where_one_core_has_a_connection_multi_conn_is_not_missed_and_the_next_core_shares_it() {
    let (_folder, socket) = serve_fickle(1);
    let volume = Volume::open(spec(&socket, Duration::from_secs(10)), &PathBroker::new()).unwrap();
    let mut a = Core::with(volume.clone());
    assert_eq!(a.read(0, 512), Ok(vec![0; 512]));
    let mut b = Core::with(volume.clone());
    assert_eq!(b.read(0, 512), Ok(vec![0; 512]));
    assert_eq!((volume.status().state, volume.status().errors.disconnects), (VolumeState::Active, 1));
}

#[test]
fn growing_does_not_promise_again_what_the_server_has_ceased_to() {
    // Promises it at first, hangs up on the first command, and comes back without it and larger.
    let (_folder, socket) = serve(|mut stream, number| {
        greet(&mut stream);
        let (size, flags) = if number == 0 { (SIZE, HAS_FLAGS | MULTI_CONN) } else { (2 * SIZE, HAS_FLAGS) };
        stream.write_all(&[info_export(size, flags), option_reply(1, &[])].concat()).unwrap();
        if number == 0 {
            request(&mut stream);
            return;
        }
        serve_plain(&mut stream);
    });
    let broker = PathBroker::new();
    let volume = Volume::open(spec(&socket, Duration::from_secs(10)), &broker).unwrap();
    let mut core = Core::with(volume.clone());
    assert_eq!(core.read(0, 512), Ok(vec![0; 512]));
    volume.grow(2 * SIZE).unwrap();
    drop((core, volume));
    // The next process has one connection for two cores.
    let volume = Volume::open(spec(&socket, Duration::from_secs(10)), &broker).unwrap();
    let (mut a, mut b) = (Core::with(volume.clone()), Core::with(volume.clone()));
    assert_eq!((a.read(0, 512), b.read(0, 512)), (Ok(vec![0; 512]), Ok(vec![0; 512])));
    assert_eq!(broker.kept("nbd/h/").unwrap().len(), 1, "connections");
}
