//! What cores do in a second: the paper's figures, or those measured on a host by `softdpu bench`.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::Metric;

/// A rate by cores: points in ascending order, and lines between them, from no core with no rate. Beyond the last
/// point the last line goes on.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve(Vec<(f64, f64)>);

impl Curve {
    /// Through `points` of cores and the rate that they reach. `None` where there is no point, or cores or rates do not
    /// grow from one to the next.
    pub fn new(points: Vec<(f64, f64)>) -> Option<Curve> {
        let with_origin = [&[(0.0, 0.0)][..], &points].concat();
        let grows = with_origin.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
        let is_finite = points.iter().all(|(cores, rate)| cores.is_finite() && rate.is_finite());
        (!points.is_empty() && grows && is_finite).then_some(Curve(with_origin))
    }

    /// The cores that a rate takes.
    pub fn cores(&self, rate: f64) -> f64 {
        let last = self.0.len() - 2;
        let at = self.0[1..=last].iter().position(|(_, reached)| rate <= *reached).unwrap_or(last);
        let ((from, low), (to, high)) = (self.0[at], self.0[at + 1]);
        from + (rate - low) / (high - low) * (to - from)
    }
}

/// What cores and memory do.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Where they are from, for people.
    pub source: String,
    curves: BTreeMap<Metric, Curve>,
    /// Live connections in a GB.
    live: f64,
}

/// Memory of a data plane for each of its cores, GB: the paper's 1c2g to 16c32g.
const MEMORY_OF_CORE: f64 = 2.0;

/// Where a DPU stops: a BlueField-3 P-Series, ZOC §6.1.2, §6.3. Disks' bandwidth is not stated.
const DPU_LIMITS: [(Metric, f64); 5] = [
    (Metric::Packets, 22e6),
    (Metric::NetworkBits, 400e9),
    (Metric::Connections, 0.2e6),
    (Metric::LiveConnections, 4e6),
    (Metric::Requests, 0.5e6),
];

/// What stands for a metric in the results of `softdpu bench --json`, the first that is there: bench, case, metric.
/// Each is of one data-plane core.
const MEASURED: [(Metric, [&str; 3]); 5] = [
    (Metric::Packets, ["net", "guest-guest 64 split polling", "frames"]),
    (Metric::Packets, ["net", "guest-guest 64 packed polling", "frames"]),
    (Metric::Connections, ["vpc", "flow: new ones through 1000 rules", "new-rate"]),
    (Metric::Requests, ["block", "file randread 4k q1 polling qd32", "iops"]),
    (Metric::Requests, ["block", "null randread 4k q1 polling qd32", "iops"]),
];

/// The size of a flow's entry, in the same results. A connection has two flows.
const FLOW_BYTES: [&str; 3] = ["vpc", "flow: hit, 16 M flows", "bytes for a flow's entry"];

/// Why rates cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RatesError {
    /// A line of results is not JSON.
    Line {
        /// Its number, from 1.
        number: usize,
        /// What is wrong with it.
        why: String,
    },
    /// The results have no rate.
    Empty,
    /// Something is asked for that has no rate.
    Unknown(Metric),
}

