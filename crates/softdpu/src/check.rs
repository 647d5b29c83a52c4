//! `softdpu check`: what is wrong with a site file, or what it would run.

use std::path::Path;
use std::process::ExitCode;

use softdpu_control::config::{self, Severity};

/// Checks `site` and says so on standard output (the summary, or JSON) or standard error (diagnostics).
pub fn check(site: &Path, json: bool) -> ExitCode {
    let loaded = config::load(site, Severity::Warning);
    let ok = loaded.site.is_some();
    if json {
        println!(
            "{}",
            serde_json::json!({
                "ok": ok,
                "file": loaded.report.file,
                "diagnostics": loaded.report.diagnostics,
                "site": loaded.site,
            })
        );
    } else {
        eprint!("{}", loaded.report);
        if let Some(site) = &loaded.site {
            print!("{}", config::summary(site));
        }
    }
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
