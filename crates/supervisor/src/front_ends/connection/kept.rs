//! A connection as the next program of the supervisor is given it.

use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};

use super::{FrontEnd, HEADER_SIZE, Pending, Progress, Reply};
use crate::reexec::{Bytes, FdIndex, Leaving, Left, NoFd};
use softdpu_api::status::Peer;
use softdpu_link::{ConnectionId, FdId, SharedFd};

/// [`FrontEnd`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FrontEndState {
    id: ConnectionId,
    device: String,
    socket: FdIndex,
    peer: Option<Peer>,
    session: Option<String>,
    progress: Progress,
    session_deaths: u32,
    fds: Vec<(FdId, FdIndex)>,
    next_fd: FdId,
    reading: Bytes,
    reading_fds: Vec<FdIndex>,
    pending: Option<PendingState>,
    replies: Vec<ReplyState>,
}

/// [`Pending`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PendingState {
    header: [u8; HEADER_SIZE],
    payload: Bytes,
    fds: Vec<(FdId, FdIndex)>,
    given: Option<u64>,
    deaths: u32,
}

/// What is left of a [`Reply`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplyState {
    bytes: Bytes,
    fds: Vec<FdIndex>,
}

impl FrontEnd {
    pub(crate) fn state<'a>(&'a self, leaving: &mut Leaving<'a>) -> FrontEndState {
        let pending = self.pending.as_ref().map(|pending| PendingState {
            header: pending.header,
            payload: Bytes(pending.payload.clone()),
            fds: pending.fds.iter().map(|(id, fd)| (*id, leaving.add(fd.as_fd()))).collect(),
            given: pending.given,
            deaths: pending.deaths,
        });
        let replies = self.replies.iter().map(|reply| ReplyState {
            bytes: Bytes(reply.bytes[reply.sent..].to_vec()),
            fds: reply.fds.iter().map(|fd| leaving.add(fd.as_fd())).collect(),
        });
        let replies = replies.collect();
        FrontEndState {
            id: self.id,
            device: self.device.clone(),
            socket: leaving.add(self.socket.as_fd()),
            peer: self.peer,
            session: self.session.clone(),
            progress: self.progress,
            session_deaths: self.session_deaths,
            fds: self.fds.iter().map(|(id, fd)| (*id, leaving.add(fd.as_fd()))).collect(),
            next_fd: self.next_fd,
            reading: Bytes(self.reading.clone()),
            reading_fds: self.reading_fds.iter().map(|fd| leaving.add(fd.as_fd())).collect(),
            pending,
            replies,
        }
    }

    pub(crate) fn resume(state: FrontEndState, left: &mut Left) -> Result<FrontEnd, NoFd> {
        let pending = state.pending.map(|pending| {
            let PendingState { header, payload: Bytes(payload), fds, given, deaths } = pending;
            let fds = fds.into_iter().map(|(id, fd)| Ok((id, left.share(fd)?)));
            Ok(Pending { header, payload, fds: fds.collect::<Result<_, NoFd>>()?, given, deaths })
        });
        let pending = pending.transpose()?;
        let replies = state.replies.into_iter().map(|ReplyState { bytes: Bytes(bytes), fds }| {
            let fds = fds.into_iter().map(|fd| left.share(fd)).collect::<Result<_, NoFd>>()?;
            Ok(Reply { bytes, sent: 0, fds })
        });
        let replies = replies.collect::<Result<_, NoFd>>()?;
        let fds = state.fds.into_iter().map(|(id, fd)| Ok((id, left.share(fd)?)));
        Ok(FrontEnd {
            id: state.id,
            device: state.device,
            fds: fds.collect::<Result<std::collections::BTreeMap<FdId, SharedFd>, NoFd>>()?,
            socket: left.own(state.socket)?.into(),
            peer: state.peer,
            session: state.session,
            progress: state.progress,
            session_deaths: state.session_deaths,
            next_fd: state.next_fd,
            reading: state.reading.0,
            reading_fds: state
                .reading_fds
                .into_iter()
                .map(|fd| Ok(left.own(fd)?.into()))
                .collect::<Result<_, NoFd>>()?,
            pending,
            replies,
            held_up: false,
        })
    }
}
