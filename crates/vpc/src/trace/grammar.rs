//! From text to filter: recursive descent, one word ahead.
//!
//! ```text
//! any   = all { "or" all }
//! all   = one { "and" one }
//! one   = "not" one | "(" any ")" | "outer" one | primitive
//! ```

use std::net::IpAddr;

use thiserror::Error;

use super::filter::{Protocol, Side, Term};
use crate::id::Vni;
use crate::spec::Prefix;

/// How filters are written, for people.
pub const HELP: &str = "\
Filters are written as for tcpdump: primitives, joined by `and`, `or`, `not` (or &&, ||, !) and brackets. `not` binds
closest, then `and`, then `or`.

  host ADDRESS           source or destination; also of an ARP message
  net PREFIX             the same, such as net 10.0.0.0/16
  port N, portrange A-B  TCP or UDP; tcp port N, udp port N for one of them
  src ..., dst ...       before host, net, port and portrange: that side only
  ether host MAC         Ethernet address; ether src MAC, ether dst MAC
  arp, ip, ip6           what the frame carries
  icmp, icmp6, tcp, udp  what the packet carries; proto N for others
  tcp-syn, tcp-ack, tcp-fin, tcp-rst, tcp-push
                         TCP segments with that flag
  fragment               fragments of IP packets
  broadcast, multicast   by the destination MAC address
  vlan, vlan ID          frames with a VLAN tag
  less N, greater N      frames of at most, or at least, so many bytes
  vni N                  frames of the network with that VNI
  outer PRIMITIVE        at the underlay: of the tunnel's headers, such as outer host 192.0.2.2

At the underlay, a filter looks at the frame inside the tunnel, as it does at every other port.";

/// Most brackets and `not`s inside each other.
const MOST_NESTED: usize = 64;

/// A text that is no filter.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("column {column}: {}, expected {expected}", found.as_ref().map_or("the filter ends".into(), |found| format!("found {found:?}")))]
pub struct FilterError {
    /// Where, in characters from 1.
    pub column: usize,
    /// What is there; None: the end.
    pub found: Option<String>,
    /// What could be there.
    pub expected: String,
}

/// A word and the column where it begins.
type Word<'a> = (usize, &'a str);

struct Words<'a> {
    words: Vec<Word<'a>>,
    at: usize,
    /// Column behind the last.
    end: usize,
    depth: usize,
}

pub(super) fn parse(text: &str) -> Result<Term, FilterError> {
    let mut words = Words { words: split(text), at: 0, end: text.chars().count() + 1, depth: 0 };
    let term = any(&mut words)?;
    match words.peek() {
        None => Ok(term),
        Some(_) => Err(words.error("and, or, or the end")),
    }
}

/// Words are parted by blanks; a bracket is a word of its own, and so is an exclamation mark.
fn split(text: &str) -> Vec<Word<'_>> {
    let mut words = Vec::new();
    let mut start = None;
    for (column, (at, letter)) in text.char_indices().enumerate() {
        let bracket = matches!(letter, '(' | ')' | '!');
        if (bracket || letter.is_whitespace())
            && let Some((column, start)) = start.take()
        {
            words.push((column, &text[start..at]));
        }
        if bracket {
            words.push((column + 1, &text[at..at + 1]));
        } else if !letter.is_whitespace() && start.is_none() {
            start = Some((column + 1, at));
        }
    }
    if let Some((column, start)) = start {
        words.push((column, &text[start..]));
    }
    words
}

impl<'a> Words<'a> {
    fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).map(|(_, word)| *word)
    }

    fn take(&mut self, wanted: &str) -> bool {
        self.take_any(&[wanted])
    }

    fn take_any(&mut self, wanted: &[&str]) -> bool {
        let is = self.peek().is_some_and(|word| wanted.contains(&word));
        self.at += usize::from(is);
        is
    }

    /// At the next word.
    fn error(&self, expected: &str) -> FilterError {
        let word = self.words.get(self.at);
        FilterError {
            column: word.map_or(self.end, |(column, _)| *column),
            found: word.map(|(_, word)| (*word).to_owned()),
            expected: expected.to_owned(),
        }
    }

    /// The next word as a value.
    fn value<T>(&mut self, expected: &str, read: impl FnOnce(&str) -> Option<T>) -> Result<T, FilterError> {
        let value = self.peek().and_then(read).ok_or_else(|| self.error(expected))?;
        self.at += 1;
        Ok(value)
    }
}

