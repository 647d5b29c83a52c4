//! `softdpu run`: from the site file to a running node.

use std::fs;
use std::io::{self, Seek, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use softdpu_sys::signals::SignalFd;
use thiserror::Error;

use super::desired::{Desired, StateError};
use super::process::{Program, Spawner};
use super::socket::SocketError;
use super::supervisor::{Handle, Supervisor, Timing};
use crate::metrics_http;
use softdpu_api::status::{NodeStatus, prometheus};
use softdpu_site::{self as config, DeviceKind, Report, Severity, Site};

/// The file in the run directory that says which process runs it, and is locked by that process.
const LOCK: &str = "supervisor.pid";

/// How long a scrape waits for the data plane's counters.
const SCRAPE_PATIENCE: Duration = Duration::from_secs(3);

/// How to run, beside what the site file says.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// How long things may take.
    pub timing: Timing,
    /// The program that is the data plane, called with [`SUBCOMMAND`](super::SUBCOMMAND); the running one where absent.
    pub program: Option<PathBuf>,
    /// Where cores are recorded, whatever the site file says of that.
    pub record: Option<PathBuf>,
}

/// Why the node does not run, or no longer.
#[derive(Debug, Error)]
pub enum RunError {
    /// The site file has errors.
    #[error("{0}")]
    Site(Report),
    /// The changes of the last run cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// A socket cannot be listened on.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// The run directory cannot be used.
    #[error("the run directory {} cannot be used: {source}", path.display())]
    RunDirectory {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Another supervisor runs there.
    #[error("softdpu runs in {} already{}", path.display(), pid.as_ref().map(|pid| format!(" (process {pid})")).unwrap_or_default())]
    Running {
        /// The run directory.
        path: PathBuf,
        /// The other's process id, as far as it can be read.
        pid: Option<String>,
    },
    /// Metrics cannot be served.
    #[error("metrics cannot be served at {address}: {source}")]
    Metrics {
        /// `node.metrics.listen`.
        address: std::net::SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Signals cannot be waited for.
    #[error("signals cannot be waited for: {0}")]
    Signals(io::Error),
    /// What another program has left cannot be taken up.
    #[error("the supervisor cannot go on: {0}")]
    Resume(String),
    /// The kernel refused what the loop is made of.
    #[error("the supervisor's loop failed: {0}")]
    Kernel(Errno),
}

/// Runs the site at `site_path` in the foreground until it is stopped by SIGTERM, SIGINT or the management API.
///
/// # Errors
/// When it cannot be started; nothing is left behind then.
pub fn run(site_path: &Path, options: RunOptions) -> Result<(), RunError> {
    let loaded = config::load(site_path, Severity::Error);
    let Some(mut site) = loaded.site else {
        return Err(RunError::Site(loaded.report));
    };
    if !loaded.report.diagnostics.is_empty() {
        tracing::warn!("{}", loaded.report);
    }
    if let Some(record) = options.record {
        site.node.record = Some(record);
    }
    let lock = lock(&site.node.run_directory)?;
    softdpu_sys::files::ignore_size_signal();
    if let Some(warning) = softdpu_sys::files::raise_limit().and_then(|most| too_few_files(&site, most)) {
        tracing::warn!("{warning}");
    }
    let signals = SignalFd::block(&SIGNALS).map_err(RunError::Signals)?;
    let program = options.program.map_or_else(Program::this, Program::at);
    let metrics = site.node.metrics.as_ref().map(listen_for_metrics).transpose()?;
    let (mut supervisor, handle) = prepare(site, Box::new(program), options.timing)?;
    supervisor.listen_for(signals)?;
    supervisor.lock = Some(lock.into());
    supervisor.metrics = metrics;
    serve_metrics(&supervisor, handle)?;
    supervisor.run()
}

/// Goes on as the supervisor that the program before was.
pub(super) fn go_on(supervisor: Supervisor, handle: Handle) -> Result<(), RunError> {
    serve_metrics(&supervisor, handle)?;
    supervisor.go_on()
}

/// The signals that a supervisor takes.
pub(super) const SIGNALS: [i32; 3] = [SIGTERM, SIGINT, SIGHUP];

/// What either process has open beside what devices bring.
const OWN_FILES: u64 = 128;
/// What a device brings: its socket and connection, its guest's memory in several regions, where requests in flight are
/// noted.
const FILES_OF_A_DEVICE: u64 = 8;
/// What a queue brings: the two or three eventfds that its guest and the device tell each other by.
const FILES_OF_A_QUEUE: u64 = 3;

/// What there is to say where a process may not have as many files open as the site's devices are likely to bring.
fn too_few_files(site: &Site, most: u64) -> Option<String> {
    let queues = |device: &config::Device| match &device.kind {
        DeviceKind::VirtioBlk(disk) => u64::from(disk.queues),
        DeviceKind::VirtioNet(nic) => 2 * u64::from(nic.port.queues),
        DeviceKind::Tap(_) => 2,
    };
    let devices = site.devices.iter().map(|device| FILES_OF_A_DEVICE + FILES_OF_A_QUEUE * queues(device));
    let likely = OWN_FILES + devices.sum::<u64>();
    (likely > most).then(|| {
        let count = site.devices.len();
        format!(
            "{count} devices take about {likely} open files, and this process may have {most}: some guests will not be able to \
             connect. Raise the hard limit (LimitNOFILE of the unit, ulimit -Hn)"
        )
    })
}

/// The supervisor of a site, with the changes of earlier runs.
pub(super) fn prepare(site: Site, spawner: Box<dyn Spawner>, timing: Timing) -> Result<(Supervisor, Handle), RunError> {
    let desired = Desired::load(site)?;
    Supervisor::new(desired, spawner, timing)
}

/// Takes the run directory for this process, for as long as the file is open.
fn lock(folder: &Path) -> Result<fs::File, RunError> {
    let system = |source: io::Error| RunError::RunDirectory { path: folder.to_owned(), source };
    fs::create_dir_all(folder).map_err(system)?;
    let path = folder.join(LOCK);
    let mut file =
        fs::OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).map_err(system)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {}
        Err(Errno::WOULDBLOCK) => {
            let pid = fs::read_to_string(&path).ok().map(|pid| pid.trim().to_owned()).filter(|pid| !pid.is_empty());
            return Err(RunError::Running { path: folder.to_owned(), pid });
        }
        Err(error) => return Err(system(error.into())),
    }
    file.set_len(0).map_err(system)?;
    file.rewind().map_err(system)?;
    writeln!(file, "{}", std::process::id()).map_err(system)?;
    Ok(file)
}

