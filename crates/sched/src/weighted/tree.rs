//! Below a tenant: its devices, their queues, and the back ends that their work goes on to.

use std::collections::BTreeMap;

use super::index::{BackEndIndex, DeviceIndex, Maybe, QueueIndex, RowIndex, ShareIndex, Table, TenantIndex};
use super::list::{Link, Linked, List, READY};
use super::tenant::Tenant;
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
    ready: Link<QueueIndex>,
    pub(super) tenant: TenantId,
    pub(super) kind: Kind,
    device: Maybe<DeviceIndex>,
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
    ready: Link<DeviceIndex>,
    tenant: TenantIndex,
    kind: Kind,
    /// Queues that were placed here.
    members: u32,
    /// Its queues that have work.
    queues: List<QueueIndex, READY>,
    credit: i32,
    pub(super) state: DeviceState,
    /// Of its back end, where that is bounded.
    share: Maybe<ShareIndex>,
}

/// A tenant at a back end.
#[derive(Debug)]
struct BackEndShare {
    back_end: BackEndIndex,
    weight: u32,
    pending: u32,
    /// Devices with work for the back end, whatever holds them.
    busy: u32,
    /// Queues on this core that have the back end.
    queues: u32,
    capped: List<DeviceIndex, READY>,
}

#[derive(Debug, Default)]
struct BackEnd {
    depth: u32,
    pending: u32,
    /// Of all tenants that have requests at the back end, or for it.
    weights: u64,
    /// Tenants with queues on this core that have the back end.
    shares: u32,
    waiting: List<DeviceIndex, READY>,
}

impl BackEnd {
    /// The part of the depth that is kept for tenants without a request at the back end, where several have queues for
    /// it: a tenant with a single request now and then would otherwise wait each time for another's to end.
    #[inline]
    fn kept(&self) -> u32 {
        if self.shares > 1 { self.depth / 8 } else { 0 }
    }
}

impl Linked<QueueIndex, READY> for Queue {
    #[inline]
    fn link(&mut self) -> &mut Link<QueueIndex> {
        &mut self.ready
    }
}

impl Linked<DeviceIndex, READY> for Device {
    #[inline]
    fn link(&mut self) -> &mut Link<DeviceIndex> {
        &mut self.ready
    }
}

/// A queue and how many units of it there may be now.
pub(super) struct Chosen {
    pub(super) queue: QueueIndex,
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
    pub(super) queues: Table<QueueIndex, Queue>,
    devices: Table<DeviceIndex, Device>,
    shares: Table<ShareIndex, BackEndShare>,
    back_ends: Table<BackEndIndex, BackEnd>,
    // Looked at only where a queue is placed.
    by_device: BTreeMap<DeviceKey, DeviceIndex>,
    by_share: BTreeMap<(TenantIndex, BackEndIndex), ShareIndex>,
    /// Devices that have no queues any more.
    free: Vec<DeviceIndex>,
    /// For how long limits held each tenant's work. Empty where none ever did.
    throttled: Table<TenantIndex, ThrottledTime>,
    /// A back end of which a device did not take the room it was given.
    pub(super) left: Option<BackEndIndex>,
}

/// A device: its tenant, the caller's number, what it counts, and its share of a back end.
type DeviceKey = (TenantIndex, u32, Kind, Maybe<ShareIndex>);

/// The device of queues that were never placed.
const UNPLACED: u32 = u32::MAX;

impl Tree {
    /// The queue's number, where it was placed for its tenant.
    #[inline]
    pub(super) fn find(&self, queue: QueueId) -> Option<QueueIndex> {
        let index = QueueIndex::from(queue);
        self.queues.get(index).filter(|known| known.tenant == queue.tenant).map(|_| index)
    }

    /// Whether a tenant has queues on this core. It looks at all queues: for changes only.
    pub(super) fn has(&self, tenant: TenantId) -> bool {
        self.queues.iter().any(|queue| queue.is_present && queue.tenant == tenant)
    }

