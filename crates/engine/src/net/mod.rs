//! What frames come from and go to, and what accompanies them: ports and their sockets, receive queues, captures,
//! functions, and what cores hand off to each other. The [forwarder](crate::frames) of a core puts them together.

mod capture;
mod captures;
mod credits;
mod deliver;
mod egress_frame;
mod frame;
mod functions;
mod ingress_backlog;
mod inject;
mod offload;
mod port;
mod port_table;
mod socket;
mod steering;
mod xdp_queues;

pub use capture::{Capture, CaptureBatch, CaptureCounts, CaptureSpec, CaptureTally, CapturedFrame};
pub use capture::{FrameDirection, FramePath};
pub use functions::{
    FunctionBox, FunctionChange, FunctionId, FunctionOutlet, FunctionReport, FunctionSwitchover, NewFunction,
};
pub use port::{PortCounters, PortSpec};
pub use socket::Socket;
pub use xdp_queues::XdpQueues;

pub(crate) use capture::{CaptureShared, CaptureStart, CoreCapture, PassingFrame};
pub(crate) use captures::{Captures, FrameOutcome};
pub(crate) use credits::{CreditOwner, CreditPool};
pub(crate) use deliver::{DeliveredRun, DeliveryError, deliver, deliver_run};
pub(crate) use egress_frame::{BACKLOG, EgressFrame, EgressTail, LentTail};
pub(crate) use frame::{FrameTail, finished_frame, gather};
pub(crate) use functions::{FunctionSwitch, Functions};
pub(crate) use ingress_backlog::{IngressBacklogs, IngressBill};
pub(crate) use inject::{Injection, InjectionProgress};
pub(crate) use port::{Port, Receiver};
pub(crate) use port_table::PortTable;
pub(crate) use socket::{header as socket_header, pending_offload};
pub(crate) use steering::{SteeredPacket, SteeredWork, SteeringItem, TunnelSteering};
