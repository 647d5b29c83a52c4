//! What a volume is to be, as plain data.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A volume as configured. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpec {
    /// Unique on a node.
    pub name: String,
    /// Where its bytes are.
    pub kind: Kind,
    /// Refuse everything that would change it.
    #[serde(default)]
    pub read_only: bool,
    /// Logical block size a guest is told: a power of two, 512 to 65536.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// Every write is on stable storage before it completes.
    #[serde(default)]
    pub write_through: bool,
    /// Several processes may write it at once (a cluster file system in the guests); the fence then keeps out only those
    /// who want it alone.
    #[serde(default)]
    pub shared: bool,
}

fn default_block_size() -> u32 {
    512
}

/// Where a volume's bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Nowhere: writes succeed, reads leave the guest's buffer as it is. For measurements.
    Null {
        /// Size, bytes.
        size: u64,
    },
    /// In memory that the supervisor keeps: gone when softdpu stops, there after a restart of the data plane.
    Memory {
        /// Size, bytes.
        size: u64,
    },
    /// In a file.
    File {
        /// Which.
        path: PathBuf,
        /// Its size when it is created; checked when it is there.
        #[serde(default)]
        size: Option<u64>,
        /// Make it, sparse, if it is not there. Needs `size`.
        #[serde(default)]
        create: bool,
        /// Around the page cache (O_DIRECT).
        #[serde(default)]
        direct: bool,
        /// Whether discards punch holes.
        #[serde(default = "yes")]
        discard: bool,
    },
    /// On a block device of the host.
    Device {
        /// Which.
        path: PathBuf,
        /// Around the page cache (O_DIRECT).
        #[serde(default = "yes")]
        direct: bool,
    },
    /// At an NBD server: `nbd://host[:port]/export` or `nbd+unix:///export?socket=path`.
    Nbd {
        /// Where.
        uri: String,
        /// How long the server may take for an answer before its connection counts as hung and is given up.
        #[serde(default = "nbd_timeout")]
        answer: Duration,
        /// How long a request waits for its answer, reconnections included, before its guest sees an error.
        #[serde(default = "nbd_timeout")]
        timeout: Duration,
        /// The longest pause between two attempts to reconnect.
        #[serde(default = "nbd_reconnect")]
        reconnect: Duration,
    },
}

fn yes() -> bool {
    true
}

fn nbd_timeout() -> Duration {
    Duration::from_secs(30)
}

fn nbd_reconnect() -> Duration {
    Duration::from_secs(2)
}

impl Kind {
    /// The word for it in configuration and status.
    pub fn word(&self) -> &'static str {
        match self {
            Kind::Null { .. } => "null",
            Kind::Memory { .. } => "memory",
            Kind::File { .. } => "file",
            Kind::Device { .. } => "device",
            Kind::Nbd { .. } => "nbd",
        }
    }
}

impl VolumeSpec {
    /// A volume of that kind with every other setting at its default.
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        VolumeSpec {
            name: name.into(),
            kind,
            read_only: false,
            block_size: default_block_size(),
            write_through: false,
            shared: false,
        }
    }

    /// What is wrong with it, if anything; every reason says what would be right.
    pub fn problem(&self) -> Option<String> {
        if self.name.is_empty() || self.name.contains(['/', '\0']) {
            return Some(format!("the name {:?} is empty or has a '/' in it", self.name));
        }
        let block = self.block_size;
        if !block.is_power_of_two() || !(512..=65536).contains(&block) {
            return Some(format!("block size {block} is not a power of two from 512 to 65536"));
        }
        let size = match &self.kind {
            Kind::Null { size } | Kind::Memory { size } => Some(*size),
            Kind::File { size, create, .. } => {
                if *create && size.is_none() {
                    return Some("a file that is to be created needs a size".into());
                }
                if *create && self.read_only {
                    return Some("a read-only volume is not created: drop one of read_only and create".into());
                }
                *size
            }
            Kind::Device { .. } | Kind::Nbd { .. } => None,
        };
        size.and_then(|size| self.size_problem(size))
    }

    pub(crate) fn size_problem(&self, size: u64) -> Option<String> {
        if size == 0 || !size.is_multiple_of(u64::from(self.block_size)) {
            return Some(format!("size {size} is not a multiple of the block size {}, or zero", self.block_size));
        }
        // Offsets are loff_t in the kernel.
        (size > i64::MAX as u64).then(|| format!("size {size} is beyond what a file can have"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specification_survives_json() {
        let kinds = [
            Kind::Null { size: 4096 },
            Kind::Memory { size: 4096 },
            Kind::File { path: "a.img".into(), size: Some(4096), create: true, direct: false, discard: true },
            Kind::Device { path: "/dev/sdz".into(), direct: true },
            Kind::Nbd {
                uri: "nbd://h/e".into(),
                answer: nbd_timeout(),
                timeout: nbd_timeout(),
                reconnect: nbd_reconnect(),
            },
        ];
        for kind in kinds {
            let spec = VolumeSpec::new("v", kind);
            let json = serde_json::to_string(&spec).unwrap();
            assert_eq!(serde_json::from_str::<VolumeSpec>(&json).unwrap(), spec);
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        let null = |size| VolumeSpec::new("v", Kind::Null { size });
        assert!(null(0).problem().unwrap().contains("multiple"));
        assert!(null(513).problem().unwrap().contains("multiple"));
        assert!(VolumeSpec { block_size: 520, ..null(5200) }.problem().unwrap().contains("power of two"));
        assert!(VolumeSpec { name: "a/b".into(), ..null(512) }.problem().unwrap().contains("name"));
        let file = Kind::File { path: "x".into(), size: None, create: true, direct: false, discard: true };
        assert!(VolumeSpec::new("v", file).problem().unwrap().contains("needs a size"));
        assert_eq!(null(512).problem(), None);
    }
}
