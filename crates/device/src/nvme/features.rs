//! Set Features and Get Features (Base §5.15, §5.27; NVM §4.1.3).

use std::sync::atomic::Ordering;

use super::abi::feature;
use super::admin::Done;
use super::config::ControllerConfig;
use super::{BROADCAST, Command, Controller, Status};

/// Bytes of the Host Behavior Support structure.
const HOST_BEHAVIOR: usize = 512;

/// Features whose value the controller keeps as it was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Features {
    pub arbitration: u32,
    pub error_recovery: u32,
    /// I/O submission and completion queues that the host asked for last.
    pub queues: u32,
    pub coalescing: u32,
    /// By interrupt vector: Coalescing Disable.
    pub vectors: Vec<bool>,
    pub atomicity: u32,
    /// Asynchronous Event Configuration.
    pub events: u32,
    /// Composite temperature thresholds, over and under, Kelvin.
    pub temperature: [u16; 2],
    /// What the host set, and when, milliseconds.
    pub timestamp: Option<(u64, u64)>,
    /// Advanced Command Retry Enable.
    pub host_behavior: u8,
    pub host_id: [u8; 16],
}

/// The over temperature threshold at first: WCTEMP, Kelvin.
const WARNING: u16 = 343;

impl Features {
    pub fn new(config: &ControllerConfig) -> Features {
        Features {
            arbitration: 0,
            error_recovery: 0,
            queues: 0,
            coalescing: 0,
            vectors: vec![false; usize::from(config.vectors)],
            atomicity: 0,
            events: 0,
            temperature: [WARNING, 0],
            timestamp: None,
            host_behavior: 0,
            host_id: [0; 16],
        }
    }

    /// A controller reset: what is not saved goes back to its default. The time goes on (Base §5.27.1.11).
    pub fn reset(&mut self, config: &ControllerConfig) {
        *self = Features { timestamp: self.timestamp, ..Features::new(config) };
    }

    /// I/O queues that the host may create: those that there are, whatever it asked for.
    pub fn queues_granted(&self, config: &ControllerConfig) -> u16 {
        config.queues
    }
}

/// What a feature is (Base §5.15.2, supported capabilities).
fn capabilities(id: u8) -> Option<u32> {
    const CHANGEABLE: u32 = 1 << 2;
    const NAMESPACE: u32 = 1 << 1;
    match id {
        feature::ERROR_RECOVERY => Some(CHANGEABLE | NAMESPACE),
        feature::ARBITRATION
        | feature::POWER
        | feature::TEMPERATURE
        | feature::WRITE_CACHE
        | feature::QUEUES
        | feature::COALESCING
        | feature::VECTOR
        | feature::ATOMICITY
        | feature::EVENTS
        | feature::TIMESTAMP
        | feature::HOST_BEHAVIOR
        | feature::HOST_ID => Some(CHANGEABLE),
        _ => None,
    }
}

/// Whether there is such a feature.
pub(super) fn is_supported(id: u8) -> bool {
    capabilities(id).is_some()
}

impl Controller {
    pub(super) fn get_features(&mut self, command: &Command) -> Result<Done, Status> {
        let cdw10 = command.dword(10);
        let (id, select) = (cdw10 as u8, cdw10 >> 8 & 7);
        let capabilities = capabilities(id).ok_or(Status::INVALID_FIELD)?;
        self.check_feature_namespace(id, command.nsid())?;
        let defaults = Features::new(&self.config);
        let (features, write_cache) = match select {
            0 => (&self.features, self.shared.write_cache.load(Ordering::Acquire)),
            // Nothing is saved: what is, is the default.
            1 | 2 => (&defaults, true),
            3 => return Ok(Done::Now(capabilities)),
            _ => return Err(Status::INVALID_FIELD),
        };
        let cdw11 = command.dword(11);
        let value = match id {
            feature::ARBITRATION => features.arbitration,
            feature::POWER => 0,
            feature::TEMPERATURE => features.temperature[threshold(cdw11)?].into(),
            feature::ERROR_RECOVERY => features.error_recovery,
            feature::WRITE_CACHE => write_cache.into(),
            feature::QUEUES => self.granted(),
            feature::COALESCING => features.coalescing,
            feature::VECTOR => {
                let vector = cdw11 & 0xffff;
                let disabled = features.vectors.get(vector as usize).ok_or(Status::INVALID_FIELD)?;
                vector | u32::from(*disabled) << 16
            }
            feature::ATOMICITY => features.atomicity,
            feature::EVENTS => features.events,
            feature::TIMESTAMP => {
                self.give(command, &self.timestamp(features.timestamp))?;
                0
            }
            feature::HOST_BEHAVIOR => {
                let mut bytes = [0; HOST_BEHAVIOR];
                bytes[0] = features.host_behavior;
                self.give(command, &bytes)?;
                0
            }
            feature::HOST_ID => {
                // EXHID: 128 bits, or 64.
                let len = if cdw11 & 1 != 0 { 16 } else { 8 };
                self.give(command, &features.host_id[..len])?;
                cdw11 & 1
            }
            _ => return Err(Status::INVALID_FIELD),
        };
        Ok(Done::Now(value))
    }

