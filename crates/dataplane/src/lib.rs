//! The data plane: the process that does the work and may be killed at any instant.
//!
//! Its control thread, here, takes messages from the supervisor and events from the cores, one at a time, and never waits
//! for a peer: what may block runs on a thread of its own ([`opener`]). Everything it must not lose is with the supervisor before anybody can rely on it: see [`softdpu_link`].

#![forbid(unsafe_code)]

mod broker;
mod calls;
mod connection;
mod device;
mod disk;
mod explain;
mod functions;
mod loader;
mod model;
mod networks;
mod nic;
mod opener;
mod policy;
mod report;
mod rings;
mod routing;
mod steering;
mod tap;
mod tenants;
mod trace;
mod underlay;
mod volumes;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softdpu_engine::{CoreIndex, Engine, EngineConfig, EngineError, FromCore};
use softdpu_memory::Domain;
use softdpu_sched::Nanos;
use softdpu_storage::Broker;
use softdpu_sys::{affinity, clock};
use softdpu_vpc::PortId;
use thiserror::Error;

use self::broker::Wire;
use self::device::{Backing, Device, Event, Host};
use self::functions::Functions;
use self::networks::Networks;
use self::tenants::Tenants;
use self::trace::Traces;
use self::volumes::{News, Stand, Volumes};
use softdpu_api::{ApiError, ErrorCode};
use softdpu_link::{BEAT, ConnectionId, Death, Down, LOADED, LinkError, Up, monotonic_ns};
use softdpu_site::{self as config, IdleSleep, Site};

/// How long the site's volumes have to open before this process says that it is ready without them: files open within
/// milliseconds, and a server that does not answer must keep nobody else waiting.
const SETTLING: Duration = Duration::from_millis(500);

/// Messages handled before the cores are looked at again.
const MESSAGES_A_ROUND: u32 = 64;

/// How long the first message may take.
const START_PATIENCE: Duration = Duration::from_secs(30);

/// Submission entries of each core's io_uring.
const IO_DEPTH: u32 = 1024;

/// Why the data plane ended.
#[derive(Debug, Error)]
pub enum DataPlaneError {
    /// The supervisor is gone or says what cannot be understood.
    #[error("link to the supervisor: {0}")]
    Link(#[from] LinkError),
    /// It said something else first, or nothing.
    #[error("the supervisor did not say what to be")]
    NoStart,
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
    volumes: Volumes,
    networks: Networks,
    functions: Functions,
    domains: HashMap<String, Arc<Domain>>,
    tenants: Tenants,
    devices: BTreeMap<String, Device>,
    connections: HashMap<ConnectionId, String>,
    /// CPU → core.
    cores: HashMap<u32, CoreIndex>,
    /// Core → CPU.
    cpus: Vec<u32>,
    placements: HashMap<(String, u16), u32>,
    /// On which cores packets from tunnels are worked on, as it was asked for.
    steering: config::Steering,
    death: Option<Death>,
    first_completion: bool,
    traces: Traces,
    /// Devices whose interface is not there.
    lost_taps: BTreeMap<String, tap::Lost>,
    /// Connections follow whose queues start together with those that are here.
    awaits_more: bool,
    /// [`Up::Ready`] was said.
    ready: bool,
    stopping: bool,
}

/// Runs the data plane on its end of the link until the supervisor ends it. `logging` is told the site's log settings
/// before anything is logged.
///
/// # Errors
/// [`DataPlaneError`]; the supervisor logs it and starts another.
pub fn run(socket: OwnedFd, logging: impl FnOnce(&config::Log)) -> Result<(), DataPlaneError> {
    softdpu_memory::catch_bus_errors();
    abort_on_panic();
    let wire = Wire::new(socket)?;
    let start = wire.wait(START_PATIENCE)?;
    let Some((Down::Start { site, incarnation, kept, placements, death, loaded }, fds)) = start else {
        return Err(DataPlaneError::NoStart);
    };
    logging(&site.node.log);
    tracing::debug!(incarnation, kept = kept.len(), "data plane starts");
    wire.remember(kept, fds);
    if let Err(error) = affinity::highest_session() {
        tracing::debug!(%error, "the data plane has no session of its own to have its CPUs first");
    }
    let cpus: Vec<usize> = site.node.dataplane.cores.iter().map(|cpu| *cpu as usize).collect();
    let engine = Engine::start(&EngineConfig {
        cpus,
        idle_sleep: match site.node.dataplane.idle_sleep {
            IdleSleep::Never => None,
            IdleSleep::After(span) => Some(span.0),
        },
        io_depth: IO_DEPTH,
        fairness: site.node.fairness.policy(),
        recordings: recordings(site.node.record.as_deref(), site.node.dataplane.cores.len(), incarnation),
        flows: site.node.tables.flows as usize,
    })?;
    let cores = site.node.dataplane.cores.iter().enumerate().map(|(index, cpu)| (*cpu, CoreIndex(index))).collect();
    let functions = Functions::start(&site.functions, &engine);
    let mut plane = DataPlane {
        volumes: Volumes::new(Arc::clone(&wire) as Arc<dyn Broker>).map_err(std::io::Error::from)?,
        wire,
        engine,
        networks: Networks::new(&site.networks, &site.tenants, &site.node).map_err(std::io::Error::from)?,
        functions,
        domains: HashMap::new(),
        tenants: Tenants::default(),
        devices: BTreeMap::new(),
        connections: HashMap::new(),
        cores,
        cpus: site.node.dataplane.cores.clone(),
        placements: placements.into_iter().map(|p| ((p.device, p.queue), p.core)).collect(),
        steering: site.node.steering.clone(),
        death,
        first_completion: false,
        traces: Traces::default(),
        lost_taps: BTreeMap::new(),
        awaits_more: false,
        ready: false,
        stopping: false,
    };
    plane.set_up(&site, loaded)?;
    plane.serve()?;
    let DataPlane { engine, mut functions, .. } = plane;
    // Cores say what they have left when they end.
    drop(engine);
    functions.finish();
    Ok(())
}

/// The files in which so many cores are recorded. Each has its own, and a data plane that follows another does not write over
/// what that has recorded: it is why it is looked at.
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

/// A thread that panics takes the process with it: the supervisor starts another at once, which a half-dead process with a
/// core less would keep it from.
fn abort_on_panic() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
}

