//! What each tenant is due of a node's cores: weighted max-min fairness over what they ask for.

/// A tenant's claim on the cores of a node, in thousandths of a core's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) weight: u32,
    /// The least that it is due, where it asks for as much.
    pub(super) guarantee: u32,
    /// The most that it can use: what it asks for, or a core for each of its queues.
    pub(super) most: u32,
}

/// What each claim is due of `capacity`: all of it where that suffices, otherwise by weight, no more than the claim's
/// most and no less than its guarantee.
pub(super) fn entitlements(capacity: u32, claims: &[Claim]) -> Vec<u32> {
    let due = |level: u64| {
        // In 2^-20 of a thousandth for each of the weight.
        let of = move |claim: &Claim| {
            let by_weight = (level * u64::from(claim.weight.max(1))) >> 20;
            by_weight.max(claim.guarantee.into()).min(claim.most.into()) as u32
        };
        claims.iter().map(of)
    };
    let fits = |level: u64| due(level).map(u64::from).sum::<u64>() <= u64::from(capacity);
    let (mut low, mut high) = (0, (u64::from(capacity) + 1) << 20);
    if fits(high) {
        return due(high).collect();
    }
    // What is due grows with the level.
    while high - low > 1 {
        let middle = low.midpoint(high);
        if fits(middle) { low = middle } else { high = middle }
    }
    due(low).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(weight: u32, most: u32) -> Claim {
        Claim { weight, guarantee: 0, most }
    }

    #[test]
    fn what_suffices_is_had_by_all() {
        assert_eq!(entitlements(2_000, &[claim(1, 1_500), claim(9, 300)]), [1_500, 300]);
        assert_eq!(entitlements(2_000, &[]), Vec::<u32>::new());
    }

    #[test]
    fn what_does_not_suffice_goes_by_weight_and_what_one_leaves_goes_to_the_others() {
        let due = entitlements(2_000, &[claim(1, 2_000), claim(3, 2_000), claim(4, 200)]);
        assert!(due[0].abs_diff(450) <= 2 && due[1].abs_diff(1_350) <= 2 && due[2] == 200, "{due:?}");
    }

    #[test]
    fn a_guarantee_comes_before_weights() {
        let due = entitlements(1_000, &[Claim { guarantee: 400, ..claim(1, 1_000) }, claim(99, 1_000)]);
        assert!(due[0] == 400 && due[1].abs_diff(600) <= 1, "{due:?}");
        // And is not kept where it is not asked for.
        let due = entitlements(1_000, &[Claim { guarantee: 400, ..claim(1, 10) }, claim(99, 1_000)]);
        assert!(due[0] == 10 && due[1] >= 989, "{due:?}");
    }
}
