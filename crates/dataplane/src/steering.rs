//! Receive steering: on which cores packets from tunnels are worked on, as the site configures it and as the engine
//! reports it.

use softdpu_api::{ApiError, ErrorCode};
use softdpu_engine::{CoreIndex, Engine, SteeringMode, SteeringSpec};

use super::placements::Placements;
use softdpu_api::status::{SteeringRuleStatus, SteeringShare, SteeringStatus};
use softdpu_site as config;

fn mode(mode: config::SteeringMode) -> SteeringMode {
    match mode {
        config::SteeringMode::Off => SteeringMode::Off,
        config::SteeringMode::Manual => SteeringMode::Manual,
        config::SteeringMode::Auto => SteeringMode::Auto,
    }
}

/// On which cores packets from tunnels are worked on, as it was asked for.
#[derive(Default)]
pub(super) struct Steering {
    asked: config::Steering,
}

impl Steering {
    /// Has the cores work on packets from tunnels as `steering` distributes them.
    pub(super) fn set(
        &mut self,
        steering: config::Steering,
        placements: &Placements,
        engine: &mut Engine,
    ) -> Result<(), String> {
        let core = |cpu: &u32| -> Result<CoreIndex, String> {
            placements.core(*cpu).ok_or_else(|| format!("CPU {cpu} is no data-plane core"))
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
        engine.set_steering(spec).map_err(|error| error.to_string())?;
        self.asked = steering;
        Ok(())
    }

    /// The cores have other CPUs: packets from tunnels are worked on where the CPUs are that were asked for.
    pub(super) fn follow(&mut self, placements: &Placements, engine: &mut Engine) -> Result<(), String> {
        self.set(self.asked.clone(), placements, engine)
    }

    /// Packets from tunnels are worked on elsewhere; where they were before, if that cannot be.
    pub(super) fn change(
        &mut self,
        change: &config::SteeringChange,
        placements: &Placements,
        engine: &mut Engine,
    ) -> Result<(), ApiError> {
        let mut steering = self.asked.clone();
        change.apply(&mut steering);
        self.set(steering, placements, engine).map_err(|error| ApiError::new(ErrorCode::Failed, error))
    }

    /// For `status`; None: nothing was asked for, and nothing is done.
    pub(super) fn status(&self, placements: &Placements, engine: &Engine) -> Option<SteeringStatus> {
        if self.asked == config::Steering::default() {
            return None;
        }
        let report = engine.steering();
        let cpu = |core: CoreIndex| placements.cpus().get(core.0).copied().unwrap_or_default();
        let share = |(core, counters): (usize, &softdpu_engine::SteeringCounters)| SteeringShare {
            cpu: cpu(CoreIndex(core)),
            buckets: report.buckets.get(core).copied().unwrap_or_default() as u32,
            handed: counters.handed.get(),
            taken: counters.taken.get(),
        };
        Some(SteeringStatus {
            mode: self.asked.mode.word().to_owned(),
            cores: engine.cores().map(|(_, counters)| &counters.steering).enumerate().map(share).collect(),
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