impl DataPlane {
    fn set_up(&mut self, site: &Site, loaded: Vec<String>) -> Result<(), LinkError> {
        for tenant in &site.tenants {
            if self.put_tenant(tenant).is_none() {
                tracing::error!(tenant = tenant.name, "there are too many tenants: it is left out");
            }
        }
        let now = Instant::now();
        for volume in &site.volumes {
            self.volumes.add(volume.clone(), None, now);
        }
        // Before the first tables: nobody is to be told meanwhile that somebody is not there.
        if let Some(file) = self.wire.kept_fd(LOADED) {
            self.networks.load_kept(&file, loaded);
        }
        if let Some(underlay) = &site.node.underlay
            && let Err(error) = self.networks.add_underlay(underlay, &mut self.engine, now)
        {
            tracing::error!(error, "networks end at this host: its underlay has no port");
        }
        if let Err(error) = self.steer(&site.node.steering) {
            tracing::error!(error, "packets from tunnels are worked on where they are read");
        }
        self.networks.wait();
        for device in &site.devices {
            self.add_device(device)?;
        }
        for (name, error) in self.networks.publish_all(&mut self.functions, &mut self.engine) {
            self.cannot_be_served(&name, error)?;
        }
        Ok(())
    }

    /// A device cannot be attached to its network, or is lost.
    fn cannot_be_served(&mut self, name: &str, error: String) -> Result<(), LinkError> {
        tracing::error!(device = name, error, "device cannot be served");
        let DataPlane { engine, wire, cores, placements, devices, .. } = self;
        match devices.get_mut(name) {
            Some(device) => {
                // Nobody is behind an interface without a port.
                device.model = None;
                device.failing(error, &mut Host { engine, wire, cores, placements })
            }
            None => Ok(()),
        }
    }

    fn add_device(&mut self, device: &config::Device) -> Result<(), LinkError> {
        let Some(tenant) = self.tenant_of(device) else {
            tracing::error!(
                device = device.name,
                tenant = device.tenant,
                "there is no such tenant: device is left out"
            );
            return Ok(());
        };
        let domain = self.domains.entry(device.domain.clone()).or_insert_with(|| Domain::new(device.domain.as_str()));
        let domain = Arc::clone(domain);
        let DataPlane { volumes, networks, functions, engine, wire, cores, placements, lost_taps, .. } = self;
        if let Some(port) = device.port() {
            let attached = networks.add(device, port, functions, wire, engine);
            let (nic, failure) = match attached {
                Ok(nic) => (nic, None),
                Err(error) => (None, Some(error)),
            };
            let mut made = Device::new(device.clone(), tenant, domain, nic);
            if let Some(error) = failure {
                tracing::error!(device = device.name, error, "device cannot be served");
                made.failing(error, &mut Host { engine, wire, cores, placements })?;
                if networks.port_id(&device.name).is_some() {
                    lost_taps.insert(device.name.clone(), tap::Lost::new(Instant::now()));
                }
            }
            self.devices.insert(device.name.clone(), made);
            return Ok(());
        }
        let mut made = Device::new(device.clone(), tenant, domain, None);
        let host = &mut Host { engine, wire, cores, placements };
        match device.volume().and_then(|name| volumes.stand(name)) {
            Some(Stand::Open(volume)) => made.opened(Arc::clone(volume), host)?,
            Some(Stand::Failing(reason)) => made.failing(reason.to_owned(), host)?,
            Some(Stand::Opening) => {}
            None => made.failing("there is no such volume".to_owned(), host)?,
        }
        self.devices.insert(device.name.clone(), made);
        Ok(())
    }

