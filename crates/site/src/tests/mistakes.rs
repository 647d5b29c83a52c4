//! What is refused, with exactly which words.

use super::*;

/// A broken line added to a valid site, and the one message it has to give.
const BROKEN: &[(&str, &str)] = &[
    // Keys
    (
        "[node]\nfairnes = \"fcfs\"",
        "2:1: unknown key in [node]: found `fairnes`, expected `dataplane`, `fairness`, `record`, `run-directory`, \
         `state-directory`, `api`, `metrics`, `log`, `underlay`, `flow-tier`, `tables`, `zone`, `steering`, `isolation` or `user` (did you mean `fairness`?)",
    ),
    (
        "[nodes]",
        "1:2: unknown key in the site file: found `nodes`, expected `node`, `tenant`, `volume`, `network`, `function` or `device` \
         (did you mean `node`?)",
    ),
    (
        "[node]\napi = { mode = \"0660\" }",
        "2:9: unknown key in node.api: found `mode`, expected `socket`, `socket-owner`, `socket-group` or `socket-mode` \
         (did you mean `socket-mode`?)",
    ),
    // Types and ranges
    (
        "[[tenant]]\nname = \"a\"\nweight = \"four\"",
        "3:10: `weight` in [[tenant]]: found the string \"four\", expected a whole number from 1 to 10000",
    ),
    (
        "[[tenant]]\nname = \"a\"\nweight = 0",
        "3:10: `weight` in [[tenant]]: found the integer 0, expected a whole number from 1 to 10000",
    ),
    (
        "[[tenant]]\nname = \"a b\"",
        "2:8: `name` in [[tenant]]: found the string \"a b\", expected 1 to 63 letters, digits, `.`, `_` or `-`, \
         beginning with a letter or digit",
    ),
    ("[[tenant]]\nweight = 1", "1:1: `name` is missing in [[tenant]] (add `name = \"acme\"`)"),
    (
        "tenant = { name = \"a\" }",
        "1:10: `tenant` in the site file: found a table, expected a list: write [[tenant]] with two pairs of brackets",
    ),
    (
        "[node]\ndataplane = { cores = [] }",
        "2:23: `cores` in node.dataplane: found an empty array, expected a list of CPU numbers such as [1, 2]",
    ),
    ("[node]\ndataplane = { cores = [1, 1] }", "2:27: CPU 1 is listed twice in `cores`"),
    (
        "[node]\ndataplane = { cores = [-1] }",
        "2:24: `cores` in node.dataplane: found the integer -1, expected a CPU number from 0 to 8191",
    ),
    (
        "[node]\ndataplane = { idle-sleep = 50 }",
        "2:28: `idle-sleep` in node.dataplane: found the integer 50, expected a time with a unit such as \"50 us\", or \
         \"never\"",
    ),
    (
        "[node]\ndataplane = { idle-sleep = \"50 lightyears\" }",
        "2:28: `idle-sleep` in node.dataplane: found the string \"50 lightyears\", expected a time with a unit such as \
         \"50 us\", or \"never\" (unknown unit `lightyears`: expected one of ns, us, µs, ms, s, min, h)",
    ),
    (
        "[node]\ndataplane = { yield = \"adaptiv\" }",
        "2:23: `yield` in node.dataplane: found the string \"adaptiv\", expected `adaptive` or `off` (did you mean \
         `adaptive`?)",
    ),
    ("[node]\ndataplane = { yield = true }", "2:23: `yield` in node.dataplane: found true, expected a string"),
    (
        "[node]\ndataplane = { idle-sleep = \"never\", yield = \"adaptive\" }",
        "2:45: `yield` in node.dataplane: found the string \"adaptive\", expected \"off\", or nothing, beside \
         `idle-sleep = \"never\"` (a core that never sleeps yields to nothing; leave out one of the two)",
    ),
    (
        "[node]\nmetrics = { listen = \"localhost\" }",
        "2:22: `listen` in node.metrics: found the string \"localhost\", expected an address and a port such as \
         \"127.0.0.1:9477\" (names are not looked up: write \"127.0.0.1:9477\")",
    ),
    (
        "[node]\nmetrics = { listen = \"localhost:9478\" }",
        "2:22: `listen` in node.metrics: found the string \"localhost:9478\", expected an address and a port such as \
         \"127.0.0.1:9477\" (names are not looked up: write \"127.0.0.1:9478\")",
    ),
    (
        "[node]\nmetrics = { listen = \"node-a:9478\" }",
        "2:22: `listen` in node.metrics: found the string \"node-a:9478\", expected an address and a port such as \
         \"127.0.0.1:9477\" (names are not looked up: write the address of `node-a`)",
    ),
    (
        "[node]\nmetrics = { listen = \"9478\" }",
        "2:22: `listen` in node.metrics: found the string \"9478\", expected an address and a port such as \
         \"127.0.0.1:9477\" (add the address: \"127.0.0.1:9478\")",
    ),
    (
        "[node]\nmetrics = { listen = \"99478\" }",
        "2:22: `listen` in node.metrics: found the string \"99478\", expected an address and a port such as \
         \"127.0.0.1:9477\" (a port is a number up to 65535, after an address and a colon)",
    ),
    (
        "[node]\nmetrics = { listen = \"127.0.0.1:99478\" }",
        "2:22: `listen` in node.metrics: found the string \"127.0.0.1:99478\", expected an address and a port such as \
         \"127.0.0.1:9477\" (`99478` is no port: a number up to 65535)",
    ),
    (
        "[node]\nmetrics = { listen = \"127.0.0.1\" }",
        "2:22: `listen` in node.metrics: found the string \"127.0.0.1\", expected an address and a port such as \
         \"127.0.0.1:9477\" (add the port: \"127.0.0.1:9477\")",
    ),
    (
        "[node]\nmetrics = { listen = \"::1\" }",
        "2:22: `listen` in node.metrics: found the string \"::1\", expected an address and a port such as \
         \"127.0.0.1:9477\" (add the port: \"[::1]:9477\")",
    ),
    (
        "[node]\nmetrics = { listen = \"[::1]\" }",
        "2:22: `listen` in node.metrics: found the string \"[::1]\", expected an address and a port such as \
         \"127.0.0.1:9477\" (add the port: \"[::1]:9477\")",
    ),
    (
        "[node]\nlog = { level = \"verbose\" }",
        "2:17: `level` in node.log: found the string \"verbose\", expected `error`, `warn`, `info`, `debug` or `trace`",
    ),
    (
        "[node]\napi = { socket-mode = 0o660 }",
        "2:23: `socket-mode` in node.api: found the integer 432, expected permission bits in octal such as \"0660\"",
    ),
    // Planned, and said so
    (
        "[node]\ndataplane = { mode = \"zero-cost\" }",
        "2:22: `mode = \"zero-cost\"` is planned but does not work yet (only `performance` works in this release)",
    ),
    (
        "[node]\nfairness = \"mdta\"",
        "2:12: `fairness` in [node]: found the string \"mdta\", expected `weighted`, `fcfs`, `mtda`, `mtda-printed`, \
         `ipipe`, `fairnic` or `lognic` (did you mean `mtda`?)",
    ),
    (
        "[[tenant]]\nname = \"a\"\nclass = \"latncy\"",
        "3:9: `class` in [[tenant]]: found the string \"latncy\", expected `latency`, `normal` or `background` (did you \
         mean `latency`?)",
    ),
    (
        "[[tenant]]\nname = \"a\"\nguarantee = \"20\"",
        "3:13: `guarantee` in [[tenant]]: found the string \"20\", expected a part of all cores' time such as \"20 %\" \
         (the unit is missing: write \"20 %\", for instance)",
    ),
    (
        "[[tenant]]\nname = \"a\"\nguarantee = \"120 %\"",
        "3:13: `guarantee` in [[tenant]]: found the string \"120 %\", expected a part of all cores' time such as \"20 %\" \
         (100 % is the most)",
    ),
    (
        "[[tenant]]\nname = \"a\"\nguarantee = \"50 %\"\n[[tenant]]\nname = \"b\"\nguarantee = \"40.1 %\"",
        "6:13: tenants are guaranteed more than there is: found 90.1 % for this tenant and those before it, expected 90 % \
         at the most, so that weights have something to share",
    ),
    (
        "[[tenant]]\nname = \"a\"\nlimits = { iops = 0 }",
        "3:19: `iops` in tenant.limits: found the integer 0, expected a whole number from 1 to 1000000000",
    ),
    (
        "[[tenant]]\nname = \"a\"\nlimits = { iops = 1, packets-burst = 7 }",
        "3:38: `packets-burst` does nothing without `packets` (add `packets`, such as packets = 1_000_000)",
    ),
    (
        "[[tenant]]\nname = \"a\"\nlimits = { received-bandwidth = \"0 B/s\" }",
        "3:33: `received-bandwidth` in tenant.limits: found the string \"0 B/s\", expected more than nothing",
    ),
    (
        "[[tenant]]\nname = \"a\"\nlimits = { packets = 1, received-packets-burst = 7 }",
        "3:50: `received-packets-burst` does nothing without `received-packets` (add `received-packets`, such as \
         received-packets = 1_000_000)",
    ),
    // Volumes
    (
        "[[volume]]\nname = \"v\"\nmemory = { size = 64 }",
        "3:19: `size` in volume.memory: found the integer 64, expected a size with a unit such as \"20 GiB\"",
    ),
    (
        "[[volume]]\nname = \"v\"\nmemory = { size = \"64\" }",
        "3:19: `size` in volume.memory: found the string \"64\", expected a size with a unit such as \"20 GiB\" (the \
         unit is missing: write \"64 GiB\", for instance)",
    ),
    (
        "[[volume]]\nname = \"v\"\nmemory = { size = \"0 B\" }",
        "3:19: `size` in volume.memory: found zero, expected at least one block",
    ),
    (
        "[[volume]]\nname = \"v\"\nblock-size = 4096\nmemory = { size = \"513 KiB\" }",
        "4:19: `size` in volume.memory: found 513 KiB, expected a multiple of the block size, 4096 bytes (\"516 KiB\" is \
         the next)",
    ),
    (
        "[[volume]]\nname = \"v\"\nnull = { size = \"9000 PiB\" }",
        "3:17: `size` in volume.null: found 9000 PiB, expected less than 8 EiB, the largest file offset",
    ),
    (
        "[[volume]]\nname = \"v\"\nblock-size = 1024\nnull = { size = \"1 GiB\" }",
        "3:14: `block-size` in [[volume]]: found the integer 1024, expected 512 or 4096",
    ),
    (
        "[[volume]]\nname = \"v\"\ndepth = 8\nmemory = { size = \"1 MiB\" }",
        "3:9: a memory volume answers at once: nothing waits there (remove `depth`: it is for `file`, `device` and `nbd`)",
    ),
    (
        "[[volume]]\nname = \"v\"\ndepth = 2000\nfile = { path = \"x\" }",
        "3:9: `depth` in [[volume]]: found the integer 2000, expected a whole number from 1 to 1024",
    ),
    (
        "[[volume]]\nname = \"v\"",
        "1:1: [[volume]] needs one of `null`, `memory`, `file`, `device` or `nbd` (add `file = { path = \"disk.img\", \
         size = \"20 GiB\" }`)",
    ),
    (
        "[[volume]]\nname = \"v\"\nnull = { size = \"1 GiB\" }\nfile = { path = \"x\" }",
        "4:8: [[volume]] has both `null` and `file` (keep one of them)",
    ),
    ("[[volume]]\nname = \"v\"\nfile = {}", "3:8: `path` is missing in volume.file (add `path = \"disk.img\"`)"),
    (
        "[[volume]]\nname = \"v\"\nfile = { path = \"x\", create = true }",
        "3:8: `size` is missing in volume.file (add `size = \"20 GiB\"`)",
    ),
    (
        "[[volume]]\nname = \"v\"\nnbd = { uri = \"http://x\" }",
        "3:15: `uri` in volume.nbd: found the string \"http://x\", expected an NBD URI such as \
         \"nbd://host:10809/export\" (write nbd://host:port/export or nbd+unix:///export?socket=PATH)",
    ),
    (
        "[[volume]]\nname = \"v\"\nnbd = { uri = \"nbds+unix:///?socket=/run/nbd.sock\" }",
        "3:15: `uri` in volume.nbd: found the string \"nbds+unix:///?socket=/run/nbd.sock\", expected an NBD URI such as \
         \"nbd://host:10809/export\" (TLS (nbds://) is not supported yet: use nbd:// on a trusted network, or nbd+unix:// with \
         a local proxy)",
    ),
    (
        "[[volume]]\nname = \"v\"\nsize = \"1 GiB\"\nnull = { size = \"1 GiB\" }",
        "3:1: unknown key in [[volume]]: found `size`, expected `name`, `block-size`, `null`, `memory`, `read-only`, \
         `encryption`, `file`, `device`, `nbd`, `cache`, `shared` or `depth` (it is a key of `volume.null`)",
    ),
    (
        "[[volume]]\nname = \"v\"\nnbd = { uri = \"nbd://x\", timeout = \"0 s\" }",
        "3:36: `timeout` in volume.nbd: found zero, expected a time in which the server can answer",
    ),
    (
        "[[volume]]\nname = \"root\"\nnull = { size = \"1 GiB\" }",
        "5:8: volume `root` exists already (the first is in line 2; give each [[volume]] a name of its own)",
    ),
    (
        "[[volume]]\nname = \"a\"\nfile = { path = \"x\" }\n[[volume]]\nname = \"b\"\nfile = { path = \"/srv/site/x\" }",
        "6:17: volume `a` is already kept in /srv/site/x (use one volume for both devices, or make both volumes \
         read-only)",
    ),
    (
        "[[volume]]\nname = \"v\"\nread-only = true\nfile = { path = \"x\", size = \"1 GiB\", create = true }",
        "4:47: a read-only volume is not created: it would stay empty (remove `create`, or `read-only`)",
    ),
    (
        "[[volume]]\nname = \"v\"\ndevice = { path = \"/dev/sdz\", discard = \"ignore\" }",
        "3:41: `discard = \"ignore\"` is planned but does not work yet (only `unmap` works in this release)",
    ),
    // Devices
    (
        "[[volume]]\nname = \"v\"\nread-only = true\nnull = { size = \"1 GiB\" }\n[[device]]\nname = \"d\"\nvirtio-blk = { volume = \"v\" }",
        "7:25: volume `v` is read-only (add `read-only = true` to the device)",
    ),
    (
        "[[device]]\nname = \"d\"",
        "1:1: [[device]] needs one of `virtio-blk`, `virtio-net` or `tap` (add `virtio-blk = { volume = \"acme-root\" }`)",
    ),
    (
        "[[device]]\nname = \"d\"\nvirtio-blk = {}",
        "3:14: `volume` is missing in device.virtio-blk (add `volume = \"acme-root\"`)",
    ),
    (
        "[[device]]\nname = \"d\"\nvirtio-blk = { volume = \"rooot\" }",
        "3:25: there is no volume `rooot` (did you mean `root`?)",
    ),
    (
        "[[device]]\nname = \"d\"\ntenant = \"nobody\"\nvirtio-blk = { volume = \"root\", read-only = true }",
        "3:10: there is no tenant `nobody` (declare it, or use one of: default)",
    ),
    (
        "[[device]]\nname = \"d\"\nvirtio-blk = { volume = \"root\", read-only = true, queue-size = 100 }",
        "3:64: `queue-size` in device.virtio-blk: found the integer 100, expected a power of two (128 is the next)",
    ),
    (
        "[[device]]\nname = \"d\"\nvirtio-blk = { volume = \"root\", read-only = true, queue-size = 64, seg-max = 64 }",
        "3:78: `seg-max` in device.virtio-blk: found the integer 64, expected at most 62: `queue-size` less one \
         descriptor each for header and status",
    ),
    (
        "[node]\ntables = { flows = 63 }",
        "2:20: `flows` in node.tables: found the integer 63, expected a whole number from 64 to 16777216",
    ),
    (
        "[node]\ntables = { connections = 40_000_000 }",
        "2:26: `connections` in node.tables: found the integer 40000000, expected a whole number from 1 to 33554432",
    ),
    (
        "[[tenant]]\nname = \"t\"\nmeter = { committed = \"1 Gbit/s\", excess = \"1 Gbit/s\", peak = \"2 Gbit/s\" }",
        "3:44: `excess` means nothing to this algorithm (write `peak`, or the other algorithm)",
    ),
    (
        "[[tenant]]\nname = \"t\"\nmeter = { committed = \"1 Mbit/s\", peak = \"2 Mbit/s\", peak-burst = \"1 KiB\" }",
        "3:67: `peak-burst` in meter: found 1 KiB, expected at least 64 KiB: the largest frame a guest may send",
    ),
    (
        "[[tenant]]\nname = \"t\"\nmeter = { committed = \"0 bit/s\", peak = \"0 bit/s\" }",
        "3:41: `peak` in meter: found zero, expected at least 1 bit/s: a meter that lets nothing pass is of no use",
    ),
    (
        "[[tenant]]\nname = \"t\"\nmeter = { algorithm = \"rfc4115\", committed = \"1 Mbit/s\", committed-burst = \"2 KiB\", excess = \"0 bit/s\" }",
        "3:76: `committed-burst` in meter: found 2 KiB, expected at least 64 KiB: the largest frame a guest may send",
    ),
    (
        "[[device]]\nname = \"d\"\ncores = [7]\nvirtio-blk = { volume = \"root\", read-only = true }",
        "3:9: CPU 7 is not one of the data plane's: expected only CPUs of node.dataplane.cores = [1]",
    ),
    (
        "[[device]]\nname = \"d\"\nvirtio-blk = { volume = \"root\", read-only = true, serial = \"123456789012345678901\" }",
        "3:60: `serial` in device.virtio-blk: found the string \"123456789012345678901\", expected at most 20 printable \
         ASCII characters",
    ),
    (
        "[[device]]\nname = \"d\"\nvirtio-blk = { volume = \"root\", read-only = true, socket = \"run/softdpu/api.sock\" }",
        "3:60: the management API already listens on /srv/site/run/softdpu/api.sock (give each device a socket of its \
         own, or leave `socket` out)",
    ),
];

