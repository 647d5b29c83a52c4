//! A core without a thread of its own: its owner calls each round.
//!
//! Nothing then depends on time or on another thread, so the instructions that a round takes can be counted
//! (`examples/instructions.rs`), and are the same in each run.

use softdpu_sched::{Policy, Scheduler, YieldPolicy};
use softdpu_sys::clock;

use crate::core::Core;
use crate::engine::{Engine, EngineConfig, EngineError};

/// The one core of an engine made [by hand](Engine::by_hand).
pub struct ByHand(Core<Scheduler>);

impl Engine {
    /// An engine of one core which runs when its owner says so. `io_depth`: submission entries of its io_uring. What
    /// the engine is told takes effect in the core's next round.
    ///
    /// # Errors
    /// [`EngineError`] for kernel facilities that could not be set up.
    pub fn by_hand(io_depth: u32) -> Result<(Engine, ByHand), EngineError> {
        Engine::by_hand_with(io_depth, Policy::Fcfs)
    }

    /// The same with another policy. Grants cost so much a unit whatever they took, so that the policy decides alike in
    /// each run.
    ///
    /// # Errors
    /// As [`by_hand`](Self::by_hand).
    pub fn by_hand_with(io_depth: u32, fairness: Policy) -> Result<(Engine, ByHand), EngineError> {
        // No thread is pinned, so any CPU's number does.
        let (cpus, recordings, flows) = (vec![0], Vec::new(), softdpu_vpc::FLOWS);
        let yielding = YieldPolicy::Never;
        let config = EngineConfig { cpus, spare: 0, yielding, io_depth, fairness, recordings, flows };
        let (engine, mut cores) = Engine::assemble(&config, false)?;
        let mut core = cores.pop().ok_or(EngineError::NoCores)?;
        core.set_timed(false);
        Ok((engine, ByHand(core)))
    }
}

impl ByHand {
    /// Ends turns after so many grants, as time ends those of other cores: work then waits on from round to round.
    pub fn set_turn(&mut self, grants: u32) {
        self.0.set_turn(grants);
    }

    /// Everything once: messages, rings, grants, back ends, completions. Whether there was anything to do.
    pub fn round(&mut self) -> bool {
        self.0.round(clock::now())
    }
}
