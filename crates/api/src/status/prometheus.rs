//! The status in the Prometheus text exposition format, version 0.0.4.

use std::fmt::Write as _;

use super::{
    AnalyticsStatus, ColourCount, ConnectionStatus, ControlPlaneTaskStatus, CoreState, CoreStatus, DataPlaneState,
    DeviceState, FunctionStatus, TakenOverStatus,
};
use super::{MeterStatus, MonitorStatus, NatStatus, NodeStatus, PortCounts, SteeringShare, TaskState, VolumeState};

/// The status as a scrape's answer.
pub fn prometheus(status: &NodeStatus) -> String {
    let mut out = Exposition::default();
    node(&mut out, status);
    cores(&mut out, status);
    core_frames(&mut out, status);
    forwarding(&mut out, status);
    steering(&mut out, status);
    policies(&mut out, status);
    devices(&mut out, status);
    queues(&mut out, status);
    volumes(&mut out, status);
    tenants(&mut out, status);
    tasks(&mut out, status);
    ports(&mut out, status);
    functions(&mut out, status);
    out.text
}

type Labels<'a> = Vec<(&'static str, &'a str)>;

/// A metric of one kind of thing: its name, its help, and where its value comes from.
type Metric<T> = (&'static str, &'static str, fn(&T) -> f64);

#[derive(Default)]
struct Exposition {
    text: String,
}

impl Exposition {
    /// One metric: its HELP and TYPE once, and its samples, which the format wants together. Nothing without samples.
    fn metric<'a>(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Labels<'a>, f64)>) {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let mut header = true;
        for (labels, value) in samples {
            if std::mem::take(&mut header) {
                let _ = writeln!(self.text, "# HELP softdpu_{name} {help}\n# TYPE softdpu_{name} {kind}");
            }
            let _ = write!(self.text, "softdpu_{name}");
            if !labels.is_empty() {
                let labels: Vec<String> =
                    labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escape(value))).collect();
                let _ = write!(self.text, "{{{}}}", labels.join(","));
            }
            let _ = writeln!(self.text, " {value}");
        }
    }
}

/// A label's value as the format wants it: backslash, double quote and line feed are escaped.
fn escape(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// One sample per possible state, 1 for the present one: an alert can name a state.
fn states<'a, S: PartialEq + Copy>(
    labels: Labels<'a>,
    all: &'a [(S, String)],
    now: S,
) -> impl Iterator<Item = (Labels<'a>, f64)> {
    all.iter().map(move |(state, name)| {
        let mut labels = labels.clone();
        labels.push(("state", name.as_str()));
        (labels, f64::from(u8::from(*state == now)))
    })
}

fn named<S: Copy + ToString>(all: &[S]) -> Vec<(S, String)> {
    all.iter().map(|state| (*state, state.to_string())).collect()
}

fn node(out: &mut Exposition, status: &NodeStatus) {
    let plane = &status.data_plane;
    out.metric(
        "build_info",
        "Always 1; the label says which version runs.",
        [(vec![("version", &*status.version)], 1.0)],
    );
    out.metric("uptime_seconds", "Time since the supervisor started.", [(vec![], status.uptime_s as f64)]);
    out.metric(
        "data_plane_state",
        "1 for the state the data-plane process is in.",
        states(vec![], &named(DataPlaneState::ALL), plane.state),
    );
    out.metric(
        "data_plane_restarts_total",
        "How often the data-plane process was started again.",
        [(vec![], plane.restarts as f64)],
    );
    let refused = status.isolation.iter().flat_map(|isolation| &isolation.refused);
    out.metric(
        "data_plane_refused_calls_total",
        "System calls that the data plane's filter refused, by name.",
        refused.map(|(call, count)| (vec![("call", &**call)], *count as f64)),
    );
    let ready = plane.time_to_ready_us.map(|us| (vec![], us as f64 / 1e6));
    out.metric("data_plane_time_to_ready_seconds", "From the last start until the data plane was ready.", ready);
    let first = plane.first_completion_after_restart_us.map(|us| (vec![], us as f64 / 1e6));
    out.metric(
        "data_plane_first_completion_seconds",
        "From the last end of the data plane until a request completed again.",
        first,
    );
}

