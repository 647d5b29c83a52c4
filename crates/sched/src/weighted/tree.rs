//! Below a tenant: its devices, their queues, and the back ends that their work goes on to.

use std::collections::BTreeMap;

use super::tenant::Tenant;
use crate::list::{LINE, Link, Linked, List, NIL};
use crate::{Cost, Kind, Nanos, Placement, QueueId, TenantId};

/// What a device or queue has a turn for before the next one of its tenant or device, nanoseconds of cost.
const TURN: i32 = 1 << 15;
/// The most that one owes its siblings. What a grant costs beyond that is forgiven, among siblings only.
const DEBT: i32 = 4 * TURN;
/// Siblings that owe something are passed over so many times at the most, which is as often as a debt can be.
const STEPS: usize = (DEBT / TURN) as usize + 1;
/// What a unit of a queue of which nothing ran yet is taken to cost, nanoseconds.
const UNKNOWN: u32 = 2_000;

#[derive(Debug)]
pub(super) struct Queue {
    line: Link,
    pub(super) tenant: TenantId,
    pub(super) kind: Kind,
    pub(super) device: u32,
    pub(super) waiting: u32,
    bytes: u64,
    credit: i32,
    /// The most that a unit cost lately, nanoseconds: at once up, slowly down, so that one cannot have long grants by
    /// sending what is cheap before what is dear.
    pub(super) unit: u32,
    /// Its units that its back end has.
    pending: u32,
    /// It is on this core, and not cancelled.
    pub(super) is_present: bool,
}

/// What the most is that a unit cost lately, after a grant of so many that cost so much in all.
#[inline]
pub(super) fn learned(unit: u32, total: u64, units: u32) -> u32 {
    let now = match (units, u32::try_from(total)) {
        (0, _) => return unit,
        (1, Ok(total)) => total,
        // Division of half as many bits takes less than half the time.
        (_, Ok(total)) => total / units,
        (_, Err(_)) => (total / u64::from(units)).min(u32::MAX.into()) as u32,
    };
    // At once up, by a sixteenth down.
    let before = (u64::from(unit) * 15) >> 4;
    now.max(before as u32).max(1)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceState {
    /// No queue of it has work.
    Idle,
    /// In its tenant's list.
    Active,
    /// Its tenant has all that it may have at the back end.
    Capped,
    /// The back end is full.
    Waiting,
    /// Its tenant is at a limit for what the device does.
    Limited,
}

#[derive(Debug)]
pub(super) struct Device {
    line: Link,
    pub(super) tenant: u32,
    kind: Kind,
    /// Queues that were placed here.
    members: u32,
    /// Its queues that have work.
    queues: List<LINE>,
    credit: i32,
    pub(super) state: DeviceState,
    share: u32,
}

/// A tenant at a back end.
#[derive(Debug)]
struct BackEndShare {
    back_end: u32,
    weight: u32,
    pending: u32,
    /// Devices with work here, whatever holds them.
    busy: u32,
    /// Queues on this core that go on to here.
    queues: u32,
    capped: List<LINE>,
}

#[derive(Debug, Default)]
struct BackEnd {
    depth: u32,
    pending: u32,
    /// Of all tenants that have or want something here.
    weights: u64,
    /// Tenants with queues on this core that go on to here.
    shares: u32,
    waiting: List<LINE>,
}

impl BackEnd {
    /// What is kept for tenants that have nothing here, where there are several: one that comes with a single request
    /// now and then would otherwise wait for one of somebody else's to end, each time.
    #[inline]
    fn kept(&self) -> u32 {
        if self.shares > 1 { self.depth / 8 } else { 0 }
    }
}

impl Linked<LINE> for Queue {
    #[inline]
    fn link(&mut self) -> &mut Link {
        &mut self.line
    }
}

impl Linked<LINE> for Device {
    #[inline]
    fn link(&mut self) -> &mut Link {
        &mut self.line
    }
}

/// A queue and how many units of it there may be now.
pub(super) struct Chosen {
    pub(super) queue: u32,
    pub(super) most: u32,
}

/// For how long a limit held a tenant's work, nanoseconds.
#[derive(Clone, Copy, Debug, Default)]
struct ThrottledTime {
    all: u64,
    /// Since when it does so now.
    since: Option<Nanos>,
}

#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) queues: Vec<Queue>,
    pub(super) devices: Vec<Device>,
    shares: Vec<BackEndShare>,
    back_ends: Vec<BackEnd>,
    // Looked at only where a queue is placed.
    by_device: BTreeMap<DeviceKey, u32>,
    by_share: BTreeMap<(TenantId, u32), u32>,
    /// Numbers of devices that have no queues any more.
    free: Vec<u32>,
    /// By tenant, what limits held; only those of whom one ever did.
    throttled: Vec<ThrottledTime>,
    /// A back end of which a device did not take the room it was given.
    pub(super) left: Option<u32>,
}

