//! Interfaces, TAPs and the underlay: what passes a second, and why frames are dropped.

use ratatui::layout::Constraint;
use ratatui::widgets::{Row, Table};

use super::{Top, bytes_per_second, per_second, table};
use crate::status::table::{each_port, one_line};
use crate::status::{NodeStatus, PortCounts};

/// Reasons that are named of a port.
const MOST_REASONS: usize = 3;

impl Top {
    /// A line for each port, the underlay's last.
    pub(super) fn ports(&self, status: &NodeStatus) -> Table<'static> {
        let before = |name: &str| self.before().and_then(|before| each_port(before).find(|port| port.0 == name));
        let rows = each_port(status).map(|(name, network, _, counts)| {
            let old = before(name).map(|(_, _, _, counts)| counts);
            let rate = |count: fn(&PortCounts) -> u64| self.rate(count(counts), old.map(count));
            let drops = self.drops(counts, old);
            let all = old.map(|_| drops.iter().map(|(_, rate)| rate).sum());
            Row::new([
                one_line(name),
                one_line(network),
                per_second(rate(|counts| counts.frames_in)),
                bytes_per_second(rate(|counts| counts.bytes_in)),
                per_second(rate(|counts| counts.frames_out)),
                bytes_per_second(rate(|counts| counts.bytes_out)),
                per_second(all),
                one_line(&reasons(&drops)),
            ])
        });
        let header = ["PORT", "NETWORK", "IN/s", "IN/s", "OUT/s", "OUT/s", "DROPPED/s", "WHY"];
        let widths = [16, 12, 8, 11, 8, 11, 9].map(Constraint::Length);
        table(rows, &header, widths.into_iter().chain([Constraint::Min(12)]))
    }

    /// Frames that are dropped a second, by reason, the most frequent first; of those alone that are.
    fn drops<'a>(&self, now: &'a PortCounts, before: Option<&PortCounts>) -> Vec<(&'a str, f64)> {
        let Some(before) = before else { return Vec::new() };
        let ways = [(&now.dropped_in, &before.dropped_in), (&now.dropped_out, &before.dropped_out)];
        let mut drops: Vec<(&str, f64)> = Vec::new();
        for (now, before) in ways {
            for (reason, count) in now {
                let rate = self.rate(*count, Some(before.get(reason).copied().unwrap_or(0))).unwrap_or(0.0);
                match drops.iter_mut().find(|(known, _)| known == reason) {
                    Some((_, sum)) => *sum += rate,
                    None => drops.push((reason, rate)),
                }
            }
        }
        drops.retain(|(_, rate)| *rate > 0.0);
        drops.sort_by(|(_, one), (_, other)| other.total_cmp(one));
        drops
    }
}

/// The most frequent of them.
fn reasons(drops: &[(&str, f64)]) -> String {
    let mut named: Vec<String> = drops.iter().take(MOST_REASONS).map(|(reason, _)| (*reason).to_owned()).collect();
    if drops.len() > MOST_REASONS {
        named.push("…".to_owned());
    }
    named.join(", ")
}
