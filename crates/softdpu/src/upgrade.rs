//! `softdpu upgrade`.

use std::time::Duration;

use softdpu_api::{Query, Upgrade, UpgradeResult};

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
    let upgrade = Upgrade { program, force: options.force };
    let mut connection = connection.clone();
    if connection.timeout.0 < LEAST_PATIENCE {
        connection.timeout = softdpu_site::Span(LEAST_PATIENCE);
    }
    let result: UpgradeResult =
        connect(&connection)?.call(Query::Upgrade(upgrade)).map_err(|error| error.to_string())?;
    print(&if options.json { json_line(&result) } else { text(&result) })
}

fn text(result: &UpgradeResult) -> String {
    let ms = |us: u64| us as f64 / 1e3;
    let UpgradeResult { from, to, prepared_us, switched_us, abandoned } = result;
    let (prepared, switched) = (ms(*prepared_us), ms(*switched_us));
    let mut text = format!(
        "softdpu {from} was replaced by {to}: prepared in {prepared:.1} ms while devices were served, switched in {switched:.1} ms\n"
    );
    if *abandoned > 0 {
        text += &format!("{abandoned} requests that back ends had not finished in time are executed again\n");
    }
    text
}
