//! Networks that span hosts: network namespaces stand for hosts, a veth pair for the wire between them. The other end
//! of the tunnel is another softdpu, or the kernel's own VXLAN device. What softdpu sends is captured, and judged by
//! tshark.

#![allow(missing_docs)]

#[path = "tunnel/common.rs"]
mod common;
#[path = "tunnel/peers.rs"]
mod peers;
#[path = "tunnel/traffic.rs"]
mod traffic;
#[path = "tunnel/underlay.rs"]
mod underlay;
