//! Where requests of several tenants meet beyond the cores, numbered for the schedulers.
//!
//! A back end keeps its number for as long as a queue uses it. Then the number is used again: policies keep a place for
//! each number, and recordings know only so many.

use std::collections::HashMap;

use softdpu_sched::BackEnd;
use softdpu_storage::{Volume, VolumeKind};

use crate::queue::Role;

/// What servers work on at once for one connection: qemu-nbd and nbdkit 16 each, as they are shipped. More would wait
/// there, in one queue for all tenants.
const NBD_DEPTH: u32 = 16;

/// What is given at once to a disk that does not say how much it takes, or to a file system without one: what most of
/// the kernel's own queues have (BLKDEV_DEFAULT_RQ).
const DISK_DEPTH: u32 = 128;

/// What makes two volumes share a back end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BackEndKey {
    /// A disk of this machine, or a file system without one.
    Disk(u64),
    /// The server of a volume, taken to serve no other.
    Server(String),
}

struct BackEndEntry {
    index: u32,
    /// The least that any of its volumes asked for since it has queues.
    depth: u32,
    queues: usize,
}

/// The back ends that queues use.
#[derive(Default)]
pub(crate) struct BackEnds {
    entries: HashMap<BackEndKey, BackEndEntry>,
    free: Vec<u32>,
    numbers: u32,
}

impl BackEnds {
    /// A queue with this role begins: as [`enter`](Self::enter), with the first of its volumes.
    pub(crate) fn enter_first(&mut self, role: &Role, most: u32) -> Option<(BackEndKey, BackEnd)> {
        let (_, volume) = role.volumes().next()?;
        self.enter(volume, most)
    }

    /// A queue of that volume begins. None: its requests wait for nothing there, or no other device's requests come
    /// there. No more than `most` go to a disk of this machine at once.
    pub(crate) fn enter(&mut self, volume: &Volume, most: u32) -> Option<(BackEndKey, BackEnd)> {
        let spec = volume.spec();
        let (key, depth) = match spec.kind {
            // Answered at once.
            VolumeKind::Null { .. } | VolumeKind::Memory { .. } => return None,
            VolumeKind::File { .. } | VolumeKind::Device { .. } => {
                let disk = volume.disk()?;
                (BackEndKey::Disk(disk.number), spec.depth.or(disk.depth).unwrap_or(DISK_DEPTH).min(most))
            }
            // Another device's requests come only where it is shared.
            VolumeKind::Nbd { .. } if !spec.shared && spec.depth.is_none() => return None,
            VolumeKind::Nbd { .. } => (BackEndKey::Server(spec.name.clone()), spec.depth.unwrap_or(NBD_DEPTH)),
        };
        Some((key.clone(), self.number(key, depth.max(1))))
    }

    fn number(&mut self, key: BackEndKey, depth: u32) -> BackEnd {
        let BackEnds { entries, free, numbers } = self;
        let entry = entries.entry(key).or_insert_with(|| {
            let index = free.pop().unwrap_or_else(|| {
                *numbers += 1;
                *numbers - 1
            });
            BackEndEntry { index, depth, queues: 0 }
        });
        entry.queues += 1;
        entry.depth = entry.depth.min(depth);
        BackEnd { index: entry.index, depth: entry.depth }
    }

    /// A queue that used the back end has ended, and has no request there any more.
    pub(crate) fn leave(&mut self, key: &BackEndKey) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.queues -= 1;
        if entry.queues == 0 {
            self.free.push(entry.index);
            self.entries.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_another_back_ends_when_the_last_queue_has_left() {
        let mut back_ends = BackEnds::default();
        let server = |name: &str| BackEndKey::Server(name.to_owned());
        assert_eq!(back_ends.number(server("a"), 16).index, 0);
        assert_eq!(back_ends.number(server("a"), 16).index, 0);
        assert_eq!(back_ends.number(BackEndKey::Disk(7), 64).index, 1);
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
        let disk = BackEndKey::Disk(7);
        assert_eq!(back_ends.number(disk.clone(), 64).depth, 64);
        assert_eq!(back_ends.number(disk.clone(), 8).depth, 8);
        assert_eq!(back_ends.number(disk, 64).depth, 8);
    }
}
