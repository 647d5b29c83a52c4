//! What runs, for `status`: the data plane's part of it.

use std::sync::atomic::Ordering::Relaxed;

use serde_json::Value;
use softdpu_engine::{CoreCounters, CoreIndex, Engine, QueueCounters, YieldCounters};
use softdpu_sched::TenantId;
use softdpu_storage::{self as storage, ErrorCounts, VolumeStatus as StorageStatus};
use softdpu_transport::vhost_user::{QueueIndex, RingFormat};

mod forwarding;
mod network;
mod policy;

use super::DataPlane;
use super::connection::QueueState;
use super::device::{Backing, Device};
use super::networks::Networks;
use super::volumes::Readiness;
use softdpu_api::status::{
    CoreState, CoreStatus, DeviceState, DeviceStatus, FrameCounts, NodeStatus, QueueFormat, QueueStatus, RequestCounts,
    TenantOnCore, TenantStatus, VolumeErrors, VolumeState, VolumeStatus, WakeupCounts, YieldStatus,
};
use softdpu_api::{ApiError, ErrorCode};
use softdpu_site as config;

/// Names of ring feature bits (virtio 1.3 §6), as the specification has them.
const RING_FEATURE_NAMES: [(u32, &str); 4] =
    [(28, "INDIRECT_DESC"), (29, "EVENT_IDX"), (34, "RING_PACKED"), (35, "IN_ORDER")];

/// Names of virtio-net feature bits (virtio 1.3 §5.1.3).
const NET_FEATURE_NAMES: [(u32, &str); 15] = [
    (0, "CSUM"),
    (1, "GUEST_CSUM"),
    (3, "MTU"),
    (7, "GUEST_TSO4"),
    (8, "GUEST_TSO6"),
    (9, "GUEST_ECN"),
    (11, "HOST_TSO4"),
    (12, "HOST_TSO6"),
    (13, "HOST_ECN"),
    (15, "MRG_RXBUF"),
    (21, "GUEST_ANNOUNCE"),
    (22, "MQ"),
    (54, "GUEST_USO4"),
    (55, "GUEST_USO6"),
    (56, "HOST_USO"),
];

/// Names of virtio-blk feature bits (virtio 1.3 §5.2.3).
const BLOCK_FEATURE_NAMES: [(u32, &str); 10] = [
    (1, "SIZE_MAX"),
    (2, "SEG_MAX"),
    (5, "RO"),
    (6, "BLK_SIZE"),
    (9, "FLUSH"),
    (10, "TOPOLOGY"),
    (11, "CONFIG_WCE"),
    (12, "MQ"),
    (13, "DISCARD"),
    (14, "WRITE_ZEROES"),
];

fn feature_names(device: &Device) -> &'static [(u32, &'static str)] {
    match device.config.kind {
        config::DeviceKind::VirtioBlk(_) => &BLOCK_FEATURE_NAMES,
        config::DeviceKind::VirtioNet(_) => &NET_FEATURE_NAMES,
        config::DeviceKind::Tap(_) => &[],
    }
}

fn frame_counts(counters: &CoreCounters) -> FrameCounts {
    // Read one after the other, while the core goes on.
    let (flow, software) = (counters.by_flow.get(), counters.by_software.get());
    FrameCounts { flow, software, switch: counters.frames.get().saturating_sub(flow + software) }
}

/// The state of everything this process knows of.
pub(super) fn report(plane: &DataPlane) -> Result<Value, ApiError> {
    let status = NodeStatus {
        cores: core_status(plane),
        devices: plane
            .devices
            .iter()
            .map(|device| device_status(device, &plane.engine, plane.placements.cpus(), &plane.networks))
            .collect(),
        volumes: volume_status(plane),
        tenants: tenant_status(plane),
        networks: network::statuses(&plane.networks),
        underlay: network::underlay(&plane.networks),
        load_error: plane.networks.load_error().map(str::to_owned),
        functions: plane.functions.statuses(|name| plane.networks.users_of(name)),
        traces: plane.traces.statuses(),
        meters: policy::meters(&plane.networks),
        connections: policy::connections(&plane.networks),
        taken_over: plane.networks.taken_over(),
        steering: plane.steering.status(&plane.placements, &plane.engine),
        isolation: Some(plane.isolation.status()),
        ..NodeStatus::default()
    };
    serde_json::to_value(status).map_err(|error| ApiError::new(ErrorCode::Failed, error.to_string()))
}

