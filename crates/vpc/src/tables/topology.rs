//! Networks, their endpoints, and the next hops that lead to them.

use std::net::IpAddr;
use std::sync::Arc;

use super::fib::{FibEntry, Target};
use super::loaded::LoadedNetworkId;
use crate::id::{EndpointId, NetworkId, ObjectId, PortId, SubnetId, TunnelId, Vni};
use crate::nat::NatId;
use crate::packet::Mac;
use crate::policy::EndpointPolicy;
use crate::policy::conntrack::Zone;
use crate::policy::group::SecurityGroupId;
use crate::policy::meter::MeterIds;
use crate::spec::{Prefix, SubnetSpec, TenantId};

/// A network.
#[derive(Debug)]
pub(crate) struct Network {
    pub name: String,
    pub vni: Vni,
    pub gateway_mac: Mac,
    pub mtu: u16,
    pub dns: Box<[IpAddr]>,
    /// Packets that come by one tunnel may leave by another.
    pub transit: bool,
    /// The tenant that is charged for what its tunnels bring.
    pub tenant: Option<TenantId>,
    /// Entries of the network are being loaded.
    pub is_loading: bool,
    /// Entries of the network or of a peer are being loaded: any node may turn out to be one of its members.
    pub loads_members: bool,
    /// The object that is its routes.
    pub routes: ObjectId,
    /// Where it has connections, their zone.
    pub(super) zone: Option<Zone>,
    /// Where it has loaded entries, its number among the networks that have some.
    pub(super) loaded: Option<LoadedNetworkId>,
    pub(super) first_subnet: SubnetId,
    pub(super) subnets: Box<[Prefix]>,
}

impl Network {
    /// Whether an entry that is being loaded may decide about `address`, which no known guest has, although a route of
    /// the network, or of a route table (`is_policy_route`), contains it.
    #[cold]
    pub(super) fn may_load(&self, address: IpAddr, is_policy_route: bool) -> bool {
        // Policy routes win over the network's routes, however long, but not over guests, which are in subnets.
        !is_policy_route || self.subnets.iter().any(|subnet| subnet.contains(address))
    }
}

/// An endpoint. The next hop that leads to it has the same number.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub network: NetworkId,
    pub mac: Mac,
    pub spoof_check: bool,
    pub mtu: u16,
    pub addresses: Box<[IpAddr]>,
    /// The subnets of its addresses, in the order of these.
    pub(super) subnet_ids: Box<[SubnetId]>,
    /// The subnets of its addresses, each once.
    pub subnets: Box<[SubnetSpec]>,
    /// The security groups that it is in.
    pub groups: Box<[SecurityGroupId]>,
    /// The name of its access control list.
    pub acl: Option<Box<str>>,
    /// What is allowed to and from it. None: everything, or it is on another node.
    pub policy: Option<Arc<EndpointPolicy>>,
    /// Where it is an exit with translation, its rules.
    pub nat: Option<NatId>,
    /// The meters that its packets pass, where it is at a port of this node.
    pub meters: MeterIds,
}

impl Endpoint {
    /// The entry of `address`, if this endpoint, which has the number `id`, has it.
    #[inline]
    pub fn entry(&self, id: EndpointId, address: IpAddr) -> Option<FibEntry> {
        let at = self.addresses.iter().position(|own| *own == address)?;
        Some(FibEntry::new(Target::Hop(id.into()), Some(*self.subnet_ids.get(at)?)))
    }
}

/// A next hop: the index that the flow tier hands to the switch tier (Zephyrus §4.2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    pub network: NetworkId,
    /// Largest IP packet on the way there, bytes.
    pub mtu: u16,
    /// Inner destination MAC address.
    pub mac: Mac,
    pub egress: Egress,
    /// The gateway's MAC address in its network.
    pub gateway_mac: Mac,
    pub vni: Vni,
}

const _: () = assert!(size_of::<Option<Hop>>() == 32, "two in a cache line");

/// How a next hop is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Egress {
    Port(PortId),
    Tunnel(TunnelId),
}

/// An endpoint on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteEndpoint {
    /// The node's tunnel end point.
    pub host: IpAddr,
    /// Its MAC address; the gateway's, where it is behind a route.
    pub mac: Mac,
}

/// An endpoint at a port of this node, with its meters: all that a burst from the port needs for them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MeteredPort {
    pub endpoint: EndpointId,
    pub meters: MeterIds,
}

/// What is attached to a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Attachment {
    #[default]
    Nothing,
    Endpoint(EndpointId),
    Underlay,
}