fn cores(out: &mut Exposition, status: &NodeStatus) {
    let names: Vec<String> = status.cores.iter().map(|core| core.cpu.to_string()).collect();
    let cores = || status.cores.iter().zip(&names);
    let all = named(CoreState::ALL);
    out.metric(
        "core_state",
        "1 for the state the core is in.",
        cores().flat_map(|(core, cpu)| states(vec![("cpu", cpu)], &all, core.state)),
    );
    out.metric(
        "core_busy_seconds_total",
        "Time with work.",
        cores().map(|(core, cpu)| (vec![("cpu", &**cpu)], seconds(core.busy_ns))),
    );
    out.metric(
        "core_idle_seconds_total",
        "Time without work, spinning or asleep.",
        cores().map(|(core, cpu)| (vec![("cpu", &**cpu)], seconds(core.idle_ns))),
    );
    out.metric(
        "core_loops_total",
        "How often the core's loop went round.",
        cores().map(|(core, cpu)| (vec![("cpu", &**cpu)], core.loops as f64)),
    );
    out.metric(
        "core_grants_total",
        "Grants that the core's scheduler gave.",
        cores().map(|(core, cpu)| (vec![("cpu", &**cpu)], core.grants as f64)),
    );
    out.metric(
        "core_wakeups_total",
        "How often the core was woken.",
        cores().map(|(core, cpu)| (vec![("cpu", &**cpu)], core.wakeups as f64)),
    );
    out.metric(
        "core_wakeups_by_kind_total",
        "What woke the core.",
        cores().flat_map(|(core, cpu)| {
            let by = core.yields.wakeups;
            let kinds = [
                ("kick", by.kick),
                ("message", by.message),
                ("back-end", by.back_end),
                ("socket", by.socket),
                ("timer", by.timer),
            ];
            kinds.map(|(kind, count)| (vec![("cpu", &**cpu), ("kind", kind)], count as f64))
        }),
    );
    out.metric(
        "core_slices_total",
        "Slices for which the core gave its CPU away, by what ended them.",
        cores().flat_map(|(core, cpu)| {
            let ends = [("expired", core.yields.expired), ("preempted", core.yields.preempted)];
            ends.map(|(end, count)| (vec![("cpu", &**cpu), ("end", end)], count as f64))
        }),
    );
    out.metric(
        "core_yield_threshold",
        "Empty polls in a row beyond which the core yields now.",
        cores().map(|(core, cpu)| (vec![("cpu", &**cpu)], core.yields.threshold as f64)),
    );
    out.metric(
        "core_slice_seconds",
        "How long the core's next slice is at the most.",
        cores().map(|(core, cpu)| (vec![("cpu", &**cpu)], seconds(core.yields.slice_ns))),
    );
    out.metric(
        "core_queues",
        "Queues the core serves.",
        cores().map(|(core, cpu)| (vec![("cpu", &**cpu)], f64::from(core.queues))),
    );
}

fn core_frames(out: &mut Exposition, status: &NodeStatus) {
    let cores = status.cores.iter().map(|core| (core.cpu.to_string(), core.frames)).collect::<Vec<_>>();
    out.metric(
        "core_frames_total",
        "Frames by the tier that decided what becomes of them.",
        cores.iter().flat_map(|(cpu, frames)| {
            let tiers = [("flow", frames.flow), ("switch", frames.switch), ("software", frames.software)];
            tiers.map(|(tier, count)| (vec![("cpu", &**cpu), ("tier", tier)], count as f64))
        }),
    );
}

fn forwarding(out: &mut Exposition, status: &NodeStatus) {
    let cores = status.cores.iter().map(|core| (core.cpu.to_string(), core)).collect::<Vec<_>>();
    out.metric(
        "core_datapath_frames_total",
        "Frames that left, by where to and by the datapath that they took.",
        cores.iter().flat_map(|(cpu, core)| {
            core.paths.each().into_iter().flat_map(move |(to, ways)| {
                let ways = [("switch", ways.switch), ("fast", ways.fast), ("software", ways.software)];
                ways.map(|(by, count)| (vec![("cpu", &**cpu), ("to", to), ("datapath", by)], count as f64))
            })
        }),
    );
    let each = |value: fn(&CoreStatus) -> u64| {
        cores.iter().map(move |(cpu, core)| (vec![("cpu", &**cpu)], value(core) as f64))
    };
    out.metric("core_flows", "Flows that the core knows.", each(|core| core.flows.known));
    out.metric("core_flow_capacity", "Flows that the core has room for.", each(|core| core.flows.capacity));
    out.metric(
        "core_flows_unkept_total",
        "Packets of flows for which there was no room.",
        each(|core| core.flows.unkept),
    );
    out.metric(
        "core_flows_recomputed_total",
        "Flows that were computed anew after a change.",
        each(|core| core.flows.recomputed),
    );
    out.metric(
        "core_flows_revalidated_total",
        "Flows that went on after a change of something else.",
        each(|core| core.flows.revalidated),
    );
    out.metric("core_policy_packets_total", "Packets that were put to policies.", each(|core| core.flows.policy));
    out.metric(
        "core_elephants",
        "Flows with a tenth of the core's bytes or more, in the last second.",
        each(|core| core.heavy_flows.iter().filter(|flow| flow.elephant).count() as u64),
    );
}