#[test]
fn every_mistake_has_its_own_message_at_its_own_place() {
    let mut wrong = Vec::new();
    for (addition, expected) in BROKEN {
        let text = format!("{addition}\n{}", SMALL.trim_start());
        let found = messages(&text);
        // A device that comes first takes the volume, the socket or the name from the site's own: only what the
        // addition itself says is compared.
        let lines = addition.lines().count();
        let own: Vec<&String> = found
            .iter()
            .filter(|message| {
                expected.starts_with(&message[..message.find(':').unwrap()])
                    || message[..message.find(':').unwrap()].parse::<usize>().unwrap() <= lines
            })
            .collect();
        if own != [expected] {
            wrong.push(format!("{addition}\nfound {found:#?}\nexpected {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn two_devices_that_disturb_each_other_are_refused() {
    let second = |more: &str| format!("{SMALL}\n[[device]]\nname = \"disk2\"\n{more}");
    assert_eq!(
        messages(&second("virtio-blk = { volume = \"root\" }")),
        [
            "12:25: volume `root` already has a writer, device `disk` (add `read-only = true` here, or `shared = true` to \
          the volume if its file system allows it)"
        ]
    );
    assert_eq!(messages(&second("virtio-blk = { volume = \"root\", read-only = true }")), Vec::<String>::new());
    assert_eq!(
        messages(&second("virtio-blk = { volume = \"root\", read-only = true, socket = \"run/softdpu/disk.sock\" }")),
        [
            "12:60: device `disk` already listens on /srv/site/run/softdpu/disk.sock (give each device a socket of its own, \
          or leave `socket` out)"
        ]
    );
    assert_eq!(
        messages(&format!(
            "{}\ndomain = \"disk\"\ntenant = \"other\"\n[[tenant]]\nname = \"other\"\n",
            second("virtio-blk = { volume = \"root\", read-only = true }")
        )),
        ["14:10: domain `disk` belongs to tenant `default` through device `disk`: found tenant `other`, expected one \
          tenant for all devices of a guest"]
    );
}

#[test]
fn a_socket_path_that_the_kernel_cannot_bind_is_refused() {
    let folder = "x".repeat(90);
    let found = messages(&format!("[node]\nrun-directory = \"/{folder}\"\n{SMALL}"));
    assert_eq!(found.len(), 0, "91 + /disk.sock is short enough: {found:?}");
    let folder = "x".repeat(97);
    let found = messages(&format!("[node]\nrun-directory = \"/{folder}\"\n{SMALL}"));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("too long for the kernel: found 108 bytes"), "{found:?}");
}

#[test]
fn an_nbd_uri_that_no_connection_could_be_tried_with_is_refused() {
    let of = |uri: String| messages(&format!("[[volume]]\nname = \"v\"\nnbd = {{ uri = \"{uri}\" }}"));
    let export = |len| of(format!("nbd://x/{}", "e".repeat(len)));
    assert_eq!(export(4096).len(), 0, "{:?}", export(4096));
    let found = export(4097);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("3:15: `uri` in volume.nbd: found the string"), "{found:?}");
    assert!(found[0].ends_with("(the export's name has 4097 bytes, and the NBD protocol allows 4096)"), "{found:?}");
    let found = of(format!("nbd+unix:///?socket=/{}", "s".repeat(107)));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].ends_with("(the socket's path has 108 bytes, and the kernel takes at most 107)"), "{found:?}");
    assert!(of("nbd://::1/x".into())[0].contains("in brackets"));
}

