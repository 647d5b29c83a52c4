//! Whose queues are on a core, for policies that share it among those.

use crate::{QueueId, TenantId};

/// The queues of a core: placed there, or with work, and not cancelled since.
#[derive(Debug, Default)]
pub(crate) struct Here {
    /// By the queue's number, whose it is.
    queues: Vec<Option<TenantId>>,
    /// By tenant.
    counts: Vec<u32>,
}

impl Here {
    /// A queue is here. Whether it is the first of its tenant.
    #[inline]
    pub(crate) fn arrive(&mut self, queue: QueueId) -> bool {
        let index = queue.index as usize;
        match self.queues.get(index) {
            Some(Some(tenant)) if *tenant == queue.tenant => return false,
            // Its number is another tenant's now.
            Some(&Some(tenant)) => drop(self.depart(QueueId { tenant, ..queue })),
            Some(None) => {}
            None => self.queues.resize(index + 1, None),
        }
        self.queues[index] = Some(queue.tenant);
        let tenant = usize::from(queue.tenant.0);
        if self.counts.len() <= tenant {
            self.counts.resize(tenant + 1, 0);
        }
        self.counts[tenant] += 1;
        self.counts[tenant] == 1
    }

    /// A queue has gone. Whether it was the last of its tenant.
    pub(crate) fn depart(&mut self, queue: QueueId) -> bool {
        match self.queues.get_mut(queue.index as usize) {
            Some(known) if *known == Some(queue.tenant) => *known = None,
            _ => return false,
        }
        let count = &mut self.counts[usize::from(queue.tenant.0)];
        *count -= 1;
        *count == 0
    }

    /// Whether a tenant has queues here.
    pub(crate) fn has(&self, tenant: usize) -> bool {
        self.counts.get(tenant).is_some_and(|count| *count > 0)
    }
}
