//! Which disk a file or block device is on, and how much that takes at once.

use std::path::Path;

use rustix::fs::{Dev, major, minor};

/// A disk of this machine. Volumes of the same one meet there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    /// The kernel's number of it, as stat(2) gives it: of the whole disk, for a partition. Of the file system, where
    /// that has no disk of its own (tmpfs, NFS, btrfs).
    pub number: u64,
    /// Requests that the kernel has at the disk at once (`queue/nr_requests`); none where it does not say.
    pub depth: Option<u32>,
}

impl Disk {
    /// The disk of that device number.
    pub(crate) fn of(number: Dev) -> Disk {
        Disk::listed(Path::new("/sys/dev/block"), number)
    }

    /// The same, by a folder that has what sysfs has.
    fn listed(folder: &Path, number: Dev) -> Disk {
        let entry = folder.join(format!("{}:{}", major(number), minor(number)));
        let unlisted = Disk { number, depth: None };
        // The folder of a partition is within that of its disk.
        let Ok(entry) = entry.canonicalize() else { return unlisted };
        let whole = match entry.parent() {
            Some(disk) if entry.join("partition").exists() => disk,
            _ => &entry,
        };
        let text = |name: &str| std::fs::read_to_string(whole.join(name)).ok();
        let Some(whole_number) = text("dev").and_then(|text| parsed(text.trim())) else { return unlisted };
        let depth = text("queue/nr_requests").and_then(|text| text.trim().parse().ok()).filter(|depth| *depth > 0);
        Disk { number: whole_number, depth }
    }
}

/// The number that is written `MAJOR:MINOR`.
fn parsed(text: &str) -> Option<Dev> {
    let (major, minor) = text.split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::fs::{create_dir_all, write};
    use std::os::unix::fs::symlink;

    use rustix::fs::makedev;

    use super::*;

    #[test]
    fn a_partition_is_on_its_disk_and_the_disk_tells_its_depth() {
        let root = tempfile::tempdir().unwrap();
        let (disk, list) = (root.path().join("devices/sda"), root.path().join("list"));
        for folder in [&disk.join("queue"), &disk.join("sda2"), &list] {
            create_dir_all(folder).unwrap();
        }
        write(disk.join("dev"), "8:0\n").unwrap();
        write(disk.join("queue/nr_requests"), "64\n").unwrap();
        write(disk.join("sda2/dev"), "8:2\n").unwrap();
        write(disk.join("sda2/partition"), "2\n").unwrap();
        symlink(&disk, list.join("8:0")).unwrap();
        symlink(disk.join("sda2"), list.join("8:2")).unwrap();
        let known = Disk { number: makedev(8, 0), depth: Some(64) };
        assert_eq!(Disk::listed(&list, makedev(8, 0)), known);
        assert_eq!(Disk::listed(&list, makedev(8, 2)), known);
        let tmpfs = makedev(0, 27);
        assert_eq!(Disk::listed(&list, tmpfs), Disk { number: tmpfs, depth: None });
    }
}
