//! Answers that cannot be right, come late, or come for a request that was given up.

use std::io::{Read, Write};
use std::time::{Duration, Instant};

use softdpu_storage::*;

use crate::common::Core;
use crate::server::*;

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
    assert_eq!(
        (status.errors.disconnects, status.errors.replayed, status.state),
        (1, 1, VolumeState::Active),
        "{detail}"
    );
}

#[test]
fn nonsense_in_answers_drops_the_connection_and_the_request_goes_again() {
    after(|asked| reply(0x1234_5678, 0, cookie(asked)), false, "wrong magic");
    after(|_| reply(REPLY, 0, [0xff; 8]), false, "a cookie that was never used");
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
    assert_eq!((core.volume.status().errors.disconnects, core.volume.status().state), (1, VolumeState::Active));
}
