//! The control thread's handle on the cores.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use softdpu_sched::{
    Balancer, Demotions, Move, Nanos, Placement, Policy, QueueId, QueueLoad, Scheduler, Share, TenantId, WorkKind,
    YieldPolicy,
};
use softdpu_storage::Volume;
use softdpu_sys::notify::Notifier;
use softdpu_sys::{affinity, clock};
use softdpu_vpc::Tables;
use softdpu_vpc::spec::Spec;
use thiserror::Error;

use crate::back_ends::{BackEndKey, BackEnds};
use crate::core::{Core, CoreParts};
use crate::counters::{CoreCounters, QueueCounters, TenantCounters};
use crate::frames::ForwarderShared;
use crate::ids::{CoreIndex, QueueKey};
use crate::links::CoreLinks;
use crate::mailbox::{Inbox, Mailbox, mailbox};
use crate::message::{FromCore, QueueUpdate, ToCore};
use crate::network::{Network, RunningReceiver};
use crate::queue::{QueueSpec, RateLimit, Role, RunningQueue};
use crate::recorder::Recorder;
use crate::role::{CoreRole, Equipped, equip, notifier};
use crate::shares::Shares;
use crate::steering::SteeringControl;

/// How the cores are set up.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// The CPUs, one core thread each.
    pub cpus: Vec<usize>,
    /// Threads beside those, without a CPU: so many cores may [join](Engine::scale).
    pub spare: usize,
    /// When a core gives its CPU away.
    pub yielding: YieldPolicy,
    /// Submission entries of each core's io_uring.
    pub io_depth: u32,
    /// How tenants share a core.
    pub fairness: Policy,
    /// Where each core writes down what its policy is told and decides, core by core; those behind the last do not.
    pub recordings: Vec<PathBuf>,
    /// Flows that each core keeps at most; memory is taken as they come.
    pub flows: usize,
}

