use super::*;

/// Long enough for every part of an experiment to happen.
fn short() -> Scope {
    Scope { seed: 1, span: 400_000, ..Scope::default() }
}

#[test]
fn table_4_adds_up() {
    for (tenants, rates) in [(1, 4), (2, 5), (4, 9), (8, 23)] {
        let table = setup::table_4(tenants);
        assert_eq!((table.len(), table.iter().map(|entry| entry.1).sum::<u32>()), (tenants, rates));
    }
}

#[test]
fn the_printed_algorithm_starves_and_the_repaired_one_does_not() {
    let figure = starvation::starvation(&Scope { seed: 3, span: 10_000_000, ..Scope::default() });
    let served = |subject: &str, tenant: &str| {
        let found = figure.points.iter().find(|p| p.subject == subject && p.case == tenant && p.metric == "served");
        found.map_or(-1.0, |point| point.value)
    };
    for tenant in ["tenant 2", "tenant 3", "tenant 4"] {
        assert_eq!(served("mtda-printed", tenant), 0.0);
        assert!(served("mtda", tenant) > 100.0 && served("weighted", tenant) > 100.0, "{tenant}");
    }
    assert!(served("mtda-printed", "tenant 1, floods") > 10_000.0);
}

#[test]
fn every_experiment_runs_says_what_it_found_and_does_so_again_for_its_seed() {
    for experiment in EXPERIMENTS {
        let figure = experiment.summary(&short(), 1);
        assert_eq!(figure.name, experiment.name);
        assert!(!figure.points.is_empty() && !figure.panels.is_empty(), "{}", experiment.name);
        for (point, _) in &figure.points {
            assert!(point.value.is_finite(), "{}: {point:?}", experiment.name);
        }
        for line in figure.json().lines() {
            let object: serde_json::Value = serde_json::from_str(line).expect("JSON");
            let mut keys: Vec<&str> = object.as_object().expect("an object").keys().map(String::as_str).collect();
            keys.sort_unstable();
            assert_eq!(keys, ["bench", "case", "metric", "subject", "unit", "value"]);
        }
        assert!(figure.table().contains(&figure.title));
        assert_eq!(figure.csv().lines().count(), figure.points.len() + 1);
    }
    for experiment in &EXPERIMENTS[8..10] {
        assert_eq!((experiment.run)(&short()).points, (experiment.run)(&short()).points, "{}", experiment.name);
    }
}

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/papers/mtda.md");

/// Every figure and every verdict: the page has what this run of ten seeds finds.
#[test]
fn the_page_has_what_the_command_prints() {
    let page = std::fs::read_to_string(PAGE).expect("the page");
    let (_, rest) = page.split_once("<!-- softdpu twin mtda-table --span 1 -->\n\n").expect("the table's beginning");
    let (written, _) = rest.split_once("\n<!-- end -->").expect("the table's end");
    let found = markdown(&Scope { span: 1_000_000, ..Scope::default() }, SEEDS);
    for (at, (written, found)) in written.lines().zip(found.lines()).enumerate() {
        assert_eq!(written, found, "row {at}; `softdpu twin mtda-table --span 1` prints the table");
    }
    assert_eq!(written.lines().count(), found.lines().count());
}

/// Constants halved and doubled, for the figures that take least.
#[test]
fn the_page_has_what_depends_on_constants() {
    let page = std::fs::read_to_string(PAGE).expect("the page");
    let (_, page) = page.split_once("<!-- softdpu twin mtda-sensitivity --span 1 -->").expect("the table's beginning");
    let scope = Scope { span: 1_000_000, ..Scope::default() };
    let variations = sensitivity::variations(&sensitivity::KEYS, &scope.constants).expect("constants");
    let mut quick = sensitivity::figures();
    quick.retain(|experiment| ["mtda-fig8", "mtda-fig12", "mtda-fig13"].contains(&experiment.name));
    let found = sensitivity::markdown(&sensitivity::sensitivity(&quick, &variations, &scope, SEEDS), &variations);
    for row in found.lines() {
        assert!(page.contains(row), "`softdpu twin mtda-sensitivity --span 1` prints {row}");
    }
}

#[test]
fn in_the_burst_the_balancer_moves_queues_and_credits_are_allocated_anew() {
    let figure = dynamics::burst(&Scope { span: 1_000_000, ..Scope::default() });
    let of = |subject: &str, metric: &str| {
        let found = figure.points.iter().find(|point| point.subject == subject && point.metric == metric);
        found.expect("a figure").value
    };
    assert!(of("mtda", "queues moved") > 0.0 && of("mtda", "credits reallocated") > 0.0, "{:?}", figure.points);
    // What is static stays as it is.
    for fixed in ["fcfs", "fairnic", "lognic"] {
        assert_eq!((of(fixed, "queues moved"), of(fixed, "credits reallocated")), (0.0, 0.0), "{fixed}");
    }
}

#[test]
fn tenants_of_an_application_share_its_accelerator_and_others_do_not_wait_for_it() {
    let mut constants = Constants::default();
    // A million packets a second. Each tenant sends 2.8 million.
    constants.set("fw-accelerator-ns", 1_000.0).expect("a constant");
    let scope = Scope { span: 1_000_000, constants, ..Scope::default() };
    let measured = |constants| {
        let case = run::Case::new(4, true, 256, &constants);
        run::run(System::Mtda, &case, &Scope { constants, ..scope })
    };
    let (none, one) = (measured(Constants::default()), measured(constants));
    let packets = one.throughput(3) / 8.0 / 256.0;
    assert!((0.9e6..=1.05e6).contains(&packets), "the accelerator is the bottleneck: {packets}/s");
    assert!(one.throughput(3) < none.throughput(3), "{} {}", one.throughput(3), none.throughput(3));
    for other in 0..3 {
        let ratio = one.throughput(other) / none.throughput(other);
        assert!((0.97..=1.03).contains(&ratio), "tenant {other}: {ratio}");
    }
}

#[test]
fn the_calibration_finds_the_constant_again() {
    let found = calibrate::calibrate(&Scope { span: 2_000_000, ..Scope::default() }, SEEDS);
    assert!((found.switch_ns / SWITCH_NS - 1.0).abs() < 0.02, "{found:?}");
    assert!((found.total.median / calibrate::TARGET - 1.0).abs() < 0.005, "{found:?}");
}
