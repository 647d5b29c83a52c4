//! A host with cores and threads, an agent that decides for it, and what is between them.

use std::collections::VecDeque;

use softdpu_offload::link::Charges;
use softdpu_offload::{Grouping, HostThreads, Transaction, TransactionOutcome};
use softdpu_sched::Nanos;
use softdpu_sched::threads::{
    CoreId, Outcome, SloClass, ThreadDecision, ThreadEvent, ThreadId, ThreadMessage, ThreadScheduler,
};

use super::{Constants, Costs, Placement};
use crate::agenda::Agenda;
use crate::histogram::Histogram;
use crate::random::Random;

/// What comes, and how long a request takes a core.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests a second, at random; none: a request is there for every thread that has ended one.
    pub rate: Option<f64>,
    /// The time of a short request, nanoseconds.
    pub short: u64,
    /// That of a long one.
    pub long: u64,
    /// Long ones in a thousand.
    pub long_permille: u64,
}

/// A host and its agent.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Where the agent runs.
    pub placement: Placement,
    /// Cores that run threads.
    pub cores: u32,
    /// Threads.
    pub threads: u32,
    /// What comes.
    pub load: Load,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Requests that ended in the span.
    pub completed: u64,
    /// Nanoseconds that count.
    pub span: u64,
    /// From arrival to end, of short requests.
    pub short: Histogram,
    /// From a thread that leaves its core to the next one that runs there.
    pub switches: Histogram,
    /// Core time that requests had, nanoseconds.
    pub served: u64,
    /// Decisions that the host refused.
    pub refused: u64,
    /// Switches with a prestaged decision.
    pub prestaged: u64,
}

impl Measured {
    /// Requests a second.
    pub fn throughput(&self) -> f64 {
        self.completed as f64 * 1e9 / self.span.max(1) as f64
    }
}

#[derive(Clone, Copy, Debug)]
struct Request {
    arrived: u64,
    left: u64,
    is_long: bool,
}

#[derive(Debug)]
enum Event {
    /// A request comes.
    Arrival,
    /// A core's thread has done its request; only if its turn is still this one.
    Done { core: usize, turn: u64 },
    /// The thread's core has updated its state; it sends its message and looks into its slot.
    Look { core: usize, thread: ThreadId },
    /// The agent can see it.
    ToAgent(Input),
    /// The agent has taken in what it was about.
    TakenIn(Input),
    /// The agent is free again.
    Free,
    /// A decision is in the slot of its core.
    Staged(Transaction),
    /// A core has taken the interrupt.
    Interrupt(Transaction),
    /// The policy may want to preempt.
    Deadline,
    /// The agent looks whether a prestaged decision was taken.
    LookAgain { core: usize, number: u32 },
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Message(ThreadMessage),
    Outcome(TransactionOutcome),
    /// Nothing but to decide: a deadline has come.
    Tick,
}

#[derive(Clone, Copy, Debug, Default)]
struct Core {
    running: Option<ThreadId>,
    /// Counts threads that ran here.
    turn: u64,
    /// Since when its thread runs, and when its request is done.
    began: u64,
    ends: u64,
    /// Since when it runs nothing.
    idle_since: u64,
    /// It is between two threads until the look.
    is_switching: bool,
    slot: Option<Transaction>,
}

/// What the agent believes of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Believed {
    #[default]
    Idle,
    /// A decision is under way, with an interrupt.
    Told,
    Busy,
}

#[derive(Clone, Copy, Debug, Default)]
struct AgentCore {
    believed: Believed,
    staged: Option<Transaction>,
}

/// See the [module](self).
pub struct Machine {
    scenario: Scenario,
    costs: Costs,
    constants: Constants,
    policy: Box<dyn ThreadScheduler>,
    host: HostThreads,
    agenda: Agenda<Event>,
    random: Random,
    cores: Vec<Core>,
    work: Vec<Option<Request>>,
    idle_threads: Vec<ThreadId>,
    backlog: VecDeque<Request>,
    inputs: VecDeque<Input>,
    is_agent_busy: bool,
    agent: Vec<AgentCore>,
    deadline: Option<u64>,
    number: u32,
    now: u64,
    counts_from: u64,
    measured: Measured,
}

