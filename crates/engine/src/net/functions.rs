//! Functions of tenants in the path of their ports' frames ([`softdpu_functions`]).
//!
//! ```text
//!   burst ─► inward: the sender's chain ─► Vpc::forward ─► outward: the receiver's chain ─► by their verdicts
//!     settled ◄── those that went are counted ◄──────────────────────────────────────────────────┘
//!   ten times a second ─► outputs ─► FunctionBox (a thread of its own)
//! ```
//!
//! A frame that finds no buffer at its receiver comes again, and is judged again then; it is counted when it has gone.
//! A core never waits for the reader of the outputs: what finds no credits is counted and dropped.
//!
//! Functions come and go by [`Engine::change_functions`](crate::Engine::change_functions): each core takes all of
//! a change between two bursts. The caller makes the new instances, and the old ones go to the reader of the box, with
//! what they have not reported yet: a core neither allocates nor frees their memory.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use softdpu_functions::{CHAIN, Counts, FrameDirection, Function, FunctionSpec, Observation, Output};
use softdpu_sys::clock;
use softdpu_vpc::{DropReason, Packet, PortId, Verdict, Vni};

use super::{CreditOwner, CreditPool};
use crate::ids::CoreIndex;
use crate::mailbox::{Inbox, Mailbox, waitable};

/// How often functions turn, nanoseconds.
const TURN: u64 = 100_000_000;

/// Records and entries that may wait to be taken from all cores; half of them are one function's at the most.
const CREDITS: usize = 1 << 17;

/// A function as cores have it, from when they are given it until they are given another in its place or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId {
    /// Which function, however its settings change.
    pub function: u32,
    /// How often cores were given it before.
    pub incarnation: u32,
}

/// A core's report of a function.
#[derive(Debug)]
pub struct FunctionReport {
    /// The function.
    pub id: FunctionId,
    /// The core that reports.
    pub core: CoreIndex,
    /// What the function has to report.
    pub outputs: Vec<Output>,
    /// The core has the function no more: this is its last report of it.
    pub is_last: bool,
    /// Dropped when the report was read: see [`FunctionSwitchover`].
    _unread: Option<Sender<()>>,
}

impl FunctionReport {
    /// A report that no change waits for.
    pub fn new(id: FunctionId, core: CoreIndex, outputs: Vec<Output>, is_last: bool) -> FunctionReport {
        FunctionReport { id, core, outputs, is_last, _unread: None }
    }
}

/// A function that cores are to have.
#[derive(Clone, Debug)]
pub struct NewFunction {
    /// What it is called in reports.
    pub id: FunctionId,
    /// What it does.
    pub spec: FunctionSpec,
    /// Counts the flow records and window entries that found no credits.
    pub lost: Arc<AtomicU64>,
}

/// What changes of functions, all at once.
#[derive(Debug, Default)]
pub struct FunctionChange {
    /// Small numbers by which ports name functions, and which function has the number from now on.
    pub functions: Vec<(usize, Option<NewFunction>)>,
    /// Ports, the VNIs of their networks, and the numbers of the functions that their frames pass from now on, in this
    /// order; at most [`CHAIN`], or none.
    pub ports: Vec<(PortId, Vni, Vec<usize>)>,
}

/// A change that cores make.
#[derive(Debug)]
pub struct FunctionSwitchover(Receiver<()>);

impl FunctionSwitchover {
    /// Waits until every core has made it and the last reports of removed functions were read, `patience` at the most;
    /// false: it took longer.
    pub fn wait(self, patience: Duration) -> bool {
        self.0.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
    }
}

/// Where cores send reports of functions.
#[derive(Clone)]
pub struct FunctionOutlet {
    mailbox: Mailbox<FunctionMessage>,
    /// For records and entries that wait to be read.
    credits: Arc<CreditPool>,
}

/// The reader's side of the cores' reports of functions.
pub struct FunctionBox {
    inbox: Inbox<FunctionMessage>,
    credits: Arc<CreditPool>,
}

/// A core's report of a function, on its way.
struct FunctionMessage {
    id: FunctionId,
    core: CoreIndex,
    outputs: Vec<Output>,
    /// The function itself, when the core is done with it.
    function: Option<Function>,
    unread: Option<Sender<()>>,
}

impl FunctionOutlet {
    /// An outlet, and the box that its reports arrive in.
    pub(crate) fn new() -> std::io::Result<(FunctionOutlet, FunctionBox)> {
        let (mailbox, inbox) = crate::mailbox::mailbox()?;
        let credits = Arc::new(CreditPool::new(CREDITS));
        Ok((FunctionOutlet { mailbox, credits: Arc::clone(&credits) }, FunctionBox { inbox, credits }))
    }
}

waitable!(FunctionBox, take);