fn steering(out: &mut Exposition, status: &NodeStatus) {
    let shares = status.steering.iter().flat_map(|steering| &steering.cores);
    let shares: Vec<(String, &SteeringShare)> = shares.map(|share| (share.cpu.to_string(), share)).collect();
    let each = |value: fn(&SteeringShare) -> u64| {
        shares.iter().map(move |(cpu, share)| (vec![("cpu", &**cpu)], value(share) as f64))
    };
    out.metric(
        "steering_buckets",
        "Buckets of flows from tunnels, of 256, that go to the core.",
        each(|share| share.buckets.into()),
    );
    out.metric(
        "steering_handed_total",
        "Packets from tunnels that the core read and handed to others.",
        each(|share| share.handed),
    );
    out.metric(
        "steering_taken_total",
        "Packets from tunnels that others have read and the core worked on.",
        each(|share| share.taken),
    );
    let rules = status.steering.iter().flat_map(|steering| &steering.rules);
    let rules: Vec<_> = rules.map(|rule| (rule.cpu.to_string(), rule)).collect();
    out.metric(
        "steering_rule_packets_total",
        "Packets that a rule, or an elephant's place of its own, took to its core.",
        rules.iter().map(|(cpu, rule)| {
            let by = if rule.automatic { "elephant" } else { "rule" };
            (vec![("cpu", &**cpu), ("match", &*rule.what), ("by", by)], rule.packets as f64)
        }),
    );
    out.metric(
        "steering_moved_total",
        "Buckets and elephants that were moved automatically.",
        status.steering.iter().map(|steering| (vec![], steering.moved as f64)),
    );
}

fn policies(out: &mut Exposition, status: &NodeStatus) {
    let colours = |meter: &MeterStatus| [("green", meter.green), ("yellow", meter.yellow), ("red", meter.red)];
    let each = |value: fn(ColourCount) -> u64| {
        status.meters.iter().flat_map(move |meter| {
            let labels = |colour| vec![("meter", &*meter.name), ("colour", colour)];
            colours(meter).map(|(colour, count)| (labels(colour), value(count) as f64))
        })
    };
    let packets = each(|count| count.packets);
    out.metric("meter_packets_total", "Packets by the colour that a meter found; red ones are dropped.", packets);
    out.metric("meter_bytes_total", "Bytes of packets by the colour that a meter found.", each(|count| count.bytes));
    let all = |value: fn(&ConnectionStatus) -> u64| {
        status.connections.iter().map(move |connections| (vec![], value(connections) as f64))
    };
    out.metric("connections", "Connections of interfaces in security groups.", all(|all| all.known));
    out.metric("connections_opened_total", "Connections that were opened.", all(|all| all.opened));
    out.metric("connections_refused_total", "Packets that no connection allows.", all(|all| all.refused));
    let taken =
        |value: fn(&TakenOverStatus) -> u64| status.taken_over.iter().map(move |all| (vec![], value(all) as f64));
    out.metric(
        "taken_over_connections",
        "Connections that the data plane has taken over from those before it.",
        taken(|all| all.connections),
    );
    out.metric(
        "taken_over_translations",
        "Translations that the data plane has taken over from those before it.",
        taken(|all| all.translations),
    );
    out.metric(
        "taken_over_left",
        "Connections and translations of data planes before that could not be taken over.",
        taken(|all| all.left),
    );
    let exits = |value: fn(&NatStatus) -> u64| {
        let all = status.networks.iter().flat_map(|network| network.nat.iter().map(|exit| (&*network.name, exit)));
        all.map(move |(network, exit)| (vec![("network", network), ("exit", &*exit.exit)], value(exit) as f64))
    };
    out.metric(
        "nat_translations",
        "Connections that have a port of a shared address.",
        exits(|exit| exit.translations),
    );
    out.metric(
        "nat_exhausted_total",
        "Packets that were dropped because the ports of their guest were taken.",
        exits(|exit| exit.exhausted),
    );
}

