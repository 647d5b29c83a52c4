//! A tenant's record on one core.

use super::calendar::{LARGEST_WEIGHT, Slot, WeightClass};
use super::index::{DeviceIndex, TenantIndex};
use super::limit::Limiter;
use super::list::{Link, Linked, List, READY, TIMER};
use super::wheel::TimerSlot;
use crate::{LatencyClass, Nanos, Share};

/// Where a tenant is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It has nothing that could run.
    Idle,
    /// The same, but deferred work of it may go on, so that it is not without work.
    Deferred,
    /// In a lane: it goes first.
    Lane,
    Calendar,
    /// The only one with work, so that it needs no place among others.
    Solo,
    /// At a limit, until a time.
    Throttled,
    /// Its grant was not charged yet.
    Running,
}

/// Where a tenant waits that goes first, by its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Latency,
    Normal,
}

impl Lane {
    pub(super) const COUNT: usize = 2;
}

/// One tenant on one core. What each decision and charge look at is in the first cache line, in this order; a limit is
/// in the second, and not looked at where there is none.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Tenant {
    /// Its virtual time: what it has had, over its weight.
    pub(super) tag: u64,
    ready: Link<TenantIndex>,
    timer: Link<TenantIndex>,
    /// Its devices that can run.
    pub(super) devices: List<DeviceIndex, READY>,
    /// Its devices that are at a limit.
    pub(super) limited: List<DeviceIndex, READY>,
    /// When all of its guarantee is there again.
    guaranteed: u64,
    /// What a nanosecond of cost takes of its guarantee, in 2^-10 ns; 0: it has none.
    guarantee: u32,
    /// 2^31 over the weight, in the place of it: a division takes longer than all the rest of a charge.
    per_weight: u32,
    /// Cost that is too little for its tag to show, in 2^-16 of the tag's unit.
    rest: u16,
    /// Its class of weights, above that its latency class, and above that whether it has limits.
    grade: u8,
    /// In the calendar, its [slot](Tenant::slot) there; otherwise [when](Tenant::moment) its last grant was, if it had
    /// that in its turn.
    slot_or_moment: u8,
    /// Its slot of the wheel where it has a timer.
    pub(super) timer_slot: TimerSlot,
    pub(super) has_timer: bool,
    pub(super) state: State,
    /// It was in a lane when it ran, or goes first if it has work.
    pub(super) was_in_lane: bool,
    pub(super) limiter: Limiter,
}

/// A tenant's record fits two cache lines: so much is what a tenant costs on a core.
const _: () = assert!(std::mem::size_of::<Tenant>() <= 128);
/// And what is hot fits one.
const _: () = assert!(std::mem::offset_of!(Tenant, limiter) == 64);

/// What [`per_weight`](Tenant::per_weight) is at weight 1.
const ONE: u32 = 1 << 31;
/// Bits of a [`grade`](Tenant::grade) that are a class of weights.
const CLASS_BITS: u32 = 4;
/// That of a tenant with limits.
const LIMITED: u8 = 1 << 7;

/// A tenant that had a turn no longer ago than this, nanoseconds, and has work again may be one that is always
/// backlogged: a guest's answer to a completion takes less.
const JUST: u64 = 1 << 15;
/// The bit of [`slot_or_moment`](Tenant::slot_or_moment) that tells a time from a slot.
const MOMENT: u8 = 1 << 7;

/// The most of a guarantee that is saved up, nanoseconds of time.
const SAVED: u64 = 1 << 17;

impl Tenant {
    pub(super) fn new(share: Share) -> Tenant {
        let mut tenant = Tenant {
            tag: 0,
            ready: Link::default(),
            timer: Link::default(),
            devices: List::default(),
            limited: List::default(),
            rest: 0,
            per_weight: 0,
            grade: 0,
            slot_or_moment: 0,
            timer_slot: TimerSlot::default(),
            has_timer: false,
            state: State::Idle,
            was_in_lane: false,
            limiter: Limiter::new(share.limits),
            guarantee: 0,
            guaranteed: 0,
        };
        tenant.set(Nanos(0), share);
        tenant
    }

    /// A new share at `now`, for a tenant that is in no list.
    pub(super) fn set(&mut self, now: Nanos, share: Share) {
        self.per_weight = ONE / share.weight.clamp(1, LARGEST_WEIGHT);
        self.grade = WeightClass::of(share.weight).0 | ((share.class as u8) << CLASS_BITS);
        self.rest = 0;
        self.limiter.set(now, share.limits);
        if self.limiter.is_limited() {
            self.grade |= LIMITED;
        }
        let thousandths = u32::from(share.guarantee.min(1_000));
        self.guarantee = (1_000_u32 << 10).checked_div(thousandths).unwrap_or(0);
    }

