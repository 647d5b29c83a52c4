//! Agents and their queues, as the host keeps them (Wave's Table 1, first part).

use std::collections::{BTreeMap, BTreeSet};

use softdpu_sched::Nanos;
use softdpu_sched::threads::CoreId;
use thiserror::Error;

use crate::link::{DmaConsumer, DmaEngine, DmaProducer, DpuView, HostView, Ledger, LinkCosts, LinkStep};
use crate::memory::{QueueMemory, SharedMemory};
use crate::queue::queue_lines;
use crate::watchdog::{Watchdog, WatchdogVerdict};

/// An agent of this host. Ids are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentId(pub u32);

/// A queue between the host and an agent. Ids are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AgentQueueId(pub u32);

/// Which way a queue carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueDirection {
    /// From the host to the agent: messages, outcomes.
    ToAgent,
    /// From the agent to the host: transactions.
    ToHost,
}

/// What carries a queue's entries over a link. In plain shared memory all three are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueType {
    /// The host's loads and stores: for what must be quick and is small.
    #[default]
    Mmio,
    /// A DMA engine; the producer waits for it.
    DmaSync,
    /// A DMA engine; the producer goes on.
    DmaAsync,
}

/// What is between the host and its agents.
#[derive(Clone, Debug)]
pub enum Backing {
    /// Coherent memory.
    Shared,
    /// The model of a link, at one of the paper's steps.
    Link {
        /// What accesses cost.
        costs: LinkCosts,
        /// Which optimisations are on.
        step: LinkStep,
        /// The host's time.
        host: Ledger,
        /// The DPU's time.
        dpu: Ledger,
    },
}

/// An agent that is to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentSpec {
    /// Its name, for people.
    pub name: String,
    /// Its partition: the cores that it may decide about, and no other agent.
    pub cores: BTreeSet<CoreId>,
    /// It may leave work undecided for so long.
    pub watchdog: Nanos,
}

/// Why an agent is no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentEnded {
    /// It was asked for.
    Killed,
    /// It left work undecided for so long.
    Undecided(Nanos),
    /// It broke a queue.
    BrokeQueue,
}

/// An agent's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentState {
    /// It decides.
    Running,
    /// It does not; the host's own policy does.
    Ended(AgentEnded),
}

/// Why a call was refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OffloadError {
    /// There is no such agent, or it has ended.
    #[error("agent {} is not running; start one", .0.0)]
    NoAgent(AgentId),
    /// There is no such queue.
    #[error("there is no queue {}; it was destroyed, or never created", .0.0)]
    NoQueue(AgentQueueId),
    /// The partition has a core of another agent's.
    #[error("core {} is in the partition of agent {}; a core has one agent: leave it out, or kill that agent", .core.0, .agent.0)]
    CoreTaken {
        /// The core.
        core: CoreId,
        /// The agent that has it.
        agent: AgentId,
    },
    /// The core is not in the agent's partition.
    #[error("core {} is not in the partition of agent {}; name one of its cores", .core.0, .agent.0)]
    CoreNotOwned {
        /// The core.
        core: CoreId,
        /// The agent.
        agent: AgentId,
    },
    /// The capacity is out of range.
    #[error("a queue of {0} entries: expected 1 to 65536")]
    Capacity(usize),
    /// An end was handed out already.
    #[error("queue {} is in use; its type can be set before its ends are opened, and each end is opened once", .0.0)]
    InUse(AgentQueueId),
    /// The partition has no cores or no name.
    #[error("agent {0:?}: expected a name and at least one core")]
    EmptySpec(String),
}

struct Agent {
    spec: AgentSpec,
    state: AgentState,
    watchdog: Watchdog,
}

struct Queue {
    agent: AgentId,
    direction: QueueDirection,
    capacity: usize,
    kind: QueueType,
    core: Option<CoreId>,
    memory: SharedMemory,
    engine: DmaEngine,
    host_opened: bool,
    agent_opened: bool,
}

/// One side's end of a queue's memory. [`Producer`](crate::Producer) and [`Consumer`](crate::Consumer) are made of it.
pub enum End {
    /// Coherent memory.
    Shared(SharedMemory),
    /// The host's loads and stores over the link.
    Host(HostView),
    /// The DPU's own.
    Dpu(DpuView),
    /// What a DMA engine reads.
    DmaProducer(DmaProducer),
    /// What it writes.
    DmaConsumer(DmaConsumer),
}

macro_rules! each {
    ($self:expr, $memory:ident => $call:expr) => {
        match $self {
            End::Shared($memory) => $call,
            End::Host($memory) => $call,
            End::Dpu($memory) => $call,
            End::DmaProducer($memory) => $call,
            End::DmaConsumer($memory) => $call,
        }
    };
}

