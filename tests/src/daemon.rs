//! softdpu from outside: started, asked, changed and killed as an operator would.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};
use serde_json::Value;

use crate::{Context, Failure, GuestDevice, Process, paths, wait_until};

/// The management socket of a site that does not say otherwise, beside its site file.
const API_SOCKET: &str = "run/softdpu/api.sock";

/// How long a command waits for its answer by default.
const PATIENCE: &str = "60 s";

/// From `softdpu run` to the first answer of `softdpu status`.
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// From the death of a data plane to the next one's first sign of life.
const RESTART_DEADLINE: Duration = Duration::from_secs(60);

/// What a port counted, as `status` shows it.
#[derive(Clone, Debug)]
pub struct PortCounts(Value);

impl PortCounts {
    /// A counter; 0 where there is none.
    pub fn count(&self, name: &str) -> u64 {
        self.0[name].as_u64().unwrap_or(0)
    }

    /// Frames that came in and were dropped for a reason.
    pub fn dropped_in(&self, reason: &str) -> u64 {
        self.0["dropped_in"][reason].as_u64().unwrap_or(0)
    }

    /// Frames that came in and were dropped, or were to go out and were dropped.
    pub fn drops(&self) -> u64 {
        let maps = [&self.0["dropped_in"], &self.0["dropped_out"]].into_iter().filter_map(Value::as_object);
        maps.flat_map(|map| map.values()).filter_map(Value::as_u64).sum()
    }
}

impl std::fmt::Display for PortCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A running `softdpu run`.
pub struct Daemon {
    process: Process,
    binary: PathBuf,
    folder: PathBuf,
    namespace: Option<String>,
}

impl Daemon {
    /// Writes the site file into `folder`, starts the daemon there and waits until it answers and every device has its
    /// socket. Relative paths of the site are relative to `folder`.
    pub fn start(folder: &Path, site: &str) -> Result<Daemon, Failure> {
        Daemon::start_binary(paths::softdpu()?, folder, site, None)
    }

    /// As [`start`](Self::start), in a network namespace.
    pub fn start_in(namespace: &str, folder: &Path, site: &str) -> Result<Daemon, Failure> {
        Daemon::start_binary(paths::softdpu()?, folder, site, Some(namespace))
    }

    fn start_binary(binary: PathBuf, folder: &Path, site: &str, namespace: Option<&str>) -> Result<Daemon, Failure> {
        let file = folder.join("site.toml");
        std::fs::write(&file, site).context(format_args!("writing {}", file.display()))?;
        let process = Daemon::run(&binary, folder, namespace)?;
        let namespace = namespace.map(str::to_owned);
        let mut daemon = Daemon { process, binary, folder: folder.to_owned(), namespace };
        daemon.wait_until_ready()?;
        Ok(daemon)
    }

    fn run(binary: &Path, folder: &Path, namespace: Option<&str>) -> Result<Process, Failure> {
        Process::start_in(namespace, "softdpu", folder, binary, ["run", "site.toml"])
    }

    fn wait_until_ready(&mut self) -> Result<(), Failure> {
        wait_until("softdpu to answer `softdpu status` with a data plane", READY_DEADLINE, || {
            if let Some(status) = self.process.exited()? {
                return Err(Failure::new(format!("softdpu ended ({status}){}", self.process.tail())));
            }
            Ok(self.ready_data_plane().map(drop))
        })
        .map_err(|error| Failure::new(format!("{error}{}", self.process.tail())))
    }

    /// Stops both processes in an orderly way and starts them again with the same site file, as `systemctl restart`
    /// does.
    pub fn restart(&mut self) -> Result<(), Failure> {
        self.stop_both()?;
        self.process = Daemon::run(&self.binary, &self.folder, self.namespace.as_deref())?;
        self.wait_until_ready()
    }

    /// Kills the supervisor and starts it again, as systemd does after a crash.
    pub fn restart_after_kill(&mut self) -> Result<(), Failure> {
        self.process.signal(Signal::KILL);
        self.process.wait(Duration::from_secs(20))?;
        self.process = Daemon::run(&self.binary, &self.folder, self.namespace.as_deref())?;
        self.wait_until_ready()
    }