impl FunctionBox {
    /// The next report of some core. It counts as read when it is dropped.
    pub fn take(&self) -> Option<FunctionReport> {
        let FunctionMessage { id, core, mut outputs, function, unread } = self.inbox.next()?;
        self.credits.release(CreditOwner::numbered(id.function), size(&outputs));
        let is_last = function.is_some();
        if let Some(mut function) = function {
            function.finish(&mut outputs);
            outputs.push(Output::Counts(function.counts()));
        }
        Some(FunctionReport { id, core, outputs, is_last, _unread: unread })
    }
}

fn size(outputs: &[Output]) -> usize {
    outputs.iter().map(Output::size).sum()
}

/// The functions of a port.
pub(crate) struct FunctionChain {
    vni: Vni,
    /// Numbers of functions, in the order in which frames pass them.
    functions: Box<[usize]>,
}

/// A function on this core.
pub(crate) struct FunctionInstance {
    id: FunctionId,
    function: Function,
    /// The counts that were reported last.
    reported: Option<Counts>,
    lost: Arc<AtomicU64>,
}

/// A change, as a core takes it.
pub(crate) struct FunctionSwitch {
    outlet: FunctionOutlet,
    instances: Vec<(usize, Option<FunctionInstance>)>,
    chains: Vec<(PortId, Option<FunctionChain>)>,
    /// Dropped when the change is made.
    done: Sender<()>,
}

impl FunctionChange {
    /// The change as each of `cores` cores makes it, and what waits until they have.
    pub(crate) fn switches(&self, outlet: &FunctionOutlet, cores: usize) -> (Vec<FunctionSwitch>, FunctionSwitchover) {
        let (done, receiver) = channel();
        let instance = |new: &NewFunction| FunctionInstance {
            id: new.id,
            function: Function::new(&new.spec),
            reported: None,
            lost: Arc::clone(&new.lost),
        };
        let chain = |vni: Vni, functions: &[usize]| {
            let functions: Box<[usize]> = functions.iter().copied().take(CHAIN).collect();
            (!functions.is_empty()).then_some(FunctionChain { vni, functions })
        };
        let switch = |_| FunctionSwitch {
            outlet: outlet.clone(),
            instances: self.functions.iter().map(|(number, new)| (*number, new.as_ref().map(instance))).collect(),
            chains: self.ports.iter().map(|(port, vni, functions)| (*port, chain(*vni, functions))).collect(),
            done: done.clone(),
        };
        ((0..cores).map(switch).collect(), FunctionSwitchover(receiver))
    }
}

/// Frames of a burst that leave by one port.
#[derive(Clone, Copy)]
struct EgressRun {
    port: PortId,
    /// The first of them in the burst.
    at: usize,
    /// The first of them among those that leave.
    first: usize,
    len: usize,
}

/// The functions of a core's ports; there is at least one.
pub(crate) struct ActiveFunctions {
    outlet: FunctionOutlet,
    core: CoreIndex,
    /// By number.
    instances: Vec<Option<FunctionInstance>>,
    /// By port number.
    chains: Vec<Option<FunctionChain>>,
    /// Of the burst that is under way.
    now: u64,
    inward: Vec<Observation>,
    outward: Vec<Observation>,
    runs: Vec<EgressRun>,
    /// When functions turn next.
    turn: u64,
    /// Frames have passed since counts were reported.
    has_news: bool,
}

impl ActiveFunctions {
    fn new(outlet: &FunctionOutlet, core: CoreIndex) -> ActiveFunctions {
        ActiveFunctions {
            outlet: outlet.clone(),
            core,
            instances: Vec::new(),
            chains: Vec::new(),
            now: 0,
            inward: Vec::new(),
            outward: Vec::new(),
            runs: Vec::new(),
            turn: 0,
            has_news: false,
        }
    }

    /// Makes a change.
    fn switch(
        &mut self,
        instances: Vec<(usize, Option<FunctionInstance>)>,
        chains: Vec<(PortId, Option<FunctionChain>)>,
        done: &Sender<()>,
    ) {
        for (number, instance) in instances {
            if self.instances.len() <= number {
                self.instances.resize_with(number + 1, || None);
            }
            if let Some(old) = std::mem::replace(&mut self.instances[number], instance) {
                self.retire(old, Some(done.clone()));
            }
        }
        for (PortId(port), chain) in chains {
            let port = port as usize;
            if self.chains.len() <= port {
                self.chains.resize_with(port + 1, || None);
            }
            self.chains[port] = chain;
        }
    }

    /// Sends a function to the reader, with what it has not reported yet.
    fn retire(&self, instance: FunctionInstance, unread: Option<Sender<()>>) {
        let FunctionInstance { id, function, .. } = instance;
        let message = FunctionMessage { id, core: self.core, outputs: Vec::new(), function: Some(function), unread };
        self.outlet.mailbox.send(message);
    }

