//! What the encryption of volumes does on one core: bytes a second, beside OpenSSL's AES-XTS in the same rounds.

use std::io;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use softdpu_accel::Xts;
use softdpu_plot::Table;

use crate::samples::{Samples, Spread};
use crate::side_by_side::{Figure, on_cpu};

/// What to measure, how often and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// A part of the cases' names; empty: all.
    pub case: String,
    /// Rounds, in each of which every case is measured once.
    pub rounds: usize,
    /// Length of one measurement.
    pub length: Duration,
    /// The core.
    pub cpu: usize,
    /// `openssl speed`, where it is installed.
    pub peers: bool,
}

/// Bytes a second of one subject in one case.
#[derive(Clone, Debug)]
pub struct CipherMeasurement {
    /// `softdpu` or `openssl`.
    pub subject: &'static str,
    /// The operation and the bytes it has at a time.
    pub case: String,
    /// One for each round.
    pub rates: Samples,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default)]
pub struct AccelReport {
    /// In the order of the cases; a peer is behind what it is compared with.
    pub measurements: Vec<CipherMeasurement>,
    /// What there is no peer for, and why.
    pub left_out: Option<String>,
}

/// What is measured.
enum Work {
    Ours { key: Box<Xts>, operation: Operation, data: Vec<u8> },
    Openssl { cipher: &'static str, bytes: usize },
}

#[derive(Clone, Copy)]
enum Operation {
    Encrypt,
    Decrypt,
}

struct Case {
    name: String,
    work: Work,
}

fn cases() -> Result<Vec<Case>, String> {
    let mut cases = Vec::new();
    for (cipher, bytes) in [("aes-256-xts", 64u8), ("aes-128-xts", 32)] {
        for sector in [512, 4096] {
            let key = Xts::new(&(1..=bytes).collect::<Vec<u8>>(), sector).map_err(|error| error.to_string())?;
            for (name, operation) in [("encrypt", Operation::Encrypt), ("decrypt", Operation::Decrypt)] {
                let name = format!("{name} {cipher} {sector}");
                let work = Work::Ours { key: Box::new(key.clone()), operation, data: vec![0x5a; 16 << 10] };
                cases.push(Case { name: name.clone(), work });
                if matches!(operation, Operation::Encrypt) {
                    cases.push(Case { name, work: Work::Openssl { cipher, bytes: sector as usize } });
                }
            }
        }
    }
    Ok(cases)
}

impl Work {
    fn subject(&self) -> &'static str {
        match self {
            Work::Ours { .. } => "softdpu",
            Work::Openssl { .. } => "openssl",
        }
    }

    /// Bytes a second.
    fn measure(&mut self, length: Duration) -> Result<f64, String> {
        match self {
            Work::Ours { key, operation, data } => {
                let (start, mut bytes) = (Instant::now(), 0u64);
                while start.elapsed() < length {
                    for _ in 0..8 {
                        match operation {
                            Operation::Encrypt => key.encrypt(0, data),
                            Operation::Decrypt => key.decrypt(0, data),
                        }
                        bytes += data.len() as u64;
                    }
                }
                Ok(bytes as f64 / start.elapsed().as_secs_f64())
            }
            Work::Openssl { cipher, bytes } => {
                // It takes whole seconds.
                let seconds = length.as_secs().max(1).to_string();
                let output = Command::new("openssl")
                    .args([
                        "speed",
                        "-mr",
                        "-elapsed",
                        "-seconds",
                        &seconds,
                        "-bytes",
                        &bytes.to_string(),
                        "-evp",
                        cipher,
                    ])
                    .stderr(Stdio::null())
                    .output()
                    .map_err(|error| format!("openssl: {error}"))?;
                rate(&String::from_utf8_lossy(&output.stdout)).ok_or_else(|| "openssl speed printed no rate".to_owned())
            }
        }
    }
}

/// Bytes a second out of what `openssl speed -mr` prints: `+F:22:AES-256-XTS:1234.5`.
fn rate(output: &str) -> Option<f64> {
    output.lines().find_map(|line| line.strip_prefix("+F:")?.rsplit(':').next()?.trim().parse().ok())
}

