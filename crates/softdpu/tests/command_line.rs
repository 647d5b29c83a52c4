//! The `softdpu` program as a user types it.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};
use std::thread;

use softdpu_api::status::NodeStatus;
use softdpu_api::{Change, Empty, Query, QueuePlacement, Request, Response, decode_request, encode_response};
use softdpu_site::{Backend, Discard, Reconnect};
use softdpu_testing::ONE_DISK;

fn softdpu(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_softdpu"))
        .current_dir(folder)
        .env_remove("SOFTDPU_SOCKET")
        .args(arguments)
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn site(text: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("site.toml"), text).unwrap();
    folder
}

#[test]
fn check_says_what_would_run() {
    let folder = site(ONE_DISK);
    let output = softdpu(folder.path(), &["check", "site.toml"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("device      disk: virtio-blk on root, 1 queue(s) of 256"), "{}", stdout(&output));
}

#[test]
fn an_error_whose_reader_has_gone_is_still_a_failure_and_no_panic() {
    let folder = site(&ONE_DISK.replace("memory", "memroy"));
    for arguments in [&["check", "site.toml"][..], &["status", "--socket", "none.sock"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_softdpu"));
        let status = command.current_dir(folder.path()).args(arguments).stderr(writer).status().unwrap();
        assert_eq!(status.code(), Some(1), "{arguments:?}");
    }
}

#[test]
fn a_timeout_without_a_unit_is_shown_with_one() {
    let output = softdpu(Path::new("/"), &["status", "--timeout", "5"]);
    let expected = "invalid value '5' for '--timeout <TIME>': the unit is missing: write \"5 s\", for instance";
    assert!(stderr(&output).contains(expected), "{}", stderr(&output));
}

#[test]
fn check_fails_with_the_place_as_text_and_as_json() {
    let folder = site(&ONE_DISK.replace("memory", "memroy"));
    let output = softdpu(folder.path(), &["check", "site.toml"]);
    assert_eq!(output.status.code(), Some(1));
    let shown = stderr(&output);
    assert!(shown.contains("\nerror: unknown key in [[volume]]: found `memroy`"), "{shown}");
    assert!(shown.contains("\n --> site.toml:4:1\n"), "{shown}");

    let output = softdpu(folder.path(), &["check", "--json", "site.toml"]);
    assert_eq!(output.status.code(), Some(1));
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["ok"], false);
    let lines: Vec<u64> =
        json["diagnostics"].as_array().unwrap().iter().map(|found| found["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, [2, 4], "no backend, and the key that was meant to be one");
}

#[test]
fn device_args_come_from_a_site_file() {
    let folder = site(ONE_DISK);
    let socket = folder.path().canonicalize().unwrap().join("run/softdpu/disk.sock");
    let output = softdpu(folder.path(), &["device", "args", "disk", "--site", "site.toml", "--format", "env"]);
    assert!(stdout(&output).contains(&format!("SOFTDPU_DEVICE_SOCKET={}\n", socket.display())), "{}", stdout(&output));
    let output = softdpu(folder.path(), &["device", "args", "disc", "--site", "site.toml"]);
    assert_eq!(stderr(&output), "softdpu: site.toml has no device `disc`: did you mean `disk`?\n");
}

#[test]
fn a_daemon_that_is_not_there_is_one_clear_message() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["status"][..], &["volume", "list"], &["shutdown"], &["queue", "move", "a", "0", "1"]] {
        let output = softdpu(folder.path(), &[arguments, &["--socket", "none.sock"]].concat());
        assert_eq!(output.status.code(), Some(1));
        let message = stderr(&output);
        assert!(message.starts_with("softdpu: nothing listens on none.sock: is softdpu running?"), "{message}");
        assert_eq!(message.lines().count(), 1);
    }
}

/// Runs `arguments` against a daemon that gives `result`; what it was asked, and what was printed.
fn asked(arguments: &[&str], result: serde_json::Value) -> (Request, Output) {
    let folder = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(folder.path().join("api.sock")).unwrap();
    let daemon = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
        let (id, request) = decode_request(line.trim_end().as_bytes(), Path::new("/run/softdpu")).unwrap();
        let response = Response { id: Some(id), outcome: Ok(result), more: false };
        stream.write_all(encode_response(&response).as_bytes()).unwrap();
        request
    });
    let output = softdpu(folder.path(), &[arguments, &["--socket", "api.sock"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    (daemon.join().unwrap(), output)
}

#[test]
fn commands_become_requests() {
    let empty = serde_json::json!(Empty {});
    let (request, _) = asked(&["volume", "create", "v", "--file", "/x/v.img", "--size", "1 GiB"], empty.clone());
    let Request::Change(Change::VolumeCreate(volume)) = request else { panic!("{request:?}") };
    let Backend::File(file) = &volume.backend else { panic!("{volume:?}") };
    assert!(file.create && !file.direct && file.path == Path::new("/x/v.img"));

    let file =
        ["volume", "create", "v", "--file", "/x/v.img", "--size", "1 GiB", "--discard", "ignore", "--depth", "8"];
    let (request, _) = asked(&file, empty.clone());
    let Request::Change(Change::VolumeCreate(volume)) = request else { panic!("{request:?}") };
    assert!(matches!(&volume.backend, Backend::File(file) if file.discard == Discard::Ignore), "{volume:?}");
    assert_eq!(volume.depth, Some(8));
    let nbd = ["volume", "create", "v", "--nbd", "nbd://h/e", "--nbd-timeout", "5 s", "--nbd-reconnect", "never"];
    let (request, _) = asked(&nbd, empty.clone());
    let Request::Change(Change::VolumeCreate(volume)) = request else { panic!("{request:?}") };
    let Backend::Nbd(nbd) = &volume.backend else { panic!("{volume:?}") };
    assert_eq!((nbd.timeout.0.as_secs(), nbd.reconnect), (5, Reconnect::Never));

    let (request, _) = asked(&["queue", "move", "disk", "1", "3"], empty.clone());
    let placement = QueuePlacement { device: "disk".into(), queue: 1, core: 3 };
    assert_eq!(request, Change::QueueMove(placement).into());
    let (request, _) = asked(&["volume", "grow", "v", "2GiB"], empty);
    assert!(matches!(request, Request::Change(Change::VolumeGrow { size, .. }) if size.0 == 2 << 30));

    let (request, _) = asked(&["device", "add", "d", "--volume", "v"], serde_json::json!({ "devices": [] }));
    let Request::Change(Change::DeviceAdd(device)) = request else { panic!("{request:?}") };
    assert_eq!(device.access().unwrap().socket, Path::new("/run/softdpu/d.sock"), "the daemon's choice");

    let ring = ["device", "add", "d", "--volume", "v", "--packed", "false", "--seg-max", "62"];
    let (request, _) = asked(&ring, serde_json::json!({ "devices": [] }));
    let Request::Change(Change::DeviceAdd(device)) = request else { panic!("{request:?}") };
    let disk = device.disk().unwrap();
    assert_eq!((disk.packed, disk.seg_max), (false, 62));

    let (request, output) = asked(&["status"], serde_json::json!(NodeStatus::default()));
    assert_eq!(request, Query::Status.into());
    assert!(stdout(&output).starts_with("PROBLEMS\n  ! the data plane is starting\n"), "{}", stdout(&output));
}

#[test]
fn a_warning_is_told_beside_the_result() {
    let (_, output) = asked(&["volume", "delete", "v"], serde_json::json!({ "warning": "it cannot be saved" }));
    assert_eq!(stderr(&output), "softdpu: warning: it cannot be saved\n");
}

#[test]
fn who_cannot_be_printed_to_is_no_crash() {
    let folder = site(ONE_DISK);
    let check = |out: std::process::Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softdpu"));
        command.current_dir(folder.path()).args(["check", "site.toml"]).stdout(out).output().unwrap()
    };
    let full = check(std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap().into());
    assert_eq!(
        (full.status.code(), stderr(&full).starts_with("softdpu: standard output: ")),
        (Some(1), true),
        "{full:?}"
    );
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let gone = check(writer.into());
    assert!(gone.status.success() && gone.stderr.is_empty(), "{gone:?}");
}

#[test]
fn what_would_be_ignored_is_refused() {
    let folder = site(ONE_DISK);
    let output = softdpu(folder.path(), &["run", "site.toml", "--socket", "elsewhere.sock"]);
    assert!(!output.status.success() && stderr(&output).contains("`api.socket` in [node]"), "{}", stderr(&output));
    let output = softdpu(folder.path(), &["trace", "packet", "--count", "0"]);
    assert!(stderr(&output).contains("--count"), "{}", stderr(&output));
}

#[test]
fn the_twin_lists_what_it_can_do() {
    let folder = tempfile::tempdir().unwrap();
    let output = softdpu(folder.path(), &["twin", "list"]);
    assert!(output.status.success(), "{}", stderr(&output));
    for name in ["mtda-fig4", "mtda-fig14", "mtda-starvation", "weighted", "mtda-printed", "broken-no-lanes"] {
        assert!(stdout(&output).contains(name), "{name}: {}", stdout(&output));
    }
}

#[test]
fn a_figure_of_the_twin_is_a_table_a_plot_and_values() {
    let folder = tempfile::tempdir().unwrap();
    let figure = ["twin", "mtda-fig12", "--span", "1", "--plot", "fig12.svg", "--csv", "fig12.csv"];
    let output = softdpu(folder.path(), &figure);
    assert!(output.status.success(), "{}", stderr(&output));
    for part in ["Fig. 12", "ORDER", "nearly line rate", "assumed:"] {
        assert!(stdout(&output).contains(part), "{part}: {}", stdout(&output));
    }
    let written = |name: &str| std::fs::read_to_string(folder.path().join(name)).unwrap();
    assert!(written("fig12.svg").contains("</svg>"));
    assert!(written("fig12.csv").lines().count() > 10);
    let again = softdpu(folder.path(), &["twin", "mtda-fig12", "--span", "1"]);
    assert_eq!(stdout(&output), stdout(&again), "the same seed, the same figures");
    let json = softdpu(folder.path(), &["twin", "mtda-fig12", "--span", "1", "--seed", "2", "--json"]);
    let line: serde_json::Value = serde_json::from_str(stdout(&json).lines().next().unwrap()).unwrap();
    assert!(line["value"].is_number(), "{line}");
    // What cannot be drawn is said before anything is simulated.
    let refused = softdpu(folder.path(), &["twin", "mtda-fig12", "--plot", "fig12.gif"]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(stdout(&refused).is_empty() && stderr(&refused).contains("fig12.gif"), "{}", stderr(&refused));
}

#[test]
fn exploring_says_with_which_seed_a_promise_was_broken_and_that_seed_breaks_it_again() {
    let folder = tempfile::tempdir().unwrap();
    let kept = softdpu(folder.path(), &["twin", "explore", "--policy", "fcfs", "--seeds", "2"]);
    assert!(kept.status.success(), "{}", stderr(&kept));
    assert!(stdout(&kept).contains("fcfs: 2 seeds") && stdout(&kept).contains("every promise kept"));

    let broken = softdpu(folder.path(), &["twin", "explore", "--policy", "broken-invents", "--seeds", "3"]);
    assert_eq!(broken.status.code(), Some(1));
    let said = stderr(&broken);
    let (_, again) = said.split_once("again: softdpu ").unwrap_or_else(|| panic!("no way to see it again: {said}"));
    let again: Vec<&str> = again.split_whitespace().collect();
    assert_eq!(again[..4], ["twin", "explore", "--policy", "broken-invents"], "{said}");
    let seen = softdpu(folder.path(), &again);
    assert_eq!(seen.status.code(), Some(1));
    // What broke, when and how, is the same; it is printed with what the seed makes.
    let printed = |output: &Output| {
        let text = stdout(output);
        text.lines().find(|line| line.contains("a policy grants what there is")).map(str::to_owned)
    };
    assert!(printed(&broken).is_some_and(|line| line.contains(" ms: ")), "{}", stdout(&broken));
    assert_eq!(printed(&broken), printed(&seen));
    assert!(stdout(&seen).contains("cores; tenants"), "{}", stdout(&seen));

    let unknown = softdpu(folder.path(), &["twin", "explore", "--policy", "broken"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(stderr(&unknown).contains("no policy is called \"broken\""), "{}", stderr(&unknown));
}
