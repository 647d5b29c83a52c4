//! Frames from a client, as pcapng, on their way in by a port.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use softdpu_engine::Injector;
use softdpu_pcapng::{self as pcapng, Block, EnhancedPacket, Reader};
use softdpu_sys::port::MAX_FRAME;

use super::socket::{Connection, Received};
use softdpu_api::{ApiError, ErrorCode, Id, Replayed, Response, encode_response};

/// Frames that are under way to the core at a time.
const BATCH: usize = 256;

/// How long the core may take for them, and the client for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The longest wait at a time: the client's bytes and its end end it before.
const PAUSE: Duration = Duration::from_secs(60);

/// A replay that is under way.
pub(super) struct Replay {
    connection: Connection,
    injector: Injector,
    id: Id,
    reader: Reader,
    /// Link types of the section's interfaces.
    links: Vec<u16>,
    frames: Vec<Vec<u8>>,
    /// Frames that are in.
    sent: u64,
}

impl Replay {
    pub(super) fn new(socket: OwnedFd, injector: Injector, id: Id) -> Replay {
        let (connection, reader) = (Connection::new(socket), Reader::new());
        Replay { connection, injector, id, reader, links: Vec::new(), frames: Vec::new(), sent: 0 }
    }

    /// Runs until the client has sent everything, or something that is no frame. How many frames came in.
    pub(super) fn run(mut self) -> u64 {
        self.say(Ok(json!({})), true);
        let outcome = self.serve().map(|()| json!(Replayed { frames: self.sent }));
        self.say(outcome.map_err(|message| ApiError::new(ErrorCode::Failed, message)), false);
        if let Err(error) = self.connection.drain(PATIENCE) {
            tracing::debug!(%error, "the client of a replay is gone");
        }
        self.sent
    }

    fn say(&mut self, outcome: Result<Value, ApiError>, more: bool) {
        let response = Response { id: Some(self.id.clone()), outcome, more };
        self.connection.out().extend(encode_response(&response).into_bytes());
    }

    fn serve(&mut self) -> Result<(), String> {
        loop {
            let text = |error: rustix::io::Errno| error.to_string();
            self.connection.flush().map_err(text)?;
            match self.connection.receive().map_err(text)? {
                Received::Bytes(bytes) => {
                    self.reader.push(&bytes);
                    self.read()?;
                }
                Received::Nothing => self.connection.wait(true, None, PAUSE),
                Received::End if self.reader.is_between_blocks() => return Ok(()),
                Received::End => return Err("the capture file ends within a block".to_owned()),
            }
        }
    }

    /// Brings in the frames that are here.
    fn read(&mut self) -> Result<(), String> {
        loop {
            let number = self.sent + self.frames.len() as u64 + 1;
            let Some((_, block)) = self.reader.next_block().map_err(|error| error.to_string())? else { break };
            match block {
                Block::Section { .. } => self.links.clear(),
                Block::Interface(interface) => self.links.push(interface.link_type),
                Block::Packet(packet) => {
                    let frame = frame(&packet, &self.links).map_err(|error| format!("frame {number}: {error}"))?;
                    self.frames.push(frame);
                }
                Block::Statistics(_) | Block::Other { .. } => {}
            }
            if self.frames.len() == BATCH {
                self.inject()?;
            }
        }
        self.inject()
    }

    /// Hands the frames over and waits until they are in.
    fn inject(&mut self) -> Result<(), String> {
        let frames = std::mem::take(&mut self.frames);
        let target = self.sent + frames.len() as u64;
        if target == self.sent {
            return Ok(());
        }
        self.injector.inject(frames);
        let deadline = Instant::now() + PATIENCE;
        while self.injector.taken() < target {
            if self.injector.is_refused() {
                return Err("the port is there no more".to_owned());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err("the port's core does not take frames".to_owned());
            }
            self.injector.wait(left);
        }
        self.sent = target;
        Ok(())
    }
}

/// The whole frame that a packet of the file is.
fn frame(packet: &EnhancedPacket<'_>, links: &[u16]) -> Result<Vec<u8>, String> {
    let (len, original) = (packet.bytes.len(), packet.original as usize);
    match links.get(packet.interface as usize) {
        Some(&pcapng::ETHERNET) => {}
        link => {
            let link = link.copied().unwrap_or_default();
            return Err(format!("its link type is {link}, and only Ethernet ({}) can come in", pcapng::ETHERNET));
        }
    }
    if len < original {
        return Err(format!("only {len} of its {original} bytes were captured: capture with a larger snaplen"));
    }
    if len > MAX_FRAME {
        return Err(format!("it has {len} bytes, a frame at most {MAX_FRAME}"));
    }
    Ok(packet.bytes.to_vec())
}
