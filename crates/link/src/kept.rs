//! The file in which loaded entries are kept: the lines that were loaded, and behind them the changes since, of single
//! entries. The supervisor appends to it; a data plane that starts reads what is in force.
//!
//! ```text
//!   endpoint,… route,…                          as they were loaded: a file of `softdpu network load`
//!   change LENGTH ENDPOINTS ROUTES CHECKSUM     what the network has loaded after the change; of a fixed length
//!   {"network":…,"changes":[…]}                 LENGTH bytes
//!   change …
//! ```
//!
//! A record is appended without counts and checksum before the data plane is asked, so that a full disk refuses the
//! change, and gets them in place when the change is made. The file ends before the first record that is not whole:
//! what a crash has torn was never answered.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::net::IpAddr;

use softdpu_api::{EntryChanges, EntryEdit, EntryOp, NetworkEntries};
use softdpu_site::LoadLine;

/// Bytes of a record's first line.
pub const HEADER: usize = CHANGE.len() + LENGTH + 1 + COUNT + 1 + COUNT + 1 + CHECKSUM + 1;
const CHANGE: &str = "change ";
const LENGTH: usize = 10;
const COUNT: usize = 20;
const CHECKSUM: usize = 16;
/// The longest record behind its first line: a request in other words.
const MOST: u64 = 1 << 20;

/// FNV-1a: tells torn records, not malice.
fn checksum(parts: [&[u8]; 2]) -> u64 {
    let bytes = parts.into_iter().flatten();
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn counted(body: &[u8], counts: NetworkEntries) -> String {
    format!("{CHANGE}{:010} {:020} {:020} ", body.len(), counts.endpoints, counts.routes)
}

/// A record of a change that is not made yet: its first line is [`header`] when it is.
pub fn record(changes: &EntryChanges) -> Vec<u8> {
    let mut body = serde_json::to_vec(changes).unwrap_or_default();
    body.push(b'\n');
    let mut record = counted(&body, NetworkEntries::default()).into_bytes();
    record.resize(HEADER - 1, b'-');
    record.push(b'\n');
    record.append(&mut body);
    record
}

/// The first line of `record` once its changes are made and its network has `counts` entries.
pub fn header(record: &[u8], counts: NetworkEntries) -> Vec<u8> {
    header_of(record.get(HEADER..).unwrap_or_default(), counts)
}

fn header_of(body: &[u8], counts: NetworkEntries) -> Vec<u8> {
    let head = counted(body, counts);
    format!("{head}{:016x}\n", checksum([head.as_bytes(), body])).into_bytes()
}

/// Length and counts of a first line.
fn parsed(head: &[u8]) -> Option<(u64, NetworkEntries)> {
    let text = std::str::from_utf8(head).ok().filter(|text| text.len() == HEADER)?;
    let mut words = text.strip_prefix(CHANGE)?.split(' ');
    let mut number = || words.next()?.parse::<u64>().ok();
    let (length, endpoints, routes) = (number()?, number()?, number()?);
    (length <= MOST).then_some((length, NetworkEntries { endpoints, routes }))
}

/// Whether a line is the first of a record, or what a crash has left of one: a part, or zeros.
fn begins_change(line: &[u8]) -> bool {
    let end = line.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    line.starts_with(CHANGE.as_bytes()) || CHANGE.as_bytes().starts_with(&line[..end])
}

/// What is in force of a kept file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Bytes of the lines that were loaded.
    pub loaded: u64,
    /// Bytes before the first record that is not whole.
    pub end: u64,
    /// By network: what it has, where that was changed.
    pub counts: BTreeMap<String, NetworkEntries>,
    /// By network: the last changes of its entries.
    edits: BTreeMap<String, Edits>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Edits {
    guests: BTreeMap<IpAddr, EntryEdit>,
    routes: BTreeMap<(IpAddr, u8), EntryEdit>,
}

impl Kept {
    /// Reads the changes of a kept file.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read(file: &File) -> io::Result<Kept> {
        let mut input = BufReader::with_capacity(1 << 18, file);
        input.seek(SeekFrom::Start(0))?;
        let (mut kept, mut line) = (Kept::default(), Vec::new());
        while input.read_until(b'\n', &mut line)? > 0 && !begins_change(&line) {
            kept.loaded += line.len() as u64;
            line.clear();
        }
        input.seek(SeekFrom::Start(kept.loaded))?;
        kept.end = kept.loaded;
        kept.read_changes(input)?;
        Ok(kept)
    }

    fn read_changes(&mut self, mut input: impl BufRead) -> io::Result<()> {
        let (mut head, mut body) = (Vec::new(), Vec::new());
        loop {
            head.clear();
            body.clear();
            input.by_ref().take(HEADER as u64).read_to_end(&mut head)?;
            let Some((length, counts)) = parsed(&head) else { return Ok(()) };
            input.by_ref().take(length).read_to_end(&mut body)?;
            let is_whole = body.len() as u64 == length && header_of(&body, counts) == head;
            let Some(changes) = is_whole.then(|| serde_json::from_slice(&body).ok()).flatten() else { return Ok(()) };
            self.change(changes, counts);
            self.end += HEADER as u64 + length;
        }
    }

    fn change(&mut self, EntryChanges { network, changes }: EntryChanges, counts: NetworkEntries) {
        let edits = self.edits.entry(network.clone()).or_default();
        for edit in changes {
            match (edit.prefix, edit.address) {
                (Some(prefix), _) => drop(edits.routes.insert((prefix.network(), prefix.prefix_len()), edit)),
                (None, Some(address)) => drop(edits.guests.insert(address, edit)),
                (None, None) => {}
            }
        }
        self.counts.insert(network, counts);
    }

    /// Whether an entry that was loaded is still as it was.
    pub fn has(&self, line: &LoadLine<'_>) -> bool {
        let edits = |network: &str| self.edits.get(network);
        match line {
            LoadLine::Endpoint { network, address, .. } => {
                edits(network).is_none_or(|edits| !edits.guests.contains_key(address))
            }
            LoadLine::Route { network, address, length, .. } => {
                edits(network).is_none_or(|edits| !edits.routes.contains_key(&(*address, *length)))
            }
        }
    }

    /// What has come since, as lines of a file to load, each with its end.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.edits.iter().flat_map(|(network, edits)| {
            edits.guests.values().chain(edits.routes.values()).filter_map(|edit| line(network, edit))
        })
    }
}