    pub(super) fn set_features(&mut self, command: &Command) -> Result<Done, Status> {
        let (cdw10, value) = (command.dword(10), command.dword(11));
        let id = cdw10 as u8;
        if capabilities(id).is_none() {
            return Err(Status::INVALID_FIELD);
        }
        if cdw10 >> 31 != 0 {
            return Err(Status::NOT_SAVEABLE);
        }
        self.check_feature_namespace(id, command.nsid())?;
        match id {
            feature::ARBITRATION => self.features.arbitration = value,
            // One power state, and no workload hints.
            feature::POWER if value & 0x1f != 0 => return Err(Status::INVALID_FIELD),
            feature::POWER => {}
            feature::TEMPERATURE => self.features.temperature[threshold(value)?] = value as u16,
            // DULBE: deallocated blocks are never an error here.
            feature::ERROR_RECOVERY if value & 1 << 16 != 0 => return Err(Status::INVALID_FIELD),
            feature::ERROR_RECOVERY => self.features.error_recovery = value & 0xffff,
            feature::WRITE_CACHE => self.shared.write_cache.store(value & 1 != 0, Ordering::Release),
            feature::QUEUES => {
                // Not once there are I/O queues (Base §5.27.1.5).
                if self.queues.cqs.iter().any(Option::is_some) || self.queues.is_any_running() {
                    return Err(Status::SEQUENCE);
                }
                if value & 0xffff == 0xffff || value >> 16 == 0xffff {
                    return Err(Status::INVALID_FIELD);
                }
                self.features.queues = value;
                return Ok(Done::Now(self.granted()));
            }
            feature::COALESCING => self.features.coalescing = value & 0xffff,
            feature::VECTOR => {
                let vector = self.features.vectors.get_mut((value & 0xffff) as usize).ok_or(Status::INVALID_FIELD)?;
                *vector = value & 1 << 16 != 0;
            }
            feature::ATOMICITY => self.features.atomicity = value & 1,
            feature::EVENTS => self.features.events = value,
            feature::TIMESTAMP => {
                let mut bytes = [0; 8];
                self.take(command, &mut bytes)?;
                self.features.timestamp = Some((u64::from_le_bytes(bytes) & 0xffff_ffff_ffff, self.now_ms));
            }
            feature::HOST_BEHAVIOR => {
                let mut bytes = [0; HOST_BEHAVIOR];
                self.take(command, &mut bytes)?;
                if bytes[0] > 1 {
                    return Err(Status::INVALID_FIELD);
                }
                self.features.host_behavior = bytes[0];
            }
            feature::HOST_ID => {
                let mut bytes = [0; 16];
                let len = if value & 1 != 0 { 16 } else { 8 };
                self.take(command, &mut bytes[..len])?;
                self.features.host_id = bytes;
            }
            _ => return Err(Status::NOT_CHANGEABLE),
        }
        Ok(Done::Now(0))
    }

    /// Number of Queues, dword 0: both 0's based.
    fn granted(&self) -> u32 {
        let count = u32::from(self.features.queues_granted(&self.config)) - 1;
        count | count << 16
    }

    /// The Timestamp structure (Base §5.27.1.11): milliseconds, and their origin.
    fn timestamp(&self, set: Option<(u64, u64)>) -> [u8; 8] {
        let (value, origin) = match set {
            Some((value, at)) => (value + self.now_ms.saturating_sub(at), 1),
            None => (0, 0),
        };
        (value & 0xffff_ffff_ffff | origin << 49).to_le_bytes()
    }

    /// A feature of a namespace is that of one which there is, or of all of them (Base §5.15, §5.27).
    fn check_feature_namespace(&self, id: u8, nsid: u32) -> Result<(), Status> {
        if id == feature::ERROR_RECOVERY && nsid != BROADCAST && self.shared.active(nsid).is_none() {
            return Err(Status::INVALID_NAMESPACE);
        }
        Ok(())
    }
}

/// Which temperature threshold CDW11 selects: over (0) or under (1), of the composite temperature or all sensors.
fn threshold(cdw11: u32) -> Result<usize, Status> {
    let (sensor, kind) = (cdw11 >> 16 & 15, cdw11 >> 20 & 3);
    if kind > 1 || (sensor != 0 && sensor != 15) {
        return Err(Status::INVALID_FIELD);
    }
    Ok(kind as usize)
}
