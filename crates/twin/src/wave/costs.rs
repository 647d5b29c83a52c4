//! What the queues and interrupts cost each side.

use softdpu_offload::link::{Charges, LinkCosts, LinkStep};

use super::Constants;

/// Where the agent runs, and with which of §5's optimisations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On the DPU.
    Dpu(LinkStep),
    /// On a core of the host, as ghOSt does.
    OnHost {
        /// Whether decisions are prestaged.
        prestages: bool,
    },
}

impl Placement {
    /// Whether the agent prestages.
    pub fn prestages(self) -> bool {
        match self {
            Placement::Dpu(step) => step >= LinkStep::Prestaged,
            Placement::OnHost { prestages } => prestages,
        }
    }
}

/// What each step takes, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Messages and decisions, over softdpu's own queues.
    pub queue: Charges,
    /// The agent has a core interrupted (Table 2: ioctl and register write).
    pub interrupt_send: u64,
    /// The host takes the interrupt (Table 2).
    pub interrupt_receive: u64,
    /// From the agent's send until the handler is done (Table 2).
    pub interrupt: u64,
    /// From the host's store until the agent can see it: half of a read over the link.
    pub one_way: u64,
}

/// From end to end (Table 2).
const MSI_X: u64 = 1_600;

impl Costs {
    /// Of an agent that is there.
    pub fn of(placement: Placement, constants: &Constants) -> Costs {
        let one_way = LinkCosts::WAVE.host_read / 2;
        let (queue, interrupt, one_way) = match placement {
            Placement::Dpu(step) => (Charges::over_link(LinkCosts::WAVE, step), MSI_X, one_way),
            // Comparable to an interrupt between processors, but for the way over PCIe (§7.1).
            Placement::OnHost { .. } => (Charges::coherent(constants.coherent), MSI_X - one_way, 0),
        };
        Costs { queue, interrupt_send: 340, interrupt_receive: 350, interrupt, one_way }
    }
}
