//! NBD servers that lie: whatever they say, the connection is dropped with a reason and guest memory is left alone.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{Core, MIB};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softdpu_storage::*;

const SIZE: u64 = 8 * MIB;

/// A server whose every connection runs `talk`.
fn serve(talk: impl Fn(UnixStream, usize) + Send + Sync + 'static) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let talk = std::sync::Arc::new(talk);
    // The threads end with the test process.
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().flatten().enumerate() {
            let talk = std::sync::Arc::clone(&talk);
            std::thread::spawn(move || talk(stream, number));
        }
    });
    (folder, socket)
}

fn spec(socket: &Path, timeout: Duration) -> VolumeSpec {
    let uri = format!("nbd+unix:///?socket={}", socket.display()).parse().unwrap();
    VolumeSpec::new("h", Kind::Nbd { uri, answer: timeout, timeout, reconnect: Duration::from_millis(50) })
}

fn greet(stream: &mut UnixStream) {
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
    let mut option = [0; 4 + 8 + 4 + 4 + 4 + 2 + 2];
    stream.read_exact(&mut option).unwrap();
}

fn option_reply(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = 0x3e889045565a9u64.to_be_bytes().to_vec();
    bytes.extend(7u32.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    bytes
}

fn info_export(size: u64, flags: u16) -> Vec<u8> {
    option_reply(3, &[&[0, 0][..], &size.to_be_bytes(), &flags.to_be_bytes()].concat())
}

/// NBD_FLAG_HAS_FLAGS.
const HAS_FLAGS: u16 = 1 << 0;
/// NBD_FLAG_SEND_FLUSH.
const SEND_FLUSH: u16 = 1 << 2;
/// NBD_FLAG_CAN_MULTI_CONN.
const MULTI_CONN: u16 = 1 << 8;
/// NBD_FLAG_SEND_TRIM.
const SEND_TRIM: u16 = 1 << 5;

fn handshake(stream: &mut UnixStream) {
    handshake_with(stream, 0b1_0110_1101);
}

fn handshake_with(stream: &mut UnixStream, flags: u16) {
    greet(stream);
    stream.write_all(&info_export(SIZE, flags)).unwrap();
    stream.write_all(&option_reply(1, &[])).unwrap();
}

fn request(stream: &mut UnixStream) -> Option<[u8; 28]> {
    let mut request = [0; 28];
    stream.read_exact(&mut request).ok().map(|()| request)
}

fn reply(magic: u32, error: u32, cookie: [u8; 8]) -> Vec<u8> {
    [&magic.to_be_bytes()[..], &error.to_be_bytes(), &cookie].concat()
}

fn cookie(request: &[u8; 28]) -> [u8; 8] {
    request[8..16].try_into().unwrap()
}

const REPLY: u32 = 0x67446698;

#[test]
fn nonsense_in_the_handshake_is_refused_with_a_reason() {
    type Talk = fn(&mut UnixStream);
    let cases: &[(&str, Talk)] = &[
        ("not an NBD server", |s| s.write_all(b"HTTP/1.1 400 Bad Request\r\n").unwrap()),
        ("old style", |s| s.write_all(b"NBDMAGIC\0\0\x42\x02\x81\x86\x12\x53........").unwrap()),
        ("fixed newstyle", |s| s.write_all(b"NBDMAGICIHAVEOPT\0\0").unwrap()),
        ("broke off", |s| s.write_all(b"NBDMAG").unwrap()),
        ("wrong magic", |s| {
            greet(s);
            s.write_all(&[0x41; 64]).unwrap();
        }),
        ("option reply of 4294967295 bytes", |s| {
            greet(s);
            let mut bytes = option_reply(3, &[]);
            bytes[16..20].fill(0xff);
            s.write_all(&bytes).unwrap();
        }),
        ("without describing it", |s| {
            greet(s);
            s.write_all(&option_reply(1, &[])).unwrap();
        }),
        ("not a length", |s| {
            greet(s);
            s.write_all(&option_reply(3, &[0, 0, 1])).unwrap();
        }),
        ("cannot be a volume", |s| {
            greet(s);
            s.write_all(&[info_export(u64::MAX, 1), option_reply(1, &[])].concat()).unwrap();
        }),
        ("flags are not valid", |s| {
            greet(s);
            s.write_all(&[info_export(SIZE, 0), option_reply(1, &[])].concat()).unwrap();
        }),
        ("block sizes 3,", |s| {
            greet(s);
            let blocks: Vec<u8> = [3u32, 4096, 1 << 20].iter().flat_map(|block| block.to_be_bytes()).collect();
            let blocks = option_reply(3, &[&[0, 3][..], &blocks].concat());
            s.write_all(&[blocks, info_export(SIZE, 1), option_reply(1, &[])].concat()).unwrap();
        }),
        ("requires TLS", |s| {
            greet(s);
            s.write_all(&option_reply(0x8000_0005, b"only\x1b[2Jsafe")).unwrap();
        }),
        ("keeps sending", |s| {
            greet(s);
            for _ in 0..100 {
                let _ = s.write_all(&info_export(SIZE, 1));
            }
        }),
    ];
    for (why, talk) in cases {
        let talk = *talk;
        let (_folder, socket) = serve(move |mut stream, _| talk(&mut stream));
        let error = Volume::open(spec(&socket, Duration::from_secs(5)), &PathBroker::new()).unwrap_err().to_string();
        assert!(error.contains(why), "expected {why:?} in: {error}");
        assert!(!error.contains('\x1b'), "a server's words are escaped");
    }
}

#[test]
fn a_silent_server_does_not_hold_its_caller_for_ever() {
    let (_folder, socket) = serve(|stream, _| {
        std::thread::sleep(Duration::from_secs(20));
        drop(stream);
    });
    let before = Instant::now();
    let error = Volume::open(spec(&socket, Duration::from_millis(300)), &PathBroker::new()).unwrap_err().to_string();
    assert!(error.contains("no answer in time"), "{error}");
    // Not as long as the server is silent.
    assert!(before.elapsed() < Duration::from_secs(15));
}

/// On its first connection the server answers the first request with `nonsense` and `hangs_up`, or waits for us to; on
/// all others it serves reads of 0x77.
fn after(nonsense: impl Fn(&[u8; 28]) -> Vec<u8> + Send + Sync + 'static, hangs_up: bool, detail: &str) {
    let (_folder, socket) = serve(move |mut stream, number| {
        handshake(&mut stream);
        while let Some(asked) = request(&mut stream) {
            if number == 0 {
                let _ = stream.write_all(&nonsense(&asked));
                if !hangs_up {
                    let _ = std::io::copy(&mut stream, &mut std::io::sink());
                }
                return;
            }
            let len = u32::from_be_bytes(asked[24..28].try_into().unwrap());
            let data = if asked[7] == 0 { vec![0x77; len as usize] } else { Vec::new() };
            let _ = stream.write_all(&[reply(REPLY, 0, cookie(&asked)), data].concat());
        }
    });
    let mut core = Core::new(spec(&socket, Duration::from_secs(10)));
    // Guest memory beyond the request's data must stay as it is.
    let guard = core.view.buffer(softdpu_memory::GuestAddress(0x2000), 0x1000).unwrap();
    guard.fill(0, 0x1000, 0x11).unwrap();
    assert_eq!(core.read(0, 4096).unwrap(), vec![0x77; 4096], "{detail}");
    let mut bytes = vec![0; 0x1000];
    guard.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, vec![0x11; 0x1000], "{detail}");
    let status = core.volume.status();
    assert_eq!((status.errors.disconnects, status.errors.replayed, status.state), (1, 1, State::Active), "{detail}");
}

