//! Functions in the path of interfaces' frames.

use super::{layout, short, size};
use softdpu_api::status::{FunctionStatus, NodeStatus};

/// What passed a function, and what it did, in words.
fn figures(function: &FunctionStatus) -> (u64, u64, String) {
    if let Some(it) = &function.monitor {
        let (flows, exported, dropped) = (short(it.flows), short(it.exported), short(it.dropped + function.lost));
        let did = format!("{flows} flows, {exported} records to {}, {dropped} lost", it.collector);
        (it.packets, it.bytes, did)
    } else if let Some(it) = &function.analytics {
        let filter = it.filter.as_ref().map_or_else(String::new, |filter| format!(" of {filter}"));
        (it.packets, it.bytes, format!("{} packets, {}{filter}", short(it.matched), size(it.matched_bytes)))
    } else if let Some(it) = &function.firewall {
        let all = it.rules.iter().chain([&it.default, &it.established, &it.refused, &it.no_room]);
        let (packets, bytes) = all.fold((0, 0), |(packets, bytes), one| (packets + one.packets, bytes + one.bytes));
        (packets, bytes, format!("{} dropped, {} connections", short(it.dropped.packets), short(it.connections)))
    } else {
        (0, 0, String::new())
    }
}

/// The functions, a line each.
pub fn function_table(functions: &[FunctionStatus]) -> String {
    let rows = functions.iter().map(|function| {
        let (packets, bytes, did) = figures(function);
        let devices = function.devices.join(" ");
        vec![function.name.clone(), function.kind.clone(), devices, short(packets), size(bytes), did]
    });
    layout(&["FUNCTION", "KIND", "DEVICES", "PACKETS>", "BYTES>", "DID"], rows.collect())
}

/// The heaviest keys in the last window of each analysis, a line each.
pub(super) fn tops(status: &NodeStatus) -> String {
    layout(&["TOP OF", "BY", "KEY", "HAS>", "MAY BE LESS BY>"], top_rows(&status.functions))
}

/// The rows of [`tops`].
pub(in crate::status) fn top_rows(functions: &[FunctionStatus]) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    for function in functions {
        let Some(analytics) = &function.analytics else { continue };
        let weight = |weight: u64| if analytics.rank == "bytes" { size(weight) } else { short(weight) };
        for top in analytics.last.iter().flat_map(|window| &window.top) {
            for item in &top.items {
                let (has, less) = (weight(item.weight), weight(item.error));
                rows.push(vec![function.name.clone(), top.by.clone(), item.key.clone(), has, less]);
            }
        }
    }
    rows
}

/// What firewalls' rules decided, a line each.
pub(super) fn rules(status: &NodeStatus) -> String {
    let rows = status.functions.iter().filter_map(|function| Some((function, function.firewall.as_ref()?)));
    let rows = rows.flat_map(|(function, firewall)| {
        let others = [
            ("default", &firewall.default),
            ("established", &firewall.established),
            ("refused", &firewall.refused),
            ("no room", &firewall.no_room),
        ];
        let rules = firewall.rules.iter().map(|rule| (rule.rule.clone(), rule));
        let all = rules.chain(others.map(|(word, rule)| (word.to_owned(), rule)));
        all.map(move |(what, rule)| vec![function.name.clone(), what, short(rule.packets), size(rule.bytes)])
    });
    layout(&["FIREWALL", "RULE", "PACKETS>", "BYTES>"], rows.collect())
}
