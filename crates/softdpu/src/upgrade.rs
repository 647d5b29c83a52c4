//! `softdpu upgrade`.

use std::time::Duration;

use softdpu_api::{Query, SupervisorUpgradeResult, Upgrade, UpgradePart, UpgradeResult};

use crate::arguments::{Connection, UpgradeOptions};
use crate::daemon::{absolute, connect, json_line};
use crate::output::print;

/// The new data plane opens volumes and loads entries before it answers.
const LEAST_PATIENCE: Duration = Duration::from_secs(120);

/// Asks the daemon for an upgrade, and prints how it went.
pub fn execute(connection: &Connection, options: &UpgradeOptions) -> Result<(), String> {
    let program = match &options.binary {
        Some(path) => absolute(path)?,
        None => std::env::current_exe().map_err(|error| format!("this program cannot be found: {error}"))?,
    };
    let only = options.only.as_deref().map(|only| match only {
        "supervisor" => UpgradePart::Supervisor,
        _ => UpgradePart::DataPlane,
    });
    let upgrade = Upgrade { program, force: options.force, only };
    let mut connection = connection.clone();
    if connection.timeout.0 < LEAST_PATIENCE {
        connection.timeout = softdpu_site::Span(LEAST_PATIENCE);
    }
    let result: UpgradeResult =
        connect(&connection)?.call(Query::Upgrade(upgrade)).map_err(|error| error.to_string())?;
    print(&if options.json { json_line(&result) } else { text(&result, only) })
}

fn text(result: &UpgradeResult, only: Option<UpgradePart>) -> String {
    let ms = |us: u64| us as f64 / 1e3;
    let mut text = String::new();
    if let Some(SupervisorUpgradeResult { from, to, prepared_us, switched_us }) = &result.supervisor {
        let (prepared, switched) = (ms(*prepared_us), ms(*switched_us));
        text += &format!(
            "the supervisor was softdpu {from} and is {to}: prepared in {prepared:.1} ms, silent for {switched:.1} ms while devices \
             were served\n"
        );
    }
    if only == Some(UpgradePart::Supervisor) {
        return text;
    }
    let UpgradeResult { from, to, prepared_us, switched_us, abandoned, .. } = result;
    let (prepared, switched) = (ms(*prepared_us), ms(*switched_us));
    text += &format!(
        "the data plane was softdpu {from} and is {to}: prepared in {prepared:.1} ms while devices were served, switched in \
         {switched:.1} ms\n"
    );
    if *abandoned > 0 {
        text += &format!("{abandoned} requests that back ends had not finished in time are executed again\n");
    }
    text
}
