//! Where requests of several tenants meet beyond the cores, numbered for the schedulers.
//!
//! A number is a back end's for as long as a queue goes on to it, and then another's: policies keep a place for each
//! number, and recordings know only so many.

use std::collections::HashMap;

use softdpu_sched::BackEnd;
use softdpu_storage::{Volume, VolumeKind};

/// What servers work on at once for one connection: qemu-nbd and nbdkit 16 each, as they are shipped. More would wait
/// there, where nobody tells tenants apart.
const NBD_DEPTH: u32 = 16;

/// What is given at once to a disk that does not say how much it takes, or to a file system without one: what most of
/// the kernel's own queues have (BLKDEV_DEFAULT_RQ).
const DISK_DEPTH: u32 = 128;

/// Which back end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// A disk of this machine, or a file system without one.
    Disk(u64),
    /// A volume that has its server to itself, as far as is known here.
    Server(String),
}

struct Known {
    index: u32,
    /// The least that any of its volumes asked for since a queue has been here.
    depth: u32,
    queues: usize,
}

/// The back ends that queues go on to.
#[derive(Default)]
pub(crate) struct BackEnds {
    known: HashMap<Place, Known>,
    free: Vec<u32>,
    numbers: u32,
}

impl BackEnds {
    /// A queue of that volume begins. None: nobody is waited for there, or nobody else's requests come there. No more
    /// than `most` go to a disk of this machine at once.
    pub(crate) fn enter(&mut self, volume: &Volume, most: u32) -> Option<(Place, BackEnd)> {
        let spec = volume.spec();
        let (place, depth) = match spec.kind {
            // Answered at once.
            VolumeKind::Null { .. } | VolumeKind::Memory { .. } => return None,
            VolumeKind::File { .. } | VolumeKind::Device { .. } => {
                let disk = volume.disk()?;
                (Place::Disk(disk.number), spec.depth.or(disk.depth).unwrap_or(DISK_DEPTH).min(most))
            }
            // Another device's requests come only where it is shared.
            VolumeKind::Nbd { .. } if !spec.shared && spec.depth.is_none() => return None,
            VolumeKind::Nbd { .. } => (Place::Server(spec.name.clone()), spec.depth.unwrap_or(NBD_DEPTH)),
        };
        Some((place.clone(), self.number(place, depth.max(1))))
    }

    fn number(&mut self, place: Place, depth: u32) -> BackEnd {
        let BackEnds { known, free, numbers } = self;
        let known = known.entry(place).or_insert_with(|| {
            let index = free.pop().unwrap_or_else(|| {
                *numbers += 1;
                *numbers - 1
            });
            Known { index, depth, queues: 0 }
        });
        known.queues += 1;
        known.depth = known.depth.min(depth);
        BackEnd { index: known.index, depth: known.depth }
    }

    /// A queue has ended that went on to there, and has nothing there any more.
    pub(crate) fn leave(&mut self, place: &Place) {
        let Some(known) = self.known.get_mut(place) else { return };
        known.queues -= 1;
        if known.queues == 0 {
            self.free.push(known.index);
            self.known.remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_another_back_ends_when_the_last_queue_has_left() {
        let mut back_ends = BackEnds::default();
        let server = |name: &str| Place::Server(name.to_owned());
        assert_eq!(back_ends.number(server("a"), 16).index, 0);
        assert_eq!(back_ends.number(server("a"), 16).index, 0);
        assert_eq!(back_ends.number(Place::Disk(7), 64).index, 1);
        back_ends.leave(&server("a"));
        assert_eq!(back_ends.number(server("b"), 16).index, 2, "the first still has a queue");
        back_ends.leave(&server("a"));
        // However many come and go one after the other.
        for name in ["c", "d", "e"] {
            assert_eq!(back_ends.number(server(name), 16).index, 0, "{name}");
            back_ends.leave(&server(name));
        }
    }

    #[test]
    fn of_volumes_on_one_disk_the_least_depth_counts() {
        let mut back_ends = BackEnds::default();
        let disk = Place::Disk(7);
        assert_eq!(back_ends.number(disk.clone(), 64).depth, 64);
        assert_eq!(back_ends.number(disk.clone(), 8).depth, 8);
        assert_eq!(back_ends.number(disk, 64).depth, 8);
    }
}
