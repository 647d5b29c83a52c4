//! Clients that see frames, or bring some: each on a thread of its own, which ends with its connection.

mod replay;
mod show;
mod socket;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use softdpu_engine::CaptureSpec;

use self::replay::Replay;
use self::show::Show;
use super::{DataPlane, refusal};
use crate::api::{Directions, Id, PacketTrace};
use crate::link::Refusal;

/// The most of them at once. Each costs every frame that passes a look.
const MOST_TRACES: usize = 16;

/// Counts those that are under way: each holds a clone.
#[derive(Clone, Default)]
pub(super) struct Traces(Arc<()>);

impl DataPlane {
    pub(super) fn trace_packet(
        &mut self,
        trace: &PacketTrace,
        greeting: String,
        fds: Vec<OwnedFd>,
    ) -> Result<(), Refusal> {
        let (socket, traces) = self.begin_trace(fds)?;
        let filter = trace.check().map_err(|error| refusal("invalid-params", error.to_string()))?;
        let capture = self.engine.capture(CaptureSpec {
            ports: trace.ports.clone(),
            filter,
            inward: trace.direction != Directions::Out,
            outward: trace.direction != Directions::In,
            drops: trace.drops,
            snaplen: trace.snaplen,
            buffer: usize::try_from(trace.buffer.0).unwrap_or(usize::MAX),
        });
        let capture = capture.map_err(|error| refusal("failed", format!("nothing can be captured: {error}")))?;
        tracing::info!(ports = ?trace.ports, filter = trace.filter, "a packet trace begins");
        let wanted = |name: &str| trace.ports.is_empty() || trace.ports.iter().any(|port| port == name);
        let ports = self.networks.descriptions().filter(|(name, _)| wanted(name));
        let show = Show::new(socket, capture, trace, greeting, ports);
        spawn("trace", traces, move || {
            let counts = show.run();
            tracing::info!(%counts, "a packet trace has ended");
        })
    }

    pub(super) fn trace_replay(&mut self, port: &str, id: Id, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let (socket, traces) = self.begin_trace(fds)?;
        let missing = || refusal("unavailable", format!("port '{port}' is not served now: `softdpu status` says why"));
        let number = self.networks.port_id(port).ok_or_else(missing)?;
        let injector = self.engine.injector(number, port);
        let injector = injector.map_err(|error| refusal("failed", format!("no frame can be brought in: {error}")))?;
        tracing::info!(port, "a replay begins");
        let (replay, name) = (Replay::new(socket, injector, id), port.to_owned());
        spawn("replay", traces, move || {
            let frames = replay.run();
            tracing::info!(port = name, frames, "a replay has ended");
        })
    }

    /// The client's connection, if there may be one more of them.
    fn begin_trace(&self, fds: Vec<OwnedFd>) -> Result<(OwnedFd, Traces), Refusal> {
        if Arc::strong_count(&self.traces.0) > MOST_TRACES {
            return Err(refusal(
                "busy",
                format!("there are {MOST_TRACES} traces and replays already: end one of them"),
            ));
        }
        let socket = fds.into_iter().next();
        let socket = socket.ok_or_else(|| refusal("failed", "no connection came with the request".to_owned()))?;
        Ok((socket, self.traces.clone()))
    }
}

/// Runs `work` on a thread that holds `traces` meanwhile.
fn spawn(name: &str, traces: Traces, work: impl FnOnce() + Send + 'static) -> Result<(), Refusal> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let _traces = traces;
        work();
    });
    spawned.map(drop).map_err(|error| refusal("failed", format!("no thread can be started: {error}")))
}