    /// The socket of the device that serves the volume `name`, as [`Server`](crate::Server) writes its site files.
    pub fn device_socket(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}-disk.sock"))
    }

    /// The device `name` as `softdpu device args` tells QEMU.
    pub fn guest_device(&self, name: &str) -> Result<GuestDevice, Failure> {
        GuestDevice::parse(&self.command(&["device", "args", name])?)
    }

    /// Runs `softdpu ARGUMENTS...` beside the daemon and gives what it printed.
    pub fn command(&self, arguments: &[&str]) -> Result<String, Failure> {
        let what = format!("`softdpu {}`", arguments.join(" "));
        let mut command = Command::new(&self.binary);
        // Always this daemon's own socket: a machine may run a softdpu that is not ours to change, let alone to kill.
        command.args(arguments).current_dir(&self.folder).env("SOFTDPU_SOCKET", self.folder.join(API_SOCKET));
        if !arguments.contains(&"--timeout") {
            command.args(["--timeout", PATIENCE]);
        }
        let output = command.output().context(&what)?;
        if output.status.success() {
            return String::from_utf8(output.stdout).context(what);
        }
        let words = String::from_utf8_lossy(&output.stderr);
        Err(Failure::new(format!("{what} ended with {}: {}", output.status, words.trim())))
    }

    /// `softdpu trace packet ARGUMENTS...`, which logs to NAME.log, once it sees every frame that passes.
    pub fn trace(&self, name: &str, arguments: &[&str]) -> Result<Process, Failure> {
        let socket = self.folder.join(API_SOCKET).display().to_string();
        let arguments = [&["--socket", &socket, "trace", "packet"], arguments].concat();
        let mut process = Process::start(name, &self.folder, &self.binary, arguments)?;
        process
            .wait_for_line("that it traces", 0, READY_DEADLINE, |line| line.contains("Ctrl-C ends").then_some(()))?;
        Ok(process)
    }

    /// `softdpu status --json`.
    pub fn status(&self) -> Result<Value, Failure> {
        let text = self.command(&["status", "--json"])?;
        serde_json::from_str(&text).context(format_args!("`softdpu status --json` printed no JSON: {text}"))
    }

    /// What it and its data planes have logged so far, line by line.
    pub fn log(&self) -> Vec<String> {
        self.process.lines()
    }

    /// Waits until so many lines of the log are those that `pick` chooses. A line is written a moment after what it
    /// reports, and read a moment after that.
    pub fn wait_for_log(&self, what: &str, count: usize, pick: impl Fn(&str) -> bool) -> Result<(), Failure> {
        let lines = || self.log().iter().filter(|line| pick(line)).count();
        wait_until(&format!("{count} lines of the log: {what}"), READY_DEADLINE, || {
            Ok((lines() >= count).then_some(()))
        })
        .map_err(|error| Failure::new(format!("{error}{}", self.process.tail())))?;
        let found = lines();
        if found == count {
            Ok(())
        } else {
            Err(Failure::new(format!("{found} lines of the log, not {count}: {what}{}", self.process.tail())))
        }
    }

    /// The data plane's process id and how often it was started again.
    pub fn data_plane(&self) -> Result<(u32, u64), Failure> {
        let status = self.status()?;
        let number = |key: &str| {
            let value = &status["data_plane"][key];
            value.as_u64().ok_or_else(|| Failure::new(format!("status has no number data_plane.{key}: {status}")))
        };
        let pid = u32::try_from(number("pid")?).context("data_plane.pid")?;
        Ok((pid, number("restarts")?))
    }

    /// Fails unless the data plane is the one of this process id and number of restarts.
    pub fn expect_data_plane(&self, expected: (u32, u64)) -> Result<(), Failure> {
        let now = self.data_plane()?;
        if now == expected {
            return Ok(());
        }
        Err(Failure::new(format!("the data plane is another one: (pid, restarts) {expected:?} → {now:?}")))
    }

    /// What `status` shows for the device `name`.
    pub fn device(&self, name: &str) -> Result<Value, Failure> {
        let mut status = self.status()?;
        let devices = status["devices"].as_array_mut().map(std::mem::take).unwrap_or_default();
        let device = devices.into_iter().find(|device| device["name"] == name);
        device.ok_or_else(|| Failure::new(format!("status shows no device {name}")))
    }

    /// The state that `status` shows for the device of the volume `name`.
    pub fn device_state(&self, name: &str) -> Result<String, Failure> {
        let device = self.device(&format!("{name}-disk"))?;
        let state = device["state"].as_str().map(str::to_owned);
        state.ok_or_else(|| Failure::new(format!("status shows no state of the device: {device}")))
    }

    /// What `status` counts at the underlay.
    pub fn underlay(&self) -> Result<PortCounts, Failure> {
        let underlay = self.status()?["underlay"].take();
        if underlay.is_object() { Ok(PortCounts(underlay)) } else { Err(Failure::new("there is no underlay")) }
    }

    /// What `status` counts at the port of the device `name`.
    pub fn port(&self, name: &str) -> Result<PortCounts, Failure> {
        let mut device = self.device(name)?;
        let port = device["port"].take();
        if port.is_object() { Ok(PortCounts(port)) } else { Err(Failure::new(format!("{name} has no port: {device}"))) }
    }

    /// The same, once the data plane takes changes: a process that has just been started does not yet.
    fn ready_data_plane(&self) -> Option<(u32, u64)> {
        let status = self.status().ok()?;
        if status["data_plane"]["state"] == "running" { self.data_plane().ok() } else { None }
    }

    /// Kills the data plane at once (SIGKILL), waits until another one is ready, and tells how long that took.
    pub fn kill_data_plane(&mut self) -> Result<Duration, Failure> {
        let (pid, restarts) = self.data_plane()?;
        if pid == self.process.pid() {
            return Err(Failure::new("the data plane is the supervisor: it cannot be killed and come back"));
        }
        let target = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let target = target.ok_or_else(|| Failure::new(format!("status names data_plane.pid {pid}")))?;
        let start = Instant::now();
        rustix::process::kill_process(target, Signal::KILL).context(format_args!("killing data plane {pid}"))?;
        wait_until("the data plane to be started again after SIGKILL", RESTART_DEADLINE, || {
            if let Some(status) = self.process.exited()? {
                return Err(Failure::new(format!(
                    "softdpu's supervisor ended with its data plane ({status}){}",
                    self.process.tail()
                )));
            }
            // Between the two data planes `status` may have nothing to say; the deadline decides.
            let back = self.ready_data_plane().is_some_and(|(new, count)| new != pid && count > restarts);
            Ok(back.then(|| start.elapsed()))
        })
        .map_err(|error| Failure::new(format!("{error}{}", self.process.tail())))
    }

    /// `softdpu upgrade` of both processes to the program that runs; its answer.
    pub fn upgrade(&self) -> Result<Value, Failure> {
        self.upgrade_by(&[])
    }

    /// `softdpu upgrade` with `options`; its answer.
    pub fn upgrade_by(&self, options: &[&str]) -> Result<Value, Failure> {
        let answer = self.command(&[&["upgrade", "--json"], options].concat())?;
        serde_json::from_str(&answer).context("the answer of `softdpu upgrade --json`")
    }

    /// The supervisor's process.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// From the last end of a data plane until the next one completed a request, as `status` tells it.
    pub fn first_completion_after_restart(&self) -> Result<Duration, Failure> {
        let status = self.status()?;
        let micros = status["data_plane"]["first_completion_after_restart_us"].as_u64();
        let micros = micros.ok_or_else(|| {
            Failure::new(format!(
                "status has no data_plane.first_completion_after_restart_us: {}",
                status["data_plane"]
            ))
        })?;
        Ok(Duration::from_micros(micros))
    }

    /// From the moment at which the last upgrade stopped the queues until a request completed, as `status` tells it.
    pub fn first_completion_after_upgrade(&self) -> Result<Duration, Failure> {
        let status = self.status()?;
        let upgrade = &status["data_plane"]["upgrade"];
        let micros = upgrade["first_completion_us"].as_u64();
        micros
            .map(Duration::from_micros)
            .ok_or_else(|| Failure::new(format!("no request has completed since: {upgrade}")))
    }

    /// `softdpu volume grow NAME SIZE`.
    pub fn grow(&self, volume: &str, size: &str) -> Result<(), Failure> {
        self.command(&["volume", "grow", volume, size]).map(|_| ())
    }

    /// Ends it in an orderly way; the data plane has to be gone afterwards.
    pub fn stop(mut self) -> Result<(), Failure> {
        self.stop_both()
    }

    fn stop_both(&mut self) -> Result<(), Failure> {
        let data_plane = self.data_plane().map(|(pid, _)| pid);
        self.process.stop()?;
        // Whatever a test does, the data plane needs no system call that its filter refuses.
        if let Some(line) = self.log().iter().find(|line| line.contains("refused by the data plane's filter")) {
            return Err(Failure::new(format!("{line}{}", self.process.tail())));
        }
        if let Ok(pid) = data_plane {
            wait_until("the data plane to end with the supervisor", Duration::from_secs(20), || {
                Ok((!self.is_softdpu(pid)).then_some(()))
            })?;
        }
        Ok(())
    }

    /// Whether the process is alive and runs the binary under test.
    fn is_softdpu(&self, pid: u32) -> bool {
        let program = std::fs::read_link(format!("/proc/{pid}/exe"));
        program.is_ok_and(|path| self.binary.canonicalize().is_ok_and(|binary| binary == path))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The supervisor ends its data plane when it is asked to end. After a failure it may be past asking: then the
        // data plane is ended here, so that nothing is left behind.
        let data_plane = self.data_plane().map(|(pid, _)| pid);
        // An owner that has something to report about the end calls `stop`.
        let _ = self.process.stop();
        if let Ok(pid) = data_plane
            && self.is_softdpu(pid)
            && let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw)
        {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A softdpu that serves nothing, but starts, restarts, answers and ends as softdpu's command line does.
    const STAND_IN: &str = r#"#!/bin/bash
case $1 in
    run)
        restarts=-1
        trap 'kill -9 $child; exit 0' TERM
        while :; do
            sleep 1000 &
            child=$!
            restarts=$((restarts + 1))
            mkdir -p run/softdpu
            echo "{\"data_plane\": {\"state\": \"running\", \"pid\": $child, \"restarts\": $restarts}, \"devices\": []}" >run/softdpu/status
            wait $child
        done ;;
    status) [ -n "$SOFTDPU_SOCKET" ] && cat "${SOFTDPU_SOCKET%/*}/status" ;;
    volume) echo "no such volume $3" >&2; exit 1 ;;
