//! Sites, NBD servers and requests that the scenarios share.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use softdpu_frontend::{BlockFrontEnd, BlockOptions, BlockRequest};
use softdpu_tests::{Context, Daemon, Failure, Lab, Process, ServerKind, skip, wait_until};

pub const MIB: u64 = 1 << 20;
/// The longest that anything healthy takes on a busy machine.
pub const WAIT: Duration = Duration::from_secs(60);
/// VIRTIO_BLK_S_OK and VIRTIO_BLK_S_IOERR (virtio 1.3 §5.2.6).
pub const OK: u8 = 0;
pub const IOERR: u8 = 1;
/// A stop's patience is two seconds; the rest is a busy machine's. What it would wait for otherwise does not come by
/// itself.
pub const STOP: Duration = Duration::from_secs(10);

/// What a disk is kept in, where that is not what a scenario is about.
pub const MEMORY: &str = "memory = { size = \"1 MiB\" }";

/// Runs a scenario of softdpu alone. Skipped where something else is under test, or one of `programs` is not installed.
pub fn run(name: &str, programs: &[&str], scenario: impl FnOnce(&Lab) -> Result<(), Failure>) {
    if possible(name, programs) {
        Lab::run(name, scenario);
    }
}

/// The same with a daemon of one core that has these disks. It is stopped in good order after it.
pub fn run_disks(name: &str, disks: &str, scenario: impl FnOnce(&Lab, &mut Daemon) -> Result<(), Failure>) {
    run(name, &[], |lab| {
        let mut daemon = Daemon::start(lab.path(), &(node(&[0]) + disks))?;
        scenario(lab, &mut daemon)?;
        daemon.stop()
    });
}

/// What a scenario needs of the machine, or none after a skip was reported: `missing` is what it lacks.
pub fn or_skip<T, E: std::fmt::Display>(test: &str, missing: &str, made: Result<T, E>) -> Option<T> {
    made.map_err(|error| skip(test, &format!("{missing}: {error}"))).ok()
}

/// Whether the scenario can run: softdpu is under test and `programs` are installed. Says so loudly where not.
pub fn possible(test: &str, programs: &[&str]) -> bool {
    if !matches!(ServerKind::from_environment(), Ok(ServerKind::Softdpu)) {
        skip(test, "it is about softdpu alone");
        return false;
    }
    for program in programs {
        let found = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !found.is_ok_and(|status| status.success()) {
            skip(test, &format!("{program} is not installed"));
            return false;
        }
    }
    true
}

pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The head of a site file.
pub fn node(cores: &[u32]) -> String {
    format!("[node]\ndataplane = {{ cores = {cores:?} }}\n")
}

/// A volume and its device, called as [`Daemon::device_socket`] expects. `backend` is one key of `[[volume]]`.
pub fn disk(name: &str, backend: &str, queues: u16) -> String {
    format!(
        "\n[[volume]]\nname = \"{name}\"\n{backend}\n\n[[device]]\nname = \"{name}-disk\"\n\
         virtio-blk = {{ volume = \"{name}\", queues = {queues}, socket = \"{name}-disk.sock\" }}\n"
    )
}

/// An NBD server with a Unix socket in the lab.
pub struct NbdServer {
    pub process: Process,
    pub socket: PathBuf,
}

impl NbdServer {
    /// Starts nbdkit.
    pub fn nbdkit(lab: &Lab, name: &str, arguments: &[&str]) -> Result<NbdServer, Failure> {
        let socket = lab.path().join(format!("{name}.sock"));
        let mut all = vec!["-f", "-U", text(&socket)?];
        all.extend(arguments);
        NbdServer::start(lab, name, "nbdkit", &socket, &all)
    }

