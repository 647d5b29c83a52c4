//! Request and response between two guests, one at a time, as netperf's TCP_RR.

use std::path::Path;
use std::time::Duration;

use softdpu_ring::Format;
use softdpu_sys::clock;

use super::generator::{Job, PollFds, Signals, Turn};
use super::{LoadError, Outcome};
use crate::net::{FrameReceiver, FrameSender};
use crate::{Frames, NetFrontEnd, NetOptions, Station};

/// What is sent, both ways.
const FRAMES: Frames = Frames::Smallest;
/// Descriptors of a queue.
const QUEUE: u16 = 256;
/// A request without an answer after this long was dropped on its way.
const LOST: Duration = Duration::from_millis(50);
/// A server that delivers no answer for this long is given up.
const STALL: Duration = Duration::from_secs(10);

/// One of the two guests.
struct End {
    port: NetFrontEnd,
    sender: FrameSender,
    receiver: FrameReceiver,
}

impl End {
    fn connect(socket: &Path, from: Station, to: Station) -> Result<End, LoadError> {
        let options = NetOptions {
            queue_size: QUEUE,
            format: Format::Split,
            required: Vec::new(),
            memory: FrameSender::bytes(FRAMES, QUEUE) + FrameReceiver::bytes(FRAMES, QUEUE) + 4096,
            timeout: Duration::from_secs(5),
            status: false,
        };
        let mut port = NetFrontEnd::connect_when_listening(socket, &options)?;
        let sender = FrameSender::new(&mut port, QUEUE, FRAMES, 1, from, to)?;
        let receiver = FrameReceiver::new(&mut port, QUEUE, FRAMES)?;
        Ok(End { port, sender, receiver })
    }

    #[inline]
    fn send(&mut self) {
        self.sender.reap(&mut self.port.transmit);
        self.sender.send(&mut self.port.transmit, 1);
    }

    /// Takes frames, at most `most`; how many.
    #[inline]
    fn take(&mut self, most: usize) -> Result<usize, LoadError> {
        let (sent, received) = (self.sender.sent(), self.receiver.received());
        let corrupt = |source| LoadError::Corrupt { sent, received, source };
        self.receiver.take(&mut self.port.receive, most).map_err(corrupt)
    }

    fn signals(&self) -> Signals {
        let NetFrontEnd { receive, transmit, .. } = &self.port;
        Signals { kicks: receive.kicks() + transmit.kicks(), interrupts: receive.interrupts() + transmit.interrupts() }
    }
}

/// Two guests, one of which asks and the other answers. A latency is from a request to its answer.
pub struct RoundTrip {
    asking: End,
    answering: End,
    /// When the request without an answer was sent.
    asked: Option<u64>,
    /// When the last answer came, or when requests began.
    answered: u64,
    /// Whether a request that was lost is sent again.
    goes_on: bool,
}

impl RoundTrip {
    /// Connects both guests, to a server that may not listen yet.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn connect(sockets: [&Path; 2], stations: [Station; 2]) -> Result<RoundTrip, LoadError> {
        let [a, b] = stations;
        Ok(RoundTrip {
            asking: End::connect(sockets[0], a, b)?,
            answering: End::connect(sockets[1], b, a)?,
            asked: None,
            answered: 0,
            goes_on: false,
        })
    }

    #[inline]
    fn ask(&mut self, now: u64) {
        self.asked = Some(now);
        self.asking.send();
    }
}

impl Job for RoundTrip {
    fn depth(&self) -> usize {
        1
    }

    fn raise(&mut self, depth: usize) -> Result<(), LoadError> {
        if depth == 0 || self.asked.is_some() {
            return Ok(());
        }
        // An answer to a question that was given up is none to the next one.
        self.answering.take(QUEUE.into())?;
        self.asking.take(QUEUE.into())?;
        self.goes_on = true;
        self.answered = clock::now();
        self.ask(self.answered);
        Ok(())
    }

    #[inline]
    fn turn(&mut self, _most: usize, submits: bool, outcome: &mut Outcome) -> Result<Turn, LoadError> {
        self.goes_on = submits;
        if self.answering.take(1)? > 0 {
            self.answering.send();
        }
        if self.asking.take(1)? == 0 {
            return Ok(Turn::default());
        }
        let now = clock::now();
        let Some(asked) = self.asked.take() else { return Ok(Turn::default()) };
        outcome.record(now.saturating_sub(asked));
        outcome.completed(now, 1);
        self.answered = now;
        if submits {
            self.ask(now);
        }
        Ok(Turn { completed: 1, now, submitted: submits })
    }

    fn in_flight(&self) -> usize {
        self.asked.is_some().into()
    }

    fn check(&mut self, now: u64) -> Result<(), LoadError> {
        let longer = |since: u64, limit: Duration| now.saturating_sub(since) > limit.as_nanos() as u64;
        if !self.asked.is_some_and(|asked| longer(asked, LOST)) {
            return Ok(());
        }
        if longer(self.answered, STALL) {
            return Err(self.overdue(STALL));
        }
        self.asked = None;
        if self.goes_on {
            self.ask(now);
        }
        Ok(())
    }

    fn signals(&self) -> Signals {
        let [asking, answering] = [&self.asking, &self.answering].map(End::signals);
        Signals { kicks: asking.kicks + answering.kicks, interrupts: asking.interrupts + answering.interrupts }
    }

    fn arm(&mut self) -> bool {
        self.asking.port.receive.driver.arm() || self.answering.port.receive.driver.arm()
    }

    fn poll_fds<'a>(&'a self, fds: &mut PollFds<'a>) {
        fds.extend([&self.asking, &self.answering].map(|end| end.port.receive.poll_fd()));
    }

    fn woken(&mut self, _slept: bool) {
        for end in [&mut self.asking, &mut self.answering] {
            end.port.receive.take_notification();
            end.port.receive.driver.disarm();
        }
    }

    fn overdue(&self, waited: Duration) -> LoadError {
        LoadError::Stalled {
            sent: self.asking.sender.sent(),
            received: self.asking.receiver.received(),
            outstanding: self.asking.sender.outstanding(),
            waited,
        }
    }
}