fn devices(out: &mut Exposition, status: &NodeStatus) {
    out.metric(
        "device_info",
        "Always 1; the labels say whose the device is and what it serves.",
        status.devices.iter().map(|device| {
            let volume = device.volume.as_deref().unwrap_or_default();
            let labels = vec![
                ("device", &*device.name),
                ("tenant", &device.tenant),
                ("domain", &device.domain),
                ("kind", &device.kind),
                ("volume", volume),
            ];
            (labels, 1.0)
        }),
    );
    let all = named(DeviceState::ALL);
    out.metric(
        "device_state",
        "1 for the state the device is in.",
        status.devices.iter().flat_map(|device| states(vec![("device", &device.name)], &all, device.state)),
    );
    out.metric(
        "device_protocol_errors_total",
        "Messages of front ends that were refused or led to the end of their connection.",
        status.devices.iter().map(|device| (vec![("device", &*device.name)], device.protocol_errors as f64)),
    );
    out.metric(
        "device_demoted",
        "1 while the slow core serves the device, which made others wait.",
        status.devices.iter().map(|device| (vec![("device", &*device.name)], f64::from(u8::from(device.demoted)))),
    );
    let paused = status
        .devices
        .iter()
        .filter_map(|device| device.pause_us.map(|us| (vec![("device", &*device.name)], us as f64 / 1e6)));
    out.metric(
        "device_pause_seconds",
        "How long the device's queues stood still when this data plane took them up from the one before.",
        paused,
    );
    let closed = |device: &super::DeviceStatus| device.closed_front_ends.as_ref().map_or(0.0, |it| it.count.into());
    out.metric(
        "device_front_ends_closed_total",
        "Front ends that were closed because data planes died of them.",
        status.devices.iter().map(|device| (vec![("device", &*device.name)], closed(device))),
    );
}

fn queues(out: &mut Exposition, status: &NodeStatus) {
    let queues: Vec<_> = status
        .devices
        .iter()
        .flat_map(|device| device.queues.iter().map(|queue| (&*device.name, queue.index.to_string(), queue)))
        .collect();
    out.metric(
        "queue_requests_total",
        "Requests by type.",
        queues.iter().flat_map(|(device, index, queue)| {
            let labels = move |kind| vec![("device", *device), ("queue", &**index), ("type", kind)];
            queue.requests.by_type().into_iter().map(move |(kind, count)| (labels(kind), count as f64))
        }),
    );
    let counters: [Metric<super::QueueStatus>; 13] = [
        ("queue_read_bytes_total", "Bytes read from the volume.", |queue| queue.read_bytes as f64),
        ("queue_written_bytes_total", "Bytes written to the volume.", |queue| queue.written_bytes as f64),
        ("queue_errors_total", "Requests that ended in an error status.", |queue| queue.errors as f64),
        ("queue_kicks_total", "Notifications from the driver.", |queue| queue.kicks as f64),
        ("queue_interrupts_total", "Interrupts sent to the driver.", |queue| queue.interrupts_sent as f64),
        ("queue_interrupts_suppressed_total", "Interrupts the driver did not want.", |queue| {
            queue.interrupts_suppressed as f64
        }),
        ("queue_stalls_total", "Times that the queue made its core wait.", |queue| queue.stalls as f64),
        ("queue_stall_seconds_total", "For how long together.", |queue| queue.stalled_ns as f64 / 1e9),
        ("queue_frames_total", "Frames that went through an interface's queue.", |queue| queue.frames as f64),
        ("queue_frame_bytes_total", "Their bytes.", |queue| queue.frame_bytes as f64),
        ("queue_dropped_frames_total", "Frames without a receive buffer, and chains that are no frames.", |queue| {
            queue.dropped_frames as f64
        }),
        ("queue_inflight", "Requests that have started and not completed.", |queue| f64::from(queue.inflight)),
        ("queue_broken", "1 if the driver broke the queue.", |queue| {
            f64::from(u8::from(queue.broken_reason.is_some()))
        }),
    ];
    for (name, help, value) in counters {
        out.metric(
            name,
            help,
            queues.iter().map(|(device, index, queue)| (vec![("device", *device), ("queue", &**index)], value(queue))),
        );
    }
}

