//! Requests and responses, and how they are written on a line.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{EndpointChange, PacketTrace, PathQuestion, Unload, VERSION};
use softdpu_site::{
    self as config, Bytes, Device, DeviceChange, Function, FunctionChange, MemberChange, Network, NetworkPart,
    NetworksChange, SteeringChange, Tenant, TenantChange, Volume, alternatives, nearest,
};

/// What a client asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// `status`: everything about the node. Result: [`NodeStatus`](crate::status::NodeStatus).
    Status,
    /// `volume.create`: a volume as a `[[volume]]` would declare it. Result: `{}`.
    VolumeCreate(Volume),
    /// `volume.grow`: a larger size, which the guests see. Result: `{}`.
    VolumeGrow {
        /// The volume.
        name: String,
        /// Its new size; smaller than its present one is refused.
        size: Bytes,
    },
    /// `volume.delete`: forget a volume that no device uses; its data stays where it is. Result: `{}`.
    VolumeDelete {
        /// The volume.
        name: String,
    },
    /// `volume.list`. Result: an array of [`VolumeStatus`](crate::status::VolumeStatus).
    VolumeList,
    /// `device.add`: a device as a `[[device]]` would declare it. Result: [`DeviceArgs`].
    DeviceAdd(Device),
    /// `device.set`: other security groups, another access control list or meter, or other functions, of an interface. Result: `{}`; no
    /// packet passes by what was before from then on.
    DeviceSet(DeviceChange),
    /// `device.remove`: stop a device and close its socket. Result: `{}`.
    DeviceRemove {
        /// The device.
        name: String,
    },
    /// `device.list`. Result: an array of [`DeviceStatus`](crate::status::DeviceStatus).
    DeviceList,
    /// `device.args`: what is needed to attach a device. Result: [`DeviceArgs`].
    DeviceArgs {
        /// The device.
        name: String,
    },
    /// `network.add`: a network as a `[[network]]` would declare it. Result: `{}`.
    NetworkAdd(Network),
    /// `network.remove`: forget a network that no device is attached to. Result: `{}`.
    NetworkRemove {
        /// The network.
        name: String,
    },
    /// `network.list`. Result: an array of [`NetworkStatus`](crate::status::NetworkStatus).
    NetworkList,
    /// `network.endpoints`: guests of a network on other hosts come, go and move. Result: `{}`.
    NetworkEndpoints(EndpointChange),
    /// `network.policy`: other security groups and access control lists in the place of all that networks have, or `network.routing`: other
    /// routes, ECMP groups, route tables and peers. Result: `{}`; no packet passes by those before from then on.
    NetworksChange(NetworksChange),
    /// The same, from a file. Result: `{}`.
    NetworksFile {
        /// Which of both.
        part: NetworkPart,
        /// The file, by a path that does not depend on a current folder.
        path: PathBuf,
    },
    /// `network.member`: set a member of an ECMP group down or up, or give it another weight. Result: `{}`; no packet goes to a
    /// member that is down from then on.
    NetworkMember(MemberChange),
    /// `network.load`: other loaded entries in the place of all there are, from a file. Result: [`LoadResult`](super::LoadResult); no
    /// packet passes by the entries before from then on.
    NetworkLoad {
        /// The file, by a path that does not depend on a current folder.
        path: PathBuf,
    },
    /// `network.unload`: some loaded entries of a network go. Result: [`LoadResult`](super::LoadResult) with what is left; no packet
    /// passes by them from then on.
    NetworkUnload(Unload),
    /// `function.add`: a function as a `[[function]]` would declare it; no interface has it yet. Result: `{}`.
    FunctionAdd(Function),
    /// `function.set`: other settings of a function in the place of all that it has. Result: `{}`; no packet passes by those before from
    /// then on.
    FunctionSet(FunctionChange),
    /// `function.remove`: forget a function that no interface has. Result: `{}`.
    FunctionRemove {
        /// The function.
        name: String,
    },
    /// `function.list`. Result: an array of [`FunctionStatus`](crate::status::FunctionStatus).
    FunctionList,
    /// `network.steer`: packets from tunnels are worked on elsewhere. Result: `{}`; each flow's stay in order.
    NetworkSteer(SteeringChange),
    /// `tenant.add`: a tenant as a `[[tenant]]` would declare it; no device is its own yet. Result: `{}`.
    TenantAdd(Tenant),
    /// `tenant.remove`: forget a tenant that has no device, network or function. Result: `{}`.
    TenantRemove {
        /// The tenant.
        name: String,
    },
    /// `tenant.list`. Result: an array of [`TenantStatus`](crate::status::TenantStatus).
    TenantList,
    /// `tenant.set`: another weight, class, guarantee or limits of a tenant, from then on. Result: `{}`.
    TenantSet(TenantChange),
    /// `queue.move`: let another core serve a queue, while it runs. Result: `{}`.
    QueueMove {
        /// The device.
        device: String,
        /// Which of its queues.
        queue: u16,
        /// The CPU, one of the data plane's.
        core: u32,
    },
    /// `trace.packet`: show frames that pass ports. Result: `{}`; from then on the connection carries pcapng until either side
    /// ends it.
    TracePacket(PacketTrace),
    /// `trace.explain`: what would become of a packet. Result: [`PathAnswer`](super::PathAnswer).
    TraceExplain(PathQuestion),
    /// `trace.replay`: frames come in by a port. Result: `{}`, and more: the client sends pcapng until it ends its direction, and
    /// is then given [`Replayed`](super::Replayed).
    TraceReplay {
        /// The device.
        port: String,
    },
    /// `shutdown`: stop the daemon. Result: `{}`, before it stops.
    Shutdown,
}

