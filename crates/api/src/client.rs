//! The blocking side of the protocol, for the command line and for scripts written in Rust.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::message::encode_call;
use super::{ApiError, Empty, Id, LONGEST_RESPONSE, LineBuffer, Query, Request, decode_response};
use crate::status::NodeStatus;

/// The environment variable that names the management socket.
pub const SOCKET_VARIABLE: &str = "SOFTDPU_SOCKET";

/// Where a daemon listens by default: as a system service, and in the folder it was started from.
const USUAL_SOCKETS: [&str; 2] = ["/run/softdpu/api.sock", "./run/softdpu/api.sock"];

/// The management socket: the one `given`, else the one of the environment, else the first usual one that exists.
pub fn find_socket(given: Option<PathBuf>) -> PathBuf {
    given
        .or_else(|| std::env::var_os(SOCKET_VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from))
        .unwrap_or_else(|| {
            let usual = USUAL_SOCKETS.map(PathBuf::from);
            usual.iter().find(|path| path.exists()).unwrap_or(&usual[0]).clone()
        })
}

/// Why the daemon could not be asked, or what it refused.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No process listens.
    #[error(
        "nothing listens on {}: is softdpu running? Start it with `softdpu run SITE`, or name its socket with --socket or \
         {SOCKET_VARIABLE}", path.display()
    )]
    NotRunning {
        /// The socket.
        path: PathBuf,
    },
    /// The socket's mode or owner keeps this user out.
    #[error(
        "you may not connect to {}: use a user or group that may, or set socket-group and socket-mode in node.api",
        path.display()
    )]
    Denied {
        /// The socket.
        path: PathBuf,
    },
    /// The socket could not be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The socket.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
    /// No answer in time.
    #[error("softdpu did not answer {method} within {} s; it may still do it: look at `softdpu status`", after.as_secs_f32())]
    Timeout {
        /// What was asked.
        method: &'static str,
        /// How long was waited.
        after: Duration,
    },
    /// The daemon hung up.
    #[error("softdpu closed the connection before it answered {method}: its log says why")]
    Closed {
        /// What was asked.
        method: &'static str,
    },
    /// The answer is none.
    #[error("softdpu's answer to {method} cannot be read: {reason}. Are both of the same release?")]
    BadResponse {
        /// What was asked.
        method: &'static str,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The daemon refused.
    #[error(transparent)]
    Refused(#[from] ApiError),
}

/// A connection to a running daemon.
#[derive(Debug)]
pub struct Client {
    stream: UnixStream,
    path: PathBuf,
    timeout: Duration,
    lines: LineBuffer,
    next_id: u64,
    on_warning: fn(&str),
}

impl Client {
    /// Connects to the daemon at `path`. Each call waits up to `timeout` for its answer.
    pub fn connect(path: &Path, timeout: Duration) -> Result<Client, ClientError> {
        let path = path.to_owned();
        match UnixStream::connect(&path) {
            Ok(stream) => Ok(Client {
                stream,
                path,
                timeout,
                lines: LineBuffer::new(LONGEST_RESPONSE),
                next_id: 1,
                on_warning: |_| {},
            }),
            Err(error) => Err(match error.kind() {
                ErrorKind::NotFound | ErrorKind::ConnectionRefused => ClientError::NotRunning { path },
                ErrorKind::PermissionDenied => ClientError::Denied { path },
                _ => ClientError::Io { path, source: error },
            }),
        }
    }

    /// Tells `on_warning` of every warning that comes with an answer: what was asked is done, and something else is
    /// wrong.
    #[must_use]
    pub fn warn(mut self, on_warning: fn(&str)) -> Client {
        self.on_warning = on_warning;
        self
    }

    /// Asks for the status.
    pub fn status(&mut self) -> Result<NodeStatus, ClientError> {
        self.call(Query::Status)
    }

    /// Sends `request` and waits for its result.
    pub fn call<T: DeserializeOwned>(&mut self, request: impl Into<Request>) -> Result<T, ClientError> {
        let request = request.into();
        self.call_method(request.method(), &request.parameters())
    }

    /// Calls `method` with parameters as they are, so that the daemon fills in what they leave out, and waits for its
    /// result.
    pub fn call_method<T: DeserializeOwned>(
        &mut self,
        method: &'static str,
        parameters: &Value,
    ) -> Result<T, ClientError> {
        let deadline = Instant::now() + self.timeout;
        let id = Id::Number(self.next_id);
        self.next_id += 1;
        let line = encode_call(&id, method, parameters);
        self.stream
            .set_write_timeout(Some(self.timeout))
            .and_then(|()| self.stream.write_all(line.as_bytes()))
            .map_err(|error| self.io_error(method, error))?;
        loop {
            let bad = |reason| ClientError::BadResponse { method, reason };
            let line = self.read_line(method, deadline)?;
            let response = decode_response(&line).map_err(bad)?;
            // An answer to an earlier call, which timed out, is late rather than wrong.
            if response.id.is_some() && response.id != Some(id.clone()) {
                continue;
            }
            let mut result = response.outcome?;
            if let Some(Value::String(warning)) = result.as_object_mut().and_then(|result| result.remove("warning")) {
                (self.on_warning)(&warning);
            }
            return serde_json::from_value(result).map_err(|error| bad(error.to_string()));
        }
    }

    /// Sends `request`, whose good answer turns the connection into one for its bytes. Gives the connection, which
    /// blocks without limit, and those of the bytes that have come already.
    pub fn stream(mut self, request: &Query) -> Result<(UnixStream, Vec<u8>), ClientError> {
        self.call::<Empty>(request.clone())?;
        let unlimited = self.stream.set_read_timeout(None).and_then(|()| self.stream.set_write_timeout(None));
        unlimited.map_err(|error| self.io_error(request.method(), error))?;
        Ok((self.stream, self.lines.into_rest()))
    }

    fn read_line(&mut self, method: &'static str, deadline: Instant) -> Result<Vec<u8>, ClientError> {
        let mut chunk = [0; 16 << 10];
        loop {
            match self.lines.next_line() {
                Ok(Some(line)) => return Ok(line),
                Ok(None) => {}
                Err(error) => return Err(ClientError::BadResponse { method, reason: error.to_string() }),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ClientError::Timeout { method, after: self.timeout });
            }
            let read = self.stream.set_read_timeout(Some(left)).and_then(|()| self.stream.read(&mut chunk));
            match read {
                Ok(0) => return Err(ClientError::Closed { method }),
                Ok(length) => self.lines.push(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.io_error(method, error)),
            }
        }
    }

    fn io_error(&self, method: &'static str, error: io::Error) -> ClientError {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => ClientError::Timeout { method, after: self.timeout },
            ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => ClientError::Closed { method },
            _ => ClientError::Io { path: self.path.clone(), source: error },
        }
    }
}