    /// Its class of weights.
    #[inline]
    pub(super) fn class(&self) -> WeightClass {
        WeightClass(self.grade & ((1 << CLASS_BITS) - 1))
    }

    #[inline]
    pub(super) fn latency(&self) -> LatencyClass {
        match (self.grade & !LIMITED) >> CLASS_BITS {
            0 => LatencyClass::Latency,
            1 => LatencyClass::Normal,
            _ => LatencyClass::Background,
        }
    }

    /// Whether it has limits.
    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.grade & LIMITED != 0
    }

    /// Whether neither a limit, a guarantee nor a latency class sets it apart: most are plain. No time then changes
    /// where it stands.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.grade >> CLASS_BITS == LatencyClass::Normal as u8 && self.guarantee == 0
    }

    /// Its lane.
    #[inline]
    pub(super) fn lane(&self) -> Lane {
        if (self.grade & !LIMITED) >> CLASS_BITS == LatencyClass::Latency as u8 { Lane::Latency } else { Lane::Normal }
    }

    /// Its slot of the calendar that it is in.
    #[inline]
    pub(super) fn slot(&self) -> Slot {
        Slot(self.slot_or_moment)
    }

    #[inline]
    pub(super) fn set_slot(&mut self, slot: Slot) {
        self.slot_or_moment = slot.0;
    }

    /// Its weight: what was rounded down twice is what it was, below 2^15.
    #[inline]
    pub(super) fn weight(&self) -> u32 {
        ONE / self.per_weight.max(1)
    }

    /// Thousandths of the core's time that it is guaranteed: rounded down twice as its weight is.
    pub(super) fn guaranteed(&self) -> u32 {
        (1_000_u32 << 10).checked_div(self.guarantee).unwrap_or(0)
    }

    /// The most lag, in units of its tag, that is `carry` units at weight 1.
    #[inline]
    pub(super) fn saves(&self, carry: u64) -> u64 {
        ((u128::from(carry) * u128::from(self.per_weight)) >> 31) as u64
    }

    /// It had a grant until `now`, in its turn or not.
    #[inline]
    pub(super) fn ran(&mut self, now: Nanos, is_turn: bool) {
        self.slot_or_moment = if is_turn { Self::moment(now) } else { 0 };
    }

    /// Whether its last grant was [just](JUST) before `now`, and in its turn. Of one that is in no calendar. It looks
    /// so for a time like [`JUST`] of each 2 ms later on, too: there are seven bits for that.
    #[inline]
    pub(super) fn had_turn(&self, now: Nanos) -> bool {
        self.slot_or_moment & MOMENT != 0 && Self::moment(now).wrapping_sub(self.slot_or_moment) & !MOMENT <= 2
    }

    /// No slot of the calendar is one.
    fn moment(now: Nanos) -> u8 {
        (now.0 / (JUST / 2)) as u8 | MOMENT
    }

    /// Charges a cost, nanoseconds.
    #[inline]
    pub(super) fn charge(&mut self, now: Nanos, cost: u64, scale: u64, latest: u64) {
        let owed =
            ((u128::from(cost.saturating_mul(scale)) * u128::from(self.per_weight)) >> 15) + u128::from(self.rest);
        let whole = (owed >> 16) as u64;
        self.tag = self.tag.saturating_add(whole).min(latest.max(self.tag));
        self.rest = owed as u16;
        if self.guarantee != 0 {
            let takes = ((u128::from(cost) * u128::from(self.guarantee)) >> 10) as u64;
            self.guaranteed = self.guaranteed.max(now.0.saturating_sub(SAVED)).saturating_add(takes);
        }
    }

    /// Whether a time may change where it stands: it has a guarantee, or devices that are at a limit.
    #[inline]
    pub(super) fn has_timed(&self) -> bool {
        self.guarantee != 0 || !self.limited.is_empty()
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

impl Linked<TenantIndex, READY> for Tenant {
    #[inline]
    fn link(&mut self) -> &mut Link<TenantIndex> {
        &mut self.ready
    }
}

impl Linked<TenantIndex, TIMER> for Tenant {
    #[inline]
    fn link(&mut self) -> &mut Link<TenantIndex> {
        &mut self.timer
    }
}
