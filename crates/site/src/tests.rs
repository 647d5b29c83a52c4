//! The site file as an operator meets it: what is accepted, and what it means.

mod arbitrary;
mod mistakes;

use std::path::{Path, PathBuf};

use softdpu_testing::ONE_DISK as SMALL;

use super::*;

const BASE: &str = "/srv/site";

fn check(text: &str) -> Loaded {
    parse(text, "site.toml", Path::new(BASE), None)
}

fn site(text: &str) -> Site {
    let loaded = check(text);
    loaded.site.unwrap_or_else(|| panic!("{}", loaded.report))
}

/// `line:column: message (help)` of everything that is wrong.
fn messages(text: &str) -> Vec<String> {
    check(text)
        .report
        .diagnostics
        .iter()
        .map(|found| {
            let help = found.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
            format!("{}:{}: {}{help}", found.line, found.column, found.message)
        })
        .collect()
}

#[test]
fn a_small_site_has_a_sensible_default_for_everything_else() {
    let site = site(SMALL);
    assert_eq!(site.node.dataplane, Dataplane::default());
    assert_eq!(site.node.api.socket, Path::new("/srv/site/run/softdpu/api.sock"));
    assert_eq!(site.tenants, [Tenant::called("default")]);
    assert_eq!(site.volumes[0].block_size, 512);
    let device = &site.devices[0];
    assert_eq!((device.tenant.as_str(), device.domain.as_str()), ("default", "disk"));
    let blk = device.disk().unwrap();
    assert_eq!((blk.queues, blk.queue_size, blk.seg_max, blk.serial.as_str()), (1, 256, 254, "disk"));
    assert_eq!(blk.access, SocketAccess::at("/srv/site/run/softdpu/disk.sock".into()));
}

#[test]
fn a_service_managers_directories_are_the_defaults_and_a_written_path_beats_them() {
    let directories = ServiceDirectories::new(Some("/run/softdpu:/run/b".into()), Some("/var/lib/softdpu".into()));
    let node = |text: &str, directories: &ServiceDirectories| {
        let loaded = parse_as(text, "site.toml", Path::new(BASE), None, directories);
        loaded.site.unwrap_or_else(|| panic!("{}", loaded.report)).node
    };
    let paths = |node: &Node| {
        let paths = [&node.run_directory, &node.state_directory, &node.api.socket];
        paths.map(|path| path.to_str().unwrap().to_owned())
    };
    let service = ["/run/softdpu", "/var/lib/softdpu", "/run/softdpu/api.sock"];
    for text in ["", "[node]\nlog = { level = \"warn\" }\n"] {
        assert_eq!(paths(&node(text, &directories)), service, "{text}");
    }
    let run = "[node]\nrun-directory = \"here\"\n";
    assert_eq!(
        paths(&node(run, &directories)),
        ["/srv/site/here", "/var/lib/softdpu", "/srv/site/here/api.sock"],
        "state outlives a boot wherever the sockets are"
    );
    assert_eq!(paths(&node(run, &ServiceDirectories::default()))[1], "/srv/site/here/state");
    let state = "[node]\nstate-directory = \"there\"\n";
    assert_eq!(paths(&node(state, &directories)), ["/run/softdpu", "/srv/site/there", "/run/softdpu/api.sock"]);
}

