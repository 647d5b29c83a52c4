//! Connecting: fixed newstyle handshake with NBD_OPT_GO. Blocking with a deadline, so never on a data-plane core.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::sockopt;

use softdpu_nbd::wire::{self, Export};
use softdpu_sys::dial::left;

/// The most bytes of one option reply that make sense: an export name and some text.
const MAX_OPTION_REPLY: u32 = 16 << 10;
/// The most option replies to one NBD_OPT_GO.
const MAX_OPTION_REPLIES: usize = 64;

/// Opens the export on a connection that `dial` makes within a time; the socket is non-blocking afterwards.
///
/// # Errors
/// What went wrong, in words.
pub(super) fn connect(
    export: &str,
    limit: Duration,
    dial: impl FnOnce(Duration) -> io::Result<OwnedFd>,
) -> Result<(OwnedFd, Export), String> {
    let deadline = Instant::now() + limit;
    let mut stream = Stream { socket: dial(limit).map_err(|error| error.to_string())?, deadline };
    let export = negotiate(&mut stream, export)?;
    let socket = stream.socket;
    rustix::io::ioctl_fionbio(&socket, true).map_err(|e| format!("cannot make the socket non-blocking: {e}"))?;
    Ok((socket, export))
}

struct Stream {
    socket: OwnedFd,
    deadline: Instant,
}

impl Stream {
    fn check(&self) -> io::Result<()> {
        if Instant::now() < self.deadline { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.read_exact(&mut bytes).map_err(|e| format!("the handshake broke off: {e}"))?;
        Ok(bytes)
    }

    fn bytes(&mut self, len: u32) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; len as usize];
        self.read_exact(&mut bytes).map_err(|e| format!("the handshake broke off: {e}"))?;
        Ok(bytes)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.write_all(bytes).map_err(|e| format!("the handshake broke off: {e}"))
    }
}

impl Read for Stream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.check()?;
        sockopt::set_socket_timeout(self.socket.as_fd(), sockopt::Timeout::Recv, Some(left(self.deadline)))?;
        rustix::io::read(&self.socket, bytes).map_err(in_words)
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.check()?;
        sockopt::set_socket_timeout(self.socket.as_fd(), sockopt::Timeout::Send, Some(left(self.deadline)))?;
        rustix::net::send(&self.socket, bytes, rustix::net::SendFlags::NOSIGNAL).map_err(in_words)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket's own time-out says EAGAIN.
fn in_words(errno: rustix::io::Errno) -> io::Error {
    if errno == rustix::io::Errno::AGAIN {
        return io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
    }
    errno.into()
}

fn negotiate(stream: &mut Stream, export: &str) -> Result<Export, String> {
    let magic = u64::from_be_bytes(stream.array()?);
    if magic != wire::INIT_MAGIC {
        return Err(format!("it is not an NBD server (its first bytes are {magic:#018x})"));
    }
    if u64::from_be_bytes(stream.array()?) != wire::OPTION_MAGIC {
        return Err("it speaks only the old style of the protocol".into());
    }
    let flags = u16::from_be_bytes(stream.array()?);
    if flags & wire::FLAG_FIXED_NEWSTYLE == 0 {
        return Err("it does not speak the fixed newstyle protocol".into());
    }
    let ours = u32::from(wire::FLAG_FIXED_NEWSTYLE | (flags & wire::FLAG_NO_ZEROES));
    stream.put(&ours.to_be_bytes())?;

    let mut option = Vec::with_capacity(64 + export.len());
    option.extend(wire::OPTION_MAGIC.to_be_bytes());
    option.extend(wire::OPT_GO.to_be_bytes());
    option.extend((export.len() as u32 + 8).to_be_bytes());
    option.extend((export.len() as u32).to_be_bytes());
    option.extend(export.as_bytes());
    option.extend(1u16.to_be_bytes());
    option.extend(wire::INFO_BLOCK_SIZE.to_be_bytes());
    stream.put(&option)?;

    let mut found = None;
    let (mut min, mut preferred, mut max) = (1, 4096, wire::DEFAULT_MAX_PAYLOAD);
    for _ in 0..MAX_OPTION_REPLIES {
        let (kind, body) = option_reply(stream)?;
        match kind {
            wire::REP_INFO => match (body.first_chunk().map(|b| u16::from_be_bytes(*b)), &body[..]) {
                (Some(wire::INFO_EXPORT), [_, _, rest @ ..]) if rest.len() == 10 => {
                    let (size, flags) = rest.split_at(8);
                    found = Some((be64(size), u16::from_be_bytes([flags[0], flags[1]])));
                }
                (Some(wire::INFO_BLOCK_SIZE), [_, _, rest @ ..]) if rest.len() == 12 => {
                    (min, preferred, max) = (be32(&rest[..4]), be32(&rest[4..8]), be32(&rest[8..]));
                }
                (Some(wire::INFO_EXPORT | wire::INFO_BLOCK_SIZE) | None, _) => {
                    return Err(format!("its information has {} bytes, which is not a length it can have", body.len()));
                }
                _ => {}
            },
            wire::REP_ACK => {
                let (size, flags) = found.ok_or("it acknowledged the export without describing it")?;
                return checked(size, flags, min, preferred, max);
            }
            kind if kind & wire::REP_ERROR != 0 => {
                let _ = stream.put(&abort());
                return Err(refusal(kind, &body, export));
            }
            kind => return Err(format!("unexpected reply {kind:#x} to NBD_OPT_GO")),
        }
    }
    Err("it keeps sending information about the export".into())
}

