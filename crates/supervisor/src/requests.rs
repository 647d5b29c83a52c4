//! What clients ask for. What only the supervisor knows it answers itself; the rest goes to the data plane.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::calls::{Purpose, StatusFor, StatusPart};
use super::changes::{self, Outcome, Step};
use super::clients::Ticket;
use super::node_status;
use super::reexec::RELEASE;
use super::supervisor::Supervisor;
use super::task::Task;
use softdpu_api::status::NodeStatus;
use softdpu_api::{
    ApiError, ControlPlaneTask, ErrorCode, PacketTrace, Query, Request, Response, UNDERLAY, encode_response,
};
use softdpu_link::{Call, Down, SharedFd};
use softdpu_site::{Device, Site, alternatives, nearest};

impl Supervisor {
    /// Serves what clients have sent.
    pub(super) fn serve_clients(&mut self) {
        while let Some((ticket, request)) = self.clients.next_request() {
            self.serve(ticket, request);
        }
    }

    fn serve(&mut self, ticket: Ticket, request: Request) {
        match request {
            Request::Query(query) => self.query(ticket, query),
            Request::Change(change) => self.change(ticket, Task::from(change)),
            Request::NetworksFile { part, path } => self.change(ticket, Task::NetworksFile { part, path }),
        }
    }

    fn change(&mut self, ticket: Ticket, task: Task) {
        self.changes.push(task, ticket);
        self.next_changes();
    }

    fn query(&mut self, ticket: Ticket, query: Query) {
        let part = match query {
            Query::Status => StatusPart::Node,
            Query::VolumeList => StatusPart::Volumes,
            Query::DeviceList => StatusPart::Devices,
            Query::NetworkList => StatusPart::Networks,
            Query::FunctionList => StatusPart::Functions,
            Query::TenantList => StatusPart::Tenants,
            Query::DeviceArgs { name } => {
                let outcome = changes::device_args(self.changes.site(), &name);
                return self.clients.answer(ticket, outcome);
            }
            Query::TracePacket(trace) => return self.trace_packet(ticket, trace),
            Query::TraceExplain(question) => return self.ask(ticket, Call::TraceExplain(question)),
            Query::TraceReplay { port } => return self.trace_replay(ticket, port),
            Query::ControlPlaneAdd(task) => return self.add_task(ticket, task),
            Query::ControlPlaneRemove { name } => {
                let Some(user) = self.clients.user(&ticket) else { return };
                let asked = self.control_plane.remove(name, user, ticket.clone());
                return self.refuse_task(ticket, asked);
            }
            Query::Upgrade(upgrade) => return self.upgrade(ticket, upgrade),
            Query::Shutdown => {
                tracing::info!("stopping on request");
                self.clients.answer(ticket, Ok(json!({})));
                return self.stop();
            }
        };
        self.read_status(StatusFor::Client(ticket, part));
    }

    fn add_task(&mut self, ticket: Ticket, task: ControlPlaneTask) {
        let Some(user) = self.clients.user(&ticket) else { return };
        self.control_plane.follow(self.changes.site());
        let asked = self.control_plane.add(task, user, self.plane.status().pid, ticket.clone());
        self.refuse_task(ticket, asked);
    }

    fn refuse_task(&mut self, ticket: Ticket, asked: Result<(), ApiError>) {
        if let Err(error) = asked {
            self.clients.answer(ticket, Err(error));
        }
    }

    /// What clients asked of control-plane tasks is done, or refused.
    pub(super) fn tasks_are_looked_after(&mut self) {
        while let Some((ticket, outcome)) = self.control_plane.answer() {
            self.clients.answer(ticket, outcome);
        }
    }

    fn call(&mut self, call: Call, purpose: Purpose, fds: Vec<SharedFd>) {
        let id = self.calls.add(purpose);
        self.plane.send(&Down::Call { id, call }, fds);
    }

    /// Does what a change wants next, and begins further changes.
    pub(super) fn advance_changes(&mut self, step: Option<Step>) {
        self.take_step(step);
        self.next_changes();
    }

