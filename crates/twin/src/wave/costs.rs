//! What the queues cost each side, by running them over the link model.

use softdpu_offload::link::{DpuPageType, DpuView, HostView, Ledger, LinkCosts, LinkStep, PageType};
use softdpu_offload::{
    AgentSlot, Consumer, Entry, HostSlot, Producer, QueueMemory, SLOT_LINES, SharedMemory, Transaction,
    TransactionOutcome, queue_lines,
};
use softdpu_sched::threads::{
    CoreId, Outcome, Sequence, SloClass, ThreadDecision, ThreadEvent, ThreadId, ThreadMessage,
};

use super::Constants;
use super::machine::BEFORE;

/// Where the agent runs, and with which of §5's optimisations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On the DPU.
    Dpu(LinkStep),
    /// On a core of the host, as ghOSt does.
    OnHost {
        /// Whether decisions are prestaged.
        prestages: bool,
    },
}

impl Placement {
    /// Whether the agent prestages.
    pub fn prestages(self) -> bool {
        match self {
            Placement::Dpu(step) => step >= LinkStep::Prestaged,
            Placement::OnHost { prestages } => prestages,
        }
    }
}

/// What each step takes, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// The host sends a message or an outcome.
    pub host_send: u64,
    /// The host reads a decision that it was interrupted for.
    pub host_poll: u64,
    /// The host takes a prestaged decision that it has prefetched 1 µs before.
    pub host_take: u64,
    /// The host looks for a prestaged decision and finds none.
    pub host_miss: u64,
    /// The agent takes in a message or an outcome.
    pub agent_poll: u64,
    /// The agent writes a decision.
    pub agent_send: u64,
    /// The agent prestages one.
    pub agent_stage: u64,
    /// The agent has a core interrupted (Table 2: ioctl and register write).
    pub interrupt_send: u64,
    /// The host takes the interrupt (Table 2).
    pub interrupt_receive: u64,
    /// From the agent's send until the handler is done (Table 2).
    pub interrupt: u64,
    /// From the host's store until the agent can see it.
    pub one_way: u64,
}

const CAPACITY: usize = 64;
const ROUNDS: u64 = 48;

/// Entries that one side sends and the other takes one by one: what each took on average.
fn queue<T: Entry + Copy>(
    entry: T,
    producing: impl QueueMemory,
    consuming: impl QueueMemory,
    [produced, consumed]: [&Ledger; 2],
) -> (u64, u64) {
    let (Ok(mut producer), Ok(mut consumer)) = (Producer::new(producing, CAPACITY), Consumer::new(consuming, CAPACITY))
    else {
        unreachable!("the memory is large enough")
    };
    let before = (produced.spent(), consumed.spent());
    let mut taken: Vec<T> = Vec::new();
    for _ in 0..ROUNDS {
        let sent = producer.send(&[entry]);
        let polled = consumer.poll(&mut taken, 1);
        debug_assert_eq!((sent, polled), (Ok(1), Ok(1)));
    }
    ((produced.spent() - before.0) / ROUNDS, (consumed.spent() - before.1) / ROUNDS)
}

