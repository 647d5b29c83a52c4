//! `softdpu status` for people: what is broken first, then everything, in at most [`TABLE_WIDTH`] columns.

mod control_plane;
mod forwarding;
mod function;
mod network;
mod policy;
mod steering;

pub use control_plane::task_table;
pub(super) use network::UNDERLAY;

pub(super) use forwarding::heavy_rows;
pub use function::function_table;
pub(super) use function::top_rows;
pub use network::{ecmp_table, lookup_table, nat_table, network_table};
pub use steering::steering_table;

use softdpu_api::status::{
    DeviceStatus, IsolationStatus, NodeStatus, QueueStatus, TakenOverStatus, TenantOnCore, TenantStatus, UpgradeStage,
    UpgradeStatus, VolumeStatus, elapsed,
};
use softdpu_plot::Table;
use softdpu_site::Bytes;

/// Columns the tables keep to: two thirds of a wide terminal, all of a narrow one.
pub const TABLE_WIDTH: usize = 100;

/// The whole status.
pub fn table(status: &NodeStatus) -> String {
    let mut out = String::new();
    let problems = status.problems();
    if !problems.is_empty() {
        out.push_str("PROBLEMS\n");
        for problem in problems {
            for (index, line) in wrap(&one_line(&problem), TABLE_WIDTH - 4).into_iter().enumerate() {
                out.push_str(if index == 0 { "  ! " } else { "    " });
                out.push_str(&line);
                out.push('\n');
            }
        }
        out.push('\n');
    }
    out.push_str(&node(status));
    section(&mut out, cores(status));
    section(&mut out, forwarding::paths(status));
    section(&mut out, forwarding::flows(status));
    section(&mut out, forwarding::heavy(status));
    section(&mut out, steering_table(status));
    section(&mut out, activity(&status.devices));
    section(&mut out, queues(&status.devices));
    section(&mut out, interface_queues(&status.devices));
    section(&mut out, volume_table(&status.volumes));
    section(&mut out, network_table(&status.networks));
    section(&mut out, ecmp_table(&status.networks));
    section(&mut out, nat_table(&status.networks));
    section(&mut out, lookup_table(&status.networks));
    section(&mut out, network::underlay(status));
    section(&mut out, network::ports(status));
    section(&mut out, network::drops(status));
    section(&mut out, policy::meters(status));
    section(&mut out, policy::connections(status));
    section(&mut out, function_table(&status.functions));
    section(&mut out, function::rules(status));
    section(&mut out, function::tops(status));
    section(&mut out, network::traces(status));
    section(&mut out, tenant_table(&status.tenants));
    section(&mut out, status.control_plane.as_ref().map(task_table).unwrap_or_default());
    out
}

fn section(out: &mut String, table: String) {
    if !table.is_empty() {
        out.push('\n');
        out.push_str(&table);
    }
}

fn node(status: &NodeStatus) -> String {
    let plane = &status.data_plane;
    let pid = plane.pid.map_or_else(|| "no process".to_owned(), |pid| format!("pid {pid}"));
    let mut lines = vec![
        format!(
            "softdpu {}, up {}, supervisor pid {}",
            one_line(&status.version),
            elapsed(status.uptime_s),
            status.supervisor_pid
        ),
        format!("data plane {}, {pid}, {}{}", plane.state, restarts(plane.restarts), other_version(status)),
    ];
    let supervisor = status.supervisor_upgrade.as_ref();
    if let Some(upgrade) = supervisor {
        lines.insert(1, format!("  {}", one_line(&self::upgrade(upgrade, "silent for"))));
    }
    let mut last = Vec::new();
    if let Some(exit) = &plane.last_exit {
        last.push(format!("last exit: {}", one_line(exit)));
    }
    if let Some(us) = plane.time_to_ready_us {
        last.push(format!("ready after {}", millis(us)));
    }
    if let Some(us) = plane.first_completion_after_restart_us {
        last.push(format!("first completion after {}", millis(us)));
    }
    if !last.is_empty() {
        lines.push(format!("  {}", last.join(", ")));
    }
    lines.extend(
        plane.upgrade.as_ref().map(|upgrade| format!("  {}", one_line(&self::upgrade(upgrade, "switched in")))),
    );
    lines.extend(status.taken_over.as_ref().map(taken_over));
    lines.extend(status.isolation.as_ref().and_then(isolation));
    lines.iter().flat_map(|line| wrap(line, TABLE_WIDTH)).map(|line| line + "\n").collect()
}

