//! The data plane: the process that does the work and may be killed at any instant.
//!
//! Its control thread, here, takes messages from the supervisor and events from the cores, one at a time, and never
//! waits for a peer: what may block runs on a thread of its own ([`opener`]). Everything it must not lose is with the
//! supervisor before it can be relied on: see [`softdpu_link`].

#![forbid(unsafe_code)]

mod broker;
mod calls;
mod connection;
mod device;
mod devices;
mod disk;
mod explain;
mod functions;
mod isolation;
mod loader;
mod model;
mod networks;
mod nic;
mod opener;
mod placements;
mod policy;
mod report;
mod rings;
mod routing;
mod scale;
mod steering;
mod tap;
mod tenants;
mod trace;
mod underlay;
mod upgrade;
mod volumes;

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softdpu_engine::{Engine, EngineConfig, EngineError, FromCore};
use softdpu_sched::{Nanos, YieldPolicy, YieldTuning};
use softdpu_storage::{Broker, Volume};
use softdpu_sys::{affinity, clock};
use thiserror::Error;

use self::broker::Wire;
use self::device::{Device, Event, Host};
use self::devices::Devices;
use self::functions::Functions;
use self::isolation::Walls;
use self::networks::Networks;
use self::placements::Placements;
use self::steering::Steering;
use self::tenants::Tenants;
use self::trace::Traces;
use self::upgrade::Role;
use self::volumes::{News, Volumes};
use softdpu_api::{ApiError, ErrorCode};
use softdpu_link::{BEAT, Down, LOADED, LinkError, Up, monotonic_ns};
use softdpu_site::{self as config, Dataplane, IdleSleep, Site, Yield};
use softdpu_sys::ReapedFd;

/// How long the site's volumes have to open before this process says that it is ready without them: files open within
/// milliseconds, and a server that does not answer must not keep the others waiting.
const SETTLING: Duration = Duration::from_millis(500);

/// Messages handled before the cores' events are read again.
const MESSAGES_A_ROUND: u32 = 64;

/// How long the first message may take.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// Submission entries of each core's io_uring.
const IO_DEPTH: u32 = 1024;