/// Why the engine did not start.
#[derive(Debug, Error)]
pub enum EngineError {
    /// No CPU was named.
    #[error("no data-plane CPU is configured")]
    NoCores,
    /// A CPU cannot be used.
    #[error("data-plane CPU {cpu} cannot be used: {source}; this process may run on CPUs {allowed:?}")]
    Pin {
        /// The CPU.
        cpu: usize,
        /// What this process may use.
        allowed: Vec<usize>,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A CPU was named twice.
    #[error("data-plane CPU {0} is named twice; name each once")]
    Twice(usize),
    /// More CPUs than there are threads.
    #[error("{wanted} cores are more than the {most} that this data plane was started for")]
    TooManyCores {
        /// CPUs that were named.
        wanted: usize,
        /// Cores that there may be.
        most: usize,
    },
    /// A port's sockets are bound to more cores than would be left.
    #[error("the sockets of port '{port}' are bound to {sockets} cores; keep as many, or give the port one socket")]
    BoundSockets {
        /// The port.
        port: Arc<str>,
        /// Cores with a socket of it.
        sockets: usize,
    },
    /// The policy was told the number of cores when it started.
    #[error("the fairness policy is made for the cores of the start; restart the daemon, or use another policy")]
    FixedPolicy,
    /// A core's recording cannot be written.
    #[error("a core cannot be recorded in {}: {source}", path.display())]
    Record {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A kernel facility could not be set up.
    #[error("{what}: {source}")]
    Os {
        /// Which.
        what: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A core's back-end context could not be set up.
    #[error("I/O context of a core: {0}")]
    Io(String),
    /// No such core.
    #[error("there is no core {0}; the node has cores 0 to {1}")]
    NoSuchCore(usize, usize),
    /// No such queue.
    #[error("the queue is not running")]
    NoSuchQueue,
}

/// How long the slow core has to end with the others. What it waits for may take as long as a front end likes.
const SLOW_END: Duration = Duration::from_millis(100);

pub(crate) struct CoreHandle {
    pub(crate) role: CoreRole,
    pub(crate) mailbox: Mailbox<ToCore>,
    pub(crate) counters: Arc<CoreCounters>,
    pub(crate) thread: Option<JoinHandle<()>>,
    queues: usize,
    /// Rounds at the last check.
    rounds_seen: u64,
}

impl CoreHandle {
    /// Whether devices are on it that make cores wait.
    pub(crate) fn is_held_up(&self) -> bool {
        self.role == CoreRole::Slow && self.queues > 0
    }
}

/// Whether this process may use the CPUs.
pub(crate) fn check_allowed(cpus: &[usize], allowed: &[usize]) -> Result<(), EngineError> {
    let Some(&cpu) = cpus.iter().find(|cpu| !allowed.contains(cpu)) else { return Ok(()) };
    let source = std::io::Error::from(rustix::io::Errno::INVAL);
    Err(EngineError::Pin { cpu, allowed: allowed.to_vec(), source })
}

/// The running cores. Dropping it stops them.
pub struct Engine {
    /// The data plane's, behind them those without a CPU, and then the slow one, if there is one.
    pub(crate) cores: Vec<CoreHandle>,
    /// Devices on the slow core.
    demotions: Demotions<Arc<str>>,
    inbox: Inbox<FromCore>,
    /// The CPUs that this process could use when it started.
    pub(crate) allowed: Vec<usize>,
    /// When the data plane's cores give their CPUs away.
    pub(crate) yielding: YieldPolicy,
    notifier: Notifier,
    pub(crate) placed: HashMap<QueueKey, PlacedQueue>,
    pub(crate) shares: Shares,
    /// Tenants that were configured once, with a queue number for what wires bring them.
    backlogs: HashSet<TenantId>,
    fairness: Policy,
    balancer: Balancer,
    /// When loads were last measured.
    balanced: Nanos,
    /// Submission entries of each core's io_uring.
    io_depth: u32,
    /// Numbers of devices that have queues, and how many.
    devices: HashMap<Arc<str>, (u32, usize)>,
    device_numbers: u32,
    back_ends: BackEnds,
    pub(crate) network: Network,
    pub(crate) steering: SteeringControl,
    free: Vec<u32>,
    numbers: u32,
    generation: u32,
    tokens: u64,
}

/// A queue that runs: where, and for which tenant.
pub(crate) struct PlacedQueue {
    core: CoreIndex,
    /// How often it was moved.
    moves: u64,
    /// The core that it goes back to from the slow one.
    pub(crate) home: CoreIndex,
    tenant: TenantId,
    device: Arc<str>,
    /// The back end that its requests go to, where that is bounded.
    back_end: Option<BackEndKey>,
    /// It brings work, for which a scheduler decides.
    is_scheduled: bool,
    /// Which of the device's queues it is.
    index: u16,
    counters: Arc<QueueCounters>,
    /// Its core time when loads were last measured, nanoseconds.
    seen: u64,
}

impl Engine {
    /// Starts one pinned thread per CPU. Each has its CPU and its nice value when this returns: the process may give up
    /// the privileges that they take.
    ///
    /// # Errors
    /// [`EngineError`]; threads that were started have ended then.
    pub fn start(config: &EngineConfig) -> Result<Engine, EngineError> {
        if config.cpus.is_empty() {
            return Err(EngineError::NoCores);
        }
        let allowed = affinity::allowed();
        check_allowed(&config.cpus, &allowed)?;
        let (mut engine, cores) = Engine::assemble(config, true)?;
        let others: Vec<usize> = allowed.iter().copied().filter(|cpu| !config.cpus.contains(cpu)).collect();
        engine.allowed = allowed;
        let (settled, settling) = channel();
        for (index, (core, handle)) in cores.into_iter().zip(&mut engine.cores).enumerate() {
            let (role, others, settled) = (handle.role, others.clone(), settled.clone());
            let thread = std::thread::Builder::new()
                .name(match role {
                    CoreRole::DataPlane { .. } | CoreRole::Spare => format!("core-{index}"),
                    CoreRole::Slow => "slow-core".to_owned(),
                })
                .spawn(move || {
                    role.settle(&others);
                    drop(settled);
                    core.run();
                })
                .map_err(|source| EngineError::Os { what: "thread", source })?;
            handle.thread = Some(thread);
        }
        drop(settled);
        // Nothing is sent: it ends when the last core has settled.
        let _: Result<(), RecvError> = settling.recv();
        Ok(engine)
    }

    /// Cores without threads, the slow one among them or not, and the handle on them.
    pub(crate) fn assemble(
        config: &EngineConfig,
        has_slow: bool,
    ) -> Result<(Engine, Vec<Core<Scheduler>>), EngineError> {
        let equipped = equip(config, has_slow)?;
        let os = |what| move |source: std::io::Error| EngineError::Os { what, source };
        let (control, inbox) = mailbox().map_err(os("event counter"))?;
        let boxes = equipped.iter().map(|_| mailbox()).collect::<Result<Vec<_>, _>>().map_err(os("event counter"))?;
        let peers: Vec<Mailbox<ToCore>> = boxes.iter().map(|(sender, _)| sender.clone()).collect();
        let mut engine = Engine {
            cores: Vec::new(),
            inbox,
            allowed: config.cpus.clone(),
            yielding: config.yielding,
            notifier: notifier()?,
            placed: HashMap::new(),
            backlogs: HashSet::new(),
            shares: Shares::new(
                config.cpus.len(),
                matches!(config.fairness, Policy::Mtda(..) | Policy::MtdaPrinted(..)),
            ),
            demotions: Demotions::default(),
            fairness: config.fairness.clone().on(config.cpus.len()),
            balancer: Balancer::default(),
            balanced: Nanos(0),
            io_depth: config.io_depth,
            devices: HashMap::new(),
            device_numbers: 0,
            back_ends: BackEnds::default(),
            network: Network::default(),
            steering: SteeringControl::default(),
            free: Vec::new(),
            numbers: 0,
            generation: 0,
            tokens: 0,
        };
        let shared = ForwarderShared::new(equipped.len());
        let slow = equipped.iter().position(|core| core.role == CoreRole::Slow).map(CoreIndex);
        let tables = Tables::build(&Spec::default(), None).map_err(|error| EngineError::Io(error.to_string()))?;
        let tables = Arc::new(tables);
        let mut cores = Vec::with_capacity(equipped.len());
        for (index, ((mailbox, inbox), Equipped { role, io, notifier })) in boxes.into_iter().zip(equipped).enumerate()
        {
            let counters = Arc::new(CoreCounters::default());
            let scheduler = match config.recordings.get(index) {
                Some(path) => Recorder::start(&engine.fairness, index, path)
                    .map_err(|source| EngineError::Record { path: path.clone(), source })?,
                None => engine.fairness.build(),
            };
            let core = Core::new(CoreParts {
                links: CoreLinks { index: CoreIndex(index), peers: peers.clone(), slow, control: control.clone() },
                scheduler,
                io,
                notifier,
                inbox,
                counters: Arc::clone(&counters),
                shared: shared.clone(),
                tables: Arc::clone(&tables),
                flows: config.flows,
                yielding: role.yielding(config.yielding),
            })
            .map_err(|error| os("epoll set")(error.into()))?;
            cores.push(core);
            engine.cores.push(CoreHandle { role, mailbox, counters, thread: None, queues: 0, rounds_seen: 0 });
        }
        Ok((engine, cores))
    }

    /// Readable when [`event`](Self::event) has something. Call [`prepare_wait`](Self::prepare_wait) before waiting.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.inbox.bell().as_fd()
    }

    /// The control thread is about to wait on [`bell`](Self::bell). False: there are events already.
    pub fn prepare_wait(&self) -> bool {
        self.inbox.fall_asleep()
    }

    /// The control thread has waited.
    pub fn waited(&self) {
        self.inbox.wake_up();
    }

    /// The next event from the cores.
    pub fn event(&mut self) -> Option<FromCore> {
        self.inbox.posted();
        let event = self.inbox.take()?;
        match event {
            FromCore::Stopped { key, .. } => self.retire(key),
            FromCore::Stalled { key, time } => self.demote(key, time),
            _ => {}
        }
        Some(event)
    }

    /// Starts serving a queue, on `core` or on the one with the fewest queues.
    ///
    /// # Errors
    /// [`EngineError::NoSuchCore`].
    pub fn start_queue(&mut self, core: Option<CoreIndex>, spec: QueueSpec) -> Result<QueueKey, EngineError> {
        let home = match core {
            Some(core) => self.check(core)?,
            None => self.least_loaded(),
        };
        let core = self.slow().filter(|_| self.demotions.is_demoted(&spec.device)).unwrap_or(home);
        let number = self.queue_number();
        self.generation += 1;
        let key = QueueKey { number, generation: self.generation };
        let is_scheduled = !matches!(spec.role, Role::Receive(_));
        let device = Arc::clone(&spec.device);
        let (placement, back_end) = self.placement(&spec).unzip();
        let back_end = back_end.flatten();
        let counters = Arc::clone(&spec.counters);
        let seen = counters.core_ns.get();
        let (tenant, index) = (spec.tenant, spec.index);
        let placed =
            PlacedQueue { core, moves: 0, home, tenant, device, back_end, is_scheduled, index, counters, seen };
        self.placed.insert(key, placed);
        self.cores[core.0].queues += 1;
        if is_scheduled {
            self.count(spec.tenant, core, 1);
        }
        if let Role::Receive(receive) = &spec.role {
            self.network.receivers.push(RunningReceiver {
                port: receive.port,
                index: spec.index,
                key,
                enabled: spec.enabled,
            });
            self.send_receivers(receive.port);
        }
        let queue = RunningQueue { placement, ..RunningQueue::new(key, spec) };
        self.send(core, ToCore::Start(Box::new(queue)));
        Ok(key)
    }

    /// The placement of a new queue among its tenant's, and the back end that its requests go to.
    fn placement(&mut self, spec: &QueueSpec) -> Option<(Placement, Option<BackEndKey>)> {
        let (kind, back_end) = match &spec.role {
            Role::Transmit(_) => (WorkKind::Packets, None),
            Role::Receive(_) => return None,
            disk => (WorkKind::Requests, self.back_ends.enter_first(disk, self.io_depth)),
        };
        let numbers = &mut self.device_numbers;
        let (device, queues) = self.devices.entry(Arc::clone(&spec.device)).or_insert_with(|| {
            *numbers += 1;
            (*numbers, 0)
        });
        *queues += 1;
        let (place, back_end) = back_end.unzip();
        Some((Placement { device: *device, kind, back_end }, place))
    }

    fn count(&mut self, tenant: TenantId, core: CoreIndex, change: i32) {
        if self.shares.count(tenant, core, change) {
            self.send_shares();
        }
    }

    pub(crate) fn send_shares(&mut self) {
        for (core, tenant, share, counters) in self.shares.divide(self.cores.len()) {
            self.send(core, ToCore::Tenant(tenant, share, counters));
        }
    }

    /// Changes a running queue. [`FromCore::Updated`] with the returned token tells when it took effect.
    ///
    /// # Errors
    /// [`EngineError::NoSuchQueue`].
    pub fn update_queue(&mut self, key: QueueKey, update: QueueUpdate) -> Result<u64, EngineError> {
        let core = self.core_of(key).ok_or(EngineError::NoSuchQueue)?;
        if let QueueUpdate::Enabled(enabled) = update {
            self.enable_receiver(key, enabled);
        }
        self.tokens += 1;
        self.send(core, ToCore::Update { key, update, token: self.tokens });
        Ok(self.tokens)
    }

    /// Stops a queue: nothing more is taken from the ring, what is in flight gets `patience` to finish.
    /// [`FromCore::Stopped`] follows in any case.
    ///
    /// # Errors
    /// [`EngineError::NoSuchQueue`].
    pub fn stop_queue(&mut self, key: QueueKey, patience: Duration) -> Result<(), EngineError> {
        let core = self.core_of(key).ok_or(EngineError::NoSuchQueue)?;
        self.send(core, ToCore::Stop { key, patience });
        Ok(())
    }

    /// Moves a queue to another core while it runs; one on the slow core when its term is over.
    ///
    /// # Errors
    /// [`EngineError::NoSuchQueue`], [`EngineError::NoSuchCore`].
    pub fn move_queue(&mut self, key: QueueKey, to: CoreIndex) -> Result<(), EngineError> {
        let to = self.check(to)?;
        let placed = self.placed.get_mut(&key).ok_or(EngineError::NoSuchQueue)?;
        placed.home = to;
        if !self.demotions.is_demoted(&placed.device) {
            self.place(key, to);
        }
        Ok(())
    }

    fn place(&mut self, key: QueueKey, to: CoreIndex) {
        let Some(from) = self.core_of(key) else { return };
        if from != to {
            self.cores[from.0].queues -= 1;
            self.cores[to.0].queues += 1;
            if let Some(placed) = self.placed.get_mut(&key) {
                placed.core = to;
                placed.moves += 1;
                self.cores[from.0].mailbox.send(ToCore::Move { key, to, serial: placed.moves });
                let (tenant, is_scheduled) = (placed.tenant, placed.is_scheduled);
                // Sent once: between the two a tenant with one queue would be nowhere, and every core would give it all
                // of its limits.
                if is_scheduled && self.shares.move_one(tenant, from, to) {
                    self.send_shares();
                }
            }
            if let Some(port) = self.network.port_of(key) {
                self.send_receivers(port);
            }
        }
    }

    /// A queue made its core wait too long: its device is demoted to the slow core.
    fn demote(&mut self, key: QueueKey, time: Duration) {
        let (Some(slow), Some(placed)) = (self.slow(), self.placed.get(&key)) else { return };
        let device = Arc::clone(&placed.device);
        if !self.demotions.is_demoted(&device) {
            tracing::warn!(
                %device, queue = placed.index, stall_us = time.as_micros() as u64,
                "demoted to the slow core: its front end's memory or eventfds, or its volume, made a core wait"
            );
        }
        self.demotions.demote(Nanos(clock::now()), &device);
        self.place_all(&device, |_| slow);
    }

    /// Devices with a term on the slow core that is over go back.
    fn promote(&mut self, now: Nanos) {
        for device in self.demotions.over(now) {
            tracing::info!(%device, "back from the slow core");
            self.place_all(&device, |placed| placed.home);
        }
    }

    /// Whether a device is on the slow core, as it has made others wait.
    pub fn is_demoted(&self, device: &Arc<str>) -> bool {
        self.demotions.is_demoted(device)
    }

    fn place_all(&mut self, device: &Arc<str>, to: impl Fn(&PlacedQueue) -> CoreIndex) {
        let its = self.placed.iter().filter(|(_, placed)| placed.device == *device);
        let moves: Vec<(QueueKey, CoreIndex)> = its.map(|(key, placed)| (*key, to(placed))).collect();
        moves.into_iter().for_each(|(key, to)| self.place(key, to));
    }

    /// Moves queues by what they had of the cores since the last call, now and then: tenants have cores of their own
    /// where all they ask for fits there, and busy cores give to idle ones otherwise. `stays` tells which queues, by
    /// device and index, are pinned to their core. Returns what was moved where.
    pub fn balance(&mut self, now: Nanos, stays: impl Fn(&str, u16) -> bool) -> Vec<(QueueKey, CoreIndex)> {
        self.promote(now);
        let cores = self.data_plane().len();
        let passed = now.since(std::mem::replace(&mut self.balanced, now)).0;
        if cores < 2 || passed == 0 {
            return Vec::new();
        }
        let (mut loads, mut keys) = (Vec::new(), HashMap::new());
        for (key, placed) in &mut self.placed {
            let had = placed.counters.core_ns.get();
            let load = had.saturating_sub(std::mem::replace(&mut placed.seen, had)).saturating_mul(1_000) / passed;
            if placed.is_scheduled && placed.core.0 < cores {
                let is_fixed = stays(&placed.device, placed.index);
                let queue = QueueId { tenant: placed.tenant, index: key.number };
                loads.push(QueueLoad { queue, core: placed.core.0, load: load.min(1_000) as u32, is_fixed });
                keys.insert(queue, *key);
            }
        }
        loads.sort_by_key(|load| load.queue);
        let shares = &self.shares;
        let share = |tenant| shares.of_node(tenant).unwrap_or_default();
        let moves = self.balancer.plan(now, cores, &loads, share);
        let mut moved = Vec::new();
        for Move { queue, to } in moves {
            if let Some(&key) = keys.get(&queue)
                && self.move_queue(key, CoreIndex(to)).is_ok()
            {
                moved.push((key, CoreIndex(to)));
            }
        }
        moved
    }

    /// Where a queue is, or is on its way to.
    pub fn core_of(&self, key: QueueKey) -> Option<CoreIndex> {
        self.placed.get(&key).map(|placed| placed.core)
    }

    /// Sets a tenant's share of the node: its limits and its guarantee, which is in thousandths of all cores' time, are
    /// divided over the cores that serve it, its weight over its queues.
    pub fn configure_tenant(&mut self, tenant: TenantId, share: Share) {
        self.shares.configure(tenant, share, self.cores.len());
        self.send_shares();
        if self.backlogs.insert(tenant) {
            let queue = QueueId { tenant, index: self.queue_number() };
            for core in &self.cores {
                core.mailbox.send(ToCore::Ingress(queue));
            }
        }
    }

    /// Limits what wires bring a configured tenant, on all cores together; None: no limit. What is beyond is dropped as
    /// [`Policed`](softdpu_vpc::DropReason::Policed) at the port that brought it.
    pub fn limit_ingress(&mut self, tenant: TenantId, limit: Option<RateLimit>) {
        for core in &self.cores {
            core.mailbox.send(ToCore::IngressLimit(tenant, limit.clone()));
        }
    }

    /// A number that no queue has.
    fn queue_number(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.numbers += 1;
            self.numbers - 1
        })
    }