#[test]
fn a_key_that_is_an_inner_tables_is_said_to_be_so() {
    let found = messages("[[volume]]\nname = \"v\"\nsize = \"1 GiB\"\n");
    let help = "(it is a key of `volume.null`, `volume.memory` or `volume.file`)";
    assert!(found.iter().any(|message| message.starts_with("3:1: ") && message.ends_with(help)), "{found:#?}");
}

#[test]
fn what_a_mistake_makes_wrong_elsewhere_is_not_reported() {
    let device = "[[device]]\nname = \"d\"\ntenant = \"acme\"\nvirtio-blk = { volume = \"v\" }\n";
    let volume = "[[volume]]\nname = \"v\"\nnull = { size = \"1 GiB\" }\n";
    assert_eq!(
        messages(&format!("[[tenat]]\nname = \"acme\"\n{volume}{device}")),
        [
            "1:3: unknown key in the site file: found `tenat`, expected `node`, `tenant`, `volume`, `network`, `function` or \
             `device` (did you mean `tenant`?)"
        ]
    );
    assert_eq!(
        messages(&format!("[[tenant]]\nnmae = \"acme\"\n{volume}{device}")),
        [
            "1:1: `name` is missing in [[tenant]] (add `name = \"acme\"`)",
            "2:1: unknown key in [[tenant]]: found `nmae`, expected `name`, `weight`, `class`, `guarantee`, `limits` or `meter` (did \
             you mean `name`?)",
        ]
    );
}

