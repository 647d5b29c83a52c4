//! What becomes of frames, counts and changes on a core, driven by hand.

use softdpu_functions::firewall::{FirewallRule, FirewallSpec, Rules};
use softdpu_functions::monitor::MonitorSpec;
use softdpu_vpc::policy::acl::{Action, RuleSpec};
use softdpu_vpc::policy::{Ports, Service};
use softdpu_vpc::{Checksum, Head, Vpc};

use super::*;
use crate::common::nic::{datagram, tables};

/// The port of the datagrams of [`datagram`].
const DISCARD: u16 = 9;

const VNI: Vni = Vni::new(1).unwrap();

fn monitor() -> FunctionSpec {
    FunctionSpec::Monitor(MonitorSpec { active: u64::MAX, idle: u64::MAX, flows: 16 })
}

/// Denies datagrams to [`DISCARD`] that go this way.
fn firewall(direction: FrameDirection) -> FunctionSpec {
    let ports = Ports::new(DISCARD, DISCARD).unwrap();
    let service = Service::Udp { source: Ports::ALL, destination: ports };
    let rule = RuleSpec { priority: 1, action: Action::Deny, source: None, destination: None, service };
    let rules = vec![FirewallRule { direction: Some(direction), rule }];
    let spec = FirewallSpec { rules, default: Action::Allow, connections: None };
    FunctionSpec::Firewall(Arc::new(Rules::build(&spec).unwrap()))
}

/// A function as its first incarnation, with where its losses are counted.
fn new(number: usize, incarnation: u32, spec: FunctionSpec) -> (usize, Option<NewFunction>) {
    let id = FunctionId { function: number as u32, incarnation };
    (number, Some(NewFunction { id, spec, lost: Arc::default() }))
}

/// A network, and the functions of its ports.
struct Net {
    vpc: Vpc,
    functions: Functions,
}

impl Net {
    /// The functions of its ports, some of which have some.
    fn active(&mut self) -> &mut ActiveFunctions {
        self.functions.active().expect("no port has functions")
    }

    fn settle(&mut self, packets: &[Packet], passed: usize) {
        self.functions.settle(packets, passed);
    }
}

/// Makes a change on a core.
fn change(net: &mut Net, outlet: &FunctionOutlet, change: FunctionChange) -> FunctionSwitchover {
    let (switches, switched) = change.switches(outlet, 1);
    switches.into_iter().for_each(|switch| net.functions.switch(CoreIndex(0), switch));
    switched
}

/// A core with these functions, those of ports 0 and 1.
fn net(specs: Vec<FunctionSpec>, chains: [&[usize]; 2]) -> (Net, FunctionOutlet, FunctionBox) {
    let (outlet, inbox) = FunctionOutlet::new().unwrap();
    let mut net = Net { vpc: Vpc::with_flows(tables(), 64), functions: Functions::default() };
    let functions = specs.into_iter().enumerate().map(|(number, spec)| new(number, 0, spec)).collect();
    let ports = (0..).map(PortId).zip(chains).map(|(port, functions)| (port, VNI, functions.to_vec())).collect();
    assert!(change(&mut net, &outlet, FunctionChange { functions, ports }).wait(Duration::ZERO));
    (net, outlet, inbox)
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
    let now = clock::now();
    let Net { vpc, functions } = net;
    let mut through = |_, packets: &mut [Packet], verdicts: &mut Vec<Verdict>| vpc.forward(now, packets, verdicts);
    match functions.active() {
        None => through(0, packets, &mut verdicts),
        Some(functions) => functions.forward(now, packets, &mut verdicts, through),
    }
    verdicts
}

