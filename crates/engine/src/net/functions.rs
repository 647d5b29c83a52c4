//! Functions of tenants in the path of their ports' frames ([`softdpu_functions`]).
//!
//! ```text
//!   burst ─► inward: the sender's chain ─► Vpc::forward ─► outward: the receiver's chain ─► where verdicts say
//!     settled ◄── those that went are counted ◄──────────────────────────────────────────────────┘
//!   ten times a second ─► outputs ─► FunctionBox (a thread of its own)
//! ```
//!
//! A frame that finds no room at its receiver comes again, and is judged again then; it is counted when it has gone. A
//! core never waits for who takes the outputs: what has no room is counted and forgotten.
//!
//! Functions come and go by [`Engine::change_functions`](crate::Engine::change_functions): each core takes all of a
//! change between two bursts. Instances are made by who asks for the change, and those that go are sent to who reads
//! the box, with what they have not said yet: a core neither takes nor gives back their memory.

#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use softdpu_functions::{CHAIN, Counts, FrameDirection, Function, FunctionSpec, Observation, Output};
use softdpu_sys::clock;
use softdpu_vpc::{DropReason, Packet, PortId, Verdict};

use super::{Net, Room, Whose};
use crate::ids::CoreIndex;
use crate::mailbox::{Inbox, Mailbox};

/// How often functions turn, nanoseconds.
const TURN: u64 = 100_000_000;

/// Records and entries that may wait to be taken from all cores; half of them are one function's at the most.
const ROOM: usize = 1 << 17;

/// A function as cores have it, from when they are given it until they are given another in its place or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FunctionId {
    /// Which function, however its settings change.
    pub function: u32,
    /// How often cores were given it before.
    pub incarnation: u32,
}

/// What a core says of a function.
#[derive(Debug)]
pub struct FunctionReport {
    /// Of which.
    pub id: FunctionId,
    /// Who says it.
    pub core: CoreIndex,
    /// What.
    pub outputs: Vec<Output>,
    /// The core has it no more: it says nothing else of it.
    pub is_last: bool,
    /// It is not read yet as long as this is there: see [`Switched`].
    _unread: Option<Sender<()>>,
}

impl FunctionReport {
    /// A report for which nobody waits.
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
    /// Flow records of it, and entries of its windows, for which there was no room on the way here: counted up.
    pub lost: Arc<AtomicU64>,
}

/// What changes of functions, all at once.
#[derive(Debug, Default)]
pub struct FunctionChange {
    /// Small numbers by which ports name functions, and which function has the number from now on.
    pub functions: Vec<(usize, Option<NewFunction>)>,
    /// Ports, the VNIs of their networks, and the numbers of the functions that their frames pass from now on, in this
    /// order; at most [`CHAIN`], or none.
    pub ports: Vec<(PortId, u32, Vec<usize>)>,
}

/// A change that cores make.
#[derive(Debug)]
pub struct Switched(Receiver<()>);

impl Switched {
    /// Waits until every core goes by it, and until what functions that went had to say was read, `patience` at the
    /// most; false: it took longer.
    pub fn wait(self, patience: Duration) -> bool {
        self.0.recv_timeout(patience) == Err(RecvTimeoutError::Disconnected)
    }
}

/// What cores say goes here.
#[derive(Clone)]
pub struct FunctionOutlet {
    mailbox: Mailbox<Said>,
    /// For records and entries on their way.
    room: Arc<Room>,
}

/// What the cores have to say of functions, for whoever reads it.
pub struct FunctionBox {
    inbox: Inbox<Said>,
    room: Arc<Room>,
}

/// What a core says of a function.
struct Said {
    id: FunctionId,
    core: CoreIndex,
    outputs: Vec<Output>,
    /// The function itself, when the core is done with it.
    function: Option<Function>,
    unread: Option<Sender<()>>,
}

impl FunctionOutlet {
    /// With the box for what cores say.
    pub(crate) fn new() -> std::io::Result<(FunctionOutlet, FunctionBox)> {
        let (mailbox, inbox) = crate::mailbox::mailbox()?;
        let room = Arc::new(Room::new(ROOM));
        Ok((FunctionOutlet { mailbox, room: Arc::clone(&room) }, FunctionBox { inbox, room }))
    }
}