fn volumes(out: &mut Exposition, status: &NodeStatus) {
    let volumes = || status.volumes.iter();
    let all = named(VolumeState::ALL);
    out.metric(
        "volume_info",
        "Always 1; the label says what the volume is kept in.",
        volumes().map(|volume| (vec![("volume", &*volume.name), ("kind", &volume.kind)], 1.0)),
    );
    out.metric(
        "volume_state",
        "1 for the state the volume is in.",
        volumes().flat_map(|volume| states(vec![("volume", &volume.name)], &all, volume.state)),
    );
    out.metric(
        "volume_size_bytes",
        "The volume's size.",
        volumes().map(|volume| (vec![("volume", &*volume.name)], volume.size as f64)),
    );
    out.metric(
        "volume_users",
        "Devices that use the volume.",
        volumes().map(|volume| (vec![("volume", &*volume.name)], f64::from(volume.users))),
    );
    out.metric(
        "volume_requests_total",
        "Requests by type.",
        volumes().flat_map(|volume| {
            let labels = |kind| vec![("volume", &*volume.name), ("type", kind)];
            volume.requests.by_type().into_iter().map(move |(kind, count)| (labels(kind), count as f64))
        }),
    );
    out.metric(
        "volume_errors_total",
        "Requests that failed, by kind.",
        volumes().flat_map(|volume| {
            let labels = |kind| vec![("volume", &*volume.name), ("kind", kind)];
            super::failures(&volume.counters).into_iter().map(move |(kind, count)| (labels(kind), count as f64))
        }),
    );
    let counters: [Metric<super::VolumeStatus>; 4] = [
        ("volume_disconnects_total", "Connections to the back end that were lost.", |it| {
            it.counters.disconnects as f64
        }),
        ("volume_replayed_total", "Requests that were sent again after a connection was lost.", |it| {
            it.counters.replayed as f64
        }),
        ("volume_unflushed_total", "Connections that were lost when answered writes were not flushed.", |it| {
            it.counters.unflushed as f64
        }),
        ("volume_abandoned_total", "Requests given up in flight, because their queue was stopped.", |it| {
            it.counters.abandoned as f64
        }),
    ];
    for (name, help, value) in counters {
        out.metric(name, help, volumes().map(|volume| (vec![("volume", &*volume.name)], value(volume))));
    }
}

/// What passed through ports; the underlay's has the label `port="underlay"`.
fn ports(out: &mut Exposition, status: &NodeStatus) {
    let devices =
        status.devices.iter().filter_map(|device| Some((device.name.as_str(), &device.port.as_ref()?.counts)));
    let all: Vec<_> = devices.chain(status.underlay.as_ref().map(|underlay| ("underlay", &underlay.counts))).collect();
    let counters: [Metric<PortCounts>; 9] = [
        ("port_frames_in_total", "Frames that came in by the port.", |counts| counts.frames_in as f64),
        ("port_bytes_in_total", "Their bytes.", |counts| counts.bytes_in as f64),
        ("port_frames_out_total", "Frames that went out by the port.", |counts| counts.frames_out as f64),
        ("port_bytes_out_total", "Their bytes.", |counts| counts.bytes_out as f64),
        ("port_software_total", "Frames that services saw.", |counts| counts.software as f64),
        ("port_held_total", "Times that a sender was held as the port had no room.", |counts| counts.held as f64),
        ("port_copied_bytes_total", "Bytes copied on their way out.", |counts| counts.copied_bytes as f64),
        ("port_copied_heads_bytes_total", "Bytes of heads copied to be looked at.", |counts| {
            counts.copied_heads_bytes as f64
        }),
        ("port_copied_again_bytes_total", "Bytes copied a second time.", |counts| counts.copied_again_bytes as f64),
    ];
    for (name, help, value) in counters {
        out.metric(name, help, all.iter().map(|(port, counts)| (vec![("port", *port)], value(counts))));
    }
    let drops = all.iter().flat_map(|(port, counts)| {
        let one = move |way: &'static str, drops: &'_ std::collections::BTreeMap<String, u64>| {
            let sample = |(reason, count): (&String, &u64)| (reason.clone(), way, *count);
            drops.iter().map(sample).collect::<Vec<_>>()
        };
        let both = [one("in", &counts.dropped_in), one("out", &counts.dropped_out)].concat();
        both.into_iter().map(move |(reason, way, count)| (*port, way, reason, count))
    });
    let drops: Vec<_> = drops.collect();
    let samples = drops.iter().map(|(port, way, reason, count)| {
        (vec![("port", *port), ("direction", *way), ("reason", reason.as_str())], *count as f64)
    });
    out.metric("port_dropped_total", "Frames that were dropped.", samples);
    let up = status.underlay.as_ref().map(|underlay| {
        (vec![("interface", underlay.interface.as_str())], f64::from(u8::from(underlay.absence.is_none())))
    });
    out.metric("underlay_up", "1 while the underlay's interface can be used.", up);
}

