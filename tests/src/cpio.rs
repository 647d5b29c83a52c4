//! Writes the "newc" cpio archives that the kernel unpacks into its initial root file system.
//!
//! Several archives may follow each other in one initrd, each starting at a multiple of four bytes
//! (Documentation/driver-api/early-userspace/buffer-format.rst): this is how a job reaches a guest without rebuilding
//! anything.

/// Mode bits of a directory and of an executable file (cpio(5), "Portable ASCII Format").
const DIRECTORY: u32 = 0o040_755;
const FILE: u32 = 0o100_755;

/// An archive in the making.
#[derive(Default)]
pub struct Archive {
    bytes: Vec<u8>,
    entries: u32,
}

impl Archive {
    /// An empty archive.
    pub fn new() -> Archive {
        Archive::default()
    }

    /// Adds a directory.
    pub fn directory(mut self, name: &str) -> Archive {
        self.entry(name, DIRECTORY, &[]);
        self
    }

    /// Adds a file.
    pub fn file(mut self, name: &str, content: &[u8]) -> Archive {
        self.entry(name, FILE, content);
        self
    }

    /// The finished archive, padded to a multiple of four bytes.
    pub fn finish(mut self) -> Vec<u8> {
        self.entry("TRAILER!!!", 0, &[]);
        self.bytes
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let links = 1;
        let length = u32::try_from(content.len()).expect("a job's file is small");
        let name_size = u32::try_from(name.len() + 1).expect("a job's name is short");
        // Magic, then thirteen numbers of eight hexadecimal digits: inode, mode, uid, gid, links, mtime, size, four
        // device numbers, the name's size with its NUL, and a checksum that "newc" leaves zero.
        self.bytes.extend_from_slice(b"070701");
        for number in [self.entries, mode, 0, 0, links, 0, length, 0, 0, 0, 0, name_size, 0] {
            self.bytes.extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn another_cpio_reads_the_archive_back() {
        let folder = tempfile::tempdir().unwrap();
        let archive = Archive::new().directory("softdpu").file("softdpu/job", b"echo hello\n").finish();
        assert_eq!(archive.len() % 4, 0);
        let mut reader = Command::new("busybox")
            .args(["cpio", "-i", "-d"])
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("busybox is one of the programs that lab/setup.sh installs");
        reader.stdin.take().unwrap().write_all(&archive).unwrap();
        assert!(reader.wait().unwrap().success());
        assert_eq!(std::fs::read(folder.path().join("softdpu/job")).unwrap(), b"echo hello\n");
    }
}