    /// Takes a burst of one port through its functions, the network, and the functions of the ports by which it leaves.
    #[inline(never)]
    pub(crate) fn forward(
        &mut self,
        now: u64,
        packets: &mut [Packet],
        verdicts: &mut Vec<Verdict>,
        mut forward: impl FnMut(usize, &mut [Packet], &mut Vec<Verdict>),
    ) {
        let now = self.monotonic(now);
        self.inward.clear();
        self.outward.clear();
        self.runs.clear();
        let ActiveFunctions { chains, instances, inward, .. } = self;
        let chain = packets.first().and_then(|packet| chains.get(packet.port.0 as usize)?.as_ref());
        if let Some(chain) = chain {
            inward.extend(packets.iter().map(|packet| Observation::of(packet, FrameDirection::In, chain.vni)));
            judge(instances, chain, now, packets, inward);
        }
        let start = verdicts.len();
        if inward.iter().any(|sight| sight.dropped.is_some()) {
            forward_passing(packets, inward, verdicts, forward);
        } else {
            forward(0, packets, verdicts);
        }
        self.outward(now, packets, &mut verdicts[start..]);
    }

    /// The time for functions, which never goes back from one burst to the next.
    fn monotonic(&mut self, now: u64) -> u64 {
        self.now = self.now.max(now);
        self.now
    }

    /// Takes frames through the functions of the ports by which they leave.
    fn outward(&mut self, now: u64, packets: &[Packet], verdicts: &mut [Verdict]) {
        let ActiveFunctions { chains, instances, outward, runs, .. } = self;
        let mut at = 0;
        while let Some(verdict) = verdicts.get(at) {
            let Verdict::Local { port, .. } = *verdict else {
                at += 1;
                continue;
            };
            let same = |verdict: &&Verdict| matches!(verdict, Verdict::Local { port: to, .. } if *to == port);
            let len = verdicts[at..].iter().take_while(same).count();
            if let Some(Some(chain)) = chains.get(port.0 as usize) {
                let (first, leaving) = (outward.len(), &packets[at..at + len]);
                let see = |packet: &Packet| Observation {
                    port: port.0,
                    ..Observation::of(packet, FrameDirection::Out, chain.vni)
                };
                outward.extend(leaving.iter().map(see));
                judge(instances, chain, now, leaving, &mut outward[first..]);
                for (verdict, sight) in verdicts[at..at + len].iter_mut().zip(&outward[first..]) {
                    if sight.dropped.is_some() {
                        *verdict = Verdict::Drop(DropReason::Firewall);
                    }
                }
                runs.push(EgressRun { port, at, first, len });
            }
            at += len;
        }
    }

    /// The first `passed` frames of the burst are done with; the others come again.
    fn settle(&mut self, port: Option<PortId>, passed: usize) {
        let now = self.now;
        let ActiveFunctions { chains, instances, inward, outward, runs, .. } = self;
        let chain = |PortId(port): PortId| chains.get(port as usize).and_then(Option::as_ref);
        if let Some(chain) = port.and_then(chain) {
            note(instances, chain, now, &inward[..passed.min(inward.len())]);
        }
        for run in runs.iter() {
            let Some(chain) = chain(run.port) else { continue };
            let len = passed.saturating_sub(run.at).min(run.len);
            note(instances, chain, now, &outward[run.first..run.first + len]);
        }
        self.has_news = true;
        if self.instances.iter().flatten().any(|instance| instance.function.is_full()) {
            self.report(now, false);
        }
    }

    /// Whether a frame that belongs to no burst may leave by a port.
    fn passes(&mut self, port: PortId, packet: &Packet) -> bool {
        let now = self.monotonic(clock::now());
        let ActiveFunctions { chains, instances, .. } = self;
        let Some(Some(chain)) = chains.get(port.0 as usize) else { return true };
        let mut sights = [Observation { port: port.0, ..Observation::of(packet, FrameDirection::Out, chain.vni) }];
        judge(instances, chain, now, std::slice::from_ref(packet), &mut sights);
        note(instances, chain, now, &sights);
        self.has_news = true;
        sights[0].dropped.is_none()
    }

    /// When functions are to turn even if no frame comes.
    fn due(&self) -> Option<u64> {
        if self.has_news {
            return Some(self.turn);
        }
        let due = self.instances.iter().flatten().filter_map(|instance| instance.function.due());
        due.min().map(|due| due.max(self.turn))
    }

    /// Reports what functions have, with their counts if `counts`.
    fn report(&mut self, now: u64, counts: bool) {
        let ActiveFunctions { outlet, core, instances, has_news, .. } = self;
        for instance in instances.iter_mut().flatten() {
            let mut outputs = Vec::new();
            instance.function.turn(now, &mut outputs);
            if counts {
                let now = instance.function.counts();
                if instance.reported.as_ref() != Some(&now) {
                    instance.reported = Some(now.clone());
                    outputs.push(Output::Counts(now));
                }
            }
            instance.send(outlet, *core, outputs);
        }
        *has_news &= !counts;
    }