    /// Starts `program`, which is to listen on `socket`.
    pub fn start(
        lab: &Lab,
        name: &str,
        program: &str,
        socket: &Path,
        arguments: &[&str],
    ) -> Result<NbdServer, Failure> {
        // The socket file of a server that was killed keeps the next one from starting.
        let _ = std::fs::remove_file(socket);
        let mut process = Process::start(name, lab.path(), Path::new(program), arguments)?;
        wait_until(&format!("{name}'s socket"), WAIT, || match process.exited()? {
            Some(status) => Err(Failure::new(format!("{name} ended ({status}){}", process.tail()))),
            None => Ok(UnixStream::connect(socket).ok()),
        })?;
        Ok(NbdServer { process, socket: socket.to_owned() })
    }

    /// Makes it hang, and waits until it does: one of its threads takes the signal and passes the stop on, until when
    /// the others go on serving. What was connected is as it was, so SIGCONT undoes it.
    pub fn hang(&mut self) -> Result<(), Failure> {
        self.process.signal(Signal::STOP);
        wait_until("all threads of the server to be stopped", WAIT, || {
            Ok(self.process.thread_states()?.iter().all(|state| *state == 'T').then_some(()))
        })
    }

    /// The `nbd` key of a volume at this server.
    pub fn backend(&self, more: &str) -> String {
        format!("nbd = {{ uri = \"nbd+unix:///?socket={}\"{more} }}", self.socket.display())
    }
}

pub fn text(path: &Path) -> Result<&str, Failure> {
    path.to_str().ok_or_else(|| Failure::new(format!("{} is not UTF-8", path.display())))
}

pub fn connect(daemon: &Daemon, name: &str, options: &BlockOptions) -> Result<BlockFrontEnd, Failure> {
    let options = BlockOptions { timeout: options.timeout.max(WAIT), ..options.clone() };
    BlockFrontEnd::connect(&daemon.device_socket(name), &options).context(format_args!("connecting to {name}"))
}

/// Does one request on queue 0 and gives its tag and status.
pub fn ask(front_end: &mut BlockFrontEnd, request: BlockRequest<'_>) -> Result<(u16, u8), Failure> {
    let queue = front_end.queue_mut(0);
    let tag = queue.submit(request).context("adding a request")?;
    queue.publish();
    let done = queue.wait(WAIT).context("waiting for a request")?;
    assert_eq!(done.tag, tag);
    Ok((tag, done.status))
}

pub fn write(front_end: &mut BlockFrontEnd, sector: u64, data: &[u8]) -> Result<(), Failure> {
    let (_, status) = ask(front_end, BlockRequest::Write { sector, data })?;
    assert_eq!(status, OK, "writing at sector {sector}");
    Ok(())
}

pub fn read(front_end: &mut BlockFrontEnd, sector: u64, len: u32) -> Result<Vec<u8>, Failure> {
    let (tag, status) = ask(front_end, BlockRequest::Read { sector, len })?;
    assert_eq!(status, OK, "reading at sector {sector}");
    data(front_end, tag, len)
}

/// What is in the buffer of a request.
pub fn data(front_end: &mut BlockFrontEnd, tag: u16, len: u32) -> Result<Vec<u8>, Failure> {
    let mut bytes = vec![0; len as usize];
    let buffer = front_end.queue_mut(0).data(tag, len).context("looking at data")?;
    buffer.read_at(0, &mut bytes).context("copying data")?;
    Ok(bytes)
}

/// How long another device's requests took.
pub struct Bystander(Vec<Duration>);

impl Bystander {
    /// Asserts that nothing held them up: what is held up for as long as `act` takes is one request, and the one before
    /// it was not. Bars for a machine that is busy with something else half of the time.
    pub fn are_undisturbed(&self) {
        let median = self.0[self.0.len() / 2];
        assert!(self.0.len() > 4 && median < Duration::from_millis(200), "{} requests, {median:?}", self.0.len());
    }
}