#[test]
fn nonsense_in_answers_drops_the_connection_and_the_request_goes_again() {
    after(|asked| reply(0x1234_5678, 0, cookie(asked)), false, "wrong magic");
    after(|_| reply(REPLY, 0, [0xff; 8]), false, "a cookie nobody used");
    after(
        |asked| {
            let mut stale = cookie(asked);
            stale[3] = stale[3].wrapping_sub(1);
            reply(REPLY, 0, stale)
        },
        false,
        "a cookie of an earlier request",
    );
    after(|asked| reply(REPLY, 108, cookie(asked)), false, "ESHUTDOWN");
}

#[test]
fn an_answer_that_breaks_off_is_asked_for_again() {
    after(|asked| [reply(REPLY, 0, cookie(asked)), vec![0; 100]].concat(), true, "within the data");
    after(|asked| reply(REPLY, 0, cookie(asked))[..9].to_vec(), true, "within the header");
    after(|_| Vec::new(), true, "before the answer");
}

#[test]
fn two_answers_to_one_request_are_nonsense() {
    let (_folder, socket) = serve(|mut stream, number| {
        handshake(&mut stream);
        while let Some(asked) = request(&mut stream) {
            let times = if number == 0 { 2 } else { 1 };
            let len = u32::from_be_bytes(asked[24..28].try_into().unwrap());
            let answer = [reply(REPLY, 0, cookie(&asked)), vec![0x66; len as usize]].concat();
            let _ = stream.write_all(&answer.repeat(times));
        }
    });
    let mut core = Core::new(spec(&socket, Duration::from_secs(10)));
    for _ in 0..3 {
        assert_eq!(core.read(0, 512).unwrap(), vec![0x66; 512]);
    }
    assert_eq!(core.volume.status().errors.disconnects, 1);
}

