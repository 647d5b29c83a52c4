//! Cores under test.

use std::time::{Duration, Instant};

use softdpu_engine::{Engine, EngineConfig, FromCore};
use softdpu_sched::Policy;

pub fn cpus() -> Vec<usize> {
    let allowed = softdpu_sys::affinity::allowed();
    vec![allowed[0], *allowed.get(1).unwrap_or(&allowed[0])]
}

pub fn engine(idle_sleep: Option<Duration>) -> Engine {
    Engine::start(&EngineConfig {
        cpus: cpus(),
        spare: 0,
        idle_sleep,
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
