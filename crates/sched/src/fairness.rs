//! Indices of fairness: how a sharing that was measured compares with what was due.

/// MTDA's Fair1, equation (1): how far each part of the throughput is from the part that is expected, added up. 0 is
/// fair, 2 the worst.
pub fn fair1(expected: &[f64], got: &[f64]) -> f64 {
    let part = |all: &[f64], one: f64| one / all.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    expected.iter().zip(got).map(|(due, had)| (part(expected, *due) - part(got, *had)).abs()).sum()
}

/// MTDA's Fair2, equation (3): the least slowdown over the largest, each a latency beside others over the one alone. 1
/// is fair.
pub fn fair2(alone: &[f64], shared: &[f64]) -> f64 {
    let slow = || alone.iter().zip(shared).map(|(alone, shared)| shared / alone.max(f64::MIN_POSITIVE));
    let (least, most) = (slow().fold(f64::INFINITY, f64::min), slow().fold(0.0, f64::max));
    if most > 0.0 { least / most } else { 1.0 }
}

/// Jain's index of what each got over what it was to get: 1 is fair, 1/n the worst of n.
pub fn jain(expected: &[f64], got: &[f64]) -> f64 {
    let parts = || expected.iter().zip(got).map(|(due, had)| had / due.max(f64::MIN_POSITIVE));
    let (sum, squares) = (parts().sum::<f64>(), parts().map(|part| part * part).sum::<f64>());
    if squares > 0.0 { sum * sum / (squares * got.len() as f64) } else { 1.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_worked_example_comes_out() {
        // MTDA §V-D.
        let equal = [1.0; 4];
        assert!((fair1(&equal, &[4.349, 3.284, 3.273, 4.439]) - 0.145).abs() < 0.001);
        assert!((fair1(&equal, &[5.288, 5.342, 5.343, 5.045]) - 0.02).abs() < 0.001);
    }

    #[test]
    fn all_alike_is_fair_and_one_that_has_all_is_not() {
        assert_eq!(fair2(&[10.0, 20.0], &[20.0, 40.0]), 1.0);
        assert_eq!(fair2(&[10.0, 10.0], &[10.0, 40.0]), 0.25);
        assert_eq!(fair2(&[1.0, 2.0], &[2.0, 8.0]), 0.5);
        assert_eq!(jain(&[4.0, 1.0], &[8.0, 2.0]), 1.0);
        assert_eq!(jain(&[1.0, 1.0], &[8.0, 0.0]), 0.5);
        assert_eq!(fair1(&[1.0, 1.0], &[8.0, 0.0]), 1.0);
    }
}
