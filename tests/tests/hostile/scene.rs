//! The daemon under attack, and what has to hold after each abuse.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::Pid;
use serde_json::Value;
use softdpu_tests::abuses::wait_for_reason;
use softdpu_tests::{Context, Daemon, Failure, Lab, wait_until};
use softdpu_transport::vhost_user::Message;
use softdpu_transport::vhost_user::client::Answer;

use crate::SOON;
use crate::client::{BLOCK, FrontEnd, MEMORY, Memory, Settings, pattern};

/// DEVICE_NEEDS_RESET of the device status.
const NEEDS_RESET: u64 = 64;

/// The block that tells whether the device works, which no abuse writes.
const PROBE: u64 = 900;

/// What has to come of an abuse.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// The queue breaks, for a reason with these words.
    Breaks(&'static str),
    /// The request ends with this status, and counts as an error.
    Fails(u8),
    /// The message is refused in good order, with these words in the log.
    Refused(&'static str),
    /// The connection is closed, with these words in the log.
    Closes(&'static str),
    /// Nothing: the device goes on.
    Harmless,
    /// It depends on a race whether the queue breaks; it comes back either way.
    Survives,
}

/// What the hostile front end saw itself.
#[derive(Debug, PartialEq, Eq)]
pub enum Seen {
    /// Nothing that says anything.
    Nothing,
    /// A request came back with this status.
    Status(u8),
    /// A message was accepted.
    Accepted,
    /// A message was refused.
    Refused,
    /// The connection was closed.
    Closed,
}

/// One abuse.
pub struct Abuse {
    pub name: &'static str,
    pub what: &'static str,
    pub settings: Settings,
    pub expect: Expect,
    /// A reset cannot help, as the memory itself is gone: the front end has to come back.
    pub reconnect: bool,
    pub act: fn(&mut FrontEnd) -> Result<Seen, Failure>,
}

impl Abuse {
    pub fn new(
        name: &'static str,
        what: &'static str,
        expect: Expect,
        act: fn(&mut FrontEnd) -> Result<Seen, Failure>,
    ) -> Abuse {
        Abuse { name, what, settings: Settings::SPLIT, expect, reconnect: false, act }
    }

    pub fn reconnecting(mut self) -> Abuse {
        self.reconnect = true;
        self
    }

    pub fn with(mut self, settings: Settings) -> Abuse {
        self.settings = settings;
        self
    }
}

/// What `status` says of a device that may have made a core wait.
#[derive(Debug)]
pub struct Demotion {
    pub is_demoted: bool,
    pub stalls: u64,
    pub stalled: Duration,
}

/// The daemon and the device under attack.
pub struct Scene {
    daemon: Daemon,
    folder: PathBuf,
    data_plane: (u32, u64),
    resets: u64,
}

impl Scene {
    pub fn start(lab: &Lab, site: &str) -> Result<Scene, Failure> {
        softdpu_memory::catch_bus_errors();
        let daemon = Daemon::start(lab.path(), site)?;
        let data_plane = daemon.data_plane()?;
        let scene = Scene { daemon, folder: lab.path().to_owned(), data_plane, resets: 0 };
        scene.connect(Settings::SPLIT)?.write_block(PROBE, &pattern(PROBE, 1))?;
        Ok(scene)
    }

    pub fn socket(&self, volume: &str) -> PathBuf {
        self.daemon.device_socket(volume)
    }

    fn connect(&self, settings: Settings) -> Result<FrontEnd, Failure> {
        FrontEnd::start(&self.socket("hostile"), Arc::new(Memory::new(MEMORY)?), settings)
    }

    /// Plays an abuse and checks everything that has to follow; says what was seen.
    pub fn play(&mut self, abuse: &Abuse) -> Result<String, Failure> {
        let mut front = self.connect(abuse.settings).context("before the abuse")?;
        probe(&mut front).context("before the abuse")?;
        front.restart_queue().context("before the abuse")?;
        let (log, errors) = (self.log()?.len(), self.errors()?);
        let seen = (abuse.act)(&mut front)?;
        match abuse.expect {
            Expect::Breaks(reason) => {
                let said = self.broken(reason)?;
                if !front.error_signalled(SOON) {
                    return Err(Failure::new("the error eventfd was not signalled"));
                }
                needs_reset(&mut front, true)?;
                if abuse.reconnect {
                    drop(front);
                    front = self.connect(abuse.settings)?;
                    probe(&mut front).context("after reconnecting")?;
                } else {
                    self.recover(&mut front)?;
                }
                self.no_longer_broken()?;
                Ok(said)
            }
            Expect::Fails(status) => {
                same(&seen, &Seen::Status(status))?;
                wait_until("the error to be counted", SOON, || Ok((self.errors()? > errors).then_some(())))?;
                self.recover(&mut front)?;
                Ok(format!("status {status}"))
            }
            Expect::Refused(words) => {
                same(&seen, &Seen::Refused)?;
                let line = self.logged(log, words)?;
                // The connection and its queue go on: no reset.
                probe(&mut front).context("after the refusal")?;
                Ok(line)
            }
            Expect::Closes(words) => {
                if seen != Seen::Closed {
                    front.closed()?;
                }
                let line = self.logged(log, words)?;
                drop(front);
                probe(&mut self.connect(abuse.settings)?).context("after reconnecting")?;
                Ok(line)
            }
            Expect::Harmless => {
                if self.broken_reason()?.is_some() {
                    return Err(Failure::new(format!("the queue broke: {:?}", self.broken_reason()?)));
                }
                if !matches!(seen, Seen::Nothing | Seen::Accepted | Seen::Status(0)) {
                    return Err(Failure::new(format!("harmless, and yet: {seen:?}")));
                }
                self.recover(&mut front)?;
                Ok(format!("{seen:?}").to_lowercase())
            }
            Expect::Survives => {
                let reason = self.broken_reason()?;
                self.recover(&mut front)?;
                self.no_longer_broken()?;
                Ok(reason.unwrap_or_else(|| "it did not break".to_owned()))
            }
        }
    }

    /// Plays an abuse that breaks a queue, kills the data plane, and checks that the next one says the same and that a
    /// reset brings the device back.
    pub fn play_across_a_kill(&mut self, abuse: &Abuse) -> Result<String, Failure> {
        let Expect::Breaks(reason) = abuse.expect else {
            return Err(Failure::new("only what breaks a queue can be broken after a kill"));
        };
        let mut front = self.connect(abuse.settings)?;
        (abuse.act)(&mut front)?;
        self.broken(reason).context("before the kill")?;
        self.kill_data_plane()?;
        let said = self.broken(reason).context("after the kill")?;
        self.recover(&mut front)?;
        self.no_longer_broken()?;
        Ok(said)
    }

    /// In turn: the ring alone, and the whole device.
    fn recover(&mut self, front: &mut FrontEnd) -> Result<(), Failure> {
        self.resets += 1;
        match self.resets % 2 {
            0 => front.restart_queue().context("restarting the ring")?,
            _ => front.reset().context("resetting the device")?,
        }
        needs_reset(front, false)?;
        probe(front).context("after the reset")
    }

    pub fn supervisor(&self) -> Result<Pid, Failure> {
        let pid = self.daemon.status()?["supervisor_pid"].as_i64();
        let pid = pid.and_then(|pid| Pid::from_raw(pid as i32));
        pid.ok_or_else(|| Failure::new("status has no number supervisor_pid"))
    }

    /// Kills the data plane and waits for the next one.
    pub fn kill_data_plane(&mut self) -> Result<(), Failure> {
        self.daemon.kill_data_plane()?;
        self.data_plane = self.daemon.data_plane()?;
        Ok(())
    }

    /// The data plane is the one that was started first, or after the last kill.
    pub fn same_data_plane(&self) -> Result<(), Failure> {
        self.daemon.expect_data_plane(self.data_plane)
    }

    fn device(&self) -> Result<Value, Failure> {
        self.daemon.device("hostile-disk")
    }

    /// Interrupts that the device sent.
    pub fn interrupts(&self) -> Result<u64, Failure> {
        Ok(self.device()?["queues"][0]["interrupts_sent"].as_u64().unwrap_or(0))
    }

    /// Whether a device is on the slow core, and what its first queue made its cores wait for.
    pub fn demotion(&self, device: &str) -> Result<Demotion, Failure> {
        let status = self.daemon.device(device)?;
        let number = |name: &str| {
            status["queues"][0][name].as_u64().ok_or_else(|| Failure::new(format!("a queue has no number {name}")))
        };
        let is_demoted =
            status["demoted"].as_bool().ok_or_else(|| Failure::new("a device is not said to be demoted"))?;
        Ok(Demotion { is_demoted, stalls: number("stalls")?, stalled: Duration::from_nanos(number("stalled_ns")?) })
    }

    /// The core time that a tenant was charged with.
    pub fn core_time(&self, tenant: &str) -> Result<Duration, Failure> {
        let status = self.daemon.status()?;
        let all = status["tenants"].as_array().into_iter().flatten();
        let its = all.filter(|other| other["name"] == tenant).filter_map(|other| other["core_time_ns"].as_u64()).next();
        its.map(Duration::from_nanos).ok_or_else(|| Failure::new(format!("status has no core time of {tenant}")))
    }

    fn errors(&self) -> Result<u64, Failure> {
        Ok(self.device()?["queues"][0]["errors"].as_u64().unwrap_or(0))
    }

    /// Why the queue is broken, if it is.
    fn broken_reason(&self) -> Result<Option<String>, Failure> {
        let device = self.device()?;
        let reason = device["queues"][0]["broken_reason"].as_str();
        Ok(reason.filter(|_| device["state"] == "broken").map(str::to_owned))
    }

    fn broken(&self, reason: &str) -> Result<String, Failure> {
        wait_for_reason(reason, SOON, || self.broken_reason())
    }

    fn no_longer_broken(&self) -> Result<(), Failure> {
        wait_until("status to show the device at work again", SOON, || {
            let device = self.device()?;
            let healed = device["broken_reason"].is_null() && device["queues"][0]["broken_reason"].is_null();
            Ok((device["state"] == "running" && healed).then_some(()))
        })
    }

    fn log(&self) -> Result<String, Failure> {
        std::fs::read_to_string(self.folder.join("softdpu.log")).context("softdpu's log")
    }

    /// The line since `from` that names the device and has these words.
    fn logged(&self, from: usize, words: &str) -> Result<String, Failure> {
        let found = wait_until("the log to tell the reason", SOON, || {
            let log = self.log()?;
            let line = log[from..].lines().find(|line| line.contains(words) && line.contains("hostile-disk"));
            Ok(line.map(|line| line.split_once("hostile-disk").map_or(line, |(_, rest)| rest).trim().to_owned()))
        });
        found.map_err(|error| {
            let log = self.log().unwrap_or_default();
            Failure::new(format!("{error}; expected `{words}`, it says {}", &log[from..]))
        })
    }

    /// Open descriptors of supervisor and data plane while only the bystander is connected: no more than `wanted` says,
    /// or what they settle at.
    pub fn descriptors_at_rest(&mut self, wanted: Option<(usize, usize)>) -> Result<(usize, usize), Failure> {
        let supervisor = self.supervisor()?.as_raw_nonzero();
        let data_plane = self.data_plane.0;
        let count = |pid: &dyn std::fmt::Display| {
            std::fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).context("counting descriptors")
        };
        let now = || Ok::<_, Failure>((count(&supervisor)?, count(&data_plane)?));
        // What is closed by messages between two processes takes a moment.
        let mut last = now()?;
        let (mut same, start) = (0, Instant::now());
        while start.elapsed() < SOON {
            std::thread::sleep(Duration::from_millis(100));
            let next = now()?;
            same = if next == last { same + 1 } else { 0 };
            if wanted.map_or(same >= 10, |wanted| next.0 <= wanted.0 && next.1 <= wanted.1) {
                return Ok(next);
            }
            last = next;
        }
        Ok(last)
    }

    pub fn stop(self) -> Result<(), Failure> {
        self.daemon.stop()
    }
}

fn same(seen: &Seen, expected: &Seen) -> Result<(), Failure> {
    if seen == expected { Ok(()) } else { Err(Failure::new(format!("expected {expected:?}, saw {seen:?}"))) }
}

/// The device status has DEVICE_NEEDS_RESET (virtio 1.3 §2.1), or not.
fn needs_reset(front: &mut FrontEnd, expected: bool) -> Result<(), Failure> {
    let Answer::Number(status) = front.call(&Message::GetStatus, &[])? else {
        return Err(Failure::new("GET_STATUS was not answered with a number"));
    };
    if (status & NEEDS_RESET != 0) == expected {
        return Ok(());
    }
    Err(Failure::new(format!("the device status is {status:#x}, DEVICE_NEEDS_RESET should be {expected}")))
}

/// A normal read gives what is there.
fn probe(front: &mut FrontEnd) -> Result<(), Failure> {
    let found = front.read_block(PROBE)?;
    if found == pattern(PROBE, 1) && found.len() == BLOCK {
        return Ok(());
    }
    Err(Failure::new("a normal read found other data than was written"))
}

/// The device's other socket of the same domain.
pub fn second_socket(front: &FrontEnd) -> Result<PathBuf, Failure> {
    let address = front.socket.peer_addr().context("the peer's address")?;
    let path = address.as_pathname().ok_or_else(|| Failure::new("the peer has no path"))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    Ok(folder.join("second-disk.sock"))
}
