//! Features, protocol features, device status, reset.

use super::command::{Command, ResetCause};
use super::state::{State, Vring};
use super::{Answer, DeviceModel, Finish, Step};
use crate::vhost_user::error::Fault;
use crate::vhost_user::features::{F_ACCESS_PLATFORM, F_LOG_ALL, F_PROTOCOL_FEATURES, ProtocolFeatures};

/// DEVICE_NEEDS_RESET (virtio 1.3 §2.1), which only the device sets.
const NEEDS_RESET: u8 = 64;

/// The feature bits GET_FEATURES answers with.
pub(super) fn offered(device: &dyn DeviceModel) -> u64 {
    let logging = if offered_protocol(device).contains(ProtocolFeatures::LOG_SHMFD) { F_LOG_ALL } else { 0 };
    (device.features() & !F_ACCESS_PLATFORM) | F_PROTOCOL_FEATURES | logging
}

/// The protocol features GET_PROTOCOL_FEATURES answers with.
pub(super) fn offered_protocol(device: &dyn DeviceModel) -> ProtocolFeatures {
    device.protocol_features().and(ProtocolFeatures::IMPLEMENTED)
}

/// GET_QUEUE_NUM. Older front ends ask before they acknowledge MQ: it has only to be in the *queried* features.
pub(super) fn queue_num(device: &dyn DeviceModel) -> Result<Step, Fault> {
    if !offered_protocol(device).contains(ProtocolFeatures::MQ) {
        return Err(Fault::NotNegotiated { feature: ProtocolFeatures::MQ });
    }
    Ok(Step::Done(Answer::number(super::queue_limit(device).into())))
}

impl State {
    pub(super) fn set_features(&mut self, device: &dyn DeviceModel, features: u64) -> Result<Step, Fault> {
        let offered = offered(device);
        if features & !offered != 0 {
            return Err(Fault::NotOffered { bits: features & !offered, offered });
        }
        device.check_features(features & !(F_PROTOCOL_FEATURES | F_LOG_ALL)).map_err(Fault::Device)?;
        let before = self.dirty_log();
        // A front end with several queue pairs repeats the message for each while others run already.
        if self.features.unwrap_or(features) & !F_LOG_ALL != features & !F_LOG_ALL {
            self.require_stopped("features other than VHOST_F_LOG_ALL")?;
        }
        self.features = Some(features);
        // vhost-user, Ring states: "upon receiving a VHOST_USER_SET_FEATURES message from the front-end without
        // VHOST_USER_F_PROTOCOL_FEATURES set, the back-end must enable all rings immediately".
        if features & F_PROTOCOL_FEATURES == 0 && self.running().is_none() {
            self.vrings.iter_mut().for_each(|ring| ring.enabled = true);
        }
        let now = self.dirty_log();
        if now == before { Step::OK } else { Ok(Step::Then(Command::DirtyLog(now), Finish::Status)) }
    }

    pub(super) fn set_protocol_features(
        &mut self,
        device: &dyn DeviceModel,
        features: ProtocolFeatures,
    ) -> Result<Step, Fault> {
        let offered = offered_protocol(device);
        let excess = features.without(offered);
        if excess != ProtocolFeatures::NONE {
            return Err(Fault::NotOffered { bits: excess.0, offered: offered.0 });
        }
        // vhost-user, GET_VRING_BASE: the feature "must only be negotiated if INFLIGHT_SHMFD is also negotiated".
        let (feature, needs) = (ProtocolFeatures::GET_VRING_BASE_INFLIGHT, ProtocolFeatures::INFLIGHT_SHMFD);
        if features.contains(feature) && !features.contains(needs) {
            return Err(Fault::FeatureNeeds { feature, needs });
        }
        if self.protocol_features.is_some_and(|before| before != features) {
            self.require_stopped("protocol features")?;
        }
        self.protocol_features = Some(features);
        Step::OK
    }

    pub(super) fn get_status(&self, device: &dyn DeviceModel) -> Result<Step, Fault> {
        self.require(ProtocolFeatures::STATUS)?;
        let needs_reset = if device.needs_reset() { NEEDS_RESET } else { 0 };
        Ok(Step::Done(Answer::number((self.status | needs_reset).into())))
    }

    pub(super) fn set_status(&mut self, status: u64) -> Result<Step, Fault> {
        self.require(ProtocolFeatures::STATUS)?;
        let Ok(status) = u8::try_from(status) else {
            return Err(Fault::Range { field: "status", found: status, least: 0, most: 255 });
        };
        // virtio 1.3 §2.1.2: "The device MUST reset when 0 is written to the device status".
        if status == 0 {
            return Ok(self.reset(ResetCause::Status));
        }
        // Front ends write back what they read, and the device's own bit is not theirs to set.
        self.status = status & !NEEDS_RESET;
        Ok(Step::Then(Command::Status(self.status), Finish::Status))
    }

    /// Back to before SET_FEATURES. Kept is what the front end believes to be kept and does not send again: the memory
    /// table, of which QEMU sends only differences, protocol features, the back-end channel, logs, and the call and
    /// error descriptors, which QEMU sends when it connects.
    pub(super) fn reset(&mut self, cause: ResetCause) -> Step {
        for ring in &mut self.vrings {
            *ring = Vring { call: ring.call, err: ring.err, ..Vring::default() };
        }
        self.features = None;
        self.status = 0;
        self.inflight = None;
        self.mtu = None;
        let finish = if cause == ResetCause::Status { Finish::Reset } else { Finish::Status };
        Step::Then(Command::Reset(cause), finish)
    }
}