fn listen_for_metrics(metrics: &config::Metrics) -> Result<OwnedFd, RunError> {
    let address = metrics.listen;
    let listener = TcpListener::bind(address).map_err(|source| RunError::Metrics { address, source })?;
    Ok(listener.into())
}

/// Serves metrics on a thread of its own, if the site wants them.
fn serve_metrics(supervisor: &Supervisor, handle: Handle) -> Result<(), RunError> {
    let (Some(metrics), Some(listener)) = (&supervisor.site().node.metrics, &supervisor.metrics) else {
        return Ok(());
    };
    let address = metrics.listen;
    let failed = |source| RunError::Metrics { address, source };
    // The other one is for the program that follows.
    let listener = TcpListener::from(listener.as_fd().try_clone_to_owned().map_err(failed)?);
    // A supervisor that does not answer has a metric for that: the scrape with nothing in it.
    let snapshot = move || {
        let status: Option<NodeStatus> = handle.status(SCRAPE_PATIENCE);
        status.map(|status| prometheus(&status)).unwrap_or_default()
    };
    let serve = move || {
        if let Err(error) = metrics_http::serve(listener, snapshot) {
            tracing::error!(%error, "metrics are no longer served");
        }
    };
    std::thread::Builder::new().name("metrics".into()).spawn(serve).map_err(failed)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_directory_has_one_supervisor_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = lock(folder.path()).unwrap();
        let error = lock(folder.path()).unwrap_err().to_string();
        assert!(error.contains(&format!("(process {})", std::process::id())), "{error}");
        drop(first);
        lock(folder.path()).unwrap();
    }

    #[test]
    fn a_site_file_with_errors_does_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("site.toml");
        fs::write(&path, "[node]\ncolour = 1\n").unwrap();
        let error = run(&path, RunOptions::default()).unwrap_err();
        assert!(matches!(error, RunError::Site(_)), "{error}");
    }
}
