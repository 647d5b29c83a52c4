//! A disk that is slow for some processes: a limit of the kernel's on a cgroup that only they are in.
//!
//! It takes root, and a disk under the file system (a tmpfs has none). Version 1's blkio controller and version 2's io
//! controller will do.

use std::io::Error;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

const V1: &str = "/sys/fs/cgroup/blkio";
/// Where version 2 is mounted alone; beside version 1 it has no controllers of its own.
const V2: &str = "/sys/fs/cgroup";

/// A cgroup of slow readers and writers.
pub struct SlowDisk {
    group: PathBuf,
    /// `MAJOR:MINOR` of the whole disk: parts of disks have no limits.
    disk: String,
    version: u8,
}

impl SlowDisk {
    /// Limits reads and writes of the disk that holds `path` to `rate` bytes a second each.
    ///
    /// # Errors
    /// What is missing, in words: fit for a [`skip`](crate::skip).
    pub fn new(path: &Path, rate: u64) -> Result<SlowDisk, Error> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let disk = disk_of(path)?;
        let name = format!("softdpu-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed));
        let version = if Path::new(V1).join("cgroup.procs").exists() { 1 } else { 2 };
        let group = Path::new(if version == 1 { V1 } else { V2 }).join(name);
        if version == 2 {
            context("giving cgroups the io controller", std::fs::write(format!("{V2}/cgroup.subtree_control"), "+io"))?;
        }
        context("making a cgroup", std::fs::create_dir(&group))?;
        let slow = SlowDisk { group, disk, version };
        context(&format!("limiting disk {}", slow.disk), slow.limit(Some(rate)))?;
        Ok(slow)
    }

    /// Sets another limit, bytes a second; none lifts it, also for what is held up already.
    ///
    /// # Errors
    /// The kernel's.
    pub fn limit(&self, rate: Option<u64>) -> Result<(), Error> {
        let disk = &self.disk;
        if self.version == 2 {
            let rate = rate.map_or("max".to_owned(), |rate| rate.to_string());
            return std::fs::write(self.group.join("io.max"), format!("{disk} rbps={rate} wbps={rate}"));
        }
        ["read", "write"].iter().try_for_each(|direction| {
            let file = self.group.join(format!("blkio.throttle.{direction}_bps_device"));
            std::fs::write(file, format!("{disk} {}", rate.unwrap_or(0)))
        })
    }

    /// Takes a member out: what it begins from here on is not limited; what it has begun is.
    ///
    /// # Errors
    /// The kernel's.
    pub fn release(&self, member: u32) -> Result<(), Error> {
        std::fs::write(self.root(), member.to_string())
    }

    /// The members of the root cgroup.
    fn root(&self) -> PathBuf {
        Path::new(if self.version == 1 { V1 } else { V2 }).join("cgroup.procs")
    }

    /// The file that takes the process ids of members.
    pub fn members(&self) -> PathBuf {
        self.group.join("cgroup.procs")
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        let _ = self.limit(None);
        // Members that live on go back to the root cgroup.
        for member in std::fs::read_to_string(self.members()).unwrap_or_default().lines() {
            let _ = std::fs::write(self.root(), member);
        }
        let _ = std::fs::remove_dir(&self.group);
    }
}

fn disk_of(path: &Path) -> Result<String, Error> {
    let device = context(&format!("looking at {}", path.display()), std::fs::metadata(path))?.dev();
    let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
    let entry = PathBuf::from(format!("/sys/dev/block/{number}"));
    let entry = context(&format!("finding the disk of {}", path.display()), entry.canonicalize())?;
    match entry.parent().filter(|_| entry.join("partition").exists()) {
        Some(whole) => Ok(std::fs::read_to_string(whole.join("dev"))?.trim().to_owned()),
        None => Ok(number),
    }
}

fn context<T>(what: &str, result: Result<T, Error>) -> Result<T, Error> {
    result.map_err(|error| Error::new(error.kind(), format!("{what}: {error}")))
}
