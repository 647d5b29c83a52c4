//! Requests that a back end holds.

use softdpu_sched::{Cost, Grant, Nanos};

use crate::ids::QueueKey;

/// What is needed when a request comes back.
pub(crate) struct Flight {
    pub key: QueueKey,
    pub id: u16,
    pub descriptors: u16,
    /// Bytes of data that success writes to the guest.
    pub to_guest: u32,
    /// With what it was run.
    pub grant: Grant,
    /// When.
    pub since: Nanos,
    /// Bytes it moves.
    pub bytes: u64,
}

impl Flight {
    /// What it cost the back end if it ends now.
    #[inline]
    pub(crate) fn cost(&self, now: Nanos) -> Cost {
        Cost { units: 1, time: now.since(self.since), bytes: self.bytes, pending: 0 }
    }
}

/// A slab of flights; a token is the index. Grows to the most that was ever outstanding, then allocates no more.
#[derive(Default)]
pub(crate) struct Flights {
    slots: Vec<Option<Flight>>,
    free: Vec<u32>,
}

impl Flights {
    #[inline]
    pub(crate) fn insert(&mut self, flight: Flight) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        // In one place, so that it is written there and not first somewhere else.
        self.slots[index as usize] = Some(flight);
        u64::from(index)
    }

    /// One more slot.
    #[cold]
    fn grow(&mut self) -> u32 {
        self.slots.push(None);
        self.slots.len() as u32 - 1
    }

    #[inline]
    pub(crate) fn get(&self, token: u64) -> Option<&Flight> {
        self.slots.get(usize::try_from(token).ok()?)?.as_ref()
    }

    #[inline]
    pub(crate) fn remove(&mut self, token: u64) -> Option<Flight> {
        let flight = self.slots.get_mut(usize::try_from(token).ok()?)?.take()?;
        self.free.push(token as u32);
        Some(flight)
    }

    /// Whether a queue has requests here.
    pub(crate) fn any_of(&self, key: QueueKey) -> bool {
        self.slots.iter().flatten().any(|flight| flight.key == key)
    }

    /// The tokens of a queue's requests.
    pub(crate) fn of(&self, key: QueueKey) -> Vec<u64> {
        let of_queue = |(index, slot): (usize, &Option<Flight>)| {
            slot.as_ref().filter(|flight| flight.key == key).map(|_| index as u64)
        };
        self.slots.iter().enumerate().filter_map(of_queue).collect()
    }
}
