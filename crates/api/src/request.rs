//! What a client may ask for: questions, changes, and connections that become streams.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use softdpu_site::{NetworkPart, alternatives, nearest};

use crate::change::LoadFile;
use crate::methods::{Parameters, Unread, methods, written};
use crate::{ApiError, Change, ControlPlaneTask, ErrorCode, PacketTrace, PathQuestion};

methods! {
    /// What changes nothing of what is to run.
    pub enum Query {
        /// Everything about the node. Result: [`NodeStatus`](crate::status::NodeStatus).
        "status" => Status,
        /// Result: an array of [`VolumeStatus`](crate::status::VolumeStatus).
        "volume.list" => VolumeList,
        /// Result: an array of [`DeviceStatus`](crate::status::DeviceStatus).
        "device.list" => DeviceList,
        /// What is needed to attach a device. Result: [`DeviceArgs`](crate::DeviceArgs).
        "device.args" => DeviceArgs {
            /// The device.
            name: String,
        },
        /// Result: an array of [`NetworkStatus`](crate::status::NetworkStatus).
        "network.list" => NetworkList,
        /// Result: an array of [`FunctionStatus`](crate::status::FunctionStatus).
        "function.list" => FunctionList,
        /// Result: an array of [`TenantStatus`](crate::status::TenantStatus).
        "tenant.list" => TenantList,
        /// Show frames that pass ports. Result: `{}`; from then on the connection carries pcapng until either side ends
        /// it.
        "trace.packet" => TracePacket(PacketTrace),
        /// What would become of a packet. Result: [`PathAnswer`](crate::PathAnswer).
        "trace.explain" => TraceExplain(PathQuestion),
        /// Frames come in by a port. Result: `{}`, and more: the client sends pcapng until it ends its direction, and
        /// is then given [`Replayed`](crate::Replayed).
        "trace.replay" => TraceReplay {
            /// The device.
            port: String,
        },
        /// Have a program that runs do so on idle time from now on, with all that it starts. Result:
        /// [`ControlPlaneCpus`](crate::ControlPlaneCpus).
        "control-plane.add" => ControlPlaneAdd(ControlPlaneTask),
        /// Have a task run as it did before. Result: `{}`.
        "control-plane.remove" => ControlPlaneRemove {
            /// The task.
            name: String,
        },
        /// Have another program go on as the supervisor, and a data plane of it take over from the one that runs.
        /// Result: [`UpgradeResult`](crate::UpgradeResult), when that is done and every connected device has been taken
        /// over. Until a part is switched, a failure leaves it as it is.
        "upgrade" => Upgrade(Upgrade),
        /// Stop the daemon. Result: `{}`, before it stops.
        "shutdown" => Shutdown,
    }
}

/// Which program takes over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Upgrade {
    /// The `softdpu` program, by a path that does not depend on a current folder.
    pub program: PathBuf,
    /// Switch although some volumes could not be opened.
    #[serde(default)]
    pub force: bool,
    /// The part of softdpu that is upgraded; both where it is absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<UpgradePart>,
}

/// A part of softdpu that is upgraded by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpgradePart {
    /// The process that holds connections and state: it goes on, with another program.
    Supervisor,
    /// The process that does the work: another one takes over.
    DataPlane,
}

impl Parameters for Upgrade {
    fn read(unread: &Unread<'_>) -> Result<Upgrade, ApiError> {
        let upgrade: Upgrade = unread.typed()?;
        if upgrade.program.is_absolute() {
            return Ok(upgrade);
        }
        Err(unread.invalid(format!("\"program\" is {}, which is not an absolute path", upgrade.program.display())))
    }
}

