//! A copy of a file of loaded entries without some of them: what `network.unload` puts in its place.

use std::collections::HashSet;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::net::IpAddr;

use softdpu_api::Unload;
use softdpu_site::{LONGEST_LINE, LoadLine, load_line};

/// Writes `from` without the entries of `unload` to `to`.
///
/// # Errors
/// Besides those of reading and writing: an entry that is not there.
pub(super) fn filter(from: impl Read, mut to: impl Write, unload: &Unload) -> io::Result<()> {
    let mut from = BufReader::with_capacity(1 << 18, from);
    let mut to = BufWriter::with_capacity(1 << 18, &mut to);
    let mut addresses: HashSet<IpAddr> = unload.addresses.iter().copied().collect();
    let mut prefixes: HashSet<(IpAddr, u8)> =
        unload.prefixes.iter().map(|prefix| (prefix.network(), prefix.prefix_len())).collect();
    let mut bytes = Vec::with_capacity(LONGEST_LINE);
    while {
        bytes.clear();
        from.read_until(b'\n', &mut bytes)? > 0
    } {
        // What it is made from was read before: nothing in it is wrong.
        let entry = std::str::from_utf8(&bytes).ok().and_then(|line| load_line(line).ok()).flatten();
        let is_unloaded = match entry {
            Some(LoadLine::Endpoint { network, address, .. }) => {
                network == unload.network && addresses.remove(&address)
            }
            Some(LoadLine::Route { network, address, length, .. }) => {
                network == unload.network && prefixes.remove(&(address, length))
            }
            None => false,
        };
        if !is_unloaded {
            to.write_all(&bytes)?;
        }
    }
    to.flush()?;
    let address = addresses.iter().min().map(ToString::to_string);
    let prefix = prefixes.iter().min().map(|(address, length)| format!("{address}/{length}"));
    match address.or(prefix) {
        Some(entry) => {
            let message = format!("{entry} is not loaded in network '{}'; nothing was changed", unload.network);
            Err(io::Error::new(io::ErrorKind::NotFound, message))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# ours\nendpoint,a,10.0.0.3,,192.0.2.2\nendpoint,b,10.0.0.3,,192.0.2.2\n\n\
                        route,a,172.16.0.0/12,192.0.2.3\nroute,a,172.16.0.0/13,192.0.2.3";

    fn unload(network: &str, addresses: &[&str], prefixes: &[&str]) -> io::Result<String> {
        let unload = Unload {
            network: network.into(),
            addresses: addresses.iter().map(|address| address.parse().unwrap()).collect(),
            prefixes: prefixes.iter().map(|prefix| prefix.parse().unwrap()).collect(),
        };
        let mut left = Vec::new();
        filter(FILE.as_bytes(), &mut left, &unload).map(|()| String::from_utf8(left).unwrap())
    }

    #[test]
    fn what_is_named_goes_and_everything_else_stays_as_it_is() {
        let left = unload("a", &["10.0.0.3"], &["172.16.0.0/12"]).unwrap();
        assert_eq!(left, "# ours\nendpoint,b,10.0.0.3,,192.0.2.2\n\nroute,a,172.16.0.0/13,192.0.2.3");
        assert_eq!(unload("b", &[], &[]).unwrap(), FILE);
    }

    #[test]
    fn an_entry_that_is_not_there_is_an_error() {
        let error = unload("a", &["10.0.0.3", "10.0.0.4"], &[]).unwrap_err();
        assert_eq!(error.to_string(), "10.0.0.4 is not loaded in network 'a'; nothing was changed");
        assert!(unload("b", &[], &["172.16.0.0/12"]).unwrap_err().to_string().starts_with("172.16.0.0/12 is not"));
    }
}
