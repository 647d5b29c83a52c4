//! Control-plane tasks on the idle time of data-plane cores (Tai Chi §4.2), with a minimum on CPUs of their own.
//!
//! A task is `Idle` as a rule: the kernel runs it where nothing else wants a CPU, those of the data plane among them,
//! and takes it off a core's CPU at once when the core has work. An idle task that holds a lock of the kernel can keep
//! others from that lock for as long as all CPUs are busy. So each task has a minimum: where it wants to run and has
//! had less, it is `Guaranteed` until it has caught up, an ordinary task on the control plane's CPUs.
//!
//! ```text
//!             wants to run, behind its minimum by a SLICE
//!   Idle ─────────────────────────────────────────────────▶ Guaranteed
//!     ▲                                                          │
//!     └──────────────────────────────────────────────────────────┘
//!                  has caught up, or wants nothing
//! ```

use crate::Nanos;

/// How a task runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskClass {
    /// On what is left of any CPU, the data plane's among them: SCHED_IDLE.
    #[default]
    Idle,
    /// As an ordinary task, on the control plane's CPUs alone.
    Guaranteed,
}

/// What a task had by now, all its threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TaskUse {
    /// It ran.
    pub ran: Nanos,
    /// It could have run, and waited for a CPU.
    pub waited: Nanos,
}

/// Decides how a task runs. One for each task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MinimumShare {
    /// Thousandths of a CPU.
    permille: u32,
    /// By how much it is behind its minimum, nanoseconds; negative where it has had more while it was guaranteed. Never
    /// more than [`MOST`](Self::MOST) either way.
    behind: i64,
    last: Option<(Nanos, TaskUse)>,
    class: TaskClass,
}

impl MinimumShare {
    /// A task that is so far behind is guaranteed.
    pub const SLICE: Nanos = Nanos(5_000_000);

    /// The most that a task can be behind: it may not save up for more than this.
    pub const MOST: Nanos = Nanos(100_000_000);

    /// A task that is to have `permille` thousandths of a CPU, where it wants them.
    pub fn new(permille: u32) -> MinimumShare {
        MinimumShare { permille, ..MinimumShare::default() }
    }

    /// Another minimum.
    pub fn set(&mut self, permille: u32) {
        self.permille = permille;
    }

    /// How the task runs from `now` on, when it has had `used` since it began.
    pub fn decide(&mut self, now: Nanos, used: TaskUse) -> TaskClass {
        let Some((then, before)) = self.last.replace((now, used)) else {
            return self.class;
        };
        let (time, ran) = (now.since(then), used.ran.since(before.ran));
        let due = Nanos(u64::try_from(u128::from(time.0) * u128::from(self.permille) / 1_000).unwrap_or(u64::MAX));
        // A task that neither ran nor waited wants nothing, and one that waited less than it lacks wants no more.
        let wanted = used.waited.since(before.waited) + ran;
        let most = signed(MinimumShare::MOST);
        let mut behind = self.behind.saturating_add(signed(due.min(wanted))).saturating_sub(signed(ran));
        if self.class == TaskClass::Idle {
            // Idle time is a gift.
            behind = behind.max(self.behind.min(0));
        }
        if wanted == Nanos(0) {
            behind = behind.min(0);
        }
        self.behind = behind.clamp(-most, most);
        self.class = match self.class {
            TaskClass::Idle if self.behind >= signed(MinimumShare::SLICE) => TaskClass::Guaranteed,
            TaskClass::Guaranteed if self.behind <= 0 => TaskClass::Idle,
            same => same,
        };
        self.class
    }
}

fn signed(time: Nanos) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEAT: Nanos = Nanos(100_000_000);

    /// A task that wants to run all the time: it has `idle` of each beat while it is idle, and half a CPU while it is
    /// guaranteed. Its classes, beat by beat, and what it ran.
    fn run(permille: u32, idle: Nanos, beats: u64) -> (Vec<TaskClass>, Nanos) {
        let mut share = MinimumShare::new(permille);
        let (mut used, mut class, mut classes) = (TaskUse::default(), TaskClass::Idle, Vec::new());
        share.decide(Nanos(0), used);
        for beat in 1..=beats {
            let ran = if class == TaskClass::Guaranteed { Nanos(BEAT.0 / 2) } else { idle };
            used.ran = used.ran + ran;
            used.waited = used.waited + BEAT.since(ran);
            class = share.decide(Nanos(beat * BEAT.0), used);
            classes.push(class);
        }
        (classes, used.ran)
    }

    #[test]
    fn a_starved_task_has_its_minimum() {
        for permille in [50, 200, 400] {
            let (classes, ran) = run(permille, Nanos(0), 1_000);
            let least = 1_000 * BEAT.0 * u64::from(permille) / 1_000;
            assert!(ran.0 + MinimumShare::MOST.0 >= least, "{permille}: {ran:?} of {least}");
            assert!(ran.0 <= least + BEAT.0, "{permille}: {ran:?} of {least}, no more than it has to");
            assert_eq!(classes[0], TaskClass::Guaranteed, "after the first beat");
        }
    }

    #[test]
    fn a_task_that_has_its_minimum_from_idle_time_is_never_guaranteed() {
        let (classes, _) = run(200, Nanos(BEAT.0 / 4), 1_000);
        assert!(classes.iter().all(|class| *class == TaskClass::Idle));
    }

    #[test]
    fn a_task_without_a_minimum_is_idle() {
        assert!(run(0, Nanos(0), 100).0.iter().all(|class| *class == TaskClass::Idle));
    }

    #[test]
    fn a_task_that_wants_nothing_saves_up_nothing() {
        let mut share = MinimumShare::new(500);
        for beat in 0..1_000 {
            assert_eq!(share.decide(Nanos(beat * BEAT.0), TaskUse::default()), TaskClass::Idle);
        }
        // It begins to wait: it is behind by this beat alone.
        let used = TaskUse { ran: Nanos(0), waited: BEAT };
        assert_eq!(share.decide(Nanos(1_000 * BEAT.0), used), TaskClass::Guaranteed);
        let used = TaskUse { ran: Nanos(BEAT.0), waited: BEAT };
        assert_eq!(share.decide(Nanos(1_001 * BEAT.0), used), TaskClass::Idle);
    }

    #[test]
    fn a_task_that_waits_a_little_is_behind_by_that_alone() {
        let mut share = MinimumShare::new(500);
        share.decide(Nanos(0), TaskUse::default());
        let used = TaskUse { ran: Nanos(0), waited: Nanos(1_000_000) };
        assert_eq!(share.decide(BEAT, used), TaskClass::Idle);
    }
}
