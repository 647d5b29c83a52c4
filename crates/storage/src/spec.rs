//! What a volume is to be, as plain data.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use softdpu_nbd::NbdUri;

/// A volume as configured. Sizes in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeSpec {
    /// Unique on a node.
    pub name: String,
    /// Where its bytes are.
    pub kind: VolumeKind,
    /// Refuse everything that would change it.
    #[serde(default)]
    pub read_only: bool,
    /// Logical block size in the configuration space: a power of two, 512 to 65536.
    #[serde(default = "default_block_size")]
    pub block_size: u32,
    /// Every write is on stable storage before it completes.
    #[serde(default)]
    pub write_through: bool,
    /// Several processes may write it at once (a cluster file system in the guests); the fence then keeps out only
    /// those that want it alone.
    #[serde(default)]
    pub shared: bool,
    /// Requests that its back end is to have at once from a core, of all tenants with volumes there; at least 1.
    /// None: what is usual for that back end. It bounds nothing here: the scheduler keeps to it.
    #[serde(default)]
    pub depth: Option<u32>,
    /// Encrypt what the back end gets.
    #[serde(default)]
    pub encryption: Option<Encryption>,
}

/// How a volume is encrypted: AES-XTS over sectors, numbered as dm-crypt's `plain64` numbers them. Never has the key
/// itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Encryption {
    /// Where the key is: 32 bytes (AES-128) or 64 (AES-256).
    pub key: KeySource,
    /// Bytes that are encrypted as one: 512 or 4096, at most the volume's block size.
    pub sector_size: u32,
    /// Whether discards are passed on to the back end: it then knows which sectors are in use, and they read as noise.
    #[serde(default)]
    pub discard: bool,
}

impl Encryption {
    /// Its name, as dm-crypt and cryptsetup say it.
    pub const CIPHER: &str = "aes-xts-plain64";
}

/// Where a key is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeySource {
    /// The bytes of this file.
    File(PathBuf),
    /// The kernel's key of type `user` of that name (keyrings(7)).
    Keyring(String),
}

fn default_block_size() -> u32 {
    512
}

/// Where a volume's bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeKind {
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
        /// The export's.
        uri: NbdUri,
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

impl VolumeKind {
    /// The word for it in configuration and status.
    pub fn word(&self) -> &'static str {
        match self {
            VolumeKind::Null { .. } => "null",
            VolumeKind::Memory { .. } => "memory",
            VolumeKind::File { .. } => "file",
            VolumeKind::Device { .. } => "device",
            VolumeKind::Nbd { .. } => "nbd",
        }
    }
}

impl VolumeSpec {
    /// A volume of that kind with every other setting at its default.
    pub fn new(name: impl Into<String>, kind: VolumeKind) -> Self {
        VolumeSpec {
            name: name.into(),
            kind,
            read_only: false,
            block_size: default_block_size(),
            write_through: false,
            shared: false,
            depth: None,
            encryption: None,
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
        if let Some(problem) = self.encryption.as_ref().and_then(|encryption| self.encryption_problem(encryption)) {
            return Some(problem);
        }
        let size = match &self.kind {
            VolumeKind::Null { size } | VolumeKind::Memory { size } => Some(*size),
            VolumeKind::File { size, create, .. } => {
                if *create && size.is_none() {
                    return Some("a file that is to be created needs a size".into());
                }
                if *create && self.read_only {
                    return Some("a read-only volume is not created: drop one of read_only and create".into());
                }
                *size
            }
            VolumeKind::Device { .. } | VolumeKind::Nbd { .. } => None,
        };
        size.and_then(|size| self.size_problem(size))
    }

    fn encryption_problem(&self, encryption: &Encryption) -> Option<String> {
        let (sector, block) = (encryption.sector_size, self.block_size);
        if !matches!(sector, 512 | 4096) {
            return Some(format!("encrypted sectors of {sector} bytes: 512 and 4096 are possible"));
        }
        if block < sector {
            return Some(format!(
                "its blocks of {block} bytes are smaller than its encrypted sectors of {sector}: a guest could write a part of \
                 a sector; make the block size {sector} or the sectors {block}"
            ));
        }
        matches!(self.kind, VolumeKind::Null { .. })
            .then(|| "a null volume keeps nothing that could be encrypted".into())
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
            VolumeKind::Null { size: 4096 },
            VolumeKind::Memory { size: 4096 },
            VolumeKind::File { path: "a.img".into(), size: Some(4096), create: true, direct: false, discard: true },
            VolumeKind::Device { path: "/dev/sdz".into(), direct: true },
            VolumeKind::Nbd {
                uri: "nbd://h/e".parse().unwrap(),
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
        let null = |size| VolumeSpec::new("v", VolumeKind::Null { size });
        assert!(null(0).problem().unwrap().contains("multiple"));
        assert!(null(513).problem().unwrap().contains("multiple"));
        assert!(VolumeSpec { block_size: 520, ..null(5200) }.problem().unwrap().contains("power of two"));
        assert!(VolumeSpec { name: "a/b".into(), ..null(512) }.problem().unwrap().contains("name"));
        let file = VolumeKind::File { path: "x".into(), size: None, create: true, direct: false, discard: true };
        assert!(VolumeSpec::new("v", file).problem().unwrap().contains("needs a size"));
        assert_eq!(null(512).problem(), None);
    }

    #[test]
    fn encryption_that_cannot_be_is_named() {
        let encryption =
            |sector_size| Some(Encryption { key: KeySource::Keyring("softdpu:v".into()), sector_size, discard: false });
        let memory = VolumeSpec::new("v", VolumeKind::Memory { size: 8192 });
        let of = |sector_size| VolumeSpec { encryption: encryption(sector_size), ..memory.clone() };
        assert!(of(1024).problem().unwrap().contains("512 and 4096"));
        assert!(of(4096).problem().unwrap().contains("make the block size 4096 or the sectors 512"));
        assert_eq!(VolumeSpec { block_size: 4096, ..of(4096) }.problem(), None);
        assert_eq!(VolumeSpec { block_size: 4096, ..of(512) }.problem(), None);
        let null = VolumeSpec { kind: VolumeKind::Null { size: 8192 }, ..of(512) };
        assert!(null.problem().unwrap().contains("keeps nothing"));
    }
}
