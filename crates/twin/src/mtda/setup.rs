//! The paper's set-up, and what it leaves open.

use softdpu_sched::Nanos;

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
    /// **Assumed**: what a packet takes one core. The paper has no such number, nor the cores' clock; these are some
    /// 1,500 to 3,000 cycles at 2.5 GHz, in the order that §V-A.2's words suggest: more where it says that data are
    /// taken in and managed, least for the router. A quarter more or less from packet to packet.
    pub fn service(self) -> Service {
        let (unit, byte) = match self {
            Application::Analytics => (1_200, 307),
            Application::Monitor => (960, 102),
            Application::Router => (640, 0),
            Application::Firewall => (800, 205),
        };
        Service { unit, byte, spread: 25 }
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

/// **Assumed**: all tenants together send what the line carries, each by its part of the rates, at random (Poisson).
/// The paper says neither how much is sent nor how it is spaced.
pub const LOAD: f64 = 1.0;

/// **Assumed**: packets that a tenant's channel holds, spread over its queues, one for each core (flows are hashed). It
/// is what softdpu's channels hold. The same for all systems.
pub const CHANNEL: usize = 1_024;

/// **Assumed**: what a core loses when it goes on with another tenant's application than the one it ran, nanoseconds:
/// code and tables that are not in its first-level caches, 64 KiB at some 64 GB/s. The paper names the loss ("the
/// required context switches might result in increased latency", §III-C) and gives no number.
pub const SWITCH: u64 = 1_000;

/// **Assumed**: what a decision takes a core, nanoseconds, the same for every policy. When this was assumed, decisions
/// were measured to take 8 (`fcfs`) to 80 (`weighted`) on this project's machine; since then they have become faster (3
/// to 40, `docs/scheduling.md`), and the assumption stays. An A72 is slower.
pub const DECISION: u64 = 100;

/// **Assumed**: what a frame may wait for the wire before it is lost.
pub const LINK_BUFFER: Nanos = Nanos(1_000_000);

/// **Assumed**: of MTDA's equation (7), the paper gives neither CREDIT nor which applications use accelerators. CREDIT
/// is the policy's own default, and no application uses any.
pub const CREDIT: u64 = 1_024;

/// What is assumed, for people, in a line each.
pub fn assumptions() -> Vec<String> {
    vec![
        format!(
            "from the paper: {CORES} cores (§IV), {} Gbit/s (§V-A), applications and rates of Table IV",
            (LINE / 1e9) as u64
        ),
        "assumed: a packet takes a core 1200 ns + 0.3 ns/B (rta), 960 + 0.1 (fm), 640 (router), 800 + 0.2 (fw), ± 25 %"
            .to_owned(),
        format!("assumed: together the tenants send what the line carries; a tenant's channel holds {CHANNEL} packets"),
        format!("assumed: going on with another tenant's work takes a core {SWITCH} ns, a decision {DECISION} ns"),
        "assumed: no application uses an accelerator; CREDIT = 1024; LogNIC was characterised at balanced load"
            .to_owned(),
    ]
}
