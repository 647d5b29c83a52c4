//! A core's tokens of the node's meters: what is green is spent here, with no lock and no line that another core
//! writes.
//!
//! ```text
//!   port ─► its endpoint and the numbers of its meters ─► by number: tokens that are leased, what was green
//!                                                         ├ there are fewer: another lease of the node's meter
//!                                                         └ there is none: the node's meter colours the packets
//! ```
//!
//! One cache line for each meter, and no other for a packet: a burst knows where it is when it knows its port. What
//! green packets come to is told to the node's meter with the end of a lease, some 64 ms after its beginning at the
//! latest, or when the core rests.

use std::collections::VecDeque;

use softdpu_sched::{Colour, Lease, Nanos};
use softdpu_sys::prefetch;

use crate::policy::meter::{Colours, MeterCount, MeterIds, NodeMeter};
use crate::tables::Tables;

/// Most packets that are put to meters at once.
pub(crate) const AT_ONCE: usize = 64;

/// What a core has of one meter.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Line {
    lease: Lease,
    /// Green packets that the node's meter has not counted yet.
    green: MeterCount,
}

const _: () = assert!(size_of::<Line>() == 64, "one cache line");

/// What a core has of the node's meters, by their numbers in the tables.
#[derive(Debug, Default)]
pub(crate) struct CoreMeters {
    lines: Vec<Line>,
    /// Meters with leases, in the order in which these end. Some are of leases that have ended before.
    ends: VecDeque<(usize, Nanos)>,
    /// The time of the last batch, nanoseconds.
    now: u64,
}

impl CoreMeters {
    /// Of a core with other tables than `before`, if there were some.
    pub fn configure(&mut self, before: Option<&Tables>, tables: &Tables) {
        if let Some(before) = before {
            self.rest(before);
        }
        self.lines.clear();
        self.lines.resize_with(tables.meters().len(), Line::default);
    }

    /// The same for a look at what would happen.
    pub fn to_rehearse(&self) -> CoreMeters {
        let line = |line: &Line| Line { lease: line.lease.to_rehearse(), green: MeterCount::default() };
        CoreMeters { lines: self.lines.iter().map(line).collect(), ends: VecDeque::new(), now: self.now }
    }

    /// What there is of `meters` is on its way into the cache.
    #[inline(always)]
    pub fn prefetch(&self, meters: MeterIds) {
        meters.iter().for_each(|id| prefetch::write(self.lines.as_ptr().wrapping_add(id)));
    }

    /// Takes `load` from all of `meters` at `now`, nanoseconds, if that is green by each of them; otherwise nothing.
    /// Whether it was. What of it was used is to be [settled](Self::settle).
    #[inline(always)]
    pub fn take(&mut self, tables: &Tables, meters: MeterIds, now: u64, load: MeterCount) -> bool {
        for (at, id) in meters.iter().enumerate() {
            let Some(line) = self.lines.get_mut(id) else { return false };
            if !line.lease.take(load.packets, load.bytes) && !self.renew(tables, id, now, load) {
                for before in meters.iter().take(at) {
                    self.lines[before].lease.give_back(load.packets, load.bytes);
                }
                return false;
            }
        }
        true
    }

    /// Takes `load` from another lease of a meter.
    #[cold]
    fn renew(&mut self, tables: &Tables, id: usize, now: u64, load: MeterCount) -> bool {
        let (Some(line), Some(meter)) = (self.lines.get_mut(id), tables.meters().get(id)) else { return false };
        flush(line, meter);
        let Some(lease) = meter.renew(now, std::mem::take(&mut line.lease), load) else { return false };
        self.ends.push_back((id, lease.ends()));
        line.lease = lease;
        line.lease.take(load.packets, load.bytes)
    }

    /// Of what was `taken`, `used` was used, and is counted; the rest is given back.
    #[inline(always)]
    pub fn settle(&mut self, meters: MeterIds, taken: MeterCount, used: MeterCount) {
        for id in meters.iter() {
            let Some(line) = self.lines.get_mut(id) else { return };
            line.lease.give_back(taken.packets - used.packets, taken.bytes - used.bytes);
            line.green =
                MeterCount { packets: line.green.packets + used.packets, bytes: line.green.bytes + used.bytes };
        }
    }

