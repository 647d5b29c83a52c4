//! On which cores packets from tunnels are worked on.

use super::{layout, short};
use softdpu_api::status::NodeStatus;

/// Each core's share, and each rule, a line each; nothing where steering was not configured.
pub fn steering_table(status: &NodeStatus) -> String {
    let Some(steering) = &status.steering else { return String::new() };
    let cores = steering.cores.iter().map(|share| {
        let buckets = format!("{}/256", share.buckets);
        vec![share.cpu.to_string(), steering.mode.clone(), buckets, short(share.handed), short(share.taken)]
    });
    let mut out = layout(&["CORE", "STEERING", "BUCKETS>", "HANDED ON>", "TAKEN>"], cores.collect());
    let rules = steering.rules.iter().map(|rule| {
        let by = if rule.automatic { "elephant" } else { "rule" };
        vec![rule.cpu.to_string(), rule.what.clone(), by.to_owned(), short(rule.packets)]
    });
    let rules: Vec<Vec<String>> = rules.collect();
    if !rules.is_empty() {
        out.push('\n');
        out.push_str(&layout(&["CORE", "STEERED FLOW", "BY", "PACKETS>"], rules));
    }
    out
}
