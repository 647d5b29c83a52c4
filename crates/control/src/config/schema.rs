//! The keys of a site file, listed once.
//!
//! The reader may only ask for keys that are listed here and has to ask for all of them (it asserts both in debug
//! builds), and a test holds `docs/configuration.md` to the same list: a key cannot exist without being read and
//! documented.

/// A table of the site file and the keys it may have.
#[derive(Debug)]
pub struct Section {
    /// How messages and the documentation call it, such as `[node]` or `volume.file`.
    pub title: &'static str,
    /// Its keys.
    pub keys: &'static [&'static str],
}

/// The file itself.
pub const ROOT: Section =
    Section { title: "the site file", keys: &["node", "tenant", "volume", "network", "function", "device"] };
/// `[node]`
pub const NODE: Section = Section {
    title: "[node]",
    keys: &[
        "dataplane",
        "fairness",
        "record",
        "run-directory",
        "state-directory",
        "api",
        "metrics",
        "log",
        "underlay",
        "tables",
        "zone",
        "flow-tier",
        "steering",
    ],
};
/// `node.dataplane`
pub const DATAPLANE: Section = Section { title: "node.dataplane", keys: &["cores", "mode", "idle-sleep"] };
/// `node.api`
pub const API: Section =
    Section { title: "node.api", keys: &["socket", "socket-owner", "socket-group", "socket-mode"] };
/// `node.metrics`
pub const METRICS: Section = Section { title: "node.metrics", keys: &["listen"] };
/// `node.log`
pub const LOG: Section = Section { title: "node.log", keys: &["format", "level"] };
/// `node.underlay`
pub const UNDERLAY: Section =
    Section { title: "node.underlay", keys: &["interface", "address", "port", "backend", "mtu"] };
/// `node.tables`
pub const TABLES: Section =
    Section { title: "node.tables", keys: &["endpoints", "routes", "hosts", "flows", "connections"] };
/// `node.steering`
pub const STEERING: Section = Section { title: "node.steering", keys: &["mode", "cores", "rule"] };
/// `[[node.steering.rule]]`
pub const STEERING_RULE: Section =
    Section { title: "[[node.steering.rule]]", keys: &["vni", "protocol", "source", "destination", "core"] };
/// Parameters of `network.steer`
pub const STEERING_CHANGE: Section =
    Section { title: "the parameters of network.steer", keys: &["mode", "cores", "add", "remove"] };
/// `[[tenant]]`
pub const TENANT: Section =
    Section { title: "[[tenant]]", keys: &["name", "weight", "class", "guarantee", "limits", "meter"] };
/// `tenant.limits`
pub const LIMITS: Section = Section {
    title: "tenant.limits",
    keys: &["iops", "iops-burst", "bandwidth", "bandwidth-burst", "packets", "packets-burst"],
};
/// `[[volume]]`
pub const VOLUME: Section = Section {
    title: "[[volume]]",
    keys: &[
        "name",
        "read-only",
        "block-size",
        "cache",
        "shared",
        "depth",
        "encryption",
        "null",
        "memory",
        "file",
        "device",
        "nbd",
    ],
};
/// `volume.encryption`
pub const ENCRYPTION: Section =
    Section { title: "volume.encryption", keys: &["cipher", "key-file", "keyring", "sector-size", "discard"] };
/// `volume.null`
pub const NULL: Section = Section { title: "volume.null", keys: &["size"] };
/// `volume.memory`
pub const MEMORY: Section = Section { title: "volume.memory", keys: &["size"] };
/// `volume.file`
pub const FILE: Section = Section { title: "volume.file", keys: &["path", "size", "create", "direct", "discard"] };
/// `volume.device`
pub const BLOCK_DEVICE: Section = Section { title: "volume.device", keys: &["path", "direct", "discard"] };
/// `volume.nbd`
pub const NBD: Section = Section { title: "volume.nbd", keys: &["uri", "timeout", "reconnect"] };
/// `[[network]]`
pub const NETWORK: Section = Section {
    title: "[[network]]",
    keys: &[
        "name",
        "tenant",
        "vni",
        "cidr",
        "gateway",
        "mtu",
        "transit",
        "dns",
        "endpoint",
        "peer",
        "route",
        "ecmp",
        "route-table",
        "security-group",
        "acl",
    ],
};
/// `[[network.endpoint]]`
pub const ENDPOINT: Section =
    Section { title: "[[network.endpoint]]", keys: &["address", "mac", "host", "security-groups"] };
/// `[[network.route]]`
pub const ROUTE: Section = Section { title: "[[network.route]]", keys: &["prefix", "host", "address", "ecmp"] };
/// `[[network.ecmp]]`
pub const ECMP: Section = Section { title: "[[network.ecmp]]", keys: &["name", "member"] };
/// `[[network.ecmp.member]]`
pub const ECMP_MEMBER: Section =
    Section { title: "[[network.ecmp.member]]", keys: &["host", "address", "weight", "zone", "down"] };
/// `[[network.route-table]]`
pub const ROUTE_TABLE: Section = Section { title: "[[network.route-table]]", keys: &["name", "source", "route"] };
/// The parameters of `network.routing`, which are no part of a site file.
pub const ROUTING_CHANGE: Section =
    Section { title: "network.routing", keys: &["network", "peer", "route", "ecmp", "route-table"] };
