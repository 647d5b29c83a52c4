//! What both sides agreed on: features, protocol features, device status.

use serde::{Deserialize, Serialize};

use super::DeviceModel;
use super::step::Step;
use super::vrings::Vrings;
use crate::vhost_user::error::{Fault, RestoreError};
use crate::vhost_user::features::{F_ACCESS_PLATFORM, F_LOG_ALL, F_PROTOCOL_FEATURES, ProtocolFeatures};
use crate::vhost_user::layout::RingFormat;
use crate::vhost_user::messages::{RequestId, request};

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

/// Checks that a protocol feature was offered. For some messages the specification asks no more than that: the feature
/// is "present in GET_PROTOCOL_FEATURES".
pub(super) fn require_offered(device: &dyn DeviceModel, feature: ProtocolFeatures) -> Result<(), Fault> {
    if offered_protocol(device).contains(feature) { Ok(()) } else { Err(Fault::NotNegotiated { feature }) }
}

/// GET_QUEUE_NUM. Older front ends ask before they acknowledge MQ: it has only to be in the *queried* features.
pub(super) fn queue_num(device: &dyn DeviceModel) -> Result<Step, Fault> {
    require_offered(device, ProtocolFeatures::MQ)?;
    Step::number(super::queue_limit(device).into())
}

/// What the front end acknowledged, and the device status as the driver last wrote it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Negotiation {
    owned: bool,
    features: Option<u64>,
    protocol_features: Option<ProtocolFeatures>,
    status: u8,
}

impl Negotiation {
    pub(super) fn set_owner(&mut self) {
        self.owned = true;
    }

    /// Acknowledged virtio feature bits, if there are any.
    pub(super) fn features(&self) -> Option<u64> {
        self.features
    }

    /// Acknowledged virtio feature bits; an error while there are none.
    pub(super) fn acknowledged(&self) -> Result<u64, Fault> {
        self.features.ok_or(Fault::OutOfOrder { first: RequestId(request::SET_FEATURES) })
    }

    /// The ring format in force; split while there are no features.
    pub(super) fn format(&self) -> RingFormat {
        RingFormat::of(self.features.unwrap_or(0))
    }

    /// The ring format that was acknowledged; an error before SET_FEATURES.
    pub(super) fn acknowledged_format(&self) -> Result<RingFormat, Fault> {
        self.acknowledged().map(RingFormat::of)
    }

    /// Whether VHOST_F_LOG_ALL is in force.
    pub(super) fn logging(&self) -> bool {
        self.features.unwrap_or(0) & F_LOG_ALL != 0
    }

    pub(super) fn protocol_features(&self) -> ProtocolFeatures {
        self.protocol_features.unwrap_or_default()
    }

    pub(super) fn has(&self, feature: ProtocolFeatures) -> bool {
        self.protocol_features().contains(feature)
    }

    /// Checks that a protocol feature has been negotiated.
    pub(super) fn require(&self, feature: ProtocolFeatures) -> Result<(), Fault> {
        if self.has(feature) { Ok(()) } else { Err(Fault::NotNegotiated { feature }) }
    }

    /// SET_VRING_ENABLE "should be sent only when VHOST_USER_F_PROTOCOL_FEATURES has been negotiated", by which front
    /// ends understand either the feature bit or the exchange of protocol features itself.
    pub(super) fn require_protocol_features(&self) -> Result<(), Fault> {
        if self.features.unwrap_or(0) & F_PROTOCOL_FEATURES == 0 && self.protocol_features.is_none() {
            return Err(Fault::OutOfOrder { first: RequestId(request::SET_PROTOCOL_FEATURES) });
        }
        Ok(())
    }

    /// SET_FEATURES. VHOST_F_LOG_ALL may change while queues run, the others may not.
    pub(super) fn set_features(
        &mut self,
        device: &dyn DeviceModel,
        features: u64,
        vrings: &Vrings,
    ) -> Result<(), Fault> {
        let offered = offered(device);
        if features & !offered != 0 {
            return Err(Fault::NotOffered { bits: features & !offered, offered });
        }
        check_combination(device, features)?;
        // A front end with several queue pairs repeats the message for each while others run already.
        if self.features.unwrap_or(features) & !F_LOG_ALL != features & !F_LOG_ALL {
            vrings.require_stopped("features other than VHOST_F_LOG_ALL")?;
        }
        self.features = Some(features);
        Ok(())
    }

    /// SET_PROTOCOL_FEATURES.
    pub(super) fn set_protocol_features(
        &mut self,
        device: &dyn DeviceModel,
        features: ProtocolFeatures,
        vrings: &Vrings,
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
            vrings.require_stopped("protocol features")?;
        }
        self.protocol_features = Some(features);
        Step::OK
    }

    /// The device status as the driver last wrote it (virtio 1.3 §2.1).
    pub(super) fn status(&self) -> u8 {
        self.status
    }

    /// GET_STATUS.
    pub(super) fn get_status(&self, device: &dyn DeviceModel) -> Result<Step, Fault> {
        self.require(ProtocolFeatures::STATUS)?;
        let needs_reset = if device.needs_reset() { NEEDS_RESET } else { 0 };
        Step::number((self.status | needs_reset).into())
    }

    /// SET_STATUS: the status from now on. 0 asks for a reset, which is the caller's to do.
    pub(super) fn set_status(&mut self, status: u64) -> Result<u8, Fault> {
        self.require(ProtocolFeatures::STATUS)?;
        let Ok(written) = u8::try_from(status) else {
            return Err(Fault::Range { field: "status", found: status, least: 0, most: 255 });
        };
        // Front ends write back what they read, and the device's own bit is not theirs to set.
        self.status = written & !NEEDS_RESET;
        Ok(written)
    }

    /// Back to before SET_FEATURES. The front end does not send protocol features again.
    pub(super) fn reset(&mut self) {
        self.features = None;
        self.status = 0;
    }

    /// Checks that the device still offers what was acknowledged.
    pub(super) fn check_offered(&self, device: &dyn DeviceModel) -> Result<(), RestoreError> {
        let bits = self.features.unwrap_or(0) & !offered(device);
        if bits != 0 {
            return Err(RestoreError::Features { bits });
        }
        match self.protocol_features().without(offered_protocol(device)) {
            ProtocolFeatures::NONE => Ok(()),
            lost => Err(RestoreError::ProtocolFeatures(lost)),
        }
    }

    /// Checks that the device can run with the acknowledged features, if there are any.
    pub(super) fn check_features(&self, device: &dyn DeviceModel) -> Result<(), Fault> {
        self.features.map_or(Ok(()), |features| check_combination(device, features))
    }
}

fn check_combination(device: &dyn DeviceModel, features: u64) -> Result<(), Fault> {
    device.check_features(features & !(F_PROTOCOL_FEATURES | F_LOG_ALL)).map_err(Fault::Device)
}
