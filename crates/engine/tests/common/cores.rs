//! Cores under test.

use std::time::{Duration, Instant};

use softdpu_engine::{Engine, EngineConfig, FromCore};
use softdpu_sched::{Nanos, Policy, YieldPolicy};

pub fn cpus() -> Vec<usize> {
    let allowed = softdpu_sys::affinity::allowed();
    vec![allowed[0], *allowed.get(1).unwrap_or(&allowed[0])]
}

/// Cores that poll, or that sleep after so long without work.
pub fn engine(idle_sleep: Option<Duration>) -> Engine {
    let after = |idle: Duration| YieldPolicy::After(Nanos(idle.as_nanos() as u64));
    engine_that(idle_sleep.map_or(YieldPolicy::Never, after))
}

/// Cores that yield so.
pub fn engine_that(yielding: YieldPolicy) -> Engine {
    Engine::start(&EngineConfig {
        cpus: cpus(),
        spare: 0,
        yielding,
        io_depth: 64,
        fairness: Policy::default(),
        recordings: Vec::new(),
        flows: softdpu_vpc::FLOWS,
    })
    .unwrap()
}

/// Waits for an event of the cores that `pick` accepts.
pub fn event<T>(engine: &mut Engine, what: &str, mut pick: impl FnMut(FromCore) -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        while let Some(event) = engine.event() {
            if let Some(found) = pick(event) {
                return found;
            }
        }
        assert!(Instant::now() < deadline, "no event within 20 s: {what}");
        std::thread::sleep(Duration::from_micros(100));
    }
}