/// The data plane's release, where it is not the supervisor's.
fn other_version(status: &NodeStatus) -> String {
    let version = status.data_plane.version.as_ref().filter(|version| **version != status.version);
    version.map(|version| format!(", softdpu {}", one_line(version))).unwrap_or_default()
}

/// How an upgrade goes or went; what its last step took is `switched`.
fn upgrade(upgrade: &UpgradeStatus, switched: &str) -> String {
    let to = upgrade.to.as_deref().unwrap_or(&upgrade.program);
    let mut text = match upgrade.stage {
        UpgradeStage::Preparing => format!("upgrade to {to}: it prepares, {} serves", upgrade.from),
        UpgradeStage::Switching => format!("upgrade from {} to {to}: devices are switched", upgrade.from),
        UpgradeStage::Done => format!("last upgrade: from {} to {to}", upgrade.from),
        UpgradeStage::Failed => format!("last upgrade: to {to}, failed"),
    };
    let times = [("prepared in", upgrade.prepared_us), (switched, upgrade.switched_us)];
    for (what, us) in times {
        text += &us.map(|us| format!(", {what} {}", millis(us))).unwrap_or_default();
    }
    text +=
        &upgrade.first_completion_us.map(|us| format!(", first completion after {}", millis(us))).unwrap_or_default();
    text + &upgrade.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default()
}

/// What goes on from the data planes before.
fn taken_over(status: &TakenOverStatus) -> String {
    let TakenOverStatus { connections, translations, left, unread, done } = status;
    let mut text = format!("  taken over: {connections} connections, {translations} translations");
    if *left > 0 {
        text += &format!(", {left} not");
    }
    if *unread > 0 {
        text += &format!(", {unread} files not read");
    }
    if !done {
        text += ", more to come";
    }
    text
}

/// What there is to say of the walls around the data plane: nothing where all stand and nothing ran against them.
fn isolation(status: &IsolationStatus) -> Option<String> {
    let refused = status.refused.iter().map(|(call, count)| format!("{} {count}", one_line(call)));
    let refused = refused.collect::<Vec<_>>().join(", ");
    let mut said: Vec<String> =
        status.missing.iter().map(|missing| format!("not isolated by {}", one_line(missing))).collect();
    if status.setting == "off" {
        said.push("not isolated: isolation is off".to_owned());
    }
    if !refused.is_empty() {
        said.push(format!("refused system calls: {refused}"));
    }
    (!said.is_empty()).then(|| format!("  {}", said.join("; ")))
}

fn cores(status: &NodeStatus) -> String {
    let rows = status.cores.iter().map(|core| {
        vec![
            core.cpu.to_string(),
            core.state.to_string(),
            percent(core.busy_ns, core.busy_ns.saturating_add(core.idle_ns)),
            core.queues.to_string(),
            short(core.loops),
            short(core.wakeups),
            short(core.yields.preempted),
            short(core.frames.flow),
            short(core.frames.switch),
            short(core.frames.software),
        ]
    });
    let columns = [
        "CORE",
        "STATE",
        "BUSY>",
        "QUEUES>",
        "LOOPS>",
        "WAKEUPS>",
        "PREEMPTED>",
        "BY FLOW>",
        "BY SWITCH>",
        "BY SOFTWARE>",
    ];
    layout(&columns, rows.collect())
}

/// What the devices are, a line each: `softdpu device list`.
pub fn device_table(devices: &[DeviceStatus]) -> String {
    let rows = devices.iter().map(|device| {
        vec![
            device.name.clone(),
            device.state.to_string(),
            device.kind.clone(),
            device.volume.clone().unwrap_or_else(|| "-".to_owned()),
            device.socket.display().to_string(),
        ]
    });
    layout(&["DEVICE", "STATE", "KIND", "VOLUME", "SOCKET"], rows.collect())
}