/// Every method's name.
pub const METHODS: &[&str] = &[
    "status",
    "volume.create",
    "volume.grow",
    "volume.delete",
    "volume.list",
    "device.add",
    "device.set",
    "device.remove",
    "device.list",
    "device.args",
    "network.add",
    "network.remove",
    "network.list",
    "network.endpoints",
    "network.policy",
    "network.routing",
    "network.member",
    "network.load",
    "network.unload",
    "function.add",
    "function.set",
    "function.remove",
    "function.list",
    "network.steer",
    "tenant.add",
    "tenant.set",
    "tenant.remove",
    "tenant.list",
    "queue.move",
    "trace.packet",
    "trace.explain",
    "trace.replay",
    "shutdown",
];

/// Parameters or a result without members.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Empty {}

/// The result of `device.args` and `device.add`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceArgs {
    /// The device, and after it the other devices of its domain: what `softdpu device args` shows.
    pub devices: Vec<Device>,
    /// The networks they attach to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub networks: Vec<Network>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NameParameters {
    name: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GrowParameters {
    name: String,
    size: Bytes,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PortParameters {
    port: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LoadParameters {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MoveParameters {
    device: String,
    queue: u16,
    core: u32,
}

/// What joins a response to its request: chosen by the client, repeated by the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Id {
    /// A number.
    Number(u64),
    /// A string.
    Text(String),
}

/// Why a request was not done, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorCode {
    /// The line is not a request.
    BadRequest,
    /// The protocol's version is not this daemon's.
    UnsupportedVersion,
    /// There is no such method.
    UnknownMethod,
    /// The parameters are wrong.
    InvalidParams,
    /// Something that is named does not exist.
    NotFound,
    /// Something of that name exists already.
    Exists,
    /// It is in use.
    Busy,
    /// It contradicts the rest of the site, or cannot be done at all, such as shrinking a volume.
    Refused,
    /// The data plane cannot do it now, for instance while it restarts.
    Unavailable,
    /// It was tried and failed, for instance because a file could not be created.
    Failed,
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}{}", hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default())]
pub struct ApiError {
    /// For programs.
    pub code: ErrorCode,
    /// For people: what is wrong.
    pub message: String,
    /// For people: what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ApiError {
    /// An error without a hint.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> ApiError {
        ApiError { code, message: message.into(), hint: None }
    }

    /// With what to do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> ApiError {
        self.hint = Some(hint.into());
        self
    }

    /// What [`Site::problems`](config::Site::problems) or the reader found, as one error.
    pub fn from_problems(code: ErrorCode, problems: &[config::Problem]) -> ApiError {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        ApiError::new(code, lines.join("; "))
    }
}

