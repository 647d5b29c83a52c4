//! QEMU's monitor protocol: commands and their answers, one object a line.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::{Context, Failure, wait_until};

/// QEMU answers at once, but while it stops a guest.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection to a QEMU's monitor.
pub struct Qmp {
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// The argument of QEMU's `-qmp` for a monitor at the socket `path`.
    pub fn argument(path: &str) -> String {
        format!("unix:{path},server=on,wait=off")
    }

    /// Connects as soon as the monitor is there.
    pub fn connect(path: &Path) -> Result<Qmp, Failure> {
        let what = format!("QEMU's monitor at {}", path.display());
        let stream = wait_until(&what, PATIENCE, || Ok(UnixStream::connect(path).ok()))?;
        stream.set_read_timeout(Some(PATIENCE)).context("a time-out")?;
        let mut qmp = Qmp { stream: BufReader::new(stream) };
        qmp.line()?;
        qmp.execute("qmp_capabilities", json!({}))?;
        Ok(qmp)
    }

    /// Has QEMU carry out a command; what it returns.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, Failure> {
        let text = json!({ "execute": command, "arguments": arguments }).to_string() + "\n";
        self.stream.get_mut().write_all(text.as_bytes()).context(format_args!("asking QEMU to {command}"))?;
        loop {
            let mut answer = self.line().context(format_args!("QEMU's answer to {command}"))?;
            if let Some(error) = answer.get("error") {
                return Err(Failure::new(format!("QEMU refuses {command}: {error}")));
            }
            // Others are events.
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
        }
    }

    fn line(&mut self) -> Result<Value, Failure> {
        let mut line = String::new();
        self.stream.read_line(&mut line).context("QEMU's monitor")?;
        serde_json::from_str(&line).context(format_args!("a line of QEMU's monitor, `{line}`"))
    }

    /// The state of the migration that this QEMU is the source of, and all that it tells of it.
    pub fn migration(&mut self) -> Result<(String, Value), Failure> {
        let told = self.execute("query-migrate", json!({}))?;
        Ok((told["status"].as_str().unwrap_or("none").to_owned(), told))
    }

    /// Begins to move its guest to the QEMU that waits at the socket `path`.
    pub fn migrate(&mut self, path: &str) -> Result<(), Failure> {
        self.execute("migrate", json!({ "uri": format!("unix:{path}") })).map(drop)
    }

    /// Waits until the migration is in one of `states`, and calls `meanwhile` again and again; what QEMU tells of it.
    pub fn wait_for_migration(
        &mut self,
        states: &[&str],
        mut meanwhile: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Value, Failure> {
        wait_until(&format!("the migration to be {}", states.join(" or ")), PATIENCE * 2, || {
            meanwhile()?;
            let (state, told) = self.migration()?;
            if states.contains(&state.as_str()) {
                return Ok(Some(told));
            }
            let is_over = ["completed", "failed", "cancelled"].contains(&state.as_str());
            if is_over { Err(Failure::new(format!("the migration is {state}: {told}"))) } else { Ok(None) }
        })
    }
}