    /// Its record, made where there was none.
    pub(super) fn place(&mut self, queue: QueueId, weight: u32, placement: Option<Placement>) {
        let placement = placement.unwrap_or(Placement { device: UNPLACED, ..Placement::default() });
        let share = match placement.back_end {
            Some(back_end) => self.share(queue.tenant.into(), weight, back_end.into(), back_end.depth).into(),
            None => Maybe::NONE,
        };
        let key = (queue.tenant.into(), placement.device, placement.kind, share);
        let device = match self.by_device.get(&key) {
            Some(&device) => device,
            None => self.make_device(key),
        };
        self.queues.grow_to(queue.into(), || Queue {
            ready: Link::default(),
            tenant: TenantId(u16::MAX),
            kind: Kind::Requests,
            device: Maybe::NONE,
            waiting: 0,
            bytes: 0,
            credit: 0,
            unit: UNKNOWN,
            pending: 0,
            is_present: false,
        });
        let record = &mut self.queues[queue.into()];
        let (before, pending) = (record.device.get(), record.pending);
        record.tenant = queue.tenant;
        record.kind = placement.kind;
        record.device = device.into();
        if before != Some(device) {
            record.pending = 0;
            record.unit = UNKNOWN;
            self.devices[device].members += 1;
            if let Some(before) = before {
                self.ended(before, pending);
                self.devices[before].members -= 1;
                match self.devices[before].members {
                    0 => {
                        self.by_device.retain(|_, device| *device != before);
                        self.free.push(before);
                    }
                    // What it owed its sibling is not owed to the next.
                    1 => {
                        let of = |queue: &&mut Queue| queue.device == before.into();
                        self.queues.iter_mut().filter(of).for_each(|queue| queue.credit = 0);
                    }
                    _ => {}
                }
            }
        }
    }

    fn make_device(&mut self, key: DeviceKey) -> DeviceIndex {
        let (tenant, _, kind, share) = key;
        let device = Device {
            ready: Link::default(),
            tenant,
            kind,
            members: 0,
            queues: List::default(),
            credit: 0,
            state: DeviceState::Idle,
            share,
        };
        let number = match self.free.pop() {
            Some(number) => {
                self.devices[number] = device;
                number
            }
            None => self.devices.push(device),
        };
        self.by_device.insert(key, number);
        number
    }

    fn share(&mut self, tenant: TenantIndex, weight: u32, back_end: BackEndIndex, depth: u32) -> ShareIndex {
        self.back_ends.grow_to(back_end, BackEnd::default);
        self.back_ends[back_end].depth = depth.max(1);
        *self.by_share.entry((tenant, back_end)).or_insert_with(|| {
            self.shares.push(BackEndShare { back_end, weight, pending: 0, busy: 0, queues: 0, capped: List::default() })
        })
    }

    /// A queue that was placed is on this core now.
    pub(super) fn arrive(&mut self, queue: QueueIndex) {
        self.queues[queue].is_present = true;
        if let Some((share, back_end)) = self.share_of(queue) {
            share.queues += 1;
            if share.queues == 1 {
                back_end.shares += 1;
            }
        }
    }

