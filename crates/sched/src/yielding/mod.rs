//! Yielding: when a core gives its CPU away, and for how long (Tai Chi §4.1, §4.3).
//!
//! A core that finds nothing to do counts its empty polls. After more than a *threshold* of them in a row it yields: it
//! gives its CPU away for at most a *slice*. What ends the slice tells how the idle time really was, and both adapt:
//!
//! ```text
//!                            ┌── the slice expires: idle all along ── threshold / 2, slice * 2 ──┐
//!  empty polls > threshold ──┤                                                                    ├──▶ polls again
//!                            └── work preempts it: a false positive ─ threshold * 2, slice = 50 us┘
//! ```
//!
//! The slice is the longest time without a poll: a timer ends it though no wake-up comes. A wake-up that were lost
//! would cost a slice, not a guest.
//!
//! The paper gives the slice's numbers and the direction in which the threshold goes. The threshold's first value, its
//! bounds and its factor of 2 are ours.

#[cfg(test)]
mod tests;

use crate::Nanos;

/// When a core yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YieldPolicy {
    /// Never: it polls.
    Never,
    /// After this long without work, until it is woken, at most for [`LONGEST_SLEEP`](Self::LONGEST_SLEEP).
    After(Nanos),
    /// By a threshold and a slice that adapt.
    Adaptive(YieldTuning),
}

impl YieldPolicy {
    /// The slice of [`After`](Self::After).
    pub const LONGEST_SLEEP: Nanos = Nanos::SECOND;
}

/// The bounds of what adapts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YieldTuning {
    /// The threshold at first, empty polls.
    pub threshold: u64,
    /// The least that it falls to, at least 1.
    pub least: u64,
    /// The most that it rises to.
    pub most: u64,
    /// The slice at first, and after work has preempted one.
    pub slice: Nanos,
    /// The longest slice.
    pub longest: Nanos,
    /// A core that was so long without work yields though its polls are not that many: they are slow with many rings.
    pub spin: Nanos,
}

impl Default for YieldTuning {
    fn default() -> Self {
        YieldTuning {
            // Some 50 us of a core with a few rings.
            threshold: 512,
            // Longer than a driver that polls takes from one request to the next.
            least: 32,
            most: 8_192,
            // §4.1.
            slice: Nanos(50_000),
            // Doubled 14 times. An idle core with a thousand rings looks at them about once a second.
            longest: Nanos(50_000 << 14),
            spin: Nanos(50_000),
        }
    }
}

impl YieldTuning {
    /// The defaults, with another longest time without work.
    pub fn spinning(spin: Nanos) -> YieldTuning {
        YieldTuning { spin, ..YieldTuning::default() }
    }

    /// What can be worked with, whatever was written.
    fn checked(self) -> YieldTuning {
        let least = self.least.max(1);
        let most = self.most.max(least);
        let slice = self.slice.max(Nanos(1));
        let threshold = self.threshold.clamp(least, most);
        YieldTuning { threshold, least, most, slice, longest: self.longest.max(slice), ..self }
    }
}

/// What ended a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceEnd {
    /// Its time was over, and nothing had come: the core was idle all along.
    Expired,
    /// Work came, which woke the core.
    Preempted,
    /// Something that the core knew of fell due, or a signal woke it. That tells nothing about the slice.
    Due,
}

/// A slice that was given away, for recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct YieldedSlice {
    /// When it ended.
    pub now: Nanos,
    /// Empty polls before it.
    pub polls: u64,
    /// How long those took.
    pub spun: Nanos,
    /// How long it might have been.
    pub slice: Nanos,
    /// What ended it.
    pub end: SliceEnd,
}

/// Decides when a core yields and for how long at the most. Pure: polls and times are arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Yielding {
    policy: YieldPolicy,
    threshold: u64,
    spin: Nanos,
    slice: Nanos,
}

impl Yielding {
    /// A core that has not yielded yet.
    pub fn new(policy: YieldPolicy) -> Yielding {
        let never = u64::MAX;
        match policy {
            YieldPolicy::Never => {
                Yielding { policy, threshold: never, spin: Nanos(never), slice: YieldPolicy::LONGEST_SLEEP }
            }
            YieldPolicy::After(spin) => Yielding { policy, threshold: never, spin, slice: YieldPolicy::LONGEST_SLEEP },
            YieldPolicy::Adaptive(tuning) => {
                let tuning = tuning.checked();
                let YieldTuning { threshold, spin, slice, .. } = tuning;
                Yielding { policy: YieldPolicy::Adaptive(tuning), threshold, spin, slice }
            }
        }
    }

    /// Whether a core yields after `polls` empty polls in a row, which took `spun`: for how long at the most.
    #[inline]
    pub fn yields(&self, polls: u64, spun: Nanos) -> Option<Nanos> {
        let is_idle = polls > self.threshold || (spun >= self.spin && self.policy != YieldPolicy::Never);
        is_idle.then_some(self.slice)
    }

    /// A slice was given away, and this ended it.
    pub fn ended(&mut self, end: SliceEnd) {
        let YieldPolicy::Adaptive(tuning) = self.policy else { return };
        match end {
            SliceEnd::Expired => {
                self.threshold = (self.threshold / 2).max(tuning.least);
                self.slice = Nanos(self.slice.0.saturating_mul(2)).min(tuning.longest);
            }
            SliceEnd::Preempted => {
                self.threshold = self.threshold.saturating_mul(2).min(tuning.most);
                self.slice = tuning.slice;
            }
            SliceEnd::Due => {}
        }
    }

    /// The policy.
    pub fn policy(&self) -> YieldPolicy {
        self.policy
    }

    /// Empty polls in a row beyond which the core yields now. None: it goes by time alone.
    pub fn threshold(&self) -> Option<u64> {
        matches!(self.policy, YieldPolicy::Adaptive(_)).then_some(self.threshold)
    }

    /// How long the next slice is at the most.
    pub fn slice(&self) -> Nanos {
        self.slice
    }
}