    /// The core ends: functions report what they have not reported yet.
    fn finish(&mut self) {
        for instance in std::mem::take(&mut self.instances).into_iter().flatten() {
            self.retire(instance, None);
        }
    }
}

impl FunctionInstance {
    /// Sends outputs, as far as there are credits.
    fn send(&self, outlet: &FunctionOutlet, core: CoreIndex, mut outputs: Vec<Output>) {
        let FunctionOutlet { mailbox, credits } = outlet;
        let owner = CreditOwner::numbered(self.id.function);
        if size(&outputs) > credits.available(owner) {
            // Counts are small, and later ones include them.
            let is_counts = |output: &mut Output| matches!(output, Output::Counts(_));
            let lost: usize = outputs.extract_if(.., |output| !is_counts(output)).map(|output| output.size()).sum();
            self.lost.fetch_add(lost as u64, Relaxed);
        }
        if !outputs.is_empty() {
            credits.charge(owner, size(&outputs));
            mailbox.send(FunctionMessage { id: self.id, core, outputs, function: None, unread: None });
        }
    }
}

/// Takes those frames through the network that are not dropped.
fn forward_passing(
    packets: &mut [Packet],
    sights: &[Observation],
    verdicts: &mut Vec<Verdict>,
    mut forward: impl FnMut(usize, &mut [Packet], &mut Vec<Verdict>),
) {
    let mut at = 0;
    for run in sights.chunk_by(|one, next| one.dropped.is_some() == next.dropped.is_some()) {
        let end = at + run.len();
        if run.first().is_some_and(|sight| sight.dropped.is_some()) {
            verdicts.extend(run.iter().map(|_| Verdict::Drop(DropReason::Firewall)));
        } else {
            forward(at, &mut packets[at..end], verdicts);
        }
        at = end;
    }
}

fn judge(
    instances: &mut [Option<FunctionInstance>],
    chain: &FunctionChain,
    now: u64,
    packets: &[Packet],
    sights: &mut [Observation],
) {
    for (place, number) in chain.functions.iter().enumerate() {
        if let Some(Some(instance)) = instances.get_mut(*number) {
            instance.function.judge(now, packets, sights, place);
        }
    }
}

fn note(instances: &mut [Option<FunctionInstance>], chain: &FunctionChain, now: u64, sights: &[Observation]) {
    for (place, number) in chain.functions.iter().enumerate() {
        if let Some(Some(instance)) = instances.get_mut(*number) {
            instance.function.note(now, sights, place);
        }
    }
}

/// The functions of a core's ports, if any port has some. While none has, each burst costs two checks of that.
#[derive(Default)]
pub(crate) struct Functions(Option<Box<ActiveFunctions>>);

impl Functions {
    /// The functions through which bursts go, if any port has some.
    #[inline]
    pub(crate) fn active(&mut self) -> Option<&mut ActiveFunctions> {
        self.0.as_deref_mut()
    }

    /// The first `passed` frames of the burst, of `packets` that came in by one port, are done with.
    #[inline]
    pub(crate) fn settle(&mut self, packets: &[Packet], passed: usize) {
        if let Some(functions) = &mut self.0 {
            functions.settle(packets.first().map(|packet| packet.port), passed);
        }
    }

    /// Whether a frame that the software tier forwards may leave by a port.
    pub(crate) fn may_leave(&mut self, port: PortId, packet: &Packet) -> bool {
        self.0.as_mut().is_none_or(|functions| functions.passes(port, packet))
    }

    /// Does what is due at `now`.
    pub(crate) fn turn(&mut self, now: u64) {
        if let Some(functions) = &mut self.0
            && now >= functions.turn
        {
            functions.turn = now.saturating_add(TURN);
            let now = functions.monotonic(now);
            functions.report(now, true);
        }
    }

    /// The core ends.
    pub(crate) fn finish(&mut self) {
        if let Some(functions) = &mut self.0 {
            functions.finish();
        }
    }

    /// When functions are to turn even if no frame comes, nanoseconds.
    pub(crate) fn due(&self) -> Option<u64> {
        self.0.as_ref()?.due()
    }

    /// Ports of `core` have other functions from now on, or none.
    pub(crate) fn switch(&mut self, core: CoreIndex, switch: FunctionSwitch) {
        let FunctionSwitch { outlet, instances, chains, done } = switch;
        let functions = self.0.get_or_insert_with(|| Box::new(ActiveFunctions::new(&outlet, core)));
        functions.switch(instances, chains, &done);
        if functions.instances.iter().all(Option::is_none) && functions.chains.iter().all(Option::is_none) {
            self.0 = None;
        }
    }
}