/// Packets of each monitor, and drops of each firewall, by function.
fn counted(net: &mut Net, inbox: &FunctionBox) -> Vec<u64> {
    net.functions.finish();
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
fn a_frame_that_waits_for_a_buffer_is_counted_when_it_goes() {
    let (mut net, _, inbox) = net(vec![monitor(), monitor()], [&[0], &[1]]);
    let mut packets = burst(4);
    forward(&mut net, &mut packets);
    net.settle(&packets, 1);
    let mut again = burst(3);
    forward(&mut net, &mut again);
    net.settle(&again, 3);
    assert_eq!(counted(&mut net, &inbox), [4, 4]);
}

#[test]
fn what_a_firewall_drops_on_its_way_in_comes_to_no_function_behind_it() {
    let (mut net, _, inbox) =
        net(vec![monitor(), firewall(FrameDirection::In), monitor(), monitor()], [&[0, 1, 2], &[3]]);
    let mut packets = burst(3);
    let other = datagram((0, 2), (1, 3), 0, 100)
        .iter()
        .enumerate()
        .map(|(at, byte)| if at == 37 { 10 } else { *byte })
        .collect::<Vec<u8>>();
    packets[1].head = Head::of(&other);
    let verdicts = forward(&mut net, &mut packets);
    net.settle(&packets, 3);
    assert_eq!(verdicts[0], Verdict::Drop(DropReason::Firewall));
    assert!(matches!(verdicts[1], Verdict::Local { port: PortId(1), .. }), "{verdicts:?}");
    assert_eq!(verdicts[2], Verdict::Drop(DropReason::Firewall));
    assert_eq!(counted(&mut net, &inbox), [3, 2, 1, 1]);
}

#[test]
fn what_a_firewall_drops_on_its_way_out_was_sent_and_does_not_arrive() {
    let (mut net, _, inbox) = net(vec![monitor(), firewall(FrameDirection::Out), monitor()], [&[0], &[1, 2]]);
    let mut packets = burst(2);
    assert_eq!(forward(&mut net, &mut packets), [Verdict::Drop(DropReason::Firewall); 2]);
    net.settle(&packets, 2);
    assert_eq!(counted(&mut net, &inbox), [2, 2, 0]);
}

#[test]
fn a_port_without_functions_has_none() {
    let (mut net, _, inbox) = net(Vec::new(), [&[], &[]]);
    let mut packets = burst(2);
    forward(&mut net, &mut packets);
    net.settle(&packets, 2);
    assert!(net.functions.0.is_none());
    assert!(counted(&mut net, &inbox).is_empty());
}

/// Flow records of all reports that are there, and the functions with their last report.
fn flows(inbox: &FunctionBox) -> (usize, Vec<FunctionId>) {
    let (mut flows, mut last) = (0, Vec::new());
    while let Some(report) = inbox.take() {
        let is_flows = |output: &&Output| matches!(output, Output::Flows(_));
        flows += report.outputs.iter().filter(is_flows).map(Output::size).sum::<usize>();
        last.extend(report.is_last.then_some(report.id));
    }
    (flows, last)
}

#[test]
fn the_last_report_of_a_core_needs_no_credits() {
    let (mut net, _, inbox) = net(vec![monitor()], [&[0], &[]]);
    let mut packets = burst(2);
    forward(&mut net, &mut packets);
    net.settle(&packets, 2);
    let functions = net.active();
    functions.outlet.credits.charge(CreditOwner::numbered(9), CREDITS);
    let lost = Arc::clone(&functions.instances[0].as_ref().unwrap().lost);
    net.functions.finish();
    assert_eq!((flows(&inbox).0, lost.load(Relaxed)), (1, 0));
}

#[test]
fn records_without_credits_are_lost_and_counted_and_counts_are_reported_all_the_same() {
    let brief = FunctionSpec::Monitor(MonitorSpec { active: u64::MAX, idle: 1, flows: 16 });
    let (mut net, _, inbox) = net(vec![brief], [&[0], &[]]);
    let functions = net.active();
    functions.outlet.credits.charge(CreditOwner::numbered(9), CREDITS);
    let lost = Arc::clone(&functions.instances[0].as_ref().unwrap().lost);
    let mut packets = burst(2);
    forward(&mut net, &mut packets);
    net.settle(&packets, 2);
    net.active().report(u64::MAX, true);
    assert_eq!(lost.load(Relaxed), 1, "one flow");
    assert_eq!(counted(&mut net, &inbox), [2, 2]);
}

#[test]
fn a_removed_function_reports_what_it_has_and_the_change_is_made_when_that_is_read() {
    let (mut net, outlet, inbox) = net(vec![monitor()], [&[0], &[]]);
    let mut packets = burst(3);
    forward(&mut net, &mut packets);
    net.settle(&packets, 3);
    // Another in its place: the port's frames are counted by it from now on, and by it alone.
    let functions = vec![new(0, 1, monitor())];
    let switched = change(&mut net, &outlet, FunctionChange { functions, ports: Vec::new() });
    assert!(!switched.wait(Duration::ZERO), "before it is read");
    assert_eq!(flows(&inbox), (1, vec![FunctionId { function: 0, incarnation: 0 }]));
    forward(&mut net, &mut packets);
    net.settle(&packets, 3);
    let gone = FunctionChange { functions: vec![(0, None)], ports: vec![(PortId(0), VNI, Vec::new())] };
    let switched = change(&mut net, &outlet, gone);
    assert_eq!(flows(&inbox), (1, vec![FunctionId { function: 0, incarnation: 1 }]));
    assert!(switched.wait(Duration::ZERO));
    assert!(net.functions.0.is_none(), "frames pass nothing any more");
}

#[test]
fn a_core_that_sleeps_is_to_wake_when_something_is_due() {
    const SECOND: u64 = 1_000_000_000;
    let idle = FunctionSpec::Monitor(MonitorSpec { active: 60 * SECOND, idle: SECOND, flows: 16 });
    let (mut net, _, _inbox) = net(vec![idle], [&[0], &[]]);
    assert_eq!(net.functions.due(), None);
    let mut packets = burst(1);
    forward(&mut net, &mut packets);
    net.settle(&packets, 1);
    let now = clock::now();
    assert!(net.functions.due().is_some_and(|due| due <= now), "counts are to be reported");
    net.functions.turn(now);
    let due = net.functions.due().unwrap();
    assert!((now + TURN..=now + SECOND).contains(&due), "the flow is over {} ns later", due - now);
    net.functions.turn(due + TURN);
    net.functions.turn(due + 2 * TURN);
    assert_eq!(net.functions.due(), None);
}

#[test]
fn a_function_without_credits_leaves_some_for_another() {
    let brief = || FunctionSpec::Monitor(MonitorSpec { active: u64::MAX, idle: 1, flows: 16 });
    let (mut net, _, inbox) = net(vec![brief(), brief()], [&[0, 1], &[]]);
    let functions = net.active();
    functions.outlet.credits.take(CreditOwner::numbered(0), CREDITS);
    let lost = [0, 1].map(|at| Arc::clone(&functions.instances[at].as_ref().unwrap().lost));
    let mut packets = burst(2);
    forward(&mut net, &mut packets);
    net.settle(&packets, 2);
    net.active().report(u64::MAX, false);
    assert_eq!(lost.each_ref().map(|lost| lost.load(Relaxed)), [1, 0]);
    assert_eq!(flows(&inbox).0, 1);
}
