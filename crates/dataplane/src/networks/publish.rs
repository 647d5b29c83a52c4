//! The tables that the cores forward by, of what is configured and attached.

use std::sync::Arc;
use std::time::Duration;

use softdpu_engine::Engine;
use softdpu_vpc::spec::{EndpointSpec, MembershipSpec, NetworkSpec, Place, Prefix, ServiceLimit, Spec, SubnetSpec};
use softdpu_vpc::{Mac, Tables};

use super::super::{policy, routing};
use super::{Attached, Networks};
use softdpu_site as config;

/// How long cores have to go on with other tables: a round of theirs is far shorter.
pub(super) const SWITCH: Duration = Duration::from_secs(1);

/// The error of a change that a core has not taken up in time.
pub(super) const LATE: &str =
    "a core has not gone on with the changed networks within a second: until it does, it forwards as before";

impl Networks {
    /// The tables in force.
    pub(crate) fn tables(&self) -> Option<&Tables> {
        self.tables.as_deref()
    }

    /// A warning about the changes since the last call, although they are made.
    pub(crate) fn warning(&mut self) -> Option<&'static str> {
        std::mem::take(&mut self.is_late).then_some(LATE)
    }

    /// Puts what is attached into force on all cores.
    pub(crate) fn publish(&mut self, engine: &Engine) -> Result<(), String> {
        let spec = self.spec()?;
        // Flows of what is the same in both go on.
        let loaded = self.in_force().cloned();
        let tables = match &self.tables {
            Some(before) => before.rebuild(&spec, loaded),
            None => Tables::build(&spec, loaded),
        };
        let tables = Arc::new(tables.map_err(|error| error.to_string())?);
        // The client may rely on the change once it is answered.
        if !engine.set_tables(&tables).wait(SWITCH) {
            tracing::error!("{LATE}");
            self.is_late = true;
        }
        for host in tables.unreached().iter().filter(|host| !self.unreached.contains(host)) {
            tracing::warn!(%host, "what is for this host is dropped: it is this node, or the underlay's interface has no address of its family");
        }
        self.unreached = tables.unreached().to_vec();
        self.tables = Some(tables);
        Ok(())
    }

    pub(super) fn spec(&self) -> Result<Spec, String> {
        let mut spec = Spec {
            networks: self.networks.iter().map(|network| self.network_spec(network)).collect::<Result<_, _>>()?,
            endpoints: Vec::new(),
            routes: Vec::new(),
            underlay: None,
            neighbors: Vec::new(),
            services: ServiceLimit::default(),
            connections: self.connections,
            keeping: self.legacy.keeping(),
            meters: Vec::new(),
            meters_empty_at: self.meters_empty_at,
            without_flows: !self.keeps_flows,
            is_loading: self.is_loading,
            awaited: if self.is_loading { self.awaited.clone() } else { Vec::new() },
            zone: self.zone.clone(),
            // What is configured was checked with the rest.
            allows_unreached: self.end_points.as_ref().is_none_or(Vec::is_empty),
            ..Spec::default()
        };
        let tenant_meters = self.tenant_meters.iter().map(|(tenant, meter)| meter.spec(tenant_meter(tenant)));
        spec.meters.extend(tenant_meters);
        for (device, Attached { id, settings, tenant, .. }) in &self.ports {
            let own = settings.meter.map(|meter| meter.spec(format!("device {device}")));
            let shared = self.tenant_meters.contains_key(tenant).then(|| tenant_meter(tenant));
            let meters = own.iter().map(|meter| meter.name.clone()).chain(shared).collect();
            spec.meters.extend(own);
            spec.endpoints.push(EndpointSpec {
                network: settings.network.clone(),
                mac: Mac(settings.mac.0),
                addresses: settings.addresses.clone(),
                place: Place::Port(*id),
                mtu: settings.mtu,
                spoof_check: settings.spoof_check,
                policy: MembershipSpec {
                    meters,
                    ..policy::membership(&settings.security_groups, settings.acl.as_ref())
                },
            });
        }
        if let Some(underlay) = &self.underlay
            && let Some(known) = underlay.spec()
        {
            spec.underlay = Some(known);
            spec.neighbors = underlay.neighbors();
            for network in &self.networks {
                spec.endpoints.extend(network.endpoints.iter().map(|endpoint| EndpointSpec {
                    network: network.name.clone(),
                    mac: Mac(endpoint.mac.0),
                    addresses: endpoint.addresses.clone(),
                    place: Place::Host(endpoint.host),
                    mtu: None,
                    spoof_check: true,
                    policy: policy::membership(&endpoint.security_groups, None),
                }));
            }
        }
        routing::add(&self.networks, &self.bfd_status(), &mut spec)?;
        Ok(spec)
    }

    pub(super) fn network_spec(&self, network: &config::Network) -> Result<NetworkSpec, String> {
        let subnet = |subnet: config::Subnet| {
            let prefix = Prefix::new(subnet.prefix.network(), subnet.prefix.prefix_len());
            let prefix = prefix.map_err(|error| format!("network '{}': {error}", network.name))?;
            Ok::<_, String>(SubnetSpec { prefix, gateway: subnet.gateway })
        };
        Ok(NetworkSpec {
            name: network.name.clone(),
            vni: network.vni,
            subnets: network.subnets().map(subnet).collect::<Result<_, _>>()?,
            gateway_mac: Mac(network.gateway_mac().0),
            mtu: self.mtu(&network.name).unwrap_or(config::DEFAULT_MTU),
            dns: network.dns.clone(),
            policy: policy::spec(network)?,
            transit: network.transit,
            tenant: network.tenant.as_ref().and_then(|name| self.tenants.get(name)).copied(),
        })
    }
}

/// What a tenant's meter is called.
fn tenant_meter(tenant: &str) -> String {
    format!("tenant {tenant}")
}
