//! DPDK's testpmd as a driver: its virtio-user port is a client of a vhost-user-net socket, driven at its
//! console.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::{Context, Failure, Process};

/// A command is answered within this time, its start with all its memory included.
const DEADLINE: Duration = Duration::from_secs(60);

/// The program's name.
const PROGRAM: &str = "dpdk-testpmd";

/// A port of testpmd.
pub struct TestpmdPort<'a> {
    /// The device's vhost-user socket.
    pub socket: &'a Path,
    /// The port's MAC address.
    pub mac: &'a str,
    /// The MAC address that it sends to.
    pub peer: &'a str,
    /// Queue pairs.
    pub queues: usize,
    /// Options of DPDK's virtio-user device, `packed_vq=1,mrg_rxbuf=0` say.
    pub options: &'a str,
    /// testpmd's own arguments.
    pub arguments: &'a [&'a str],
}

/// A running testpmd with one port. It forwards once it gets `start`.
pub struct Testpmd {
    process: Process,
    queues: usize,
    /// The first line of its output that no answer had.
    next: usize,
}

/// Packets that passed a port, for each of its queue pairs.
#[derive(Debug)]
pub struct Counts {
    /// Received.
    pub rx: Vec<u64>,
    /// Sent.
    pub tx: Vec<u64>,
    /// Bytes of all that were received.
    pub rx_bytes: u64,
}

impl Counts {
    /// Received by all queues.
    pub fn received(&self) -> u64 {
        self.rx.iter().sum()
    }

    /// Sent by all queues.
    pub fn sent(&self) -> u64 {
        self.tx.iter().sum()
    }
}

impl Testpmd {
    /// Whether this machine has it.
    pub fn is_installed() -> bool {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(PROGRAM).exists())
    }

    /// The number of the thread that polls: testpmd makes it part of the source addresses of `--txonly-multi-flow`.
    pub const LCORE: u8 = 1;

    /// Starts it on the machine's last CPU; softdpu's data plane has the first one. It needs neither huge pages nor
    /// hardware.
    pub fn start(folder: &Path, name: &str, port: &TestpmdPort<'_>) -> Result<Testpmd, Failure> {
        let cpu = std::thread::available_parallelism().map_or(1, |cpus| cpus.get()) - 1;
        let TestpmdPort { socket, mac, queues, .. } = port;
        let mut device = format!("net_virtio_user0,path={},mac={mac},queues={queues},queue_size=256", socket.display());
        if !port.options.is_empty() {
            device += &format!(",{}", port.options);
        }
        // On a pipe it would keep its words for itself until they fill a block.
        let mut arguments: Vec<String> =
            ["-oL", PROGRAM, "--no-huge", "-m", "128", "--no-pci", "--no-shconf"].map(str::to_owned).into();
        arguments.push("--no-telemetry".to_owned());
        // Its main thread reads commands and is asleep otherwise.
        arguments.push(format!("--lcores=0@{cpu},{}@{cpu}", Self::LCORE));
        arguments.extend(["--vdev".to_owned(), device, "--".to_owned(), "-i".to_owned()]);
        arguments.extend(["--no-mlockall", "--total-num-mbufs=4096"].map(str::to_owned));
        arguments.extend([format!("--rxq={queues}"), format!("--txq={queues}"), format!("--eth-peer=0,{}", port.peer)]);
        arguments.extend(port.arguments.iter().map(|&argument| argument.to_owned()));
        let process = Process::start(name, folder, &PathBuf::from("stdbuf"), arguments)?;
        let mut testpmd = Testpmd { process, queues: *queues, next: 0 };
        testpmd.ask("show port info 0")?;
        Ok(testpmd)
    }

    /// Types a command and gives what is printed until it is done.
    pub fn ask(&mut self, command: &str) -> Result<Vec<String>, Failure> {
        // A prompt ends no line, and most commands say nothing at their end: a second command does.
        const MARK: (&str, &str) = ("set verbose 0", "verbose level from");
        self.process.send_line(command)?;
        self.process.send_line(MARK.0)?;
        let pick = |line: &str| line.contains(MARK.1).then_some(());
        let what = format!("the end of `{command}`");
        let from = self.next;
        (_, self.next) = self.process.wait_for_line(&what, from, DEADLINE, pick)?;
        Ok(self.process.lines()[from..self.next].to_vec())
    }

    /// What its port has counted.
    pub fn counts(&mut self) -> Result<Counts, Failure> {
        let lines = self.ask("show port xstats 0")?;
        let count = |key: String| {
            let number = lines.iter().find_map(|line| line.strip_prefix(&key)?.strip_prefix(": "));
            let number = number.ok_or_else(|| Failure::new(format!("testpmd counts no {key}: {lines:?}")))?;
            number.parse::<u64>().context(key)
        };
        let of = |direction| -> Result<Vec<_>, Failure> {
            (0..self.queues).map(|queue| count(format!("{direction}_q{queue}_good_packets"))).collect()
        };
        Ok(Counts { rx: of("rx")?, tx: of("tx")?, rx_bytes: count("rx_good_bytes".to_owned())? })
    }

    /// Ends it in an orderly way: it stops its queues and disconnects.
    pub fn quit(mut self) -> Result<(), Failure> {
        self.process.send_line("quit")?;
        let status = self.process.wait(DEADLINE)?;
        if status.success() {
            return Ok(());
        }
        Err(Failure::new(format!("testpmd ended with {status}{}", self.process.tail())))
    }

    /// Ends it at once (SIGKILL).
    pub fn kill(mut self) -> Result<(), Failure> {
        self.process.signal(rustix::process::Signal::KILL);
        self.process.wait(DEADLINE).map(|_| ())
    }
}