impl QueueMemory for End {
    fn words(&self) -> usize {
        each!(self, memory => memory.words())
    }
    fn load(&mut self, at: usize) -> u64 {
        each!(self, memory => memory.load(at))
    }
    fn observe(&mut self, at: usize) -> u64 {
        each!(self, memory => memory.observe(at))
    }
    fn store(&mut self, at: usize, value: u64) {
        each!(self, memory => memory.store(at, value));
    }
    fn publish(&mut self, at: usize, value: u64) {
        each!(self, memory => memory.publish(at, value));
    }
    fn barrier(&mut self) {
        each!(self, memory => memory.barrier());
    }
    fn drain(&mut self) {
        each!(self, memory => memory.drain());
    }
    fn flush(&mut self, at: usize) {
        each!(self, memory => memory.flush(at));
    }
    fn prefetch(&mut self, at: usize) {
        each!(self, memory => memory.prefetch(at));
    }
}

/// Agents, their partitions and their queues.
pub struct Offload {
    backing: Backing,
    agents: BTreeMap<AgentId, Agent>,
    queues: BTreeMap<AgentQueueId, Queue>,
    next_agent: u32,
    next_queue: u32,
}

impl Offload {
    /// Without agents.
    pub fn new(backing: Backing) -> Offload {
        Offload { backing, agents: BTreeMap::new(), queues: BTreeMap::new(), next_agent: 1, next_queue: 1 }
    }

    fn running(&self, agent: AgentId) -> Result<&Agent, OffloadError> {
        let found = self.agents.get(&agent).filter(|found| found.state == AgentState::Running);
        found.ok_or(OffloadError::NoAgent(agent))
    }

    fn queue(&mut self, queue: AgentQueueId) -> Result<&mut Queue, OffloadError> {
        self.queues.get_mut(&queue).ok_or(OffloadError::NoQueue(queue))
    }

    /// Starts an agent with a partition that is no other running agent's.
    ///
    /// # Errors
    /// [`OffloadError::CoreTaken`], [`OffloadError::EmptySpec`].
    pub fn start_agent(&mut self, spec: AgentSpec) -> Result<AgentId, OffloadError> {
        if spec.name.is_empty() || spec.cores.is_empty() {
            return Err(OffloadError::EmptySpec(spec.name));
        }
        for (agent, other) in self.agents.iter().filter(|(_, other)| other.state == AgentState::Running) {
            if let Some(core) = spec.cores.intersection(&other.spec.cores).next() {
                return Err(OffloadError::CoreTaken { core: *core, agent: *agent });
            }
        }
        let id = AgentId(self.next_agent);
        self.next_agent += 1;
        // What ended before keeps its state for `state`, the last 64 of them.
        let ended = self.agents.iter().filter(|(_, agent)| agent.state != AgentState::Running);
        let ended: Vec<AgentId> = ended.map(|(id, _)| *id).collect();
        for old in ended.iter().rev().skip(64) {
            self.agents.remove(old);
        }
        let watchdog = Watchdog::new(spec.watchdog);
        self.agents.insert(id, Agent { spec, state: AgentState::Running, watchdog });
        Ok(id)
    }

    /// Ends an agent: its partition is free, its queues are destroyed.
    ///
    /// # Errors
    /// [`OffloadError::NoAgent`].
    pub fn kill_agent(&mut self, agent: AgentId, why: AgentEnded) -> Result<(), OffloadError> {
        self.running(agent)?;
        if let Some(found) = self.agents.get_mut(&agent) {
            found.state = AgentState::Ended(why);
        }
        self.queues.retain(|_, queue| queue.agent != agent);
        Ok(())
    }

    /// What an agent does; none where there was none, or long ago.
    pub fn state(&self, agent: AgentId) -> Option<AgentState> {
        self.agents.get(&agent).map(|agent| agent.state)
    }

    /// An agent's spec.
    pub fn spec(&self, agent: AgentId) -> Option<&AgentSpec> {
        self.agents.get(&agent).map(|agent| &agent.spec)
    }

    /// Tells the watchdog how much waits for the agent and whether it has decided since; ends it if it is to be ended.
    ///
    /// # Errors
    /// [`OffloadError::NoAgent`].
    pub fn watch(
        &mut self,
        agent: AgentId,
        now: Nanos,
        waiting: usize,
        decided: bool,
    ) -> Result<WatchdogVerdict, OffloadError> {
        self.running(agent)?;
        let Some(found) = self.agents.get_mut(&agent) else { return Err(OffloadError::NoAgent(agent)) };
        let verdict = found.watchdog.observe(now, waiting, decided);
        if let WatchdogVerdict::End { undecided } = verdict {
            self.kill_agent(agent, AgentEnded::Undecided(undecided))?;
        }
        Ok(verdict)
    }

