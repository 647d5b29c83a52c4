//! DPDK's `dpdk-test` beside look-ups of single addresses: its own benchmark of `rte_hash`, where it is installed
//! (Debian: `dpdk-dev`). Its keys and sizes are its own: 16 bytes are those of an IPv6 address, and of a flow over IPv4
//! with its padding.

use std::time::Duration;

use super::Peer;
use crate::process::{Server, in_path};
use crate::scratch::Folder;

const PROGRAM: &str = "dpdk-test";
/// It begins with this test, and goes on to others, which are not waited for.
const TEST: &str = "hash_perf_autotest";
/// It prints nothing before it has measured ten sizes of keys, with and without their hash and data: one to two
/// minutes.
const LIMIT: Duration = Duration::from_secs(300);
/// Writes lines as they come: into a file it would keep them back until there are 4 KiB, which are two of its tables.
const BY_LINES: (&str, &str) = ("stdbuf", "--output=L");
/// Bytes of the key of the figures that are taken.
const KEY: &str = "16";

/// What it finds, in cycles of the time-stamp counter.
pub(super) fn peers(cpu: usize) -> Result<Vec<Peer>, String> {
    let program = in_path(PROGRAM).ok_or_else(|| format!("{PROGRAM} is not installed"))?;
    let (by_lines, how) = BY_LINES;
    let starter = in_path(by_lines).ok_or_else(|| format!("{by_lines} is not installed"))?;
    let folder = Folder::new().map_err(|error| format!("a folder for temporary files: {error}"))?;
    let mut arguments = vec![how.to_owned(), program.to_string_lossy().into_owned()];
    arguments.extend(["--no-huge", "--no-pci", "--no-shconf", "--no-telemetry", "-m", "1024"].map(str::to_owned));
    arguments.extend(["-l".to_owned(), cpu.to_string(), TEST.to_owned()]);
    let mut server =
        Server::start(PROGRAM, &starter, &arguments, folder.path(), Some(cpu)).map_err(|error| error.to_string())?;
    let log = folder.path().join(format!("{PROGRAM}.log"));
    let found = server.within(LIMIT, "its figures", || figures(&std::fs::read_to_string(&log).ok()?));
    let found = found.map_err(|error| error.to_string())?;
    Ok(vec![Peer {
        subject: PROGRAM.to_owned(),
        case: format!("exact: rte_hash, keys of {KEY} bytes"),
        figures: found,
    }])
}

/// Cycles of its first table, once the next has begun: keys whose hash is computed with the look-up.
fn figures(log: &str) -> Option<Vec<(&'static str, &'static str, f64)>> {
    let (first, _) = log.split_once("With pre-computed hash values")?;
    let row = first.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = row.into_iter().find(|row| row.len() == 5 && row[0] == KEY)?;
    let [add, find, bulk, delete] = [1, 2, 3, 4].map(|at| row[at].parse().ok());
    Some(vec![
        ("cycles, in bulk", "1", bulk?),
        ("cycles, one by one", "1", find?),
        ("add", "cycles", add?),
        ("delete", "cycles", delete?),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_figures_are_read_once_they_are_whole() {
        let table = "Without pre-computed hash values\n\nKeysize  Add  Lookup  Lookup_bulk  Delete\n\
                     8  571  622  361  797\n16  320  417  136  617\n";
        assert_eq!(figures(table), None, "more may come");
        let expected = vec![
            ("cycles, in bulk", "1", 136.0),
            ("cycles, one by one", "1", 417.0),
            ("add", "cycles", 320.0),
            ("delete", "cycles", 617.0),
        ];
        assert_eq!(figures(&format!("{table}\nWith pre-computed hash values\n")), Some(expected));
    }
}
