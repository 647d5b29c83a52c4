//! Clients of the management socket: a request a line, an answer a line, one at a time for each client.
//!
//! What only the supervisor knows it answers itself; the rest goes to the data plane. A change is checked against the
//! desired state, done by the data plane, and recorded: in that order, one change after the other, so that whatever the
//! next data plane is given was done by one before it.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use serde_json::{Value, json};

use super::changes::{Load, Task};
use super::loads;
use super::poller::{EventFlags, Token};
use super::ports::Port;
use super::state::{SAVE_PAUSE, Supervisor, Unsaved};
use softdpu_api::status::{
    ClosedFrontEnds, DataPlaneStatus, DeviceState, DeviceStatus, FunctionStatus, NetworkStatus, NodeStatus,
    TenantStatus, VolumeStatus,
};
use softdpu_api::{
    ApiError, Change, ErrorCode, Id, LONGEST_REQUEST, LineBuffer, Query, Request, Response, decode_request,
    encode_response,
};
use softdpu_link::{Call, Outbox, SharedFd};
use softdpu_site::{Device, Function, Network, Volume};
use softdpu_sys::ReapedFd;

/// The most clients at once; more wait in the backlog.
const MAX_CLIENTS: usize = 64;

/// What is read at once.
const READ_SIZE: usize = 16 << 10;

/// A connected client.
#[derive(Debug)]
pub(super) struct Client {
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

/// Who is to be answered.
#[derive(Clone, Debug)]
pub(super) struct Ticket {
    pub(super) client: u64,
    pub(super) id: Id,
}

/// Which part of the status was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Node,
    Volumes,
    Devices,
    Networks,
    Functions,
    Tenants,
}

/// What an answer of the data plane is for.
pub(super) enum Purpose {
    /// A client wants the status, or part of it.
    Read(Ticket, Part),
    /// Another thread wants it.
    Snapshot(SyncSender<NodeStatus>),
    /// The change in progress.
    Change,
    /// A client whose connection the data plane takes over.
    Stream(Ticket),
    /// A client wants to know what only the data plane knows.
    Answer(Ticket),
}

/// A change that the data plane is making.
pub(super) struct InProgress {
    pub(super) task: Task,
    ticket: Ticket,
    /// The socket of a device that is being added.
    port: Option<Port>,
}

impl Client {
    fn new(socket: OwnedFd) -> Client {
        let lines = LineBuffer::new(LONGEST_REQUEST);
        Client {
            socket: socket.into(),
            lines,
            out: Outbox::default(),
            busy: false,
            ended: false,
            heard: Instant::now(),
        }
    }

    /// One more descriptor of its connection.
    pub(super) fn connection(&self) -> std::io::Result<SharedFd> {
        Ok(Arc::new(self.socket.as_fd().try_clone_to_owned()?.into()))
    }