impl Costs {
    /// Of an agent that is there.
    pub fn of(placement: Placement, constants: &Constants) -> Costs {
        let wave = LinkCosts::WAVE;
        let (to_dpu, to_host, own, costs) = match placement {
            Placement::Dpu(step) => (step.pages_to_dpu(), step.pages_to_host(), step.dpu_pages(), wave),
            Placement::OnHost { .. } => {
                // A line is in another core's cache until it is read, and then in this one's.
                let costs = LinkCosts { host_read: constants.coherent, host_write: wave.hit, ..wave };
                (PageType::WriteThrough, PageType::WriteThrough, DpuPageType::WriteBack, costs)
            }
        };
        let is_on_host = matches!(placement, Placement::OnHost { .. });
        let (host, agent) = (Ledger::default(), Ledger::default());
        let hosts = |memory: &SharedMemory, pages| HostView::new(memory.clone(), pages, costs, host.clone());
        let agents = |memory: &SharedMemory| -> Box<dyn QueueMemory> {
            match is_on_host {
                true => Box::new(HostView::new(memory.clone(), to_host, costs, agent.clone())),
                false => Box::new(DpuView::new(memory.clone(), own, costs, agent.clone())),
            }
        };
        let decision = ThreadDecision { core: CoreId(1), thread: ThreadId(1), sequence: Sequence(1) };
        let (event, class) = (ThreadEvent::Wakeup, SloClass(0));
        let (core, thread, sequence) = (decision.core, decision.thread, decision.sequence);
        let message = ThreadMessage { thread, sequence, event, core, class };
        let outcome = TransactionOutcome { number: 1, decision, outcome: Outcome::Committed };
        let transaction = Transaction { number: 1, decision, preempts: false };

        let memory = SharedMemory::heap(queue_lines(CAPACITY));
        let (host_send, agent_poll) = queue(message, hosts(&memory, to_dpu), Boxed(agents(&memory)), [&host, &agent]);
        let memory = SharedMemory::heap(queue_lines(CAPACITY));
        let answered = queue(outcome, hosts(&memory, to_dpu), Boxed(agents(&memory)), [&host, &agent]);
        debug_assert_eq!(answered, (host_send, agent_poll), "messages and outcomes are as long");
        let memory = SharedMemory::heap(queue_lines(CAPACITY));
        let (agent_send, host_poll) =
            queue(transaction, Boxed(agents(&memory)), hosts(&memory, to_host), [&agent, &host]);

        let memory = SharedMemory::heap(SLOT_LINES);
        let slots = (AgentSlot::new(Boxed(agents(&memory)), 0), HostSlot::new(hosts(&memory, to_host), 0));
        let (Some(mut staging), Some(mut taking)) = slots else { unreachable!("the memory is large enough") };
        let (mut host_take, mut agent_stage, mut host_miss) = (0, 0, 0);
        for number in 0..ROUNDS {
            let before = agent.spent();
            staging.replace(Some(Transaction { number: number as u32, ..transaction }));
            agent_stage += agent.spent() - before;
            let before = host.spent();
            taking.prefetch();
            host.spend(BEFORE);
            let found: Option<Transaction> = taking.take();
            debug_assert!(found.is_some());
            host_take += host.spent() - before - BEFORE;
            let before = host.spent();
            let found = taking.take();
            debug_assert!(found.is_none());
            host_miss += host.spent() - before;
        }
        let one_way = if is_on_host { 0 } else { wave.host_read / 2 };
        // Comparable to an interrupt between processors, but for the way over PCIe (§7.1).
        let interrupt = if is_on_host { 1_600 - wave.host_read / 2 } else { 1_600 };
        Costs {
            host_send,
            host_poll,
            host_take: host_take / ROUNDS,
            host_miss: host_miss / ROUNDS,
            agent_poll,
            agent_send,
            agent_stage: agent_stage / ROUNDS,
            interrupt_send: 340,
            interrupt_receive: 350,
            interrupt,
            one_way,
        }
    }
}

/// A view behind a pointer.
struct Boxed(Box<dyn QueueMemory>);

impl QueueMemory for Boxed {
    fn words(&self) -> usize {
        self.0.words()
    }
    fn load(&mut self, at: usize) -> u64 {
        self.0.load(at)
    }
    fn observe(&mut self, at: usize) -> u64 {
        self.0.observe(at)
    }
    fn store(&mut self, at: usize, value: u64) {
        self.0.store(at, value);
    }
    fn publish(&mut self, at: usize, value: u64) {
        self.0.publish(at, value);
    }
    fn barrier(&mut self) {
        self.0.barrier();
    }
    fn drain(&mut self) {
        self.0.drain();
    }
    fn flush(&mut self, at: usize) {
        self.0.flush(at);
    }
    fn prefetch(&mut self, at: usize) {
        self.0.prefetch(at);
    }
}
