//! One channel per tenant and core, between the rings and the work (MTDA §III-C).
//!
//! A channel bounds what a tenant may have waiting on a core. It never grows: a full channel takes no more from the
//! tenant's rings, where the requests then wait, as they would for a slow disk. The requests themselves lie with their
//! queue, in arrival order; the channel is the account.

use softdpu_sched::TenantId;

/// Requests a tenant may have waiting on one core.
pub(crate) const CAPACITY: u32 = 1024;

/// The tenants' accounts on one core.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    waiting: Vec<u32>,
    total: u32,
}

impl Channels {
    /// Requests of the tenant that wait.
    #[inline]
    pub(crate) fn waiting(&self, tenant: TenantId) -> u32 {
        self.waiting.get(usize::from(tenant.0)).copied().unwrap_or(0)
    }

    /// How many more may.
    #[inline]
    pub(crate) fn room(&self, tenant: TenantId) -> u32 {
        CAPACITY.saturating_sub(self.waiting(tenant))
    }

    /// `n` requests came in.
    #[inline]
    pub(crate) fn enter(&mut self, tenant: TenantId, n: u32) {
        let index = usize::from(tenant.0);
        if index >= self.waiting.len() {
            self.waiting.resize(index + 1, 0);
        }
        self.waiting[index] += n;
        self.total += n;
    }

    /// `n` requests were run, dropped, or went to another core.
    #[inline]
    pub(crate) fn leave(&mut self, tenant: TenantId, n: u32) {
        if let Some(waiting) = self.waiting.get_mut(usize::from(tenant.0)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_channel_has_no_room_and_others_are_not_concerned() {
        let (a, b) = (TenantId(0), TenantId(9));
        let mut channels = Channels::default();
        channels.enter(a, CAPACITY);
        assert_eq!((channels.room(a), channels.room(b)), (0, CAPACITY));
        channels.leave(a, 10);
        assert_eq!((channels.room(a), channels.total()), (10, CAPACITY - 10));
    }
}
