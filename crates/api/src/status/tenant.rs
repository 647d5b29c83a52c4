//! Tenants.

use serde::{Deserialize, Serialize};

use softdpu_site::{LatencyClass, Percent, Tenant, TenantLimits};

/// One tenant. Counters are cumulative.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantStatus {
    /// Its name.
    pub name: String,
    /// Its share.
    pub weight: u32,
    /// Requests that wait for a core now.
    pub queued: u64,
    /// Requests that were served.
    pub served: u64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Core time it used, in nanoseconds.
    pub core_time_ns: u64,
    /// Which tenant goes first among those below their share.
    #[serde(default)]
    pub class: LatencyClass,
    /// What it has of all cores' time while it has work.
    #[serde(default)]
    pub guarantee: Percent,
    /// What it may not exceed.
    #[serde(default)]
    pub limits: TenantLimits,
    /// What all its requests have waited for a core, together, in nanoseconds.
    #[serde(default)]
    pub waited_ns: u64,
    /// For how long a limit held some of them, on all cores together, in nanoseconds.
    #[serde(default)]
    pub limited_ns: u64,
    /// Frames that the underlay and TAPs brought for it and that went on; they are served as well.
    #[serde(default)]
    pub ingress_frames: u64,
    /// Such frames that were dropped, as 256 of them waited for a core.
    #[serde(default)]
    pub ingress_dropped: u64,
    /// Such frames that were dropped, as they were beyond the tenant's limit of what wires bring it.
    #[serde(default)]
    pub ingress_limited: u64,
    /// Core by core, where it ever had work.
    #[serde(default)]
    pub cores: Vec<TenantOnCore>,
}

impl TenantStatus {
    /// What a tenant may do, and nothing done.
    pub fn declared(tenant: &Tenant) -> TenantStatus {
        TenantStatus {
            name: tenant.name.clone(),
            weight: tenant.weight,
            class: tenant.class,
            guarantee: tenant.guarantee,
            limits: tenant.limits,
            ..TenantStatus::default()
        }
    }
}

/// A tenant on one core. Counters are cumulative.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantOnCore {
    /// The core's CPU.
    pub cpu: u32,
    /// Requests that wait now.
    pub queued: u64,
    /// Requests that were served.
    pub served: u64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Core time it used, in nanoseconds.
    pub core_time_ns: u64,
    /// Of what all tenants used of this core, in thousandths.
    pub share: u16,
    /// What all its requests have waited, together, in nanoseconds.
    pub waited_ns: u64,
    /// For how long a limit held some of them, in nanoseconds.
    pub limited_ns: u64,
    /// Frames that the underlay and TAPs brought for it and that went on; they are served as well.
    #[serde(default)]
    pub ingress_frames: u64,
    /// Such frames that were dropped, as 256 of them waited.
    #[serde(default)]
    pub ingress_dropped: u64,
    /// Such frames that were dropped, as they were beyond the tenant's limit of what wires bring it.
    #[serde(default)]
    pub ingress_limited: u64,
    /// The part of its limit of requests that this core has, a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops_limit: Option<u64>,
}
