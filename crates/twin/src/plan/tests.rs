//! The paper's worked numbers, from its constants alone.

use super::*;

fn network(metric: Metric, amount: f64) -> ServicePlan {
    let mut demand = Demand::default();
    demand.ask(metric, amount);
    let plan = plan(&demand, &Rates::paper(), &Prices::PAPER).unwrap();
    let [only] = &plan.services[..] else { panic!("{plan:?}") };
    only.clone()
}

/// §6.1.1: "a total hardware cost of $206, amortized by the networking and storage functions (i.e., $103 for each)".
#[test]
fn the_control_plane_costs_206_dollars() {
    let mut demand = Demand::default();
    demand.ask(Metric::Packets, 1.0);
    demand.ask(Metric::Requests, 1.0);
    let plan = plan(&demand, &Rates::paper(), &Prices::PAPER).unwrap();
    assert_eq!(plan.control_price, 206.0);
    for service in &plan.services {
        assert_eq!(service.total - service.price, 103.0);
        assert_eq!(service.resources, Resources { cores: 1.0, memory: 2.0 });
    }
    assert_eq!(plan.services.len(), 2);
}

/// §6.1.2: "a total cost of $412 + $206/2 = $515, or roughly 69% of the normalized BF3 cost", which is $750.
#[test]
fn six_million_packets_cost_515_dollars_or_69_per_cent_of_a_dpu() {
    let plan = network(Metric::Packets, 6e6);
    assert_eq!(plan.resources, Resources { cores: 4.0, memory: 8.0 });
    assert_eq!((plan.price, plan.total, plan.dpu), (412.0, 515.0, 750.0));
    assert_eq!((plan.ratio() * 100.0).round(), 69.0);
}

/// §6.1.2: "until the target throughput approached 9.5 million PPS, beyond which the DPU acceleration became more
/// economical".
#[test]
fn a_dpu_is_cheaper_from_about_nine_and_a_half_million_packets_on() {
    let [need] = network(Metric::Packets, 6e6).needs[..] else { panic!() };
    let at = need.break_even.unwrap();
    assert!((9.3e6..9.6e6).contains(&at), "{at}");
    let beyond = price_of(Metric::Packets, at * 1.01, &Rates::paper(), &Prices::PAPER).unwrap();
    let below = price_of(Metric::Packets, at * 0.99, &Rates::paper(), &Prices::PAPER).unwrap();
    assert!(below < 750.0 && beyond > 750.0, "{below} {beyond}");
}

/// §6.1.2: 0.55 M IOPS with 4c8g "at less than 70% of the normalized BF3 cost", and 8c16g exceeds 1.06 M.
#[test]
fn storage_takes_four_cores_for_what_a_dpu_does_and_eight_for_twice_that() {
    let plan = network(Metric::Requests, 0.55e6);
    assert_eq!((plan.service, plan.resources), (Service::Storage, Resources { cores: 4.0, memory: 8.0 }));
    assert!(plan.ratio() < 0.70, "{plan:?}");
    assert_eq!(network(Metric::Requests, 1.06e6).resources.cores, 8.0);
    assert_eq!(network(Metric::Requests, 0.5e6).needs[0].dpu_limit, Some(0.5e6));
}

/// §6.3: 0.72 M connections/s with 16 cores; 16 M live connections in 32 GB, whatever the cores.
#[test]
fn connections_take_cores_when_they_are_new_and_memory_while_they_live() {
    let plan = network(Metric::Connections, 0.72e6);
    assert_eq!(plan.resources.cores, 16.0);
    let plan = network(Metric::LiveConnections, 16e6);
    assert_eq!(plan.resources, Resources { cores: 1.0, memory: 32.0 });
    let mut demand = Demand::default();
    demand.ask(Metric::LiveConnections, 1e6);
    demand.ask(Metric::Packets, 6e6);
    let both = super::plan(&demand, &Rates::paper(), &Prices::PAPER).unwrap();
    assert_eq!(both.services[0].resources, Resources { cores: 4.0, memory: 8.0 }, "a million live in 2 GB of the 8");
    assert_eq!(both.services[0].needs[0].metric, Metric::Packets, "the one that takes most cores comes first");
}

#[test]
fn between_stated_points_rates_are_on_lines_and_beyond_them_too() {
    let curve = Curve::new(vec![(4.0, 0.55e6), (8.0, 1.06e6)]).unwrap();
    let about =
        |rate: f64, cores: f64| assert!((curve.cores(rate) - cores).abs() < 1e-9, "{rate} takes {}", curve.cores(rate));
    about(0.275e6, 2.0);
    about(0.55e6, 4.0);
    about(0.805e6, 6.0);
    about(1.57e6, 12.0);
    assert_eq!(Curve::new(vec![]), None);
    assert_eq!(Curve::new(vec![(1.0, 0.0)]), None);
    assert_eq!(Curve::new(vec![(2.0, 5.0), (1.0, 6.0)]), None);
    assert_eq!(Curve::new(vec![(1.0, f64::NAN)]), None);
}

#[test]
fn a_hosts_own_rates_come_from_the_results_of_bench() {
    let line = |bench: &str, subject: &str, case: &str, metric: &str, value: f64| {
        format!(
            "{}\n",
            serde_json::json!({"bench": bench, "subject": subject, "case": case, "metric": metric, "unit": "1/s", "value": value})
        )
    };
    let lines = [
        "{\"about\":\"a run\"}\n\n".to_owned(),
        line("net", "testpmd", "guest-guest 64 split polling", "frames", 1e6),
        line("net", "softdpu", "guest-guest 64 split polling", "frames", 9e6),
        line("net", "softdpu", "guest-guest 64 split polling", "frames", 10e6),
        line("net", "softdpu", "guest-guest 64 split polling", "frames", 90e6),
        line("vpc", "softdpu", "flow: hit, 16 M flows", "bytes for a flow's entry", 125.0),
    ]
    .concat();
    let rates = Rates::measured(&lines, "this host").unwrap();
    assert_eq!(rates.cores(Metric::Packets, 40e6), Ok(4.0), "the median, of softdpu alone");
    assert_eq!(rates.memory(1.0, 16e6), 4.0, "two flows of 125 bytes each");
    assert_eq!(rates.cores(Metric::Requests, 1.0), Err(RatesError::Unknown(Metric::Requests)));
    assert!(RatesError::Unknown(Metric::Requests).to_string().ends_with("`softdpu bench block --json` to the file"));
    assert!(matches!(Rates::measured("{\n", "x"), Err(RatesError::Line { number: 1, .. })));
    assert_eq!(Rates::measured("{\"about\":\"nothing\"}", "x"), Err(RatesError::Empty));
}

#[test]
fn what_costs_nothing_never_breaks_even_and_a_dpu_for_nothing_always_does() {
    let gift = Prices { core: 0.0, memory: 0.0, ..Prices::PAPER };
    let mut demand = Demand::default();
    demand.ask(Metric::Packets, 1e6);
    let free = plan(&demand, &Rates::paper(), &gift).unwrap();
    assert_eq!(free.services[0].needs[0].break_even, Some(f64::INFINITY));
    let dpus = Prices { dpu: 0.0, ..Prices::PAPER };
    assert_eq!(plan(&demand, &Rates::paper(), &dpus).unwrap().services[0].needs[0].break_even, None);
    demand.ask(Metric::Packets, 0.0);
    assert!(demand.is_empty() && plan(&demand, &Rates::paper(), &gift).unwrap().services.is_empty());
}
