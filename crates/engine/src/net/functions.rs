//! Functions of tenants in the path of their ports' frames ([`softdpu_functions`]).
//!
//! ```text
//!   burst ─► inward: the sender's chain ─► Vpc::forward ─► outward: the receiver's chain ─► where verdicts say
//!     settled ◄── those that went are counted ◄──────────────────────────────────────────────────┘
//!   ten times a second ─► outputs ─► FunctionBox (a thread of its own)
//! ```
//!
//! A frame that finds no room at its receiver comes again, and is judged again then; it is counted when it has gone. A core
//! never waits for who takes the outputs: what has no room is counted and forgotten.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use softdpu_functions::{CHAIN, Counts, Function, FunctionSpec, Output, Sight, Way};
use softdpu_sys::clock;
use softdpu_vpc::{DropReason, Packet, PortId, Verdict};

use super::Net;
use crate::mailbox::{Inbox, Mailbox};
use crate::message::CoreIndex;

/// How often functions turn, nanoseconds.
const TURN: u64 = 100_000_000;

/// Records and entries that may wait to be taken from all cores.
const ROOM: usize = 1 << 16;

/// What a core says of a function.
#[derive(Debug)]
pub struct FunctionReport {
    /// Which, in the order in which they were given to [`Engine::functions`](crate::Engine::functions).
    pub function: usize,
    /// Who says it.
    pub core: CoreIndex,
    /// What.
    pub outputs: Vec<Output>,
}

/// What cores and the reader share.
#[derive(Debug, Default)]
struct Shared {
    /// Records and entries on their way.
    waiting: AtomicUsize,
    /// By function: those that found no room.
    lost: Box<[AtomicU64]>,
}

/// Functions, as they are told to cores.
#[derive(Clone)]
pub struct FunctionPlan {
    specs: Arc<[FunctionSpec]>,
    mailbox: Mailbox<FunctionReport>,
    shared: Arc<Shared>,
}

/// What the cores have to say of functions, for whoever reads it.
pub struct FunctionBox {
    inbox: Inbox<FunctionReport>,
    shared: Arc<Shared>,
}

impl FunctionPlan {
    /// Of these functions, with the box for what they say.
    pub(crate) fn new(specs: Vec<FunctionSpec>) -> std::io::Result<(FunctionPlan, FunctionBox)> {
        let (mailbox, inbox) = crate::mailbox::mailbox()?;
        let lost = specs.iter().map(|_| AtomicU64::new(0)).collect();
        let shared = Arc::new(Shared { waiting: AtomicUsize::new(0), lost });
        let plan = FunctionPlan { specs: specs.into(), mailbox, shared: Arc::clone(&shared) };
        Ok((plan, FunctionBox { inbox, shared }))
    }
}

impl FunctionBox {
    /// Readable when there is something to [`take`](Self::take). Call [`prepare_wait`](Self::prepare_wait) before waiting.
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

    /// What some core says next.
    pub fn take(&self) -> Option<FunctionReport> {
        self.inbox.posted();
        let report = self.inbox.take()?;
        self.shared.waiting.fetch_sub(size(&report.outputs), Relaxed);
        Some(report)
    }

