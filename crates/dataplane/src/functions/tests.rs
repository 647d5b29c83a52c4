//! What is known of a function while it changes.

use softdpu_api::ErrorCode;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use softdpu_engine::{CoreIndex, EngineConfig, FunctionReport};
use softdpu_sched::{Nanos, Policy, YieldPolicy};

use super::*;
use softdpu_api::status::FunctionStatus;

const VNI: Vni = Vni::new(1).unwrap();

/// An engine of one core that sleeps when it has nothing to do.
fn engine() -> Engine {
    let cpu = softdpu_sys::affinity::allowed()[0];
    Engine::start(&EngineConfig {
        cpus: vec![cpu],
        spare: 0,
        yielding: YieldPolicy::After(Nanos(50_000)),
        io_depth: 8,
        fairness: Policy::default(),
        recordings: Vec::new(),
        flows: 16,
    })
    .unwrap()
}

fn function(name: &str, kind: &str, settings: serde_json::Value) -> config::Function {
    config::function_from_json(&json!({ "name": name, kind: settings })).unwrap()
}

fn monitor(name: &str, collector: &UdpSocket) -> config::Function {
    function(name, "monitor", json!({ "collector": collector.local_addr().unwrap().to_string() }))
}

/// A firewall that allows TCP to these ports.
fn firewall(ports: &[u16]) -> config::Function {
    let rule = |port: &u16| json!({ "priority": port, "action": "allow", "protocol": "tcp", "ports": port });
    function("guard", "firewall", json!({ "rule": ports.iter().map(rule).collect::<Vec<_>>() }))
}

fn change(config: config::Function) -> config::FunctionChange {
    config::FunctionChange { name: config.name, kind: config.kind }
}

