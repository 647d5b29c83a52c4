//! What a guest's job says on its serial console: `SOFTDPU step=NAME result=ok key=value ...`.

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::Failure;

/// How a report's line starts.
const PREFIX: &str = "SOFTDPU ";

/// One step of a guest's job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The step's name.
    pub step: String,
    /// Whether it went well.
    pub ok: bool,
    /// Everything else it said.
    pub fields: BTreeMap<String, String>,
}

impl Report {
    /// The report in a console line, if it is one.
    pub fn parse(line: &str) -> Option<Report> {
        let start = line.find(PREFIX)?;
        let mut fields: BTreeMap<String, String> = line[start + PREFIX.len()..]
            .split_whitespace()
            .filter_map(|word| word.split_once('='))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        let step = fields.remove("step")?;
        let ok = fields.remove("result")? == "ok";
        Some(Report { step, ok, fields })
    }

    /// The field called `key`, as a value of the type that is wanted.
    pub fn get<T: FromStr>(&self, key: &str) -> Result<T, Failure> {
        let text = self.fields.get(key).ok_or_else(|| self.complaint(&format!("has no field `{key}`")))?;
        text.parse().map_err(|_| self.complaint(&format!("has an unusable `{key}={text}`")))
    }

    fn complaint(&self, what: &str) -> Failure {
        Failure::new(format!("the guest's report of step `{}` {what}; it says {:?}", self.step, self.fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_a_step_a_result_and_fields() {
        let report = Report::parse("SOFTDPU step=write result=ok ms=120 sum=abc ").unwrap();
        assert_eq!((report.step.as_str(), report.ok), ("write", true));
        assert_eq!(report.get::<u64>("ms").unwrap(), 120);
        assert!(report.get::<u64>("sum").unwrap_err().to_string().contains("sum=abc"));
    }

    #[test]
    fn anything_but_ok_is_a_failure() {
        assert!(!Report::parse("SOFTDPU step=write result=failed code=1").unwrap().ok);
    }

    #[test]
    fn a_report_is_found_behind_a_kernel_message_without_a_line_end() {
        assert!(Report::parse("[    1.2] random: crng initSOFTDPU step=boot result=ok").unwrap().ok);
    }

    #[test]
    fn other_lines_are_no_reports() {
        assert_eq!(Report::parse("[    1.2] virtio_blk virtio1: [vda] 2048 512-byte logical blocks"), None);
        assert_eq!(Report::parse("SOFTDPU result=ok"), None);
    }
}
