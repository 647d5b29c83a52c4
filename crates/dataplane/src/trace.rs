//! Clients that see frames, or bring some: each on a thread of its own, which ends with its connection.

mod replay;
mod show;
mod socket;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use softdpu_engine::{CaptureSpec, CaptureTally, Engine};

use self::replay::Replay;
use self::show::Show;
use super::networks::Networks;
use softdpu_api::status::TraceStatus;
use softdpu_api::{ApiError, Directions, ErrorCode, Id, PacketTrace};
use softdpu_sys::ReapedFd;

/// The most of them at once. Each costs every frame that passes a look.
const MOST_TRACES: usize = 16;

/// Those that are under way.
#[derive(Default)]
pub(super) struct Traces {
    /// Each trace and replay holds a clone.
    running: Arc<()>,
    shown: Arc<Mutex<BTreeMap<u64, Shown>>>,
    /// Of the last trace.
    id: u64,
}

/// A trace that is under way.
struct Shown {
    trace: PacketTrace,
    since: Instant,
    tally: CaptureTally,
}

/// Holds a trace's place among those that are under way, until it is dropped.
struct Listed {
    id: u64,
    shown: Arc<Mutex<BTreeMap<u64, Shown>>>,
}

impl Traces {
    fn list(&mut self, trace: &PacketTrace, tally: CaptureTally) -> Listed {
        self.id += 1;
        let shown = Shown { trace: trace.clone(), since: Instant::now(), tally };
        lock(&self.shown).insert(self.id, shown);
        Listed { id: self.id, shown: Arc::clone(&self.shown) }
    }

    /// For `status`.
    pub(super) fn statuses(&self) -> Vec<TraceStatus> {
        let status = |(id, Shown { trace, since, tally }): (&u64, &Shown)| {
            let counts = tally.read();
            TraceStatus {
                id: *id,
                ports: trace.ports.clone(),
                filter: trace.filter.clone(),
                captured: counts.matched.saturating_sub(counts.lost),
                lost: counts.lost,
                for_s: since.elapsed().as_secs(),
            }
        };
        lock(&self.shown).iter().map(status).collect()
    }
}

impl Drop for Listed {
    fn drop(&mut self) {
        lock(&self.shown).remove(&self.id);
    }
}

fn lock<T>(shown: &Mutex<T>) -> MutexGuard<'_, T> {
    // Whole after every step.
    shown.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Traces {
    /// Shows frames to a client.
    pub(super) fn show(
        &mut self,
        trace: &PacketTrace,
        greeting: String,
        fds: Vec<ReapedFd>,
        networks: &Networks,
        engine: &mut Engine,
    ) -> Result<(), ApiError> {
        let (socket, running) = self.begin(fds)?;
        let filter = trace.check()?;
        let capture = engine.capture(CaptureSpec {
            ports: trace.ports.clone(),
            filter,
            inward: trace.direction != Directions::Out,
            outward: trace.direction != Directions::In && !trace.tiers,
            drops: trace.drops,
            tiers: trace.tiers,
            snaplen: trace.snaplen,
            buffer: usize::try_from(trace.buffer.0).unwrap_or(usize::MAX),
        });
        let capture =
            capture.map_err(|error| ApiError::new(ErrorCode::Failed, format!("nothing can be captured: {error}")))?;
        tracing::info!(ports = ?trace.ports, filter = trace.filter, "a packet trace begins");
        let wanted = |name: &str| trace.ports.is_empty() || trace.ports.iter().any(|port| port == name);
        let ports = networks.descriptions().filter(|(name, _)| wanted(name));
        let listed = self.list(trace, capture.tally());
        let show = Show::new(socket, capture, trace, greeting, ports);
        spawn("trace", running, move || {
            let counts = show.run();
            drop(listed);
            tracing::info!(%counts, "a packet trace has ended");
        })
    }

    /// Takes frames from a client.
    pub(super) fn replay(
        &mut self,
        port: &str,
        id: Id,
        fds: Vec<ReapedFd>,
        networks: &Networks,
        engine: &mut Engine,
    ) -> Result<(), ApiError> {
        let (socket, running) = self.begin(fds)?;
        let missing = || {
            ApiError::new(ErrorCode::Unavailable, format!("port '{port}' is not served now: `softdpu status` says why"))
        };
        let number = networks.port_id(port).ok_or_else(missing)?;
        let injector = engine.injector(number, port);
        let injector = injector
            .map_err(|error| ApiError::new(ErrorCode::Failed, format!("no frame can be brought in: {error}")))?;
        tracing::info!(port, "a replay begins");
        let (replay, name) = (Replay::new(socket, injector, id), port.to_owned());
        spawn("replay", running, move || {
            let frames = replay.run();
            tracing::info!(port = name, frames, "a replay has ended");
        })
    }

    /// The client's connection, if there may be one more of them.
    fn begin(&self, fds: Vec<ReapedFd>) -> Result<(OwnedFd, Arc<()>), ApiError> {
        if Arc::strong_count(&self.running) > MOST_TRACES {
            return Err(ApiError::new(
                ErrorCode::Busy,
                format!("there are {MOST_TRACES} traces and replays already: end one of them"),
            ));
        }
        let socket = fds.into_iter().next().map(ReapedFd::into_owned);
        let socket =
            socket.ok_or_else(|| ApiError::new(ErrorCode::Failed, "no connection came with the request".to_owned()))?;
        Ok((socket, Arc::clone(&self.running)))
    }
}

/// Runs `work` on a thread that holds `running` meanwhile.
fn spawn(name: &str, running: Arc<()>, work: impl FnOnce() + Send + 'static) -> Result<(), ApiError> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _running = running;
        work();
    });
    spawned.map(drop).map_err(|error| ApiError::new(ErrorCode::Failed, format!("no thread can be started: {error}")))
}