fn core_status(plane: &DataPlane) -> Vec<CoreStatus> {
    plane
        .engine
        .cores()
        .map(|(cpu, counters)| CoreStatus {
            cpu: cpu as u32,
            state: if counters.asleep.load(Relaxed) { CoreState::Sleeping } else { CoreState::Spinning },
            busy_ns: counters.busy_ns.get(),
            idle_ns: counters.idle_ns.get(),
            loops: counters.rounds.get(),
            grants: counters.grants.get(),
            wakeups: counters.sleeps.get(),
            yields: yield_status(&counters.yields),
            queues: counters.queues.get() as u32,
            travelled: counters.travelled.get(),
            frames: frame_counts(counters),
            paths: forwarding::paths(&counters.forwarding),
            flows: forwarding::flows(&counters.forwarding),
            heavy_flows: forwarding::heavy(&counters.forwarding, &plane.networks),
        })
        .collect()
}

fn yield_status(counters: &YieldCounters) -> YieldStatus {
    YieldStatus {
        expired: counters.expired.get(),
        preempted: counters.preempted.get(),
        wakeups: WakeupCounts {
            kick: counters.by_kick.get(),
            message: counters.by_message.get(),
            back_end: counters.by_back_end.get(),
            socket: counters.by_socket.get(),
            timer: counters.by_timer.get(),
        },
        threshold: counters.threshold.get(),
        slice_ns: counters.slice_ns.get(),
    }
}

fn volume_status(plane: &DataPlane) -> Vec<VolumeStatus> {
    let one = |(config, readiness): (&config::Volume, Readiness<'_>)| {
        let name = config.name.as_str();
        let users: Vec<_> = plane.devices.users(name).collect();
        let count = users.len() as u32;
        match readiness {
            Readiness::Open(volume) => {
                let mut requests = plane.volumes.by_removed(name);
                for queue in users.iter().flat_map(|device| &device.counters) {
                    requests.add(&request_counts(queue));
                }
                let spec = volume.spec();
                opened_status(volume.status(), volume.block_size(), spec.shared, count, requests)
            }
            Readiness::Opening => waiting_status(config, VolumeState::Opening, count, None),
            Readiness::Failing(reason) => waiting_status(config, VolumeState::Failed, count, Some(reason)),
        }
    };
    plane.volumes.iter().map(one).collect()
}

