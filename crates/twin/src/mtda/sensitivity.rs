//! Which orderings depend on a constant: all figures again with it halved and doubled.

use super::{Constants, EXPERIMENTS, Experiment, Scope, Verdict};

/// An ordering, and what it is with each variation.
#[derive(Clone, Debug)]
pub struct Sensitivity {
    /// The experiment.
    pub figure: &'static str,
    /// The ordering.
    pub what: String,
    /// With the constants as they are.
    pub base: Verdict,
    /// With each variation, in the order of [`variations`].
    pub varied: Vec<Verdict>,
}

/// Constants that are varied if none is named: what the results may depend on most.
pub const KEYS: [&str; 3] = ["switch-ns", "load", "service-scale"];

/// Each key halved and doubled: how it is called, and the constants.
///
/// # Errors
/// A sentence: there is no such constant, or half or twice of it is not in its range.
pub fn variations(keys: &[&str], constants: &Constants) -> Result<Vec<(String, Constants)>, String> {
    let mut all = Vec::new();
    for key in keys {
        for (name, factor) in [("½", 0.5), ("2", 2.0)] {
            let mut varied = *constants;
            varied.set(key, constants.get(key).unwrap_or(0.0) * factor)?;
            all.push((format!("{name} {key}"), varied));
        }
    }
    Ok(all)
}

/// The orderings of some experiments with each variation.
pub fn sensitivity(
    experiments: &[Experiment],
    variations: &[(String, Constants)],
    scope: &Scope,
    seeds: u64,
) -> Vec<Sensitivity> {
    let mut rows = Vec::new();
    for experiment in experiments {
        let verdicts = |constants: Constants| -> Vec<(String, Verdict)> {
            let summary = experiment.summary(&Scope { constants, ..*scope }, seeds);
            summary.orderings.iter().map(|ordered| (ordered.what.clone(), ordered.verdict())).collect()
        };
        let varied: Vec<Vec<(String, Verdict)>> =
            variations.iter().map(|(_, constants)| verdicts(*constants)).collect();
        for (at, (what, base)) in verdicts(scope.constants).into_iter().enumerate() {
            let varied = varied.iter().map(|orderings| orderings[at].1).collect();
            rows.push(Sensitivity { figure: experiment.name, what, base, varied });
        }
    }
    rows
}

/// The paper's figures, without the demonstration.
pub fn figures() -> Vec<Experiment> {
    EXPERIMENTS.iter().filter(|experiment| experiment.name.starts_with("mtda-fig")).copied().collect()
}

/// "holds", "no" (some pairs are not in the order), "reversed" (some are in the other).
pub fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::Undecided => "undecided",
        Verdict::Reversed => "reversed",
    }
}

/// As a Markdown table; what flips is bold.
pub fn markdown(rows: &[Sensitivity], variations: &[(String, Constants)]) -> String {
    let names: Vec<&str> = variations.iter().map(|(name, _)| name.as_str()).collect();
    let mut text = format!("| figure | ordering | as it is | {} |\n|---|---|---|", names.join(" | "));
    text.push_str(&"---|".repeat(names.len()));
    for Sensitivity { figure, what, base, varied } in rows {
        let cell = |verdict: &Verdict| {
            let is_flipped = (*verdict == Verdict::Holds) != (*base == Verdict::Holds);
            if is_flipped { format!("**{}**", word(*verdict)) } else { word(*verdict).to_owned() }
        };
        let cells: Vec<String> = varied.iter().map(cell).collect();
        let figure = figure.trim_start_matches("mtda-");
        text.push_str(&format!("\n| {figure} | {what} | {} | {} |", word(*base), cells.join(" | ")));
    }
    text.push('\n');
    text
}