    /// How tenants share a core.
    pub fn fairness(&self) -> &Policy {
        &self.fairness
    }

    /// What a core gives a tenant now.
    pub fn share_on(&self, tenant: TenantId, core: CoreIndex) -> Option<Share> {
        self.shares.on(tenant, core)
    }

    /// What a tenant got, core by core.
    pub fn tenant(&self, tenant: TenantId) -> &[Arc<TenantCounters>] {
        self.shares.counters(tenant)
    }

    /// No queue uses the volume any more: cores close what they hold of it.
    pub fn detach(&self, volume: &Arc<Volume>) {
        for core in &self.cores {
            core.mailbox.send(ToCore::Detach(Arc::clone(volume)));
        }
    }

    /// Signals an eventfd of a front end, for a queue that no core has. Never waits for the front end.
    pub fn signal(&mut self, bell: BorrowedFd<'_>) {
        if let Err(error) = self.notifier.signal([bell]) {
            tracing::error!(%error, "a front end's eventfd could not be signalled");
        }
    }

    /// Whether every core has gone round its loop since the last call, or sleeps. A core that has not is stuck in a
    /// bug.
    pub fn cores_advance(&mut self) -> bool {
        let mut advance = true;
        for core in self.cores.iter_mut().filter(|core| core.role.cpu().is_some()) {
            let rounds = core.counters.rounds.get();
            let asleep = core.counters.asleep.load(Ordering::Relaxed);
            if !asleep && rounds == core.rounds_seen {
                advance = false;
            }
            core.rounds_seen = rounds;
        }
        advance
    }