fn tasks(out: &mut Exposition, status: &NodeStatus) {
    let metrics: [Metric<ControlPlaneTaskStatus>; 5] = [
        ("control_plane_task_threads", "Threads of the control-plane task.", |task| f64::from(task.threads)),
        ("control_plane_task_guaranteed", "Whether the task runs by its minimum, not on idle time.", |task| {
            f64::from(u8::from(task.state == TaskState::Guaranteed))
        }),
        ("control_plane_task_cpu_seconds_total", "For how long the task ran.", |task| task.ran_us as f64 / 1e6),
        ("control_plane_task_wait_seconds_total", "For how long threads of the task waited for a CPU.", |task| {
            task.waited_us as f64 / 1e6
        }),
        ("control_plane_task_guaranteed_seconds_total", "For how long the task ran by its minimum.", |task| {
            task.guaranteed_us as f64 / 1e6
        }),
    ];
    let tasks = status.control_plane.as_ref().map_or(&[][..], |it| &it.tasks);
    for (name, help, value) in metrics {
        out.metric(name, help, tasks.iter().map(|task| (vec![("task", task.name.as_str())], value(task))));
    }
}

fn tenants(out: &mut Exposition, status: &NodeStatus) {
    let gauges: [Metric<super::TenantStatus>; 11] = [
        ("tenant_weight", "The tenant's share.", |tenant| f64::from(tenant.weight)),
        ("tenant_queued", "Requests that wait for a core.", |tenant| tenant.queued as f64),
        ("tenant_served_total", "Requests that were served.", |tenant| tenant.served as f64),
        ("tenant_bytes_total", "Bytes that were moved.", |tenant| tenant.bytes as f64),
        ("tenant_core_seconds_total", "Core time the tenant used.", |tenant| seconds(tenant.core_time_ns)),
        ("tenant_guarantee_ratio", "What the tenant has of all cores' time while it has work.", |tenant| {
            f64::from(tenant.guarantee.0) / 1_000.0
        }),
        ("tenant_wait_seconds_total", "What the tenant's requests waited for a core, together.", |tenant| {
            seconds(tenant.waited_ns)
        }),
        ("tenant_limited_seconds_total", "For how long limits held requests of the tenant.", |tenant| {
            seconds(tenant.limited_ns)
        }),
        ("tenant_ingress_frames_total", "Frames that wires brought for the tenant and that went on.", |tenant| {
            tenant.ingress_frames as f64
        }),
        ("tenant_ingress_dropped_total", "Frames from wires that the tenant had no room for.", |tenant| {
            tenant.ingress_dropped as f64
        }),
        ("tenant_ingress_limited_total", "Frames from wires beyond the tenant's limit of them.", |tenant| {
            tenant.ingress_limited as f64
        }),
    ];
    for (name, help, value) in gauges {
        let samples = status.tenants.iter().map(|tenant| (vec![("tenant", &*tenant.name)], value(tenant)));
        out.metric(name, help, samples);
    }
    let shares: Vec<_> = status
        .tenants
        .iter()
        .flat_map(|tenant| tenant.cores.iter().map(|core| (&tenant.name, core.cpu.to_string(), core)))
        .collect();
    let on_core: [Metric<super::TenantOnCore>; 3] = [
        ("tenant_core_time_seconds_total", "Core time the tenant used of a core.", |core| seconds(core.core_time_ns)),
        ("tenant_core_served_total", "Requests that a core served of the tenant.", |core| core.served as f64),
        ("tenant_core_wait_seconds_total", "What the tenant's requests waited for a core.", |core| {
            seconds(core.waited_ns)
        }),
    ];
    for (name, help, value) in on_core {
        let samples = shares
            .iter()
            .map(|(tenant, cpu, core)| (vec![("tenant", tenant.as_str()), ("cpu", cpu.as_str())], value(core)));
        out.metric(name, help, samples);
    }
}