/// The same of one of several networks.
pub const ROUTING_CHANGES_NETWORK: Section =
    Section { title: "[[network]] of network.routing", keys: &["name", "peer", "route", "ecmp", "route-table"] };
/// The parameters of `network.routing` and `network.policy` for several networks.
pub const NETWORK_CHANGES: Section = Section { title: "a change of several networks", keys: &["network"] };
/// `[[network.security-group]]`
pub const SECURITY_GROUP: Section = Section { title: "[[network.security-group]]", keys: &["name", "rule"] };
/// `[[network.security-group.rule]]`
pub const GROUP_RULE: Section =
    Section { title: "[[network.security-group.rule]]", keys: &["direction", "protocol", "ports", "cidr", "group"] };
/// `[[network.acl]]`
pub const ACL: Section = Section { title: "[[network.acl]]", keys: &["name", "default", "rule"] };
/// `[[network.acl.rule]]`
pub const ACL_RULE: Section = Section {
    title: "[[network.acl.rule]]",
    keys: &["priority", "action", "protocol", "source", "destination", "source-ports", "ports"],
};
/// The parameters of `network.policy`, which are no part of a site file.
pub const POLICY_CHANGE: Section = Section { title: "network.policy", keys: &["network", "security-group", "acl"] };
/// The same of one of several networks.
pub const POLICY_CHANGES_NETWORK: Section =
    Section { title: "[[network]] of network.policy", keys: &["name", "security-group", "acl"] };
/// `[[function]]`
pub const FUNCTION: Section =
    Section { title: "[[function]]", keys: &["name", "tenant", "monitor", "analytics", "firewall"] };
/// The parameters of `function.set`.
pub const FUNCTION_CHANGE: Section =
    Section { title: "a change of a function", keys: &["name", "monitor", "analytics", "firewall"] };
/// `function.monitor`
pub const MONITOR: Section =
    Section { title: "function.monitor", keys: &["collector", "domain", "active-timeout", "idle-timeout", "flows"] };
/// `function.analytics`
pub const ANALYTICS: Section =
    Section { title: "function.analytics", keys: &["filter", "by", "rank", "top", "window", "entries"] };
/// `function.firewall`
pub const FIREWALL: Section =
    Section { title: "function.firewall", keys: &["default", "stateful", "connections", "rule"] };
/// `[[function.firewall.rule]]`
pub const FIREWALL_RULE: Section = Section {
    title: "[[function.firewall.rule]]",
    keys: &["direction", "priority", "action", "protocol", "source", "destination", "source-ports", "ports"],
};
/// `[[device]]`
pub const DEVICE: Section =
    Section { title: "[[device]]", keys: &["name", "tenant", "domain", "cores", "virtio-blk", "virtio-net", "tap"] };
/// `device.virtio-blk`
pub const VIRTIO_BLK: Section = Section {
    title: "device.virtio-blk",
    keys: &[
        "volume",
        "queues",
        "queue-size",
        "socket",
        "socket-owner",
        "socket-group",
        "socket-mode",
        "serial",
        "read-only",
        "packed",
        "seg-max",
    ],
};
/// `device.virtio-net`
pub const VIRTIO_NET: Section = Section {
    title: "device.virtio-net",
    keys: &[
        "network",
        "address",
        "mac",
        "queues",
        "queue-size",
        "packed",
        "mtu",
        "spoof-check",
        "rate",
        "meter",
        "security-groups",
        "acl",
        "functions",
        "socket",
        "socket-owner",
        "socket-group",
        "socket-mode",
    ],
};
/// `device.tap`
pub const TAP: Section = Section {
    title: "device.tap",
    keys: &[
        "network",
        "address",
        "interface",
        "mac",
        "queues",
        "mtu",
        "spoof-check",
        "rate",
        "meter",
        "security-groups",
        "acl",
        "functions",
    ],
};
/// `rate` of `device.virtio-net` and of `device.tap`
pub const RATE: Section =
    Section { title: "rate", keys: &["packets", "packets-burst", "bandwidth", "bandwidth-burst"] };
/// `meter` of `[[tenant]]`, of `device.virtio-net` and of `device.tap`
pub const METER: Section = Section {
    title: "meter",
    keys: &["algorithm", "committed", "committed-burst", "peak", "peak-burst", "excess", "excess-burst"],
};

/// Every section, in the order of the reference.
pub const SECTIONS: &[&Section] = &[
    &ROOT,
    &NODE,
    &DATAPLANE,
    &API,
    &METRICS,
    &LOG,
    &UNDERLAY,
    &TABLES,
    &STEERING,
    &STEERING_RULE,
    &TENANT,
    &LIMITS,
    &VOLUME,
    &ENCRYPTION,
    &NULL,
    &MEMORY,
    &FILE,
    &BLOCK_DEVICE,
    &NBD,
    &NETWORK,
    &ENDPOINT,
    &ROUTE,
    &ECMP,
    &ECMP_MEMBER,
    &ROUTE_TABLE,
    &SECURITY_GROUP,
    &GROUP_RULE,
    &ACL,
    &ACL_RULE,
    &FUNCTION,
    &MONITOR,
    &ANALYTICS,
    &FIREWALL,
    &FIREWALL_RULE,
    &DEVICE,
    &VIRTIO_BLK,
    &VIRTIO_NET,
    &TAP,
    &RATE,
    &METER,
];
