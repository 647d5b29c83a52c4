use super::*;

/// The first seed at which a policy breaks a promise.
fn first_failure(name: &str, seeds: u64) -> Option<(u64, Violation)> {
    (0..seeds).find_map(|seed| Some((seed, explore(name, seed).expect("a policy").violation?)))
}

#[test]
fn every_policy_keeps_what_it_promises() {
    for name in Policy::NAMES {
        if let Some((seed, violation)) = first_failure(name, 12) {
            panic!("{name}, seed {seed}: {violation}");
        }
    }
}

#[test]
fn every_policy_that_is_broken_on_purpose_is_found_out_and_for_what_it_is() {
    let promise = |how| match how {
        How::Idles => &["work is conserved"][..],
        How::Loses => &["what was ready is run", "work is conserved"],
        How::Unlimited => &["limits hold over every span"],
        How::Unweighted | How::Favours => &["shares are weights", "light tenants hardly wait"],
        How::Overfills => &["a back end has no more than its depth"],
        How::Invents => &["a policy grants what there is, and ends"],
    };
    for (name, how) in How::NAMES {
        let (seed, found) = first_failure(name, 60).unwrap_or_else(|| panic!("{name} was not found out"));
        assert!(promise(how).contains(&found.promise), "{name}, seed {seed}: {found}");
        let again = explore(name, seed).expect("a policy").violation;
        assert_eq!(again, Some(found), "the same seed shows the same");
    }
}

#[test]
fn a_name_of_no_policy_is_refused() {
    assert!(check("weighted").is_ok() && check("broken-idles").is_ok());
    assert!(check("broken").is_err());
}