#[test]
fn an_error_number_that_is_none_is_an_io_error() {
    let (_folder, socket) = serve(|mut stream, _| {
        handshake(&mut stream);
        while let Some(asked) = request(&mut stream) {
            let _ = stream.write_all(&reply(REPLY, u32::MAX, cookie(&asked)));
        }
    });
    let mut core = Core::new(spec(&socket, Duration::from_secs(10)));
    assert_eq!(core.read(0, 512), Err(IoError::Device { errno: 5 }));
}

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
    assert_eq!(status.state, State::Failed);
    assert!(status.detail.contains("has shrunk"), "{status:?}");
}

#[test]
fn an_answer_that_another_core_received_is_abandoned_too() {
    // Without NBD_FLAG_CAN_MULTI_CONN all cores share a connection.
    let (_folder, socket) = serve(|mut stream, _| {
        handshake_with(&mut stream, HAS_FLAGS | SEND_FLUSH);
        while let Some(asked) = request(&mut stream) {
            let len = u32::from_be_bytes(asked[24..28].try_into().unwrap());
            let _ = stream.write_all(&[reply(REPLY, 0, cookie(&asked)), vec![0x55; len as usize]].concat());
        }
    });
    let volume = Volume::open(spec(&socket, Duration::from_secs(10)), &PathBroker::new()).unwrap();
    let (mut a, mut b) = (Core::with(volume.clone()), Core::with(volume));
    let asked = a.request(BlockOp::Read, 0, 512);
    let token = asked.token;
    assert!(a.submit(asked).is_none());
    // The server answers in order: when B has its answer, B has received A's as well.
    assert_eq!(b.read(0, 512).unwrap(), vec![0x55; 512]);
    assert_eq!(a.context.outstanding(), 1);

    let mut given_up = Vec::new();
    a.context.abandon(&mut |other| other != token, &mut given_up);
    assert_eq!((given_up.as_slice(), a.context.outstanding()), (&[][..], 1), "only what matches");
    a.context.abandon(&mut |other| other == token, &mut given_up);
    assert_eq!((given_up.as_slice(), a.context.outstanding()), (&[token][..], 0));
    let mut done = Vec::new();
    a.context.poll(&mut done);
    a.context.tick(Instant::now());
    a.context.poll(&mut done);
    assert!(done.is_empty(), "{done:?}");
    assert_eq!(a.read(0, 512).unwrap(), vec![0x55; 512], "the core goes on");
}

/// Answers reads and writes, and every other command with EINVAL.
fn serve_plain(stream: &mut UnixStream) {
    while let Some(asked) = request(stream) {
        let len = u32::from_be_bytes(asked[24..28].try_into().unwrap()) as usize;
        let answer = match asked[7] {
            0 => [reply(REPLY, 0, cookie(&asked)), vec![0; len]].concat(),
            1 => {
                stream.read_exact(&mut vec![0; len]).unwrap();
                reply(REPLY, 0, cookie(&asked))
            }
            _ => reply(REPLY, 22, cookie(&asked)),
        };
        let _ = stream.write_all(&answer);
    }
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
        common::activate(&volume);
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
    while volume.status().state != State::Active {
        b.context.tick(Instant::now());
        assert!(Instant::now() < deadline, "{:?}", volume.status());
    }
    assert_eq!(b.read(0, 512), Err(IoError::Timeout));
    assert_eq!(a.read(0, 512), Err(IoError::Timeout));
    let status = volume.status();
    assert_eq!(status.state, State::Failed);
    assert!(status.detail.contains("multi-conn") && status.detail.contains("2 cores"), "{status:?}");
    drop((a, b, volume));

    // The next process has been told: its cores share a connection.
    let volume = Volume::open(spec(&socket, Duration::from_secs(10)), &broker).unwrap();
    let (mut a, mut b) = (Core::with(volume.clone()), Core::with(volume.clone()));
    assert_eq!((a.read(0, 512), b.read(0, 512)), (Ok(vec![0; 512]), Ok(vec![0; 512])));
    assert_eq!(volume.status().state, State::Active);
}

