//! Clients of the management socket: a request a line, an answer a line, one at a time for each client.
//!
//! ```text
//!  accept ──▶ ready: lines are read ──▶ next_request ──▶ (the rest of the supervisor) ──▶ answer ──▶ next_request …
//! ```

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::poller::{EventFlags, Poller, Token};
use super::reexec::{Bytes, FdIndex, Leaving, Left, Moment, NoFd};
use super::socket::{Listener, ListenerState};
use softdpu_api::{
    ApiError, ErrorCode, Id, LONGEST_REQUEST, LineBuffer, Request, Response, decode_request, encode_response,
};
use softdpu_link::{Outbox, SharedFd};
use softdpu_sys::{ReapedFd, peer};

/// The most clients at once; more wait in the backlog.
const MAX_CLIENTS: usize = 64;

/// What is read at once.
const READ_SIZE: usize = 16 << 10;

/// A request that is to be answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Ticket {
    client: u64,
    /// The client's name for it.
    pub(super) id: Id,
}

/// A connected client.
#[derive(Debug)]
struct Client {
    socket: ReapedFd,
    lines: LineBuffer,
    out: Outbox,
    /// An answer is owed; nothing more is read until it is sent.
    busy: bool,
    /// It will send nothing more.
    ended: bool,
    /// When it sent something last.
    heard: Instant,
}

impl Client {
    fn new(socket: OwnedFd) -> Client {
        let lines = LineBuffer::new(LONGEST_REQUEST);
        let (socket, heard) = (socket.into(), Instant::now());
        Client { socket, lines, out: Outbox::default(), busy: false, ended: false, heard }
    }

    /// Whether no answer is owed, or on its way.
    fn is_free(&self) -> bool {
        !self.busy && self.out.is_empty()
    }

    /// Reads what is there; an error ends the client.
    fn read(&mut self) -> Result<(), Errno> {
        let mut bytes = [0; READ_SIZE];
        match recv(self.socket.as_fd(), &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => self.ended = true,
            Ok((_, count)) => {
                self.heard = Instant::now();
                self.lines.push(&bytes[..count]);
            }
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Errno> {
        self.out.flush(self.socket.as_fd())
    }
}

/// A [`Client`] as the next program of the supervisor is given it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClientState {
    number: u64,
    socket: FdIndex,
    /// What it has sent and was not yet served.
    lines: Bytes,
    /// What it has not taken of its answers.
    out: Bytes,
    busy: bool,
    ended: bool,
    heard: Moment,
}

/// [`Clients`] likewise.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ClientsState {
    listener: ListenerState,
    connected: Vec<ClientState>,
    next: u64,
}

/// The management socket and its clients.
pub(super) struct Clients {
    poller: Poller,
    listener: Listener,
    /// Where sockets are whose paths a request does not say.
    run_directory: PathBuf,
    /// A client that is silent for this long makes room for another, where there are as many as may be.
    patience: Duration,
    connected: BTreeMap<u64, Client>,
    next: u64,
    /// Clients that may have sent requests which are not yet served.
    to_serve: Vec<u64>,
    /// Connections are accepted.
    accepting: bool,
    /// When a silent client makes room for another, while there is none.
    idle_at: Option<Instant>,
}

impl Clients {
    /// Watches `listener`.
    pub(super) fn new(
        poller: Poller,
        listener: Listener,
        run_directory: PathBuf,
        patience: Duration,
    ) -> Result<Clients, Errno> {
        poller.watch(listener.as_fd(), Token::Api, EventFlags::IN)?;
        Ok(Clients::unwatched(poller, listener, run_directory, patience))
    }

    fn unwatched(poller: Poller, listener: Listener, run_directory: PathBuf, patience: Duration) -> Clients {
        Clients {
            poller,
            listener,
            run_directory,
            patience,
            connected: BTreeMap::new(),
            next: 1,
            to_serve: Vec::new(),
            accepting: true,
            idle_at: None,
        }
    }

    /// Accepts connections, or does not.
    pub(super) fn set_accepting(&mut self, accepting: bool) {
        self.accepting = accepting;
        self.watch_listener();
    }