    fn is_done(&self) -> bool {
        self.ended && !self.busy && self.out.is_empty()
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

impl Supervisor {
    /// Waits for the next client. Where there are as many as may be, one that has been silent for long makes room for
    /// it.
    pub(super) fn watch_api(&mut self) {
        let idle_at = self.longest_silent().map(|(_, heard)| heard + self.timing.idle_client);
        let is_full = self.clients.len() >= MAX_CLIENTS && idle_at.is_none_or(|at| at > Instant::now());
        self.client_idle_at = idle_at.filter(|_| is_full);
        let open = !is_full && self.accept_at.is_none();
        let events = if open { EventFlags::IN } else { EventFlags::empty() };
        if let Err(error) = self.poller.watch(self.api.as_fd(), Token::Api, events) {
            tracing::error!(%error, "the management socket cannot be waited for");
        }
    }

    pub(super) fn accept_clients(&mut self) {
        match self.api.accept() {
            Ok(Some(socket)) => {
                if self.clients.len() >= MAX_CLIENTS
                    && let Some((silent, _)) = self.longest_silent()
                {
                    tracing::warn!(
                        clients = MAX_CLIENTS,
                        "a management client that was silent for long makes room for another"
                    );
                    self.drop_client(silent);
                }
                let number = self.next_client;
                self.next_client += 1;
                self.clients.insert(number, Client::new(socket));
                self.watch_client(number);
                self.watch_api();
            }
            Ok(None) => {}
            Err(error) => self.pause_accepting(error),
        }
    }

    /// Of the clients to which no answer is owed, the one that has been silent for the longest, and since when.
    fn longest_silent(&self) -> Option<(u64, Instant)> {
        let silent = self.clients.iter().filter(|(_, client)| !client.busy && client.out.is_empty());
        silent.map(|(number, client)| (*number, client.heard)).min_by_key(|(_, heard)| *heard)
    }

    fn watch_client(&mut self, number: u64) {
        let Some(client) = self.clients.get(&number) else {
            return;
        };
        if client.is_done() {
            return self.drop_client(number);
        }
        let mut events = EventFlags::empty();
        if !client.busy && !client.ended && client.out.is_empty() {
            events |= EventFlags::IN;
        }
        if !client.out.is_empty() {
            events |= EventFlags::OUT;
        }
        if self.poller.watch(client.socket.as_fd(), Token::Client(number), events).is_err() {
            self.drop_client(number);
        }
    }

    pub(super) fn drop_client(&mut self, number: u64) {
        if let Some(client) = self.clients.remove(&number) {
            self.poller.forget(client.socket.as_fd(), Token::Client(number));
            self.watch_api();
        }
    }

    pub(super) fn client_ready(&mut self, number: u64, events: EventFlags) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        // HUP is both directions: there is nobody to answer. One that has only ended its own still waits.
        if events.intersects(EventFlags::ERR) || (events.contains(EventFlags::HUP) && !events.contains(EventFlags::IN))
        {
            return self.drop_client(number);
        }
        if client.flush().is_err() {
            return self.drop_client(number);
        }
        if events.contains(EventFlags::IN) && !client.busy && client.out.is_empty() && client.read().is_err() {
            return self.drop_client(number);
        }
        self.serve_client(number);
    }

    /// Answers what the client has asked, as far as it takes the answers.
    fn serve_client(&mut self, number: u64) {
        let free = |client: &&mut Client| !client.busy && client.out.is_empty();
        while let Some(client) = self.clients.get_mut(&number).filter(free) {
            match client.lines.next_line() {
                Ok(Some(line)) if line.iter().all(u8::is_ascii_whitespace) => {}
                Ok(Some(line)) => {
                    client.busy = true;
                    let run_directory = &self.desired.site().node.run_directory;
                    match decode_request(&line, run_directory) {
                        Ok((id, request)) => self.request(Ticket { client: number, id }, request),
                        Err(rejected) => self.respond(number, rejected.id, Err(rejected.error)),
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    // There is no way back into step: the answer is the last.
                    client.busy = true;
                    client.ended = true;
                    client.lines = LineBuffer::new(LONGEST_REQUEST);
                    let error = ApiError::new(ErrorCode::BadRequest, error.to_string());
                    self.respond(number, None, Err(error));
                    break;
                }
            }
        }
        self.watch_client(number);
    }

    fn respond(&mut self, number: u64, id: Option<Id>, outcome: Result<Value, ApiError>) {
        // It may have gone.
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        client.busy = false;
        client.out.bytes().extend(encode_response(&Response { id, outcome, more: false }).into_bytes());
        if client.flush().is_err() {
            return self.drop_client(number);
        }
        self.watch_client(number);
    }

    pub(super) fn answer(&mut self, ticket: Ticket, outcome: Result<Value, ApiError>) {
        self.respond(ticket.client, Some(ticket.id), outcome);
    }

    /// An answer that may come after the client's turn: lines that it has sent meanwhile are served when this event is
    /// done with (and not from here, where one answer would be inside the other).
    pub(super) fn answer_late(&mut self, ticket: Ticket, outcome: Result<Value, ApiError>) {
        self.served_late.push(ticket.client);
        self.answer(ticket, outcome);
    }

    pub(super) fn serve_late(&mut self) {
        while let Some(number) = self.served_late.pop() {
            self.serve_client(number);
        }
    }

    fn request(&mut self, ticket: Ticket, request: Request) {
        let task = match request {
            Request::Query(query) => return self.query(ticket, query),
            Request::Change(change) => Task::from(change),
            Request::NetworksFile { part, path } => Task::NetworksFile { part, path },
        };
        self.changes.push_back((task, ticket));
        self.next_change();
    }

    fn query(&mut self, ticket: Ticket, query: Query) {
        match query {
            Query::Status => self.read(Purpose::Read(ticket, Part::Node)),
            Query::VolumeList => self.read(Purpose::Read(ticket, Part::Volumes)),
            Query::DeviceList => self.read(Purpose::Read(ticket, Part::Devices)),
            Query::NetworkList => self.read(Purpose::Read(ticket, Part::Networks)),
            Query::FunctionList => self.read(Purpose::Read(ticket, Part::Functions)),
            Query::TenantList => self.read(Purpose::Read(ticket, Part::Tenants)),
            Query::DeviceArgs { name } => {
                let outcome = self.device_args(&name);
                self.answer(ticket, outcome);
            }
            Query::TracePacket(trace) => self.trace_packet(ticket, trace),
            Query::TraceExplain(question) => self.trace_explain(ticket, question),
            Query::TraceReplay { port } => self.trace_replay(ticket, port),
            Query::Shutdown => {
                tracing::info!("stopping on request");
                self.answer(ticket, Ok(json!({})));
                self.stop();
            }
        }
    }

    /// Asks the data plane for the status; while there is none that can answer, what the supervisor knows is the
    /// answer.
    pub(super) fn read(&mut self, purpose: Purpose) {
        if self.plane_is_ready() {
            self.call(Call::Status, purpose);
        } else {
            let status = self.status(None);
            self.deliver(purpose, status);
        }
    }

    fn call(&mut self, call: Call, purpose: Purpose) {
        self.call_with(call, purpose, Vec::new());
    }

    pub(super) fn call_with(&mut self, call: Call, purpose: Purpose, fds: Vec<SharedFd>) {
        let id = self.next_call;
        self.next_call += 1;
        self.calls.insert(id, purpose);
        self.send(&softdpu_link::Down::Call { id, call }, fds);
    }

    fn deliver(&mut self, purpose: Purpose, status: NodeStatus) {
        match purpose {
            Purpose::Read(ticket, part) => {
                let result = match part {
                    Part::Node => json!(status),
                    Part::Volumes => json!(status.volumes),
                    Part::Devices => json!(status.devices),
                    Part::Networks => json!(status.networks),
                    Part::Functions => json!(status.functions),
                    Part::Tenants => json!(status.tenants),
                };
                self.answer_late(ticket, Ok(result));
            }
            // Nobody may be waiting any more.
            Purpose::Snapshot(to) => drop(to.try_send(status)),
            Purpose::Change | Purpose::Stream(_) | Purpose::Answer(_) => {}
        }
    }

    /// The data plane has answered.
    pub(super) fn answered(&mut self, id: u64, result: Result<Value, ApiError>) {
        match self.calls.remove(&id) {
            Some(Purpose::Change) => self.change_is_done(result),
            Some(Purpose::Stream(ticket)) => self.stream_began(ticket, result),
            Some(Purpose::Answer(ticket)) => self.answer_late(ticket, result),
            Some(purpose) => {
                let status = result
                    .map_err(|error| error.message)
                    .and_then(|value| serde_json::from_value::<NodeStatus>(value).map_err(|error| error.to_string()));
                if let Err(error) = &status {
                    tracing::error!(error, "the data plane's status cannot be read");
                }
                let status = self.status(status.ok());
                self.deliver(purpose, status);
            }
            None => tracing::error!(id, "the data plane answered a call that nobody made"),
        }
    }

    /// The data plane died: reads are answered with what is known, the change is as if it had not been asked for.
    pub(super) fn calls_are_lost(&mut self) {
        for purpose in std::mem::take(&mut self.calls).into_values() {
            match purpose {
                Purpose::Change => {
                    let message = "the data plane died while the change was being made; it is not recorded, and may be done in part";
                    self.change_is_refused(
                        ApiError::new(ErrorCode::Unavailable, message).hint("try again in a moment"),
                    );
                }
                // It may have been greeted already: its end is the answer.
                Purpose::Stream(ticket) => self.drop_client(ticket.client),
                Purpose::Answer(ticket) => {
                    let error = ApiError::new(ErrorCode::Unavailable, "the data plane died before it answered");
                    self.answer_late(ticket, Err(error.hint("try again in a moment")));
                }
                purpose => {
                    let status = self.status(None);
                    self.deliver(purpose, status);
                }
            }
        }
        self.next_change();
    }

    /// A volume that is being created.
    pub(super) fn volume_in_progress(&self, name: &str) -> Option<&Volume> {
        match self.change.as_ref().map(|in_progress| &in_progress.task) {
            Some(Task::Change(Change::VolumeCreate(volume))) if volume.name == name => Some(volume),
            _ => None,
        }
    }

    pub(super) fn next_change(&mut self) {
        while self.change.is_none() {
            let Some((mut task, ticket)) = self.changes.pop_front() else {
                return;
            };
            match self.begin(&mut task) {
                Ok(port) => {
                    let change = task.change().filter(|_| !task.waits_for_file()).map(|(change, _)| change.clone());
                    self.change = Some(InProgress { task, ticket, port });
                    if let Some(change) = change {
                        self.call(Call::Change(change), Purpose::Change);
                    }
                }
                Err(error) => self.answer_late(ticket, Err(error)),
            }
        }
    }

    /// Checks a change, and opens what it needs here.
    fn begin(&mut self, task: &mut Task) -> Result<Option<Port>, ApiError> {
        if let Some((change, places)) = task.change() {
            self.desired.check(change, places)?;
        }
        if !self.plane_is_ready() {
            let message = format!("the data plane is {}; nothing can be changed now", self.plane_state());
            return Err(ApiError::new(ErrorCode::Unavailable, message).hint("try again in a moment"));
        }
        match task {
            Task::Change(Change::DeviceAdd(device)) => {
                let port = self.open_port(device);
                port.map_err(|error| ApiError::new(ErrorCode::Failed, error.to_string()))
            }
            Task::Load(load) => self.copy(load).map(|()| None),
            Task::NetworksFile { part, path } => self.read_networks(*part, path).map(|()| None),
            Task::Change(_) | Task::FromFile { .. } => Ok(None),
        }
    }

    fn change_is_done(&mut self, result: Result<Value, ApiError>) {
        match result {
            Ok(told) => {
                self.load_found(&told);
                self.record_change(told.get("warning").and_then(Value::as_str));
            }
            Err(error) => self.change_is_refused(error),
        }
        self.next_change();
    }

    pub(super) fn change_is_refused(&mut self, error: ApiError) {
        if let Some(InProgress { ticket, port, task }) = self.change.take() {
            if let Task::Load(Load { copy: Some(copy), .. }) = &task {
                loads::remove(&self.desired.site().node.state_directory, copy);
            }
            // A file that is open takes room on the disk also without its name.
            self.copied_file = None;
            if let Task::Change(Change::VolumeCreate(Volume { name, .. })) = &task {
                // Also what a data plane kept that died over it: a later volume of that name begins with nothing.
                self.vault.retain(|key, _| !softdpu_link::is_kept_of_volume(name, key));
                self.desired.forget_image(name);
            }
            // The socket of a device that was not added is gone before anybody hears of it.
            drop(port);
            self.answer_late(ticket, Err(error));
        }
    }

    /// The change in progress is made. `late`: what the data plane has to say of it.
    fn record_change(&mut self, late: Option<&str>) {
        let Some(InProgress { task, ticket, port }) = self.change.take() else {
            return;
        };
        let (method, name, params) = task.describe();
        tracing::info!(method, name, %params, "the site has changed");
        let (saved, is_kept) = match &task {
            Task::Load(load) => (self.desired.commit_load(load.copy.as_deref().unwrap_or_default(), &load.found), true),
            Task::Change(change) | Task::FromFile { change, .. } => {
                // The placement of a queue is not kept.
                (self.desired.commit(change), !matches!(change, Change::QueueMove(_)))
            }
            Task::NetworksFile { .. } => (Ok(()), false),
        };
        let unsaved = if is_kept { self.saved(&saved) } else { None };
        let warnings: Vec<String> = late.map(str::to_owned).into_iter().chain(unsaved).collect();
        if let Some(port) = port {
            self.add_port(port);
        }
        let outcome = match &task {
            Task::Change(Change::DeviceRemove { name }) => {
                self.remove_port(name);
                Ok(json!({}))
            }
            Task::Change(Change::DeviceAdd(device)) => self.device_args(&device.name),
            Task::Load(load) => {
                self.load_is_recorded(saved.is_ok());
                Ok(json!(load.found))
            }
            _ => Ok(json!({})),
        };
        let outcome = outcome.map(|mut result| {
            if !warnings.is_empty()
                && let Some(result) = result.as_object_mut()
            {
                result.insert("warning".to_owned(), Value::String(warnings.join("; ")));
            }
            result
        });
        self.answer_late(ticket, outcome);
    }

    /// Whether what was changed is kept; it is tried again until it is. What to say of it, if it is not.
    pub(super) fn saved(&mut self, saved: &io::Result<()>) -> Option<String> {
        let Err(error) = saved else {
            if self.unsaved.take().is_some() {
                tracing::info!("the changes are saved");
                // What a change needs that is being made is not in force yet.
                if self.change.is_none() {
                    loads::tidy(&self.desired.site().node.state_directory, self.desired.loaded());
                }
            }
            return None;
        };
        let folder = self.desired.site().node.state_directory.display();
        let warning = format!(
            "changes are made, but lost when the supervisor stops: they cannot be saved in {folder}: {error}; this is tried again \
             until they can"
        );
        if self.unsaved.as_ref().is_none_or(|unsaved| unsaved.warning != warning) {
            tracing::error!("{warning}");
        }
        self.unsaved = Some(Unsaved { warning: warning.clone(), again: Instant::now() + SAVE_PAUSE });
        Some(warning)
    }

    /// Saves what could not be saved before.
    pub(super) fn save_again(&mut self) {
        if self.unsaved.is_some() {
            let saved = self.desired.save();
            self.saved(&saved);
        }
    }

    fn device_args(&self, name: &str) -> Result<Value, ApiError> {
        match softdpu_api::device_args(self.desired.site(), name) {
            Some(args) => Ok(json!(args)),
            None => Err(ApiError::new(ErrorCode::NotFound, format!("there is no device called {name:?}"))),
        }
    }

    /// The node's status: what the data plane said of itself, and what only the supervisor knows.
    fn status(&self, from_plane: Option<NodeStatus>) -> NodeStatus {
        let mut status = from_plane.unwrap_or_else(|| self.status_without_plane());
        env!("CARGO_PKG_VERSION").clone_into(&mut status.version);
        status.uptime_s = self.started.elapsed().as_secs();
        status.supervisor_pid = std::process::id();
        status.unsaved = self.unsaved.as_ref().map(|unsaved| unsaved.warning.clone());
        status.data_plane = DataPlaneStatus {
            pid: self.plane.running.as_ref().map(|running| running.process.id()),
            state: self.plane_state(),
            restarts: self.plane.incarnation.saturating_sub(1),
            last_exit: self.plane.last_exit.clone(),
            time_to_ready_us: self.plane.time_to_ready.map(|took| took.as_micros() as u64),
            first_completion_after_restart_us: self.plane.first_completion_ns.map(|ns| ns / 1000),
        };
        for device in &mut status.devices {
            let port = self.ports.get(&device.name);
            let connection = port.and_then(|port| port.connection);
            device.peer = connection.and_then(|id| self.front_ends.get(&id)?.peer());
            let ban = port.and_then(|port| port.ban.as_ref());
            device.closed_front_ends = ban.map(|ban| ClosedFrontEnds {
                count: ban.front_ends,
                reason: ban.reason.clone(),
                accepts_in_s: ban.until.saturating_duration_since(Instant::now()).as_secs_f64().ceil() as u64,
            });
        }
        status
    }

    /// What there is to say while no data plane answers: what should run, and who is connected.
    fn status_without_plane(&self) -> NodeStatus {
        let site = self.desired.site();
        let detail = format!("the data plane is {}", self.plane_state());
        let volume = |volume: &Volume| VolumeStatus {
            name: volume.name.clone(),
            kind: volume.backend.kind().to_owned(),
            size: volume.backend.size().map_or(0, |size| size.0),
            block_size: volume.block_size,
            read_only: volume.read_only,
            encryption: volume.encryption.as_ref().map(|encryption| encryption.cipher.to_string()),
            shared: volume.shared,
            users: site.users(&volume.name).count() as u32,
            detail: detail.clone(),
            ..VolumeStatus::default()
        };
        let device = |device: &Device| DeviceStatus {
            name: device.name.clone(),
            tenant: device.tenant.clone(),
            domain: device.domain.clone(),
            kind: device.kind.name().to_owned(),
            state: match self.ports.get(&device.name).and_then(|port| port.connection) {
                Some(_) => DeviceState::Connected,
                None => DeviceState::Listening,
            },
            volume: device.volume().map(str::to_owned),
            socket: device.access().map(|access| access.socket.clone()).unwrap_or_default(),
            ..DeviceStatus::default()
        };
        let network = |network: &Network| {
            let ports =
                site.devices.iter().filter(|device| device.port().is_some_and(|port| port.network == network.name));
            NetworkStatus::new(network, site.network_mtu(network).unwrap_or_default(), ports.count())
        };
        let function = |function: &Function| FunctionStatus {
            devices: site.users_of_function(&function.name).map(|device| device.name.clone()).collect(),
            ..FunctionStatus::declared(function)
        };
        NodeStatus {
            functions: site.functions.iter().map(function).collect(),
            networks: site.networks.iter().map(network).collect(),
            devices: site.devices.iter().map(device).collect(),
            volumes: site.volumes.iter().map(volume).collect(),
            tenants: site.tenants.iter().map(TenantStatus::declared).collect(),
            ..NodeStatus::default()
        }
    }

    /// The last answers go out as far as their clients take them.
    pub(super) fn flush_clients(&mut self) {
        for client in self.clients.values_mut() {
            if let Err(error) = client.flush() {
                tracing::debug!(%error, "an answer is lost");
            }
        }
    }
}
