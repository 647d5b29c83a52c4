//! Lines of a file for `softdpu network load` (docs/networks.md, "By file").
//!
//! ```text
//!   endpoint,NETWORK,ADDRESS,MAC,HOST      MAC may be empty: the one that is derived from network and address
//!   route,NETWORK,PREFIX,HOST
//!   route,NETWORK,PREFIX,ecmp:GROUP
//! ```

use std::net::IpAddr;

use super::MacAddress;

/// The longest line: twice what the longest names and addresses take.
pub const LONGEST_LINE: usize = 512;
/// Before the name of an ECMP group.
const ECMP: &str = "ecmp:";

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadLine<'a> {
    /// A guest on another host.
    Endpoint {
        /// Its network.
        network: &'a str,
        /// Its address.
        address: IpAddr,
        /// Its MAC address.
        mac: MacAddress,
        /// The tunnel end point of its host.
        host: IpAddr,
    },
    /// A prefix behind another host, or behind an ECMP group.
    Route {
        /// Its network.
        network: &'a str,
        /// The first address of the prefix.
        address: IpAddr,
        /// Its length.
        length: u8,
        /// Where it leads.
        via: LoadVia<'a>,
    },
}

/// Where a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadVia<'a> {
    /// To the tunnel end point of a host.
    Host(IpAddr),
    /// To an ECMP group of the network.
    Ecmp(&'a str),
}

/// The entry on a line; None for an empty line and for a comment.
///
/// # Errors
/// What is wrong with it, for people.
pub fn load_line(line: &str) -> Result<Option<LoadLine<'_>>, String> {
    // Some programs begin a file with a byte-order mark.
    let line = line.strip_prefix('\u{feff}').unwrap_or(line).trim_ascii();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let mut fields = line.split(',').map(str::trim_ascii);
    let kind = fields.next().unwrap_or_default();
    let mut field = |what: &str| fields.next().ok_or_else(|| format!("{what} is missing"));
    let entry = match kind {
        "endpoint" => {
            let network = field("the network")?;
            let address = field("the address").and_then(address)?;
            let mac = match field("the MAC address, or nothing between two commas,")? {
                "" => MacAddress::derived(network, address),
                text => text.parse().map_err(|error| format!("{text:?} is no MAC address: expected {error}"))?,
            };
            LoadLine::Endpoint { network, address, mac, host: field("the host").and_then(self::address)? }
        }
        "route" => {
            let network = field("the network")?;
            let text = field("the prefix")?;
            let wrong = || format!("{text:?} is no prefix: expected one such as 10.9.0.0/16");
            let (first, length) = text.split_once('/').ok_or_else(wrong)?;
            let (first, length) = (first.parse().map_err(|_| wrong())?, length.parse().map_err(|_| wrong())?);
            let via = match field("the host")? {
                text if text.starts_with(ECMP) => LoadVia::Ecmp(&text[ECMP.len()..]),
                text => LoadVia::Host(address(text)?),
            };
            LoadLine::Route { network, address: first, length, via }
        }
        other => return Err(format!("{other:?} is no kind of entry: expected `endpoint` or `route`")),
    };
    match fields.next() {
        Some(more) => Err(format!("{more:?} is more than an entry of the kind `{kind}` has")),
        None => Ok(Some(entry)),
    }
}

fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is no IPv4 or IPv6 address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(line: &str) -> String {
        load_line(line).unwrap_err()
    }

    #[test]
    fn entries_comments_and_empty_lines_are_read() {
        for nothing in ["", "   ", "# endpoint,a,b"] {
            assert_eq!(load_line(nothing), Ok(None));
        }
        let host = "192.0.2.2".parse().unwrap();
        let endpoint = LoadLine::Endpoint {
            network: "acme",
            address: "10.0.0.3".parse().unwrap(),
            mac: MacAddress([2, 0, 0, 0, 0, 3]),
            host,
        };
        assert_eq!(load_line("endpoint,acme,10.0.0.3,02:00:00:00:00:03,192.0.2.2\r"), Ok(Some(endpoint)));
        let Ok(Some(LoadLine::Endpoint { mac, address, .. })) = load_line(" endpoint, acme, fd00::3, , 192.0.2.2 ")
        else {
            panic!("an endpoint")
        };
        assert_eq!(mac, MacAddress::derived("acme", address));
        let route = |via| LoadLine::Route { network: "acme", address: "10.9.0.0".parse().unwrap(), length: 16, via };
        assert_eq!(load_line("route,acme,10.9.0.0/16,192.0.2.2"), Ok(Some(route(LoadVia::Host(host)))));
        assert_eq!(load_line("route,acme,10.9.0.0/16, ecmp:far"), Ok(Some(route(LoadVia::Ecmp("far")))));
        let marked = load_line("\u{feff}route,acme,10.9.0.0/16,192.0.2.2");
        assert_eq!(marked, Ok(Some(route(LoadVia::Host(host)))), "behind a byte-order mark");
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!(wrong("guest,a"), "\"guest\" is no kind of entry: expected `endpoint` or `route`");
        assert_eq!(wrong("endpoint,a"), "the address is missing");
        assert_eq!(wrong("endpoint,a,10.0.0.300,,192.0.2.2"), "\"10.0.0.300\" is no IPv4 or IPv6 address");
        assert!(wrong("endpoint,a,10.0.0.3,02:00,192.0.2.2").starts_with("\"02:00\" is no MAC address: expected six"));
        assert_eq!(wrong("route,a,10.0.0.0/16,192.0.2.2,x"), "\"x\" is more than an entry of the kind `route` has");
        assert!(wrong("route,a,10.0.0.0,192.0.2.2").contains("is no prefix"));
    }
}
