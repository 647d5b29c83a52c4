//! Servers of disks [side by side](crate::side_by_side).

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use softdpu_frontend::load::block::{self, BlockLoad};
use softdpu_frontend::load::{LoadError, Outcome, Pattern, Waiting};
use softdpu_frontend::{BlockFrontEnd, BlockOptions, Format};

use crate::SetupError;
use crate::report::{BlockReport, Case};
use crate::scratch::ScratchFile;
use crate::side_by_side::{self, PROFILE, Progress, Terms, WARM_UP, on_cpu};
use crate::subject::{Service, Subject, Volume};
use crate::turns::Turn;

/// Bytes of a null volume: nothing is stored.
const NULL_SIZE: u64 = 16 << 30;
/// Bytes of a memory or file volume: more than any processor's cache, little enough for any page cache.
const STORED_SIZE: u64 = 256 << 20;

/// Which volume to measure with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VolumeKind {
    /// Nothing behind it.
    Null,
    /// The server's memory.
    Memory,
    /// A file in the page cache.
    File,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Servers, the one the others are compared with last.
    pub subjects: Vec<Subject>,
    /// Volume of those that are started here.
    pub volume: VolumeKind,
    /// Access pattern.
    pub pattern: Pattern,
    /// Bytes of a request.
    pub block_size: u32,
    /// Queues.
    pub queues: u16,
    /// Ring layout.
    pub format: Format,
    /// Requests in flight on each queue, one case each.
    pub depths: Vec<usize>,
    /// Clients, one case each.
    pub clients: Vec<Waiting>,
    /// Measurements of each case and subject.
    pub rounds: usize,
    /// Of one measurement.
    pub duration: Duration,
    /// CPU of the client.
    pub client_cpu: usize,
    /// CPU of the server.
    pub server_cpu: usize,
    /// Folder for the file of a file volume.
    pub folder: std::path::PathBuf,
}

impl Plan {
    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &client in &self.clients {
            for &depth in &self.depths {
                cases.push(Case {
                    volume: self.volume,
                    pattern: self.pattern,
                    block_size: self.block_size,
                    queues: self.queues,
                    format: self.format,
                    client,
                    depth,
                });
            }
        }
        cases
    }

    fn options(&self) -> BlockOptions {
        let deepest = self.depths.iter().copied().max().unwrap_or(1).clamp(1, 8192);
        // Three descriptors a request; a power of two suits both formats.
        let queue_size = (deepest * 3).next_power_of_two().max(256) as u16;
        BlockOptions {
            queues: self.queues,
            queue_size,
            format: self.format,
            max_transfer: self.block_size,
            ..BlockOptions::default()
        }
    }

    fn check(&self) -> Result<(), SetupError> {
        self.terms().check(self.subjects.len(), self.depths.len() * self.clients.len())?;
        // 1,024 descriptors are what every server takes.
        if self.depths.iter().any(|depth| !(1..=341).contains(depth)) {
            let what = "depths are from 1 to 341: three descriptors a request, 1,024 in a queue";
            return Err(SetupError::Plan(what.to_owned()));
        }
        Ok(())
    }

    fn terms(&self) -> Terms {
        Terms { rounds: self.rounds, client_cpu: self.client_cpu, server_cpu: self.server_cpu }
    }
}

/// Measures all of `plan`, and calls `progress` before each measurement.
///
/// # Errors
/// [`SetupError`] for the first thing that goes wrong.
pub fn run(plan: &Plan, progress: impl FnMut(Progress<'_, Case>)) -> Result<BlockReport, SetupError> {
    plan.check()?;
    let file = match plan.volume {
        VolumeKind::File => Some(filled_file(&plan.folder)?),
        _ => None,
    };
    let volume = match (&plan.volume, &file) {
        (VolumeKind::Null, _) => Volume::Null,
        (VolumeKind::Memory, _) => Volume::Memory,
        (VolumeKind::File, Some(file)) => Volume::File(file.path().to_owned()),
        (VolumeKind::File, None) => return Err(SetupError::Folder("no file was made".to_owned())),
    };
    let options = plan.options();
    let service = Service {
        size: if volume == Volume::Null { NULL_SIZE } else { STORED_SIZE },
        volume,
        queues: plan.queues,
        queue_size: options.queue_size,
        cpu: plan.server_cpu,
        devices: 1,
    };
    let subjects: Vec<_> = plan.subjects.iter().filter(|subject| subject.serves(&service.volume)).collect();
    let names: Vec<_> = subjects.iter().map(|subject| subject.name()).collect();
    side_by_side::run(
        plan.terms(),
        &names,
        &plan.cases(),
        |_, _| Ok(None),
        |at, case, turn| measure(plan, subjects[at], &service, &options, case, turn),
        progress,
    )
}

fn measure(
    plan: &Plan,
    subject: &Subject,
    service: &Service,
    options: &BlockOptions,
    case: &Case,
    turn: Turn,
) -> Result<Outcome, SetupError> {
    let failed = |source: LoadError| SetupError::Load {
        subject: subject.name().to_owned(),
        case: case.to_string(),
        source: Box::new(source),
    };
    let running = subject.start(service)?;
    let mut front_end =
        BlockFrontEnd::connect_when_listening(running.socket(), options).map_err(|error| failed(error.into()))?;
    let load = BlockLoad {
        pattern: plan.pattern,
        block_size: plan.block_size,
        depth: case.depth,
        waiting: case.client,
        sectors: front_end.capacity(),
        warm_up: WARM_UP,
        duration: if turn.profile { PROFILE } else { plan.duration },
        // Any number that differs from round to round.
        seed: (turn.round as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15),
        profile: turn.profile,
    };
    on_cpu(plan.client_cpu, LoadError::Load, || block::run(front_end.queues_mut(), &load)).map_err(failed)
}

/// A file of [`STORED_SIZE`] bytes without holes, in the page cache because it was just written.
fn filled_file(folder: &Path) -> Result<ScratchFile, SetupError> {
    const CHUNK: usize = 1 << 20;
    let failed = |error: std::io::Error| SetupError::Folder(format!("in {}: {error}", folder.display()));
    let file = ScratchFile::new_in(folder, ".raw").map_err(failed)?;
    let chunk: Vec<u8> = (0..CHUNK).map(|at| (at / 512 % 255) as u8 + 1).collect();
    for at in 0..STORED_SIZE / CHUNK as u64 {
        file.as_file().write_all_at(&chunk, at * CHUNK as u64).map_err(failed)?;
    }
    // Written back now rather than in the middle of a measurement.
    file.as_file().sync_all().map_err(failed)?;
    Ok(file)
}
