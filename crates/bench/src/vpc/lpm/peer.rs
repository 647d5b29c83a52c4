//! DPDK's `dpdk-test-fib` with the same routes and addresses, where it is installed (Debian: `dpdk-dev`).

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use fastrand::Rng;

use super::super::Peer;
use super::routes::{self, Mix, Skew};
use super::{KEYS, MILLION, Shape};
use crate::process::{Server, in_path};
use crate::scratch::Folder;

const PROGRAM: &str = "dpdk-test-fib";
/// It takes seconds for the Internet's table, and most of a minute for one with many long prefixes.
const LIMIT: Duration = Duration::from_secs(120);

/// What it finds for the large IPv4 tables of this topic; for the IPv6 one it takes gigabytes. Each of its figures is
/// cycles of the time-stamp counter.
pub(in super::super) fn peers(cpu: usize) -> Result<Vec<Peer>, String> {
    let program = in_path(PROGRAM).ok_or_else(|| format!("{PROGRAM} is not installed"))?;
    [Mix::Internet, Mix::Vpc].into_iter().map(|mix| measure(&program, mix, cpu)).collect()
}

fn measure(program: &Path, mix: Mix, cpu: usize) -> Result<Peer, String> {
    let folder = Folder::new().map_err(|error| format!("a folder for temporary files: {error}"))?;
    let mut random = Rng::with_seed(1);
    let routes = Shape { mix, tables: 1, routes: MILLION }.routes(&mut random);
    let (mut list, mut asked) = (String::new(), String::new());
    for (at, (_, prefix)) in routes.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = writeln!(list, "{prefix} {}", at % 4096);
    }
    for _ in 0..KEYS {
        let (_, prefix) = routes[Skew::Uniform.pick(routes.len(), &mut random)];
        let _ = writeln!(asked, "{}", routes::inside(prefix, &mut random));
    }
    for (name, text) in [("routes", &list), ("addresses", &asked)] {
        std::fs::write(folder.path().join(name), text).map_err(|error| format!("{name}: {error}"))?;
    }
    let mut arguments: Vec<String> =
        ["--no-huge", "--no-pci", "--no-shconf", "--no-telemetry", "-m", "2048"].map(str::to_owned).into();
    arguments.extend(["-l".to_owned(), cpu.to_string(), "--".to_owned()]);
    arguments.extend(["-f", "routes", "-t", "addresses", "-g", "131072"].map(str::to_owned));
    let mut server =
        Server::start(PROGRAM, program, &arguments, folder.path(), Some(cpu)).map_err(|e| e.to_string())?;
    let log = folder.path().join(format!("{PROGRAM}.log"));
    let figures = server.within(LIMIT, "its figures", || figures(&std::fs::read_to_string(&log).ok()?));
    let figures = figures.map_err(|error| error.to_string())?;
    Ok(Peer { subject: PROGRAM.to_owned(), case: format!("lpm: 1 M {}, uniform", mix.name()), figures })
}

/// Cycles to look up and to add, once it has printed them: it adds the routes in tenths and prints the mean of each.
fn figures(log: &str) -> Option<Vec<(&'static str, &'static str, f64)>> {
    let of = |what: &str| -> Vec<f64> {
        let printed = log.lines().filter_map(|line| line.trim().strip_prefix(what)?.trim().parse().ok());
        printed.collect()
    };
    let (lookup, add) = (of("AVG FIB lookup"), of("AVG FIB add"));
    let most = add.iter().copied().fold(0.0, f64::max);
    // The line is whole when another has begun.
    let is_told = log.contains("AVG FIB delete");
    let mean = add.iter().sum::<f64>() / add.len().max(1) as f64;
    Some(vec![
        ("cycles", "1", *lookup.first().filter(|_| is_told)?),
        ("add, mean", "cycles", mean),
        ("add, slowest tenth", "cycles", most),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_figures_are_read_once_they_are_whole() {
        let log = "Lookup tuples: 2\nAVG FIB add 300\nAVG FIB add 100\nAVG FIB lookup 83.7\nAVG FIB delete 5";
        let expected =
            vec![("cycles", "1", 83.7), ("add, mean", "cycles", 200.0), ("add, slowest tenth", "cycles", 300.0)];
        assert_eq!(figures(log), Some(expected));
        assert_eq!(figures("AVG FIB add 300\nAVG FIB lookup 8"), None);
    }
}
