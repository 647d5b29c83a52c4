//! Cores that join and leave while the data plane runs.

use softdpu_api::{ApiError, ErrorCode};
use softdpu_engine::EngineError;
use softdpu_site::{Dataplane, ScaleChange};
use softdpu_sys::affinity;
use softdpu_transport::vhost_user::QueueIndex;

use super::DataPlane;

/// Cores that there may be where `max-cores` does not say: each takes a thread, an io_uring and its tables.
const DEFAULT_MOST: usize = 8;

/// Threads that are started beside those of the configured cores, so that so many cores may join.
pub(super) fn spare(settings: &Dataplane) -> usize {
    let most = settings.max_cores.map_or_else(|| affinity::allowed().len().min(DEFAULT_MOST), |most| most as usize);
    most.saturating_sub(settings.cores.len())
}

fn refused(error: &EngineError) -> ApiError {
    let refused = ApiError::new(ErrorCode::Refused, error.to_string());
    match error {
        EngineError::TooManyCores { .. } => {
            refused.hint("set node.dataplane.max-cores and upgrade or restart the daemon")
        }
        EngineError::Pin { .. } => refused.hint("name only CPUs that the daemon may use"),
        EngineError::BoundSockets { .. } => {
            refused.hint("set `backend = \"af-packet\"` in [node.underlay] and restart the daemon for fewer")
        }
        _ => refused,
    }
}

impl DataPlane {
    /// The data plane has other CPUs from now on; all is as it was where that cannot be.
    pub(super) fn scale(&mut self, change: &ScaleChange) -> Result<(), ApiError> {
        let DataPlane { engine, placements, devices, steering, .. } = self;
        let cpus: Vec<usize> = change.cores.iter().map(|cpu| *cpu as usize).collect();
        let arranged = engine.scale(&cpus).map_err(|error| refused(&error))?;
        tracing::info!(cores = ?arranged, "the data plane has other CPUs");
        placements.scale(arranged.into_iter().map(|cpu| cpu as u32).collect());
        for device in devices.iter() {
            for index in 0..device.counters.len() as u16 {
                if let (Some(key), Some(core)) = (device.queue(index), device.core_for(QueueIndex(index), placements))
                    && let Err(error) = engine.move_queue(key, core)
                {
                    tracing::error!(device = %device.name, queue = index, %error, "a queue is not on its own CPU");
                }
            }
        }
        if let Err(error) = steering.follow(placements, engine) {
            tracing::error!(error, "packets from tunnels are worked on where they are read");
        }
        Ok(())
    }
}
