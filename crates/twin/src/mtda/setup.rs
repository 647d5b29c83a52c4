//! The paper's set-up, and what it leaves open.

use super::Constants;
use crate::node::Service;

/// Cores of a BlueField-2 (§IV: "eight 64-bit ARMv8 A72 cores").
pub const CORES: usize = 8;
/// Both NICs and the cable between them (§V-A.1: 25 Gbps), bits a second.
pub const LINE: f64 = 25e9;
/// Packet sizes of Figs. 4 to 7, 9 and 11, bytes. The text names 256 and 1500 (§V-C), 1024 (§V-C, §V-D, §V-E) and 512
/// (§V-F).
pub const SIZES: [u32; 4] = [256, 512, 1024, 1500];
/// Numbers of tenants of Table IV.
pub const TENANTS: [usize; 4] = [1, 2, 4, 8];
/// What Ethernet puts around a frame: preamble and start (8), FCS (4), gap (12) (IEEE 802.3 §3.1.1, §4.4.2).
pub const FRAMING: u32 = 24;

/// An application (§V-A.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Application {
    /// Real-time analytics: compute- and memory-intensive.
    Analytics,
    /// Flow monitor: memory-intensive.
    Monitor,
    /// IPv4 router: compute-intensive.
    Router,
    /// Firewall: compute-intensive.
    Firewall,
}

impl Application {
    /// What a packet takes one core. **Assumed**, as the paper has no such number, nor the cores' clock: some 1,500 to
    /// 3,000 cycles at 2.5 GHz, in the order that §V-A.2's words suggest: more where it says that data are taken in and
    /// managed, least for the router.
    pub fn service(self, constants: &Constants) -> Service {
        let (unit, byte) = match self {
            Application::Analytics => (constants.rta_ns, constants.rta_byte_ns),
            Application::Monitor => (constants.fm_ns, constants.fm_byte_ns),
            Application::Router => (constants.router_ns, constants.router_byte_ns),
            Application::Firewall => (constants.fw_ns, constants.fw_byte_ns),
        };
        let scale = constants.service_scale;
        let spread = constants.service_spread.round() as u64;
        Service { unit: (unit * scale).round() as u64, byte: (byte * scale * 1_024.0).round() as u64, spread }
    }

    /// What a packet then takes the application's accelerator, nanoseconds. None: it needs none.
    pub fn accelerator(self, constants: &Constants) -> Option<u64> {
        let takes = match self {
            Application::Analytics => constants.rta_accelerator_ns,
            Application::Monitor => constants.fm_accelerator_ns,
            Application::Router => constants.router_accelerator_ns,
            Application::Firewall => constants.fw_accelerator_ns,
        };
        (takes > 0.0).then_some(takes.round() as u64)
    }

    /// As Table IV writes it.
    pub fn name(self) -> &'static str {
        match self {
            Application::Analytics => "rta",
            Application::Monitor => "fm",
            Application::Router => "router",
            Application::Firewall => "fw",
        }
    }
}

/// Tenants' applications and, for unbalanced load, their rates (Table IV). Three tenants, which Figs. 10, 12 and 14
/// have and Table IV has not, are **assumed** to be the first three of the four.
pub fn table_4(tenants: usize) -> Vec<(Application, u32)> {
    use Application::{Analytics, Firewall, Monitor, Router};
    let four = [(Analytics, 4), (Monitor, 2), (Router, 2), (Firewall, 1)];
    match tenants {
        // "rta(4) + fm(1)".
        2 => vec![(Analytics, 4), (Monitor, 1)],
        8 => {
            let mut eight = vec![(Analytics, 4); 4];
            eight.extend([(Monitor, 2), (Monitor, 2), (Router, 2), (Firewall, 1)]);
            eight
        }
        // "rta(1)": alone, there is nothing to be in proportion to.
        few => four[..few.clamp(1, 4)].to_vec(),
    }
}

/// What is assumed, for people, in a line each.
pub fn assumptions(constants: &Constants) -> Vec<String> {
    let Constants { switch_ns, decision_ns, load, channel, credit, service_spread, service_scale, .. } = constants;
    let of = |application: Application| {
        let service = application.service(constants);
        format!("{} {} + {:.1}", application.name(), service.unit, service.byte as f64 / 1_024.0)
    };
    use Application::{Analytics, Firewall, Monitor, Router};
    let services = [Analytics, Monitor, Router, Firewall].map(of).join(", ");
    let accelerators = [Analytics, Monitor, Router, Firewall].map(|application| {
        let takes = application.accelerator(constants).map_or("none".to_owned(), |takes| takes.to_string());
        format!("{} {takes}", application.name())
    });
    let accelerators = accelerators.join(", ");
    let mut all = vec![
        format!(
            "from the paper: {CORES} cores (§IV), {} Gbit/s (§V-A), applications and rates of Table IV",
            (LINE / 1e9) as u64
        ),
        format!(
            "calibrated on DPDK's total of four balanced tenants (§V-D, 15.345 Gbit/s): a core goes on with another \
             tenant's work after {switch_ns} ns"
        ),
        format!("assumed: ns a packet + ns a byte: {services}; ± {service_spread} %, times {service_scale}"),
        format!(
            "assumed: together the tenants send {load} of what the line carries; a channel holds {channel} packets"
        ),
        format!("assumed: a decision takes {decision_ns} ns; CREDIT = {credit}"),
        format!("assumed: ns of an accelerator a packet: {accelerators}"),
        "assumed: LogNIC was characterised at balanced load".to_owned(),
    ];
    let changed = constants.changed();
    if !changed.is_empty() {
        all.push(format!("SET: {}", changed.join(" ")));
    }
    all
}