fn any(words: &mut Words<'_>) -> Result<Term, FilterError> {
    joined(words, &["or", "||"], all, Term::Any)
}

fn all(words: &mut Words<'_>) -> Result<Term, FilterError> {
    joined(words, &["and", "&&"], one, Term::All)
}

fn joined(
    words: &mut Words<'_>,
    by: &[&str],
    part: fn(&mut Words<'_>) -> Result<Term, FilterError>,
    join: fn(Vec<Term>) -> Term,
) -> Result<Term, FilterError> {
    let first = part(words)?;
    let mut terms = vec![first];
    while words.take_any(by) {
        terms.push(part(words)?);
    }
    Ok(if terms.len() == 1 { terms.remove(0) } else { join(terms) })
}

fn one(words: &mut Words<'_>) -> Result<Term, FilterError> {
    if words.depth == MOST_NESTED {
        return Err(words.error("fewer brackets and nots"));
    }
    words.depth += 1;
    let term = if words.take_any(&["not", "!"]) {
        Term::Not(Box::new(one(words)?))
    } else if words.take("outer") {
        Term::Outer(Box::new(one(words)?))
    } else if words.take("(") {
        let term = any(words)?;
        if !words.take(")") {
            return Err(words.error("and, or, or a closing bracket"));
        }
        term
    } else {
        primitive(words)?
    };
    words.depth -= 1;
    Ok(term)
}

fn primitive(words: &mut Words<'_>) -> Result<Term, FilterError> {
    let word = words.peek();
    if let Some(protocol) = word.and_then(protocol) {
        words.at += 1;
        return if matches!(protocol, Protocol::Tcp | Protocol::Udp) {
            ports_of(words, protocol)
        } else {
            Ok(Term::Protocol(protocol))
        };
    }
    if let Some(term) = word.and_then(alone) {
        words.at += 1;
        return Ok(term);
    }
    if words.take("proto") {
        return words.value("an IP protocol, 0 to 255", |word| word.parse().ok()).map(Term::ProtocolNumber);
    }
    if words.take("vni") {
        return words.value("a VNI, 1 to 16777215", vni).map(Term::Vni);
    }
    if words.take("vlan") {
        let id = words.value("a VLAN", |word| word.parse().ok().filter(|id| *id < 4096)).ok();
        return Ok(Term::Vlan(id));
    }
    if words.take("less") {
        return length(words).map(|most| Term::Length(0..=most));
    }
    if words.take("greater") {
        return length(words).map(|least| Term::Length(least..=usize::MAX));
    }
    if words.take("ether") {
        let side = side(words);
        if !words.take("host") && side == Side::Either {
            return Err(words.error("host, src or dst"));
        }
        return words.value("a MAC address", |word| word.parse().ok()).map(|mac| Term::Ether(side, mac));
    }
    let side = side(words);
    if words.take("host") {
        return words.value("an IPv4 or IPv6 address", host).map(|prefix| Term::Net(side, prefix));
    }
    if words.take("net") {
        return words.value("a prefix such as 10.0.0.0/16", |word| word.parse().ok()).map(|net| Term::Net(side, net));
    }
    if let Some(ports) = ports(words, side)? {
        return Ok(ports);
    }
    Err(words.error(match side {
        Side::Either => "host, net, port, tcp, udp, icmp, arp, vni or another word of `softdpu trace packet --help`",
        Side::Source | Side::Destination => "host, net, port or portrange",
    }))
}

/// A primitive of one word.
fn alone(word: &str) -> Option<Term> {
    Some(match word {
        "fragment" => Term::Fragment,
        "broadcast" => Term::Group { all: true },
        "multicast" => Term::Group { all: false },
        "tcp-fin" => Term::TcpFlags(0x01),
        "tcp-syn" => Term::TcpFlags(0x02),
        "tcp-rst" => Term::TcpFlags(0x04),
        "tcp-push" => Term::TcpFlags(0x08),
        "tcp-ack" => Term::TcpFlags(0x10),
        _ => return None,
    })
}

fn length(words: &mut Words<'_>) -> Result<usize, FilterError> {
    words.value("a number of bytes", |word| word.parse().ok())
}

/// `tcp port 80` is one primitive, as it is for tcpdump.
fn ports_of(words: &mut Words<'_>, protocol: Protocol) -> Result<Term, FilterError> {
    let start = words.at;
    let side = side(words);
    match ports(words, side)? {
        Some(ports) => Ok(Term::All(vec![Term::Protocol(protocol), ports])),
        None if words.at != start => Err(words.error("port or portrange")),
        None => Ok(Term::Protocol(protocol)),
    }
}

fn side(words: &mut Words<'_>) -> Side {
    if words.take("src") {
        Side::Source
    } else if words.take("dst") {
        Side::Destination
    } else {
        Side::Either
    }
}

/// `port N` or `portrange A-B`, if that is what comes next.
fn ports(words: &mut Words<'_>, side: Side) -> Result<Option<Term>, FilterError> {
    let range = if words.take("port") {
        words.value("a port, 0 to 65535", |word| word.parse().ok().map(|port: u16| port..=port))?
    } else if words.take("portrange") {
        words.value("two ports such as 8000-8080", |word| {
            let (first, last) = word.split_once('-')?;
            Some(first.parse().ok()?..=last.parse().ok()?)
        })?
    } else {
        return Ok(None);
    };
    Ok(Some(Term::Ports(side, range)))
}

fn vni(word: &str) -> Option<Vni> {
    word.parse().ok().and_then(Vni::new)
}

fn host(word: &str) -> Option<Prefix> {
    let address: IpAddr = word.parse().ok()?;
    Prefix::new(address, if address.is_ipv4() { 32 } else { 128 }).ok()
}

fn protocol(word: &str) -> Option<Protocol> {
    Some(match word {
        "arp" => Protocol::Arp,
        "ip" => Protocol::Ip,
        "ip6" => Protocol::Ip6,
        "icmp" => Protocol::Icmp,
        "icmp6" => Protocol::Icmp6,
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::trace::Filter;

    fn error(text: &str) -> String {
        text.parse::<Filter>().unwrap_err().to_string()
    }

    #[test]
    fn errors_point_at_the_column() {
        assert_eq!(error("host 10.0.0.2 an port 80"), "column 15: found \"an\", expected and, or, or the end");
        assert_eq!(error("host 10.0.0"), "column 6: found \"10.0.0\", expected an IPv4 or IPv6 address");
        assert_eq!(error("(arp or icmp"), "column 13: the filter ends, expected and, or, or a closing bracket");
        assert_eq!(error("tcp src 80"), "column 9: found \"80\", expected port or portrange");
        assert_eq!(
            error("ääh"),
            "column 1: found \"ääh\", expected host, net, port, tcp, udp, icmp, arp, vni or another word of `softdpu trace packet --help`"
        );
        assert!(error("").starts_with("column 1: the filter ends, expected host"));
        assert_eq!(error("vni 0"), "column 5: found \"0\", expected a VNI, 1 to 16777215");
        assert_eq!(error("net 10.0.0.1/8"), "column 5: found \"10.0.0.1/8\", expected a prefix such as 10.0.0.0/16");
        assert!(error(&"(".repeat(100_000)).ends_with("expected fewer brackets and nots"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_filter_or_an_error_inside_it(
            words in prop::collection::vec(
                prop::sample::select(vec!["not", "(", ")", "and", "or", "tcp", "port", "80", "src", "host", "10.0.0.1", "é", "vni", "!", "outer", "vlan", "ether"]),
                0..12,
            ),
        ) {
            let text = words.join(" ");
            if let Err(error) = text.parse::<Filter>() {
                prop_assert!((1..=text.chars().count() + 1).contains(&error.column));
            }
        }
    }
}