/// A line that is no request, with the id to answer to, as far as one could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The id, if it could be read.
    pub id: Option<Id>,
    /// What is wrong.
    pub error: ApiError,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// Of the request; `None` only where it could not be read.
    pub id: Option<Id>,
    /// What came of it.
    pub outcome: Result<Value, ApiError>,
    /// Another response to this request follows.
    pub more: bool,
}

impl Request {
    /// The method's name.
    pub fn method(&self) -> &'static str {
        match self {
            Request::Status => "status",
            Request::VolumeCreate(_) => "volume.create",
            Request::VolumeGrow { .. } => "volume.grow",
            Request::VolumeDelete { .. } => "volume.delete",
            Request::VolumeList => "volume.list",
            Request::DeviceAdd(_) => "device.add",
            Request::DeviceSet(_) => "device.set",
            Request::DeviceRemove { .. } => "device.remove",
            Request::DeviceList => "device.list",
            Request::DeviceArgs { .. } => "device.args",
            Request::NetworkAdd(_) => "network.add",
            Request::NetworkRemove { .. } => "network.remove",
            Request::NetworkList => "network.list",
            Request::NetworkEndpoints(_) => "network.endpoints",
            Request::NetworksChange(change) => change.part().method(),
            Request::NetworksFile { part, .. } => part.method(),
            Request::NetworkMember(_) => "network.member",
            Request::NetworkLoad { .. } => "network.load",
            Request::NetworkUnload(_) => "network.unload",
            Request::FunctionAdd(_) => "function.add",
            Request::FunctionSet(_) => "function.set",
            Request::FunctionRemove { .. } => "function.remove",
            Request::FunctionList => "function.list",
            Request::NetworkSteer(_) => "network.steer",
            Request::TenantAdd(_) => "tenant.add",
            Request::TenantSet(_) => "tenant.set",
            Request::TenantRemove { .. } => "tenant.remove",
            Request::TenantList => "tenant.list",
            Request::QueueMove { .. } => "queue.move",
            Request::TracePacket(_) => "trace.packet",
            Request::TraceExplain(_) => "trace.explain",
            Request::TraceReplay { .. } => "trace.replay",
            Request::Shutdown => "shutdown",
        }
    }

    pub(super) fn parameters(&self) -> Value {
        match self {
            Request::Status
            | Request::VolumeList
            | Request::DeviceList
            | Request::NetworkList
            | Request::FunctionList
            | Request::TenantList
            | Request::Shutdown => json!({}),
            Request::VolumeCreate(volume) => json!(volume),
            Request::DeviceAdd(device) => json!(device),
            Request::DeviceSet(change) => json!(change),
            Request::VolumeGrow { name, size } => json!({ "name": name, "size": size }),
            Request::VolumeDelete { name }
            | Request::DeviceRemove { name }
            | Request::DeviceArgs { name }
            | Request::FunctionRemove { name }
            | Request::TenantRemove { name }
            | Request::NetworkRemove { name } => json!({ "name": name }),
            Request::NetworkAdd(network) => json!(network),
            Request::NetworkEndpoints(change) => json!(change),
            Request::NetworksChange(change) => change.to_json(),
            Request::NetworksFile { path, .. } => json!({ "path": path }),
            Request::NetworkMember(change) => json!(change),
            Request::NetworkLoad { path } => json!({ "path": path }),
            Request::NetworkUnload(unload) => json!(unload),
            Request::FunctionAdd(function) => json!(function),
            Request::FunctionSet(change) => json!(change),
            Request::NetworkSteer(change) => json!(change),
            Request::TenantAdd(tenant) => json!(tenant),
            Request::TenantSet(change) => json!(change),
            Request::QueueMove { device, queue, core } => json!({ "device": device, "queue": queue, "core": core }),
            Request::TracePacket(trace) => json!(trace),
            Request::TraceExplain(question) => json!(question),
            Request::TraceReplay { port } => json!({ "port": port }),
        }
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Id::Number(number) => number.fmt(f),
            Id::Text(text) => text.fmt(f),
        }
    }
}