fn tenant_status(plane: &DataPlane) -> Vec<TenantStatus> {
    let used = |core: usize| -> u64 {
        let of = |tenant: TenantId| plane.engine.tenant(tenant).get(core).map_or(0, |it| it.core_ns.get());
        plane.tenants.ids().map(of).sum()
    };
    let used: Vec<u64> = (0..plane.placements.cpus().len()).map(used).collect();
    let one = |(id, tenant): (TenantId, &config::Tenant)| {
        let mut status = TenantStatus::declared(tenant);
        for (core, counters) in plane.engine.tenant(id).iter().enumerate() {
            // The slow core, behind the others, has no CPU of its own and no line.
            let cpu = plane.placements.cpus().get(core).copied();
            let time = counters.core_ns.get();
            let limits = plane.engine.share_on(id, CoreIndex(core)).map(|share| share.limits);
            let on_core = TenantOnCore {
                cpu: cpu.unwrap_or(0),
                queued: counters.waiting.get(),
                served: counters.served.get(),
                bytes: counters.bytes.get(),
                core_time_ns: time,
                // Read one after the other, while the core goes on.
                share: (u128::from(time) * 1_000 / u128::from(used.get(core).map_or(1, |used| (*used).max(1))))
                    .min(1_000) as u16,
                waited_ns: counters.waited_ns.get(),
                limited_ns: counters.limited_ns.get(),
                ingress_frames: counters.ingress_frames.get(),
                ingress_dropped: counters.ingress_dropped.get(),
                ingress_limited: counters.ingress_limited.get(),
                iops_limit: limits.and_then(|limits| limits.requests).map(|rate| rate.rate),
            };
            status.queued += on_core.queued;
            status.served += on_core.served;
            status.bytes += on_core.bytes;
            status.core_time_ns += on_core.core_time_ns;
            status.waited_ns += on_core.waited_ns;
            status.limited_ns += on_core.limited_ns;
            status.ingress_frames += on_core.ingress_frames;
            status.ingress_dropped += on_core.ingress_dropped;
            status.ingress_limited += on_core.ingress_limited;
            let refused = on_core.ingress_dropped + on_core.ingress_limited;
            if cpu.is_some() && (on_core.served > 0 || on_core.queued > 0 || refused > 0) {
                status.cores.push(on_core);
            }
        }
        status
    };
    plane.tenants.iter().map(one).collect()
}

fn opened_status(
    status: StorageStatus,
    block_size: u32,
    shared: bool,
    users: u32,
    requests: RequestCounts,
) -> VolumeStatus {
    let ErrorCounts { no_space, device, timeout, refused, gone, disconnects, replayed, unflushed, abandoned } =
        status.errors;
    let counters =
        VolumeErrors { no_space, device, timeout, refused, gone, disconnects, replayed, unflushed, abandoned };
    VolumeStatus {
        name: status.name,
        kind: status.kind,
        state: match status.state {
            storage::VolumeState::Opened => VolumeState::Opened,
            storage::VolumeState::Active => VolumeState::Active,
            storage::VolumeState::Recovering => VolumeState::Recovering,
            storage::VolumeState::Failed => VolumeState::Failed,
        },
        size: status.size,
        block_size,
        read_only: status.read_only,
        encryption: status.encryption,
        shared,
        users,
        requests,
        errors: no_space + device + timeout + refused + gone,
        counters,
        error: status.last_error,
        detail: status.detail,
    }
}

/// A volume that is not open.
fn waiting_status(config: &config::Volume, state: VolumeState, users: u32, error: Option<&str>) -> VolumeStatus {
    VolumeStatus {
        name: config.name.clone(),
        kind: config.backend.kind().to_owned(),
        state,
        size: config.backend.size().map_or(0, |size| size.0),
        block_size: config.block_size,
        read_only: config.read_only,
        encryption: config.encryption.as_ref().map(|encryption| encryption.cipher.to_string()),
        shared: config.shared,
        users,
        error: error.map(str::to_owned),
        detail: match error {
            Some(_) => "it is tried again".to_owned(),
            None => "it is being opened".to_owned(),
        },
        ..VolumeStatus::default()
    }
}