    /// Makes a queue of an agent's, empty, of type MMIO.
    ///
    /// # Errors
    /// [`OffloadError::NoAgent`], [`OffloadError::Capacity`].
    pub fn create_queue(
        &mut self,
        agent: AgentId,
        direction: QueueDirection,
        capacity: usize,
    ) -> Result<AgentQueueId, OffloadError> {
        self.running(agent)?;
        if !(1..=1 << 16).contains(&capacity) {
            return Err(OffloadError::Capacity(capacity));
        }
        let id = AgentQueueId(self.next_queue);
        self.next_queue += 1;
        let queue = Queue {
            agent,
            direction,
            capacity,
            kind: QueueType::Mmio,
            core: None,
            memory: SharedMemory::heap(queue_lines(capacity)),
            engine: DmaEngine::default(),
            host_opened: false,
            agent_opened: false,
        };
        self.queues.insert(id, queue);
        Ok(id)
    }

    /// Destroys a queue. Ends that were opened keep its memory, and nothing that they do reaches the other.
    ///
    /// # Errors
    /// [`OffloadError::NoQueue`].
    pub fn destroy_queue(&mut self, queue: AgentQueueId) -> Result<(), OffloadError> {
        self.queues.remove(&queue).map(drop).ok_or(OffloadError::NoQueue(queue))
    }

    /// Associates a queue with a core of its agent's partition: messages of that core go there, transactions about it
    /// come from there.
    ///
    /// # Errors
    /// [`OffloadError::NoQueue`], [`OffloadError::CoreNotOwned`].
    pub fn associate_queue(&mut self, queue: AgentQueueId, core: CoreId) -> Result<(), OffloadError> {
        let agent = self.queue(queue)?.agent;
        if !self.running(agent)?.spec.cores.contains(&core) {
            return Err(OffloadError::CoreNotOwned { core, agent });
        }
        self.queue(queue)?.core = Some(core);
        Ok(())
    }

    /// The core that a queue is associated with.
    pub fn associated_core(&self, queue: AgentQueueId) -> Option<CoreId> {
        self.queues.get(&queue)?.core
    }

    /// Sets what carries a queue, before either end is opened.
    ///
    /// # Errors
    /// [`OffloadError::NoQueue`], [`OffloadError::InUse`].
    pub fn set_queue_type(&mut self, queue: AgentQueueId, kind: QueueType) -> Result<(), OffloadError> {
        let found = self.queue(queue)?;
        if found.host_opened || found.agent_opened {
            return Err(OffloadError::InUse(queue));
        }
        found.kind = kind;
        Ok(())
    }

    /// The host's end of a queue, and its capacity.
    ///
    /// # Errors
    /// [`OffloadError::NoQueue`], [`OffloadError::InUse`].
    pub fn open_host_end(&mut self, queue: AgentQueueId) -> Result<(End, usize), OffloadError> {
        let backing = self.backing.clone();
        let found = self.queue(queue)?;
        if std::mem::replace(&mut found.host_opened, true) {
            return Err(OffloadError::InUse(queue));
        }
        Ok((found.end(&backing, true), found.capacity))
    }

    /// An agent's end of a queue, and its capacity. An agent sees only its own queues.
    ///
    /// # Errors
    /// [`OffloadError::NoQueue`], also where the queue is another agent's; [`OffloadError::InUse`].
    pub fn open_agent_end(&mut self, agent: AgentId, queue: AgentQueueId) -> Result<(End, usize), OffloadError> {
        let backing = self.backing.clone();
        let found = self.queue(queue)?;
        if found.agent != agent {
            return Err(OffloadError::NoQueue(queue));
        }
        if std::mem::replace(&mut found.agent_opened, true) {
            return Err(OffloadError::InUse(queue));
        }
        Ok((found.end(&backing, false), found.capacity))
    }
}

impl Queue {
    fn end(&self, backing: &Backing, is_host: bool) -> End {
        let memory = self.memory.clone();
        let Backing::Link { costs, step, host, dpu } = backing else { return End::Shared(memory) };
        let (own, other) = if is_host { (host, dpu) } else { (dpu, host) };
        let produces = is_host == (self.direction == QueueDirection::ToAgent);
        let is_synchronous = self.kind == QueueType::DmaSync;
        match (self.kind, is_host) {
            (QueueType::Mmio, true) => {
                let pages = if produces { step.pages_to_dpu() } else { step.pages_to_host() };
                End::Host(HostView::new(memory, pages, *costs, own.clone()))
            }
            (QueueType::Mmio, false) => End::Dpu(DpuView::new(memory, step.dpu_pages(), *costs, own.clone())),
            (QueueType::DmaSync | QueueType::DmaAsync, _) if produces => {
                let engine = self.engine.clone();
                End::DmaProducer(DmaProducer::new(memory, engine, is_synchronous, *costs, own.clone()))
            }
            (QueueType::DmaSync | QueueType::DmaAsync, _) => {
                let engine = self.engine.clone();
                End::DmaConsumer(DmaConsumer::new(memory, engine, *costs, other.clone(), own.clone()))
            }
        }
    }
}

#[cfg(test)]
mod tests;
