//! What messages and decisions are charged, each alone, by sending them over the model.

use softdpu_sched::threads::{CoreId, Sequence, SloClass, ThreadDecision, ThreadEvent, ThreadId, ThreadMessage};

use super::{DpuPageType, DpuView, HostView, Ledger, LinkCosts, LinkStep, PageType};
use crate::entry::{Entry, Transaction};
use crate::memory::SharedMemory;
use crate::offload::End;
use crate::prestage::{AgentSlot, HostSlot, SLOT_LINES};
use crate::queue::{Consumer, Producer, queue_lines};

/// What each side spends, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charges {
    /// The host sends a message or an outcome.
    pub host_send: u64,
    /// The same for each of a batch of [`BATCH`](Self::BATCH).
    pub host_send_batched: u64,
    /// The host reads a decision that it was interrupted for.
    pub host_poll: u64,
    /// The host prefetches a prestaged decision, works for 1 µs (Wave §5.4), and takes it.
    pub host_take: u64,
    /// The host looks for a prestaged decision and finds none.
    pub host_miss: u64,
    /// The agent takes in a message or an outcome.
    pub agent_poll: u64,
    /// The agent writes a decision.
    pub agent_send: u64,
    /// The agent prestages one.
    pub agent_stage: u64,
}

const CAPACITY: usize = 64;
const ROUNDS: u64 = 48;

/// Makes both sides' views of a memory.
struct Sides {
    costs: LinkCosts,
    to_dpu: PageType,
    to_host: PageType,
    /// None: the agent is on another core of the host.
    dpu: Option<DpuPageType>,
    host: Ledger,
    agent: Ledger,
}

impl Sides {
    fn host(&self, memory: &SharedMemory, pages: PageType) -> End {
        End::Host(HostView::new(memory.clone(), pages, self.costs, self.host.clone()))
    }

    fn agent(&self, memory: &SharedMemory) -> End {
        match self.dpu {
            Some(pages) => End::Dpu(DpuView::new(memory.clone(), pages, self.costs, self.agent.clone())),
            None => End::Host(HostView::new(memory.clone(), self.to_host, self.costs, self.agent.clone())),
        }
    }

    fn spent(&self) -> (u64, u64) {
        (self.host.spent(), self.agent.spent())
    }
}

/// Sends batches of an entry and takes them, both for each entry on average: host's and agent's time.
fn carried<T: Entry + Copy>(sides: &Sides, entry: T, is_to_agent: bool, batch: usize) -> (u64, u64) {
    let memory = SharedMemory::heap(queue_lines(CAPACITY));
    let (producing, consuming): (End, End) = match is_to_agent {
        true => (sides.host(&memory, sides.to_dpu), sides.agent(&memory)),
        false => (sides.agent(&memory), sides.host(&memory, sides.to_host)),
    };
    let (Ok(mut producer), Ok(mut consumer)) = (Producer::new(producing, CAPACITY), Consumer::new(consuming, CAPACITY))
    else {
        unreachable!("the memory is large enough")
    };
    let before = sides.spent();
    let (entries, mut taken) = (vec![entry; batch], Vec::<T>::new());
    for _ in 0..ROUNDS {
        let sent = producer.send(&entries);
        let polled = consumer.poll(&mut taken, batch);
        debug_assert_eq!((sent, polled), (Ok(batch), Ok(batch)));
    }
    let (after, count) = (sides.spent(), ROUNDS * batch as u64);
    ((after.0 - before.0) / count, (after.1 - before.1) / count)
}

impl Charges {
    /// Messages of [`host_send_batched`](Self::host_send_batched).
    pub const BATCH: usize = 32;
    /// What the host does between prefetch and take, nanoseconds (Wave §5.4).
    pub const WORK: u64 = 1_000;

    /// Over a link, at one of the paper's steps.
    pub fn over_link(costs: LinkCosts, step: LinkStep) -> Charges {
        let (to_dpu, to_host, dpu) = (step.pages_to_dpu(), step.pages_to_host(), Some(step.dpu_pages()));
        Charges::of(&Sides { costs, to_dpu, to_host, dpu, host: Ledger::default(), agent: Ledger::default() })
    }

    /// Between two cores of a host, where a line that the other one wrote takes so long.
    pub fn coherent(line: u64) -> Charges {
        let costs = LinkCosts { host_read: line, host_write: LinkCosts::WAVE.hit, ..LinkCosts::WAVE };
        let (to_dpu, to_host, dpu) = (PageType::WriteThrough, PageType::WriteThrough, None);
        Charges::of(&Sides { costs, to_dpu, to_host, dpu, host: Ledger::default(), agent: Ledger::default() })
    }

    fn of(sides: &Sides) -> Charges {
        let decision = ThreadDecision { core: CoreId(1), thread: ThreadId(1), sequence: Sequence(1) };
        let ThreadDecision { core, thread, sequence } = decision;
        let message = ThreadMessage { thread, sequence, event: ThreadEvent::Wakeup, core, class: SloClass(0) };
        let transaction = Transaction { number: 1, decision, preempts: false };
        let (host_send, agent_poll) = carried(sides, message, true, 1);
        let (host_send_batched, _) = carried(sides, message, true, Charges::BATCH);
        let (host_poll, agent_send) = carried(sides, transaction, false, 1);

        let memory = SharedMemory::heap(SLOT_LINES);
        let slots = (AgentSlot::new(sides.agent(&memory), 0), HostSlot::new(sides.host(&memory, sides.to_host), 0));
        let (Some(mut staging), Some(mut taking)) = slots else { unreachable!("the memory is large enough") };
        let (mut host_take, mut agent_stage, mut host_miss) = (0, 0, 0);
        for number in 0..ROUNDS {
            let before = sides.spent();
            staging.replace(Some(Transaction { number: number as u32, ..transaction }));
            agent_stage += sides.agent.spent() - before.1;
            taking.prefetch();
            sides.host.spend(Charges::WORK);
            let found: Option<Transaction> = taking.take();
            debug_assert!(found.is_some());
            host_take += sides.host.spent() - before.0 - Charges::WORK;
            let before = sides.host.spent();
            let found = taking.take();
            debug_assert!(found.is_none());
            host_miss += sides.host.spent() - before;
        }
        Charges {
            host_send,
            host_send_batched,
            host_poll,
            host_take: host_take / ROUNDS,
            host_miss: host_miss / ROUNDS,
            agent_poll,
            agent_send,
            agent_stage: agent_stage / ROUNDS,
        }
    }
}