/// Whose, which, what it counts, and its share.
type DeviceKey = (TenantId, u32, Kind, u32);

/// The device of queues that were never placed.
const UNPLACED: u32 = u32::MAX;

impl Tree {
    /// The queue's number, where it was placed for its tenant.
    #[inline]
    pub(super) fn find(&self, queue: QueueId) -> Option<u32> {
        self.queues.get(queue.index as usize).filter(|known| known.tenant == queue.tenant).map(|_| queue.index)
    }

    /// Whether a tenant has queues on this core. It looks at all: for changes only.
    pub(super) fn has(&self, tenant: TenantId) -> bool {
        self.queues.iter().any(|queue| queue.is_present && queue.tenant == tenant)
    }

    /// Its record, made where there was none.
    pub(super) fn place(&mut self, queue: QueueId, weight: u32, placement: Option<Placement>) {
        let placement = placement.unwrap_or(Placement { device: UNPLACED, ..Placement::default() });
        let share = match placement.back_end {
            Some(back_end) => self.share(queue.tenant, weight, back_end.index, back_end.depth),
            None => NIL,
        };
        let key = (queue.tenant, placement.device, placement.kind, share);
        let device = match self.by_device.get(&key) {
            Some(&device) => device,
            None => self.make_device(key),
        };
        while self.queues.len() <= queue.index as usize {
            self.queues.push(Queue {
                line: Link::default(),
                tenant: TenantId(u16::MAX),
                kind: Kind::Requests,
                device: NIL,
                waiting: 0,
                bytes: 0,
                credit: 0,
                unit: UNKNOWN,
                pending: 0,
                is_present: false,
            });
        }
        let record = &mut self.queues[queue.index as usize];
        let (before, pending) = (record.device, record.pending);
        record.tenant = queue.tenant;
        record.kind = placement.kind;
        record.device = device;
        if before != device {
            record.pending = 0;
            record.unit = UNKNOWN;
            self.devices[device as usize].members += 1;
            if before != NIL {
                self.ended(before, pending);
                self.devices[before as usize].members -= 1;
                match self.devices[before as usize].members {
                    0 => {
                        self.by_device.retain(|_, device| *device != before);
                        self.free.push(before);
                    }
                    // What it owed its sibling is not owed to the next.
                    1 => {
                        self.queues.iter_mut().filter(|queue| queue.device == before).for_each(|queue| queue.credit = 0)
                    }
                    _ => {}
                }
            }
        }
    }

