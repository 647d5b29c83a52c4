//! Connections that are lost, refused, or take too much at a time.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softdpu_storage::*;

use crate::common::{Core, MIB};
use crate::server::*;

#[test]
fn a_write_that_was_answered_but_not_flushed_is_written_again_on_the_next_connection() {
    // Without NBD_FLAG_SEND_FUA a durable write is a write and a flush; the server dies between the two, and its cache
    // with it.
    let (said, heard) = std::sync::mpsc::channel();
    let (_folder, socket) = serve(move |mut stream, number| {
        handshake_with(&mut stream, HAS_FLAGS | SEND_FLUSH);
        while let Some(asked) = request(&mut stream) {
            let len = u32::from_be_bytes(asked[24..28].try_into().unwrap()) as usize;
            let mut data = vec![0; if asked[7] == 1 { len } else { 0 }];
            stream.read_exact(&mut data).unwrap();
            said.send((number, asked[7], data)).unwrap();
            if number == 0 && asked[7] == 3 {
                return;
            }
            let _ = stream.write_all(&reply(REPLY, 0, cookie(&asked)));
        }
    });
    let mut core = Core::new(spec(&socket, Duration::from_secs(10)));
    let durable = Request { durable: true, ..core.request(BlockOp::Write, 0, 512) };
    durable.buffer.write_at(16, &[0x5a; 512]).unwrap();
    assert_eq!(core.run(durable).result, Ok(()));
    let (write, flush) = (|number| (number, 1, vec![0x5a; 512]), |number| (number, 3, Vec::new()));
    assert_eq!(heard.try_iter().collect::<Vec<_>>(), [write(0), flush(0), write(1), flush(1)]);
    assert_eq!(core.volume.status().errors.replayed, 1);
}

#[test]
fn a_look_at_a_connection_takes_a_bounded_number_of_bytes() {
    let len = 3 * MIB;
    let (_folder, socket) = serve(move |mut stream, _| {
        rustix::net::sockopt::set_socket_send_buffer_size(&stream, 8 << 20).unwrap();
        handshake(&mut stream);
        while let Some(asked) = request(&mut stream) {
            let _ = stream.write_all(&[reply(REPLY, 0, cookie(&asked)), vec![0x44; len as usize]].concat());
        }
    });
    let mut core = Core::new(spec(&socket, Duration::from_secs(10)));
    assert_eq!(core.read(0, len as usize), Ok(vec![0x44; len as usize]), "connected");
    let asked = core.request(BlockOp::Read, 0, len);
    assert!(core.submit(asked).is_none());
    let (mut looks, mut done) = (0, Vec::new());
    let deadline = Instant::now() + Duration::from_secs(60);
    while done.is_empty() {
        // Long enough for the server to have filled what it can.
        std::thread::sleep(Duration::from_millis(20));
        core.context.poll(&mut done);
        looks += 1;
        assert!(Instant::now() < deadline);
    }
    assert!(looks > 3, "{len} bytes in {looks} looks");
}

#[test]
fn a_server_that_hangs_up_on_every_connection_is_tried_at_growing_intervals() {
    let count = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let connections = count.clone();
    let (_folder, socket) = serve(move |mut stream, _| {
        connections.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        handshake(&mut stream);
    });
    // 20 ms before the second attempt, 40 before the third, and 50, its limit, from then on.
    let mut core = Core::new(spec(&socket, Duration::from_secs(60)));
    let asked = core.request(BlockOp::Read, 0, 512);
    let start = Instant::now();
    assert!(core.submit(asked).is_none());
    while count.load(std::sync::atomic::Ordering::SeqCst) < 8 {
        assert!(core.wait(Duration::from_millis(1)).is_none());
        assert!(start.elapsed() < Duration::from_secs(60), "it is tried no more: {:?}", core.volume.status());
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(300), "seven attempts within {took:?}");
}

