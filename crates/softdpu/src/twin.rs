//! `softdpu twin`: simulated time. A paper's figure, a recorded core, a sweep with faults.

mod replay;
mod wave;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use softdpu_twin::explore::yielding::{ADAPTIVE, BrokenYield, is_yielding};
use softdpu_twin::explore::{self, Explored, broken::How};
use softdpu_twin::mtda::{Constants, EXPERIMENTS, SEEDS, Scope, Summary, Verdict, calibrate, sensitivity};

/// `softdpu twin …`
#[derive(Debug, Subcommand)]
pub enum TwinCommand {
    /// Show the experiments and the policies that there are
    List,
    /// Throughput under balanced load (MTDA, Fig. 4)
    MtdaFig4(Simulate),
    /// Throughput under unbalanced load (MTDA, Fig. 5)
    MtdaFig5(Simulate),
    /// Mean latency under balanced load (MTDA, Fig. 6)
    MtdaFig6(Simulate),
    /// Mean latency under unbalanced load (MTDA, Fig. 7)
    MtdaFig7(Simulate),
    /// 99th percentile of each of four tenants (MTDA, Fig. 8)
    MtdaFig8(Simulate),
    /// 99th percentile of all of four tenants (MTDA, Fig. 9)
    MtdaFig9(Simulate),
    /// Fair1, by numbers of tenants (MTDA, Fig. 10)
    MtdaFig10(Simulate),
    /// Fair2, by packet sizes (MTDA, Fig. 11)
    MtdaFig11(Simulate),
    /// Throughput of three tenants over time (MTDA, Fig. 12)
    MtdaFig12(Simulate),
    /// 99th percentile over time, with a burst (MTDA, Fig. 13)
    MtdaFig13(Simulate),
    /// MTDA beside partitions tuned by hand (MTDA, Fig. 14)
    MtdaFig14(Simulate),
    /// What Algorithm 2 as printed does to tenants after the first
    MtdaStarvation(Simulate),
    /// Find the one constant that is calibrated: a switch to another tenant's work, on DPDK's total of MTDA's §V-D
    MtdaCalibrate(Simulate),
    /// Which orderings flip when a constant is halved or doubled, in all of MTDA's figures; a Markdown table
    MtdaSensitivity(Vary),
    /// What MTDA's text states of all figures, beside the twin; a Markdown table
    MtdaTable(Simulate),
    /// What Wave's text states of scheduling threads over a link and of memory, beside the twin; a Markdown table
    Wave(wave::Wave),
    /// Take the decisions of a recorded core again, or another policy's on the same work
    Replay(replay::Replay),
    /// Sweep over seeds with injected faults; every promise of a policy is checked at every step
    Explore(Explore),
}

/// How an experiment is run and printed.
#[derive(Debug, Args)]
pub struct Simulate {
    #[command(flatten)]
    scope: ScopeOptions,
    /// Print one JSON object a line instead of tables
    #[arg(long)]
    json: bool,
    /// Draw it into FILE.svg or FILE.png
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Write every figure into FILE, as comma-separated values
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
}

