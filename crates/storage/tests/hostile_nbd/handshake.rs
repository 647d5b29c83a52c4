//! Servers with a handshake that cannot be right.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use softdpu_storage::*;

use crate::server::*;

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
