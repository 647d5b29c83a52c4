//! `softdpu trace replay`: a capture file, frame by frame, to the daemon.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use softdpu_api::{Query, Replayed, decode_response};
use softdpu_pcapng::{Block, Reader};

use super::Replay;
use crate::arguments::Connection;
use crate::daemon::connect;

/// Sends the file and says how many frames came in.
pub fn run(connection: &Connection, options: &Replay) -> Result<(), String> {
    let name = options.file.display();
    let mut file = File::open(&options.file).map_err(|error| format!("{name}: {error}"))?;
    let mut pace = Pace::new(options)?;
    let request = Query::TraceReplay { port: options.port.clone() };
    let client = connect(connection)?;
    let (mut stream, already) = client.stream(&request).map_err(|error| error.to_string())?;
    let mut reader = Reader::new();
    let mut bytes = vec![0; 1 << 20];
    let mut sent = Ok(());
    while sent.is_ok() {
        let count = file.read(&mut bytes).map_err(|error| format!("{name}: {error}"))?;
        if count == 0 {
            break;
        }
        reader.push(&bytes[..count]);
        while let Some((raw, block)) = reader.next_block().map_err(|error| format!("{name}: {error}"))? {
            if let Block::Packet(packet) = &block {
                pace.wait(packet.time);
            }
            sent = stream.write_all(raw);
            if sent.is_err() {
                // It ended because it did not like something, and says so.
                break;
            }
        }
    }
    if sent.is_ok() && !reader.is_between_blocks() {
        return Err(format!("{name}: the file ends within a block: it is cut off"));
    }
    // It fails only where the daemon is gone, which is noticed by reading.
    let _ = stream.shutdown(Shutdown::Write);
    let Replayed { frames } = answer(stream, already)?;
    crate::output::print(&format!("{frames} frames came in by {}\n", options.port))
}

/// The daemon's last word.
fn answer(stream: UnixStream, already: Vec<u8>) -> Result<Replayed, String> {
    let mut line = Vec::new();
    let mut lines = BufReader::new(already.as_slice().chain(stream));
    let count = lines.read_until(b'\n', &mut line).map_err(|error| format!("the daemon's connection: {error}"))?;
    if count == 0 {
        return Err("the data plane has ended before all frames were in".to_owned());
    }
    let response = decode_response(line.trim_ascii_end()).map_err(|error| format!("the daemon's answer: {error}"))?;
    let result = response.outcome.map_err(|error| error.to_string())?;
    serde_json::from_value(result).map_err(|error| format!("the daemon's answer: {error}"))
}

/// When the next frame is due.
enum Pace {
    Free,
    Every { gap: Duration, next: Instant },
    Captured { longest: Duration, before: Option<u64>, next: Instant },
}

impl Pace {
    fn new(options: &Replay) -> Result<Pace, String> {
        let next = Instant::now();
        if options.as_captured {
            return Ok(Pace::Captured { longest: options.longest_pause.0, before: None, next });
        }
        let Some(rate) = options.rate else { return Ok(Pace::Free) };
        let gap = Duration::try_from_secs_f64(1.0 / rate);
        let gap = gap.map_err(|_| format!("--rate: {rate} is no number of frames a second"))?;
        Ok(Pace::Every { gap, next })
    }

    /// Sleeps until the frame that was captured at `time`, nanoseconds, is due.
    fn wait(&mut self, time: Option<u64>) {
        let due = match self {
            Pace::Free => return,
            Pace::Every { gap, next } => {
                let due = *next;
                *next += *gap;
                due
            }
            Pace::Captured { longest, before, next } => {
                if let (Some(before), Some(time)) = (*before, time) {
                    *next += Duration::from_nanos(time.saturating_sub(before)).min(*longest);
                }
                *before = time.or(*before);
                *next
            }
        };
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
}