    /// The interface of a TAP is gone: it is made again.
    fn socket_lost(&mut self, port: PortId, reason: &str) -> Result<(), LinkError> {
        self.engine.set_sockets(port, Vec::new());
        let Some(name) = self.networks.port_name(port).map(str::to_owned) else { return Ok(()) };
        tap::close(&name, &self.wire);
        self.cannot_be_served(&name, format!("{reason}: its interface was deleted; it is made again"))?;
        self.lost_taps.insert(name, tap::Lost::new(Instant::now()));
        Ok(())
    }

    /// Makes interfaces that were deleted, or could not be made at the start; when to try those again that could not be made.
    fn open_taps(&mut self, now: Instant) -> Option<Instant> {
        let DataPlane { lost_taps, devices, networks, wire, engine, .. } = self;
        lost_taps.retain(|name, lost| {
            let Some(device) = devices.get_mut(name) else { return false };
            let (config::DeviceKind::Tap(settings), Some(port)) = (&device.config.kind, networks.port_id(name)) else {
                return false;
            };
            if lost.next > now {
                return true;
            }
            let mtu = networks.mtu(&settings.port.network).unwrap_or(config::DEFAULT_MTU);
            match tap::open(name, settings, mtu, wire) {
                Ok(socket) => {
                    tracing::info!(device = name, interface = settings.interface, "the interface was made");
                    engine.set_sockets(port, vec![socket]);
                    device.backing = Backing::Nothing;
                    false
                }
                Err(reason) => {
                    device.backing = Backing::Failing(format!("{reason}; it is tried again"));
                    lost.put_off(now);
                    true
                }
            }
        });
        lost_taps.values().map(|lost| lost.next).min()
    }

    /// Moves queues to where there is room, but those that the site or an operator has put somewhere.
    fn balance(&mut self) {
        let DataPlane { engine, devices, placements, .. } = self;
        let stays = |device: &str, queue: u16| {
            let has_cores = |device: &Device| device.config.cores.as_ref().is_some_and(|cores| !cores.is_empty());
            devices.get(device).is_none_or(has_cores) || placements.contains_key(&(device.to_owned(), queue))
        };
        for (key, core) in engine.balance(Nanos(clock::now()), stays) {
            tracing::debug!(queue = key.number, core = core.0, "a queue was moved to even out the load");
        }
    }

