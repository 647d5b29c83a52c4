//! The data plane: the process that does the work and may be killed at any instant.
//!
//! Its control thread, here, takes messages from the supervisor and events from the cores, one at a time, and never waits
//! for a peer. Everything it must not lose is with the supervisor before anybody can rely on it: see [`crate::link`].

mod broker;
mod connection;
mod device;
mod disk;
mod report;
mod rings;
mod volumes;

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softdpu_engine::{CoreIndex, Engine, EngineConfig, EngineError, FromCore};
use softdpu_memory::Domain;
use softdpu_sched::{Share, TenantId};
use softdpu_storage::{Broker, Volume};
use thiserror::Error;

use self::broker::Wire;
use self::device::{Device, Event, Host};
use self::disk::Disk;
use self::volumes::Volumes;
use crate::config::{self, DeviceKind, IdleSleep, Site};
use crate::link::{BEAT, Call, ConnectionId, Death, Down, LinkError, Refusal, Up, monotonic_ns};

/// How often a volume that is still fenced off by a dead process is tried again.
const FENCE_PAUSE: Duration = Duration::from_millis(2);

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
    domains: HashMap<String, Arc<Domain>>,
    tenants: Vec<config::Tenant>,
    devices: BTreeMap<String, Device>,
    /// Devices that cannot be served, and why.
    failed: BTreeMap<String, (config::Device, String)>,
    connections: HashMap<ConnectionId, String>,
    /// CPU → core.
    cores: HashMap<u32, CoreIndex>,
    /// Core → CPU.
    cpus: Vec<u32>,
    placements: HashMap<(String, u16), u32>,
    death: Option<Death>,
    first_completion: bool,
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
    let Some((Down::Start { site, incarnation, kept, placements, death }, fds)) = wire.wait(START_PATIENCE)? else {
        return Err(DataPlaneError::NoStart);
    };
    logging(&site.node.log);
    tracing::debug!(incarnation, kept = kept.len(), "data plane starts");
    wire.remember(kept, fds);
    let cpus: Vec<usize> = site.node.dataplane.cores.iter().map(|cpu| *cpu as usize).collect();
    let engine = Engine::start(&EngineConfig {
        cpus,
        idle_sleep: match site.node.dataplane.idle_sleep {
            IdleSleep::Never => None,
            IdleSleep::After(span) => Some(span.0),
        },
        io_depth: IO_DEPTH,
    })?;
    let cores = site.node.dataplane.cores.iter().enumerate().map(|(index, cpu)| (*cpu, CoreIndex(index))).collect();
    let mut plane = DataPlane {
        wire,
        engine,
        volumes: Volumes::default(),
        domains: HashMap::new(),
        tenants: Vec::new(),
        devices: BTreeMap::new(),
        failed: BTreeMap::new(),
        connections: HashMap::new(),
        cores,
        cpus: site.node.dataplane.cores.clone(),
        placements: placements.into_iter().map(|p| ((p.device, p.queue), p.core)).collect(),
        death,
        first_completion: false,
        stopping: false,
    };
    plane.set_up(&site);
    plane.wire.send(&Up::Ready, Vec::new())?;
    plane.serve()
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
    fn set_up(&mut self, site: &Site) {
        for tenant in &site.tenants {
            self.tenant(tenant);
        }
        for volume in &site.volumes {
            if let Err(error) = self.volumes.open(volume, &self.broker()) {
                tracing::error!(volume = volume.name, error, "volume cannot be opened");
            }
        }
        for device in &site.devices {
            if let Err(error) = self.add_device(device) {
                tracing::error!(device = device.name, error, "device cannot be served");
            }
        }
    }

    fn broker(&self) -> Arc<dyn Broker> {
        Arc::clone(&self.wire) as Arc<dyn Broker>
    }

    fn tenant(&mut self, tenant: &config::Tenant) -> TenantId {
        let index = self.tenants.iter().position(|known| known.name == tenant.name).unwrap_or_else(|| {
            self.tenants.push(tenant.clone());
            self.tenants.len() - 1
        });
        let id = TenantId(index as u16);
        self.engine.configure_tenant(id, Share { weight: tenant.weight });
        id
    }

    fn add_device(&mut self, device: &config::Device) -> Result<(), String> {
        let made = self.make_device(device);
        match made {
            Ok(made) => {
                self.failed.remove(&device.name);
                self.devices.insert(device.name.clone(), made);
                Ok(())
            }
            Err(error) => {
                self.failed.insert(device.name.clone(), (device.clone(), error.clone()));
                Err(error)
            }
        }
    }

    fn make_device(&mut self, device: &config::Device) -> Result<Device, String> {
        let blk = match &device.kind {
            DeviceKind::VirtioBlk(blk) => blk,
            DeviceKind::VirtioNet(_) | DeviceKind::Tap(_) => return Err(not_served(device)),
        };
        let volume = Arc::clone(self.volumes.get(&blk.volume).map_err(|e| format!("volume '{}': {e}", blk.volume))?);
        let disk = Disk::new(blk, &volume).map_err(|error| error.to_string())?;
        let tenant = self
            .tenants
            .iter()
            .find(|tenant| tenant.name == device.tenant)
            .cloned()
            .unwrap_or(config::Tenant { name: device.tenant.clone(), weight: 1 });
        let tenant = self.tenant(&tenant);
        let domain = self.domains.entry(device.domain.clone()).or_insert_with(|| Domain::new(device.domain.as_str()));
        Ok(Device::new(device.clone(), tenant, Arc::clone(domain), volume, disk))
    }

    fn serve(&mut self) -> Result<(), DataPlaneError> {
        let wire = Arc::clone(&self.wire);
        // Not at once: a core that was just started may not have gone round yet.
        let mut beat = Instant::now() + BEAT;
        loop {
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
            let waiting = self.start_waiting();
            let now = Instant::now();
            if now >= beat {
                beat = now + BEAT;
                // No beat for a core that is stuck: the supervisor's watchdog then starts a new data plane.
                if self.engine.cores_advance() {
                    self.wire.send(&Up::Alive, Vec::new())?;
                } else {
                    tracing::error!("a data-plane core has not gone round its loop for a second");
                }
            }
            if taken == MESSAGES_A_ROUND || !self.engine.prepare_wait() {
                continue;
            }
            let pause = if waiting { FENCE_PAUSE } else { beat.saturating_duration_since(now) };
            let pause = Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() };
            let bell = self.engine.bell();
            let mut fds = [PollFd::from_borrowed_fd(wire.fd(), PollFlags::IN), PollFd::new(&bell, PollFlags::IN)];
            // EINTR is a wake-up like any other.
            let _ = poll(&mut fds, Some(&pause));
            self.engine.waited();
        }
        Ok(())
    }

    /// Starts queues whose volumes were fenced off; whether some still are.
    fn start_waiting(&mut self) -> bool {
        let mut waiting = false;
        let DataPlane { devices, engine, wire, cores, placements, .. } = self;
        for device in devices.values_mut().filter(|device| device.has_waiting()) {
            device.start_waiting(&mut Host { engine, wire, cores, placements });
            waiting |= device.has_waiting();
        }
        waiting
    }

    fn handle(&mut self, message: Down, fds: Vec<OwnedFd>) -> Result<(), DataPlaneError> {
        match message {
            Down::Attach { device, connection, session, fds: ids, peer } => {
                if !self.devices.contains_key(&device) {
                    let reason = match self.failed.get(&device) {
                        Some((_, error)) => format!("device '{device}' cannot be served: {error}"),
                        None => format!("there is no device '{device}'"),
                    };
                    self.wire.send(&Up::Close { connection, reason }, Vec::new())?;
                    return Ok(());
                }
                self.connections.insert(connection, device.clone());
                let fds = ids.into_iter().zip(fds.into_iter().map(Arc::new)).collect();
                self.device_event(connection, Event::Attach { connection, session, fds, peer })?;
                Ok(self.wire.send(&Up::Attached { connection }, Vec::new())?)
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
                let result = self.call(call);
                Ok(self.wire.send(&Up::Answer { id, result }, Vec::new())?)
            }
            Down::Shutdown => {
                self.stopping = true;
                Ok(())
            }
            Down::Opened { call, .. } => {
                tracing::warn!(call, "an opened file came after its time");
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
            FromCore::FirstCompletion { .. } => {
                if !std::mem::replace(&mut self.first_completion, true)
                    && let Some(death) = &self.death
                {
                    let ns = monotonic_ns().saturating_sub(death.at_ns);
                    self.wire.send(&Up::FirstCompletion { ns }, Vec::new())?;
                }
                return Ok(());
            }
            FromCore::CoreFailed { core, reason } => {
                tracing::error!(core = core.0, reason, "data-plane core failed");
                return Ok(());
            }
        };
        let DataPlane { devices, engine, wire, cores, placements, .. } = self;
        if let Some(device) = devices.values_mut().find(|device| device.owns(key)) {
            device.core_event(event, &mut Host { engine, wire, cores, placements })?;
        }
        Ok(())
    }

    fn call(&mut self, call: Call) -> Result<serde_json::Value, Refusal> {
        let done = || Ok(serde_json::Value::Object(Default::default()));
        match call {
            Call::Status => self.report(),
            Call::VolumeCreate { volume } => {
                self.volumes.open(&volume, &self.broker()).map_err(|error| {
                    self.volumes.remove(&volume.name);
                    refusal("failed", error)
                })?;
                done()
            }
            Call::VolumeGrow { volume, size } => {
                let opened = self.volumes.get(&volume).map_err(|error| refusal("failed", error))?;
                opened.grow(size).map_err(|error| refusal("failed", error.to_string()))?;
                for device in self.devices.values_mut().filter(|device| device.config.volume() == Some(&*volume)) {
                    device.grow(size).map_err(|error| refusal("failed", error))?;
                }
                done()
            }
            Call::VolumeDelete { volume } => {
                if let Some(user) = self.devices.values().find(|device| device.config.volume() == Some(&*volume)) {
                    return Err(refusal("busy", format!("device '{}' uses volume '{volume}'", user.name)));
                }
                if let Some(closed) = self.volumes.remove(&volume) {
                    self.engine.detach(&closed);
                }
                Volume::forget_kept(&volume, &*self.wire);
                done()
            }
            Call::DeviceAdd { device } => {
                self.add_device(&device).map_err(|error| {
                    self.failed.remove(&device.name);
                    refusal("failed", error)
                })?;
                done()
            }
            Call::DeviceRemove { device } => {
                if self.devices.get(&device).is_some_and(|known| !known.is_idle()) {
                    return Err(refusal("busy", format!("a front end is connected to device '{device}'")));
                }
                if let Some(gone) = self.devices.remove(&device) {
                    gone.forget_records(&self.wire);
                }
                self.failed.remove(&device);
                self.placements.retain(|(name, _), _| *name != device);
                done()
            }
            Call::QueueMove(to) => {
                let device = self
                    .devices
                    .get(&to.device)
                    .ok_or_else(|| refusal("not-found", format!("there is no device '{}'", to.device)))?;
                let core = *self.cores.get(&to.core).ok_or_else(|| {
                    let mut cpus: Vec<_> = self.cores.keys().collect();
                    cpus.sort_unstable();
                    refusal("not-found", format!("CPU {} is no data-plane core; there are {cpus:?}", to.core))
                })?;
                if usize::from(to.queue) >= device.counters.len() {
                    let text = format!("device '{}' has queues 0 to {}", to.device, device.counters.len() - 1);
                    return Err(refusal("not-found", text));
                }
                if let Some(key) = device.queue(to.queue) {
                    self.engine.move_queue(key, core).map_err(|error| refusal("failed", error.to_string()))?;
                }
                self.placements.insert((to.device, to.queue), to.core);
                done()
            }
        }
    }
}

fn refusal(code: &str, message: String) -> Refusal {
    Refusal { code: code.to_owned(), message }
}

/// What is said of a device that may be declared but that no core can serve.
fn not_served(device: &config::Device) -> String {
    format!("`{}` devices are not served yet: this release serves disks", device.kind.name())
}
