//! What can be set of the policy.

use crate::Nanos;

/// How finely [`Weighted`] shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// The cost of a grant that goes first while several tenants have work, nanoseconds; of a longer grant, the cost
    /// after which the core looks for tenants that go first. Less is a shorter wait, and more decisions.
    pub grant: Nanos,
    /// The same while a tenant of [`LatencyClass::Latency`] has work now and then.
    pub urgent: Nanos,
    /// The same while only one tenant has work, or the next tenant runs in its turn.
    pub alone: Nanos,
    /// For how long after several tenants had work grants are as if several had.
    pub memory: Nanos,
    /// What a byte costs beside the core's time, picoseconds: it takes bandwidth of the memory from others.
    pub byte: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning { grant: Nanos(8_000), urgent: Nanos(2_000), alone: Nanos(32_000), memory: Nanos(10_000_000), byte: 20 }
    }
}

impl Tuning {
    /// How long a tenant that goes first may wait for a grant: where several tenants have work, and where one of them
    /// is urgent.
    #[inline]
    pub(super) fn patience(&self, is_contended: bool, is_urgent: bool) -> Nanos {
        match (is_contended, is_urgent) {
            (false, _) => self.alone,
            (true, true) => self.urgent,
            (true, false) => self.grant,
        }
    }
}