/// Does `act` while another device writes and reads, which it does when `act` begins.
pub fn beside<T>(other: &mut BlockFrontEnd, act: impl FnOnce() -> T) -> (T, Result<Bystander, Failure>) {
    let (over, begun) = (AtomicBool::new(false), AtomicBool::new(false));
    let run = || {
        let mut latencies = Vec::new();
        while !over.load(SeqCst) {
            let start = Instant::now();
            write(other, 0, &[1; 4096])?;
            read(other, 0, 4096)?;
            latencies.push(start.elapsed() / 2);
            begun.store(true, SeqCst);
            std::thread::sleep(Duration::from_millis(2));
        }
        latencies.sort();
        Ok(Bystander(latencies))
    };
    std::thread::scope(|scope| {
        let beside = scope.spawn(run);
        // One that cannot begin says so when it is joined.
        while !begun.load(SeqCst) && !beside.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let acted = act();
        over.store(true, SeqCst);
        (acted, beside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

/// Does `act` beside another device. It takes no longer than a [`STOP`], and the other device's requests are not held
/// up.
pub fn within_a_stop<T>(other: &mut BlockFrontEnd, act: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let ((acted, took), bystander) = beside(other, || {
        let start = Instant::now();
        (act(), start.elapsed())
    });
    let acted = acted?;
    assert!(took < STOP, "it took {took:?}");
    bystander?.are_undisturbed();
    Ok(acted)
}

/// Waits until the device of the volume `name` has no front end.
pub fn left_alone(daemon: &Daemon, name: &str) -> Result<(), Failure> {
    wait_until(&format!("the device of {name} to be left alone"), WAIT, || {
        Ok((daemon.device_state(name)? == "listening").then_some(()))
    })
}

/// The entry called `name` of a list in `status`.
pub fn entry(status: &Value, list: &str, name: &str) -> Option<Value> {
    status[list].as_array()?.iter().find(|entry| entry["name"] == name).cloned()
}

/// What `status` says about the volume.
pub fn volume(daemon: &Daemon, name: &str) -> Result<Value, Failure> {
    let status = daemon.status()?;
    entry(&status, "volumes", name).ok_or_else(|| Failure::new(format!("status has no volume {name}: {status}")))
}

/// The same, once it has counted so many errors: they are counted a moment after the guest has got them.
pub fn counted(daemon: &Daemon, name: &str, errors: u64) -> Result<Value, Failure> {
    wait_until(&format!("{errors} errors of {name} to be counted"), WAIT, || {
        let volume = volume(daemon, name)?;
        Ok((volume["errors"].as_u64() >= Some(errors)).then_some(volume))
    })
}

/// The error of a command that has to be refused.
pub fn refused(daemon: &Daemon, arguments: &[&str]) -> String {
    match daemon.command(arguments) {
        Ok(said) => panic!("`softdpu {}` was not refused: {said}", arguments.join(" ")),
        Err(error) => error.to_string(),
    }
}

/// A connection to the management socket, for more calls than a process each would allow.
pub struct Api(BufReader<UnixStream>);

impl Api {
    pub fn connect(lab: &Lab) -> Result<Api, Failure> {
        let socket = UnixStream::connect(lab.path().join("run/softdpu/api.sock")).context("the management socket")?;
        socket.set_read_timeout(Some(WAIT)).context("a timeout for the management socket")?;
        Ok(Api(BufReader::new(socket)))
    }

    /// Calls `method`; an error is the daemon's.
    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value, Failure> {
        let line = json!({ "softdpu": 1, "id": 1, "method": method, "params": params });
        writeln!(self.0.get_mut(), "{line}").context(format_args!("sending {method}"))?;
        let mut answer = String::new();
        self.0.read_line(&mut answer).context(format_args!("waiting for the answer to {method}"))?;
        let mut answer: Value = serde_json::from_str(&answer).context(format_args!("the answer to {method}"))?;
        match answer.get("error") {
            Some(error) => Err(Failure::new(format!("{method} {params}: {error}"))),
            None => Ok(answer["result"].take()),
        }
    }
}