    /// Which of at most [`AT_ONCE`] packets of `bytes` bytes that come at once, one after the other, pass `meters`: a
    /// bit for each, the first the lowest. The node's meters colour them.
    pub fn mark_all(&mut self, tables: &Tables, meters: MeterIds, now: u64, bytes: &[u32]) -> u64 {
        let mut colours = [Colour::Green; AT_ONCE];
        let bytes = &bytes[..bytes.len().min(AT_ONCE)];
        let colours = &mut colours[..bytes.len()];
        let mut are_green = true;
        for id in meters.iter() {
            // Each of them counts, whatever the one before said.
            are_green &= self.mark(tables, id, now, bytes, colours);
        }
        if are_green {
            return u64::MAX;
        }
        colours.iter().rev().fold(0, |passes, colour| passes << 1 | u64::from(*colour != Colour::Red))
    }

    fn mark(&mut self, tables: &Tables, id: usize, now: u64, bytes: &[u32], colours: &mut [Colour]) -> bool {
        let (Some(line), Some(meter)) = (self.lines.get_mut(id), tables.meters().get(id)) else { return true };
        flush(line, meter);
        meter.mark_all(now, std::mem::take(&mut line.lease), bytes, colours)
    }

    /// Whether a packet of `bytes` bytes may pass `meters`, one after the other, at `now`, nanoseconds; its colours go
    /// into `colours`. With `REHEARSES` nothing is taken, and nothing counted.
    pub fn admit<const REHEARSES: bool>(
        &mut self,
        tables: &Tables,
        meters: MeterIds,
        now: u64,
        bytes: u32,
        colours: &mut Colours,
    ) -> bool {
        let load = MeterCount { packets: 1, bytes: bytes.into() };
        if !REHEARSES && self.take(tables, meters, now, load) {
            self.settle(meters, load, load);
            *colours = Colours::default();
            return true;
        }
        let mut colour = Colour::Green;
        for (id, behind) in meters.iter().zip(colours) {
            if REHEARSES {
                let lease = self.lines.get(id).map(|line| line.lease.to_rehearse()).unwrap_or_default();
                colour = tables.meters().get(id).map_or(colour, |meter| meter.rehearse(now, lease, bytes, colour));
            } else {
                let (bytes, colours) = (std::slice::from_ref(&bytes), std::slice::from_mut(&mut colour));
                self.mark(tables, id, now, bytes, colours);
            }
            *behind = colour;
        }
        colour != Colour::Red
    }

    /// A batch begins at `now`, nanoseconds: leases that are over end.
    #[inline(always)]
    pub fn turn(&mut self, tables: &Tables, now: u64) {
        self.now = now;
        if self.ends.front().is_some_and(|(_, ends)| ends.0 <= now) {
            self.end_due(tables, now);
        }
    }

    #[cold]
    fn end_due(&mut self, tables: &Tables, now: u64) {
        while let Some(&(id, ends)) = self.ends.front().filter(|(_, ends)| ends.0 <= now) {
            self.ends.pop_front();
            if self.lines.get(id).is_some_and(|line| line.lease.ends() == ends) {
                self.end(tables, id, now);
            }
        }
    }

    /// Ends all leases, as of the last batch.
    pub fn rest(&mut self, tables: &Tables) {
        let now = self.now;
        while let Some((id, _)) = self.ends.pop_front() {
            self.end(tables, id, now);
        }
    }

    fn end(&mut self, tables: &Tables, id: usize, now: u64) {
        if let (Some(line), Some(meter)) = (self.lines.get_mut(id), tables.meters().get(id)) {
            flush(line, meter);
            if !line.lease.is_none() {
                meter.give_up(now, std::mem::take(&mut line.lease));
            }
        }
    }
}

