//! The messages of the front end: given to the session, and the session's actions carried out.

use std::collections::VecDeque;
use std::sync::Arc;

use softdpu_transport::vhost_user::{Ack, Action, CommandId, Header};

use super::{Device, Host, Saved};
use crate::broker::Wire;
use crate::connection::Connection;
use crate::model::{Model, Seen};
use softdpu_link::{FdId as LinkFd, HEADER_SIZE, LinkError, Up};
use softdpu_sys::ReapedFd;

impl Device {
    pub(super) fn message(
        &mut self,
        header: [u8; HEADER_SIZE],
        payload: &[u8],
        fds: Vec<(LinkFd, ReapedFd)>,
        host: &mut Host<'_>,
    ) -> Result<(), LinkError> {
        let (Some(connection), Some(model)) = (&mut self.connection, &self.model) else { return Ok(()) };
        let ids: Vec<_> = fds.iter().map(|(id, _)| softdpu_transport::vhost_user::FdId(*id)).collect();
        connection.fds.extend(fds.into_iter().map(|(id, fd)| (id, Arc::new(fd))));
        connection.answering = true;
        let actions = Header::parse(&header).map_err(|error| error.to_string()).and_then(|header| {
            let seen = Seen { model, needs_reset: connection.needs_reset() };
            connection.session.message(&seen, header, payload, ids).map_err(|error| error.to_string())
        });
        match actions {
            Ok(actions) => self.act(actions, host),
            Err(reason) => self.close(reason, host),
        }
    }

    /// Carries out the session's actions; answers the supervisor when nothing is awaited any more.
    pub(super) fn act(&mut self, actions: Vec<Action>, host: &mut Host<'_>) -> Result<(), LinkError> {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            let Some(connection) = &mut self.connection else { return Ok(()) };
            match action {
                Action::Reply { bytes, fds } => {
                    connection.reply.0.extend(bytes);
                    for fd in fds {
                        if let Ok(fd) = connection.fd(fd).cloned() {
                            connection.reply.1.push(fd);
                        }
                    }
                }
                Action::Backend(message) => connection.send_backend(&message),
                Action::Release(fd) => connection.release(fd),
                Action::Refused(error) => {
                    tracing::warn!(device = %self.name, %error, "message refused");
                    self.protocol_errors += 1;
                }
                Action::Command { id, command } => {
                    if let Some(ack) = self.execute(id, command, host) {
                        match self.acknowledge(id, ack) {
                            Ok(more) => actions.extend(more),
                            Err(reason) => return self.close(reason, host),
                        }
                    }
                }
            }
        }
        self.answer(host)
    }

    pub(super) fn acknowledge(&mut self, id: CommandId, ack: Ack) -> Result<Vec<Action>, String> {
        let Some(connection) = &mut self.connection else { return Ok(Vec::new()) };
        connection.session.acknowledge(id, ack).map_err(|error| error.to_string())
    }

    /// Tells the supervisor what became of the message, if that is settled; ends a connection that is wound up.
    fn answer(&mut self, host: &mut Host<'_>) -> Result<(), LinkError> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if !connection.session.ready() {
            return Ok(());
        }
        if connection.closing {
            self.connection = None;
            return self.catch_up(host);
        }
        if let Some(model) = &self.model
            && std::mem::take(&mut connection.answering)
        {
            return send_handled(connection, model, None, host.wire);
        }
        Ok(())
    }

    /// Goes on with what came while the last connection was being wound up, or the volume opened.
    pub(super) fn catch_up(&mut self, host: &mut Host<'_>) -> Result<(), LinkError> {
        for event in std::mem::take(&mut self.later) {
            self.event(event, host)?;
        }
        Ok(())
    }

    /// Asks the supervisor to close the connection. `Closed` follows and winds it up.
    pub(super) fn close(&mut self, reason: String, host: &mut Host<'_>) -> Result<(), LinkError> {
        tracing::warn!(device = %self.name, reason, "closing the connection");
        self.protocol_errors += 1;
        self.trouble = Some(reason.clone());
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if let Some(model) = &self.model
            && std::mem::take(&mut connection.answering)
        {
            return send_handled(connection, model, Some(reason), host.wire);
        }
        host.wire.send(&Up::Close { connection: connection.id, reason }, Vec::new())
    }

    /// The front end is gone.
    pub(super) fn disconnect(&mut self, host: &mut Host<'_>) -> Result<(), LinkError> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        connection.closing = true;
        connection.answering = false;
        let actions = connection.session.disconnect();
        self.act(actions, host)
    }
}

fn send_handled(
    connection: &mut Connection,
    model: &Model,
    close: Option<String>,
    wire: &Wire,
) -> Result<(), LinkError> {
    let (reply, reply_fds) = std::mem::take(&mut connection.reply);
    let kept = std::mem::take(&mut connection.kept);
    let released = std::mem::take(&mut connection.released);
    // Plain data always serialises.
    let saved = Saved { session: connection.session.save(), device: model.save(), geometry: model.geometry() };
    let session = serde_json::to_string(&saved).unwrap_or_default();
    let fds = reply_fds.iter().chain(kept.iter().filter_map(|id| connection.fds.get(id))).cloned().collect();
    let message = Up::Handled {
        connection: connection.id,
        reply,
        reply_fds: reply_fds.len() as u32,
        session,
        kept,
        released,
        close,
    };
    wire.send(&message, fds)
}
