//! What queues of both formats keep, and what they do alike with it.

use std::sync::Arc;

use softdpu_memory::View;

use crate::chain::Limits;
use crate::positions::InOrder;
use crate::{Position, QueueConfig, QueueError, RingAddresses, Sink, Used};

/// How a queue starts.
#[derive(Clone, Copy)]
pub(crate) struct Start<'a> {
    pub view: &'a Arc<View>,
    pub config: QueueConfig,
    pub addresses: RingAddresses,
    pub position: Position,
}

/// The part of a queue that does not depend on where its driver keeps what.
pub(crate) struct Common {
    pub view: Arc<View>,
    pub config: QueueConfig,
    pub addresses: RingAddresses,
    pub limits: Limits,
    /// Slots of the chain with that id; 0: not in flight.
    pub flight: Box<[u16]>,
    pub in_flight: u16,
    pub in_order: Option<InOrder>,
    /// The driver does not know yet what it missed.
    pub notify_anyway: bool,
    /// The driver uses indirect tables.
    pub has_tables: bool,
    pub broken: bool,
}

impl Common {
    /// Of a queue with nothing in flight.
    pub fn new(view: &Arc<View>, config: QueueConfig, addresses: RingAddresses) -> Result<Self, QueueError> {
        config.check()?;
        Ok(Common {
            view: view.replica(),
            config,
            addresses,
            limits: Limits { format: config.format, max_pieces: config.max_pieces, indirect: config.indirect },
            flight: vec![0; config.size.into()].into(),
            in_flight: 0,
            in_order: None,
            notify_anyway: true,
            has_tables: false,
            broken: false,
        })
    }

    /// # Errors
    /// [`QueueError::Broken`] where it is.
    #[inline(always)]
    pub fn usable(&self) -> Result<(), QueueError> {
        if self.broken { Err(QueueError::Broken) } else { Ok(()) }
    }

    /// It is broken from now on where that went wrong.
    #[inline(always)]
    pub fn or_break<T>(&mut self, result: Result<T, QueueError>) -> Result<T, QueueError> {
        self.broken |= result.is_err();
        result
    }

    /// Goes on with another view, in which `find` finds the parts of the ring.
    ///
    /// # Errors
    /// One is not there. The queue is broken then.
    pub fn remap<P>(
        &mut self,
        view: &Arc<View>,
        find: impl FnOnce(&Arc<View>, &RingAddresses, &QueueConfig) -> Result<P, QueueError>,
    ) -> Result<P, QueueError> {
        let view = view.replica();
        let found = find(&view, &self.addresses, &self.config);
        let parts = self.or_break(found)?;
        self.view = view;
        Ok(parts)
    }

    /// Takes back what was taken into `out` from `start` on, none of which is recorded yet. The queue is broken.
    #[cold]
    pub fn take_back(&mut self, out: &mut impl Sink, start: usize) {
        for chain in &out[start..] {
            self.flight[usize::from(chain.id)] = 0;
        }
        self.abandon(out, start);
    }

    /// Gives up what was appended to `out` from `start` on. The queue is broken.
    #[cold]
    pub fn abandon(&mut self, out: &mut impl Sink, start: usize) {
        out.cut(start);
        self.broken = true;
    }

    /// Takes a chain off those in flight. It was taken from `slot`, by the count of a queue that completes in order.
    ///
    /// # Errors
    /// [`QueueError::OutOfOrder`] where such a queue has another there, [`QueueError::NotInFlight`].
    #[inline(always)]
    pub fn take_off(&mut self, slot: u16, used: &Used) -> Result<(), QueueError> {
        if let Some(in_order) = &self.in_order {
            in_order.check(slot, used.id)?;
        }
        match self.flight.get_mut(usize::from(used.id)) {
            Some(slots) if *slots != 0 && *slots == used.descriptors => {
                *slots = 0;
                Ok(())
            }
            _ => Err(QueueError::NotInFlight { id: used.id, descriptors: used.descriptors }),
        }
    }

    /// Nothing is in flight any more of a queue that completes in order.
    ///
    /// # Errors
    /// [`QueueError::NotInOrder`] for any other.
    pub fn rewind(&mut self) -> Result<(), QueueError> {
        if self.in_order.is_none() {
            return Err(QueueError::NotInOrder);
        }
        self.flight.fill(0);
        self.in_flight = 0;
        Ok(())
    }
}