    /// And now it is not. Whether it was.
    pub(super) fn depart(&mut self, queue: QueueIndex) -> bool {
        let Some(record) = self.queues.get_mut(queue) else { return false };
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

    /// The share of a queue's tenant in the queue's back end, where that is bounded.
    fn share_of(&mut self, queue: QueueIndex) -> Option<(&mut BackEndShare, &mut BackEnd)> {
        let device = &self.devices[self.queues[queue].device.get()?];
        let share = &mut self.shares[device.share.get()?];
        let back_end = &mut self.back_ends[share.back_end];
        Some((share, back_end))
    }

    /// A tenant's weight changed.
    pub(super) fn weigh(&mut self, tenant: TenantIndex, weight: u32) {
        for (_, &share) in self.by_share.range((tenant, BackEndIndex::from_row(0))..=(tenant, BackEndIndex::NIL)) {
            let share = &mut self.shares[share];
            if share.busy > 0 || share.pending > 0 {
                let back_end = &mut self.back_ends[share.back_end];
                back_end.weights = back_end.weights + u64::from(weight) - u64::from(share.weight);
            }
            share.weight = weight;
        }
    }

    /// More work of a queue of `tenant`. True: its device can run, and could not before.
    #[inline(always)]
    pub(super) fn add(&mut self, tenant: &mut Tenant, queue: QueueIndex, units: u32, bytes: u64) -> bool {
        let record = &mut self.queues[queue];
        let (had, number) = (record.waiting > 0, record.device);
        record.waiting = record.waiting.saturating_add(units);
        record.bytes = record.bytes.saturating_add(bytes);
        if had {
            return false;
        }
        // One that was never placed has none, and no work.
        let Some(number) = number.get() else { return false };
        let device = &mut self.devices[number];
        device.queues.push_back(&mut self.queues, queue);
        if device.state != DeviceState::Idle {
            return false;
        }
        device.state = DeviceState::Active;
        let share = device.share;
        tenant.devices.push_back(&mut self.devices, number);
        if let Some(share) = share.get() {
            self.join(share, 1, 0);
        }
        true
    }

    /// A tenant has more to do with a back end.
    fn join(&mut self, share: ShareIndex, busy: u32, pending: u32) {
        let share = &mut self.shares[share];
        let back_end = &mut self.back_ends[share.back_end];
        if share.busy == 0 && share.pending == 0 && busy + pending > 0 {
            back_end.weights += u64::from(share.weight);
        }
        share.busy += busy;
        share.pending += pending;
        back_end.pending += pending;
    }

    fn leave(&mut self, share: ShareIndex, busy: u32, pending: u32) {
        let share = &mut self.shares[share];
        let back_end = &mut self.back_ends[share.back_end];
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
    fn room(&self, share: Maybe<ShareIndex>) -> Result<u32, DeviceState> {
        let Some(share) = share.get() else { return Ok(u32::MAX) };
        let share = &self.shares[share];
        let back_end = &self.back_ends[share.back_end];
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
    pub(super) fn choose(&mut self, tenant: &mut Tenant, index: TenantIndex, now: Nanos) -> Option<Chosen> {
        let (number, most) = loop {
            let number = turn(&mut tenant.devices, &mut self.devices, |device| &mut device.credit)?;
            if tenant.is_limited() && self.hold_at_limit(tenant, index, number, now) {
                continue;
            }
            match self.room(self.devices[number].share) {
                Ok(most) => break (number, most),
                Err(state) => {
                    tenant.devices.remove(&mut self.devices, number);
                    self.hold(number, state);
                }
            }
        };
        let device = &mut self.devices[number];
        let queue = match device.members {
            // A queue without siblings has no debt.
            1 => device.queues.front()?,
            _ => turn(&mut device.queues, &mut self.queues, |queue| &mut queue.credit)?,
        };
        Some(Chosen { queue, most: most.min(self.queues[queue].waiting) })
    }

    /// Puts a device aside that is at a limit of its tenant, if it is.
    // Out of the way: inlined, the limits of all tenants are reckoned with before it is known whether there are any.
    #[inline(never)]
    fn hold_at_limit(&mut self, tenant: &mut Tenant, index: TenantIndex, number: DeviceIndex, now: Nanos) -> bool {
        let device = &mut self.devices[number];
        if tenant.limiter.opens(device.kind) <= now {
            return false;
        }
        device.state = DeviceState::Limited;
        let share = device.share;
        tenant.devices.remove(&mut self.devices, number);
        start_throttle(&mut self.throttled, index, now);
        tenant.limited.push_back(&mut self.devices, number);
        if let Some(share) = share.get() {
            self.left = Some(self.shares[share].back_end);
        }
        true
    }

    /// Bytes of one unit that waits, about: only roughly right is needed.
    pub(super) fn bytes_of_one(&self, queue: QueueIndex) -> u32 {
        let record = &self.queues[queue];
        (record.bytes >> record.waiting.max(1).ilog2()).min(u32::MAX.into()) as u32
    }

    /// Devices of a tenant that were at a limit and are not any more can run.
    pub(super) fn unlimit(&mut self, tenants: &mut Table<TenantIndex, Tenant>, tenant: TenantIndex, now: Nanos) {
        let Tenant { devices, limited, limiter, .. } = &mut tenants[tenant];
        let mut held = List::default();
        while let Some(number) = limited.pop_front(&mut self.devices) {
            if limiter.opens(self.devices[number].kind) > now {
                held.push_back(&mut self.devices, number);
            } else {
                self.devices[number].state = DeviceState::Active;
                devices.push_back(&mut self.devices, number);
            }
        }
        *limited = held;
        if let Some(ThrottledTime { all, since: Some(_) }) = self.throttled.get(tenant)
            && limited.is_empty()
        {
            let all = *all;
            self.throttled[tenant] = ThrottledTime { all: all + self.since_of(now, tenant), since: None };
        }
    }

    fn since_of(&self, now: Nanos, tenant: TenantIndex) -> u64 {
        self.throttled.get(tenant).and_then(|held| held.since).map_or(0, |since| now.since(since).0)
    }

    /// For how long limits held work of a tenant.
    pub(super) fn limited(&self, now: Nanos, tenant: TenantIndex) -> Nanos {
        let before = self.throttled.get(tenant).map_or(0, |held| held.all);
        Nanos(before + self.since_of(now, tenant))
    }

    fn hold(&mut self, number: DeviceIndex, state: DeviceState) {
        self.devices[number].state = state;
        let Some(share) = self.devices[number].share.get() else { return };
        match state {
            DeviceState::Capped => self.shares[share].capped.push_back(&mut self.devices, number),
            _ => {
                let back_end = self.shares[share].back_end;
                self.back_ends[back_end].waiting.push_back(&mut self.devices, number);
            }
        }
    }

    /// Units of the queue that [`choose`](Self::choose) chose of `tenant` are granted.
    #[inline]
    pub(super) fn take(&mut self, tenant: &mut Tenant, queue: QueueIndex, units: u32) {
        let record = &mut self.queues[queue];
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
    fn emptied(&mut self, tenant: &mut Tenant, queue: QueueIndex) {
        let record = &mut self.queues[queue];
        record.bytes = 0;
        record.credit = record.credit.min(0);
        let Some(number) = record.device.get() else { return };
        let device = &mut self.devices[number];
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
        if let Some(share) = share.get() {
            self.leave(share, 1, 0);
            self.uncap(share);
        }
    }

    /// A device that was held is not any more.
    #[cold]
    fn unhold(&mut self, tenant: &mut Tenant, number: DeviceIndex, state: DeviceState) {
        match (state, self.devices[number].share.get()) {
            (DeviceState::Limited, _) => tenant.limited.remove(&mut self.devices, number),
            (DeviceState::Capped, Some(share)) => self.shares[share].capped.remove(&mut self.devices, number),
            (DeviceState::Waiting, Some(share)) => {
                let back_end = self.shares[share].back_end;
                self.back_ends[back_end].waiting.remove(&mut self.devices, number);
            }
            _ => {}
        }
    }

    /// All that waits of a queue is forgotten.
    pub(super) fn cancel(&mut self, tenant: &mut Tenant, queue: QueueIndex) {
        if std::mem::take(&mut self.queues[queue].waiting) > 0 {
            self.emptied(tenant, queue);
        }
    }

    /// A grant of the queue cost so much in all. Its back end, where it has one that is bounded.
    #[inline]
    pub(super) fn charge(&mut self, queue: QueueIndex, total: u64, cost: Cost) -> Option<BackEndIndex> {
        let record = &mut self.queues[queue];
        // More than a debt can be is no more, and credit is never beyond a turn: no sum overflows.
        let owed = total.min(2 * DEBT as u64) as i32;
        let device = &mut self.devices[record.device.get()?];
        if device.members > 1 {
            record.credit = (record.credit - owed).max(-DEBT);
        }
        device.credit = (device.credit - owed).max(-DEBT);
        record.unit = learned(record.unit, total, cost.units);
        record.pending += cost.pending;
        let share = device.share.get()?;
        if cost.pending > 0 {
            self.join(share, 0, cost.pending);
        }
        // One of several devices that a completion let run may have left room.
        self.uncap(share);
        Some(self.shares[share].back_end)
    }

    /// A back end ended so many units of a queue.
    #[inline]
    pub(super) fn complete(&mut self, queue: QueueIndex, units: u32) {
        let record = &mut self.queues[queue];
        let units = units.min(record.pending);
        record.pending -= units;
        if let Some(device) = record.device.get() {
            self.ended(device, units);
        }
    }

    fn ended(&mut self, device: DeviceIndex, units: u32) {
        if units > 0
            && let Some(share) = self.devices[device].share.get()
        {
            self.leave(share, 0, units);
            self.uncap(share);
        }
    }

    /// A tenant is below its bound at a back end again: a capped device of it waits behind those that found the back end
    /// full.
    fn uncap(&mut self, share: ShareIndex) {
        if !self.shares[share].capped.is_empty()
            && self.room(share.into()) != Err(DeviceState::Capped)
            && let Some(number) = self.shares[share].capped.pop_front(&mut self.devices)
        {
            self.hold(number, DeviceState::Waiting);
        }
    }

    /// The back end of a queue, where it has one that is bounded.
    #[inline]
    pub(super) fn back_end_of(&self, queue: QueueIndex) -> Option<BackEndIndex> {
        let device = self.queues.get(queue)?.device.get()?;
        self.devices[device].share.get().map(|share| self.shares[share].back_end)
    }

    /// The first device that waits for a back end with room can run. Its tenant.
    pub(super) fn release(
        &mut self,
        tenants: &mut Table<TenantIndex, Tenant>,
        back_end: BackEndIndex,
    ) -> Option<TenantIndex> {
        let record = &mut self.back_ends[back_end];
        if record.pending >= record.depth {
            return None;
        }
        let number = record.waiting.pop_front(&mut self.devices)?;
        let device = &mut self.devices[number];
        device.state = DeviceState::Active;
        let tenant = device.tenant;
        tenants[tenant].devices.push_back(&mut self.devices, number);
        Some(tenant)
    }

    /// What all tenants have at a back end.
    #[cfg(test)]
    pub(super) fn pending(&self, back_end: BackEndIndex) -> u32 {
        self.back_ends.get(back_end).map_or(0, |back_end| back_end.pending)
    }
}

/// A limit holds work of a tenant from `now` on.
fn start_throttle(held: &mut Table<TenantIndex, ThrottledTime>, tenant: TenantIndex, now: Nanos) {
    held.grow_to(tenant, ThrottledTime::default);
    held[tenant].since.get_or_insert(now);
}

/// Surplus round robin: the first has its turn as long as it owes nothing, and then goes to the end.
#[inline]
fn turn<I: RowIndex, T: Linked<I, READY>>(
    list: &mut List<I, READY>,
    members: &mut Table<I, T>,
    credit: impl Fn(&mut T) -> &mut i32,
) -> Option<I> {
    let mut first = list.front()?;
    if !list.has_several() {
        // Without siblings there is no debt.
        *credit(&mut members[first]) = 0;
        return Some(first);
    }
    for _ in 0..STEPS {
        let left = credit(&mut members[first]);
        if *left > 0 {
            break;
        }
        *left += TURN;
        list.rotate(members);
        first = list.front()?;
    }
    Some(first)
}