#[test]
fn where_one_core_has_a_connection_multi_conn_is_not_missed_and_the_next_core_shares_it() {
    let (_folder, socket) = serve_fickle(1);
    let volume = Volume::open(spec(&socket, Duration::from_secs(10)), &PathBroker::new()).unwrap();
    let mut a = Core::with(volume.clone());
    assert_eq!(a.read(0, 512), Ok(vec![0; 512]));
    let mut b = Core::with(volume.clone());
    assert_eq!(b.read(0, 512), Ok(vec![0; 512]));
    assert_eq!((volume.status().state, volume.status().errors.disconnects), (State::Active, 1));
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
    assert_eq!(status.state, State::Opened);
    assert!(status.detail.contains("has not yet ended"), "{status:?}");
    drop(server);
    common::activate(&volume);
}

#[test]
fn an_answer_that_has_come_does_not_outlive_its_attachment() {
    let (_folder, socket) = serve(|mut stream, _| {
        handshake(&mut stream);
        serve_plain(&mut stream);
    });
    let mut core = Core::new(spec(&socket, Duration::from_secs(10)));
    assert_eq!(core.read(0, 512), Ok(vec![0; 512]));
    let asked = core.request(BlockOp::Read, 0, 512);
    assert!(core.submit(asked).is_none());
    // Receives the answer, which the next poll would find.
    for _ in 0..100 {
        core.context.tick(Instant::now());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(core.context.outstanding(), 1);
    core.context.detach(core.to);
    assert_eq!(core.context.outstanding(), 0);
    let mut done = Vec::new();
    core.context.poll(&mut done);
    assert!(done.is_empty(), "{done:?}");
}

#[test]
fn what_was_given_up_may_not_land_on_what_is_written_later() {
    // Keeps the first write for itself until its client has said that nothing more comes, as a server that reorders
    // might.
    let (said, heard) = std::sync::mpsc::channel();
    let (_folder, socket) = serve(move |mut stream, number| {
        handshake_with(&mut stream, HAS_FLAGS | SEND_FLUSH);
        let mut took = false;
        while let Some(asked) = request(&mut stream) {
            let len = u32::from_be_bytes(asked[24..28].try_into().unwrap()) as usize;
            let mut data = vec![0; if asked[7] == 1 { len } else { 0 }];
            stream.read_exact(&mut data).unwrap();
            said.send((number, data.first().copied())).unwrap();
            if std::mem::replace(&mut took, true) || number > 0 {
                let _ = stream.write_all(&reply(REPLY, 0, cookie(&asked)));
            }
        }
        said.send((number, None)).unwrap();
    });
    let mut core = Core::new(spec(&socket, Duration::from_secs(20)));
    let old = core.request(BlockOp::Write, 0, 512);
    old.buffer.write_at(16, &[1; 512]).unwrap();
    assert!(core.submit(old).is_none());
    assert_eq!(heard_within(&mut core, &heard), (0, Some(1)));
    let mut given_up = Vec::new();
    core.context.abandon(&mut |_| true, &mut given_up);
    assert_eq!(given_up.len(), 1);
    assert_eq!(core.write(0, &[2; 512]), Ok(()));
    let seen: Vec<_> = heard.try_iter().collect();
    assert_eq!(seen, [(0, None), (1, Some(2))], "the old is over before the new is sent");
    assert_eq!((core.volume.status().errors.disconnects, core.volume.status().state), (1, State::Active));
}

fn heard_within<T>(core: &mut Core, heard: &std::sync::mpsc::Receiver<T>) -> T {
    let (deadline, mut done) = (Instant::now() + Duration::from_secs(60), Vec::new());
    loop {
        core.context.tick(Instant::now());
        core.context.poll(&mut done);
        if let Ok(said) = heard.recv_timeout(Duration::from_millis(1)) {
            return said;
        }
        assert!(Instant::now() < deadline, "the server hears nothing");
    }
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
    if let Kind::Nbd { answer, .. } = &mut patient.kind {
        *answer = Duration::from_millis(300);
    }
    let mut core = Core::new(patient);
    let asked = core.request(BlockOp::Read, 0, 512);
    assert!(core.submit(asked).is_none());
    let deadline = Instant::now() + Duration::from_secs(60);
    while core.volume.status().state != State::Recovering {
        core.context.tick(Instant::now());
        assert!(Instant::now() < deadline, "{:?}", core.volume.status());
    }
    assert!(core.volume.status().detail.contains("about to go"), "{:?}", core.volume.status());
    assert_eq!(core.wait(Duration::from_secs(60)).map(|done| done.result), Some(Ok(())));
    assert_eq!(core.volume.status().state, State::Active);
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