    /// When [`watch_listener`](Self::watch_listener) has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.idle_at
    }

    /// Waits for the next client. Where there are as many as may be, one that has been silent for long makes room for
    /// it.
    pub(super) fn watch_listener(&mut self) {
        let idle_at = self.longest_silent().map(|(_, heard)| heard + self.patience);
        let is_full = self.connected.len() >= MAX_CLIENTS && idle_at.is_none_or(|at| at > Instant::now());
        self.idle_at = idle_at.filter(|_| is_full);
        let events = if !is_full && self.accepting { EventFlags::IN } else { EventFlags::empty() };
        if let Err(error) = self.poller.watch(self.listener.as_fd(), Token::Api, events) {
            tracing::error!(%error, "the management socket cannot be waited for");
        }
    }

    /// A client may wait at the socket. An error says that the process has no descriptor left for it.
    pub(super) fn accept(&mut self) -> Result<(), Errno> {
        let Some(socket) = self.listener.accept()? else {
            return Ok(());
        };
        if self.connected.len() >= MAX_CLIENTS
            && let Some((silent, _)) = self.longest_silent()
        {
            tracing::warn!(
                clients = MAX_CLIENTS,
                "a management client that was silent for long makes room for another"
            );
            self.drop_client(silent);
        }
        let number = self.next;
        self.next += 1;
        self.connected.insert(number, Client::new(socket));
        self.watch_client(number);
        self.watch_listener();
        Ok(())
    }

    /// Of the clients to which no answer is owed, the one that has been silent for the longest, and since when.
    fn longest_silent(&self) -> Option<(u64, Instant)> {
        let silent = self.connected.iter().filter(|(_, client)| client.is_free());
        silent.map(|(number, client)| (*number, client.heard)).min_by_key(|(_, heard)| *heard)
    }

    fn watch_client(&mut self, number: u64) {
        let Some(client) = self.connected.get(&number) else {
            return;
        };
        if client.ended && client.is_free() {
            return self.drop_client(number);
        }
        let mut events = EventFlags::empty();
        if client.is_free() {
            events |= EventFlags::IN;
        }
        if !client.out.is_empty() {
            events |= EventFlags::OUT;
        }
        if self.poller.watch(client.socket.as_fd(), Token::Client(number), events).is_err() {
            self.drop_client(number);
        }
    }

    fn drop_client(&mut self, number: u64) {
        if let Some(client) = self.connected.remove(&number) {
            self.poller.forget(client.socket.as_fd(), Token::Client(number));
            self.watch_listener();
        }
    }

    /// A client's socket is ready, or the client is gone. What it has sent is to be had as [`next_request`].
    ///
    /// [`next_request`]: Self::next_request
    pub(super) fn ready(&mut self, number: u64, events: EventFlags) {
        let Some(client) = self.connected.get_mut(&number) else {
            return;
        };
        // HUP is both directions: no answer can be sent. A client that has only ended its own still waits.
        let gone = events.intersects(EventFlags::ERR)
            || (events.contains(EventFlags::HUP) && !events.contains(EventFlags::IN));
        if gone || client.flush().is_err() {
            return self.drop_client(number);
        }
        if events.contains(EventFlags::IN) && client.is_free() && client.read().is_err() {
            return self.drop_client(number);
        }
        self.to_serve.push(number);
    }

    /// The next request of a client to which no other answer is owed.
    pub(super) fn next_request(&mut self) -> Option<(Ticket, Request)> {
        while let Some(number) = self.to_serve.last().copied() {
            if let Some(request) = self.next_of(number) {
                return Some(request);
            }
            self.to_serve.pop();
            self.watch_client(number);
        }
        None
    }

    fn next_of(&mut self, number: u64) -> Option<(Ticket, Request)> {
        while let Some(client) = self.connected.get_mut(&number).filter(|client| client.is_free()) {
            match client.lines.next_line() {
                Ok(Some(line)) if line.iter().all(u8::is_ascii_whitespace) => {}
                Ok(Some(line)) => {
                    client.busy = true;
                    match decode_request(&line, &self.run_directory) {
                        Ok((id, request)) => return Some((Ticket { client: number, id }, request)),
                        Err(rejected) => self.respond(number, rejected.id, Err(rejected.error)),
                    }
                }
                Ok(None) => return None,
                Err(error) => {
                    // There is no way back into step: the answer is the last.
                    client.busy = true;
                    client.ended = true;
                    client.lines = LineBuffer::new(LONGEST_REQUEST);
                    let error = ApiError::new(ErrorCode::BadRequest, error.to_string());
                    self.respond(number, None, Err(error));
                    return None;
                }
            }
        }
        None
    }

    fn respond(&mut self, number: u64, id: Option<Id>, outcome: Result<Value, ApiError>) {
        // It may have gone.
        let Some(client) = self.connected.get_mut(&number) else {
            return;
        };
        client.busy = false;
        client.out.bytes().extend(encode_response(&Response { id, outcome, more: false }).into_bytes());
        if client.flush().is_err() {
            return self.drop_client(number);
        }
        self.watch_client(number);
    }

    /// Answers a request. What the client has sent meanwhile is its next request.
    pub(super) fn answer(&mut self, ticket: Ticket, outcome: Result<Value, ApiError>) {
        self.to_serve.push(ticket.client);
        self.respond(ticket.client, Some(ticket.id), outcome);
    }

    /// One more descriptor of the connection that a request came by; none if the client is gone.
    pub(super) fn connection(&self, ticket: &Ticket) -> Option<std::io::Result<SharedFd>> {
        let client = self.connected.get(&ticket.client)?;
        Some(client.socket.as_fd().try_clone_to_owned().map(|socket| Arc::new(socket.into())))
    }

    /// The user that a request came from; none if the client is gone, `u32::MAX` if the kernel does not tell.
    pub(super) fn user(&self, ticket: &Ticket) -> Option<u32> {
        let client = self.connected.get(&ticket.client)?;
        Some(peer::credentials(client.socket.as_fd()).map_or(u32::MAX, |peer| peer.uid))
    }

    /// The connection that a request came by is another process' now, or at its end.
    pub(super) fn hang_up(&mut self, ticket: &Ticket) {
        self.drop_client(ticket.client);
    }

    pub(super) fn state<'a>(&'a self, leaving: &mut Leaving<'a>) -> ClientsState {
        let client = |(number, client): (&u64, &'a Client)| ClientState {
            number: *number,
            socket: leaving.add(client.socket.as_fd()),
            lines: Bytes(client.lines.rest().to_vec()),
            out: Bytes(client.out.waiting().to_vec()),
            busy: client.busy,
            ended: client.ended,
            heard: client.heard.into(),
        };
        let connected = self.connected.iter().map(client).collect();
        ClientsState { listener: self.listener.state(leaving), connected, next: self.next }
    }

    /// Takes up what the program before had; none of it is waited for before [`watch_all`](Self::watch_all).
    pub(super) fn resume(
        state: ClientsState,
        left: &mut Left,
        poller: Poller,
        run_directory: PathBuf,
        patience: Duration,
    ) -> Result<Clients, NoFd> {
        let ClientsState { listener, connected, next } = state;
        let mut clients = Clients::unwatched(poller, Listener::resume(listener, left)?, run_directory, patience);
        for state in connected {
            let mut client = Client::new(left.own(state.socket)?);
            client.lines.push(&state.lines.0);
            client.out.bytes().extend(state.out.0);
            (client.busy, client.ended, client.heard) = (state.busy, state.ended, state.heard.into());
            clients.connected.insert(state.number, client);
        }
        clients.next = next;
        Ok(clients)
    }

    /// Waits for everything that was taken up, and serves what was read and not yet served.
    pub(super) fn watch_all(&mut self) {
        self.watch_listener();
        // Each is waited for when nothing of it is left to serve.
        self.to_serve = self.connected.keys().copied().collect();
    }

    /// Another program has the management socket: its file stays.
    #[cfg(test)]
    pub(super) fn leave_file(&mut self) {
        self.listener.leave_file();
    }

    /// The last answers go out as far as their clients take them.
    pub(super) fn flush(&mut self) {
        for client in self.connected.values_mut() {
            if let Err(error) = client.flush() {
                tracing::debug!(%error, "an answer is lost");
            }
        }
    }
}
