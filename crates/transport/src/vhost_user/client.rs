//! The driver's side: what a front end sends and how it reads the answers.
//!
//! For load generators and tests. A [`Client`] keeps what decides whether a message is answered; sending bytes and
//! descriptors, and reading exactly as many bytes as a header says, is the caller's.
//!
//! ```
//! use softdpu_transport::vhost_user::{Message, client::Client};
//!
//! let mut client = Client::default();
//! let sent = client.request(&Message::GetFeatures);
//! // … write sent.bytes, then read a header and its payload …
//! # assert_eq!(sent.bytes.len(), 12);
//! ```

use thiserror::Error;

use super::codec::Reader;
use super::error::Fault;
use super::features::ProtocolFeatures;
use super::framing::Header;
use super::messages::{CONFIG_HEADER, ConfigSpace, InflightDescription, LogDescription, Message, RequestId, request};

/// Ids of the back end's requests (vhost-user: Back-end message types).
pub mod backend_request {
    /// The configuration space changed.
    pub const CONFIG_CHANGE_MSG: u32 = 2;
}

/// A front end's knowledge of the connection.
#[derive(Clone, Debug, Default)]
pub struct Client {
    /// Set by SET_PROTOCOL_FEATURES.
    protocol_features: ProtocolFeatures,
}

/// A message to be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// Header and payload.
    pub bytes: Vec<u8>,
    /// How many descriptors to attach.
    pub fds: usize,
    /// The request to wait for an answer to, if there will be one.
    pub answer: Option<RequestId>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The request succeeded.
    Done,
    /// Features, a count, a status.
    Number(u64),
    /// GET_VRING_BASE.
    Base {
        /// The queue.
        index: u32,
        /// Its position; see [`VringBase::from_wire`](super::VringBase::from_wire).
        number: u32,
    },
    /// GET_CONFIG.
    Config(ConfigSpace),
    /// GET_INFLIGHT_FD; one descriptor comes with it.
    Inflight(InflightDescription),
    /// SET_LOG_BASE.
    Log(LogDescription),
}

/// Why an answer is none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClientError {
    /// Another request was answered, or this is not an answer.
    #[error("waited for the reply to {expected}, found {} {found}", if *.reply { "the reply to" } else { "the request" })]
    Unexpected {
        /// The request that was waited for.
        expected: RequestId,
        /// The request in the header.
        found: RequestId,
        /// Whether the header's reply flag is set.
        reply: bool,
    },
    /// The back end refused.
    #[error("the back end refused {request} with status {status}")]
    Failed {
        /// The request.
        request: RequestId,
        /// The status, not zero.
        status: u64,
    },
    /// The answer cannot be read.
    #[error("reply to {0}: {1}")]
    Malformed(RequestId, Fault),
}

impl Client {
    /// Encodes `message`, and tells whether it will be answered. After REPLY_ACK has been negotiated every message is.
    pub fn request(&mut self, message: &Message) -> Outgoing {
        let id = message.id();
        let acknowledged = self.protocol_features.contains(ProtocolFeatures::REPLY_ACK) && !id.has_reply();
        if let Message::SetProtocolFeatures(features) = message {
            self.protocol_features = ProtocolFeatures(*features);
        }
        Outgoing {
            bytes: message.encode(acknowledged),
            fds: message.fds(),
            answer: (acknowledged || id.has_reply()).then_some(id),
        }
    }

    /// Reads the answer to `request`.
    ///
    /// # Errors
    /// The back end refused, or the answer belongs to something else.
    pub fn answer(&self, expected: RequestId, header: &Header, payload: &[u8]) -> Result<Answer, ClientError> {
        if header.request != expected.0 || !header.reply {
            let found = RequestId(header.request);
            return Err(ClientError::Unexpected { expected, found, reply: header.reply });
        }
        // libvhost-user fails with no payload at all, others with a size of 0 in the fields before the contents.
        if expected.0 == request::GET_CONFIG && payload.len() <= CONFIG_HEADER {
            return Err(ClientError::Failed { request: expected, status: 1 });
        }
        let answer = decode(expected, payload).map_err(|fault| ClientError::Malformed(expected, fault))?;
        match answer {
            Answer::Number(0) if !expected.has_reply() => Ok(Answer::Done),
            Answer::Number(status) if !expected.has_reply() => Err(ClientError::Failed { request: expected, status }),
            Answer::Inflight(InflightDescription { mmap_size: 0, .. }) => {
                Err(ClientError::Failed { request: expected, status: 1 })
            }
            answer => Ok(answer),
        }
    }
}

fn decode(expected: RequestId, payload: &[u8]) -> Result<Answer, Fault> {
    // The replies that are not a number have the form of their request.
    let header = Header::request(expected.0, false, payload.len() as u32);
    let same_form = || Message::decode(&header, payload).map_err(|error| error.fault);
    Ok(match expected.0 {
        request::GET_VRING_BASE | request::GET_CONFIG | request::GET_INFLIGHT_FD | request::SET_LOG_BASE => {
            match same_form()? {
                Message::GetVringBase(ring) => Answer::Base { index: ring.index, number: ring.num },
                Message::GetConfig(config) => Answer::Config(config),
                Message::GetInflightFd(inflight) => Answer::Inflight(inflight),
                Message::SetLogBase(log) => Answer::Log(log),
                _ => return Err(Fault::UnknownRequest),
            }
        }
        _ => {
            let mut reader = Reader::new(payload);
            reader.expect(8)?;
            Answer::Number(reader.u64()?)
        }
    })
}