/// Reads a request from a line without its newline. A device's socket that is not given is put into `run_directory`.
pub fn decode_request(line: &[u8], run_directory: &Path) -> Result<(Id, Request), Rejected> {
    let bad = |message: String| ApiError::new(ErrorCode::BadRequest, message);
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| Rejected { id: None, error: bad(format!("the line is not JSON: {error}")) })?;
    let id = value.get("id").and_then(|id| serde_json::from_value::<Id>(id.clone()).ok());
    let reject = |error| Rejected { id: id.clone(), error };
    let Value::Object(object) = &value else {
        return Err(reject(bad("the line is not a JSON object".to_owned())));
    };
    match object.get("softdpu") {
        Some(version) if version.as_u64() == Some(VERSION) => {}
        Some(version) => {
            let message = format!("protocol version {version} is not supported: this daemon speaks version {VERSION}");
            return Err(reject(ApiError::new(ErrorCode::UnsupportedVersion, message)));
        }
        None => return Err(reject(bad(format!("\"softdpu\":{VERSION} is missing")))),
    }
    if let Some(key) = object.keys().find(|key| !["softdpu", "id", "method", "params"].contains(&key.as_str())) {
        return Err(reject(bad(format!("unknown member {key:?}"))));
    }
    let Some(id) = id.clone() else {
        return Err(reject(bad("\"id\" is missing, or neither a string nor a whole number".to_owned())));
    };
    let Some(Value::String(method)) = object.get("method") else {
        return Err(reject(bad("\"method\" is missing or not a string".to_owned())));
    };
    let none = json!({});
    let parameters = object.get("params").unwrap_or(&none);
    match decode_method(method, parameters, run_directory) {
        Ok(request) => Ok((id, request)),
        Err(error) => Err(reject(error)),
    }
}

fn decode_method(method: &str, parameters: &Value, run_directory: &Path) -> Result<Request, ApiError> {
    let site = |problems: Vec<config::Problem>| ApiError::from_problems(ErrorCode::InvalidParams, &problems);
    let name = || typed::<NameParameters>(method, parameters).map(|parameters| parameters.name);
    let empty = |request| typed::<Empty>(method, parameters).map(|Empty {}| request);
    match method {
        "status" => empty(Request::Status),
        "volume.create" => config::volume_from_json(parameters).map(Request::VolumeCreate).map_err(site),
        "volume.grow" => {
            typed(method, parameters).map(|GrowParameters { name, size }| Request::VolumeGrow { name, size })
        }
        "volume.delete" => name().map(|name| Request::VolumeDelete { name }),
        "volume.list" => empty(Request::VolumeList),
        "device.add" => config::device_from_json(parameters, run_directory).map(Request::DeviceAdd).map_err(site),
        "device.set" => typed(method, parameters).map(Request::DeviceSet),
        "device.remove" => name().map(|name| Request::DeviceRemove { name }),
        "device.list" => empty(Request::DeviceList),
        "device.args" => name().map(|name| Request::DeviceArgs { name }),
        "network.add" => config::network_from_json(parameters).map(Request::NetworkAdd).map_err(site),
        "network.remove" => name().map(|name| Request::NetworkRemove { name }),
        "network.list" => empty(Request::NetworkList),
        "network.endpoints" => EndpointChange::decode(typed(method, parameters)?).map(Request::NetworkEndpoints),
        "network.policy" => decode_networks(NetworkPart::Policy, parameters),
        "network.routing" => decode_networks(NetworkPart::Routing, parameters),
        "network.member" => typed(method, parameters).map(Request::NetworkMember),
        "network.load" => file(method, parameters).map(|path| Request::NetworkLoad { path }),
        "network.unload" => typed(method, parameters).map(Request::NetworkUnload),
        "function.add" => config::function_from_json(parameters).map(Request::FunctionAdd).map_err(site),
        "function.set" => config::function_change_from_json(parameters).map(Request::FunctionSet).map_err(site),
        "function.remove" => name().map(|name| Request::FunctionRemove { name }),
        "function.list" => empty(Request::FunctionList),
        "network.steer" => config::steering_change_from_json(parameters).map(Request::NetworkSteer).map_err(site),
        "tenant.add" => config::tenant_from_json(parameters).map(Request::TenantAdd).map_err(site),
        "tenant.remove" => name().map(|name| Request::TenantRemove { name }),
        "tenant.list" => empty(Request::TenantList),
        "tenant.set" => config::tenant_change_from_json(parameters).map(Request::TenantSet).map_err(site),
        "queue.move" => typed(method, parameters).map(|MoveParameters { device, queue, core }| Request::QueueMove {
            device,
            queue,
            core,
        }),
        "trace.packet" => {
            let trace: PacketTrace = typed(method, parameters)?;
            trace.check().map(|_| Request::TracePacket(trace))
        }
        "trace.explain" => {
            let question: PathQuestion = typed(method, parameters)?;
            question.service().map(|_| Request::TraceExplain(question))
        }
        "trace.replay" => typed(method, parameters).map(|PortParameters { port }| Request::TraceReplay { port }),
        "shutdown" => empty(Request::Shutdown),
        _ => {
            let error = ApiError::new(ErrorCode::UnknownMethod, format!("there is no method {method:?}"));
            Err(match nearest(method, METHODS.iter().copied()) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error.hint(format!("the methods are {}", alternatives(METHODS.iter().copied()))),
            })
        }
    }
}

