//! A guest that talks to another, a frame at a time, and one that floods its own with the smallest frames, from one
//! thread.

use std::path::Path;
use std::time::Duration;

use hdrhistogram::Histogram;
use softdpu_ring::Format;
use softdpu_sys::{affinity, clock};

use super::frames::LoadError;
use crate::net::{FrameReceiver, FrameSender};
use crate::{Frames, NetFrontEnd, NetOptions, Station};

/// What is sent, both ways.
const FRAMES: Frames = Frames::Smallest;
/// Descriptors of a queue.
const QUEUE: u16 = 256;
/// Frames of the flood that are on their way: less than the receiver has buffers.
const WINDOW: u64 = 192;
/// Frames of the flood that are taken before the talk is looked at: the client's own fairness.
const VISIT: usize = 4;
/// A frame that did not arrive after this long was dropped.
const LOST_NS: u64 = 50_000_000;
/// A server that delivers nothing for this long is given up.
const STALL_NS: u64 = 5_000_000_000;
/// Longest latency told apart.
const LONGEST: u64 = 60_000_000_000;

/// What an interface's driver is set up with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// What is sent, both ways.
    pub frames: Frames,
    /// Descriptors of a queue.
    pub queue: u16,
    /// Flows that frames belong to.
    pub flows: u16,
}

/// An interface, and who is there.
pub(super) struct End {
    port: NetFrontEnd,
    pub out: FrameSender,
    pub into: FrameReceiver,
}

impl End {
    pub fn connect(socket: &Path, terms: Terms, here: Station, there: Station) -> Result<End, LoadError> {
        let Terms { frames, queue, flows } = terms;
        let options = NetOptions {
            queue_size: queue,
            format: Format::Split,
            required: Vec::new(),
            memory: FrameSender::bytes(frames, queue) + FrameReceiver::bytes(frames, queue) + 4096,
            timeout: Duration::from_secs(5),
            status: false,
        };
        let mut port = NetFrontEnd::connect_when_listening(socket, &options)?;
        let out = FrameSender::new(&mut port, queue, frames, flows, here, there)?;
        let into = FrameReceiver::new(&mut port, queue, frames)?;
        Ok(End { port, out, into })
    }

    /// Takes back what the device has taken.
    #[inline]
    pub fn reap(&mut self) {
        self.out.reap(&mut self.port.transmit);
    }

    #[inline]
    pub fn send(&mut self, count: usize) {
        self.reap();
        self.out.send(&mut self.port.transmit, count);
    }

    #[inline]
    pub fn take(&mut self, most: usize) -> Result<usize, LoadError> {
        let sent = self.out.sent();
        let failed = |source| LoadError::Corrupt { sent, received: 0, source };
        self.into.take(&mut self.port.receive, most).map_err(failed)
    }
}

/// Two guests of a tenant.
pub struct Pair {
    a: End,
    b: End,
}

impl Pair {
    /// Connects both, to a server that may not listen yet.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn connect(sockets: [&Path; 2], stations: [Station; 2]) -> Result<Pair, LoadError> {
        let [a, b] = stations;
        let terms = Terms { frames: FRAMES, queue: QUEUE, flows: 1 };
        Ok(Pair { a: End::connect(sockets[0], terms, a, b)?, b: End::connect(sockets[1], terms, b, a)? })
    }

    /// Sends frames from the first to the second, as many as arrive; how many those were.
    fn flood(&mut self) -> Result<usize, LoadError> {
        let taken = self.b.take(VISIT)?;
        let on_their_way = self.a.out.sent().saturating_sub(self.b.into.next());
        if taken > 0 || on_their_way < WINDOW / 2 {
            self.a.send(WINDOW.saturating_sub(on_their_way).min(VISIT as u64 * 2) as usize);
        }
        Ok(taken)
    }
}

/// What was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// From sending a request to its answer, nanoseconds.
    pub latency: Histogram<u64>,
    /// Frames of the flood a second.
    pub flood: f64,
}

/// Lets one pair talk, request and response, while another floods, if there is one; from a thread on `cpu`.
///
/// # Errors
/// [`LoadError`].
pub fn run(
    talk: &mut Pair,
    flood: Option<&mut Pair>,
    cpu: usize,
    warm_up: Duration,
    duration: Duration,
) -> Result<Seen, LoadError> {
    let failed = |what: String| LoadError::Load(what);
    std::thread::scope(|scope| {
        let run = || {
            affinity::pin_to(cpu).map_err(|error| failed(format!("CPU {cpu} of the clients: {error}")))?;
            // As the data plane's core has it: else other programs take turns with the clients, which then have nothing
            // in flight.
            let _ = affinity::highest_nice();
            let _first = affinity::SessionFirst::new();
            run_here(talk, flood, warm_up, duration)
        };
        scope.spawn(run).join().unwrap_or_else(|_| Err(failed("the clients' thread panicked".to_owned())))
    })
}

fn run_here(
    talk: &mut Pair,
    mut flood: Option<&mut Pair>,
    warm_up: Duration,
    duration: Duration,
) -> Result<Seen, LoadError> {
    let mut latency =
        Histogram::<u64>::new_with_bounds(1, LONGEST, 3).map_err(|error| LoadError::Load(error.to_string()))?;
    let start = clock::now() + warm_up.as_nanos() as u64;
    let end = start + duration.as_nanos() as u64;
    let (mut frames, mut answered) = (0, clock::now());
    // An answer to a question of an earlier run is none to ours.
    talk.a.take(usize::from(QUEUE))?;
    talk.b.take(usize::from(QUEUE))?;
    let mut asked = clock::now();
    talk.a.send(1);
    loop {
        let now = clock::now();
        if now >= end {
            break;
        }
        if let Some(pair) = &mut flood {
            let taken = pair.flood()?;
            frames += if now >= start { taken as u64 } else { 0 };
        }
        if talk.b.take(1)? > 0 {
            talk.b.send(1);
        }
        if talk.a.take(1)? > 0 {
            let now = clock::now();
            if asked >= start {
                latency.saturating_record(now - asked);
            }
            (asked, answered) = (now, now);
            talk.a.send(1);
        } else if now.saturating_sub(asked) > LOST_NS {
            if now.saturating_sub(answered) > STALL_NS {
                return Err(LoadError::Load("no request was answered for five seconds".to_owned()));
            }
            asked = now;
            talk.a.send(1);
        }
    }
    Ok(Seen { latency, flood: frames as f64 / duration.as_secs_f64() })
}