#[test]
fn encryption_is_read_and_what_cannot_be_is_named_with_what_to_do() {
    let volume =
        |more: &str, encryption: &str| format!("[[volume]]\nname = \"a\"\n{more}\nencryption = {{ {encryption} }}\n");
    let memory = "memory = { size = \"1 MiB\" }";
    let large = "block-size = 4096\nmemory = { size = \"1 MiB\" }";
    let file = "cipher = \"aes-xts-plain64\", key-file = \"a.key\"";
    let read = |text: &str| site(text).volumes[0].encryption.clone().unwrap();
    let first = read(&volume(memory, file));
    assert_eq!(first.key_file.as_deref(), Some(Path::new("/srv/site/a.key")));
    assert_eq!((first.sector_size, first.discard, first.keyring), (512, EncryptedDiscard::Ignore, None));
    let keyring = "cipher = \"aes-xts-plain64\", keyring = \"softdpu:a\", sector-size = 4096, discard = \"pass\"";
    let second = read(&volume(large, keyring));
    assert_eq!((second.sector_size, second.discard), (4096, EncryptedDiscard::Pass));
    assert_eq!((second.keyring.as_deref(), second.key_file), (Some("softdpu:a"), None));

    let wrong = |more: &str, encryption: &str| messages(&volume(more, encryption)).join("; ");
    for (more, encryption, said) in [
        (memory, "key-file = \"a.key\"", "cipher"),
        (memory, "cipher = \"aes-cbc\", key-file = \"a.key\"", "aes-xts-plain64"),
        (memory, "cipher = \"aes-xts-plain64\"", "needs one of"),
        (memory, &format!("{file}, keyring = \"b\""), "has both"),
        (memory, &format!("{file}, sector-size = 4096"), "block-size = 4096"),
        (large, &format!("{file}, sector-size = 1024"), "512 or 4096"),
        ("null = { size = \"1 MiB\" }", file, "keeps nothing that could be encrypted"),
        (memory, &format!("{file}, keyfile = \"b\""), "key-file"),
    ] {
        let found = check(&volume(more, encryption));
        assert!(found.site.is_none(), "{encryption}");
        assert!(found.report.to_string().contains(said), "{encryption}: {}", wrong(more, encryption));
    }
}

#[test]
fn everything_that_can_be_written_is_read() {
    let site = site(
        r#"
[node]
dataplane       = { cores = [0, 3], mode = "performance", idle-sleep = "100 us", yield = "adaptive" }
fairness        = "fcfs"
run-directory   = "/run/softdpu"
state-directory = "state"
api             = { socket = "/run/api", socket-owner = "root", socket-group = "libvirt", socket-mode = "0660" }
metrics         = { listen = "127.0.0.1:9477" }
log             = { format = "json", level = "debug" }
tables          = { flows = 1_000_000, connections = 1_000 }

[[tenant]]
name   = "acme"
weight = 1_000
class  = "background"
guarantee = "12.5 %"
limits = { iops = 50_000, bandwidth = "2 GiB/s", bandwidth-burst = "1 MiB", packets = 100, received-packets = 9_000, received-bandwidth = "1 GiB/s" }
meter  = { algorithm = "rfc4115", committed = "80 Mbit/s", excess = "8 kbit/s", excess-burst = "3 KiB" }

[[volume]]
name       = "image"
read-only  = true
block-size = 4096
cache      = "write-through"
file       = { path = "a.img", size = "20 GiB", create = false, direct = true, discard = "ignore" }

[[volume]]
name   = "remote"
shared = true
nbd    = { uri = "nbd+unix:///x?socket=nbd.sock", timeout = "5 s", reconnect = "1 min" }

[[volume]]
name   = "raw"
depth  = 32
device = { path = "/dev/sdz", direct = false, discard = "unmap" }

[[device]]
name       = "one"
tenant     = "acme"
domain     = "vm1"
cores      = [3]
virtio-blk = { volume = "remote", queues = 4, queue-size = 128, socket = "one.sock", socket-group = "kvm", socket-mode = "660", serial = "S 1", read-only = true, packed = false, seg-max = 64 }
"#,
    );
    assert_eq!(site.node.dataplane.cores, [0, 3]);
    let idle_sleep = IdleSleep::After(Span::from_micros(100));
    assert_eq!((site.node.dataplane.idle_sleep, site.node.dataplane.yields), (idle_sleep, Yield::Adaptive));
    assert_eq!(site.node.state_directory, Path::new("/srv/site/state"));
    assert_eq!(site.node.api.socket_mode, FileMode(0o660));
    assert_eq!(site.node.metrics.as_ref().unwrap().listen.port(), 9477);
    assert_eq!(site.node.log, Log { format: LogFormat::Json, level: LogLevel::Debug });
    assert_eq!((site.node.tables.flows, site.node.tables.connections), (1_000_000, 1_000));
    let meter = site.tenants[0].meter.unwrap();
    assert_eq!(
        (meter.algorithm, meter.committed.0, meter.committed_burst),
        (ColourBy::Rfc4115, 80_000_000, Bytes(128 << 10))
    );
    assert_eq!((meter.excess.unwrap().0, meter.excess_burst, meter.peak), (8_000, Some(Bytes(3 << 10)), None));
    assert_eq!(site.volumes.iter().map(|volume| volume.depth).collect::<Vec<_>>(), [None, None, Some(32)]);
    assert_eq!(site.tenants[0].weight, 1000);
    assert_eq!((site.tenants[0].class, site.tenants[0].guarantee), (LatencyClass::Background, Percent(125)));
    let limits = TenantLimits {
        iops: Some(50_000),
        iops_burst: Some(5_000),
        bandwidth: Some(BytesPerSecond(2 << 30)),
        bandwidth_burst: Some(Bytes(1 << 20)),
        packets: Some(100),
        packets_burst: Some(64),
        received_bandwidth: Some(BytesPerSecond(1 << 30)),
        received_bandwidth_burst: Some(Bytes((1 << 30) / 10)),
        received_packets: Some(9_000),
        received_packets_burst: Some(900),
    };
    assert_eq!(site.tenants[0].limits, limits);
    assert_eq!(
        site.volumes[0].backend,
        Backend::File(FileBackend {
            path: "/srv/site/a.img".into(),
            size: Some(Bytes(20 << 30)),
            create: false,
            direct: true,
            discard: Discard::Ignore,
        })
    );
    assert_eq!(
        site.volumes[1].backend,
        Backend::Nbd(NbdBackend {
            uri: "nbd+unix:///x?socket=/srv/site/nbd.sock".parse().unwrap(),
            timeout: Span::from_secs(5),
            reconnect: Reconnect::For(Span::from_secs(60)),
        })
    );
    let blk = site.devices[0].disk().unwrap();
    assert_eq!((blk.queues, blk.queue_size, blk.seg_max, blk.packed, blk.read_only), (4, 128, 64, false, true));
    assert_eq!(blk.access.socket_mode, FileMode(0o660));
}

