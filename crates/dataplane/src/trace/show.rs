//! Captured frames on their way to a client, as pcapng.
//!
//! A client that is slow makes frames wait in the capture's buffer, and then lose; the cores go on. One that wants no
//! more ends its direction of the connection: it is sent what was captured until then, and the counts.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use softdpu_engine::{Batch, Capture, CaptureCounts, Captured, Way};
use softdpu_pcapng::{self as pcapng, Direction, EnhancedPacket, Interface, Statistics, write};
use softdpu_sys::clock;
use softdpu_vpc::{Checksum, SegmentationKind};

use super::socket::{Connection, Received};
use softdpu_api::{IDENTIFIER, PacketTrace};

/// Bytes that are made ready before the client has taken those before.
const AHEAD: usize = 1 << 20;

/// How long the rest may take, once the client wants no more.
const PATIENCE: Duration = Duration::from_secs(5);

/// The longest wait at a time: the client's end and new frames end it before.
const PAUSE: Duration = Duration::from_secs(60);

/// A trace that is under way.
pub(super) struct Show {
    connection: Connection,
    capture: Capture,
    filter: Option<String>,
    snaplen: u32,
    /// Interfaces that were described, by port.
    interfaces: BTreeMap<Arc<str>, Described>,
}

struct Described {
    number: u32,
    delivered: u64,
    /// Lost frames that were reported to the client.
    lost: u64,
}

impl Show {
    /// Begins with `greeting` and the descriptions of `ports`: name, and what it is.
    pub(super) fn new(
        socket: OwnedFd,
        capture: Capture,
        trace: &PacketTrace,
        greeting: String,
        ports: impl IntoIterator<Item = (String, String)>,
    ) -> Show {
        let mut show = Show {
            connection: Connection::new(socket),
            capture,
            filter: trace.filter.clone(),
            snaplen: trace.snaplen,
            interfaces: BTreeMap::new(),
        };
        let out = show.connection.out();
        out.extend(greeting.into_bytes());
        write::section_header(out, concat!("softdpu ", env!("CARGO_PKG_VERSION")));
        for (name, description) in ports {
            show.describe(&name.as_str().into(), Some(description));
        }
        show
    }

    /// Runs until the client has enough, or is gone.
    pub(super) fn run(mut self) -> Counts {
        if let Err(error) = self.serve() {
            tracing::debug!(%error, "the client of a packet trace is gone");
        }
        Counts::of(self.capture.counts().values())
    }

    fn serve(&mut self) -> Result<(), Errno> {
        loop {
            match self.connection.receive()? {
                Received::End => return self.finish(),
                // There is nothing to report yet.
                Received::Bytes(_) | Received::Nothing => {}
            }
            self.collect();
            self.connection.flush()?;
            if self.connection.waiting() > 0 {
                self.connection.wait(true, None, PAUSE);
            } else if self.capture.prepare_wait() {
                self.connection.wait(true, Some(self.capture.bell()), PAUSE);
                self.capture.waited();
            }
        }
    }

    /// The rest, and the counts.
    fn finish(&mut self) -> Result<(), Errno> {
        self.capture.end();
        loop {
            self.connection.drain(PATIENCE)?;
            self.collect();
            if self.connection.waiting() == 0 {
                break;
            }
        }
        let time = since_1970();
        for (port, counts) in self.capture.counts() {
            let interface = self.describe(&port, None);
            let delivered = self.interfaces.get(&port).map(|described| described.delivered);
            let statistics = Statistics {
                interface,
                received: Some(counts.seen),
                accepted: Some(counts.matched),
                lost: Some(counts.lost),
                delivered,
            };
            write::interface_statistics(self.connection.out(), time, &statistics);
        }
        self.connection.drain(PATIENCE)
    }