fn device_status(device: &Device, engine: &Engine, cpus: &[u32], networks: &Networks) -> DeviceStatus {
    let features = device.connection.as_ref().and_then(|connection| connection.session.features()).unwrap_or(0);
    let queues = (0u16..).zip(&device.counters).map(|(index, counters)| {
        let state = device.connection.as_ref().and_then(|connection| connection.queues.get(&QueueIndex(index)));
        queue_status(index, counters, state, device, engine, cpus)
    });
    let queues: Vec<QueueStatus> = queues.collect();
    let broken = queues.iter().any(|queue| queue.broken_reason.is_some());
    let fenced_off = |state: &QueueState| matches!(state, QueueState::Waiting(_));
    let state = match (&device.backing, &device.connection) {
        (Backing::Failing(_), _) => DeviceState::Broken,
        _ if broken => DeviceState::Broken,
        (Backing::Opening, _) => DeviceState::Opening,
        // A TAP's driver is the kernel, which is always there.
        (Backing::Nothing, None) if device.model.is_none() => DeviceState::Running,
        (Backing::Open(_) | Backing::Nothing, None) => DeviceState::Listening,
        (_, Some(connection)) if connection.queues.is_empty() => DeviceState::Connected,
        (_, Some(connection)) if connection.queues.values().any(fenced_off) => DeviceState::Opening,
        (_, Some(_)) => DeviceState::Running,
    };
    let broken_reason = match &device.backing {
        Backing::Failing(reason) => Some(reason.clone()),
        Backing::Nothing | Backing::Opening | Backing::Open(_) => device.trouble.clone(),
    };
    DeviceStatus {
        name: device.config.name.clone(),
        tenant: device.config.tenant.clone(),
        domain: device.config.domain.clone(),
        kind: device.config.kind.name().to_owned(),
        state,
        broken_reason,
        volume: device.config.volume().map(str::to_owned),
        socket: device.config.access().map(|access| access.socket.clone()).unwrap_or_default(),
        queues,
        port: networks.port(&device.config.name).map(|port| network::port(port, networks)),
        features: feature_names(device)
            .iter()
            .chain(&RING_FEATURE_NAMES)
            .filter(|(bit, _)| features & (1 << bit) != 0)
            .map(|(_, name)| (*name).to_owned())
            .collect(),
        protocol_errors: device.protocol_errors,
        demoted: engine.is_demoted(&device.name),
        pause_us: device.pause_ns.map(|ns| ns / 1000),
        ..DeviceStatus::default()
    }
}

fn queue_status(
    index: u16,
    counters: &QueueCounters,
    state: Option<&QueueState>,
    device: &Device,
    engine: &Engine,
    cpus: &[u32],
) -> QueueStatus {
    let started = match state {
        Some(QueueState::Running(started) | QueueState::Broken(started)) => Some(started),
        Some(QueueState::Waiting(_) | QueueState::Failed { .. }) | None => None,
    };
    let core = started.and_then(|started| engine.core_of(started.key)).and_then(|core| cpus.get(core.0)).copied();
    let broken_reason = match state {
        Some(QueueState::Broken(_) | QueueState::Failed { .. }) => {
            Some(device.trouble.clone().unwrap_or_else(|| "it was broken by its driver".to_owned()))
        }
        Some(QueueState::Waiting(_) | QueueState::Running(_)) | None => None,
    };
    QueueStatus {
        index,
        core,
        size: started.map_or(0, |started| started.size),
        format: match started.map(|started| started.format) {
            Some(RingFormat::Packed) => QueueFormat::Packed,
            Some(RingFormat::Split) | None => QueueFormat::Split,
        },
        running: matches!(state, Some(QueueState::Running(_))),
        requests: request_counts(counters),
        read_bytes: counters.bytes_read.get(),
        written_bytes: counters.bytes_written.get(),
        errors: counters.errors.get(),
        kicks: counters.kicks.get(),
        interrupts_sent: counters.interrupts.get(),
        interrupts_suppressed: counters.suppressed.get(),
        stalls: counters.stalls.get(),
        stalled_ns: counters.stalled_ns.get(),
        inflight: counters.in_flight.get() as u32,
        frames: counters.frames.get(),
        frame_bytes: counters.frame_bytes.get(),
        dropped_frames: counters.dropped.get(),
        broken_reason,
    }
}

pub(super) fn request_counts(counters: &QueueCounters) -> RequestCounts {
    RequestCounts {
        reads: counters.reads.get(),
        writes: counters.writes.get(),
        flushes: counters.flushes.get(),
        discards: counters.discards.get(),
        write_zeroes: counters.write_zeroes.get(),
        others: counters.immediate.get(),
    }
}