/// What passed functions; of analyses also the largest entries of the last window, as many series as are shown.
fn functions(out: &mut Exposition, status: &NodeStatus) {
    fn monitor(value: fn(&MonitorStatus) -> u64) -> impl Fn(&FunctionStatus) -> Option<u64> {
        move |function| function.monitor.as_ref().map(value)
    }
    fn analytics(value: fn(&AnalyticsStatus) -> u64) -> impl Fn(&FunctionStatus) -> Option<u64> {
        move |function| function.analytics.as_ref().map(value)
    }
    type Value = Box<dyn Fn(&FunctionStatus) -> Option<u64>>;
    let counters: [(&str, &str, Value); 10] = [
        (
            "function_lost_total",
            "Records lost between cores and exporter.",
            Box::new(|function: &FunctionStatus| Some(function.lost)),
        ),
        ("monitor_flows", "Flows that are kept now.", Box::new(monitor(|it| it.flows))),
        ("monitor_packets_total", "Packets in flows.", Box::new(monitor(|it| it.packets))),
        ("monitor_bytes_total", "Their bytes.", Box::new(monitor(|it| it.bytes))),
        ("monitor_records_early_total", "Records made early: a table was full.", Box::new(monitor(|it| it.early))),
        ("monitor_records_exported_total", "Records sent.", Box::new(monitor(|it| it.exported))),
        ("monitor_records_dropped_total", "Records not taken by the kernel.", Box::new(monitor(|it| it.dropped))),
        ("analytics_matched_packets_total", "Packets wanted by the filter.", Box::new(analytics(|it| it.matched))),
        ("analytics_matched_bytes_total", "Their bytes.", Box::new(analytics(|it| it.matched_bytes))),
        (
            "firewall_connections",
            "Connections that are known.",
            Box::new(|function: &FunctionStatus| function.firewall.as_ref().map(|it| it.connections)),
        ),
    ];
    for (name, help, value) in counters {
        let samples = status
            .functions
            .iter()
            .filter_map(|function| Some((vec![("function", function.name.as_str())], value(function)? as f64)));
        out.metric(name, help, samples);
    }
    let tops: Vec<_> = status
        .functions
        .iter()
        .filter_map(|function| Some((function, function.analytics.as_ref()?.last.as_ref()?)))
        .flat_map(|(function, window)| window.top.iter().map(move |top| (function, top)))
        .flat_map(|(function, top)| top.items.iter().map(move |item| (function, top, item)))
        .collect();
    let labels = tops.iter().map(|(function, top, item)| {
        (vec![("function", &*function.name), ("by", &*top.by), ("key", &*item.key)], item.weight as f64)
    });
    out.metric("analytics_top", "Bytes or packets of the heaviest in the last window.", labels);
    let rules: Vec<_> = status
        .functions
        .iter()
        .filter_map(|function| Some((function, function.firewall.as_ref()?)))
        .flat_map(|(function, firewall)| {
            let others = [
                ("default", &firewall.default),
                ("established", &firewall.established),
                ("refused", &firewall.refused),
                ("no-room", &firewall.no_room),
                ("dropped", &firewall.dropped),
            ];
            let rules = firewall.rules.iter().map(|rule| (rule.rule.as_str(), rule));
            rules.chain(others).map(move |(word, rule)| (function, word, rule))
        })
        .collect();
    let packets = rules
        .iter()
        .map(|(function, word, rule)| (vec![("function", &*function.name), ("rule", *word)], rule.packets as f64));
    out.metric("firewall_packets_total", "Packets by what decided about them.", packets);
    let bytes = rules
        .iter()
        .map(|(function, word, rule)| (vec![("function", &*function.name), ("rule", *word)], rule.bytes as f64));
    out.metric("firewall_bytes_total", "Their bytes.", bytes);
}