    /// Sets when cores give their CPUs away.
    pub fn set_yielding(&mut self, policy: YieldPolicy) {
        self.yielding = policy;
        for core in self.data_plane() {
            core.mailbox.send(ToCore::Yielding(policy));
        }
    }

    /// CPU and counters of each of the data plane's cores.
    pub fn cores(&self) -> impl Iterator<Item = (usize, &Arc<CoreCounters>)> {
        self.cores.iter().filter_map(|core| Some((core.role.cpu()?, &core.counters)))
    }

    /// The cores with a CPU of their own: without the spare ones and the slow one.
    pub(crate) fn data_plane(&self) -> &[CoreHandle] {
        let count = self.cores.iter().take_while(|core| core.role.cpu().is_some()).count();
        &self.cores[..count]
    }

    /// The core of what makes others wait.
    pub(crate) fn slow(&self) -> Option<CoreIndex> {
        self.cores.iter().position(|core| core.role == CoreRole::Slow).map(CoreIndex)
    }

    pub(crate) fn send(&self, core: CoreIndex, message: ToCore) {
        self.cores[core.0].mailbox.send(message);
    }

    pub(crate) fn check(&self, core: CoreIndex) -> Result<CoreIndex, EngineError> {
        let cores = self.data_plane().len();
        if core.0 < cores { Ok(core) } else { Err(EngineError::NoSuchCore(core.0, cores - 1)) }
    }