fn status(functions: &Functions, name: &str) -> FunctionStatus {
    functions.statuses(|_| Vec::new()).into_iter().find(|status| status.name == name).unwrap()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn cores_have_a_function_while_a_port_has_it() {
    let (engine, collector) = (engine(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut functions = Functions::start(&[monitor("a", &collector), monitor("b", &collector)], &engine);
    let slots = |functions: &Functions| functions.all.iter().map(|one| one.slot).collect::<Vec<_>>();
    assert_eq!(slots(&functions), [None, None]);
    functions.attach(&engine, PortId(3), VNI, &names(&["b"])).unwrap();
    functions.attach(&engine, PortId(4), VNI, &names(&["b", "a"])).unwrap();
    assert_eq!(slots(&functions), [Some(1), Some(0)]);
    assert_eq!(functions.remove("a").unwrap_err().code, ErrorCode::Busy);
    functions.detach(&engine, PortId(4));
    assert_eq!(slots(&functions), [None, Some(0)]);
    functions.remove("a").unwrap();
    // Its place is taken by the next one, in the same change in which another goes.
    functions.insert(&monitor("c", &collector), &engine).unwrap();
    functions.attach(&engine, PortId(3), VNI, &names(&["c"])).unwrap();
    assert_eq!(slots(&functions), [None, Some(0)]);
    let error = functions.attach(&engine, PortId(3), VNI, &names(&["c", "a"])).unwrap_err();
    assert!(error.contains("no function 'a'"), "{error}");
    assert_eq!(slots(&functions), [None, Some(0)], "as it was");
    drop(engine);
    functions.finish();
}

#[test]
fn a_function_keeps_its_name_and_kind() {
    let (engine, collector) = (engine(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut functions = Functions::start(&[monitor("guard", &collector)], &engine);
    assert_eq!(functions.insert(&firewall(&[]), &engine).unwrap_err().code, ErrorCode::Exists);
    assert_eq!(functions.set(&change(firewall(&[])), &engine).unwrap_err().code, ErrorCode::Refused);
    assert_eq!(functions.set(&change(monitor("other", &collector)), &engine).unwrap_err().code, ErrorCode::NotFound);
    drop(engine);
    functions.finish();
}

/// What a core has counted of a firewall with two rules, as an incarnation reports it.
fn counts(incarnation: u32, is_last: bool, rules: [u64; 2]) -> FunctionReport {
    use softdpu_functions::firewall::{FirewallCounts, Tally};
    use softdpu_functions::{Counts, Output};

    let tally = |packets| Tally { packets, octets: 10 * packets };
    let counts = FirewallCounts {
        rules: rules.map(tally).to_vec(),
        default: tally(1),
        dropped: tally(1),
        ..FirewallCounts::default()
    };
    let outputs = vec![Output::Counts(Counts::Firewall(counts))];
    FunctionReport::new(FunctionId { function: 0, incarnation }, CoreIndex(0), outputs, is_last)
}

#[test]
fn counts_of_rules_that_stay_go_on_and_no_report_is_counted_twice() {
    let (_, kind) = prepare(&firewall(&[80, 22]), None).unwrap();
    let mut state = FunctionState::new(&firewall(&[80, 22]), kind, Arc::default());
    let packets = |state: &FunctionState, config: &config::Function| {
        let firewall = state.status(config, Vec::new()).firewall.unwrap();
        let rules = firewall.rules.iter().map(|rule| (rule.rule.clone(), rule.packets)).collect::<Vec<_>>();
        (rules, firewall.default.packets)
    };
    state.take(counts(0, false, [3, 4]));
    let (_, kind) = prepare(&firewall(&[22, 443]), Some(&state.kind)).unwrap();
    state.replace(&firewall(&[22, 443]), kind, 1);
    // The core has gone on with the new rules, and then sends the last report of the old ones.
    state.take(counts(1, false, [10, 20]));
    let expected = |ssh, https, default| {
        let rule = |port: u16, count: u64| (format!("{port} allow tcp to port {port}"), count);
        (vec![rule(22, ssh), rule(443, https)], default)
    };
    assert_eq!(packets(&state, &firewall(&[22, 443])), expected(14, 20, 2));
    state.take(counts(0, true, [3, 5]));
    state.settle();
    assert_eq!(packets(&state, &firewall(&[22, 443])), expected(15, 20, 2));
    state.take(counts(1, true, [11, 20]));
    assert_eq!(packets(&state, &firewall(&[22, 443])), expected(16, 20, 2));
}

#[test]
fn what_was_seen_before_a_change_goes_to_the_collector_before_it() {
    use softdpu_functions::Output;
    use softdpu_functions::monitor::{EndReason, FlowKey, FlowRecord};

    let [before, after] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
    let wait = Duration::from_secs(20);
    [&before, &after].into_iter().for_each(|socket| socket.set_read_timeout(Some(wait)).unwrap());
    let records = |incarnation, is_last| {
        let [source, destination] = ["10.0.0.1", "10.0.0.2"].map(|address| address.parse().unwrap());
        let (direction, vni) = (softdpu_functions::FrameDirection::In, VNI);
        let key = FlowKey { source, destination, source_port: 1, destination_port: 2, protocol: 17, direction, vni };
        let record =
            FlowRecord { key, packets: 1, octets: 28, first: 0, last: 0, tcp_flags: 0, reason: EndReason::Idle };
        let id = FunctionId { function: 0, incarnation };
        FunctionReport::new(id, CoreIndex(0), vec![Output::Flows(vec![record])], is_last)
    };
    let (_, kind) = prepare(&monitor("m", &before), None).unwrap();
    let mut state = FunctionState::new(&monitor("m", &before), kind, Arc::default());
    let (_, kind) = prepare(&monitor("m", &after), None).unwrap();
    state.replace(&monitor("m", &after), kind, 1);
    let mut message = [0; 2048];
    state.take(records(0, true));
    before.recv(&mut message).unwrap();
    state.take(records(1, false));
    after.recv(&mut message).unwrap();
    let monitor = state.status(&monitor("m", &after), Vec::new()).monitor.unwrap();
    assert_eq!((monitor.exported, monitor.messages), (2, 2));
}

#[test]
fn a_function_that_no_interface_has_any_more_is_shown_with_what_it_counted() {
    let (engine, collector) = (engine(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let mut functions = Functions::start(&[monitor("a", &collector), firewall(&[80])], &engine);
    functions.attach(&engine, PortId(0), VNI, &names(&["a", "guard"])).unwrap();
    functions.set(&change(firewall(&[80, 443])), &engine).unwrap();
    functions.detach(&engine, PortId(0));
    let guard = status(&functions, "guard").firewall.unwrap();
    assert_eq!((guard.rules.len(), guard.connections), (2, 0));
    assert_eq!(status(&functions, "a").monitor.unwrap().flows, 0);
    drop(engine);
    functions.finish();
}
