//! The queues on a core, by tenant, for policies that share a core among the tenants that have queues there.

use crate::{QueueId, TenantId};

/// The attached queues of a core: placed there or with work, and not cancelled since.
#[derive(Debug, Default)]
pub(crate) struct AttachedQueues {
    /// By the queue's number, its tenant.
    queues: Vec<Option<TenantId>>,
    /// By tenant.
    counts: Vec<u32>,
}

impl AttachedQueues {
    /// Attaches a queue. Whether it is the first of its tenant.
    #[inline]
    pub(crate) fn attach(&mut self, queue: QueueId) -> bool {
        let index = queue.index as usize;
        match self.queues.get(index) {
            Some(Some(tenant)) if *tenant == queue.tenant => return false,
            // Its number is another tenant's now.
            Some(&Some(tenant)) => drop(self.detach(QueueId { tenant, ..queue })),
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

    /// Detaches a queue. Whether it was the last of its tenant.
    pub(crate) fn detach(&mut self, queue: QueueId) -> bool {
        match self.queues.get_mut(queue.index as usize) {
            Some(attached) if *attached == Some(queue.tenant) => *attached = None,
            _ => return false,
        }
        let count = &mut self.counts[usize::from(queue.tenant.0)];
        *count -= 1;
        *count == 0
    }

    /// Whether a tenant has queues on the core.
    pub(crate) fn has(&self, tenant: usize) -> bool {
        self.counts.get(tenant).is_some_and(|count| *count > 0)
    }
}