impl FunctionBox {
    /// Readable when there is something to [`take`](Self::take). Call [`prepare_wait`](Self::prepare_wait) before
    /// waiting.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.inbox.bell().as_fd()
    }

    /// The caller is about to wait for [`bell`](Self::bell). False: there is something already.
    pub fn prepare_wait(&self) -> bool {
        self.inbox.fall_asleep()
    }

    /// The caller has waited.
    pub fn waited(&self) {
        self.inbox.wake_up();
    }

    /// What some core says next. It counts as read when it is dropped.
    pub fn take(&self) -> Option<FunctionReport> {
        self.inbox.posted();
        let Said { id, core, mut outputs, function, unread } = self.inbox.take()?;
        self.room.give_back(Whose::numbered(id.function), size(&outputs));
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
pub(crate) struct Chain {
    vni: u32,
    /// Numbers of functions, in the order in which frames pass them.
    functions: Box<[usize]>,
}

/// A function on this core.
pub(crate) struct Instance {
    id: FunctionId,
    function: Function,
    /// The counts that were told last.
    told: Option<Counts>,
    lost: Arc<AtomicU64>,
}

/// A change, as a core takes it.
pub(crate) struct Switch {
    outlet: FunctionOutlet,
    instances: Vec<(usize, Option<Instance>)>,
    chains: Vec<(PortId, Option<Chain>)>,
    /// Gone when it is made.
    done: Sender<()>,
}

impl FunctionChange {
    /// What so many cores are to do, and who is told when they have.
    pub(crate) fn switches(&self, outlet: &FunctionOutlet, cores: usize) -> (Vec<Switch>, Switched) {
        let (done, receiver) = channel();
        let instance = |new: &NewFunction| Instance {
            id: new.id,
            function: Function::new(&new.spec),
            told: None,
            lost: Arc::clone(&new.lost),
        };
        let chain = |vni: u32, functions: &[usize]| {
            let functions: Box<[usize]> = functions.iter().copied().take(CHAIN).collect();
            (!functions.is_empty()).then_some(Chain { vni, functions })
        };
        let switch = |_| Switch {
            outlet: outlet.clone(),
            instances: self.functions.iter().map(|(number, new)| (*number, new.as_ref().map(instance))).collect(),
            chains: self.ports.iter().map(|(port, vni, functions)| (*port, chain(*vni, functions))).collect(),
            done: done.clone(),
        };
        ((0..cores).map(switch).collect(), Switched(receiver))
    }
}

/// Frames of a burst that leave by one port.
#[derive(Clone, Copy)]
struct Run {
    port: PortId,
    /// The first of them in the burst.
    at: usize,
    /// The first of them among those that leave.
    first: usize,
    len: usize,
}

/// The functions of a core's ports; there is at least one.
pub(crate) struct Functions {
    outlet: FunctionOutlet,
    core: CoreIndex,
    /// By number.
    instances: Vec<Option<Instance>>,
    /// By port number.
    chains: Vec<Option<Chain>>,
    /// Of the burst that is under way.
    now: u64,
    inward: Vec<Observation>,
    outward: Vec<Observation>,
    runs: Vec<Run>,
    /// When functions turn next.
    turn: u64,
    /// Frames have passed since counts were told.
    is_untold: bool,
}

impl Functions {
    fn new(outlet: &FunctionOutlet, core: CoreIndex) -> Functions {
        Functions {
            outlet: outlet.clone(),
            core,
            instances: Vec::new(),
            chains: Vec::new(),
            now: 0,
            inward: Vec::new(),
            outward: Vec::new(),
            runs: Vec::new(),
            turn: 0,
            is_untold: false,
        }
    }

    /// Goes by a change.
    fn switch(
        &mut self,
        instances: Vec<(usize, Option<Instance>)>,
        chains: Vec<(PortId, Option<Chain>)>,
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

    /// Gives a function away with what it has not said yet.
    fn retire(&self, instance: Instance, unread: Option<Sender<()>>) {
        let Instance { id, function, .. } = instance;
        let said = Said { id, core: self.core, outputs: Vec::new(), function: Some(function), unread };
        self.outlet.mailbox.send(said);
    }

    /// Takes a burst of one port through its functions, the network, which decides some or all of it by `forward`, told
    /// the number of the first of them, and the functions of the ports by which it leaves.
    #[inline(never)]
    pub(crate) fn forward(
        &mut self,
        now: u64,
        packets: &mut [Packet],
        verdicts: &mut Vec<Verdict>,
        mut forward: impl FnMut(usize, &mut [Packet], &mut Vec<Verdict>),
    ) {
        let now = self.at(now);
        self.inward.clear();
        self.outward.clear();
        self.runs.clear();
        let Functions { chains, instances, inward, .. } = self;
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

    /// What functions are told that the time is: what one burst was told, the next is told no earlier.
    fn at(&mut self, now: u64) -> u64 {
        self.now = self.now.max(now);
        self.now
    }

    /// Takes frames through the functions of the ports by which they leave.
    fn outward(&mut self, now: u64, packets: &[Packet], verdicts: &mut [Verdict]) {
        let Functions { chains, instances, outward, runs, .. } = self;
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
                runs.push(Run { port, at, first, len });
            }
            at += len;
        }
    }

    /// So many frames of the burst are done with; the others come again.
    fn settle(&mut self, port: Option<PortId>, passed: usize) {
        let now = self.now;
        let Functions { chains, instances, inward, outward, runs, .. } = self;
        let chain = |PortId(port): PortId| chains.get(port as usize).and_then(Option::as_ref);
        if let Some(chain) = port.and_then(chain) {
            note(instances, chain, now, &inward[..passed.min(inward.len())]);
        }
        for run in runs.iter() {
            let Some(chain) = chain(run.port) else { continue };
            let len = passed.saturating_sub(run.at).min(run.len);
            note(instances, chain, now, &outward[run.first..run.first + len]);
        }
        self.is_untold = true;
        if self.instances.iter().flatten().any(|instance| instance.function.is_full()) {
            self.tell(now, false);
        }
    }

    /// Whether a frame that belongs to no burst may leave by a port.
    fn passes(&mut self, port: PortId, packet: &Packet) -> bool {
        let now = self.at(clock::now());
        let Functions { chains, instances, .. } = self;
        let Some(Some(chain)) = chains.get(port.0 as usize) else { return true };
        let mut sights = [Observation { port: port.0, ..Observation::of(packet, FrameDirection::Out, chain.vni) }];
        judge(instances, chain, now, std::slice::from_ref(packet), &mut sights);
        note(instances, chain, now, &sights);
        self.is_untold = true;
        sights[0].dropped.is_none()
    }

    /// When functions are to turn even if no frame comes.
    fn due(&self) -> Option<u64> {
        if self.is_untold {
            return Some(self.turn);
        }
        let due = self.instances.iter().flatten().filter_map(|instance| instance.function.due());
        due.min().map(|due| due.max(self.turn))
    }

    /// Sends what functions have to say, with their counts if `counts`.
    fn tell(&mut self, now: u64, counts: bool) {
        let Functions { outlet, core, instances, is_untold, .. } = self;
        for instance in instances.iter_mut().flatten() {
            let mut outputs = Vec::new();
            instance.function.turn(now, &mut outputs);
            if counts {
                let now = instance.function.counts();
                if instance.told.as_ref() != Some(&now) {
                    instance.told = Some(now.clone());
                    outputs.push(Output::Counts(now));
                }
            }
            instance.send(outlet, *core, outputs);
        }
        *is_untold &= !counts;
    }

    /// Everything that is not said yet: the core ends.
    fn finish(&mut self) {
        for instance in std::mem::take(&mut self.instances).into_iter().flatten() {
            self.retire(instance, None);
        }
    }
}

impl Instance {
    /// Sends what it says, if there is room.
    fn send(&self, outlet: &FunctionOutlet, core: CoreIndex, mut outputs: Vec<Output>) {
        let FunctionOutlet { mailbox, room } = outlet;
        let whose = Whose::numbered(self.id.function);
        if size(&outputs) > room.left(whose) {
            // Counts are small, and those to come say the same and more.
            let is_counts = |output: &mut Output| matches!(output, Output::Counts(_));
            let lost: usize = outputs.extract_if(.., |output| !is_counts(output)).map(|output| output.size()).sum();
            self.lost.fetch_add(lost as u64, Relaxed);
        }
        if !outputs.is_empty() {
            room.put(whose, size(&outputs));
            mailbox.send(Said { id: self.id, core, outputs, function: None, unread: None });
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

fn judge(instances: &mut [Option<Instance>], chain: &Chain, now: u64, packets: &[Packet], sights: &mut [Observation]) {
    for (place, number) in chain.functions.iter().enumerate() {
        if let Some(Some(instance)) = instances.get_mut(*number) {
            instance.function.judge(now, packets, sights, place);
        }
    }
}

fn note(instances: &mut [Option<Instance>], chain: &Chain, now: u64, sights: &[Observation]) {
    for (place, number) in chain.functions.iter().enumerate() {
        if let Some(Some(instance)) = instances.get_mut(*number) {
            instance.function.note(now, sights, place);
        }
    }
}

/// Where frames meet functions. While no port has any, that costs a look at `functions`, twice a burst.
impl Net {
    /// The first `passed` frames of the burst, of `packets` that came in by one port, are done with.
    #[inline]
    pub(crate) fn settle_functions(&mut self, packets: &[Packet], passed: usize) {
        if let Some(functions) = &mut self.functions {
            functions.settle(packets.first().map(|packet| packet.port), passed);
        }
    }

    /// Whether a frame that the software tier forwards may leave by a port.
    pub(crate) fn may_leave(&mut self, port: PortId, packet: &Packet) -> bool {
        self.functions.as_mut().is_none_or(|functions| functions.passes(port, packet))
    }

    /// Does what is due, now and then.
    pub(crate) fn turn_functions(&mut self, now: u64) {
        if let Some(functions) = &mut self.functions
            && now >= functions.turn
        {
            functions.turn = now.saturating_add(TURN);
            let now = functions.at(now);
            functions.tell(now, true);
        }
    }

    /// The core ends.
    pub(crate) fn finish_functions(&mut self) {
        if let Some(functions) = &mut self.functions {
            functions.finish();
        }
    }

    /// When functions are to turn even if no frame comes, nanoseconds.
    pub(crate) fn functions_due(&self) -> Option<u64> {
        self.functions.as_ref()?.due()
    }

    /// Ports have other functions from now on, or none.
    pub(crate) fn switch_functions(&mut self, core: CoreIndex, switch: Switch) {
        let Switch { outlet, instances, chains, done } = switch;
        let functions = self.functions.get_or_insert_with(|| Box::new(Functions::new(&outlet, core)));
        functions.switch(instances, chains, &done);
        if functions.instances.iter().all(Option::is_none) && functions.chains.iter().all(Option::is_none) {
            self.functions = None;
        }
    }
}