/// What is simulated.
#[derive(Debug, Args)]
struct ScopeOptions {
    /// The first seed of all random numbers: the same seeds, the same figures
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds: figures are medians of them, with intervals
    #[arg(long, value_name = "N", default_value_t = SEEDS, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    seeds: u64,
    /// Simulated time that counts, milliseconds, for each seed
    #[arg(long, value_name = "MS", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    span: u64,
    /// Set a constant that is assumed; one option each. `--set help` lists them
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// `softdpu twin mtda-sensitivity`
#[derive(Debug, Args)]
pub struct Vary {
    #[command(flatten)]
    scope: ScopeOptions,
    /// Vary this constant instead of switch-ns, load and service-scale; one option each
    #[arg(long, value_name = "KEY")]
    of: Vec<String>,
    /// Print one JSON object a line instead of the table
    #[arg(long)]
    json: bool,
}

impl ScopeOptions {
    /// None: the constants were listed, as `--set help` asks.
    fn scope(&self) -> Result<Option<Scope>, String> {
        let mut constants = Constants::default();
        let (help, pairs): (Vec<&String>, Vec<&String>) = self.set.iter().partition(|pair| *pair == "help");
        for pair in pairs {
            constants.set_pair(pair)?;
        }
        if !help.is_empty() {
            print(&constants.list())?;
            return Ok(None);
        }
        Ok(Some(Scope { seed: self.seed, span: self.span * 1_000_000, constants }))
    }
}

/// `softdpu twin explore`
#[derive(Debug, Args)]
pub struct Explore {
    /// The policy; `softdpu twin list` names them, also those that are broken on purpose
    #[arg(long, default_value = "weighted")]
    policy: String,
    /// Only this seed: what a failure says
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    seed: Option<u64>,
    /// How many seeds
    #[arg(long, default_value_t = 100)]
    seeds: u64,
    /// The first of them
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Print one JSON object a line instead of text
    #[arg(long)]
    json: bool,
}

/// Runs it; the error is a sentence for the user.
pub fn execute(command: &TwinCommand) -> Result<(), String> {
    let (name, options) = match command {
        TwinCommand::List => return list(),
        TwinCommand::Wave(options) => return wave::execute(options),
        TwinCommand::Replay(options) => return replay::replay(options),
        TwinCommand::Explore(options) => return sweep(options),
        TwinCommand::MtdaFig4(options) => ("mtda-fig4", options),
        TwinCommand::MtdaFig5(options) => ("mtda-fig5", options),
        TwinCommand::MtdaFig6(options) => ("mtda-fig6", options),
        TwinCommand::MtdaFig7(options) => ("mtda-fig7", options),
        TwinCommand::MtdaFig8(options) => ("mtda-fig8", options),
        TwinCommand::MtdaFig9(options) => ("mtda-fig9", options),
        TwinCommand::MtdaFig10(options) => ("mtda-fig10", options),
        TwinCommand::MtdaFig11(options) => ("mtda-fig11", options),
        TwinCommand::MtdaFig12(options) => ("mtda-fig12", options),
        TwinCommand::MtdaFig13(options) => ("mtda-fig13", options),
        TwinCommand::MtdaFig14(options) => ("mtda-fig14", options),
        TwinCommand::MtdaStarvation(options) => ("mtda-starvation", options),
        TwinCommand::MtdaCalibrate(options) => return calibrated(options),
        TwinCommand::MtdaSensitivity(options) => return varied(options),
        TwinCommand::MtdaTable(options) => return tabulated(options),
    };
    let experiment = EXPERIMENTS.iter().find(|experiment| experiment.name == name);
    let experiment = experiment.ok_or_else(|| format!("there is no experiment {name}"))?;
    // Known before anything is simulated.
    if let Some(path) = &options.plot
        && let Err(reason) = softdpu_plot::Format::of(path)
    {
        return Err(format!("{}: {reason}", path.display()));
    }
    let Some(scope) = options.scope.scope()? else { return Ok(()) };
    show(options, &experiment.summary(&scope, options.scope.seeds))
}

fn calibrated(options: &Simulate) -> Result<(), String> {
    let Some(scope) = options.scope.scope()? else { return Ok(()) };
    let seeds = options.scope.seeds;
    let found = calibrate::calibrate(&scope, seeds);
    let (now, target) = (scope.constants.get("switch-ns").unwrap_or(0.0), calibrate::TARGET);
    if options.json {
        let line = |metric: &str, unit: &str, value: f64| {
            let object = serde_json::json!({
                "bench": "twin-mtda-calibrate", "subject": "fcfs", "case": "4 tenants, balanced, 1024 B",
                "metric": metric, "unit": unit, "value": value,
            });
            format!("{object}\n")
        };
        let total = found.total;
        let lines = [("switch", "ns", found.switch_ns), ("throughput", "Gbit/s", total.median)];
        let ends = [("throughput-low", "Gbit/s", total.low), ("throughput-high", "Gbit/s", total.high)];
        return print(
            &lines.into_iter().chain(ends).map(|(metric, unit, value)| line(metric, unit, value)).collect::<String>(),
        );
    }
    let softdpu_twin::statistics::Estimate { median, low, high } = found.total;
    print(&format!(
        "switch-ns = {}: DPDK, four balanced tenants, 1024 B: {median:.3} [{low:.3}, {high:.3}] Gbit/s, median of \
         {seeds} seeds; the paper: {target} (§V-D)\nThe constant is {now} now. What it was calibrated on does not count as \
         reproduced.\n",
        found.switch_ns
    ))
}

fn varied(options: &Vary) -> Result<(), String> {
    let Some(scope) = options.scope.scope()? else { return Ok(()) };
    let named: Vec<&str> = options.of.iter().map(String::as_str).collect();
    let keys = if named.is_empty() { sensitivity::KEYS.to_vec() } else { named };
    let variations = sensitivity::variations(&keys, &scope.constants)?;
    let rows = sensitivity::sensitivity(&sensitivity::figures(), &variations, &scope, options.scope.seeds);
    if !options.json {
        return print(&sensitivity::markdown(&rows, &variations));
    }
    let mut lines = String::new();
    for row in &rows {
        let names = std::iter::once("as it is").chain(variations.iter().map(|(name, _)| name.as_str()));
        for (name, verdict) in names.zip(std::iter::once(&row.base).chain(&row.varied)) {
            let object = serde_json::json!({
                "bench": "twin-mtda-sensitivity", "subject": row.figure, "case": format!("{}; {name}", row.what),
                "metric": "holds", "unit": "1", "value": f64::from(u8::from(*verdict == Verdict::Holds)),
            });
            lines.push_str(&format!("{object}\n"));
        }
    }
    print(&lines)
}

fn tabulated(options: &Simulate) -> Result<(), String> {
    let Some(scope) = options.scope.scope()? else { return Ok(()) };
    let seeds = options.scope.seeds;
    if !options.json {
        return print(&softdpu_twin::mtda::markdown(&scope, seeds));
    }
    print(&sensitivity::figures().iter().map(|experiment| experiment.summary(&scope, seeds).json()).collect::<String>())
}

fn show(options: &Simulate, figure: &Summary) -> Result<(), String> {
    print(&if options.json { figure.json() } else { figure.table() })?;
    let failed = |path: &Path, why: String| format!("writing {}: {why}", path.display());
    if let Some(path) = &options.csv {
        std::fs::write(path, figure.csv()).map_err(|error| failed(path, error.to_string()))?;
    }
    match &options.plot {
        Some(path) => figure.draw(path).map_err(|error| failed(path, error)),
        None => Ok(()),
    }
}

/// Prints to standard output; a reader may stop reading.
fn print(text: &str) -> Result<(), String> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(format!("standard output: {error}")),
        _ => Ok(()),
    }
}