#[test]
fn a_site_survives_being_stored_as_json_and_as_toml() {
    let site = site(SMALL);
    let json = serde_json::to_string(&site).unwrap();
    assert_eq!(serde_json::from_str::<Site>(&json).unwrap(), site);
    let toml = toml::to_string(&site).unwrap();
    assert_eq!(self::site(&toml), site, "{toml}");
}

#[test]
fn api_parameters_have_the_shape_and_the_messages_of_the_site_file() {
    let volume = volume_from_json(&serde_json::json!({"name": "v", "memory": {"size": "1 GiB"}})).unwrap();
    assert_eq!(volume.backend, Backend::Memory { size: Bytes(1 << 30) });
    let errors = |json| -> Vec<String> {
        volume_from_json(&json).unwrap_err().iter().map(|problem| problem.to_string()).collect()
    };
    assert_eq!(
        errors(serde_json::json!({"name": "v", "file": {"path": "x", "sise": "1 GiB"}})),
        [
            "file.path: `path` in volume.file: found the string \"x\", expected an absolute path",
            "file.sise: unknown key in volume.file: found `sise`, expected `path`, `size`, `create`, `direct` or \
             `discard` (did you mean `size`?)",
        ]
    );
    assert_eq!(
        errors(serde_json::json!({"name": "v", "nbd": {"uri": "nbd+unix:///?socket=s"}}))[0].split(" (").nth(1),
        Some("the socket's path must be absolute)")
    );
    assert!(errors(serde_json::json!([1]))[0].starts_with("the parameters: found an array"));
    let device =
        device_from_json(&serde_json::json!({"name": "d", "virtio-blk": {"volume": "v"}}), Path::new("/run/softdpu"))
            .unwrap();
    assert_eq!(device.access().unwrap().socket, PathBuf::from("/run/softdpu/d.sock"));
}

#[test]
fn what_is_serialized_is_what_the_reader_takes() {
    let site = site(SMALL);
    let volume = serde_json::to_value(&site.volumes[0]).unwrap();
    assert_eq!(volume_from_json(&volume).unwrap(), site.volumes[0]);
    let device = serde_json::to_value(&site.devices[0]).unwrap();
    assert_eq!(device_from_json(&device, Path::new("/")).unwrap(), site.devices[0]);
}