    fn make_device(&mut self, key: DeviceKey) -> u32 {
        let (tenant, _, kind, share) = key;
        let device = Device {
            line: Link::default(),
            tenant: tenant.0.into(),
            kind,
            members: 0,
            queues: List::default(),
            credit: 0,
            state: DeviceState::Idle,
            share,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.devices[number as usize] = device;
                number
            }
            None => {
                self.devices.push(device);
                self.devices.len() as u32 - 1
            }
        };
        self.by_device.insert(key, number);
        number
    }

    fn share(&mut self, tenant: TenantId, weight: u32, back_end: u32, depth: u32) -> u32 {
        if self.back_ends.len() <= back_end as usize {
            self.back_ends.resize_with(back_end as usize + 1, BackEnd::default);
        }
        self.back_ends[back_end as usize].depth = depth.max(1);
        *self.by_share.entry((tenant, back_end)).or_insert_with(|| {
            self.shares.push(BackEndShare {
                back_end,
                weight,
                pending: 0,
                busy: 0,
                queues: 0,
                capped: List::default(),
            });
            self.shares.len() as u32 - 1
        })
    }

    /// A queue that was placed is on this core now.
    pub(super) fn arrive(&mut self, queue: u32) {
        self.queues[queue as usize].is_present = true;
        if let Some((share, back_end)) = self.share_of(queue) {
            share.queues += 1;
            if share.queues == 1 {
                back_end.shares += 1;
            }
        }
    }

    /// And now it is not. Whether it was.
    pub(super) fn depart(&mut self, queue: u32) -> bool {
        let Some(record) = self.queues.get_mut(queue as usize) else { return false };
        if !std::mem::take(&mut record.is_present) {
            return false;
        }
        if let Some((share, back_end)) = self.share_of(queue) {
            share.queues -= 1;
            if share.queues == 0 {
                back_end.shares -= 1;
            }
        }
        true
    }

    /// Where a queue's tenant stands at the back end that it goes on to, where that is bounded.
    fn share_of(&mut self, queue: u32) -> Option<(&mut BackEndShare, &mut BackEnd)> {
        let device = self.devices.get(self.queues[queue as usize].device as usize)?;
        let share = self.shares.get_mut(device.share as usize)?;
        let back_end = &mut self.back_ends[share.back_end as usize];
        Some((share, back_end))
    }

    /// A tenant's weight changed.
    pub(super) fn weigh(&mut self, tenant: TenantId, weight: u32) {
        for (_, &share) in self.by_share.range((tenant, 0)..=(tenant, u32::MAX)) {
            let share = &mut self.shares[share as usize];
            if share.busy > 0 || share.pending > 0 {
                let back_end = &mut self.back_ends[share.back_end as usize];
                back_end.weights = back_end.weights + u64::from(weight) - u64::from(share.weight);
            }
            share.weight = weight;
        }
    }

    /// More work of a queue of `tenant`. True: its device can run, and could not before.
    #[inline(always)]
    pub(super) fn add(&mut self, tenant: &mut Tenant, queue: u32, units: u32, bytes: u64) -> bool {
        let record = &mut self.queues[queue as usize];
        let (had, number) = (record.waiting > 0, record.device);
        record.waiting = record.waiting.saturating_add(units);
        record.bytes = record.bytes.saturating_add(bytes);
        if had {
            return false;
        }
        let device = &mut self.devices[number as usize];
        device.queues.push_back(&mut self.queues, queue);
        if device.state != DeviceState::Idle {
            return false;
        }
        device.state = DeviceState::Active;
        let share = device.share;
        tenant.devices.push_back(&mut self.devices, number);
        if share != NIL {
            self.join(share, 1, 0);
        }
        true
    }

    /// A tenant has more to do with a back end.
    fn join(&mut self, share: u32, busy: u32, pending: u32) {
        let share = &mut self.shares[share as usize];
        let back_end = &mut self.back_ends[share.back_end as usize];
        if share.busy == 0 && share.pending == 0 && busy + pending > 0 {
            back_end.weights += u64::from(share.weight);
        }
        share.busy += busy;
        share.pending += pending;
        back_end.pending += pending;
    }

    fn leave(&mut self, share: u32, busy: u32, pending: u32) {
        let share = &mut self.shares[share as usize];
        let back_end = &mut self.back_ends[share.back_end as usize];
        let had = share.busy > 0 || share.pending > 0;
        share.busy -= busy.min(share.busy);
        let pending = pending.min(share.pending);
        share.pending -= pending;
        back_end.pending -= pending;
        if had && share.busy == 0 && share.pending == 0 {
            back_end.weights -= u64::from(share.weight);
        }
    }

    /// How many units more a device's back end takes, or what it has to wait for.
    #[inline]
    fn room(&self, share: u32) -> Result<u32, DeviceState> {
        if share == NIL {
            return Ok(u32::MAX);
        }
        let share = &self.shares[share as usize];
        let back_end = &self.back_ends[share.back_end as usize];
        let kept = back_end.kept();
        let own = u64::from(back_end.depth - kept) * u64::from(share.weight) / back_end.weights.max(1);
        let own = (own as u32).clamp(1, back_end.depth);
        let depth = if share.pending > 0 { back_end.depth - kept } else { back_end.depth };
        if share.pending >= own {
            Err(DeviceState::Capped)
        } else if back_end.pending >= depth {
            Err(DeviceState::Waiting)
        } else {
            // What is kept is for the first request only.
            let left =
                if back_end.pending < back_end.depth - kept { back_end.depth - kept - back_end.pending } else { 1 };
            Ok((own - share.pending).min(left))
        }
    }

    /// The queue of a tenant that is next. None: none of its devices can run, for now.
    #[inline]
    pub(super) fn choose(&mut self, tenant: &mut Tenant, index: u32, now: Nanos) -> Option<Chosen> {
        let (number, most) = loop {
            let number = turn(&mut tenant.devices, &mut self.devices, |device| &mut device.credit)?;
            if tenant.is_limited() && self.hold_at_limit(tenant, index, number, now) {
                continue;
            }
            match self.room(self.devices[number as usize].share) {
                Ok(most) => break (number, most),
                Err(state) => {
                    tenant.devices.remove(&mut self.devices, number);
                    self.hold(number, state);
                }
            }
        };
        let device = &mut self.devices[number as usize];
        let queue = match device.members {
            // That it owes nobody is not to be noted each time.
            1 => device.queues.front()?,
            _ => turn(&mut device.queues, &mut self.queues, |queue| &mut queue.credit)?,
        };
        Some(Chosen { queue, most: most.min(self.queues[queue as usize].waiting) })
    }

    /// Puts a device aside that is at a limit of its tenant, if it is.
    // Out of the way: inlined, the limits of all tenants are reckoned with before it is known whether there are any.
    #[inline(never)]
    fn hold_at_limit(&mut self, tenant: &mut Tenant, index: u32, number: u32, now: Nanos) -> bool {
        let device = &mut self.devices[number as usize];
        if tenant.limiter.opens(device.kind) <= now {
            return false;
        }
        device.state = DeviceState::Limited;
        let share = device.share;
        tenant.devices.remove(&mut self.devices, number);
        start_throttle(&mut self.throttled, index, now);
        tenant.limited.push_back(&mut self.devices, number);
        if share != NIL {
            self.left = Some(self.shares[share as usize].back_end);
        }
        true
    }

    /// Bytes of one unit that waits, about: only roughly right is needed.
    pub(super) fn bytes_of_one(&self, queue: u32) -> u32 {
        let record = &self.queues[queue as usize];
        (record.bytes >> record.waiting.max(1).ilog2()).min(u32::MAX.into()) as u32
    }

    /// Devices of a tenant that were at a limit and are not any more can run.
    pub(super) fn unlimit(&mut self, tenants: &mut [Tenant], tenant: u32, now: Nanos) {
        let Tenant { devices, limited, limiter, .. } = &mut tenants[tenant as usize];
        let mut held = List::default();
        while let Some(number) = limited.pop_front(&mut self.devices) {
            if limiter.opens(self.devices[number as usize].kind) > now {
                held.push_back(&mut self.devices, number);
            } else {
                self.devices[number as usize].state = DeviceState::Active;
                devices.push_back(&mut self.devices, number);
            }
        }
        *limited = held;
        if let Some(ThrottledTime { all, since: Some(_) }) = self.throttled.get(tenant as usize)
            && limited.is_empty()
        {
            let all = *all;
            self.throttled[tenant as usize] = ThrottledTime { all: all + self.since_of(now, tenant), since: None };
        }
    }

    fn since_of(&self, now: Nanos, tenant: u32) -> u64 {
        self.throttled.get(tenant as usize).and_then(|held| held.since).map_or(0, |since| now.since(since).0)
    }

    /// For how long limits held work of a tenant.
    pub(super) fn limited(&self, now: Nanos, tenant: u32) -> Nanos {
        let before = self.throttled.get(tenant as usize).map_or(0, |held| held.all);
        Nanos(before + self.since_of(now, tenant))
    }

    fn hold(&mut self, number: u32, state: DeviceState) {
        let share = self.devices[number as usize].share;
        self.devices[number as usize].state = state;
        match state {
            DeviceState::Capped => self.shares[share as usize].capped.push_back(&mut self.devices, number),
            _ => {
                let back_end = self.shares[share as usize].back_end as usize;
                self.back_ends[back_end].waiting.push_back(&mut self.devices, number);
            }
        }
    }

    /// Units of the queue that [`choose`](Self::choose) chose of `tenant` are granted.
    #[inline]
    pub(super) fn take(&mut self, tenant: &mut Tenant, queue: u32, units: u32) {
        let record = &mut self.queues[queue as usize];
        if units == record.waiting {
            record.waiting = 0;
            return self.emptied(tenant, queue);
        }
        let bytes = match u32::try_from(record.bytes) {
            // Division of half as many bits, as it takes less than half the time.
            Ok(bytes) => u64::from(bytes / record.waiting) * u64::from(units),
            Err(_) => record.bytes / u64::from(record.waiting) * u64::from(units),
        };
        record.waiting -= units;
        record.bytes -= bytes;
    }

    /// Nothing of the queue waits any more. Its device is in its tenant's list, or held.
    #[inline]
    fn emptied(&mut self, tenant: &mut Tenant, queue: u32) {
        let record = &mut self.queues[queue as usize];
        record.bytes = 0;
        record.credit = record.credit.min(0);
        let number = record.device;
        let device = &mut self.devices[number as usize];
        device.queues.remove(&mut self.queues, queue);
        if !device.queues.is_empty() {
            return;
        }
        device.credit = device.credit.min(0);
        let (state, share) = (device.state, device.share);
        device.state = DeviceState::Idle;
        if state == DeviceState::Active {
            tenant.devices.remove(&mut self.devices, number);
        } else {
            self.unhold(tenant, number, state);
        }
        if share != NIL {
            self.leave(share, 1, 0);
            self.uncap(share);
        }
    }

    /// A device that was held is not any more.
    #[cold]
    fn unhold(&mut self, tenant: &mut Tenant, number: u32, state: DeviceState) {
        let share = self.devices[number as usize].share;
        match state {
            DeviceState::Idle | DeviceState::Active => {}
            DeviceState::Limited => tenant.limited.remove(&mut self.devices, number),
            DeviceState::Capped => self.shares[share as usize].capped.remove(&mut self.devices, number),
            DeviceState::Waiting => {
                let back_end = self.shares[share as usize].back_end as usize;
                self.back_ends[back_end].waiting.remove(&mut self.devices, number);
            }
        }
    }

    /// All that waits of a queue is forgotten.
    pub(super) fn cancel(&mut self, tenant: &mut Tenant, queue: u32) {
        if std::mem::take(&mut self.queues[queue as usize].waiting) > 0 {
            self.emptied(tenant, queue);
        }
    }

    /// A grant of the queue cost so much in all. Its back end, where it has one that is bounded.
    #[inline]
    pub(super) fn charge(&mut self, queue: u32, total: u64, cost: Cost) -> Option<u32> {
        let record = &mut self.queues[queue as usize];
        // More than a debt can be is no more, and credit is never beyond a turn: no sum overflows.
        let owed = total.min(2 * DEBT as u64) as i32;
        let device = &mut self.devices[record.device as usize];
        if device.members > 1 {
            record.credit = (record.credit - owed).max(-DEBT);
        }
        device.credit = (device.credit - owed).max(-DEBT);
        record.unit = learned(record.unit, total, cost.units);
        record.pending += cost.pending;
        let share = device.share;
        if share == NIL {
            return None;
        }
        if cost.pending > 0 {
            self.join(share, 0, cost.pending);
        }
        // One of several devices that a completion let run may have left room.
        self.uncap(share);
        Some(self.shares[share as usize].back_end)
    }

    /// A back end ended so many units of a queue.
    #[inline]
    pub(super) fn complete(&mut self, queue: u32, units: u32) {
        let record = &mut self.queues[queue as usize];
        let units = units.min(record.pending);
        record.pending -= units;
        let device = record.device;
        self.ended(device, units);
    }

    fn ended(&mut self, device: u32, units: u32) {
        let share = self.devices[device as usize].share;
        if share == NIL || units == 0 {
            return;
        }
        self.leave(share, 0, units);
        self.uncap(share);
    }

    /// A device of a tenant that has less than its own bound of a back end again waits behind those who found that
    /// full.
    fn uncap(&mut self, share: u32) {
        if !self.shares[share as usize].capped.is_empty()
            && self.room(share) != Err(DeviceState::Capped)
            && let Some(number) = self.shares[share as usize].capped.pop_front(&mut self.devices)
        {
            self.hold(number, DeviceState::Waiting);
        }
    }

    /// The back end of a queue, where it has one that is bounded.
    #[inline]
    pub(super) fn back_end_of(&self, queue: u32) -> Option<u32> {
        let share = self.devices.get(self.queues.get(queue as usize)?.device as usize)?.share;
        (share != NIL).then(|| self.shares[share as usize].back_end)
    }

    /// The first device that waits for a back end with room can run. Its tenant.
    pub(super) fn release(&mut self, tenants: &mut [Tenant], back_end: u32) -> Option<u32> {
        let record = &mut self.back_ends[back_end as usize];
        if record.pending >= record.depth {
            return None;
        }
        let number = record.waiting.pop_front(&mut self.devices)?;
        let device = &mut self.devices[number as usize];
        device.state = DeviceState::Active;
        let tenant = device.tenant;
        tenants[tenant as usize].devices.push_back(&mut self.devices, number);
        Some(tenant)
    }

    /// What all tenants have at a back end.
    #[cfg(test)]
    pub(super) fn pending(&self, back_end: u32) -> u32 {
        self.back_ends.get(back_end as usize).map_or(0, |back_end| back_end.pending)
    }
}

/// A limit holds work of a tenant from `now` on.
fn start_throttle(held: &mut Vec<ThrottledTime>, tenant: u32, now: Nanos) {
    if held.len() <= tenant as usize {
        held.resize(tenant as usize + 1, ThrottledTime::default());
    }
    held[tenant as usize].since.get_or_insert(now);
}

/// Surplus round robin: the first has its turn as long as it owes nothing, and then goes to the end.
#[inline]
fn turn<T: Linked<LINE>>(list: &mut List<LINE>, members: &mut [T], credit: impl Fn(&mut T) -> &mut i32) -> Option<u32> {
    let mut first = list.front()?;
    if !list.has_several() {
        // Nobody to owe anything to.
        *credit(&mut members[first as usize]) = 0;
        return Some(first);
    }
    for _ in 0..STEPS {
        let left = credit(&mut members[first as usize]);
        if *left > 0 {
            break;
        }
        *left += TURN;
        list.rotate(members);
        first = list.front()?;
    }
    Some(first)
}