    pub(super) fn next_changes(&mut self) {
        if self.upgrades.is_under_way() {
            return;
        }
        while let Some(step) = self.changes.next(&self.plane, &mut self.front_ends) {
            self.take_step(Some(step));
        }
    }

    fn take_step(&mut self, step: Option<Step>) {
        match step {
            Some(Step::Make(change, fds)) => self.call(Call::Change(*change), Purpose::Change, fds),
            Some(Step::Answer(ticket, outcome)) => self.clients.answer(ticket, outcome),
            None => {}
        }
    }

    /// Files have been copied or read for changes.
    pub(super) fn files_are_read(&mut self) {
        while let Some(step) = self.changes.next_file(&self.plane, &mut self.vault) {
            self.advance_changes(Some(step));
        }
    }

    /// Changes have been saved, or could not be.
    pub(super) fn changes_are_saved(&mut self) {
        while let Some(step) = self.changes.next_saved(&self.plane, &mut self.vault) {
            self.advance_changes(Some(step));
        }
    }

    /// Puts what was changed on the disk before the supervisor ends, if that takes no longer than `patience`.
    pub(super) fn save_at_last(&mut self, patience: Duration) {
        self.changes.save_again();
        let deadline = Instant::now() + patience;
        while let Some(step) = self.changes.last_saved(deadline, &self.plane, &mut self.vault) {
            self.take_step(Some(step));
        }
    }

    /// Asks the data plane for the status; while there is none that can answer, what the supervisor knows is the
    /// answer.
    pub(super) fn read_status(&mut self, to: StatusFor) {
        if self.plane.is_ready() {
            self.call(Call::Status, Purpose::Status(to), Vec::new());
        } else {
            let status = self.status(None);
            self.deliver(to, status);
        }
    }

    fn deliver(&mut self, to: StatusFor, status: NodeStatus) {
        match to {
            StatusFor::Client(ticket, part) => {
                let result = match part {
                    StatusPart::Node => json!(status),
                    StatusPart::Volumes => json!(status.volumes),
                    StatusPart::Devices => json!(status.devices),
                    StatusPart::Networks => json!(status.networks),
                    StatusPart::Functions => json!(status.functions),
                    StatusPart::Tenants => json!(status.tenants),
                };
                self.clients.answer(ticket, Ok(result));
            }
            // The thread may no longer wait.
            StatusFor::Thread(to) => drop(to.try_send(status)),
        }
    }

    /// The node's status: what the data plane said of itself, and what only the supervisor knows.
    fn status(&self, from_plane: Option<NodeStatus>) -> NodeStatus {
        let declared = || {
            node_status::declared(self.changes.site(), self.plane.state(), |name| self.front_ends.is_connected(name))
        };
        let mut status = from_plane.unwrap_or_else(declared);
        RELEASE.clone_into(&mut status.version);
        status.uptime_s = self.started.elapsed().as_secs();
        status.supervisor_pid = std::process::id();
        status.unsaved = self.changes.unsaved();
        status.control_plane = self.control_plane.status();
        status.data_plane = self.plane.status();
        status.data_plane.upgrade = self.upgrades.status();
        status.supervisor_upgrade = self.upgrades.reexec.status();
        for device in &mut status.devices {
            self.front_ends.complete(device);
        }
        status
    }

    /// The data plane has answered a call.
    pub(super) fn answered(&mut self, id: u64, result: Outcome) {
        match self.calls.take(id) {
            Some(Purpose::Change) => {
                let step = self.changes.made(result, &mut self.front_ends, &mut self.plane, &mut self.vault);
                self.control_plane.follow(self.changes.site());
                self.advance_changes(step);
            }
            // It has taken the connection over.
            Some(Purpose::Stream(ticket)) if result.is_ok() => self.clients.hang_up(&ticket),
            Some(Purpose::Stream(ticket) | Purpose::Answer(ticket)) => self.clients.answer(ticket, result),
            Some(Purpose::Status(to)) => {
                let status = self.status(read_status(result));
                self.deliver(to, status);
            }
            None => tracing::error!(id, "the data plane answered a call that was not made"),
        }
    }

