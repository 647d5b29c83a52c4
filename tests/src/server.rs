//! What serves disks to guests: softdpu, or the peer that stands in for it to prove the harness itself.

use std::path::PathBuf;
use std::str::FromStr;

use crate::{Context, Daemon, Failure, GuestDisk, Lab, StorageDaemon, skip};

/// A disk to be served.
#[derive(Clone, Debug)]
pub struct Disk {
    /// The volume's name, and the start of the device's and the socket's.
    pub name: String,
    /// The file that holds it, which exists and has the disk's size.
    pub file: PathBuf,
    /// Virtqueues.
    pub queues: u16,
    /// Whether a guest gets the packed ring offered.
    pub packed: bool,
}

impl Disk {
    /// A disk with one split queue over an existing file.
    pub fn new(name: &str, file: PathBuf) -> Disk {
        Disk { name: name.to_owned(), file, queues: 1, packed: false }
    }

    /// The number of virtqueues.
    pub fn queues(mut self, queues: u16) -> Disk {
        self.queues = queues;
        self
    }

    /// Offers the packed ring.
    pub fn packed(mut self) -> Disk {
        self.packed = true;
        self
    }
}

/// Which program serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// softdpu.
    Softdpu,
    /// qemu-storage-daemon.
    StorageDaemon,
}

impl FromStr for ServerKind {
    type Err = Failure;
    fn from_str(text: &str) -> Result<ServerKind, Failure> {
        match text {
            "softdpu" => Ok(ServerKind::Softdpu),
            "qsd" => Ok(ServerKind::StorageDaemon),
            other => Err(Failure::new(format!("there is no server `{other}`: softdpu or qsd"))),
        }
    }
}

/// Whether a test of softdpu alone has a CPU for its clients and one for a core; says so where not.
pub fn has_two_cpus(test: &str) -> bool {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if !matches!(ServerKind::from_environment(), Ok(ServerKind::Softdpu)) {
        skip(test, "it is about softdpu alone");
    } else if cpus < 2 {
        skip(test, "clients and a core need a CPU each");
    } else {
        return true;
    }
    false
}

impl ServerKind {
    /// `SOFTDPU_TEST_SERVER`: softdpu where it is not set.
    pub fn from_environment() -> Result<ServerKind, Failure> {
        match std::env::var("SOFTDPU_TEST_SERVER") {
            Ok(text) => text.parse().context("SOFTDPU_TEST_SERVER"),
            Err(_) => Ok(ServerKind::Softdpu),
        }
    }
}

/// A running server and its disks.
pub struct Server {
    program: Program,
    disks: Vec<Disk>,
}

enum Program {
    Softdpu(Daemon),
    StorageDaemon(StorageDaemon),
}

impl Server {
    /// Starts `kind` with these disks and waits until all of them can be connected to.
    pub fn start(kind: ServerKind, lab: &Lab, disks: &[Disk]) -> Result<Server, Failure> {
        if kind == ServerKind::Softdpu {
            return Server::start_softdpu(lab, &site(disks), disks);
        }
        let program = Program::StorageDaemon(StorageDaemon::start(lab.path(), disks)?);
        Ok(Server { program, disks: disks.to_vec() })
    }

    /// Starts softdpu with a site file of one's own, in which the device of a volume NAME is called NAME-disk and has
    /// the socket `NAME-disk.sock`.
    pub fn start_softdpu(lab: &Lab, site: &str, disks: &[Disk]) -> Result<Server, Failure> {
        Ok(Server { program: Program::Softdpu(Daemon::start(lab.path(), site)?), disks: disks.to_vec() })
    }

    /// The disk called `name`, as a guest gets it.
    pub fn guest_disk(&self, name: &str) -> Result<GuestDisk, Failure> {
        let disk = self.disks.iter().find(|disk| disk.name == name);
        let disk = disk.ok_or_else(|| Failure::new(format!("the server has no disk `{name}`")))?;
        let socket = match &self.program {
            Program::Softdpu(daemon) => daemon.device_socket(name),
            Program::StorageDaemon(daemon) => daemon.socket(name),
        };
        Ok(GuestDisk { socket, queues: disk.queues, packed: disk.packed })
    }

    /// softdpu, for what only it can do.
    pub fn daemon(&mut self) -> Result<&mut Daemon, Failure> {
        match &mut self.program {
            Program::Softdpu(daemon) => Ok(daemon),
            Program::StorageDaemon(_) => Err(Failure::new("qemu-storage-daemon cannot do this, only softdpu can")),
        }
    }

    /// Ends it in an orderly way.
    pub fn stop(self) -> Result<(), Failure> {
        match self.program {
            Program::Softdpu(daemon) => daemon.stop(),
            Program::StorageDaemon(daemon) => daemon.stop(),
        }
    }
}

/// A site file for these disks: one file volume and one virtio-blk device each, all of one guest.
fn site(disks: &[Disk]) -> String {
    let mut site = String::from("[node]\ndataplane = { cores = [0] }\n");
    for Disk { name, file, queues, packed } in disks {
        // TOML's literal strings take any path of ours as it is.
        let file = file.display();
        site += &format!("\n[[volume]]\nname = \"{name}\"\nfile = {{ path = '{file}' }}\n");
        site += &format!("\n[[device]]\nname = \"{name}-disk\"\ndomain = \"guest\"\n");
        site += &format!(
            "virtio-blk = {{ volume = \"{name}\", queues = {queues}, packed = {packed}, socket = \"{name}-disk.sock\" }}\n"
        );
    }
    site
}