    pub(crate) fn least_loaded(&self) -> CoreIndex {
        let least = self.data_plane().iter().enumerate().min_by_key(|(_, core)| core.queues);
        CoreIndex(least.map_or(0, |(index, _)| index))
    }

    fn retire(&mut self, key: QueueKey) {
        self.remove_receiver(key);
        if let Some(PlacedQueue { core, tenant, device, back_end, is_scheduled, .. }) = self.placed.remove(&key) {
            self.cores[core.0].queues -= 1;
            if let Some(place) = back_end {
                self.back_ends.leave(&place);
            }
            if is_scheduled {
                self.count(tenant, core, -1);
                if let Some((_, queues)) = self.devices.get_mut(&device) {
                    *queues -= 1;
                    if *queues == 0 {
                        self.devices.remove(&device);
                    }
                }
            }
            for core in &self.cores {
                core.mailbox.send(ToCore::Forget(key));
            }
            self.free.push(key.number);
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for core in &self.cores {
            core.mailbox.send(ToCore::Shutdown);
        }
        for core in &mut self.cores {
            let Some(thread) = core.thread.take() else { continue };
            let began = Instant::now();
            while core.role == CoreRole::Slow && !thread.is_finished() && began.elapsed() < SLOW_END {
                std::thread::sleep(SLOW_END / 100);
            }
            if core.role != CoreRole::Slow || thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}