/// Measures what `plan` says; `progress` gets the name of each case before it runs for the first time.
///
/// # Errors
/// A sentence for the user: no such case, a CPU that can't be used.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str) + Send) -> Result<AccelReport, String> {
    let mut cases: Vec<Case> = cases()?.into_iter().filter(|case| case.name.contains(&plan.case)).collect();
    if cases.is_empty() {
        return Err(format!("no case has \"{}\" in its name", plan.case));
    }
    on_cpu(
        plan.cpu,
        |wrong| wrong,
        || {
            let mut report = AccelReport::default();
            let peer = Command::new("openssl").arg("version").stdout(Stdio::null()).stderr(Stdio::null()).status();
            if !plan.peers {
                report.left_out = Some("peers are left out".to_owned());
            } else if !peer.is_ok_and(|status| status.success()) {
                report.left_out = Some("openssl is not installed on this machine".to_owned());
            }
            if report.left_out.is_some() {
                cases.retain(|case| matches!(case.work, Work::Ours { .. }));
            }
            for case in &cases {
                report.measurements.push(CipherMeasurement {
                    subject: case.work.subject(),
                    case: case.name.clone(),
                    rates: Samples::default(),
                });
            }
            for round in 0..plan.rounds.max(1) {
                for (case, measurement) in cases.iter_mut().zip(&mut report.measurements) {
                    if round == 0 {
                        progress(&format!("{}: {}", case.name, case.work.subject()));
                    }
                    measurement.rates.push(case.work.measure(plan.length)?);
                }
            }
            Ok(report)
        },
    )
}

impl AccelReport {
    /// What the peer did in the same case, as a ratio of medians: above 1, softdpu is faster.
    fn ratio(&self, ours: &CipherMeasurement) -> Option<f64> {
        let peer = self.measurements.iter().find(|other| other.case == ours.case && other.subject != "softdpu")?;
        (ours.subject == "softdpu").then(|| ours.rates.median() / peer.rates.median().max(1.0))
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut table = Table::new(["case", "subject", "GB/s>", "min - max>", "ratio>"]);
        for measurement in &self.measurements {
            let Spread { median, least, most } = measurement.rates.spread();
            table.row(vec![
                measurement.case.clone(),
                measurement.subject.to_owned(),
                format!("{:.2}", median / 1e9),
                format!("{:.2} - {:.2}", least / 1e9, most / 1e9),
                self.ratio(measurement).map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            ]);
        }
        if let Some(why) = &self.left_out {
            table.line(format!("nothing to compare with: {why}"));
        }
        table.to_string()
    }

    /// For programs: a JSON object a line.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        for measurement in &self.measurements {
            let Spread { median, least, most } = measurement.rates.spread();
            let mut line = |metric, unit, value| {
                let (subject, case) = (measurement.subject, &*measurement.case);
                Figure { bench: "accel", subject, case, metric, unit, value }.write(to)
            };
            for (metric, value) in [("rate", median), ("rate-min", least), ("rate-max", most)] {
                line(metric, "B/s", value)?;
            }
            if let Some(ratio) = self.ratio(measurement) {
                line("rate-ratio", "1", ratio)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_is_measured_and_named() {
        let plan = Plan { case: String::new(), rounds: 2, length: Duration::from_millis(1), cpu: 0, peers: false };
        let mut named = Vec::new();
        let report = run(&plan, |name| named.push(name.to_owned())).unwrap();
        assert_eq!((report.measurements.len(), named.len()), (8, 8));
        assert!(report.measurements.iter().all(|found| found.rates.len() == 2 && found.rates.spread().least > 0.0));
        assert!(report.table().contains("encrypt aes-256-xts 512") && report.table().contains("left out"));
        let mut json = Vec::new();
        report.write_json(&mut json).unwrap();
        assert_eq!(String::from_utf8(json).unwrap().lines().count(), 8 * 3);
        assert!(run(&Plan { case: "no such case".into(), ..plan }, |_| ()).is_err());
    }

    #[test]
    fn what_openssl_prints_is_understood() {
        assert_eq!(rate("+R:1:AES-256-XTS:1.0\n+F:22:AES-256-XTS:1333112832.00\n"), Some(1_333_112_832.0));
        assert_eq!(rate("speed: unknown"), None);
    }
}