/// What the devices are doing, a line each.
fn activity(devices: &[DeviceStatus]) -> String {
    let rows = devices.iter().map(|device| {
        let sum = |counter: fn(&QueueStatus) -> u64| device.queues.iter().map(counter).fold(0, u64::saturating_add);
        let running = device.queues.iter().filter(|queue| queue.running).count();
        vec![
            device.name.clone(),
            device.state.to_string(),
            device.tenant.clone(),
            device.domain.clone(),
            device.volume.clone().unwrap_or_else(|| "-".to_owned()),
            format!("{running}/{}", device.queues.len()),
            short(sum(|queue| queue.requests.total())),
            short(sum(|queue| queue.errors)),
            sum(|queue| u64::from(queue.inflight)).to_string(),
            short(device.protocol_errors),
        ]
    });
    let header =
        ["DEVICE", "STATE", "TENANT", "DOMAIN", "VOLUME", "QUEUES>", "REQUESTS>", "ERRORS>", "INFLIGHT>", "REFUSED>"];
    layout(&header, rows.collect())
}

/// Queues of disks.
fn queues(devices: &[DeviceStatus]) -> String {
    let counts = |queue: &QueueStatus| {
        let QueueStatus { requests, read_bytes, written_bytes, .. } = queue;
        [short(requests.reads), short(requests.writes), size(*read_bytes), size(*written_bytes)]
    };
    let disks = devices.iter().filter(|device| !is_interface(device));
    queue_table(disks, ["READS>", "WRITES>", "READ>", "WRITTEN>"], counts)
}

/// Queues of interfaces: even ones take frames to the driver, odd ones bring its own.
fn interface_queues(devices: &[DeviceStatus]) -> String {
    let counts = |queue: &QueueStatus| {
        let way = if queue.index.is_multiple_of(2) { "receive" } else { "transmit" };
        [way.to_owned(), short(queue.frames), size(queue.frame_bytes), short(queue.dropped_frames)]
    };
    queue_table(devices.iter().filter(|device| is_interface(device)), ["WAY", "FRAMES>", "BYTES>", "DROPPED>"], counts)
}

fn is_interface(device: &DeviceStatus) -> bool {
    device.port.is_some() && device.volume.is_none()
}

fn queue_table<'a>(
    devices: impl Iterator<Item = &'a DeviceStatus>,
    columns: [&str; 4],
    counts: impl Fn(&QueueStatus) -> [String; 4],
) -> String {
    let row = |device: &DeviceStatus, queue: &QueueStatus| {
        let state = match (&queue.broken_reason, queue.running) {
            (Some(_), _) => "broken",
            (None, true) => "running",
            (None, false) => "stopped",
        };
        let begin = [
            format!("{}.{}", device.name, queue.index),
            queue.core.map_or_else(|| "-".to_owned(), |core| core.to_string()),
            // One that never ran has no ring.
            if queue.size == 0 { "-".to_owned() } else { format!("{} {}", queue.format, queue.size) },
            state.to_owned(),
        ];
        let end = [queue.kicks, queue.interrupts_sent, queue.interrupts_suppressed].map(short);
        begin.into_iter().chain(counts(queue)).chain(end).collect()
    };
    let rows = devices.flat_map(|device| device.queues.iter().map(|queue| row(device, queue)).collect::<Vec<_>>());
    let [a, b, c, d] = columns;
    layout(&["QUEUE", "CORE>", "RING", "STATE", a, b, c, d, "KICKS>", "IRQS>", "NO IRQ>"], rows.collect())
}

/// The volumes, a line each.
pub fn volume_table(volumes: &[VolumeStatus]) -> String {
    let rows = volumes.iter().map(|volume| {
        let mut flags = Vec::new();
        for (set, flag) in [(volume.read_only, "ro"), (volume.shared, "shared")] {
            if set {
                flags.push(flag);
            }
        }
        let encryption = volume.encryption.as_ref().map(|cipher| format!("encrypted {cipher}"));
        let detail = encryption.into_iter().chain((!volume.detail.is_empty()).then(|| volume.detail.clone()));
        vec![
            volume.name.clone(),
            volume.state.to_string(),
            volume.kind.clone(),
            Bytes(volume.size).to_string(),
            if flags.is_empty() { "-".to_owned() } else { flags.join(",") },
            volume.users.to_string(),
            short(volume.requests.reads),
            short(volume.requests.writes),
            short(volume.requests.flushes),
            short(volume.errors),
            detail.collect::<Vec<_>>().join("; "),
        ]
    });
    let header =
        ["VOLUME", "STATE", "KIND", "SIZE>", "FLAGS", "USERS>", "READS>", "WRITES>", "FLUSHES>", "ERRORS>", "DETAIL"];
    layout(&header, rows.collect())
}

