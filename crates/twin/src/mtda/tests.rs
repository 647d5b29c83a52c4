use super::fairness::{fair1_of, fair2_of};
use super::*;

/// Long enough to tell orders, short enough for a test.
const SHORT: Scope = Scope { seed: 1, span: 400_000 };

#[test]
fn equation_1_gives_the_papers_worked_example() {
    // §V-D: "(4.349, 3.284, 3.273, 4.439)" and "(5.288, 5.342, 5.343, 5.045)" are 0.145 and 0.02.
    let equal = [1.0; 4];
    let dpdk = fair1_of(&[4.349, 3.284, 3.273, 4.439], &equal);
    let mtda = fair1_of(&[5.288, 5.342, 5.343, 5.045], &equal);
    assert!((dpdk - 0.145).abs() < 0.001, "{dpdk}");
    assert!((mtda - 0.02).abs() < 0.001, "{mtda}");
}

#[test]
fn equation_3_is_the_least_slowdown_over_the_largest() {
    assert_eq!(fair2_of(&[2.0, 8.0], &[1.0, 2.0]), 0.5);
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