esac
"#;

    fn stand_in() -> (tempfile::TempDir, Daemon) {
        let folder = tempfile::tempdir().unwrap();
        let (source, binary) = (folder.path().join("stand-in"), folder.path().join("softdpu"));
        std::fs::write(&source, STAND_IN).unwrap();
        // Written by a process of its own: what another test starts meanwhile would hold a file of ours open for
        // writing for a moment, and such a file cannot be executed (ETXTBSY).
        let installed = Command::new("install").args(["-m", "755"]).args([&source, &binary]).status().unwrap();
        assert!(installed.success());
        let daemon = Daemon::start_binary(binary, folder.path(), "", None).unwrap();
        (folder, daemon)
    }

    #[test]
    fn a_killed_data_plane_is_another_process_afterwards_and_counted() {
        let (_folder, mut daemon) = stand_in();
        let (before, restarts) = daemon.data_plane().unwrap();
        assert_eq!(restarts, 0);
        daemon.kill_data_plane().unwrap();
        let (after, restarts) = daemon.data_plane().unwrap();
        assert_eq!(restarts, 1);
        assert_ne!(before, after);
        daemon.stop().unwrap();
    }

    #[test]
    fn a_refused_command_says_what_softdpu_said() {
        let (_folder, daemon) = stand_in();
        let error = daemon.grow("data", "1 GiB").unwrap_err().to_string();
        assert!(error.contains("volume grow data 1 GiB") && error.contains("no such volume data"), "{error}");
    }

    #[test]
    fn a_daemon_that_ends_at_once_is_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let start = Instant::now();
        let error =
            Daemon::start_binary(PathBuf::from("/bin/false"), folder.path(), "", None).err().unwrap().to_string();
        assert!(error.contains("softdpu ended"), "{error}");
        assert!(start.elapsed() < READY_DEADLINE);
    }
}
