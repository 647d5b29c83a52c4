//! Clients that become streams: the data plane takes their connection over, and they are clients no more.

use serde_json::{Value, json};

use super::api::{Purpose, Ticket};
use super::state::Supervisor;
use softdpu_api::{ApiError, ErrorCode, PacketTrace, PathQuestion, Response, UNDERLAY, encode_response};
use softdpu_link::Call;
use softdpu_site::{Device, alternatives, nearest};

impl Supervisor {
    pub(super) fn trace_packet(&mut self, ticket: Ticket, trace: PacketTrace) {
        if let Some(error) = trace.ports.iter().find_map(|port| self.check_port(port).err()) {
            return self.answer(ticket, Err(error));
        }
        let response = Response { id: Some(ticket.id.clone()), outcome: Ok(json!({})), more: false };
        self.stream(ticket, Call::TracePacket { trace, greeting: encode_response(&response) });
    }

    pub(super) fn trace_explain(&mut self, ticket: Ticket, question: PathQuestion) {
        if self.plane_is_ready() {
            self.call_with(Call::TraceExplain(question), Purpose::Answer(ticket), Vec::new());
        } else {
            let error = self.no_frames_pass();
            self.answer(ticket, Err(error));
        }
    }

    pub(super) fn trace_replay(&mut self, ticket: Ticket, port: String) {
        if let Err(error) = self.check_port(&port) {
            return self.answer(ticket, Err(error));
        }
        let id = ticket.id.clone();
        self.stream(ticket, Call::TraceReplay { port, id });
    }

    /// Whether the site has the port.
    fn check_port(&self, port: &str) -> Result<(), ApiError> {
        let site = self.desired.site();
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

    fn no_frames_pass(&self) -> ApiError {
        let message = format!("the data plane is {}; no frames pass now", self.plane_state());
        ApiError::new(ErrorCode::Unavailable, message).hint("try again in a moment")
    }

    /// Gives a client's connection to the data plane.
    fn stream(&mut self, ticket: Ticket, call: Call) {
        if !self.plane_is_ready() {
            let error = self.no_frames_pass();
            return self.answer(ticket, Err(error));
        }
        match self.clients.get(&ticket.client).map(|client| client.connection()) {
            Some(Ok(connection)) => self.call_with(call, Purpose::Stream(ticket), vec![connection]),
            Some(Err(error)) => self.answer(ticket, Err(ApiError::new(ErrorCode::Failed, error.to_string()))),
            None => {}
        }
    }

    /// The data plane has taken the connection over, or will not.
    pub(super) fn stream_began(&mut self, ticket: Ticket, result: Result<Value, ApiError>) {
        match result {
            Ok(_) => self.drop_client(ticket.client),
            Err(error) => self.answer_late(ticket, Err(error)),
        }
    }
}