impl fmt::Display for RatesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RatesError::Line { number, why } => {
                write!(f, "line {number}: {why}; expected the output of `softdpu bench … --json`")
            }
            RatesError::Empty => {
                let cases: Vec<String> =
                    MEASURED.iter().map(|(_, [bench, case, _])| format!("{bench}, \"{case}\"")).collect();
                write!(f, "no rate that plans use is in it; looked for the cases {}", cases.join("; "))
            }
            RatesError::Unknown(metric) => {
                write!(f, "no rate of {} is known; leave --rates out for the paper's", metric.unit())?;
                let mut commands: Vec<&str> =
                    MEASURED.iter().filter(|(of, _)| of == metric).map(|(_, [bench, ..])| *bench).collect();
                commands.dedup();
                if let [bench] = commands[..] {
                    write!(f, ", or add the output of `softdpu bench {bench} --json` to the file")?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for RatesError {}

impl Rates {
    /// ZOC's, §6.1.2 and §6.3, on an Intel Ice Lake: 6 M packets/s, 38 Gbit/s or 4 GB/s with four cores; 0.55 M IOPS
    /// with four, 1.06 M with eight; 0.72 M connections/s with sixteen; 16 M live connections in 32 GB.
    pub fn paper() -> Rates {
        let curves = [
            (Metric::Packets, vec![(4.0, 6e6)]),
            (Metric::NetworkBits, vec![(4.0, 38e9)]),
            (Metric::Connections, vec![(16.0, 0.72e6)]),
            (Metric::Requests, vec![(4.0, 0.55e6), (8.0, 1.06e6)]),
            (Metric::DiskBytes, vec![(4.0, 4e9)]),
        ];
        let curves = curves.into_iter().filter_map(|(metric, points)| Some((metric, Curve::new(points)?))).collect();
        Rates { source: "ZOC §6, Intel Ice Lake".to_owned(), curves, live: 16e6 / 32.0 }
    }

    /// Those of a host: the lines that `softdpu bench --json` prints. `name` says where they are from. A core's rate is
    /// taken to grow with cores.
    ///
    /// # Errors
    /// A line is not JSON, or no line has a rate that plans use.
    pub fn measured(lines: &str, name: &str) -> Result<Rates, RatesError> {
        let mut found: BTreeMap<[String; 3], Vec<f64>> = BTreeMap::new();
        for (number, line) in (1..).zip(lines.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let value: Value =
                serde_json::from_str(line).map_err(|error| RatesError::Line { number, why: error.to_string() })?;
            let text = |key: &str| value.get(key).and_then(Value::as_str);
            if let (Some(bench), Some("softdpu"), Some(case), Some(metric), Some(amount)) = (
                text("bench"),
                text("subject"),
                text("case"),
                text("metric"),
                value.get("value").and_then(Value::as_f64),
            ) {
                found.entry([bench, case, metric].map(str::to_owned)).or_default().push(amount);
            }
        }
        let median = |of: &[&str; 3]| {
            let mut values = found.get(&of.map(str::to_owned))?.clone();
            values.sort_by(f64::total_cmp);
            Some(values[values.len() / 2])
        };
        let mut curves = BTreeMap::new();
        for (metric, of) in MEASURED {
            if let Some(curve) = median(&of).and_then(|rate| Curve::new(vec![(1.0, rate)])) {
                curves.entry(metric).or_insert(curve);
            }
        }
        if curves.is_empty() {
            return Err(RatesError::Empty);
        }
        let live =
            median(&FLOW_BYTES).filter(|bytes| *bytes > 0.0).map_or(Rates::paper().live, |bytes| 1e9 / (2.0 * bytes));
        Ok(Rates { source: name.to_owned(), curves, live })
    }

    /// The cores that so much of a metric takes; 0 for what takes memory alone.
    ///
    /// # Errors
    /// Its rate is not known.
    pub fn cores(&self, metric: Metric, amount: f64) -> Result<f64, RatesError> {
        if metric == Metric::LiveConnections || amount <= 0.0 {
            return Ok(0.0);
        }
        self.curves.get(&metric).map(|curve| curve.cores(amount)).ok_or(RatesError::Unknown(metric))
    }

    /// The memory of a data plane of so many cores with so many live connections, GB.
    pub fn memory(&self, cores: f64, live: f64) -> f64 {
        (cores * MEMORY_OF_CORE).max(live / self.live)
    }

    /// Where a DPU stops, if that is stated.
    pub fn dpu_limit(&self, metric: Metric) -> Option<f64> {
        DPU_LIMITS.iter().find(|(of, _)| *of == metric).map(|(_, limit)| *limit)
    }
}
