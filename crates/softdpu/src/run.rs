//! Starting the two processes.

use std::path::{Path, PathBuf};

use softdpu_dataplane as dataplane;
use softdpu_site::{self as config, Severity};
use softdpu_supervisor::{self as supervisor, Resume, RunOptions};

use crate::arguments::SupervisorResume;
use crate::logging;

/// `softdpu run`: the supervisor, which starts the data plane.
pub fn supervisor(site: &Path, record: Option<PathBuf>) -> Result<(), String> {
    let record = record.map(std::path::absolute).transpose().map_err(|error| format!("--record: {error}"))?;
    if let Some(site) = config::load(site, Severity::Error).site {
        logging::start(&site.node.log);
    }
    supervisor::run(site, RunOptions { record, ..RunOptions::default() }).map_err(|error| error.to_string())
}

/// `softdpu supervisor-resume`: this program follows another in a supervisor.
pub fn resume(left: SupervisorResume) -> Result<(), String> {
    let SupervisorResume { state, before, failed } = left;
    supervisor::resume(&Resume { state, before, failed }, logging::start).map_err(|error| error.to_string())
}

/// `softdpu data-plane`: the data plane, on the link that the supervisor passes as standard input.
pub fn data_plane() -> Result<(), String> {
    // The supervisor takes its signals in another way.
    softdpu_sys::signals::unblock_all();
    let link = rustix::io::dup(rustix::stdio::stdin()).map_err(|error| format!("standard input: {error}"))?;
    dataplane::run(link, logging::start)
        .map_err(|error| format!("the data plane ended: {error} (it is started by `softdpu run`, not by hand)"))
}
