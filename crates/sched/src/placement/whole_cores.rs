//! Cores of a tenant's own (MTDA §III-C): "if the available multicore processors can satisfy the tenant demands, we
//! allocate certain amounts of cores to each tenant to avoid frequent context switching".

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::{Move, QueueLoad};
use crate::TenantId;

/// Assigns each tenant cores of its own, one at least, further ones by weight up to one for each of its queues, and
/// moves its queues there. First choose the tenants with most work, so that few queues have to move. For as many
/// tenants with work as there are cores at the most.
pub fn whole_cores(cores: usize, queues: &[QueueLoad], weight: impl Fn(TenantId) -> u32) -> Vec<Move> {
    assign(cores, queues, &BTreeMap::new(), weight)
}

/// The same where some tenants need more than one core, and queues that are fixed have their cores for their tenants.
pub(super) fn assign(
    cores: usize,
    queues: &[QueueLoad],
    needs: &BTreeMap<TenantId, usize>,
    weight: impl Fn(TenantId) -> u32,
) -> Vec<Move> {
    let mut tenants = BTreeMap::<TenantId, u32>::new();
    for load in queues.iter().filter(|load| load.load > 0) {
        *tenants.entry(load.queue.tenant).or_default() += load.load;
    }
    let of = |tenant: TenantId| queues.iter().filter(move |load| load.queue.tenant == tenant && load.load > 0);
    let mut owner = owners(cores, queues);
    let free = count(&owner, Owner::Free);
    // More cores than queues are of no use to a tenant.
    let queues_of = |tenant: TenantId| of(tenant).filter(|load| !load.is_fixed).count();
    let further = |tenant: TenantId| {
        let need = needs.get(&tenant).copied().unwrap_or(1);
        need.saturating_sub(count(&owner, Owner::Tenant(tenant))).min(queues_of(tenant))
    };
    let mut counts: BTreeMap<TenantId, usize> = tenants.keys().map(|&tenant| (tenant, further(tenant))).collect();
    for _ in counts.values().sum::<usize>()..free {
        let short = counts.iter().filter(|(tenant, count)| **count < queues_of(**tenant));
        let due = |tenant: TenantId, count: usize| u64::from(weight(tenant).max(1)) * 1_000_000 / (count as u64 + 1);
        let Some(tenant) = short.max_by_key(|(tenant, count)| due(**tenant, **count)).map(|(tenant, _)| *tenant) else {
            break;
        };
        counts.entry(tenant).and_modify(|count| *count += 1);
    }
    let mut order: Vec<TenantId> = tenants.keys().copied().collect();
    order.sort_by_key(|tenant| (Reverse(tenants[tenant]), *tenant));
    for &tenant in &order {
        for _ in 0..counts[&tenant] {
            let load_on = |core: usize| of(tenant).filter(|load| load.core == core).map(|load| load.load).sum::<u32>();
            let free = (0..cores).filter(|&core| owner[core] == Owner::Free);
            if let Some(core) = free.max_by_key(|&core| (load_on(core), Reverse(core))) {
                owner[core] = Owner::Tenant(tenant);
            }
        }
    }
    let mut loads = vec![0_u32; cores];
    let mut moves = Vec::new();
    for &tenant in &order {
        let own: Vec<usize> = (0..cores).filter(|&core| owner[core] == Owner::Tenant(tenant)).collect();
        let part = tenants[&tenant].div_ceil(own.len().max(1) as u32);
        let (fixed, movable): (Vec<&QueueLoad>, Vec<&QueueLoad>) = of(tenant).partition(|load| load.is_fixed);
        for load in fixed.iter().filter(|load| load.core < cores) {
            loads[load.core] += load.load;
        }
        let (mut stay, mut go): (Vec<&QueueLoad>, Vec<&QueueLoad>) =
            movable.into_iter().partition(|load| own.contains(&load.core));
        stay.sort_by_key(|load| Reverse(load.load));
        for load in stay {
            // A queue on a core of its tenant's stays, unless there is too much.
            if loads[load.core] > 0 && loads[load.core] + load.load > part + part / 8 {
                go.push(load);
            } else {
                loads[load.core] += load.load;
            }
        }
        go.sort_by_key(|load| (Reverse(load.load), load.queue));
        for load in go {
            let Some(&to) = own.iter().min_by_key(|&&core| (loads[core], core)) else { continue };
            loads[to] += load.load;
            if to != load.core {
                moves.push(Move { queue: load.queue, to });
            }
        }
    }
    moves
}

/// Whether several tenants can have as many cores of their own as they need, beside those that fixed queues are on.
pub(super) fn fits(cores: usize, queues: &[QueueLoad], needs: &BTreeMap<TenantId, usize>) -> bool {
    let owner = owners(cores, queues);
    let mut movable = BTreeMap::<TenantId, usize>::new();
    for load in queues.iter().filter(|load| load.load > 0 && !load.is_fixed) {
        *movable.entry(load.queue.tenant).or_default() += 1;
    }
    let further = |(tenant, need): (&TenantId, &usize)| {
        let queues = movable.get(tenant).copied().unwrap_or(0);
        need.saturating_sub(count(&owner, Owner::Tenant(*tenant))).min(queues)
    };
    needs.len() > 1 && needs.iter().map(further).sum::<usize>() <= count(&owner, Owner::Free)
}

/// The cores that are their tenants' because of fixed queues.
fn owners(cores: usize, queues: &[QueueLoad]) -> Vec<Owner> {
    let mut owner = vec![Owner::Free; cores];
    for load in queues.iter().filter(|load| load.is_fixed && load.load > 0 && load.core < cores) {
        owner[load.core] = match owner[load.core] {
            Owner::Free => Owner::Tenant(load.queue.tenant),
            Owner::Tenant(tenant) if tenant == load.queue.tenant => Owner::Tenant(tenant),
            _ => Owner::Several,
        };
    }
    owner
}

fn count(owners: &[Owner], of: Owner) -> usize {
    owners.iter().filter(|owner| **owner == of).count()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Free,
    Tenant(TenantId),
    /// Fixed queues of several tenants.
    Several,
}
