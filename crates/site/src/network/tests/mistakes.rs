//! Every mistake that can be made with networks, with the one message it has to give.

mod devices;
mod networks;
mod policies;
mod underlay;

use super::{SMALL, check};

/// What is appended to [`SMALL`], and `line:column: message (help)`. The addition begins in line 10.
type Broken = (&'static str, &'static str);

#[test]
fn every_mistake_has_its_own_message_at_its_own_place() {
    let mut wrong = Vec::new();
    for (addition, expected) in [policies::BROKEN, networks::BROKEN, underlay::BROKEN, devices::BROKEN].concat() {
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
