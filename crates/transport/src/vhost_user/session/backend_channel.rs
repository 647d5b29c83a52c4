//! The back-end channel: SET_BACKEND_REQ_FD (vhost-user: Back-end communication).

use serde::{Deserialize, Serialize};

use super::command::{BackendMessage, FdId};
use super::negotiation::Negotiation;
use crate::vhost_user::client::backend_request;
use crate::vhost_user::features::ProtocolFeatures;
use crate::vhost_user::framing::Header;

/// The channel on which the back end sends, and the one message that may have to wait before it is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BackendChannel {
    #[serde(rename = "backend_channel")]
    socket: Option<FdId>,
    /// The configuration changed while the device was suspended; CONFIG_CHANGE_MSG is sent when a queue starts.
    config_changed: bool,
}

impl BackendChannel {
    pub(super) fn set(&mut self, socket: Option<FdId>) {
        self.socket = socket;
    }

    pub(super) fn descriptor(&self) -> Option<FdId> {
        self.socket
    }

    /// CONFIG_CHANGE_MSG, if the front end negotiated it.
    pub(super) fn config_change(&self, negotiation: &Negotiation) -> Option<BackendMessage> {
        let channel = self.socket?;
        let wanted = negotiation.has(ProtocolFeatures::BACKEND_REQ) && negotiation.has(ProtocolFeatures::CONFIG);
        let header = Header::request(backend_request::CONFIG_CHANGE_MSG, false, 0);
        wanted.then(|| BackendMessage { channel, bytes: header.encode().to_vec() })
    }

    /// Keeps CONFIG_CHANGE_MSG back until a queue runs.
    pub(super) fn defer_config_change(&mut self) {
        self.config_changed = true;
    }

    /// A queue runs: the message that was kept back.
    pub(super) fn deferred_config_change(&mut self, negotiation: &Negotiation) -> Option<BackendMessage> {
        if std::mem::take(&mut self.config_changed) { self.config_change(negotiation) } else { None }
    }
}
