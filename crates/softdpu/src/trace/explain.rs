//! `softdpu trace explain`: what would become of a packet, tier by tier.

use softdpu_api::{FUNCTIONS, PathAnswer, PathOutcome, PathQuestion, PathStep, Query};

use super::{Explain, Protocol};
use crate::arguments::Connection;
use crate::daemon::{connect, json_line};

/// Asks the daemon and prints its answer.
pub fn run(connection: &Connection, options: &Explain) -> Result<(), String> {
    let question = PathQuestion {
        from: options.from.clone(),
        host: options.host,
        to: options.to,
        network: options.network.clone(),
        protocol: match options.protocol {
            Protocol::Icmp => softdpu_api::Protocol::Icmp,
            Protocol::Tcp => softdpu_api::Protocol::Tcp,
            Protocol::Udp => softdpu_api::Protocol::Udp,
        },
        port: options.port,
        source_port: options.source_port,
        tcp_flags: options.tcp_flags.clone(),
        payload: options.payload,
    };
    let answer: PathAnswer =
        connect(connection)?.call(Query::TraceExplain(question)).map_err(|error| error.to_string())?;
    crate::output::print(&if options.json { json_line(&answer) } else { text(&answer) })
}

/// The answer, for people.
fn text(answer: &PathAnswer) -> String {
    let PathAnswer { port, packet, core, flow, outcome, to, reason, steps } = answer;
    let mut text = format!("{packet}, in by {port}, on core {core}\n");
    for step in steps {
        text += &format!("  {}\n", line(step));
    }
    let end = match outcome {
        PathOutcome::Leaves => {
            let unless =
                if steps.iter().any(|step| step.table == FUNCTIONS) { " unless its functions drop it" } else { "" };
            format!("leaves by {}{unless}", to.as_deref().unwrap_or("a port that is no more"))
        }
        PathOutcome::Consumed => "dealt with by the network".to_owned(),
        PathOutcome::Dropped => format!("dropped: {}", reason.as_deref().unwrap_or("for no reason")),
    };
    let known = if *flow { "" } else { "; the core has no flow of it" };
    text + &format!("{end}{known}\n")
}

/// A step on a line, in columns.
pub fn line(step: &PathStep) -> String {
    let PathStep { ns, tier, table, outcome, key, found, versions } = step;
    let mut line = format!("{ns:>8} ns  {tier:<13} {table:<15} {outcome:<5}");
    for part in [key, found].into_iter().filter(|part| !part.is_empty()) {
        line += &format!("  {part}");
    }
    if !versions.is_empty() {
        let version = |version: &softdpu_api::PathVersion| {
            let (stored, current) = (version.stored, version.current);
            let changed = if stored == current { String::new() } else { format!(", now {current}") };
            format!("{} {stored}{changed}", version.object)
        };
        let versions: Vec<String> = versions.iter().map(version).collect();
        line += &format!("  (versions: {})", versions.join("; "));
    }
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use softdpu_api::PathVersion;

    use super::*;

    #[test]
    fn an_answer_reads_from_the_port_to_the_end() {
        let step = |tier: &str, table: &str, outcome: &str, key: &str, found: &str| PathStep {
            ns: 1210,
            tier: tier.into(),
            table: table.into(),
            outcome: outcome.into(),
            key: key.into(),
            found: found.into(),
            versions: Vec::new(),
        };
        let versions = vec![
            PathVersion { object: "endpoint 10.0.0.2 of red".into(), stored: 3, current: 4 },
            PathVersion { object: "routes of red".into(), stored: 1, current: 1 },
        ];
        let answer = PathAnswer {
            port: "vm1-nic".into(),
            packet: "10.0.0.2 > 10.0.0.3: ICMP echo request".into(),
            core: 0,
            flow: false,
            outcome: PathOutcome::Dropped,
            to: None,
            reason: Some("acl".into()),
            steps: vec![
                PathStep { versions, ..step("flow", "flows", "stale", "", "computed from what has changed") },
                step("software", "acls", "drop", "edge of endpoint 10.0.0.3 of red", "rule 2 denies it"),
            ],
        };
        assert_eq!(
            text(&answer),
            "10.0.0.2 > 10.0.0.3: ICMP echo request, in by vm1-nic, on core 0\n\
             \u{20}     1210 ns  flow          flows           stale  computed from what has changed  \
             (versions: endpoint 10.0.0.2 of red 3, now 4; routes of red 1)\n\
             \u{20}     1210 ns  software      acls            drop   edge of endpoint 10.0.0.3 of red  rule 2 denies it\n\
             dropped: acl; the core has no flow of it\n"
        );
    }
}