/// What came of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeResult {
    /// The release before.
    pub from: String,
    /// The release that runs now.
    pub to: String,
    /// From the start of the new process until it was ready to take over, in microseconds: devices were served.
    pub prepared_us: u64,
    /// From the moment at which queues were stopped until every connected device was taken over, in microseconds.
    pub switched_us: u64,
    /// Requests that back ends had not finished in time, which the new process executes again.
    pub abandoned: u64,
    /// What came of the supervisor's upgrade, where it was part of it. Where the data plane's was not, the other
    /// members say that nothing was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervisor: Option<SupervisorUpgradeResult>,
}

impl UpgradeResult {
    /// The data plane, of release `version`, serves on.
    pub fn none(version: String) -> UpgradeResult {
        UpgradeResult {
            from: version.clone(),
            to: version,
            prepared_us: 0,
            switched_us: 0,
            abandoned: 0,
            supervisor: None,
        }
    }
}

/// What came of an upgrade of the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SupervisorUpgradeResult {
    /// The release before.
    pub from: String,
    /// The release that runs now.
    pub to: String,
    /// From the request until everything was ready for the other program, in microseconds: all went on as ever.
    pub prepared_us: u64,
    /// For how long the supervisor listened to nothing, in microseconds. Devices were served.
    pub switched_us: u64,
}

impl Parameters for PacketTrace {
    fn read(unread: &Unread<'_>) -> Result<PacketTrace, ApiError> {
        let trace: PacketTrace = unread.typed()?;
        trace.check().map(|_| trace)
    }
}

impl Parameters for PathQuestion {
    fn read(unread: &Unread<'_>) -> Result<PathQuestion, ApiError> {
        let question: PathQuestion = unread.typed()?;
        question.service().map(|_| question)
    }
}

/// What a client asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// What changes nothing of what is to run.
    Query(Query),
    /// A change of what runs.
    Change(Change),
    /// [`Change::NetworkPolicy`], [`Change::NetworkRouting`] or [`Change::NetworkNat`], with the changes in a file that
    /// the daemon reads.
    NetworksFile {
        /// Which of them.
        part: NetworkPart,
        /// The file, by a path that does not depend on a current folder.
        path: PathBuf,
    },
}

impl From<Query> for Request {
    fn from(query: Query) -> Request {
        Request::Query(query)
    }
}

impl From<Change> for Request {
    fn from(change: Change) -> Request {
        Request::Change(change)
    }
}

impl Request {
    /// The method's name.
    pub fn method(&self) -> &'static str {
        match self {
            Request::Query(query) => query.method(),
            Request::Change(change) => change.method(),
            Request::NetworksFile { part, .. } => part.method(),
        }
    }

    /// What the method is called with.
    pub fn parameters(&self) -> Value {
        match self {
            Request::Query(query) => query.parameters(),
            Request::Change(change) => change.parameters(),
            Request::NetworksFile { path, .. } => written(&LoadFile { path: path.clone() }),
        }
    }

    /// Reads a request from its method and parameters. A device's socket that is not given is put into `run_directory`.
    pub(crate) fn read(method: &str, parameters: &Value, run_directory: &Path) -> Result<Request, ApiError> {
        let unread = Unread { method, parameters, run_directory };
        if let Some(part) = NetworkPart::of_method(method)
            && parameters.get("path").is_some()
        {
            return LoadFile::read(&unread).map(|LoadFile { path }| Request::NetworksFile { part, path });
        }
        let query = || Query::read(&unread).map(|query| query.map(Request::Query));
        let change = Change::read(&unread).map(|change| change.map(Request::Change));
        change.or_else(query).unwrap_or_else(|| Err(unknown(method)))
    }
}

/// Every method's name.
pub fn methods() -> impl Iterator<Item = &'static str> + Clone {
    Query::METHODS.iter().chain(Change::METHODS).copied()
}

fn unknown(method: &str) -> ApiError {
    let error = ApiError::new(ErrorCode::UnknownMethod, format!("there is no method {method:?}"));
    match nearest(method, methods()) {
        Some(near) => error.hint(format!("did you mean `{near}`?")),
        None => error.hint(format!("the methods are {}", alternatives(methods()))),
    }
}
