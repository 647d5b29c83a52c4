//! One channel per tenant and core, between the rings and the work (MTDA §III-C).
//!
//! A channel bounds what a tenant may have waiting on a core. It never grows: a full channel takes no more from the
//! tenant's rings, where the requests then wait, as they would for a slow disk. The requests themselves lie with their
//! queue, in arrival order; the channel is the account.

use softdpu_sched::{Nanos, TenantId};

/// Requests a tenant may have waiting on one core.
pub(crate) const CAPACITY: u32 = 1024;

/// The tenants' accounts on one core.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    accounts: Vec<ChannelAccount>,
    total: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct ChannelAccount {
    waiting: u32,
    /// Since when so many.
    since: u64,
    /// What all requests have waited before that, nanoseconds: by as many as there were at each time (Little's law).
    waited: u64,
}

impl Channels {
    /// Requests of the tenant that wait.
    #[inline]
    pub(crate) fn waiting(&self, tenant: TenantId) -> u32 {
        self.accounts.get(usize::from(tenant.0)).map_or(0, |account| account.waiting)
    }

    /// How many more may.
    #[inline]
    pub(crate) fn room(&self, tenant: TenantId) -> u32 {
        CAPACITY.saturating_sub(self.waiting(tenant))
    }

    /// `n` requests came in at `now`.
    #[inline]
    pub(crate) fn enter(&mut self, tenant: TenantId, n: u32, now: Nanos) {
        let index = usize::from(tenant.0);
        if index >= self.accounts.len() {
            self.accounts.resize(index + 1, ChannelAccount::default());
        }
        self.accounts[index].update(now);
        self.accounts[index].waiting += n;
        self.total += n;
    }

    /// Counts what the tenant's requests have waited until `now`. Before some of them leave.
    #[inline]
    pub(crate) fn update(&mut self, tenant: TenantId, now: Nanos) {
        if let Some(account) = self.accounts.get_mut(usize::from(tenant.0)) {
            account.update(now);
        }
    }

    /// What all requests of the tenant have waited, together, nanoseconds.
    pub(crate) fn waited(&self, tenant: TenantId) -> u64 {
        self.accounts.get(usize::from(tenant.0)).map_or(0, |account| account.waited)
    }

    /// `n` requests were run, dropped, or went to another core.
    #[inline]
    pub(crate) fn leave(&mut self, tenant: TenantId, n: u32) {
        if let Some(ChannelAccount { waiting, .. }) = self.accounts.get_mut(usize::from(tenant.0)) {
            debug_assert!(*waiting >= n, "{tenant:?} has {waiting} waiting, {n} leave");
            *waiting = waiting.saturating_sub(n);
            self.total = self.total.saturating_sub(n);
        }
    }

    /// Requests waiting on this core.
    #[inline]
    pub(crate) fn total(&self) -> u32 {
        self.total
    }
}

impl ChannelAccount {
    #[inline]
    fn update(&mut self, now: Nanos) {
        self.waited = self.waited.wrapping_add(u64::from(self.waiting) * now.0.saturating_sub(self.since));
        self.since = now.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_requests_waited_is_by_how_many_waited_when() {
        let tenant = TenantId(2);
        let mut channels = Channels::default();
        channels.enter(tenant, 2, Nanos(1_000));
        channels.enter(tenant, 1, Nanos(1_100));
        channels.update(tenant, Nanos(1_200));
        channels.leave(tenant, 3);
        channels.update(tenant, Nanos(9_000));
        assert_eq!(channels.waited(tenant), 2 * 100 + 3 * 100);
    }

    #[test]
    fn a_full_channel_has_no_room_and_others_are_not_concerned() {
        let (a, b) = (TenantId(0), TenantId(9));
        let mut channels = Channels::default();
        channels.enter(a, CAPACITY, Nanos(0));
        assert_eq!((channels.room(a), channels.room(b)), (0, CAPACITY));
        channels.leave(a, 10);
        assert_eq!((channels.room(a), channels.total()), (10, CAPACITY - 10));
    }
}