    fn serve(&mut self) -> Result<(), DataPlaneError> {
        let wire = Arc::clone(&self.wire);
        let settled = Instant::now() + SETTLING;
        // Not at once: a core that was just started may not have gone round yet.
        let mut beat = Instant::now() + BEAT;
        loop {
            self.turn_volumes()?;
            self.networks.turn(&self.engine, Instant::now());
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
            let now = Instant::now();
            let fences = self.start_waiting(now);
            if now >= beat {
                beat = now + BEAT;
                self.balance();
                self.balance_tunnels();
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
                self.wire.send(&Up::Ready, Vec::new())?;
            }
            if taken == MESSAGES_A_ROUND || !self.engine.prepare_wait() {
                continue;
            }
            let settled = (!self.ready).then_some(settled);
            let taps = self.open_taps(now);
            let due = [Some(beat), fences, settled, self.volumes.next_deadline(), self.networks.next_deadline(), taps];
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

    /// Tells devices and callers what became of volumes.
    fn turn_volumes(&mut self) -> Result<(), LinkError> {
        for news in self.volumes.turn(Instant::now()) {
            let DataPlane { devices, engine, wire, cores, placements, .. } = self;
            let host = &mut Host { engine, wire, cores, placements };
            let (asked, result) = match news {
                News::Opened { volume, asked } => {
                    for device in users(devices, volume.name()) {
                        device.opened(Arc::clone(&volume), host)?;
                    }
                    (asked, Ok(()))
                }
                News::Failing { name, reason } => {
                    for device in users(devices, &name) {
                        device.failing(reason.clone(), host)?;
                    }
                    continue;
                }
                News::NotCreated { reason, asked } => (Some(asked), Err(reason)),
                News::Grown { name, size, result, asked } => {
                    let told = result.and_then(|()| users(devices, &name).try_for_each(|device| device.grow(size)));
                    (asked, told)
                }
            };
            if let Some(id) = asked {
                let result = result.map(|()| calls::nothing()).map_err(|error| ApiError::new(ErrorCode::Failed, error));
                self.wire.send(&Up::Answer { id, result }, Vec::new())?;
            }
        }
        Ok(())
    }

    /// Starts queues whose volumes are fenced by now; when to ask again for those that are not.
    fn start_waiting(&mut self, now: Instant) -> Option<Instant> {
        if self.awaits_more {
            // A message follows, which is what is waited for.
            return None;
        }
        let DataPlane { devices, engine, wire, cores, placements, .. } = self;
        let host = &mut Host { engine, wire, cores, placements };
        let is_due = |device: &&mut Device| device.fence_due().is_some_and(|at| at <= now);
        // After a kill they all wait: what the first ones send is to find its receivers.
        devices.values_mut().filter(is_due).for_each(|device| device.start_receivers(host));
        devices.values_mut().filter(is_due).for_each(|device| device.start_waiting(now, host));
        devices.values().filter_map(Device::fence_due).min()
    }

    fn handle(&mut self, message: Down, fds: Vec<OwnedFd>) -> Result<(), DataPlaneError> {
        match message {
            Down::Attach { device, connection, session, fds: ids, more } => {
                self.awaits_more = more;
                if !self.devices.contains_key(&device) {
                    let reason = format!("there is no device '{device}'");
                    self.wire.send(&Up::Close { connection, reason }, Vec::new())?;
                    return Ok(());
                }
                self.connections.insert(connection, device.clone());
                let fds = ids.into_iter().zip(fds.into_iter().map(Arc::new)).collect();
                self.device_event(connection, Event::Attach { connection, session, fds })
            }
            Down::Message { connection, header, payload, fds: ids } => {
                let fds = ids.into_iter().zip(fds).collect();
                self.device_event(connection, Event::Message { connection, header, payload, fds })
            }
            Down::Closed { connection } => {
                let outcome = self.device_event(connection, Event::Closed { connection });
                self.connections.remove(&connection);
                outcome
            }
            Down::Call { id, call } => {
                if let Some(result) = self.call(id, call, fds)? {
                    self.wire.send(&Up::Answer { id, result }, Vec::new())?;
                }
                Ok(())
            }
            Down::Shutdown => {
                self.stopping = true;
                Ok(())
            }
            Down::Opened { call, result } => {
                self.wire.opened(call, result, fds);
                Ok(())
            }
            Down::Start { .. } => {
                tracing::error!("a second start is ignored");
                Ok(())
            }
        }
    }

    fn device_event(&mut self, connection: ConnectionId, event: Event) -> Result<(), DataPlaneError> {
        let DataPlane { devices, engine, wire, cores, placements, connections, .. } = self;
        if let Some(device) = connections.get(&connection).and_then(|name| devices.get_mut(name)) {
            device.event(event, &mut Host { engine, wire, cores, placements })?;
        }
        Ok(())
    }

    fn core_event(&mut self, event: &FromCore) -> Result<(), DataPlaneError> {
        let key = match event {
            FromCore::Stopped { key, .. } | FromCore::Updated { key, .. } | FromCore::Broken { key, .. } => *key,
            FromCore::SocketLost { port, reason } => return Ok(self.socket_lost(*port, reason)?),
            FromCore::FirstCompletion { .. } => {
                if !std::mem::replace(&mut self.first_completion, true)
                    && let Some(death) = &self.death
                {
                    let ns = monotonic_ns().saturating_sub(death.at_ns);
                    self.wire.send(&Up::FirstCompletion { ns }, Vec::new())?;
                }
                return Ok(());
            }
        };
        let DataPlane { devices, engine, wire, cores, placements, .. } = self;
        if let Some(device) = devices.values_mut().find(|device| device.owns(key)) {
            device.core_event(event, &mut Host { engine, wire, cores, placements })?;
        }
        Ok(())
    }
}

/// The devices on the volume of that name.
fn users<'a>(devices: &'a mut BTreeMap<String, Device>, volume: &str) -> impl Iterator<Item = &'a mut Device> {
    devices.values_mut().filter(move |device| device.config.volume() == Some(volume))
}
