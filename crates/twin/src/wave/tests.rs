use super::*;
use crate::summary::Verdict;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/papers/wave.md");

/// Every figure and every verdict: the page has what this run of ten seeds finds.
#[test]
fn the_page_has_what_the_command_prints() {
    let page = std::fs::read_to_string(PAGE).expect("the page");
    let (_, rest) = page.split_once("<!-- softdpu twin wave --span 5 -->\n\n").expect("the table's beginning");
    let (written, _) = rest.split_once("\n<!-- end -->").expect("the table's end");
    let found = markdown(&Scope { span: 5_000_000, ..Scope::default() }, crate::mtda::SEEDS);
    for (at, (written, found)) in written.lines().zip(found.lines()).enumerate() {
        assert_eq!(written, found, "row {at}; `softdpu twin wave --span 5` prints the table");
    }
    assert_eq!(written.lines().count(), found.lines().count());
}

#[test]
fn the_calibration_finds_its_target() {
    let on_host = Placement::OnHost { prestages: true };
    let found = tables::switch(on_host, &Scope::default());
    assert!((found - 2_805.0).abs() < 20.0, "{found}; change KERNEL_NS by the difference");
}

#[test]
fn each_optimisation_adds_throughput() {
    let scope = Scope { span: 5_000_000, ..Scope::default() };
    let fifo = EXPERIMENTS.iter().find(|experiment| experiment.name == "wave-fifo").expect("there is one");
    let summary = fifo.summary(&scope, 6);
    assert_eq!(summary.orderings[0].verdict(), Verdict::Holds, "{}", summary.table());
}

#[test]
fn a_seed_gives_the_same_figures() {
    let scope = Scope { span: 1_000_000, ..Scope::default() };
    for experiment in &EXPERIMENTS[..2] {
        assert_eq!((experiment.run)(&scope).points, (experiment.run)(&scope).points, "{}", experiment.name);
    }
}

#[test]
fn nearly_every_switch_at_saturation_is_prestaged_and_hardly_a_decision_is_refused() {
    let load = Load { rate: None, short: 10_000, long: 10_000, long_permille: 0 };
    let placement = Placement::Dpu(softdpu_offload::link::LinkStep::Prestaged);
    let scenario = Scenario { placement, cores: 16, threads: 64, load };
    let policy = Box::new(softdpu_sched::threads::FifoThreads::run_to_completion());
    let found = Machine::new(scenario, policy, Constants::default(), 1).run(5_000_000);
    assert!(found.prestaged * 10 > found.completed * 9, "{} of {}", found.prestaged, found.completed);
    assert!(found.refused * 100 < found.completed, "{} of {}", found.refused, found.completed);
}