    /// Makes ready what was captured, until there is enough of it.
    fn collect(&mut self) {
        while self.connection.waiting() < AHEAD {
            let batches: Vec<Batch> = std::iter::from_fn(|| self.capture.take()).take(64).collect();
            if batches.is_empty() {
                return;
            }
            // Cores do not wait for each other: what they captured is put in order here, as far as it is here.
            let mut frames: Vec<(&Batch, &Captured)> =
                batches.iter().flat_map(|batch| batch.frames.iter().map(move |frame| (batch, frame))).collect();
            frames.sort_by_key(|(_, frame)| frame.time);
            let lost: BTreeMap<_, _> =
                self.capture.counts().into_iter().map(|(port, counts)| (port, counts.lost)).collect();
            let epoch = since_1970().saturating_sub(clock::now());
            for (batch, frame) in frames {
                let lost = lost.get(&frame.port).copied().unwrap_or_default();
                self.frame(epoch, frame, batch.bytes(frame), lost);
            }
        }
    }

    fn frame(&mut self, epoch: u64, frame: &Captured, bytes: &[u8], lost: u64) {
        let interface = self.describe(&frame.port, None);
        let mut newly = 0;
        if let Some(described) = self.interfaces.get_mut(&frame.port) {
            described.delivered += 1;
            newly = lost.saturating_sub(described.lost);
            described.lost = lost;
        }
        let packet = EnhancedPacket {
            interface,
            time: Some(epoch + frame.time),
            original: frame.len,
            bytes: bytes.into(),
            direction: Some(match frame.way {
                Way::In => Direction::In,
                Way::Out => Direction::Out,
            }),
            lost: (newly > 0).then_some(newly),
            comments: comments(frame).into_iter().map(Into::into).collect(),
        };
        write::enhanced_packet(self.connection.out(), &packet);
    }

    /// The number of a port's interface, which is described now if it was not.
    fn describe(&mut self, port: &Arc<str>, description: Option<String>) -> u32 {
        if let Some(described) = self.interfaces.get(port) {
            return described.number;
        }
        let interface = Interface {
            name: Some((&**port).into()),
            description: description.map(Into::into),
            filter: self.filter.as_deref().map(Into::into),
            link_type: pcapng::ETHERNET,
            snaplen: self.snaplen,
        };
        write::interface_description(self.connection.out(), &interface);
        let number = self.interfaces.len() as u32;
        self.interfaces.insert(Arc::clone(port), Described { number, delivered: 0, lost: 0 });
        number
    }
}

/// A frame's comments in the capture file.
fn comments(frame: &Captured) -> Vec<String> {
    let inner = if frame.overhead > 0 { " of the inner frame" } else { "" };
    let mut comments = Vec::new();
    if let Some(reason) = frame.dropped {
        comments.push(format!("dropped: {reason}"));
    }
    if let Some(cut) = frame.segmentation {
        let kind = match cut.kind {
            SegmentationKind::TcpV4 | SegmentationKind::TcpV6 => "TCP",
            SegmentationKind::Udp => "UDP",
        };
        comments.push(format!("left to do: {kind} segments of {} bytes{inner}", cut.size));
    } else if matches!(frame.checksum, Checksum::Partial { .. }) {
        comments.push(format!("left to do: checksum{inner}"));
    }
    if let Some(path) = &frame.path {
        let (core, number) = path.identifier;
        comments.push(format!("{IDENTIFIER}{core}.{number}"));
        comments.extend(path.steps.iter().map(|(time, step)| format!("+{time} ns | {step}")));
    }
    comments
}

fn since_1970() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |passed| passed.as_nanos() as u64)
}

/// The sum over all ports, for the log.
pub(super) struct Counts(CaptureCounts);

impl Counts {
    fn of<'a>(ports: impl Iterator<Item = &'a CaptureCounts>) -> Counts {
        Counts(ports.fold(CaptureCounts::default(), |sum, port| CaptureCounts {
            seen: sum.seen + port.seen,
            matched: sum.matched + port.matched,
            lost: sum.lost + port.lost,
        }))
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CaptureCounts { seen, matched, lost } = self.0;
        write!(f, "{seen} frames seen, {matched} matched, {lost} lost")
    }
}
