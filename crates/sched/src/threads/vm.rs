//! vCPUs of virtual machines: fair shares, with a bound of what one waits.

use std::collections::BTreeMap;

use super::{Order, SloClass, ThreadId, ThreadPolicy};
use crate::Nanos;

/// The policy's times (Wave §7.2.4: quanta of 5 to 10 ms, preemption at 1 ms).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmTuning {
    /// The shortest quantum.
    pub least_quantum: Nanos,
    /// The longest.
    pub most_quantum: Nanos,
    /// How often it is looked whether a vCPU gives way before the end of its quantum.
    pub granularity: Nanos,
    /// A vCPU that has waited so long is the next, whatever it had before.
    pub latency_bound: Nanos,
    /// Cores among which the waiting vCPUs are shared, at least 1.
    pub cores: u32,
}

impl Default for VmTuning {
    fn default() -> Self {
        let ms = |count| Nanos(count * Nanos::MILLI.0);
        let (least_quantum, most_quantum) = (ms(5), ms(10));
        VmTuning { least_quantum, most_quantum, granularity: ms(1), latency_bound: ms(40), cores: 1 }
    }
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    thread: ThreadId,
    since: Nanos,
}

/// vCPUs by what they had, least first. Run time is the only currency: one that used a part of its quantum pays for
/// that part.
#[derive(Debug)]
pub struct VmOrder {
    tuning: VmTuning,
    waiting: Vec<Waiting>,
    /// Run time of each vCPU, lifted to what the others had when it wakes up.
    runtimes: BTreeMap<ThreadId, Nanos>,
    /// Since when each one runs that does.
    running: BTreeMap<ThreadId, Nanos>,
    /// The least run time of those that run or wait; it never falls. One that wakes up is not behind it by more than a
    /// quantum.
    floor: Nanos,
}

impl ThreadPolicy<VmOrder> {
    /// With these times.
    pub fn vm(tuning: VmTuning) -> Self {
        let (runtimes, running) = (BTreeMap::new(), BTreeMap::new());
        ThreadPolicy::with_order(VmOrder { tuning, waiting: Vec::new(), runtimes, running, floor: Nanos(0) })
    }
}

impl VmOrder {
    /// What a vCPU had.
    pub fn runtime(&self, thread: ThreadId) -> Nanos {
        self.runtimes.get(&thread).copied().unwrap_or(self.floor)
    }

    fn raise_floor(&mut self, now: Nanos) {
        let running = self.running.iter().map(|(thread, since)| self.runtime(*thread) + now.since(*since));
        let waiting = self.waiting.iter().map(|waiting| self.runtime(waiting.thread));
        self.floor = self.floor.max(running.chain(waiting).min().unwrap_or(self.floor));
    }

    /// The time a vCPU has while so many wait: longer where fewer wait.
    fn quantum(&self) -> Nanos {
        let each = self.waiting.len() as u64 / u64::from(self.tuning.cores.max(1)) + 1;
        let fitting = self.tuning.latency_bound.0 / (each + 1);
        Nanos(fitting.min(self.tuning.most_quantum.0).max(self.tuning.least_quantum.0))
    }

    /// The one that has waited beyond the bound for longest, or else the one that had least.
    fn next(&self, now: Nanos, allowed: &dyn Fn(ThreadId) -> bool) -> Option<usize> {
        let fit = || self.waiting.iter().enumerate().filter(|(_, waiting)| allowed(waiting.thread));
        let late = fit().filter(|(_, waiting)| now.since(waiting.since) >= self.tuning.latency_bound);
        let late = late.min_by_key(|(_, waiting)| waiting.since);
        late.or_else(|| fit().min_by_key(|(_, waiting)| (self.runtime(waiting.thread), waiting.since)))
            .map(|(at, _)| at)
    }
}

impl Order for VmOrder {
    fn insert(&mut self, now: Nanos, thread: ThreadId, _class: SloClass, first: bool) {
        self.raise_floor(now);
        // One that slept comes back with a quantum's credit at most.
        let least = Nanos(self.floor.0.saturating_sub(self.tuning.least_quantum.0));
        let runtime = self.runtimes.entry(thread).or_insert(self.floor);
        *runtime = (*runtime).max(least);
        match first {
            true => self.waiting.insert(0, Waiting { thread, since: now }),
            false => self.waiting.push(Waiting { thread, since: now }),
        }
    }

    fn take(&mut self, now: Nanos, allowed: &dyn Fn(ThreadId) -> bool) -> Option<ThreadId> {
        let at = self.next(now, allowed)?;
        Some(self.waiting.remove(at).thread)
    }

    fn remove(&mut self, thread: ThreadId) {
        self.waiting.retain(|waiting| waiting.thread != thread);
    }

    fn len(&self) -> usize {
        self.waiting.len()
    }

    fn started(&mut self, now: Nanos, thread: ThreadId) {
        self.running.insert(thread, now);
    }

    fn ran(&mut self, thread: ThreadId, time: Nanos) {
        self.running.remove(&thread);
        let runtime = self.runtime(thread) + time;
        self.runtimes.insert(thread, runtime);
    }

    fn departed(&mut self, thread: ThreadId) {
        self.running.remove(&thread);
        self.runtimes.remove(&thread);
    }

    fn is_over(&self, now: Nanos, thread: ThreadId, ran: Nanos) -> bool {
        if ran >= self.quantum() {
            return true;
        }
        let Some(next) = self.next(now, &|_| true).map(|at| self.waiting[at]) else { return false };
        let is_late = now.since(next.since) >= self.tuning.latency_bound;
        let is_behind = self.runtime(next.thread) + self.tuning.least_quantum < self.runtime(thread) + ran;
        ran >= self.tuning.granularity && (is_late || is_behind)
    }

    fn next_check(&self, now: Nanos, since: Nanos) -> Option<Nanos> {
        let step = self.tuning.granularity.0.max(1);
        let steps = now.since(since).0 / step + 1;
        Some(since + Nanos(steps * step))
    }
}
