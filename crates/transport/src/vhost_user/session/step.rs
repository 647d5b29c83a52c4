//! What a message comes to, its effect on the draft aside.

use super::command::{Command, QueueIndex};
use crate::vhost_user::codec::Writer;
use crate::vhost_user::error::Fault;
use crate::vhost_user::messages::InflightDescription;

/// What is to happen after a message was applied to the draft.
pub(super) enum Step {
    /// The draft becomes the state, and this is the answer.
    Done(Answer),
    /// The draft becomes the state once the command is acknowledged.
    Then(Command, Finish),
}

impl Step {
    /// Success, and nothing else to say.
    pub(super) const OK: Result<Step, Fault> = Ok(Step::Done(Answer::Status));

    /// A reply that is one number.
    pub(super) fn number(value: u64) -> Result<Step, Fault> {
        Ok(Step::Done(Answer::Payload(Writer::new().u64(value).done())))
    }

    /// The command decides: a status of zero follows it.
    pub(super) fn command(command: Command) -> Result<Step, Fault> {
        Ok(Step::Then(command, Finish::Status))
    }
}

/// What to send back.
pub(super) enum Answer {
    /// A status of zero, if it was asked for.
    Status,
    /// The request's own reply.
    Payload(Vec<u8>),
}

/// How to go on after the acknowledgement.
#[derive(Clone, Debug)]
pub(super) enum Finish {
    /// A status of zero, if it was asked for.
    Status,
    /// SET_LOG_BASE has a reply of its own: its payload.
    Log(Vec<u8>),
    /// GET_VRING_BASE: position into the draft and into the reply.
    Base(QueueIndex),
    /// The status was set to 0: positions of the queues that ran, into the draft.
    Reset,
    /// Positions of the queues that lost their memory, into the draft.
    Broken(Vec<QueueIndex>),
    /// GET_INFLIGHT_FD: describe the file and attach it.
    Inflight(InflightDescription),
}
