//! Credits for what waits to be taken, shared by its senders: frames of ports for another core, flow records of
//! functions.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};

use softdpu_vpc::PortId;

/// Accounts of senders. Senders with identifiers that far apart share one.
const ACCOUNTS: usize = 4096;

/// The account of a sender, which is a port or a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CreditOwner(u16);

impl CreditOwner {
    /// Of a port.
    #[inline]
    pub(crate) fn of(PortId(port): PortId) -> CreditOwner {
        CreditOwner::numbered(port)
    }

    /// Of a sender with this identifier.
    #[inline]
    pub(crate) fn numbered(identifier: u32) -> CreditOwner {
        CreditOwner((identifier as usize % ACCOUNTS) as u16)
    }
}

/// A pool of credits.
///
/// A sender may hold as many as are left (dynamic thresholds, Choudhury and Hahne, IEEE/ACM ToN 1998, with α = 1): one
/// that floods holds half of the pool, two hold a third each in the long run, and the next sender finds some.
#[derive(Debug)]
pub(crate) struct CreditPool {
    capacity: usize,
    in_use: AtomicUsize,
    /// By account.
    held: Box<[AtomicU32]>,
}

impl CreditPool {
    /// A pool of `capacity` credits.
    pub(crate) fn new(capacity: usize) -> CreditPool {
        let held = (0..ACCOUNTS).map(|_| AtomicU32::new(0)).collect();
        CreditPool { capacity, in_use: AtomicUsize::new(0), held }
    }

    /// Credits that senders hold.
    pub(crate) fn in_use(&self) -> usize {
        self.in_use.load(Relaxed)
    }

    /// How many credits a sender may still take: so many that no fewer are left afterwards. Cores that ask at the same
    /// time may exceed the capacity by what each takes.
    pub(crate) fn available(&self, owner: CreditOwner) -> usize {
        let left = self.capacity.saturating_sub(self.in_use());
        left.saturating_sub(self.held[usize::from(owner.0)].load(Relaxed) as usize).div_ceil(2)
    }

    /// Takes up to `wanted` credits. Returns how many.
    pub(crate) fn take(&self, owner: CreditOwner, wanted: usize) -> usize {
        let taken = wanted.min(self.available(owner));
        self.charge(owner, taken);
        taken
    }

    /// Takes credits whether they are available or not.
    pub(crate) fn charge(&self, owner: CreditOwner, count: usize) {
        self.in_use.fetch_add(count, Relaxed);
        self.held[usize::from(owner.0)].fetch_add(count as u32, Relaxed);
    }

    /// Gives credits back.
    pub(crate) fn release(&self, owner: CreditOwner, count: usize) {
        self.in_use.fetch_sub(count, Relaxed);
        self.held[usize::from(owner.0)].fetch_sub(count as u32, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAPACITY: usize = 4096;

    /// Takes 64 at a time until a port gets no more. Returns what it holds.
    fn flood(pool: &CreditPool, owner: CreditOwner) -> usize {
        std::iter::from_fn(|| Some(pool.take(owner, 64)).filter(|taken| *taken > 0)).sum()
    }

    #[test]
    fn a_flood_leaves_credits_for_the_next_sender() {
        let pool = CreditPool::new(CAPACITY);
        let ports: Vec<CreditOwner> = (1..11).map(|port| CreditOwner::of(PortId(port))).collect();
        let first = flood(&pool, ports[0]);
        assert_eq!(first, CAPACITY / 2);
        for port in &ports[1..] {
            assert!(pool.take(*port, 1) == 1, "nothing is left with {} in use", pool.in_use());
            flood(&pool, *port);
        }
        assert!(pool.in_use() <= CAPACITY, "{}", pool.in_use());
    }

    #[test]
    fn what_is_given_back_may_be_taken_again() {
        let pool = CreditPool::new(CAPACITY);
        let (a, b) = (CreditOwner::of(PortId(1)), CreditOwner::of(PortId(2)));
        let taken = flood(&pool, a);
        assert_eq!(pool.take(b, 100), 100);
        pool.release(a, taken);
        pool.release(b, 100);
        assert_eq!(pool.in_use(), 0);
        assert_eq!(flood(&pool, a), taken);
    }

    #[test]
    fn ports_are_counted_apart() {
        assert_ne!(CreditOwner::of(PortId(7)), CreditOwner::of(PortId(8)));
        assert_eq!(CreditOwner::of(PortId(7)), CreditOwner::of(PortId(7 + ACCOUNTS as u32)));
    }
}