#[test]
fn a_server_that_says_it_goes_and_stays_is_left_when_an_answer_would_be_due() {
    let (_folder, socket) = serve(|mut stream, number| {
        handshake(&mut stream);
        while let Some(asked) = request(&mut stream) {
            if number > 0 {
                let _ = stream.write_all(&[reply(REPLY, 0, cookie(&asked)), vec![0x33; 512]].concat());
                continue;
            }
            // NBD_ESHUTDOWN, and then nothing.
            let _ = stream.write_all(&reply(REPLY, 108, cookie(&asked)));
            std::thread::sleep(Duration::from_secs(600));
        }
    });
    let mut patient = spec(&socket, Duration::from_secs(10 * 365 * 24 * 3600));
    if let VolumeKind::Nbd { answer, .. } = &mut patient.kind {
        *answer = Duration::from_millis(300);
    }
    let mut core = Core::new(patient);
    let asked = core.request(BlockOp::Read, 0, 512);
    assert!(core.submit(asked).is_none());
    let deadline = Instant::now() + Duration::from_secs(60);
    while core.volume.status().state != VolumeState::Recovering {
        core.context.tick(Instant::now());
        assert!(Instant::now() < deadline, "{:?}", core.volume.status());
    }
    assert!(core.volume.status().detail.contains("about to go"), "{:?}", core.volume.status());
    assert_eq!(core.wait(Duration::from_secs(60)).map(|done| done.result), Some(Ok(())));
    assert_eq!(core.volume.status().state, VolumeState::Active);
}

#[test]
fn a_look_at_a_connection_sends_a_bounded_number_of_bytes_and_the_rest_without_being_asked() {
    let (_folder, socket) = serve(|mut stream, _| {
        handshake(&mut stream);
        serve_plain(&mut stream);
    });
    let broker = PathBroker::new();
    let mut core = Core::with(Volume::open(spec(&socket, Duration::from_secs(60)), &broker).unwrap());
    assert_eq!(core.write(0, &[1; 512]), Ok(()), "connected");
    // Room for all of it, where the machine allows that.
    for (_, socket) in broker.kept("nbd/h/").unwrap() {
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, 8 << 20).unwrap();
    }
    let asked = core.request(BlockOp::Write, 0, 3 * MIB);
    assert!(core.submit(asked).is_none());
    let (mut looks, mut done) = (0, Vec::new());
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        core.context.poll(&mut done);
        looks += 1;
        if !done.is_empty() {
            break;
        }
        assert!(Instant::now() < deadline);
        // A core that sleeps is woken by the room there is, or the answer.
        let mut waiting = [PollFd::from_borrowed_fd(core.context.wait_fd(), PollFlags::IN)];
        let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut waiting, Some(&limit)), Ok(1), "nothing wakes it after {looks} looks");
        // Long enough for the server to have taken what it can.
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(looks >= 3, "3 MiB in {looks} looks");
}

#[test]
fn a_connection_that_is_lost_with_unflushed_writes_is_counted_and_a_flushed_one_is_not() {
    // Hangs up on reads.
    let (_folder, socket) = serve(|mut stream, number| {
        handshake_with(&mut stream, HAS_FLAGS | SEND_FLUSH);
        while let Some(asked) = request(&mut stream) {
            let len = u32::from_be_bytes(asked[24..28].try_into().unwrap()) as usize;
            let is_read = asked[7] == 0;
            if is_read && number % 2 == 0 {
                return;
            }
            let _ = stream.read_exact(&mut vec![0; if asked[7] == 1 { len } else { 0 }]);
            let _ =
                stream.write_all(&[reply(REPLY, 0, cookie(&asked)), vec![0; if is_read { len } else { 0 }]].concat());
            if is_read {
                return;
            }
        }
    });
    let mut core = Core::new(spec(&socket, Duration::from_secs(60)));
    core.write(0, &[1; 512]).unwrap();
    core.op(BlockOp::Flush, 0, 0).unwrap();
    let durable = Request { durable: true, ..core.request(BlockOp::Write, 0, 512) };
    core.run(durable).result.unwrap();
    core.read(0, 512).unwrap();
    assert_eq!(core.volume.status().errors.unflushed, 0, "all was flushed");
    // Whichever connection this is on.
    core.write(0, &[2; 512]).unwrap();
    core.read(0, 512).unwrap();
    core.read(0, 512).unwrap();
    let errors = core.volume.status().errors;
    assert!(errors.disconnects >= 2, "{errors:?}");
    assert_eq!(errors.unflushed, 1, "once, as what is lost is lost");
}
