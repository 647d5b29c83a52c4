//! How cores forward.

use super::{layout, short, size};
use softdpu_api::UNDERLAY;
use softdpu_api::status::{HeavyFlowStatus, NodeStatus};

/// Which way frames took, a line for each core and destination.
pub(super) fn paths(status: &NodeStatus) -> String {
    let rows = status.cores.iter().flat_map(|core| {
        let used = core.paths.each().into_iter().filter(|(_, ways)| *ways != Default::default());
        used.map(|(to, ways)| {
            let counts = [ways.switch, ways.fast, ways.software].map(short);
            [vec![core.cpu.to_string(), to.to_owned()], counts.to_vec()].concat()
        })
    });
    layout(&["CORE", "FRAMES TO", "SWITCH ONLY>", "FAST PATH>", "SOFTWARE>"], rows.collect())
}

/// The flows of cores that have had some, a line each.
pub(super) fn flows(status: &NodeStatus) -> String {
    let had = |core: &&softdpu_api::status::CoreStatus| core.flows.known + core.flows.unkept + core.flows.policy > 0;
    let rows = status.cores.iter().filter(had).map(|core| {
        let flows = &core.flows;
        let counts =
            [flows.known, flows.capacity, flows.unkept, flows.recomputed, flows.revalidated, flows.policy].map(short);
        [vec![core.cpu.to_string()], counts.to_vec()].concat()
    });
    let header = ["CORE", "FLOWS>", "ROOM FOR>", "NOT KEPT>", "RECOMPUTED>", "REVALIDATED>", "PUT TO POLICIES>"];
    layout(&header, rows.collect())
}

/// The heaviest flows, a line each.
pub(super) fn heavy(status: &NodeStatus) -> String {
    let header = ["CORE", "HEAVY FLOW", "OF", "PACKETS/s>", "BYTES/s>", "OF BYTES>", ""];
    layout(&header, heavy_rows(status))
}

/// The same, for `top`.
pub(in crate::status) fn heavy_rows(status: &NodeStatus) -> Vec<Vec<String>> {
    let row = |cpu: u32, flow: &HeavyFlowStatus| {
        vec![
            cpu.to_string(),
            format!("{} {} > {}", flow.protocol, flow.source, flow.destination),
            // A device is in one network.
            if flow.device == UNDERLAY { format!("{} {}", flow.device, flow.network) } else { flow.device.clone() },
            short(flow.packets_per_s),
            size(flow.bytes_per_s),
            format!("{}.{} %", flow.share / 10, flow.share % 10),
            if flow.elephant { "elephant" } else { "" }.to_owned(),
        ]
    };
    status.cores.iter().flat_map(|core| core.heavy_flows.iter().map(move |flow| row(core.cpu, flow))).collect()
}
