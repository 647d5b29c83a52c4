//! What a core knows of a tenant.

use super::calendar::{Calendar, LARGEST_WEIGHT};
use super::limit::Limiter;
use crate::list::{LINE, Link, Linked, List, TIMER};
use crate::{LatencyClass, Nanos, Share};

/// Where a tenant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It has nothing that could run.
    Idle,
    /// Among those that go first.
    Lane,
    Calendar,
    /// At a limit, until a time.
    Throttled,
    /// Its grant was not charged yet.
    Running,
}

/// One tenant on one core.
#[derive(Debug)]
pub(super) struct Tenant {
    /// Its virtual time: what it has had, over its weight.
    pub(super) tag: u64,
    line: Link,
    timer: Link,
    /// Its devices that can run.
    pub(super) devices: List<LINE>,
    /// Its devices that are at a limit.
    pub(super) limited: List<LINE>,
    /// Cost that is too little for its tag to show.
    rest: u16,
    pub(super) weight: u16,
    pub(super) class: u8,
    /// Its slot of the calendar, and of the wheel where it has a timer.
    pub(super) slot: u8,
    pub(super) timer_slot: u8,
    pub(super) has_timer: bool,
    pub(super) state: State,
    /// It ran from the lane.
    pub(super) was_in_lane: bool,
    pub(super) latency: LatencyClass,
    pub(super) limiter: Limiter,
    /// What a nanosecond of cost takes of its guarantee, in 2^-10 ns; 0: it has none.
    guarantee: u32,
    /// When all of its guarantee is there again.
    guaranteed: u64,
}

/// A tenant's record fits two cache lines: so much is what a tenant costs on a core.
const _: () = assert!(std::mem::size_of::<Tenant>() <= 128);

/// What of a guarantee is saved up, nanoseconds of time.
const SAVED: u64 = 1 << 17;

impl Tenant {
    pub(super) fn new(share: Share) -> Tenant {
        let mut tenant = Tenant {
            tag: 0,
            line: Link::default(),
            timer: Link::default(),
            devices: List::default(),
            limited: List::default(),
            rest: 0,
            weight: 1,
            class: 0,
            slot: 0,
            timer_slot: 0,
            has_timer: false,
            state: State::Idle,
            was_in_lane: false,
            latency: share.class,
            limiter: Limiter::new(share.limits),
            guarantee: 0,
            guaranteed: 0,
        };
        tenant.set(share);
        tenant
    }

    /// A new share, for a tenant that is in no list.
    pub(super) fn set(&mut self, share: Share) {
        self.weight = share.weight.clamp(1, LARGEST_WEIGHT) as u16;
        self.class = Calendar::class(share.weight);
        self.rest = 0;
        self.latency = share.class;
        self.limiter.set(share.limits);
        let thousandths = u32::from(share.guarantee.min(1_000));
        self.guarantee = (1_000_u32 << 10).checked_div(thousandths).unwrap_or(0);
    }

    /// It had so much, nanoseconds.
    #[inline]
    pub(super) fn charge(&mut self, now: Nanos, cost: u64, scale: u64, latest: u64) {
        let (cost_scaled, weight) =
            (cost.saturating_mul(scale).saturating_add(self.rest.into()), u64::from(self.weight));
        let (whole, rest) = if weight == 1 { (cost_scaled, 0) } else { (cost_scaled / weight, cost_scaled % weight) };
        self.tag = self.tag.saturating_add(whole).min(latest.max(self.tag));
        self.rest = rest as u16;
        if self.guarantee != 0 {
            let takes = ((u128::from(cost) * u128::from(self.guarantee)) >> 10) as u64;
            self.guaranteed = self.guaranteed.max(now.0.saturating_sub(SAVED)).saturating_add(takes);
        }
    }

    /// Whether its guarantee is owed to it.
    #[inline]
    pub(super) fn is_owed(&self, now: Nanos) -> bool {
        self.guarantee != 0 && self.guaranteed <= now.0
    }

    /// When it will be; none for one without.
    #[inline]
    pub(super) fn owed_at(&self) -> Option<Nanos> {
        (self.guarantee != 0).then_some(Nanos(self.guaranteed))
    }
}

impl Linked<LINE> for Tenant {
    #[inline]
    fn link(&mut self) -> &mut Link {
        &mut self.line
    }
}

impl Linked<TIMER> for Tenant {
    #[inline]
    fn link(&mut self) -> &mut Link {
        &mut self.timer
    }
}