fn list() -> Result<(), String> {
    let mut text = "EXPERIMENTS\n".to_owned();
    for experiment in EXPERIMENTS {
        text.push_str(&format!("  {:16} {}\n", experiment.name, experiment.about));
    }
    text.push_str("\nPOLICIES of replay and explore\n  ");
    text.push_str(&softdpu_sched::Policy::NAMES.join(" "));
    text.push_str("\n\nPOLICIES of explore that say when a core yields\n  ");
    text.push_str(ADAPTIVE);
    text.push_str("\n\nPOLICIES of explore that are broken on purpose\n  ");
    text.push_str(&How::NAMES.map(|(name, _)| name).join(" "));
    text.push_str("\n  ");
    text.push_str(&BrokenYield::NAMES.map(|(name, _)| name).join(" "));
    text.push('\n');
    print(&text)
}

fn sweep(options: &Explore) -> Result<(), String> {
    let policy = &options.policy;
    explore::check(policy).map_err(|error| error.to_string())?;
    let seeds = match options.seed {
        Some(seed) => seed..seed.saturating_add(1),
        None => options.first..options.first.saturating_add(options.seeds),
    };
    let what = if is_yielding(policy) { "slices" } else { "grants" };
    let (mut failed, mut grants) = (Vec::new(), 0);
    let count = seeds.end - seeds.start;
    let is_watched = !options.json && std::io::stderr().is_terminal();
    for seed in seeds {
        if is_watched {
            eprint!("\rseed {seed}");
        }
        let explored = explore::explore(policy, seed).map_err(|error| error.to_string())?;
        grants += explored.grants;
        if options.json {
            print(&json(policy, seed, &explored))?;
        } else if options.seed.is_some() {
            print(&format!("{policy}, seed {seed}: {}\n", explored.scenario))?;
        }
        if let Some(violation) = explored.violation {
            if !options.json {
                print(&format!("{policy}, seed {seed}, {violation}\n"))?;
            }
            failed.push(seed);
        }
    }
    if is_watched {
        eprint!("\r");
    }
    let Some(first) = failed.first() else {
        if !options.json {
            print(&format!("{policy}: {count} seeds, {grants} {what}, every promise kept\n"))?;
        }
        return Ok(());
    };
    let again = format!("softdpu twin explore --policy {policy} --seed {first}");
    Err(format!("{policy} broke a promise with {} of {count} seeds; again: {again}", failed.len()))
}

fn json(policy: &str, seed: u64, explored: &Explored) -> String {
    let case = format!("seed {seed}");
    let line = |metric: &str, value: u64| {
        let object = serde_json::json!({
            "bench": "twin-explore", "subject": policy, "case": case, "metric": metric, "unit": "1", "value": value,
        });
        format!("{object}\n")
    };
    line(if is_yielding(policy) { "slices" } else { "grants" }, explored.grants)
        + &line("violations", explored.violation.is_some().into())
}
