//! Prices, by default those that the paper states.

/// Cores and memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Resources {
    /// Logical cores.
    pub cores: f64,
    /// Memory, GB.
    pub memory: f64,
}

/// What things cost, in dollars or any other currency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// A logical core.
    pub core: f64,
    /// A GB of memory.
    pub memory: f64,
    /// What a DPU costs beyond a plain network card.
    pub dpu: f64,
    /// The share of a DPU that is used, of 1. The paper leaves out accelerators that nothing uses.
    pub dpu_share: f64,
    /// What the control plane takes, whatever the demand.
    pub control: Resources,
}

impl Prices {
    /// ZOC §6.1.1.
    pub const PAPER: Prices =
        Prices { core: 95.0, memory: 4.0, dpu: 2500.0, dpu_share: 0.6, control: Resources { cores: 2.0, memory: 4.0 } };

    /// The price of cores and memory.
    pub fn of(&self, resources: Resources) -> f64 {
        self.core * resources.cores + self.memory * resources.memory
    }

    /// The price of what is used of a DPU.
    pub fn dpu(&self) -> f64 {
        self.dpu * self.dpu_share
    }
}
