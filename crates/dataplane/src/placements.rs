//! On which CPU each queue is served: the data plane's cores, and the queues that an operator has put on one of them.

use std::collections::HashMap;

use softdpu_api::QueuePlacement;
use softdpu_engine::CoreIndex;

/// The data plane's CPUs, and which of them serves the queues that were moved.
pub(super) struct Placements {
    /// By core.
    cpus: Vec<u32>,
    /// The CPU of a queue that was moved, by its device and number.
    moved: HashMap<(String, u16), u32>,
}

impl Placements {
    /// Cores on `cpus`, in that order.
    pub(super) fn new(cpus: &[u32], moved: Vec<QueuePlacement>) -> Placements {
        let moved = moved.into_iter().map(|placement| ((placement.device, placement.queue), placement.core)).collect();
        Placements { cpus: cpus.to_vec(), moved }
    }

    /// Other CPUs, by core. Queues that were moved to one that is not among them go where there is room.
    pub(super) fn scale(&mut self, cpus: Vec<u32>) {
        self.moved.retain(|_, cpu| cpus.contains(cpu));
        self.cpus = cpus;
    }

    /// The CPUs, in the order of their cores.
    pub(super) fn cpus(&self) -> &[u32] {
        &self.cpus
    }

    /// The core on a CPU, if it is one of the data plane's.
    pub(super) fn core(&self, cpu: u32) -> Option<CoreIndex> {
        self.cpus.iter().position(|known| *known == cpu).map(CoreIndex)
    }

    /// The CPU that a queue was moved to, if it was.
    pub(super) fn moved(&self, device: &str, queue: u16) -> Option<u32> {
        self.moved.get(&(device.to_owned(), queue)).copied()
    }

    /// A queue was moved to a CPU: it starts there from now on.
    pub(super) fn record(&mut self, QueuePlacement { device, queue, core }: QueuePlacement) {
        self.moved.insert((device, queue), core);
    }

    /// Forgets where the queues of a device were moved to.
    pub(super) fn forget(&mut self, device: &str) {
        self.moved.retain(|(name, _), _| name != device);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moved_queue_stays_where_it_was_moved_until_its_device_goes() {
        let to = |queue, core| QueuePlacement { device: "a".to_owned(), queue, core };
        let mut placements = Placements::new(&[2, 5], vec![to(0, 5)]);
        placements.record(to(1, 2));
        assert_eq!((placements.core(5), placements.core(3)), (Some(CoreIndex(1)), None));
        assert_eq!((placements.moved("a", 0), placements.moved("a", 1)), (Some(5), Some(2)));
        assert_eq!((placements.moved("a", 2), placements.moved("b", 0)), (None, None));
        placements.scale(vec![7, 2]);
        assert_eq!((placements.core(7), placements.core(5)), (Some(CoreIndex(0)), None));
        assert_eq!((placements.moved("a", 0), placements.moved("a", 1)), (None, Some(2)));
        placements.forget("a");
        assert_eq!(placements.moved("a", 1), None);
    }
}
