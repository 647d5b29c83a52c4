//! A tenant whose guest sends frames to another of its guests: a closed loop, so many on their way.

use std::path::Path;
use std::time::Duration;

use softdpu_sys::clock;

use super::requests::LoadError;
use super::talk::{End, Terms};
use super::tenants::{Loop, Served};
use crate::{Frames, Station};

/// A frame that did not arrive after this long was dropped, nanoseconds.
const LOST_NS: u64 = 20_000_000;
/// Visits without a frame between two looks at the clock.
const PATIENCE: u32 = 1 << 10;

/// Two guests of a tenant, one of which sends.
pub struct Stream {
    from: End,
    to: End,
    /// Frames on their way, when all that it wants are.
    depth: usize,
    /// And now.
    target: usize,
    /// Frames below this number count as lost, should they not have arrived.
    written_off: u64,
    /// By number, modulo its length: when a frame was sent.
    sent_at: Box<[u64]>,
    /// When a frame arrived last.
    last: u64,
    empty: u32,
}

/// Who sends what to whom.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// What is sent.
    pub frames: Frames,
    /// Flows that it belongs to.
    pub flows: u16,
    /// Who sends.
    pub from: Station,
    /// Who receives.
    pub to: Station,
    /// The MAC address that frames are sent to: the receiver's, or that of a gateway on the way.
    pub by: [u8; 6],
}

impl Stream {
    /// Connects both guests, to a server that may not listen yet; `depth` frames are to be on their way.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn connect(sockets: [&Path; 2], route: Route, depth: usize) -> Result<Stream, LoadError> {
        let failed = |error: super::frames::LoadError| LoadError::Load(error.to_string());
        // A receiver has buffers for all that is on its way, and for those that are given back in a batch.
        let queue = (depth * 2).next_power_of_two().clamp(256, 1024) as u16;
        if depth == 0 || depth * 4 > usize::from(queue) * 3 {
            return Err(LoadError::Load(format!("{depth} frames on their way: expected 1 to 768")));
        }
        let terms = Terms { frames: route.frames, queue, flows: route.flows };
        let hop = Station { mac: route.by, ..route.to };
        Ok(Stream {
            from: End::connect(sockets[0], terms, route.from, hop).map_err(failed)?,
            to: End::connect(sockets[1], terms, route.to, route.from).map_err(failed)?,
            depth,
            target: 0,
            written_off: 0,
            sent_at: vec![0; 2 * usize::from(queue)].into(),
            last: clock::now(),
            empty: 0,
        })
    }

    #[inline]
    fn on_their_way(&self) -> usize {
        (self.from.out.sent() - self.to.into.next().max(self.written_off)) as usize
    }

    /// Sends as many as there is room for.
    #[inline]
    fn send(&mut self, now: u64) {
        let room = self.target.saturating_sub(self.on_their_way());
        if room == 0 {
            return;
        }
        let first = self.from.out.sent();
        self.from.send(room);
        for number in first..self.from.out.sent() {
            let place = number as usize % self.sent_at.len();
            self.sent_at[place] = now;
        }
    }

    /// Nothing came: what the server took and nobody got is lost after a while.
    #[cold]
    fn look_for_losses(&mut self) {
        let now = clock::now();
        self.from.reap();
        if now.saturating_sub(self.last) > LOST_NS && self.from.out.outstanding() == 0 {
            self.written_off = self.from.out.sent();
        }
    }
}

impl Loop for Stream {
    fn depth(&self) -> usize {
        self.depth
    }

    fn raise(&mut self, depth: usize, now: u64) -> Result<(), LoadError> {
        self.target = self.target.max(depth.min(self.depth));
        self.last = now;
        self.send(now);
        Ok(())
    }

    #[inline]
    fn visit(&mut self, served: Option<(&mut Served, usize)>, goes_on: bool, most: usize) -> Result<usize, LoadError> {
        let taken = self.to.take(most).map_err(|error| LoadError::Load(error.to_string()))?;
        if !goes_on {
            self.target = 0;
        }
        if taken == 0 {
            self.empty += 1;
            if self.empty.is_multiple_of(PATIENCE) {
                self.look_for_losses();
                self.send(clock::now());
            }
            return Ok(0);
        }
        let now = clock::now();
        self.last = now;
        if let Some((served, slice)) = served {
            served.requests += taken as u64;
            served.slices[slice] += taken as u64;
            // Those before the last of a batch are taken to be the ones sent before it.
            let next = self.to.into.next();
            for number in next.saturating_sub(taken as u64)..next {
                let sent = self.sent_at[number as usize % self.sent_at.len()];
                served.latency.saturating_record(now.saturating_sub(sent));
            }
        }
        self.send(now);
        Ok(taken)
    }

    fn outstanding(&mut self) -> usize {
        self.on_their_way()
    }

    fn overdue(&mut self, waited: Duration) -> LoadError {
        LoadError::Load(format!(
            "of {} frames sent {} arrived, none for {waited:?}; the server has not taken {} of them",
            self.from.out.sent(),
            self.to.into.received(),
            self.from.out.outstanding()
        ))
    }
}
