//! Every mistake that can be made with networks, with the one message it has to give.

mod devices;
mod networks;
mod policies;
mod underlay;

use super::{SMALL, check};

/// What is appended to [`SMALL`], and `line:column: message (help)`, one diagnostic a line. The addition begins in line
/// 10.
type Mistake = (Toml, &'static str);

/// Tables of a site file.
struct Toml(String);

impl Toml {
    /// The same, with one more key in the last table.
    fn with(self, key: &str) -> Toml {
        Toml(format!("{}\n{key}", self.0))
    }

    /// The same, with further tables after them.
    fn then(self, other: Toml) -> Toml {
        self.with(&other.0)
    }
}

/// A table of the name `header`, brackets included, with a key a line.
fn table(header: &str, keys: &[&str]) -> Toml {
    Toml([&[header], keys].concat().join("\n"))
}

/// `node.underlay` with these keys.
fn underlay(keys: &str) -> Toml {
    table("[node]", &[&format!("underlay = {{ {keys} }}")])
}

/// Network `n` with VNI 7 and this `cidr`.
fn subnet(cidr: &str) -> Toml {
    table("[[network]]", &["name = \"n\"", "vni = 7", &format!("cidr = {cidr}")])
}

/// A guest of the network before it, on another host.
fn endpoint(address: &str, mac: &str, host: &str) -> Toml {
    let keys = [("address", address), ("mac", mac), ("host", host)].map(|(key, value)| format!("{key} = \"{value}\""));
    table("[[network.endpoint]]", &keys.each_ref().map(String::as_str))
}

/// Device `d`, a `virtio-net` with these keys.
fn nic(keys: &str) -> Toml {
    table("[[device]]", &["name = \"d\"", &format!("virtio-net = {{ {keys} }}")])
}

/// Device `d`, a `tap` with these keys.
fn tap(keys: &str) -> Toml {
    table("[[device]]", &["name = \"d\"", &format!("tap = {{ {keys} }}")])
}

#[test]
fn every_mistake_has_its_own_message_at_its_own_place() {
    let mut wrong = Vec::new();
    let mistakes = [policies::mistakes(), networks::mistakes(), underlay::mistakes(), devices::mistakes()];
    for (Toml(addition), expected) in mistakes.into_iter().flatten() {
        let report = check(&format!("{SMALL}{addition}")).report;
        let found: Vec<String> = report
            .diagnostics
            .iter()
            .map(|found| {
                let help = found.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
                format!("{}:{}: {}{help}", found.line, found.column, found.message)
            })
            .collect();
        let found = found.join("\n");
        if found != expected {
            wrong.push(format!("{addition}\nfound {found}\nexpected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