#[test]
fn all_mistakes_are_reported_in_the_order_of_the_file() {
    let found = messages(
        "[node]\nfairnes = 1\n[[tenant]]\nname = \"u\"\nweight = 0\n[[volume]]\nname = \"v\"\nmemory = { size = \"1 B\" }\n\
         [[device]]\nname = \"d\"\ntenant = \"t\"\nvirtio-blk = { volume = \"w\", queues = 0 }\n\
         [[device]]\nvirtio-blk = { volume = \"v\" }\n",
    );
    let places: Vec<&str> = found.iter().map(|message| message.split_once(": ").unwrap().0).collect();
    assert_eq!(places, ["2:1", "5:10", "8:19", "11:10", "12:25", "12:39", "13:1"], "{found:#?}");
}

#[test]
fn every_syntax_error_is_reported() {
    let found = messages("[node]\nlog = \nfairness = fcfs\n");
    assert!(found.len() >= 2 && found.iter().all(|message| message.contains("not valid TOML")), "{found:#?}");
    let found = messages("[node]\nfairness = \"fcfs\"\nfairness = \"fcfs\"\n");
    assert_eq!(found, ["3:1: not valid TOML: duplicate key (the first is in line 2)"]);
}

#[test]
fn a_report_reads_like_a_compilers() {
    let report = check("[[tenant]]\n\tname = \"ä\"  # größer\n").report;
    assert_eq!(
        report.to_string(),
        "error: `name` in [[tenant]]: found the string \"ä\", expected 1 to 63 letters, digits, `.`, `_` or `-`, \
         beginning with a letter or digit\n \
         --> site.toml:2:9\n  \
         |\n\
         2 |     name = \"ä\"  # größer\n  \
         |            ^^^\n\
         \n\
         site.toml: 1 error\n"
    );
}

