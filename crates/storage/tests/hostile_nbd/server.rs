//! An NBD server that a test has lie.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use softdpu_storage::*;

use crate::common::{Core, MIB};

pub const SIZE: u64 = 8 * MIB;

/// A server that runs `talk` on every connection.
pub fn serve(talk: impl Fn(UnixStream, usize) + Send + Sync + 'static) -> (tempfile::TempDir, PathBuf) {
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

pub fn spec(socket: &Path, timeout: Duration) -> VolumeSpec {
    let uri = format!("nbd+unix:///?socket={}", socket.display()).parse().unwrap();
    VolumeSpec::new("h", VolumeKind::Nbd { uri, answer: timeout, timeout, reconnect: Duration::from_millis(50) })
}

pub fn greet(stream: &mut UnixStream) {
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03").unwrap();
    let mut option = [0; 4 + 8 + 4 + 4 + 4 + 2 + 2];
    stream.read_exact(&mut option).unwrap();
}

pub fn option_reply(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut bytes = 0x3e889045565a9u64.to_be_bytes().to_vec();
    bytes.extend(7u32.to_be_bytes());
    bytes.extend(kind.to_be_bytes());
    bytes.extend((body.len() as u32).to_be_bytes());
    bytes.extend(body);
    bytes
}

pub fn info_export(size: u64, flags: u16) -> Vec<u8> {
    option_reply(3, &[&[0, 0][..], &size.to_be_bytes(), &flags.to_be_bytes()].concat())
}

/// NBD_FLAG_HAS_FLAGS.
pub const HAS_FLAGS: u16 = 1 << 0;
/// NBD_FLAG_SEND_FLUSH.
pub const SEND_FLUSH: u16 = 1 << 2;
/// NBD_FLAG_CAN_MULTI_CONN.
pub const MULTI_CONN: u16 = 1 << 8;
/// NBD_FLAG_SEND_TRIM.
pub const SEND_TRIM: u16 = 1 << 5;

pub fn handshake(stream: &mut UnixStream) {
    handshake_with(stream, 0b1_0110_1101);
}

pub fn handshake_with(stream: &mut UnixStream, flags: u16) {
    greet(stream);
    stream.write_all(&info_export(SIZE, flags)).unwrap();
    stream.write_all(&option_reply(1, &[])).unwrap();
}

pub fn request(stream: &mut UnixStream) -> Option<[u8; 28]> {
    let mut request = [0; 28];
    stream.read_exact(&mut request).ok().map(|()| request)
}

pub fn reply(magic: u32, error: u32, cookie: [u8; 8]) -> Vec<u8> {
    [&magic.to_be_bytes()[..], &error.to_be_bytes(), &cookie].concat()
}

pub fn cookie(request: &[u8; 28]) -> [u8; 8] {
    request[8..16].try_into().unwrap()
}

pub const REPLY: u32 = 0x67446698;

/// Answers reads and writes, and every other command with EINVAL.
pub fn serve_plain(stream: &mut UnixStream) {
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

pub fn heard_within<T>(core: &mut Core, heard: &std::sync::mpsc::Receiver<T>) -> T {
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