/// The parameters of a method that takes a file.
fn file(method: &str, parameters: &Value) -> Result<PathBuf, ApiError> {
    let LoadParameters { path } = typed(method, parameters)?;
    if path.is_absolute() {
        return Ok(path);
    }
    let message = format!("{method}: path {:?} is not absolute", path.display().to_string());
    Err(ApiError::new(ErrorCode::InvalidParams, message))
}

fn decode_networks(part: NetworkPart, parameters: &Value) -> Result<Request, ApiError> {
    if parameters.get("path").is_some() {
        return file(part.method(), parameters).map(|path| Request::NetworksFile { part, path });
    }
    let change = config::networks_change_from_json(part, parameters).map(Request::NetworksChange);
    change.map_err(|problems| ApiError::from_problems(ErrorCode::InvalidParams, &problems))
}

fn typed<T: DeserializeOwned>(method: &str, parameters: &Value) -> Result<T, ApiError> {
    // Serde would read a struct from an array of its fields too; the protocol has named parameters only.
    if !parameters.is_object() {
        return Err(ApiError::new(ErrorCode::InvalidParams, format!("{method}: \"params\" is not an object")));
    }
    T::deserialize(parameters).map_err(|error| ApiError::new(ErrorCode::InvalidParams, format!("{method}: {error}")))
}

/// Writes a request on a line, with its newline.
pub fn encode_request(id: &Id, request: &Request) -> String {
    encode_call(id, request.method(), &request.parameters())
}

/// Writes a request on a line from its parts, for parameters whose defaults the daemon fills in.
pub(super) fn encode_call(id: &Id, method: &str, parameters: &Value) -> String {
    format!("{}\n", json!({ "softdpu": VERSION, "id": id, "method": method, "params": parameters }))
}

/// Writes a response on a line, with its newline.
pub fn encode_response(response: &Response) -> String {
    let mut message = json!({ "softdpu": VERSION, "id": response.id });
    match &response.outcome {
        Ok(result) => message["result"] = result.clone(),
        Err(error) => message["error"] = json!(error),
    }
    if response.more {
        message["more"] = Value::Bool(true);
    }
    format!("{message}\n")
}

/// Reads a response from a line without its newline. The error says what is wrong with it.
pub fn decode_response(line: &[u8]) -> Result<Response, String> {
    #[derive(Deserialize)]
    struct Message {
        softdpu: u64,
        id: Option<Id>,
        result: Option<Value>,
        error: Option<ApiError>,
        #[serde(default)]
        more: bool,
    }
    let message: Message = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if message.softdpu != VERSION {
        return Err(format!("it has version {}, this program speaks version {VERSION}", message.softdpu));
    }
    let outcome = match (message.result, message.error) {
        (Some(result), None) => Ok(result),
        (None, Some(error)) => Err(error),
        _ => return Err("it has neither a result nor an error, or both".to_owned()),
    };
    Ok(Response { id: message.id, outcome, more: message.more })
}
