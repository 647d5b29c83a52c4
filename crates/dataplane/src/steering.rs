//! On which cores packets from tunnels are worked on: what the site says, as the engine takes it, and what the engine says.

use softdpu_engine::{CoreIndex, SteeringMode, SteeringSpec};
use softdpu_sched::Nanos;
use softdpu_sys::clock;

use super::DataPlane;
use softdpu_api::status::{SteeringRuleStatus, SteeringShare, SteeringStatus};
use softdpu_site as config;

fn mode(mode: config::SteeringMode) -> SteeringMode {
    match mode {
        config::SteeringMode::Off => SteeringMode::Off,
        config::SteeringMode::Manual => SteeringMode::Manual,
        config::SteeringMode::Auto => SteeringMode::Auto,
    }
}

impl DataPlane {
    /// Has the cores work on packets from tunnels where `steering` says.
    pub(super) fn steer(&mut self, steering: &config::Steering) -> Result<(), String> {
        let core = |cpu: &u32| -> Result<CoreIndex, String> {
            self.cores.get(cpu).copied().ok_or_else(|| format!("CPU {cpu} is no data-plane core"))
        };
        let rule = |rule: &config::SteerRule| {
            let what = rule.what().ok_or_else(|| "a rule takes no packets".to_owned())?;
            Ok((what, core(&rule.core)?))
        };
        let spec = SteeringSpec {
            mode: mode(steering.mode),
            spread: steering.cores.iter().map(core).collect::<Result<_, String>>()?,
            rules: steering.rules.iter().map(rule).collect::<Result<_, String>>()?,
        };
        self.engine.set_steering(spec).map_err(|error| error.to_string())
    }

    /// Moves flows from tunnels to where there is room, if that is for the data plane to decide.
    pub(super) fn balance_tunnels(&mut self) {
        let moved = self.engine.balance_tunnels(Nanos(clock::now()), self.networks.underlay_port());
        if moved > 0 {
            tracing::debug!(moved, "flows from tunnels were moved to even out the load");
        }
    }

    /// For `status`; None: nothing was asked for, and nothing is done.
    pub(super) fn steering_status(&self) -> Option<SteeringStatus> {
        if self.steering == config::Steering::default() {
            return None;
        }
        let report = self.engine.steering();
        let cpu = |core: CoreIndex| self.cpus.get(core.0).copied().unwrap_or_default();
        let share = |(core, counters): (usize, &softdpu_engine::SteeringCounters)| SteeringShare {
            cpu: cpu(CoreIndex(core)),
            buckets: report.buckets.get(core).copied().unwrap_or_default() as u32,
            handed: counters.handed.get(),
            taken: counters.taken.get(),
        };
        Some(SteeringStatus {
            mode: self.steering.mode.word().to_owned(),
            cores: self.engine.cores().map(|(_, counters)| &counters.steering).enumerate().map(share).collect(),
            staying: report.staying as u32,
            rules: report
                .rules
                .iter()
                .map(|rule| SteeringRuleStatus {
                    what: rule.what.to_string(),
                    cpu: cpu(rule.core),
                    automatic: rule.is_automatic,
                    packets: rule.packets,
                })
                .collect(),
            moved: report.moved,
        })
    }
}