/// Tenants.
pub fn tenant_table(tenants: &[TenantStatus]) -> String {
    let rows = tenants.iter().map(|tenant| {
        vec![
            tenant.name.clone(),
            tenant.weight.to_string(),
            short(tenant.queued),
            short(tenant.served),
            size(tenant.bytes),
            millis(tenant.core_time_ns / 1_000),
            tenant.waited_ns.checked_div(tenant.served).map_or_else(String::new, nanos),
            if tenant.limits.is_empty() { String::new() } else { millis(tenant.limited_ns / 1_000) },
            ingress(tenant),
            on_cores(tenant),
        ]
    });
    let header = [
        "TENANT",
        "WEIGHT>",
        "QUEUED>",
        "SERVED>",
        "BYTES>",
        "CORE TIME>",
        "MEAN WAIT>",
        "LIMITED>",
        "FROM WIRES>",
        "OF CORES",
    ];
    layout(&header, rows.collect())
}

/// Frames that wires brought for a tenant, and how many of them were dropped.
fn ingress(tenant: &TenantStatus) -> String {
    match (tenant.ingress_frames, tenant.ingress_dropped + tenant.ingress_limited) {
        (0, 0) => String::new(),
        (frames, 0) => short(frames),
        (frames, dropped) => format!("{} ({} dropped)", short(frames), short(dropped)),
    }
}

/// A time that is mostly some microseconds.
fn nanos(time: u64) -> String {
    match time {
        0..10_000 => format!("{time} ns"),
        10_000..10_000_000 => format!("{} us", time / 1_000),
        _ => millis(time / 1_000),
    }
}

/// Of what tenants used of each core, what this one did.
fn on_cores(tenant: &TenantStatus) -> String {
    let one = |core: &TenantOnCore| format!("{}: {}.{} %", core.cpu, core.share / 10, core.share % 10);
    tenant.cores.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Lines up `rows` under `header` in [`TABLE_WIDTH`] columns. A header that ends in `>` is flush right. Empty if there
/// are no rows.
fn layout(header: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut table = Table::new(header.iter().copied());
    rows.iter().for_each(|row| table.row(row.iter().map(|cell| one_line(cell)).collect()));
    table.fit(TABLE_WIDTH)
}

/// Without line breaks and terminal control sequences: an error text may hold what a guest or a server sent.
pub(super) fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let mut word = word.to_owned();
        let last = lines.last().map_or(0, |line| line.chars().count());
        if last > 0 && last + 1 + word.chars().count() > width {
            lines.push(String::new());
        }
        while word.chars().count() > width {
            let rest = word.chars().skip(width).collect();
            let end = lines.len() - 1;
            lines[end] = word.chars().take(width).collect();
            lines.push(String::new());
            word = rest;
        }
        let end = lines.len() - 1;
        if !lines[end].is_empty() {
            lines[end].push(' ');
        }
        lines[end].push_str(&word);
    }
    lines
}

/// `12.3 k`: four characters and a letter, whatever the count.
pub(super) fn short(count: u64) -> String {
    scaled(count as f64, &["", "k", "M", "G", "T", "P", "E"], 1000.0)
}

/// `12.3 GiB`, rounded.
pub(super) fn size(bytes: u64) -> String {
    scaled(bytes as f64, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"], 1024.0)
}

pub(super) fn scaled(value: f64, units: &[&str], step: f64) -> String {
    let (mut value, mut unit) = (value, 0);
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let number = if unit == 0 || value >= 100.0 { format!("{value:.0}") } else { format!("{value:.1}") };
    if units[unit].is_empty() { number } else { format!("{number} {}", units[unit]) }
}

fn percent(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1}%", part as f64 * 100.0 / whole as f64) }
}

fn millis(us: u64) -> String {
    if us < 1_000_000 { format!("{:.1} ms", us as f64 / 1e3) } else { format!("{:.1} s", us as f64 / 1e6) }
}

/// How often the data plane was started again.
pub(super) fn restarts(count: u64) -> String {
    if count == 1 { "1 restart".to_owned() } else { format!("{count} restarts") }
}
