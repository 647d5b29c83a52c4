//! Two containers, each behind a TAP of one softdpu: network namespaces `a` and `b` with the interfaces `sda` and
//! `sdb`.

use std::path::{Path, PathBuf};

use crate::netns::{Namespace, run};
use crate::{Context, Daemon, Failure, Lab};

/// The containers, and the daemon whose ports are called after them. Gone when dropped.
pub struct Containers {
    /// Where the daemon and the test have their files.
    pub folder: PathBuf,
    /// The daemon; it runs where `a` is.
    pub daemon: Daemon,
    /// The container with `sda`.
    pub a: Namespace,
    /// The container with `sdb`.
    pub b: Namespace,
}

impl Containers {
    /// A daemon with a site file that has TAPs `sda` and `sdb`, each of which is given its `address` (with a prefix
    /// length). Nothing goes over them but what the test sends: they have no IPv6.
    ///
    /// # Errors
    /// What a program said.
    pub fn start(lab: &Lab, test: &str, site: &str, addresses: [&str; 2]) -> Result<Containers, Failure> {
        let (a, b) = (Namespace::new(test, "a")?, Namespace::new(test, "b")?);
        let daemon = Daemon::start_in(&a.name, lab.path(), site)?;
        a.ip(&["link", "set", "sdb", "netns", &b.name])?;
        for (host, interface, address) in [(&a, "sda", addresses[0]), (&b, "sdb", addresses[1])] {
            let quiet = format!("echo 1 >/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
            host.exec(&["sh", "-c", &quiet])?;
            host.ip(&["link", "set", interface, "up"])?;
            host.ip(&["addr", "add", address, "dev", interface])?;
        }
        Ok(Containers { folder: lab.path().to_owned(), daemon, a, b })
    }

    /// Brings frames in by port `a`, as `softdpu trace replay` does, with `more` arguments; what it said.
    ///
    /// # Errors
    /// What a program said.
    pub fn replay(&self, frames: &[Vec<u8>], more: &[&str]) -> Result<String, Failure> {
        self.replay_by("a", frames, more)
    }

    /// The same by another port.
    ///
    /// # Errors
    /// What a program said.
    pub fn replay_by(&self, port: &str, frames: &[Vec<u8>], more: &[&str]) -> Result<String, Failure> {
        let file = self.folder.join("frames.pcapng");
        text2pcap(&self.folder, frames, &file)?;
        self.daemon.command(&[&["trace", "replay", "--port", port, &file.display().to_string()], more].concat())
    }

    /// A file of the test's.
    pub fn path(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }
}

/// Writes frames into a capture file, with a program of Wireshark's.
///
/// # Errors
/// What it said.
pub fn text2pcap(folder: &Path, frames: &[Vec<u8>], file: &Path) -> Result<(), Failure> {
    let dump: String = frames
        .iter()
        .map(|frame| {
            let bytes: Vec<String> = frame.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("000000 {}\n", bytes.join(" "))
        })
        .collect();
    let text = folder.join("frames.txt");
    std::fs::write(&text, dump).context("writing a dump")?;
    run("text2pcap", &["-q", "-F", "pcapng", &text.display().to_string(), &file.display().to_string()]).map(drop)
}
