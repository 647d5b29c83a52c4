//! A trace's filter and a frame that it looks at: any text, or words of the language in any order; any bytes. A mistake
//! is pointed at where it is; a filter and its opposite never agree.
#![no_main]

use softdpu_vpc::trace::{Description, Filter, Subject};

const WORDS: [&str; 64] = [
    "and",
    "or",
    "not",
    "&&",
    "||",
    "!",
    "(",
    ")",
    "host",
    "net",
    "port",
    "portrange",
    "src",
    "dst",
    "ether",
    "arp",
    "ip",
    "ip6",
    "icmp",
    "icmp6",
    "tcp",
    "udp",
    "proto",
    "tcp-syn",
    "tcp-ack",
    "tcp-fin",
    "tcp-rst",
    "tcp-push",
    "fragment",
    "broadcast",
    "multicast",
    "vlan",
    "less",
    "greater",
    "vni",
    "outer",
    "0",
    "6",
    "17",
    "53",
    "4789",
    "5001",
    "65535",
    "65536",
    "4294967295",
    "1-2",
    "2-1",
    "80-",
    "10.0.0.1",
    "10.0.0.0/8",
    "10.0.0.1/8",
    "0.0.0.0/0",
    "::",
    "::/0",
    "fd00:5d::1",
    "fd00:5d::/64",
    "02:5d:00:00:00:01",
    "ff:ff:ff:ff:ff:ff",
    "ä",
    "",
    "\t",
    "host host",
    "icmp and",
    "not (",
];

/// The filter's text, and the bytes behind it.
fn text(data: &[u8]) -> Option<(String, &[u8])> {
    let (&[kind, len], rest) = data.split_first_chunk::<2>()?;
    let (text, frame) = rest.split_at(rest.len().min(len.into()));
    let text = if kind % 4 == 0 {
        String::from_utf8_lossy(text).into_owned()
    } else {
        let words: Vec<&str> = text.iter().map(|word| WORDS[usize::from(*word) % WORDS.len()]).collect();
        words.join(" ")
    };
    Some((text, frame))
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((text, frame)) = text(data) else { return };
    let filter = match text.parse::<Filter>() {
        Ok(filter) => filter,
        Err(error) => {
            assert!((1..=text.chars().count() + 1).contains(&error.column), "{error}: {text:?}");
            assert!(error.found.as_ref().is_none_or(|found| text.contains(found.as_str())), "{error}: {text:?}");
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    // One that is nested as deeply as it may be has no opposite.
    let opposite = format!("not ({text})").parse::<Filter>().ok();
    for subject in [Subject::on_wire(frame, frame.len(), 4789), Subject::on_wire(frame, 9000, 4789), Subject::default()]
    {
        let wanted = filter.matches(&subject);
        if let Some(opposite) = &opposite {
            assert_ne!(opposite.matches(&subject), wanted, "{text:?} and its opposite: {subject:?}");
        }
        assert!(!Description(subject).to_string().is_empty());
    }
});
