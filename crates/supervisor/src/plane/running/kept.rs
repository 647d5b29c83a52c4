//! A data plane that was started, as the next program of the supervisor is given it.

use std::os::fd::AsFd;

use serde::{Deserialize, Serialize};

use super::{Hello, Running, Spawner};
use crate::process::ProcessState;
use crate::reexec::{Bytes, FdIndex, Leaving, Left, Moment, NoFd};
use softdpu_link::{SharedFd, SupervisorLink};

/// [`Running`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunningState {
    incarnation: u64,
    process: ProcessState,
    end: FdIndex,
    ready: bool,
    hello: Option<Hello>,
    link: LinkState,
    link_is_done: bool,
    started: Moment,
    beat: Moment,
    look: Moment,
    killed: Option<String>,
}

/// The supervisor's end of a link.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LinkState {
    socket: FdIndex,
    outgoing: Vec<(Bytes, Vec<FdIndex>)>,
    incoming: Bytes,
    incoming_fds: Vec<FdIndex>,
}

impl Running {
    pub(in crate::plane) fn state<'a>(&'a self, leaving: &mut Leaving<'a>) -> RunningState {
        let unfinished = self.link.unfinished();
        let outgoing = unfinished
            .outgoing
            .into_iter()
            .map(|(bytes, fds)| (Bytes(bytes.to_vec()), fds.into_iter().map(|fd| leaving.add(fd.as_fd())).collect()));
        let outgoing = outgoing.collect();
        let link = LinkState {
            socket: leaving.add(self.link.as_fd()),
            outgoing,
            incoming: Bytes(unfinished.incoming.to_vec()),
            incoming_fds: unfinished.incoming_fds.into_iter().map(|fd| leaving.add(fd.as_fd())).collect(),
        };
        RunningState {
            incarnation: self.incarnation,
            process: self.process.state(),
            end: leaving.add(self.process.end()),
            ready: self.ready,
            hello: self.hello.clone(),
            link,
            link_is_done: self.link_is_done,
            started: self.started.into(),
            beat: self.beat.into(),
            look: self.look.into(),
            killed: self.killed.clone(),
        }
    }

    pub(in crate::plane) fn resume(state: RunningState, left: &mut Left, any: &dyn Spawner) -> Result<Running, NoFd> {
        let LinkState { socket, outgoing, incoming: Bytes(incoming), incoming_fds } = state.link;
        let outgoing = outgoing.into_iter().map(|(Bytes(bytes), fds)| {
            let fds = fds.into_iter().map(|fd| left.share(fd)).collect::<Result<Vec<SharedFd>, NoFd>>()?;
            Ok((bytes, fds))
        });
        let outgoing = outgoing.collect::<Result<_, NoFd>>()?;
        let incoming_fds = incoming_fds.into_iter().map(|fd| Ok(left.own(fd)?.into()));
        let incoming_fds = incoming_fds.collect::<Result<_, NoFd>>()?;
        Ok(Running {
            incarnation: state.incarnation,
            process: any.adopt(state.process, left.own(state.end)?),
            ready: state.ready,
            hello: state.hello,
            link: SupervisorLink::resume(left.own(socket)?, outgoing, incoming, incoming_fds),
            link_is_done: state.link_is_done,
            started: state.started.into(),
            beat: state.beat.into(),
            look: state.look.into(),
            killed: state.killed,
        })
    }
}