impl Machine {
    /// With this policy.
    pub fn new(scenario: Scenario, policy: Box<dyn ThreadScheduler>, constants: Constants, seed: u64) -> Machine {
        let costs = Costs::of(scenario.placement, &constants);
        let Some(host) = HostThreads::new(scenario.threads, scenario.cores) else {
            unreachable!("scenarios are small")
        };
        let cores = scenario.cores as usize;
        Machine {
            scenario,
            costs,
            constants,
            policy,
            host,
            agenda: Agenda::default(),
            random: Random::new(seed),
            cores: vec![Core::default(); cores],
            work: vec![None; scenario.threads as usize],
            idle_threads: Vec::new(),
            backlog: VecDeque::new(),
            inputs: VecDeque::new(),
            is_agent_busy: false,
            agent: vec![AgentCore::default(); cores],
            deadline: None,
            number: 0,
            now: 0,
            counts_from: 0,
            measured: Measured::default(),
        }
    }

    /// Runs for a quarter of `span` that does not count and for `span` that does.
    pub fn run(mut self, span: u64) -> Measured {
        for thread in (0..self.scenario.threads).rev().map(ThreadId) {
            if let Some(message) = self.host.create(thread, SloClass(0)) {
                self.policy.message(Nanos(0), &message);
            }
            self.idle_threads.push(thread);
        }
        self.counts_from = span / 4;
        match self.scenario.load.rate {
            Some(_) => self.next_arrival(),
            None => {
                for _ in 0..self.scenario.threads {
                    let request = self.request();
                    self.arrive(request);
                }
            }
        }
        let until = self.counts_from + span;
        while let Some((now, event)) = self.agenda.next(until) {
            self.now = now;
            self.handle(event);
        }
        self.measured.span = span;
        self.measured
    }

    fn counts(&self) -> bool {
        self.now >= self.counts_from
    }

    fn request(&mut self) -> Request {
        let Load { short, long, long_permille, .. } = self.scenario.load;
        let is_long = self.random.below(1_000) < long_permille;
        Request { arrived: self.now, left: if is_long { long } else { short }, is_long }
    }

    fn next_arrival(&mut self) {
        if let Some(rate) = self.scenario.load.rate {
            // In 2^-10 ns, as a gap is not many of them.
            let gap = self.random.exponential(crate::arrivals::gap(rate)) >> crate::arrivals::FRACTION;
            self.agenda.enter(self.now + gap, Event::Arrival);
        }
    }

    /// A request goes to a thread that has none, which wakes up; another core does that.
    fn arrive(&mut self, request: Request) {
        let Some(thread) = self.idle_threads.pop() else {
            self.backlog.push_back(request);
            return;
        };
        self.work[thread.0 as usize] = Some(request);
        let class = SloClass(u8::from(request.is_long));
        if let Some(message) = self.host.wake(thread, class) {
            self.send(self.now + self.costs.queue.host_send, Input::Message(message));
        }
    }

