//! What a daemon reports to a service manager (sd_notify(3)): the test is the manager.

use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use softdpu_testing::ONE_DISK;

/// No message takes this long to come, on however busy a machine.
const DEADLINE: Duration = Duration::from_secs(60);
const WATCHDOG: Duration = Duration::from_secs(1);

struct Service {
    process: Child,
    socket: UnixDatagram,
    /// Every line of every message, and when it was read.
    lines: Vec<(Instant, String)>,
}

impl Service {
    fn start(folder: &Path) -> Service {
        let site = format!("[node]\ndataplane = {{ cores = [0] }}\n{ONE_DISK}");
        std::fs::write(folder.join("site.toml"), site).unwrap();
        let path = folder.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let process = Command::new(env!("CARGO_BIN_EXE_softdpu"))
            .current_dir(folder)
            .args(["run", "site.toml"])
            .env("NOTIFY_SOCKET", &path)
            .env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string())
            .env_remove("WATCHDOG_PID")
            .env("RUNTIME_DIRECTORY", folder.join("runtime"))
            .env("STATE_DIRECTORY", folder.join("state"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Service { process, socket, lines: Vec::new() }
    }

    /// The first line that begins with `prefix`, of those from number `from` on, and when it was read.
    fn wait_for(&mut self, prefix: &str, from: usize) -> (Instant, String) {
        let end = Instant::now() + DEADLINE;
        loop {
            let fresh = self.lines.get(from..).unwrap_or_default();
            if let Some(found) = fresh.iter().find(|(_, line)| line.starts_with(prefix)) {
                return found.clone();
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "no {prefix} within {DEADLINE:?}");
            self.socket.set_read_timeout(Some(left)).unwrap();
            let mut message = [0; 4096];
            let length = self.socket.recv(&mut message).unwrap_or_else(|error| panic!("no {prefix}: {error}"));
            let text = String::from_utf8(message[..length].to_vec()).unwrap();
            self.lines.extend(text.lines().map(|line| (Instant::now(), line.to_owned())));
        }
    }

    /// The next line that begins with `prefix`, of those that were not read yet.
    fn next(&mut self, prefix: &str) -> Instant {
        self.wait_for(prefix, self.lines.len()).0
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.process.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn end(&mut self) -> ExitStatus {
        let end = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < end, "it did not end within {DEADLINE:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // After a failure: the data plane ends with its supervisor.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_service_manager_hears_of_readiness_state_life_and_the_stop() {
    let folder = tempfile::tempdir().unwrap();
    let mut service = Service::start(folder.path());
    service.wait_for("READY=1", 0);
    let (_, status) = service.wait_for("STATUS=", 0);
    assert!(status.len() > "STATUS=".len(), "{status}");
    assert!(folder.path().join("runtime/api.sock").exists(), "the manager's directory is not used");

    // Signs of life come at half the period: no more often, or they would cost for nothing; the deadline is for less
    // often.
    let intervals = 3;
    let first = service.next("WATCHDOG=1");
    let mut last = first;
    for _ in 0..intervals {
        last = service.next("WATCHDOG=1");
    }
    let all = last.duration_since(first);
    let expected = WATCHDOG / 2 * intervals;
    // A first message that was read late makes the time look shorter.
    assert!(all > expected / 2, "{intervals} intervals of {:?} took {all:?}", WATCHDOG / 2);

    // Nothing is reloaded, and nothing ends.
    service.signal(Signal::HUP);
    service.next("WATCHDOG=1");
    service.next("WATCHDOG=1");
    service.signal(Signal::TERM);
    service.wait_for("STOPPING=1", 0);
    assert!(service.end().success());
}
