//! What work goes on to, and what it comes over: back ends, accelerators, links.

use std::collections::VecDeque;

/// A back end or an accelerator: so many servers behind one ring, first come, first served.
///
/// An accelerator is one server whose ring is fed in the order in which cores ran the tenants' work (MTDA §III-B). A
/// disk is several; how many of its tenants' requests it may hold is the policy's business
/// ([`BackEnd::depth`](softdpu_sched::BackEnd)).
#[derive(Clone, Debug)]
pub struct Station {
    /// Requests it works on at once, at least 1.
    pub servers: u32,
    /// What one takes, nanoseconds.
    pub service: u64,
    /// Of that, so many hundredths it may be off either way, uniformly.
    pub spread: u64,
}

/// A request at a station.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job<U> {
    pub unit: U,
    pub queue: usize,
    /// The core that submitted it, and that learns when it ended.
    pub core: usize,
    /// When its grant began.
    pub since: u64,
}

/// A station at work.
#[derive(Debug)]
pub(crate) struct Serving<U> {
    pub station: Station,
    pub ring: VecDeque<Job<U>>,
    pub busy: u32,
    /// Nothing that begins ends before this: a stall.
    pub stalled: u64,
    /// Until when every request fails, at once.
    pub fails: u64,
    /// Requests it has, and the most it ever had.
    pub has: u32,
    pub most: u32,
}

impl<U> Serving<U> {
    pub(crate) fn new(station: Station) -> Serving<U> {
        Serving { station, ring: VecDeque::new(), busy: 0, stalled: 0, fails: 0, has: 0, most: 0 }
    }
}

/// A wire: bytes go one after the other, and what would wait longer than the buffer holds is lost.
#[derive(Clone, Debug)]
pub struct Link {
    /// What a byte takes, 2^-10 ns.
    pub byte: u64,
    /// Bytes of each frame beside its own.
    pub overhead: u32,
    /// The longest that a frame waits, nanoseconds.
    pub buffer: u64,
    free: u64,
}

impl Link {
    /// A link of so many bits a second.
    pub fn new(bits: f64, overhead: u32, buffer: u64) -> Link {
        Link { byte: (8e9 * 1_024.0 / bits) as u64, overhead, buffer, free: 0 }
    }

    /// A frame that is there at `now` is through at the time that is returned; none: it is lost.
    pub fn send(&mut self, now: u64, bytes: u32) -> Option<u64> {
        let now = now << 10;
        let start = self.free.max(now);
        if start - now > self.buffer << 10 {
            return None;
        }
        self.free = start + self.byte * u64::from(bytes + self.overhead);
        Some(self.free >> 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_carries_what_it_says_and_loses_what_waits_too_long() {
        let mut link = Link::new(25e9, 24, 100_000);
        let (mut sent, mut last) = (0_u64, 0);
        while let Some(at) = link.send(0, 1_000) {
            (sent, last) = (sent + 1, at);
        }
        let rate = (sent * 1_024 * 8) as f64 / last as f64;
        assert!((rate / 25.0 - 1.0).abs() < 0.01, "{rate} Gbit/s");
        assert!(last.abs_diff(100_000) < 1_000);
    }
}