/// An entry as a line of a file to load; None of one that goes.
fn line(network: &str, edit: &EntryEdit) -> Option<String> {
    if edit.op == EntryOp::Delete {
        return None;
    }
    let host = edit.host.map(|host| host.to_string());
    let to = host.or_else(|| edit.ecmp.as_ref().map(|group| format!("ecmp:{group}")))?;
    match (edit.prefix, edit.address) {
        (Some(prefix), _) => Some(format!("route,{network},{prefix},{to}\n")),
        (None, address) => {
            let mac = edit.mac.map(|mac| mac.to_string()).unwrap_or_default();
            Some(format!("endpoint,{network},{},{mac},{to}\n", address?))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use softdpu_site::load_line;

    use super::*;

    const LOADED: &str = "# ours\nroute,a,10.0.0.0/8,192.0.2.2\nroute,b,10.0.0.0/8,192.0.2.2\n";

    fn changes(network: &str, edits: &[EntryEdit]) -> EntryChanges {
        EntryChanges { network: network.to_owned(), changes: edits.to_vec() }
    }

    fn route(op: EntryOp, prefix: &str, host: Option<&str>) -> EntryEdit {
        let host = host.map(|host| host.parse().unwrap());
        EntryEdit { host, ..EntryEdit::route(op, prefix.parse().unwrap()) }
    }

    fn whole(changes: &EntryChanges, counts: NetworkEntries) -> Vec<u8> {
        let mut record = record(changes);
        let header = header(&record, counts);
        record[..HEADER].copy_from_slice(&header);
        record
    }

    fn read(bytes: &[u8]) -> Kept {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Kept::read(&file).unwrap()
    }

    /// The lines in force.
    fn in_force(bytes: &[u8]) -> Vec<String> {
        let kept = read(bytes);
        let loaded = std::str::from_utf8(&bytes[..kept.loaded as usize]).unwrap();
        let still = loaded.lines().filter(|line| load_line(line).unwrap().is_some_and(|line| kept.has(&line)));
        still.map(|line| format!("{line}\n")).chain(kept.lines()).collect()
    }

    #[test]
    fn the_last_change_of_an_entry_is_in_force() {
        let mut bytes = LOADED.as_bytes().to_vec();
        assert_eq!(in_force(&bytes).len(), 2);
        let group = EntryEdit { ecmp: Some("far".to_owned()), ..route(EntryOp::Add, "::/0", None) };
        let mut guest = EntryEdit::guest(EntryOp::Add, "10.0.0.3".parse().unwrap());
        guest.host = Some("192.0.2.3".parse().unwrap());
        let all = [
            changes("a", &[route(EntryOp::Delete, "10.0.0.0/8", None), group]),
            changes("b", &[guest, route(EntryOp::Replace, "10.0.0.0/8", Some("192.0.2.9"))]),
            changes("a", &[route(EntryOp::Add, "10.0.0.0/8", Some("192.0.2.7"))]),
            changes("a", &[route(EntryOp::Delete, "10.0.0.0/8", None)]),
        ];
        for (changes, routes) in all.iter().zip(1..) {
            bytes.extend(whole(changes, NetworkEntries { endpoints: 0, routes }));
        }
        let expected =
            ["route,a,::/0,ecmp:far\n", "endpoint,b,10.0.0.3,,192.0.2.3\n", "route,b,10.0.0.0/8,192.0.2.9\n"];
        assert_eq!(in_force(&bytes), expected);
        let kept = read(&bytes);
        assert_eq!((kept.counts["a"].routes, kept.counts["b"].routes), (4, 2));
        assert_eq!((kept.loaded, kept.end), (LOADED.len() as u64, bytes.len() as u64));
    }

    #[test]
    fn a_file_that_is_torn_at_any_byte_has_the_changes_before() {
        let mut bytes = LOADED.as_bytes().to_vec();
        let mut ends = vec![bytes.len() as u64];
        for prefix in ["11.0.0.0/8", "2001:db8::/32", "0.0.0.0/0"] {
            let changes = changes("a", &[route(EntryOp::Add, prefix, Some("192.0.2.2"))]);
            bytes.extend(whole(&changes, NetworkEntries { endpoints: 1, routes: u64::MAX }));
            ends.push(bytes.len() as u64);
        }
        let before = |at: usize| ends.iter().copied().filter(|end| *end <= at as u64).max().unwrap();
        for torn in LOADED.len()..=bytes.len() {
            assert_eq!(read(&bytes[..torn]).end, before(torn), "{torn}");
            // The file may have its length and not its bytes.
            let mut zeroed = bytes[..torn].to_vec();
            zeroed.resize(bytes.len(), 0);
            assert_eq!(read(&zeroed).end, before(torn), "{torn} and zeros");
        }
        for at in LOADED.len() + CHANGE.len()..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert_eq!(read(&wrong).end, before(at), "byte {at} is another");
        }
    }

    #[test]
    fn a_change_that_was_never_made_is_none() {
        let mut bytes = LOADED.as_bytes().to_vec();
        bytes.extend(record(&changes("a", &[route(EntryOp::Delete, "10.0.0.0/8", None)])));
        assert_eq!((in_force(&bytes).len(), read(&bytes).end), (2, LOADED.len() as u64));
    }
}