/// Why the data plane ended.
#[derive(Debug, Error)]
pub enum DataPlaneError {
    /// The supervisor is gone, or a frame of it could not be decoded.
    #[error("link to the supervisor: {0}")]
    Link(#[from] LinkError),
    /// `Start` was not its first frame.
    #[error("the supervisor did not say what to be")]
    NoStart,
    /// `isolation = "required"`, and not all of it can be had.
    #[error("isolation is required, and not all of it can be had: {0}")]
    Isolation(String),
    /// The cores did not start.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A system call failed.
    #[error("{0}")]
    Os(#[from] std::io::Error),
}

struct DataPlane {
    wire: Arc<Wire>,
    engine: Engine,
    placements: Placements,
    tenants: Tenants,
    volumes: Volumes,
    networks: Networks,
    functions: Functions,
    devices: Devices,
    steering: Steering,
    traces: Traces,
    isolation: Walls,
    /// When the data plane before this one ended or let go, [`monotonic_ns`], until the first completion has shown how
    /// long the outage was.
    outage_since: Option<u64>,
    /// The same for good.
    since_ns: Option<u64>,
    /// [`Up::Ready`] was sent, or [`Up::Prepared`].
    ready: bool,
    role: Role,
    /// A queue has stopped: perhaps no other uses its volume.
    has_stops: bool,
    stopping: bool,
}

/// Runs the data plane on its end of the link until the supervisor ends it. `logging` is told the site's log settings
/// before anything is logged.
///
/// # Errors
/// [`DataPlaneError`]; the supervisor logs it and starts another.
pub fn run(socket: OwnedFd, logging: impl FnOnce(&config::Log)) -> Result<(), DataPlaneError> {
    softdpu_memory::catch_bus_errors();
    softdpu_sys::files::ignore_size_signal();
    abort_on_panic();
    let wire = Wire::new(socket)?;
    wire.send(&upgrade::hello(), Vec::new())?;
    let start = wire.wait(START_PATIENCE)?;
    let Some((Down::Start { site, incarnation, kept, placements, death, loaded, standby }, fds)) = start else {
        return Err(DataPlaneError::NoStart);
    };
    logging(&site.node.log);
    tracing::debug!(incarnation, kept = kept.len(), "data plane starts");
    wire.remember(kept, fds);
    if let Err(error) = affinity::highest_session() {
        tracing::debug!(%error, "the data plane has no session of its own to have its CPUs first");
    }
    // While there is no other thread.
    let mut walls = Walls::around_process(&site);
    let cpus: Vec<usize> = site.node.dataplane.cores.iter().map(|cpu| *cpu as usize).collect();
    let engine = Engine::start(&EngineConfig {
        spare: scale::spare(&site.node.dataplane),
        cpus,
        // The CPUs are another data plane's while this one is on standby.
        yielding: if standby { AT_ONCE } else { yielding(&site) },
        io_depth: IO_DEPTH,
        fairness: site.node.fairness.policy(),
        recordings: recordings(site.node.record.as_deref(), site.node.dataplane.cores.len(), incarnation),
        flows: site.node.tables.flows as usize,
    })?;
    // The cores have what they need rights and new calls for; nothing that a guest or a peer wrote has been looked at.
    walls.around_cores();
    walls.check()?;
    let functions = Functions::start(&site.functions, &engine);
    let networks = Networks::new(&site.networks, &site.tenants, &site.node, Arc::clone(&wire));
    let networks = networks.map_err(std::io::Error::from)?;
    let mut plane = DataPlane {
        volumes: Volumes::new(Arc::clone(&wire) as Arc<dyn Broker>).map_err(std::io::Error::from)?,
        wire,
        engine,
        placements: Placements::new(&site.node.dataplane.cores, placements),
        tenants: Tenants::default(),
        networks,
        functions,
        devices: Devices::new(domain_memory(&site.node.dataplane)),
        steering: Steering::default(),
        traces: Traces::default(),
        isolation: walls,
        since_ns: death.as_ref().map(|death| death.at_ns),
        outage_since: death.map(|death| death.at_ns),
        ready: false,
        role: Role::Serving,
        has_stops: false,
        stopping: false,
    };
    plane.prepare(&site, loaded);
    if standby {
        plane.role = Role::Standby(site);
    } else {
        plane.set_up(&site, Instant::now())?;
    }
    plane.serve()?;
    let DataPlane { engine, mut functions, .. } = plane;
    // Cores report what they have left when they end.
    drop(engine);
    functions.finish();
    Ok(())
}

/// How cores yield whose CPUs are another data plane's.
const AT_ONCE: YieldPolicy = YieldPolicy::After(Nanos(0));

/// When cores give their CPUs away.
fn yielding(site: &Site) -> YieldPolicy {
    let Dataplane { idle_sleep, yields, .. } = &site.node.dataplane;
    match (idle_sleep, yields) {
        (IdleSleep::Never, _) => YieldPolicy::Never,
        (IdleSleep::After(span), Yield::Off) => YieldPolicy::After(Nanos(span.0.as_nanos() as u64)),
        (IdleSleep::After(span), Yield::Adaptive) => {
            YieldPolicy::Adaptive(YieldTuning::spinning(Nanos(span.0.as_nanos() as u64)))
        }
    }
}

/// The files in which so many cores are recorded. Each has its own, and a data plane that follows another does not
/// write over what that has recorded: it is why it is looked at.
fn recordings(file: Option<&Path>, cores: usize, incarnation: u64) -> Vec<PathBuf> {
    let Some(file) = file else { return Vec::new() };
    let again = if incarnation > 1 { format!(".{incarnation}") } else { String::new() };
    let of = |core: usize| {
        let core = if cores > 1 { format!(".core{core}") } else { String::new() };
        let mut name = file.as_os_str().to_owned();
        name.push(core + &again);
        PathBuf::from(name)
    };
    (0..cores).map(of).collect()
}

/// A thread that panics takes the process with it: the supervisor starts another at once, which a half-dead process
/// with a core less would keep it from.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

/// Bytes that a domain may have mapped: by default four times the host's memory, which a guest may share twice while
/// its memory table changes, and which leaves a process room for a thousand guests.
fn domain_memory(settings: &config::Dataplane) -> u64 {
    settings.domain_memory.map_or_else(|| softdpu_sys::pages::of_host().saturating_mul(4), |bytes| bytes.0)
}

impl DataPlane {
    /// Begins what takes time and disturbs no other data plane: tenants, volumes, loaded entries.
    fn prepare(&mut self, site: &Site, loaded: Vec<String>) {
        for tenant in &site.tenants {
            match self.tenants.set(tenant, &mut self.engine) {
                Some(id) => self.networks.know_tenant(&tenant.name, id),
                None => tracing::error!(tenant = tenant.name, "there are too many tenants: it is left out"),
            }
        }
        let now = Instant::now();
        for volume in &site.volumes {
            self.volumes.add(volume.clone(), None, now);
        }
        // Before the first tables: no address is to be unknown that a loaded entry has.
        if let Some(file) = self.wire.kept_fd(LOADED) {
            self.networks.load_kept(&file, loaded);
        }
    }

    /// Opens interfaces and makes devices: from now on this is the data plane.
    fn set_up(&mut self, site: &Site, now: Instant) -> Result<(), LinkError> {
        let follows = self.since_ns.is_some();
        self.networks.inherit(follows, now);
        if follows {
            self.tenants.spend(&mut self.engine);
        }
        if let Some(underlay) = &site.node.underlay
            && let Err(error) = self.networks.add_underlay(underlay, &mut self.engine, now)
        {
            tracing::error!(error, "networks end at this host: its underlay has no port");
        }
        if let Err(error) = self.steering.set(site.node.steering.clone(), &self.placements, &mut self.engine) {
            tracing::error!(error, "packets from tunnels are worked on where they are read");
        }
        self.networks.wait();
        for device in &site.devices {
            self.add_device(device)?;
        }
        let DataPlane { networks, functions, engine, devices, wire, placements, since_ns, .. } = self;
        for (name, error) in networks.publish_all(functions, engine) {
            devices.cannot_be_served(&name, error, &mut Host { engine, wire, placements, since_ns: *since_ns })?;
        }
        Ok(())
    }

    fn add_device(&mut self, device: &config::Device) -> Result<(), LinkError> {
        let DataPlane { tenants, volumes, networks, functions, engine, wire, placements, devices, since_ns, .. } = self;
        let Some(tenant) = tenants.of(device, engine) else {
            tracing::error!(
                device = device.name,
                tenant = device.tenant,
                "there is no such tenant: device is left out"
            );
            return Ok(());
        };
        devices.add(
            device,
            tenant,
            (volumes, networks, functions),
            &mut Host { engine, wire, placements, since_ns: *since_ns },
        )
    }

    /// Moves queues to where there is room, but those that the site or an operator has put somewhere, and flows from
    /// tunnels.
    fn balance(&mut self) {
        let DataPlane { engine, devices, placements, networks, .. } = self;
        let stays = |device: &str, queue: u16| {
            let has_cores = |device: &Device| device.config.cores.as_ref().is_some_and(|cores| !cores.is_empty());
            devices.get(device).is_none_or(has_cores) || placements.moved(device, queue).is_some()
        };
        let now = Nanos(clock::now());
        for (key, core) in engine.balance(now, stays) {
            tracing::debug!(queue = key.number, core = core.0, "a queue was moved to even out the load");
        }
        let moved = engine.balance_tunnels(now, networks.underlay_port());
        if moved > 0 {
            tracing::debug!(moved, "flows from tunnels were moved to even out the load");
        }
    }

    fn serve(&mut self) -> Result<(), DataPlaneError> {
        let wire = Arc::clone(&self.wire);
        let settled = Instant::now() + if matches!(self.role, Role::Serving) { SETTLING } else { upgrade::SETTLING };
        // Not at once: a core that was just started may not have gone round yet.
        let mut beat = Instant::now() + BEAT;
        loop {
            self.turn_volumes()?;
            let serves = matches!(self.role, Role::Serving);
            if serves {
                self.networks.turn(&self.engine, Instant::now());
            }
            self.turn_loads()?;
            // Bounded: busy front ends must keep neither the cores' events nor the beat waiting.
            let mut taken = 0;
            while taken < MESSAGES_A_ROUND
                && let Some((message, fds)) = self.wire.next()?
            {
                self.handle(message, fds)?;
                taken += 1;
            }
            if self.stopping {
                break;
            }
            while let Some(event) = self.engine.event() {
                self.core_event(&event)?;
            }
            self.let_go_if_quiet()?;
            let now = Instant::now();
            let serves = matches!(self.role, Role::Serving);
            if serves && (std::mem::take(&mut self.has_stops) || self.volumes.is_yield_due(now)) {
                self.volumes.yield_unused(&self.devices.volumes_in_use(), now);
            }
            let fences = if serves { self.with_host(|devices, host| devices.start_waiting(now, host)) } else { None };
            if now >= beat {
                beat = now + BEAT;
                if serves {
                    self.balance();
                }
                // No beat for a core that is stuck: the supervisor's watchdog then starts a new data plane.
                if self.engine.cores_advance() {
                    self.wire.send(&Up::Alive, Vec::new())?;
                } else {
                    tracing::error!("a data-plane core has not gone round its loop for a second");
                }
            }
            let is_settled = self.volumes.are_settled() && !self.networks.is_loading();
            if !self.ready && (is_settled || now >= settled) {
                self.ready = true;
                let ready = if serves { Up::Ready } else { self.prepared() };
                self.wire.send(&ready, Vec::new())?;
            }
            let (mut taps, mut networks) = (None, None);
            if serves {
                taps = self.devices.open_taps(now, &self.networks, &self.wire, &mut self.engine);
                networks = self.networks.next_deadline();
            }
            if taken == MESSAGES_A_ROUND || self.wire.has_passed_over() || !self.engine.prepare_wait() {
                continue;
            }
            let settled = (!self.ready).then_some(settled);
            let due = [Some(beat), fences, settled, self.volumes.next_deadline(), networks, taps];
            let due = due.into_iter().flatten().min();
            let pause = due.unwrap_or(beat).saturating_duration_since(now);
            let pause = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
            let bell = self.engine.bell();
            let mut fds = [
                PollFd::from_borrowed_fd(wire.fd(), PollFlags::IN),
                PollFd::new(&bell, PollFlags::IN),
                PollFd::from_borrowed_fd(self.volumes.bell(), PollFlags::IN),
                PollFd::from_borrowed_fd(self.networks.loads(), PollFlags::IN),
                // Twice the same where there is no underlay.
                PollFd::from_borrowed_fd(self.networks.bell().unwrap_or(wire.fd()), PollFlags::IN),
                PollFd::from_borrowed_fd(self.networks.bfd_bell().unwrap_or(wire.fd()), PollFlags::IN),
            ];
            // EINTR is a wake-up like any other.
            let _ = poll(&mut fds, Some(&pause));
            self.engine.waited();
        }
        Ok(())
    }

    /// Goes on with entries that were loaded.
    fn turn_loads(&mut self) -> Result<(), LinkError> {
        while let Some((asked, result)) = self.networks.loaded(&self.engine) {
            if let Some(id) = asked {
                let result = result.map(|result| self.warned(result));
                self.wire.send(&Up::Answer { id, result }, Vec::new())?;
            }
        }
        Ok(())
    }

    /// The devices, with what they need of their surroundings.
    fn with_host<T>(&mut self, act: impl FnOnce(&mut Devices, &mut Host<'_>) -> T) -> T {
        let DataPlane { devices, engine, wire, placements, since_ns, .. } = self;
        act(devices, &mut Host { engine, wire, placements, since_ns: *since_ns })
    }

    /// Tells devices and callers what became of volumes.
    fn turn_volumes(&mut self) -> Result<(), LinkError> {
        for news in self.volumes.turn(Instant::now()) {
            let (asked, result) = match news {
                News::Opened { volume, asked } => {
                    self.with_host(|devices, host| devices.volume_opened(&volume, host))?;
                    (asked, Ok(()))
                }
                News::Failing { name, reason } => {
                    self.with_host(|devices, host| devices.volume_failing(&name, &reason, host))?;
                    continue;
                }
                News::NotCreated { reason, asked } => (Some(asked), Err(reason)),
                News::Grown { name, size, result, asked } => {
                    (asked, result.and_then(|()| self.devices.volume_grown(&name, size)))
                }
                News::Settled(volume) => {
                    self.give_up_fence(&volume);
                    continue;
                }
            };
            if let Some(id) = asked {
                let result = result.map(|()| calls::nothing()).map_err(|error| ApiError::new(ErrorCode::Failed, error));
                self.wire.send(&Up::Answer { id, result }, Vec::new())?;
            }
        }
        Ok(())
    }

    /// Another host may have the volume now, unless a queue uses it again.
    fn give_up_fence(&mut self, volume: &Arc<Volume>) {
        let name = volume.name();
        let mut kept = false;
        if matches!(self.role, Role::Serving) && !self.devices.volumes_in_use().contains(name) {
            self.engine.detach(volume);
            kept = match volume.release() {
                Ok(released) => !released,
                Err(error) => {
                    tracing::error!(%error, "the volume is not given up to another host yet");
                    true
                }
            };
        }
        self.volumes.yielded(name, kept, Instant::now());
    }

    fn handle(&mut self, message: Down, fds: Vec<ReapedFd>) -> Result<(), DataPlaneError> {
        match message {
            Down::Attach { device, connection, session, fds: ids, more } => {
                let fds = ids.into_iter().zip(fds.into_iter().map(Arc::new)).collect();
                Ok(self.with_host(|devices, host| devices.attach(device, connection, session, fds, more, host))?)
            }
            Down::Message { connection, header, payload, fds: ids } => {
                let fds = ids.into_iter().zip(fds).collect();
                let message = Event::Message { connection, header, payload, fds };
                Ok(self.with_host(|devices, host| devices.event(connection, message, host))?)
            }
            Down::Closed { connection } => {
                self.has_stops = true;
                Ok(self.with_host(|devices, host| devices.closed(connection, host))?)
            }
            Down::Call { id, call } => {
                if let Some(result) = self.call(id, call, fds)? {
                    self.wire.send(&Up::Answer { id, result }, Vec::new())?;
                }
                Ok(())
            }
            Down::Shutdown => {
                self.networks.bequeath();
                self.stopping = true;
                Ok(())
            }
            Down::Opened { call, result } => {
                self.wire.opened(call, result, fds);
                Ok(())
            }
            Down::TakeOver { since_ns, kept, forgotten } => Ok(self.take_over(since_ns, (kept, fds), &forgotten)?),
            Down::Quiesce { patience_ms } => {
                self.quiesce(Duration::from_millis(patience_ms));
                Ok(())
            }
            Down::Start { .. } => {
                tracing::error!("a second start is ignored");
                Ok(())
            }
        }
    }

    fn core_event(&mut self, event: &FromCore) -> Result<(), LinkError> {
        self.stopped_for_good(event);
        self.has_stops |= matches!(event, FromCore::Stopped { .. });
        let key = match event {
            FromCore::Stopped { key, .. } | FromCore::Updated { key, .. } | FromCore::Broken { key, .. } => *key,
            FromCore::SocketLost { port, reason } => {
                let DataPlane { devices, engine, wire, placements, networks, since_ns, .. } = self;
                return devices.socket_lost(
                    *port,
                    reason,
                    networks,
                    &mut Host { engine, wire, placements, since_ns: *since_ns },
                );
            }
            // The engine has moved it.
            FromCore::Stalled { .. } => return Ok(()),
            FromCore::FirstCompletion { .. } => {
                return match self.outage_since.take() {
                    Some(since_ns) => {
                        let ns = monotonic_ns().saturating_sub(since_ns);
                        self.wire.send(&Up::FirstCompletion { ns }, Vec::new())
                    }
                    None => Ok(()),
                };
            }
        };
        self.with_host(|devices, host| devices.core_event(key, event, host))
    }
}
