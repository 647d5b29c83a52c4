//! `softdpu twin replay`: a recorded core again.

use std::path::PathBuf;

use clap::Args;
use softdpu_plot::Table;
use softdpu_sched::Policy;
use softdpu_twin::replay::{self, Comparison, Ending, Fared, Outcome, TenantWaits, Verified};

use super::print;

/// `softdpu twin replay`
#[derive(Debug, Args)]
pub struct Replay {
    /// The recording, which `softdpu run --record` writes
    file: PathBuf,
    /// What would this policy have done? Without it, the decisions that were recorded are taken again and compared
    #[arg(long, value_name = "POLICY")]
    policy: Option<String>,
    /// A parameter of that policy; one option each
    #[arg(long, value_name = "NAME=VALUE", requires = "policy")]
    set: Vec<String>,
    /// Print one JSON object a line instead of text
    #[arg(long)]
    json: bool,
}

/// Runs it; the error is a sentence for the user.
pub fn replay(options: &Replay) -> Result<(), String> {
    let file = &options.file;
    let bytes = std::fs::read(file).map_err(|error| format!("reading {}: {error}", file.display()))?;
    let failed = |error: replay::ReplayError| format!("{}: {error}", file.display());
    match &options.policy {
        None => {
            let verified = replay::verify(&bytes).map_err(failed)?;
            print(&if options.json { verified_json(&verified) } else { verified_text(&verified) })?;
            match (verified.outcome, verified.ending) {
                (Outcome::Differs { event, .. } | Outcome::YieldDiffers { event, .. }, _) => {
                    Err(format!("{}: event {event} differs", file.display()))
                }
                (Outcome::Same, Ending::Truncated(at)) => Err(format!(
                    "{}: the file was cut: it ends within an event, at byte {at}; all before that was taken again",
                    file.display()
                )),
                (Outcome::Same, _) => Ok(()),
            }
        }
        Some(name) => {
            let policy = Policy::named(name).and_then(|policy| policy.with(&parameters(&options.set)?));
            let policy = policy.map_err(|error| error.to_string())?;
            let compared = replay::compare(&bytes, &policy).map_err(failed)?;
            print(&if options.json { compared_json(&compared, name) } else { compared_text(&compared, name) })
        }
    }
}

fn parameters(options: &[String]) -> Result<Vec<(String, u64)>, softdpu_sched::UnknownPolicy> {
    let one = |option: &String| {
        let pair = option.split_once('=').and_then(|(name, value)| Some((name.to_owned(), value.parse().ok()?)));
        pair.ok_or_else(|| softdpu_sched::UnknownPolicy::Parameter("a policy", option.clone()))
    };
    options.iter().map(one).collect()
}

fn ending(ending: Ending) -> String {
    match ending {
        Ending::Whole => String::new(),
        Ending::Truncated(at) => {
            format!("\nit ends within an event, at byte {at}: its writer was ended; the rest is whole")
        }
        Ending::Stopped => "\nthe recording stopped before the core did: its buffer was full".to_owned(),
    }
}

fn verified_text(verified: &Verified) -> String {
    let Verified { header, events, decisions, grants, slices, outcome, .. } = verified;
    let outcome = match outcome {
        Outcome::Same => "every decision was taken again".to_owned(),
        Outcome::Differs { event, now, recorded, decided } => {
            format!(
                "event {event}, at {} ns, is the first that differs:\n  recorded {recorded:?}\n  now      {decided:?}",
                now.0
            )
        }
        Outcome::YieldDiffers { event, recorded, decided } => {
            let now = decided.map_or("polls on".to_owned(), |slice| format!("{} ns", slice.0));
            format!(
                "event {event}, a slice that ended at {} ns, is the first that differs:\n  recorded {} ns after {} empty \
                 polls in {} ns\n  now      {now}",
                recorded.now.0, recorded.slice.0, recorded.polls, recorded.spun.0
            )
        }
    };
    format!(
        "core {}, {}: {events} events, {decisions} decisions, {grants} grants, {slices} slices yielded{}\n{outcome}\n",
        header.core,
        header.policy,
        ending(verified.ending)
    )
}

fn line(subject: &str, case: &str, metric: &str, unit: &str, value: f64) -> String {
    let object = serde_json::json!({
        "bench": "twin-replay", "subject": subject, "case": case, "metric": metric, "unit": unit, "value": value,
    });
    format!("{object}\n")
}

fn verified_json(verified: &Verified) -> String {
    let case = format!("core {}", verified.header.core);
    let is_same = u64::from(verified.outcome == Outcome::Same);
    let values = [
        ("events", verified.events),
        ("decisions", verified.decisions),
        ("grants", verified.grants),
        ("slices", verified.slices),
        ("same", is_same),
    ];
    values.map(|(metric, value)| line(&verified.header.policy, &case, metric, "1", value as f64)).concat()
}

/// A figure of a tenant, with its unit and how it is found: of what it waited, and its part of the core's time.
type Metric = (&'static str, &'static str, fn(&TenantWaits, u64) -> f64);

const METRICS: [Metric; 6] = [
    ("units", "1", |waits, _| waits.units as f64),
    ("left", "1", |waits, _| waits.left as f64),
    ("core-share", "%", |waits, span| waits.time as f64 / span.max(1) as f64 * 100.0),
    ("wait-mean", "us", |waits, _| waits.waits.mean() / 1e3),
    ("wait-p99", "us", |waits, _| waits.waits.quantile(0.99) as f64 / 1e3),
    ("wait-max", "us", |waits, _| waits.longest as f64 / 1e3),
];

/// The three columns: as it was, the same policy in the model, the other one in the model.
fn columns<'a>(compared: &'a Comparison, name: &str) -> [(String, &'a Fared); 3] {
    let own = &compared.header.policy;
    [
        (format!("{own}, recorded"), &compared.recorded),
        (format!("{own}, model"), &compared.modelled),
        (format!("{name}, model"), &compared.other),
    ]
}

fn compared_text(compared: &Comparison, name: &str) -> String {
    let columns = columns(compared, name);
    let titles: Vec<String> = columns.iter().map(|(title, _)| format!("{title}>")).collect();
    let mut table = Table::new(["TENANT", "METRIC"].into_iter().chain(titles.iter().map(String::as_str)));
    for tenant in compared.recorded.keys() {
        for (metric, unit, of) in METRICS {
            let unit = if unit == "1" { String::new() } else { format!(", {unit}") };
            let mut row = vec![tenant.to_string(), format!("{metric}{unit}")];
            row.extend(columns.iter().map(|(_, fared)| {
                let value = fared.get(tenant).map_or(0.0, |waits| of(waits, compared.span));
                format!("{value:.2}")
            }));
            table.row(row);
        }
    }
    format!(
        "core {}, {:.3} ms, recorded with {}{}\n\n{table}\nIn the model work comes when it came and costs what it cost. A client \
         that waits for its requests would have sent others.\n",
        compared.header.core,
        compared.span as f64 / 1e6,
        compared.header.policy,
        ending(compared.ending)
    )
}

fn compared_json(compared: &Comparison, name: &str) -> String {
    let mut text = String::new();
    for (title, fared) in columns(compared, name) {
        for (tenant, waits) in fared {
            for (metric, unit, of) in METRICS {
                text.push_str(&line(&title, &format!("tenant {tenant}"), metric, unit, of(waits, compared.span)));
            }
        }
    }
    text
}
