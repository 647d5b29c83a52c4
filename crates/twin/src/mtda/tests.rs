use super::*;

/// Long enough to tell orders, short enough for a test.
const SHORT: Scope = Scope { seed: 1, span: 400_000 };

#[test]
fn table_4_adds_up() {
    for (tenants, rates) in [(1, 4), (2, 5), (4, 9), (8, 23)] {
        let table = setup::table_4(tenants);
        assert_eq!((table.len(), table.iter().map(|entry| entry.1).sum::<u32>()), (tenants, rates));
    }
}

#[test]
fn the_printed_algorithm_starves_and_the_repaired_one_does_not() {
    let figure = starvation::starvation(&Scope { seed: 3, span: 10_000_000 });
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
        let figure = (experiment.run)(&SHORT);
        assert_eq!(figure.name, experiment.name);
        assert!(!figure.points.is_empty() && !figure.panels.is_empty(), "{}", experiment.name);
        for point in &figure.points {
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
        assert_eq!((experiment.run)(&SHORT).points, (experiment.run)(&SHORT).points, "{}", experiment.name);
    }
}

/// What the paper's prose states and the twin shows, by seed 1: `docs/papers/mtda.md` has the same, and what it does
/// not show.
const HOLDS: [(&str, &[&str]); 11] = [
    ("mtda-fig4", &["one tenant: MTDA's throughput is similar", "throughput rises with the packet size"]),
    ("mtda-fig5", &["one tenant: MTDA's throughput is similar", "throughput rises with the packet size"]),
    ("mtda-fig6", &["latency falls as packets grow"]),
    ("mtda-fig7", &[]),
    ("mtda-fig8", &["MTDA's tail is the lowest for each tenant (§V-C), balanced"]),
    ("mtda-fig9", &[]),
    ("mtda-fig10", &["less fair with more tenants", "MTDA is the fairest", "two tenants: FairNIC's is similar"]),
    ("mtda-fig11", &["MTDA's Fair2 is the highest (§V-D), balanced"]),
    ("mtda-fig12", &["MTDA: nearly line rate"]),
    (
        "mtda-fig13",
        &[
            "in the burst DPDK's tail is above MTDA's",
            "in the burst FairNIC's tail is above MTDA's",
            "in the burst LogNIC's tail is above MTDA's",
        ],
    ),
    ("mtda-fig14", &[]),
];

/// Compares the orders of some figures with [`HOLDS`], both ways: one that begins to hold fails, too.
fn orders_are_as_told(of: impl Fn(&str) -> bool) {
    for (name, known) in HOLDS.into_iter().filter(|(name, _)| of(name)) {
        let experiment = EXPERIMENTS.iter().find(|experiment| experiment.name == name).expect("an experiment");
        let figure = (experiment.run)(&Scope::default());
        for order in &figure.orderings {
            let is_known = known.iter().any(|known| order.what.starts_with(known));
            assert_eq!(order.holds, is_known, "{name}: {}: {}", order.what, order.seen);
        }
        for known in known {
            assert!(figure.orderings.iter().any(|order| order.what.starts_with(known)), "{name}: {known}");
        }
    }
}

const QUICK: [&str; 4] = ["mtda-fig8", "mtda-fig10", "mtda-fig12", "mtda-fig13"];

#[test]
fn what_is_known_of_quick_figures_is_what_comes_out() {
    orders_are_as_told(|name| QUICK.contains(&name));
}

#[test]
#[ignore = "half a minute: cargo test --release -p softdpu-twin -- --ignored"]
fn what_is_known_of_the_other_figures_is_what_comes_out() {
    orders_are_as_told(|name| !QUICK.contains(&name));
}
