//! Interfaces, TAPs and the underlay: what passes a second, and why frames are dropped.

use std::collections::HashMap;

use ratatui::layout::Constraint;
use ratatui::widgets::{Row, Table};

use super::{Top, bytes_per_second, per_second, table};
use crate::status::table::{UNDERLAY, one_line};
use softdpu_api::status::{NodeStatus, PortCounts};

/// Reasons that are named of a port.
const MOST_REASONS: usize = 3;

/// Name, network, state and counts of every port, the underlay's last.
pub(super) fn ports(status: &NodeStatus) -> impl Iterator<Item = (&str, &str, String, &PortCounts)> {
    let devices = status.devices.iter().filter_map(|device| {
        let port = device.port.as_ref()?;
        Some((device.name.as_str(), port.network.as_str(), device.state.to_string(), &port.counts))
    });
    let underlay = status.underlay.as_ref().map(|underlay| {
        let state = if underlay.absence.is_some() { "down" } else { "up" };
        (UNDERLAY, "-", state.to_owned(), &underlay.counts)
    });
    devices.chain(underlay)
}

impl Top {
    /// A line for each port, the underlay's last.
    pub(super) fn ports(&self, status: &NodeStatus) -> Table<'static> {
        let before: HashMap<&str, &PortCounts> =
            self.before().into_iter().flat_map(ports).map(|(name, _, _, counts)| (name, counts)).collect();
        let rows = ports(status).map(|(name, network, state, counts)| {
            let old = before.get(name).copied();
            let rate = |count: fn(&PortCounts) -> u64| self.rate(count(counts), old.map(count));
            let drops = self.drops(counts, old);
            let all = old.map(|_| drops.iter().fold(0.0, |sum, (_, rate)| sum + rate));
            Row::new([
                one_line(name),
                one_line(network),
                state,
                per_second(rate(|counts| counts.frames_in)),
                bytes_per_second(rate(|counts| counts.bytes_in)),
                per_second(rate(|counts| counts.frames_out)),
                bytes_per_second(rate(|counts| counts.bytes_out)),
                per_second(all),
                one_line(&reasons(&drops)),
            ])
        });
        let header = ["PORT", "NETWORK", "STATE", "IN/s", "IN/s", "OUT/s", "OUT/s", "DROPPED/s", "WHY"];
        let widths = [16, 10, 9, 8, 10, 8, 10, 9].map(Constraint::Length);
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
