//! The data plane, and those that are not reaped yet, as the next program of the supervisor is given them.

use std::io;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::running::{Running, RunningState};
use super::standby::{Promotion, Replaced};
use super::{Plane, Spawner};
use crate::poller::{EventFlags, Poller, Token};
use crate::process::ProcessState;
use crate::reexec::{FdIndex, Leaving, Left, Moment, NoFd};
use crate::restart::RestartPolicy;
use crate::supervisor::Timing;
use softdpu_link::Death;

/// [`Plane`], of which none is on standby and which was not told to stop.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PlaneState {
    /// The program of which the next one is.
    program: FdIndex,
    running: Option<RunningState>,
    promotion: Option<PromotionState>,
    replaced: Vec<ReplacedState>,
    hanging: Vec<HangingState>,
    started: u64,
    incarnation: u64,
    restarts: u64,
    start_at: Option<Moment>,
    young_deaths: u32,
    death: Option<Death>,
    last_exit: Option<String>,
    time_to_ready: Option<Duration>,
    first_completion_ns: Option<u64>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PromotionState {
    at: Moment,
    before: FdIndex,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplacedState {
    running: RunningState,
    due: Moment,
    is_leaving: bool,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HangingState {
    incarnation: u64,
    process: ProcessState,
    end: FdIndex,
}

impl Plane {
    /// An error says that the program of the next one cannot be opened.
    pub(crate) fn kept<'a>(&'a self, leaving: &mut Leaving<'a>) -> io::Result<PlaneState> {
        let promotion = self.promotion.as_ref().map(|Promotion { at, before }| {
            Ok::<_, io::Error>(PromotionState { at: (*at).into(), before: leaving.give(before.file()?) })
        });
        let promotion = promotion.transpose()?;
        let replaced = self.replaced.iter().map(|replaced| ReplacedState {
            running: replaced.running.state(leaving),
            due: replaced.due.into(),
            is_leaving: replaced.is_leaving,
        });
        let replaced = replaced.collect();
        let hanging = self.hanging.iter().map(|(incarnation, process)| HangingState {
            incarnation: *incarnation,
            process: process.state(),
            end: leaving.add(process.end()),
        });
        let hanging = hanging.collect();
        Ok(PlaneState {
            program: leaving.give(self.spawner.file()?),
            running: self.running.as_ref().map(|running| running.state(leaving)),
            promotion,
            replaced,
            hanging,
            started: self.started,
            incarnation: self.incarnation,
            restarts: self.restarts,
            start_at: self.start_at.map(Moment::from),
            young_deaths: self.policy.young_deaths(),
            death: self.death.clone(),
            last_exit: self.last_exit.clone(),
            time_to_ready: self.time_to_ready,
            first_completion_ns: self.first_completion_ns,
        })
    }

    /// Takes up what the program before had. `any` is a spawner of any program.
    pub(crate) fn resume(
        state: PlaneState,
        left: &mut Left,
        any: &dyn Spawner,
        timing: Timing,
        poller: Poller,
    ) -> Result<Plane, NoFd> {
        let watch_end = |fd: std::os::fd::BorrowedFd<'_>, incarnation| {
            if let Err(error) = poller.watch(fd, Token::End { incarnation }, EventFlags::IN) {
                tracing::error!(%error, "the data plane's end cannot be waited for");
            }
        };
        let running = |state, left: &mut Left| -> Result<Running, NoFd> {
            let running = Running::resume(state, left, any)?;
            watch_end(running.process.end(), running.incarnation);
            Ok(running)
        };
        let mut plane = Plane::new(any.of(left.own(state.program)?), timing, poller.clone());
        plane.running = state.running.map(|state| running(state, left)).transpose()?;
        for ReplacedState { running: state, due, is_leaving } in state.replaced {
            plane.replaced.push(Replaced { running: running(state, left)?, due: due.into(), is_leaving });
        }
        for HangingState { incarnation, process, end } in state.hanging {
            let process = any.adopt(process, left.own(end)?);
            watch_end(process.end(), incarnation);
            plane.hanging.push((incarnation, process));
        }
        if let Some(PromotionState { at, before }) = state.promotion {
            plane.promotion = Some(Promotion { at: at.into(), before: any.of(left.own(before)?) });
        }
        plane.started = state.started;
        plane.incarnation = state.incarnation;
        plane.restarts = state.restarts;
        plane.start_at = state.start_at.map(Instant::from);
        // What the kernel had no room for is tried at once.
        plane.resend_at = Some(Instant::now());
        plane.policy = RestartPolicy::resume(state.young_deaths);
        plane.death = state.death;
        plane.last_exit = state.last_exit;
        plane.time_to_ready = state.time_to_ready;
        plane.first_completion_ns = state.first_completion_ns;
        Ok(plane)
    }
}
