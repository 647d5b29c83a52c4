//! Which file systems memory may come from.
//!
//! A touch of a mapped page that is not there waits for the file system, and a core waits with it. What serves it
//! decides how long that takes: a program of the front end's (FUSE), a server somewhere (NFS, CIFS, 9p,
//! Ceph), or the kernel with this machine's memory and disks. Only the last are taken. What is stacked on another
//! (overlayfs) is refused with the rest, as it says nothing about what is below.

use std::os::fd::BorrowedFd;

use crate::MapError;

/// `f_type` of hugetlbfs (linux/magic.h, as the others).
const HUGETLBFS: u64 = 0x958458f6;

/// In the kernel's hands alone. A memfd is on tmpfs or hugetlbfs; so is, by its number, a device node on devtmpfs.
const LOCAL: [u64; 9] = [
    0x01021994, // tmpfs
    HUGETLBFS, 0x858458f6, // ramfs
    0xef53,     // ext2, ext3, ext4
    0x58465342, // xfs
    0x9123683e, // btrfs
    0xf2f52010, // f2fs
    0xca451a4e, // bcachefs
    0x2fc12fc1, // zfs
];

/// Refused ones that have a name, for the message.
const NAMED: [(u64, &str); 10] = [
    (0x65735546, "FUSE"),
    (0x6969, "NFS"),
    (0xff534d42, "CIFS"),
    (0xfe534d42, "SMB"),
    (0x01021997, "9p"),
    (0x00c36400, "Ceph"),
    (0x794c7630, "overlayfs"),
    (0x9fa0, "procfs"),
    (0x62656572, "sysfs"),
    (0x5345434d, "secretmem"),
];

/// Descriptors of no file, told apart by their pseudo file systems.
const NO_FILE: [(u64, &str); 3] =
    [(0x534f434b, "socket"), (0x50495045, "pipe"), (0x09041934, "an anonymous inode such as an eventfd")];

/// The page size of a file that memory may come from, bytes.
///
/// Asked before anything else of the file: most file systems answer it without asking what serves them.
pub(crate) fn page_size(fd: BorrowedFd<'_>, base: u64) -> Result<u64, MapError> {
    let system = rustix::fs::fstatfs(fd).map_err(|source| MapError::Os { call: "fstatfs", source })?;
    // The field's type has a sign on some machines; the numbers have 32 bits.
    let kind = system.f_type as u64 & u64::from(u32::MAX);
    let name_in = |names: &[(u64, &'static str)]| names.iter().find(|(other, _)| *other == kind).map(|(_, name)| *name);
    if let Some(name) = name_in(&NO_FILE) {
        return Err(MapError::NotMemory(name));
    }
    if !LOCAL.contains(&kind) {
        return Err(MapError::FileSystem { kind, name: name_in(&NAMED).unwrap_or("not one that is known here") });
    }
    Ok(if kind == HUGETLBFS { system.f_bsize as u64 } else { base })
}