/// Tells the node's meter what was green.
fn flush(line: &mut Line, meter: &NodeMeter) {
    let green = std::mem::take(&mut line.green);
    if green.packets != 0 {
        meter.count_green(green);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use softdpu_sched::{Measure, Rate};

    use super::*;
    use crate::policy::meter::{MeterAlgorithm, MeterSpec};
    use crate::spec::Spec;

    const RATE: Rate = Rate { rate: 1_250_000_000, burst: 16 << 20 };
    const SECOND: u64 = 1_000_000_000;

    fn meter() -> MeterSpec {
        let (name, algorithm, measure) = ("tenant".to_owned(), MeterAlgorithm::Rfc2698, Measure::Bytes);
        MeterSpec { name, algorithm, measure, committed: RATE, second: RATE }
    }

    fn tables() -> Tables {
        Tables::build(&Spec { meters: vec![meter()], ..Spec::default() }, None).expect("a good spec")
    }

    fn core(tables: &Tables) -> CoreMeters {
        let mut core = CoreMeters::default();
        core.configure(None, tables);
        core
    }

    /// A burst of 32 frames of `bytes` bytes. How many pass.
    fn burst(core: &mut CoreMeters, tables: &Tables, now: u64, bytes: u32) -> u64 {
        let (meters, load) = (MeterIds::new(&[0]), MeterCount { packets: 32, bytes: 32 * u64::from(bytes) });
        core.turn(tables, now);
        if core.take(tables, meters, now, load) {
            core.settle(meters, load, load);
            return 32;
        }
        (core.mark_all(tables, meters, now, &[bytes; 32]) & u64::from(u32::MAX)).count_ones().into()
    }

    fn asked(tables: &Tables) -> u64 {
        tables.meters()[0].asked.load(Ordering::Relaxed)
    }

    #[test]
    fn packets_within_the_rate_ask_the_nodes_meter_some_hundred_times_a_second() {
        let tables = tables();
        let mut cores = [core(&tables), core(&tables)];
        // A second of 64-byte frames at a third of the rate: 200,000 bursts by two cores in turns.
        for at in 0..200_000_u64 {
            assert_eq!(burst(&mut cores[at as usize % 2], &tables, at * SECOND / 200_000, 64), 32);
        }
        let asked = asked(&tables);
        assert!(asked < 1_000, "{asked} times");
        cores.iter_mut().for_each(|core| core.rest(&tables));
        let [green, ..] = tables.meters()[0].counts();
        assert_eq!(green, MeterCount { packets: 6_400_000, bytes: 64 * 6_400_000 }, "all are counted");
    }

    #[test]
    fn a_meter_that_may_have_given_its_burst_gives_its_rate() {
        let spec = Spec { meters: vec![meter()], meters_empty_at: Some(SECOND), ..Spec::default() };
        let tables = Tables::build(&spec, None).expect("a good spec");
        let mut core = core(&tables);
        assert_eq!(burst(&mut core, &tables, SECOND, 1_500), 0);
        // 48,000 bytes take 38.4 µs.
        assert_eq!(burst(&mut core, &tables, SECOND + 40_000, 1_500), 32);
        assert_eq!(burst(&mut core, &tables, SECOND + 40_000, 1_500), 1);
        let again = tables.rebuild(&spec, None).expect("a good spec");
        assert_eq!(burst(&mut core, &again, SECOND + 80_000, 1_500), 32, "it goes on as it was");
    }

    #[test]
    fn cores_at_once_pass_no_more_than_the_meter_and_little_less() {
        let (tables, clock, passed) = (tables(), AtomicU64::new(0), AtomicU64::new(0));
        let one = || {
            let mut core = core(&tables);
            loop {
                // Together twice what the meter allows: 48,000 bytes each 19.2 µs.
                let now = clock.fetch_add(19_200, Ordering::Relaxed);
                if now > SECOND {
                    break;
                }
                passed.fetch_add(1_500 * burst(&mut core, &tables, now, 1_500), Ordering::Relaxed);
            }
            core.rest(&tables);
        };
        std::thread::scope(|scope| {
            scope.spawn(one);
            scope.spawn(one);
        });
        let (passed, most) = (passed.into_inner(), RATE.burst + RATE.rate);
        assert!(passed <= most, "{passed} of {most}");
        // Short by the leases, an eighth of the burst at most each, and by what a clock earned that was behind.
        assert!(passed >= most - RATE.burst / 2, "{passed} of {most}");
        let counts = tables.meters()[0].counts();
        assert_eq!(counts[0].bytes + counts[1].bytes, passed);
    }

    #[test]
    fn a_core_that_rests_or_is_late_leaves_all_to_another() {
        let tables = tables();
        let (mut idle, mut busy) = (core(&tables), core(&tables));
        assert_eq!(burst(&mut idle, &tables, 0, 64), 32);
        let rest = (RATE.burst - 32 * 64) as u32 / 32;
        assert_eq!(burst(&mut busy, &tables, 0, rest), 28, "an eighth of the meter is leased");
        idle.rest(&tables);
        assert_eq!(burst(&mut busy, &tables, 0, rest), 4);
        // A lease ends by itself when its core does anything at all.
        let later = SECOND;
        assert_eq!(burst(&mut idle, &tables, later, 64), 32);
        idle.turn(&tables, 2 * later);
        let all = (RATE.burst / 32) as u32;
        assert_eq!(
            burst(&mut busy, &tables, 2 * later, all),
            31,
            "less what was spent of a lease that was still there"
        );
        assert_eq!(burst(&mut busy, &tables, 3 * later, all), 32);
    }
}