    /// Flow records of a function, and entries of its windows, for which there was no room here.
    pub fn lost(&self, function: usize) -> u64 {
        self.shared.lost.get(function).map_or(0, |lost| lost.load(Relaxed))
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

impl Chain {
    /// Functions of a port of the network with this VNI, at most [`CHAIN`].
    pub(crate) fn new(vni: u32, functions: &[usize]) -> Chain {
        Chain { vni, functions: functions.iter().copied().take(CHAIN).collect() }
    }
}

/// A function on this core.
struct Instance {
    function: Function,
    /// The counts that were told last.
    told: Option<Counts>,
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
    plan: FunctionPlan,
    core: CoreIndex,
    instances: Vec<Instance>,
    /// By port number.
    chains: Vec<Option<Chain>>,
    /// Of the burst that is under way.
    now: u64,
    inward: Vec<Sight>,
    outward: Vec<Sight>,
    runs: Vec<Run>,
    /// When functions turn next.
    turn: u64,
}

impl Functions {
    fn new(plan: &FunctionPlan, core: CoreIndex) -> Functions {
        let instance = |spec: &FunctionSpec| Instance { function: Function::new(spec), told: None };
        Functions {
            instances: plan.specs.iter().map(instance).collect(),
            plan: plan.clone(),
            core,
            chains: Vec::new(),
            now: 0,
            inward: Vec::new(),
            outward: Vec::new(),
            runs: Vec::new(),
            turn: 0,
        }
    }

    fn attach(&mut self, PortId(port): PortId, chain: Option<Chain>) {
        let port = port as usize;
        if self.chains.len() <= port {
            self.chains.resize_with(port + 1, || None);
        }
        self.chains[port] = chain;
    }

    /// Takes a burst of one port through its functions, the network, which decides some or all of it by `forward`, told the
    /// number of the first of them, and the functions of the ports by which it leaves.
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
            inward.extend(packets.iter().map(|packet| Sight::of(packet, Way::In, chain.vni)));
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
                let see = |packet: &Packet| Sight { port: port.0, ..Sight::of(packet, Way::Out, chain.vni) };
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
        if instances.iter().any(|instance| instance.function.is_full()) {
            self.tell(now, false);
        }
    }

    /// Whether a frame that belongs to no burst may leave by a port.
    fn passes(&mut self, port: PortId, packet: &Packet) -> bool {
        let now = self.at(clock::now());
        let Functions { chains, instances, .. } = self;
        let Some(Some(chain)) = chains.get(port.0 as usize) else { return true };
        let mut sights = [Sight { port: port.0, ..Sight::of(packet, Way::Out, chain.vni) }];
        judge(instances, chain, now, std::slice::from_ref(packet), &mut sights);
        note(instances, chain, now, &sights);
        sights[0].dropped.is_none()
    }

    /// Sends what functions have to say, with their counts if `counts`.
    fn tell(&mut self, now: u64, counts: bool) {
        for at in 0..self.instances.len() {
            let (instance, mut outputs) = (&mut self.instances[at], Vec::new());
            instance.function.turn(now, &mut outputs);
            if counts {
                let now = instance.function.counts();
                if instance.told.as_ref() != Some(&now) {
                    instance.told = Some(now.clone());
                    outputs.push(Output::Counts(now));
                }
            }
            self.send(at, outputs, false);
        }
    }

    /// Everything that is not said yet: the core ends.
    fn finish(&mut self) {
        for at in 0..self.instances.len() {
            let (instance, mut outputs) = (&mut self.instances[at], Vec::new());
            instance.function.finish(&mut outputs);
            outputs.push(Output::Counts(instance.function.counts()));
            self.send(at, outputs, true);
        }
    }

    /// Sends what a function says. What it says last is no more than its tables hold, and has room.
    fn send(&self, function: usize, mut outputs: Vec<Output>, is_last: bool) {
        let FunctionPlan { mailbox, shared, .. } = &self.plan;
        if !is_last && shared.waiting.load(Relaxed) + size(&outputs) > ROOM {
            // Counts are small, and those to come say the same and more.
            let is_counts = |output: &mut Output| matches!(output, Output::Counts(_));
            let lost: usize = outputs.extract_if(.., |output| !is_counts(output)).map(|output| output.size()).sum();
            if let Some(counter) = shared.lost.get(function) {
                counter.fetch_add(lost as u64, Relaxed);
            }
        }
        if !outputs.is_empty() {
            shared.waiting.fetch_add(size(&outputs), Relaxed);
            mailbox.send(FunctionReport { function, core: self.core, outputs });
        }
    }
}

/// Takes those frames through the network that are not dropped.
fn forward_passing(
    packets: &mut [Packet],
    sights: &[Sight],
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

fn judge(instances: &mut [Instance], chain: &Chain, now: u64, packets: &[Packet], sights: &mut [Sight]) {
    for (place, number) in chain.functions.iter().enumerate() {
        if let Some(instance) = instances.get_mut(*number) {
            instance.function.judge(now, packets, sights, place);
        }
    }
}

fn note(instances: &mut [Instance], chain: &Chain, now: u64, sights: &[Sight]) {
    for (place, number) in chain.functions.iter().enumerate() {
        if let Some(instance) = instances.get_mut(*number) {
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

    /// A port has these functions from now on, or none.
    pub(crate) fn attach_functions(
        &mut self,
        core: CoreIndex,
        plan: &FunctionPlan,
        port: PortId,
        chain: Option<Chain>,
    ) {
        if self.functions.is_none() && chain.is_none() {
            return;
        }
        self.functions.get_or_insert_with(|| Box::new(Functions::new(plan, core))).attach(port, chain);
    }
}

#[cfg(test)]
mod tests {
    use softdpu_functions::firewall::{FirewallRule, FirewallSpec, Rules};
    use softdpu_functions::monitor::MonitorSpec;
    use softdpu_vpc::policy::acl::{Action, RuleSpec};
    use softdpu_vpc::policy::{Ports, Service};
    use softdpu_vpc::{Checksum, Head};

    use super::*;
    use crate::common_nic::{datagram, tables};

    /// The port of the datagrams of [`datagram`].
    const DISCARD: u16 = 9;

    fn monitor() -> FunctionSpec {
        FunctionSpec::Monitor(MonitorSpec { active: u64::MAX, idle: u64::MAX, flows: 16 })
    }

    /// Denies datagrams to [`DISCARD`] that go this way.
    fn firewall(way: Way) -> FunctionSpec {
        let ports = Ports::new(DISCARD, DISCARD).unwrap();
        let service = Service::Udp { source: Ports::ALL, destination: ports };
        let rule = RuleSpec { priority: 1, action: Action::Deny, source: None, destination: None, service };
        let rules = vec![FirewallRule { way: Some(way), rule }];
        let spec = FirewallSpec { rules, default: Action::Allow, connections: None };
        FunctionSpec::Firewall(Arc::new(Rules::build(&spec).unwrap()))
    }

    /// A core with these functions, those of ports 0 and 1.
    fn net(specs: Vec<FunctionSpec>, chains: [&[usize]; 2]) -> (Net, FunctionBox) {
        let (plan, inbox) = FunctionPlan::new(specs).unwrap();
        let mut net = Net::new(tables(), 64, 1);
        for (port, functions) in (0..).zip(chains) {
            let chain = (!functions.is_empty()).then(|| Chain::new(1, functions));
            net.attach_functions(CoreIndex(0), &plan, PortId(port), chain);
        }
        (net, inbox)
    }

    /// Datagrams from the guest at port 0 to that at port 1.
    fn burst(count: u32) -> Vec<Packet> {
        let packet = |mark| {
            let head = Head::of(&datagram((0, 2), (1, 3), mark, 100));
            Packet { head, tail: 0, checksum: Checksum::Complete, segmentation: None, port: PortId(0) }
        };
        (0..count).map(packet).collect()
    }

    fn forward(net: &mut Net, packets: &mut [Packet]) -> Vec<Verdict> {
        let mut verdicts = Vec::new();
        net.forward(packets, &mut verdicts);
        verdicts
    }

    /// Packets of each monitor, and drops of each firewall, by function.
    fn counted(net: &mut Net, inbox: &FunctionBox) -> Vec<u64> {
        net.finish_functions();
        let mut counted = Vec::new();
        while let Some(report) = inbox.take() {
            for output in report.outputs {
                match output {
                    Output::Counts(Counts::Monitor(counts)) => counted.push(counts.packets),
                    Output::Counts(Counts::Firewall(counts)) => counted.push(counts.dropped.packets),
                    Output::Counts(Counts::Analytics(_)) | Output::Flows(_) | Output::Window(_) => {}
                }
            }
        }
        counted
    }

    #[test]
    fn a_frame_that_waits_for_room_is_counted_when_it_goes() {
        let (mut net, inbox) = net(vec![monitor(), monitor()], [&[0], &[1]]);
        let mut packets = burst(4);
        forward(&mut net, &mut packets);
        net.settle_functions(&packets, 1);
        let mut again = burst(3);
        forward(&mut net, &mut again);
        net.settle_functions(&again, 3);
        assert_eq!(counted(&mut net, &inbox), [4, 4]);
    }

    #[test]
    fn what_a_firewall_drops_on_its_way_in_comes_to_nobody_behind_it() {
        let (mut net, inbox) = net(vec![monitor(), firewall(Way::In), monitor(), monitor()], [&[0, 1, 2], &[3]]);
        let mut packets = burst(3);
        let other = datagram((0, 2), (1, 3), 0, 100)
            .iter()
            .enumerate()
            .map(|(at, byte)| if at == 37 { 10 } else { *byte })
            .collect::<Vec<u8>>();
        packets[1].head = Head::of(&other);
        let verdicts = forward(&mut net, &mut packets);
        net.settle_functions(&packets, 3);
        assert_eq!(verdicts[0], Verdict::Drop(DropReason::Firewall));
        assert!(matches!(verdicts[1], Verdict::Local { port: PortId(1), .. }), "{verdicts:?}");
        assert_eq!(verdicts[2], Verdict::Drop(DropReason::Firewall));
        assert_eq!(counted(&mut net, &inbox), [3, 2, 1, 1]);
    }

    #[test]
    fn what_a_firewall_drops_on_its_way_out_was_sent_and_does_not_arrive() {
        let (mut net, inbox) = net(vec![monitor(), firewall(Way::Out), monitor()], [&[0], &[1, 2]]);
        let mut packets = burst(2);
        assert_eq!(forward(&mut net, &mut packets), [Verdict::Drop(DropReason::Firewall); 2]);
        net.settle_functions(&packets, 2);
        assert_eq!(counted(&mut net, &inbox), [2, 2, 0]);
    }

    #[test]
    fn a_port_without_functions_has_none() {
        let (mut net, inbox) = net(vec![monitor()], [&[], &[]]);
        let mut packets = burst(2);
        forward(&mut net, &mut packets);
        net.settle_functions(&packets, 2);
        assert!(net.functions.is_none());
        assert!(counted(&mut net, &inbox).is_empty());
    }

    #[test]
    fn what_a_core_says_last_has_room_whatever_waits() {
        let (mut net, inbox) = net(vec![monitor()], [&[0], &[]]);
        let mut packets = burst(2);
        forward(&mut net, &mut packets);
        net.settle_functions(&packets, 2);
        net.functions.as_ref().unwrap().plan.shared.waiting.store(ROOM, Relaxed);
        net.finish_functions();
        let mut flows = 0;
        while let Some(report) = inbox.take() {
            flows += report
                .outputs
                .iter()
                .filter(|output| matches!(output, Output::Flows(_)))
                .map(Output::size)
                .sum::<usize>();
        }
        assert_eq!((flows, inbox.lost(0)), (1, 0));
    }

    #[test]
    fn what_nobody_takes_is_lost_and_counted_and_counts_are_told_all_the_same() {
        let brief = FunctionSpec::Monitor(MonitorSpec { active: u64::MAX, idle: 1, flows: 16 });
        let (mut net, inbox) = net(vec![brief], [&[0], &[]]);
        let functions = net.functions.as_ref().unwrap();
        functions.plan.shared.waiting.store(ROOM, Relaxed);
        let mut packets = burst(2);
        forward(&mut net, &mut packets);
        net.settle_functions(&packets, 2);
        net.functions.as_mut().unwrap().tell(u64::MAX, true);
        assert_eq!(inbox.lost(0), 1, "one flow");
        assert_eq!(counted(&mut net, &inbox), [2, 2]);
    }
}