    fn send(&mut self, at: u64, input: Input) {
        self.agenda.enter(at + self.costs.one_way, Event::ToAgent(input));
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Arrival => {
                let request = self.request();
                self.arrive(request);
                self.next_arrival();
            }
            Event::Done { core, turn } => self.done(core, turn),
            Event::Look { core, thread } => self.look(core, thread),
            Event::ToAgent(input) => {
                self.inputs.push_back(input);
                self.agent_goes_on();
            }
            Event::TakenIn(input) => self.taken_in(input),
            Event::Free => {
                self.is_agent_busy = false;
                self.agent_goes_on();
            }
            Event::Staged(transaction) => self.cores[transaction.decision.core.0 as usize].slot = Some(transaction),
            Event::Interrupt(transaction) => self.interrupt(transaction),
            Event::Deadline => {
                if self.deadline == Some(self.now) {
                    self.deadline = None;
                    self.inputs.push_back(Input::Tick);
                    self.agent_goes_on();
                }
            }
            Event::LookAgain { core, number } => {
                let staged = self.agent[core].staged.filter(|staged| staged.number == number);
                // The agent reads what the host has taken: not taken, the slot still has it.
                if let (Some(staged), Some(_)) = (staged, self.cores[core].slot) {
                    self.agenda.enter(self.now + self.costs.interrupt, Event::Interrupt(staged));
                }
            }
        }
    }

    // The host.

    fn done(&mut self, at: usize, turn: u64) {
        let core = &mut self.cores[at];
        if core.turn != turn {
            return;
        }
        let Some(thread) = core.running.take() else { return };
        let began = core.began.max(self.counts_from);
        core.idle_since = self.now;
        core.is_switching = true;
        self.measured.served += self.now.saturating_sub(began);
        let request = self.work[thread.0 as usize].take();
        if let Some(request) = request.filter(|_| self.counts()) {
            self.measured.completed += 1;
            if !request.is_long {
                self.measured.short.add(self.now - request.arrived);
            }
        }
        // The prefetch is under way while the kernel works (§5.4: about 1 µs); what it does else follows the decision.
        self.agenda.enter(self.now + Charges::WORK.min(self.constants.kernel), Event::Look { core: at, thread });
    }

    fn look(&mut self, at: usize, thread: ThreadId) {
        self.cores[at].is_switching = false;
        let told = self.now + self.costs.queue.host_send;
        if let Some(message) = self.host.block(thread) {
            self.send(told, Input::Message(message));
        }
        self.idle_threads.push(thread);
        let next = match self.scenario.load.rate {
            Some(_) => self.backlog.pop_front(),
            None => Some(self.request()),
        };
        if let Some(request) = next {
            self.arrive(request);
        }
        if let Some(transaction) = self.cores[at].slot.take() {
            let is_enacted = self.commit(transaction, self.costs.queue.host_send + self.costs.queue.host_take);
            self.measured.prestaged += u64::from(is_enacted && self.counts());
        }
    }

    fn interrupt(&mut self, transaction: Transaction) {
        let at = transaction.decision.core.0 as usize;
        if self.cores[at].is_switching {
            // It comes to the decision when the kernel is done.
            let later = self.now + 100;
            self.agenda.enter(later, Event::Interrupt(transaction));
            return;
        }
        // One that was prestaged is in the slot, or was taken.
        if self.cores[at].slot.is_some_and(|slot| slot.number == transaction.number) {
            self.cores[at].slot = None;
        }
        self.commit(transaction, self.costs.queue.host_poll);
    }

    /// The host has read a decision, which takes so long, commits it, and says so. Whether it is enacted.
    fn commit(&mut self, transaction: Transaction, read: u64) -> bool {
        let at = transaction.decision.core.0 as usize;
        let mut messages = Vec::new();
        let outcomes = self.host.commit(&[transaction], Grouping::Each, &mut messages);
        let Some(outcome) = outcomes.first().copied() else { return false };
        let is_committed = outcome.outcome == Outcome::Committed;
        let mut ready = self.now + read;
        if let (true, Some(old)) = (is_committed, self.cores[at].running.take()) {
            // Preempted: what is left of its request waits. The read cannot be hidden (§7.2.3).
            let left = self.cores[at].ends.saturating_sub(self.now);
            if let Some(work) = &mut self.work[old.0 as usize] {
                work.left = left.max(1);
            }
            self.cores[at].idle_since = self.now;
            let began = self.cores[at].began.max(self.counts_from);
            self.measured.served += self.now.saturating_sub(began);
            ready += self.costs.interrupt_receive + Charges::WORK.min(self.constants.kernel);
        }
        for message in messages {
            ready += self.costs.queue.host_send;
            self.send(ready, Input::Message(message));
        }
        ready += self.costs.queue.host_send;
        self.send(ready, Input::Outcome(outcome));
        if is_committed {
            ready += self.constants.kernel.saturating_sub(Charges::WORK);
        }
        let core = &mut self.cores[at];
        if !is_committed {
            self.measured.refused += u64::from(self.now >= self.counts_from);
            if core.running.is_some() {
                // What runs is held up by that.
                let (turn, held) = (core.turn + 1, ready - self.now + self.costs.interrupt_receive);
                (core.turn, core.ends) = (turn, core.ends + held);
                core.began += held;
                self.agenda.enter(core.ends, Event::Done { core: at, turn });
            }
            return false;
        }
        let thread = transaction.decision.thread;
        core.running = Some(thread);
        core.turn += 1;
        let left = self.work[thread.0 as usize].map_or(1, |work| work.left);
        (core.began, core.ends) = (ready, ready + left);
        let (turn, ends, idle_since) = (core.turn, core.ends, core.idle_since);
        self.agenda.enter(ends, Event::Done { core: at, turn });
        if self.counts() {
            self.measured.switches.add(ready - idle_since);
        }
        true
    }

    // The agent.

    fn agent_goes_on(&mut self) {
        if self.is_agent_busy {
            return;
        }
        let Some(input) = self.inputs.pop_front() else { return };
        self.is_agent_busy = true;
        let takes = match input {
            Input::Tick => self.constants.policy,
            Input::Message(_) | Input::Outcome(_) => self.costs.queue.agent_poll + self.constants.policy,
        };
        self.agenda.enter(self.now + takes, Event::TakenIn(input));
    }

    fn taken_in(&mut self, input: Input) {
        let now = Nanos(self.now);
        match input {
            Input::Tick => {}
            Input::Message(message) => {
                self.policy.message(now, &message);
                let core = &mut self.agent[message.core.0 as usize];
                if message.event == ThreadEvent::Blocked && core.believed == Believed::Busy {
                    match core.staged {
                        None => core.believed = Believed::Idle,
                        Some(Transaction { number, .. }) => {
                            // The host takes it now, or has looked before it was there.
                            core.believed = Believed::Told;
                            let (core, later) = (message.core.0 as usize, self.now + self.constants.look_again);
                            self.agenda.enter(later, Event::LookAgain { core, number });
                        }
                    }
                }
            }
            Input::Outcome(found) => {
                self.policy.outcome(now, &found.decision, found.outcome);
                let core = &mut self.agent[found.decision.core.0 as usize];
                if core.staged.is_some_and(|staged| staged.number == found.number) {
                    core.staged = None;
                }
                // A refused preemption leaves its core with what it ran.
                core.believed = match found.outcome {
                    Outcome::Committed | Outcome::CoreBusy => Believed::Busy,
                    _ if self.cores[found.decision.core.0 as usize].running.is_some() => Believed::Busy,
                    _ => Believed::Idle,
                };
            }
        }
        let free = self.decide();
        self.agenda.enter(free, Event::Free);
        let next = self.policy.deadline(Nanos(free)).map(|deadline| deadline.0.max(free + 1));
        if next != self.deadline
            && let Some(next) = next
        {
            self.deadline = Some(next);
            self.agenda.enter(next, Event::Deadline);
        }
    }

    /// Decides for idle cores, preempts, and prestages. Gives the time at which that is written.
    fn decide(&mut self) -> u64 {
        let mut at = self.now;
        let cores = self.agent.len();
        for core in 0..cores {
            if self.agent[core].believed == Believed::Idle
                && let Some(decision) = self.policy.pick(Nanos(at), CoreId(core as u32))
            {
                at = self.tell(at, decision, false);
            }
        }
        while let Some(core) = self.policy.preempt(Nanos(at)) {
            at += self.constants.policy;
            let Some(decision) = self.policy.pick(Nanos(at), core) else { break };
            at = self.tell(at, decision, true);
        }
        if self.scenario.placement.prestages() {
            for core in 0..cores {
                // Only where the run queue is deep: linear in the number of cores (§4.1).
                if self.policy.waiting() < cores {
                    break;
                }
                let is_free = self.agent[core].staged.is_none() && self.agent[core].believed == Believed::Busy;
                if is_free && let Some(decision) = self.policy.pick(Nanos(at), CoreId(core as u32)) {
                    at += self.constants.policy + self.costs.queue.agent_stage;
                    let transaction = self.transaction(decision, false);
                    self.agent[core].staged = Some(transaction);
                    self.agenda.enter(at, Event::Staged(transaction));
                }
            }
        }
        at
    }

    fn transaction(&mut self, decision: ThreadDecision, preempts: bool) -> Transaction {
        self.number = self.number.wrapping_add(1);
        Transaction { number: self.number, decision, preempts }
    }

    /// Writes a decision and has its core interrupted. Gives the time at which that is done.
    fn tell(&mut self, at: u64, decision: ThreadDecision, preempts: bool) -> u64 {
        let transaction = self.transaction(decision, preempts);
        let written = at + self.constants.policy + self.costs.queue.agent_send;
        self.agent[decision.core.0 as usize].believed = Believed::Told;
        self.agenda.enter(written + self.costs.interrupt, Event::Interrupt(transaction));
        written + self.costs.interrupt_send
    }
}