#[test]
fn a_file_that_is_not_there_has_no_line_and_no_column() {
    let report = load(Path::new("/nowhere/nope.toml"), Severity::Warning).report;
    assert_eq!(
        report.to_string(),
        "error: the site file cannot be read: No such file or directory (os error 2)\n\
         --> /nowhere/nope.toml\n\
         \n\
         /nowhere/nope.toml: 1 error\n"
    );
}

#[test]
fn a_file_that_is_no_site_file_is_reported_as_such() {
    let folder = tempfile::tempdir().unwrap();
    let message = |path: &Path| load(path, Severity::Warning).report.diagnostics[0].message.clone();
    assert!(message(&folder.path().join("none.toml")).contains("No such file"));
    assert!(message(folder.path()).contains("is a folder"));
    assert!(message(Path::new("/dev/zero")).contains("not a file"));
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert!(message(&pipe).contains("not a file"));
    let binary = folder.path().join("binary.toml");
    std::fs::write(&binary, [b'#', 0xff]).unwrap();
    assert!(message(&binary).contains("not UTF-8 text (byte 1 is wrong)"));
}

#[test]
fn the_machine_is_a_warning_when_checked_and_an_error_when_run() {
    let text = "[[volume]]\nname = \"v\"\nfile = { path = \"/\" }\n";
    for (severity, runs) in [(Severity::Warning, true), (Severity::Error, false)] {
        let loaded = parse(text, "site.toml", Path::new(BASE), Some(severity));
        assert_eq!(loaded.site.is_some(), runs);
        assert!(loaded.report.to_string().contains("/ is not a regular file"), "{}", loaded.report);
    }
}