fn option_reply(stream: &mut Stream) -> Result<(u32, Vec<u8>), String> {
    let magic = u64::from_be_bytes(stream.array()?);
    if magic != wire::OPTION_REPLY_MAGIC {
        return Err(format!("wrong magic {magic:#018x} in an option reply"));
    }
    let option = u32::from_be_bytes(stream.array()?);
    if option != wire::OPT_GO {
        return Err(format!("a reply to option {option}, which was not sent"));
    }
    let kind = u32::from_be_bytes(stream.array()?);
    let len = u32::from_be_bytes(stream.array()?);
    if len > MAX_OPTION_REPLY {
        return Err(format!("an option reply of {len} bytes"));
    }
    Ok((kind, stream.bytes(len)?))
}

fn abort() -> Vec<u8> {
    let mut bytes = Vec::with_capacity(16);
    bytes.extend(wire::OPTION_MAGIC.to_be_bytes());
    bytes.extend(wire::OPT_ABORT.to_be_bytes());
    bytes.extend(0u32.to_be_bytes());
    bytes
}

fn refusal(kind: u32, body: &[u8], export: &str) -> String {
    let said = String::from_utf8_lossy(body);
    let what = match kind {
        wire::REP_ERR_UNSUP => "it does not know NBD_OPT_GO; a server from 2017 or later is needed".into(),
        wire::REP_ERR_POLICY => "it refuses this client by policy".into(),
        wire::REP_ERR_TLS_REQD => "it requires TLS, which is not supported".into(),
        wire::REP_ERR_UNKNOWN => format!("it has no export named {export:?}"),
        wire::REP_ERR_BLOCK_SIZE_REQD => "it requires a block size negotiation we did not pass".into(),
        other => format!("it refuses the export (error {:#x})", other & !wire::REP_ERROR),
    };
    if said.is_empty() { what } else { format!("{what}: {}", said.escape_debug()) }
}

fn checked(size: u64, flags: u16, min: u32, preferred: u32, max: u32) -> Result<Export, String> {
    if flags & wire::HAS_FLAGS == 0 {
        return Err("its transmission flags are not valid".into());
    }
    if size == 0 || size > i64::MAX as u64 {
        return Err(format!("an export of {size} bytes cannot be a volume"));
    }
    let blocks = [min, preferred];
    if blocks.iter().any(|block| !block.is_power_of_two()) || min > 65536 || max < 4096.max(min) {
        return Err(format!("block sizes {min}, {preferred}, {max} are not what the protocol allows"));
    }
    // A multiple of every block size, and not so much that one command keeps the others waiting.
    let max_payload = (max.min(wire::DEFAULT_MAX_PAYLOAD)) & !(65536.min(min.max(4096)) - 1);
    Ok(Export { size, flags, min_block: min, preferred_block: preferred.min(1 << 20), max_payload })
}

fn be64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn be32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte))
}
