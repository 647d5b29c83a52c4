//! What a daemon takes while its disks are idle.

use std::fmt;
use std::io;
use std::time::{Duration, Instant};

use softdpu_frontend::{BlockFrontEnd, BlockOptions, BlockRequest, FrontEndError};

use crate::SetupError;
use crate::side_by_side::Figure;
use crate::subject::{Service, Subject, Volume};

/// After the last request, before watching begins: a core that spins before it sleeps has gone to sleep by then.
const SETTLE: Duration = Duration::from_secs(1);

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Disks, each with a front end attached.
    pub devices: usize,
    /// Resident bytes of all its processes, less guest memory. What two processes share counts for both.
    pub resident: u64,
    /// Guest memory resident in it, bytes.
    pub guest: u64,
    /// CPU time over time watched; 0.01 is a hundredth of a core.
    pub cpu: f64,
    /// How long it was watched.
    pub watched: Duration,
    /// Processes.
    pub processes: usize,
}

/// Starts `subject` with `devices` null disks, attaches a front end to each, makes one request on each, and watches for
/// `duration` how little happens.
///
/// # Errors
/// [`SetupError`], also for a subject that was not started here.
pub fn measure(subject: &Subject, devices: usize, cpu: usize, duration: Duration) -> Result<Figures, SetupError> {
    let service = Service { volume: Volume::Null, size: 1 << 30, queues: 1, queue_size: 256, cpu, devices };
    let running = subject.start(&service)?;
    let failed = |source: FrontEndError| SetupError::Load {
        subject: subject.name().to_owned(),
        case: format!("idle with {devices} disks"),
        source: Box::new(source),
    };
    let mut front_ends = Vec::new();
    for socket in running.sockets() {
        let mut front_end = BlockFrontEnd::connect_when_listening(socket, &BlockOptions::default()).map_err(failed)?;
        let queue = front_end.queue_mut(0);
        queue.submit(BlockRequest::Read { sector: 0, len: 4096 }).map_err(failed)?;
        queue.publish();
        queue.wait(Duration::from_secs(5)).map_err(failed)?;
        front_ends.push(front_end);
    }
    let server = running.server().ok_or_else(|| {
        SetupError::Plan("a socket's server was not started here: its processes are unknown".to_owned())
    })?;
    std::thread::sleep(SETTLE);
    let family = server.family();
    let (before, start) = (cpu_time(&family), Instant::now());
    std::thread::sleep(duration);
    let (after, watched) = (cpu_time(&family), start.elapsed());
    let (mut resident, mut guest) = (0, 0);
    for pid in &family {
        let (own, shared) = memory(*pid);
        resident += own;
        guest += shared;
    }
    Ok(Figures {
        devices,
        resident,
        guest,
        cpu: after.saturating_sub(before) as f64 / watched.as_nanos() as f64,
        watched,
        processes: family.len(),
    })
}

/// Nanoseconds on a CPU, of all threads of all `processes`.
fn cpu_time(processes: &[u32]) -> u64 {
    let mut nanos = 0;
    for pid in processes {
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            nanos += text.split_whitespace().next().and_then(|first| first.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    nanos
}

/// Resident bytes of a process: without the memory front ends share with it, and of that memory.
fn memory(pid: u32) -> (u64, u64) {
    sum_resident(&std::fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default())
}

fn sum_resident(smaps: &str) -> (u64, u64) {
    let (mut own, mut guest, mut is_guest) = (0, 0, false);
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if first == "Rss:" {
            let bytes = line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024;
            *(if is_guest { &mut guest } else { &mut own }) += bytes;
        } else if !first.ends_with(':') {
            // The line that opens a mapping; its name is the last field.
            is_guest = line.contains("memfd:softdpu-front-end");
        }
    }
    (own, guest)
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} idle disks with front ends attached, watched for {:.1} s: {:.1} MiB resident in {} processes beyond {:.1} \
             MiB of guest memory, {:.3}% of a core",
            self.devices,
            self.watched.as_secs_f64(),
            self.resident as f64 / f64::from(1 << 20),
            self.processes,
            self.guest as f64 / f64::from(1 << 20),
            self.cpu * 100.0
        )
    }
}

impl Figures {
    /// One JSON object a line.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        let case = format!("{} disks", self.devices);
        for (metric, unit, value) in [
            ("resident", "B", self.resident as f64),
            ("guest-memory-resident", "B", self.guest as f64),
            ("cpu", "core", self.cpu),
        ] {
            Figure { bench: "idle", subject: "softdpu", case: &case, metric, unit, value }.write(to)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_memory_is_told_apart_from_the_rest() {
        let smaps = "\
5500-5600 r-xp 00000000 00:01 7 /usr/bin/softdpu
Rss:                 100 kB
Pss:                  50 kB
VmFlags: rd ex
7f00-7f10 rw-s 00000000 00:01 9 /memfd:softdpu-front-end (deleted)
Rss:                  28 kB
7f20-7f30 rw-p 00000000 00:00 0
Rss:                   4 kB
";
        assert_eq!(sum_resident(smaps), (104 * 1024, 28 * 1024));
    }
}