    /// The data plane died: reads are answered with what is known, the change is as if it had not been asked for.
    pub(super) fn calls_are_lost(&mut self) {
        let lost = |message: &str| ApiError::new(ErrorCode::Unavailable, message).hint("try again in a moment");
        for purpose in self.calls.take_all() {
            match purpose {
                Purpose::Change => {
                    let message = "the data plane died while the change was being made; it is not recorded, and may be done in part";
                    let step = self.changes.refuse(lost(message), &mut self.vault);
                    self.take_step(step);
                }
                // It may have been greeted already: its end is the answer.
                Purpose::Stream(ticket) => self.clients.hang_up(&ticket),
                Purpose::Answer(ticket) => {
                    self.clients.answer(ticket, Err(lost("the data plane died before it answered")));
                }
                Purpose::Status(to) => {
                    let status = self.status(None);
                    self.deliver(to, status);
                }
            }
        }
        self.next_changes();
    }

    /// Has the data plane answer a request.
    fn ask(&mut self, ticket: Ticket, call: Call) {
        if self.plane.is_ready() {
            self.call(call, Purpose::Answer(ticket), Vec::new());
        } else {
            self.clients.answer(ticket, Err(self.plane.unavailable(NO_FRAMES)));
        }
    }

    fn trace_packet(&mut self, ticket: Ticket, trace: PacketTrace) {
        if let Some(error) = trace.ports.iter().find_map(|port| check_port(self.changes.site(), port).err()) {
            return self.clients.answer(ticket, Err(error));
        }
        let response = Response { id: Some(ticket.id.clone()), outcome: Ok(json!({})), more: false };
        self.stream(ticket, Call::TracePacket { trace, greeting: encode_response(&response) });
    }

    fn trace_replay(&mut self, ticket: Ticket, port: String) {
        if let Err(error) = check_port(self.changes.site(), &port) {
            return self.clients.answer(ticket, Err(error));
        }
        let id = ticket.id.clone();
        self.stream(ticket, Call::TraceReplay { port, id });
    }

    /// Gives a client's connection to the data plane; it is a client no more when that has taken it over.
    fn stream(&mut self, ticket: Ticket, call: Call) {
        if !self.plane.is_ready() {
            return self.clients.answer(ticket, Err(self.plane.unavailable(NO_FRAMES)));
        }
        match self.clients.connection(&ticket) {
            Some(Ok(connection)) => self.call(call, Purpose::Stream(ticket), vec![connection]),
            Some(Err(error)) => {
                self.clients.answer(ticket, Err(ApiError::new(ErrorCode::Failed, error.to_string())));
            }
            None => {}
        }
    }

    /// One line for people.
    pub(super) fn summary(&self) -> String {
        let (devices, connected) = self.front_ends.count();
        format!("data plane {}, {devices} devices, {connected} connected", self.plane.state())
    }
}

/// Why a trace cannot be made while there is no data plane.
const NO_FRAMES: &str = "no frames pass now";

/// The status that a data plane has answered with.
fn read_status(result: Outcome) -> Option<NodeStatus> {
    let value: Result<Value, String> = result.map_err(|error| error.message);
    let status = value.and_then(|value| serde_json::from_value(value).map_err(|error| error.to_string()));
    status.inspect_err(|error| tracing::error!(error, "the data plane's status cannot be read")).ok()
}

/// Whether the site has the port.
fn check_port(site: &Site, port: &str) -> Result<(), ApiError> {
    let underlay = site.node.underlay.as_ref().map(|_| UNDERLAY);
    let devices = site.devices.iter().filter(|device| device.port().is_some());
    let names: Vec<&str> = devices.map(|device: &Device| device.name.as_str()).chain(underlay).collect();
    if names.contains(&port) {
        return Ok(());
    }
    let error = ApiError::new(ErrorCode::NotFound, format!("there is no port called {port:?}"));
    Err(match nearest(port, names.iter().copied()) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint(format!("the ports are {}", alternatives(names))),
    })
}
