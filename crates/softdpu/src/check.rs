//! `softdpu check`: what is wrong with a site file, or what it would run.

use std::path::Path;
use std::process::ExitCode;

use softdpu_site::{self as config, Severity};
use softdpu_supervisor as supervisor;

/// Checks `site` and says so on standard output (the summary, or JSON) or standard error (diagnostics).
pub fn check(site: &Path, json: bool) -> ExitCode {
    let loaded = config::load(site, Severity::Warning);
    let ok = loaded.site.is_some();
    let kept = loaded.site.clone().and_then(|site| supervisor::check_kept(site).err()).map(|error| error.to_string());
    let text = if json {
        let found = serde_json::json!({
            "ok": ok,
            "file": loaded.report.file,
            "diagnostics": loaded.report.diagnostics,
            "kept": kept,
            "site": loaded.site,
        });
        format!("{found}\n")
    } else {
        crate::output::print_error(format_args!("{}", loaded.report));
        if let Some(kept) = kept {
            crate::output::error_line!("warning: `softdpu run` refuses it on this machine: {kept}\n");
        }
        loaded.site.as_ref().map(config::summary).unwrap_or_default()
    };
    if let Err(error) = crate::output::print(&text) {
        crate::output::error_line!("softdpu: {error}");
        return ExitCode::FAILURE;
    }
    if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
