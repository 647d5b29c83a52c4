//! Frames are seen as they pass ports, and brought in from capture files. Two containers stand for guests: network
//! namespaces with a TAP each. What is captured is read by Wireshark's own programs, and what is brought in was written
//! by them.

#![allow(missing_docs)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use softdpu_tests::netns::{self, possible};
use softdpu_tests::{
    Capture, Containers, Context, Daemon, Failure, Guest, GuestSpec, Lab, Process, Root, Site, skip, softdpu,
    wait_until,
};

const WAIT: Duration = Duration::from_secs(60);

/// Makes Wireshark look at checksums, which it leaves alone by itself.
const CHECKSUMS: [&str; 6] =
    ["-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"];

/// Runs a scenario with containers `a` and `b` in one network: 10.0.0.2 and 10.0.0.3, each on a port of its name. The
/// daemon is stopped in good order after it.
fn run(test: &str, scenario: impl FnOnce(&mut Containers) -> Result<(), Failure>) {
    if !Capture::is_possible() || netns::run("text2pcap", &["--version"]).is_err() {
        return skip(test, "there is no tshark here");
    }
    if !possible(test) {
        return;
    }
    let site = Site::on(&[0])
        .network("acme", 5001, &["10.0.0.0/16"])
        .device("a", &format!("tap = {{ {}, interface = 'sda' }}", place(2)))
        .device("b", &format!("tap = {{ {}, interface = 'sdb' }}", place(3)))
        .device("guest", &format!("virtio-net = {{ {}, socket = 'guest.sock' }}", place(4)));
    Lab::run(test, |lab| {
        let mut containers = Containers::start(lab, test, &site.to_string(), ["10.0.0.2/16", "10.0.0.3/16"])?;
        wait_until("a to reach b", WAIT, || Ok(ping(&containers, 1).ok()))?;
        scenario(&mut containers)?;
        containers.daemon.stop()
    });
}

/// Keys of an interface in the network acme, at 10.0.0.LAST.
fn place(last: u8) -> String {
    format!("network = 'acme', address = '10.0.0.{last}', mac = '02:5d:00:00:00:0{last}'")
}

fn ping(containers: &Containers, count: u32) -> Result<String, Failure> {
    containers.a.exec(&["ping", "-c", &count.to_string(), "-i", "0.05", "-W", "10", "10.0.0.3"])
}

/// Ends a trace as Ctrl-C does; what it printed.
fn interrupt(mut trace: Process) -> Result<Vec<String>, Failure> {
    trace.signal(Signal::INT);
    let status = trace.wait(WAIT)?;
    if status.success() { Ok(trace.lines()) } else { Err(Failure::new(format!("{status}{}", trace.tail()))) }
}

/// The same, once it has captured so many frames: a frame that came in is seen a moment later.
fn interrupt_after(daemon: &Daemon, count: u64, trace: Process) -> Result<Vec<String>, Failure> {
    wait_until(&format!("{count} frames to be captured"), WAIT, || {
        // The last: one that has just ended may still be listed before it.
        let status = daemon.status()?;
        let captured = status["traces"].as_array().and_then(|traces| traces.last()?["captured"].as_u64());
        Ok((captured >= Some(count)).then_some(()))
    })?;
    interrupt(trace)
}

/// The lines that are frames.
fn frames(lines: &[String]) -> Vec<&str> {
    let is_frame = |line: &&String| line.starts_with(|first: char| first.is_ascii_digit()) && line.contains(" > ");
    lines.iter().filter(is_frame).map(|line| line.split_once(' ').map_or("", |(_time, rest)| rest)).collect()
}

fn tshark(arguments: &[&str]) -> Result<Vec<String>, Failure> {
    let output = Command::new("tshark").args(arguments).output().context("tshark")?;
    let (text, words) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if output.status.success() {
        Ok(text.lines().map(str::to_owned).collect())
    } else {
        Err(Failure::new(format!("tshark {}: {text}{words}", arguments.join(" "))))
    }
}

/// A UDP datagram from one container's address to another's, its checksums right.
fn datagram(source_mac: u8, source: [u8; 4], destination: [u8; 4], data: &[u8]) -> Vec<u8> {
    let sum = |words: &[u8]| {
        let words = words.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0)));
        let sum: u32 = words.sum();
        !((sum & 0xffff) + (sum >> 16)) as u16
    };
    let len = (8 + data.len()) as u16;
    let udp = [&[0x30, 0x39, 0, 9][..], &len.to_be_bytes(), &[0, 0], data].concat();
    let pseudo = [&source[..], &destination, &[0, 17], &len.to_be_bytes(), &udp].concat();
    let mut ip =
        [&[0x45, 0][..], &(20 + len).to_be_bytes(), &[0, 0, 0x40, 0, 64, 17, 0, 0], &source, &destination].concat();
    let checksum = sum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    let mut frame = [&[2, 0x5d, 0, 0, 0, 3, 2, 0x5d, 0, 0, 0, source_mac, 8, 0][..], &ip, &udp].concat();
    frame[40..42].copy_from_slice(&sum(&pseudo).to_be_bytes());
    frame
}

const A: [u8; 4] = [10, 0, 0, 2];
const B: [u8; 4] = [10, 0, 0, 3];
const GUEST: [u8; 4] = [10, 0, 0, 4];

#[test]
fn frames_are_seen_at_both_ports_and_a_filter_chooses_among_them() {
    run("trace-lines", |containers| {
        let mut trace = containers.daemon.trace("trace", &["--filter", "icmp", "--count", "8"])?;
        containers.replay(&[datagram(2, A, [224, 0, 0, 1], b"not this one")], &[])?;
        ping(containers, 2)?;
        assert!(trace.wait(WAIT)?.success());
        let lines = trace.lines();
        let expected = [
            "a in     98  10.0.0.2 > 10.0.0.3: ICMP echo request",
            "b out    98  10.0.0.2 > 10.0.0.3: ICMP echo request",
            "b in     98  10.0.0.3 > 10.0.0.2: ICMP echo reply",
            "a out    98  10.0.0.3 > 10.0.0.2: ICMP echo reply",
        ];
        let found = frames(&lines);
        assert_eq!(found, [expected, expected].concat(), "{lines:#?}");
        assert!(lines.iter().any(|line| line == "8 frames captured"), "{lines:#?}");
        assert!(lines.iter().any(|line| line == "0 frames lost for want of room"), "{lines:#?}");
        // One port, one direction, some other frame.
        let trace = containers
            .daemon
            .trace("trace", &["--port", "b", "--direction", "out", "--filter", "udp port 9", "--ethernet"])?;
        ping(containers, 1)?;
        let said = containers.replay(&[datagram(2, A, B, b"this one")], &[])?;
        assert_eq!(said, "1 frames came in by a\n");
        let lines = interrupt_after(&containers.daemon, 1, trace)?;
        assert_eq!(
            frames(&lines),
            ["b out    50  02:5d:00:00:00:02 > 02:5d:00:00:00:03, 10.0.0.2.12345 > 10.0.0.3.9: UDP, data 8"],
            "{lines:#?}"
        );
        // By a guest's interface, whether its driver is there or not; as the guest's own, so that a forgery goes no
        // further.
        let trace =
            containers.daemon.trace("trace", &["--port", "b", "--direction", "out", "--filter", "udp port 9"])?;
        let guests = [datagram(4, GUEST, B, b"a guest's"), datagram(4, A, B, b"a forgery")];
        assert_eq!(containers.replay_by("guest", &guests, &[])?, "2 frames came in by guest\n");
        let lines = interrupt_after(&containers.daemon, 1, trace)?;
        assert_eq!(frames(&lines), ["b out    51  10.0.0.4.12345 > 10.0.0.3.9: UDP, data 9"], "{lines:#?}");
        wait_until("both frames to be counted", WAIT, || {
            let port = containers.daemon.port("guest")?;
            Ok(((port.count("frames_in"), port.dropped_in("spoofed-address")) == (2, 1)).then_some(()))
        })
        .map_err(|error| Failure::new(format!("{error}: {:?}", containers.daemon.port("guest"))))?;
        Ok(())
    });
}

#[test]
fn the_status_lists_the_traces_that_are_under_way() {
    run("trace-status", |containers| {
        let listed = || Ok::<_, Failure>(containers.daemon.status()?["traces"].clone());
        assert_eq!(listed()?, serde_json::json!([]));
        let first = containers.daemon.trace("trace", &["--port", "b", "--filter", "udp"])?;
        let second = containers.daemon.trace("trace", &[])?;
        containers.replay(&[datagram(2, A, B, b"one"), datagram(2, A, B, b"two")], &[])?;
        let traces = wait_until("both frames to be counted", WAIT, || {
            let traces = listed()?;
            Ok((traces[0]["captured"] == 2 && traces[1]["captured"].as_u64() >= Some(4)).then_some(traces))
        })?;
        let of = |at: usize| ["id", "ports", "filter", "lost"].map(|key| traces[at][key].clone());
        assert_eq!(serde_json::json!(of(0)), serde_json::json!([1, ["b"], "udp", 0]), "{traces}");
        assert_eq!(serde_json::json!(of(1)), serde_json::json!([2, [], null, 0]), "{traces}");
        let table = containers.daemon.command(&["status"])?;
        assert!(table.contains("    1  b      udp"), "{table}");
        interrupt(first)?;
        let left = wait_until("the first to be gone", WAIT, || {
            Ok(Some(listed()?).filter(|traces| traces.as_array().is_some_and(|traces| traces.len() == 1)))
        })?;
        assert_eq!(left[0]["id"], 2);
        interrupt(second)?;
        wait_until("the second to be gone", WAIT, || Ok((listed()? == serde_json::json!([])).then_some(())))?;
        Ok(())
    });
}

#[test]
fn dropped_frames_come_with_the_reason() {
    run("trace-drops", |containers| {
        let trace = containers.daemon.trace("trace", &["--drops", "--filter", "udp"])?;
        let said = containers.replay(
            &[
                datagram(2, A, B, b"nothing wrong with this"),
                datagram(2, [10, 0, 0, 66], B, b"spoofed"),
                datagram(9, A, B, b"spoofed"),
                datagram(2, A, [224, 0, 0, 1], b"to a group"),
                datagram(2, A, [172, 16, 0, 1], b"nowhere"),
            ],
            &["--rate", "1000"],
        )?;
        assert_eq!(said, "5 frames came in by a\n");
        let lines = interrupt_after(&containers.daemon, 4, trace)?;
        assert_eq!(
            frames(&lines),
            [
                "a in     49  10.0.0.66.12345 > 10.0.0.3.9: UDP, data 7 [dropped: spoofed-address]",
                "a in     49  10.0.0.2.12345 > 10.0.0.3.9: UDP, data 7 [dropped: spoofed-mac]",
                "a in     52  10.0.0.2.12345 > 224.0.0.1.9: UDP, data 10 [dropped: multicast]",
                "a in     49  10.0.0.2.12345 > 172.16.0.1.9: UDP, data 7 [dropped: no-route]",
            ],
            "{lines:#?}"
        );
        Ok(())
    });
}

/// The steps of a frame that was followed: tier, table, outcome.
fn steps(frame: &serde_json::Value) -> Vec<String> {
    let text = |step: &serde_json::Value, key: &str| step[key].as_str().unwrap_or("?").to_owned();
    let step = |step| format!("{} {} {}", text(step, "tier"), text(step, "table"), text(step, "outcome"));
    frame["steps"].as_array().map(|steps| steps.iter().map(step).collect()).unwrap_or_default()
}

#[test]
fn a_frame_is_followed_from_tier_to_tier_and_what_is_explained_is_what_happens() {
    run("trace-tiers", |containers| {
        let explain = |to: &str, more: &[&str]| {
            let from = ["trace", "explain", "--from", "a", "--to", to];
            containers.daemon.command(&[&from[..], more].concat())
        };
        let udp = ["--protocol", "udp", "--port", "9", "--source-port", "12345", "--json"];
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).context("JSON of softdpu");
        let first = parse(&explain("10.0.0.3", &udp)?)?;
        let times: Vec<Option<u64>> =
            first["steps"].as_array().into_iter().flatten().map(|step| step["ns"].as_u64()).collect();
        assert!(times.is_sorted() && times.first() > Some(&Some(0)), "{first}");
        assert_eq!((&first["outcome"], &first["to"], &first["flow"]), (&"leaves".into(), &"b".into(), &false.into()));
        // It was only asked: the second answer is the first, and so is what happens.
        let timeless = |mut answer: serde_json::Value| {
            for step in answer["steps"].as_array_mut().into_iter().flatten() {
                step["ns"].take();
            }
            answer
        };
        assert_eq!(timeless(parse(&explain("10.0.0.3", &udp)?)?), timeless(first.clone()));
        let mut trace =
            containers.daemon.trace("trace", &["--tiers", "--json", "--filter", "udp port 9", "--count", "3"])?;
        for frame in [datagram(2, A, B, b"new"), datagram(2, A, B, b"old"), datagram(2, [10, 0, 0, 66], B, b"spoofed")]
        {
            containers.replay(&[frame], &[])?;
        }
        assert!(trace.wait(WAIT)?.success());
        let lines = trace.lines();
        let frames = lines.iter().filter(|line| line.starts_with('{')).map(|line| parse(line));
        let frames = frames.collect::<Result<Vec<_>, _>>()?;
        let [new, old, spoofed] = &frames[..] else { panic!("{lines:#?}") };
        assert_eq!(
            steps(new),
            [
                "switch-before frame pass",
                "flow flows miss",
                "switch-before ports hit",
                "switch-before sources pass",
                "switch-before addresses hit",
                "switch-after hops hit",
                "flow flows kept",
                "switch-after packet done",
            ]
        );
        assert_eq!(steps(new), steps(&first), "{lines:#?}");
        let through =
            ["switch-before frame pass", "flow flows hit", "switch-after hops hit", "switch-after packet done"];
        assert_eq!(steps(old), through);
        assert_eq!(spoofed["dropped"], "spoofed-address", "{lines:#?}");
        assert_eq!(steps(spoofed).last().map(String::as_str), Some("switch-before sources drop"));
        let identifiers: std::collections::BTreeSet<_> =
            frames.iter().filter_map(|one| one["trace"].as_str()).collect();
        assert_eq!(identifiers.len(), 3, "{lines:#?}");
        let again = parse(&explain("10.0.0.3", &udp)?)?;
        assert_eq!((&again["flow"], steps(&again)), (&true.into(), through.map(str::to_owned).to_vec()));
        // What the network itself answers, and words for people.
        let text = explain("172.16.0.1", &[])?;
        let second = text.lines().nth(1).and_then(|line| line.split_once(" ns  "));
        assert!(
            second.is_some_and(|(ns, step)| ns.trim().parse::<u64>().is_ok() && step.starts_with("switch-before")),
            "{text}"
        );
        assert!(text.ends_with("dropped: no-route; the core has no flow of it\n") && text.contains("to a"), "{text}");
        let text = explain("10.0.0.1", &[])?;
        assert!(text.contains("echo reply") && text.contains("dealt with by the network"), "{text}");
        let error = containers.daemon.command(&["trace", "explain", "--from", "10.0.0.66", "--to", "10.0.0.3"]);
        let error = error.err().map(|error| format!("{error:?}")).unwrap_or_default();
        assert!(error.contains("no device here has the address 10.0.0.66"), "{error}");
        Ok(())
    });
}

#[test]
fn tshark_reads_what_was_captured() {
    run("trace-file", |containers| {
        let file = containers.path("all.pcapng");
        let trace = containers.daemon.trace("trace", &["--write", &file])?;
        containers.replay(&[datagram(2, A, B, b"odd"), datagram(2, [10, 0, 0, 66], B, b"spoofed")], &[])?;
        ping(containers, 2)?;
        // Three of the datagrams, eight of the echoes.
        let lines = interrupt_after(&containers.daemon, 11, trace)?;
        let fields = ["-T", "fields", "-e", "frame.interface_name", "-e", "frame.packet_flags_direction"];
        let fields = [&fields[..], &["-e", "ip.src", "-e", "frame.comment"]].concat();
        let read = |filter: &str| tshark(&[&["-r", &file, "-Y", filter], &CHECKSUMS[..], &fields].concat());
        let [a, b] = ["10.0.0.2", "10.0.0.3"];
        // Whether both come in before the first leaves depends on whether they are one burst.
        let mut datagrams = read("udp && !icmp")?;
        datagrams.sort();
        assert_eq!(
            datagrams,
            [
                "a\t0x00000001\t10.0.0.2\t",
                "a\t0x00000001\t10.0.0.66\tdropped: spoofed-address",
                "b\t0x00000002\t10.0.0.2\t",
            ]
        );
        let echo = [
            format!("a\t0x00000001\t{a}\t"),
            format!("b\t0x00000002\t{a}\t"),
            format!("b\t0x00000001\t{b}\t"),
            format!("a\t0x00000002\t{b}\t"),
        ];
        assert_eq!(read("icmp && icmp.type != 3")?, [echo.clone(), echo].concat());
        let wrong = "_ws.malformed || ip.checksum.status == 0 || udp.checksum.status == 0 || icmp.checksum.status == 0";
        assert_eq!(read(wrong)?, [""; 0]);
        assert_ne!(read("ip.checksum.status == 1 && udp.checksum.status == 1")?, [""; 0]);
        let all = tshark(&["-r", &file])?.len();
        assert!(lines.contains(&format!("{all} frames captured")), "{lines:#?}");
        // Cut off, and to the standard output, as for a Wireshark that reads from a pipe.
        let (binary, socket) = (softdpu()?, containers.path("run/softdpu/api.sock"));
        let piped = containers.path("piped.txt");
        let script = format!(
            "{} --socket {socket} trace packet --snaplen 64 --count 2 --filter 'udp' --write - | tshark -r - -T fields \
             -e frame.len -e frame.cap_len >{piped}",
            binary.display()
        );
        let mut pipe = Process::start("pipe", &containers.folder, Path::new("/bin/sh"), ["-c", &script])?;
        pipe.wait_for_line("that it traces", 0, WAIT, |line| line.contains("Ctrl-C ends").then_some(()))?;
        containers.replay(&[datagram(2, A, B, &[7; 100])], &[])?;
        assert!(pipe.wait(WAIT)?.success(), "{}", pipe.tail());
        let found = std::fs::read_to_string(&piped).context("what tshark printed")?;
        assert_eq!(found, "142\t64\n142\t64\n");
        Ok(())
    });
}

#[test]
fn a_guests_interface_is_seen_with_what_it_asks_and_what_it_is_answered() {
    /// A step takes seconds, without KVM and on a busy machine some tens of them.
    const DEADLINE: Duration = Duration::from_secs(180);
    if !Capture::is_possible() {
        return skip("trace-guest", "there is no tshark here");
    }
    Lab::run("trace-guest", |lab| {
        let vm1 = format!("virtio-net = {{ {} }}", place(2));
        let site = Site::on(&[0]).network("acme", 5001, &["10.0.0.0/16"]).device("vm1", &vm1);
        let daemon = Daemon::start(lab.path(), &site.to_string())?;
        // From before the guest is there.
        let file = lab.path().join("vm1.pcapng").display().to_string();
        let whole = daemon.trace("whole", &["--port", "vm1", "--write", &file])?;
        let mut lines = daemon.trace("lines", &["--port", "vm1", "--filter", "icmp", "--count", "6"])?;
        let spec = GuestSpec::new("vm1").root(Root::NetworkRam).device(daemon.guest_device("vm1")?).job("network");
        let mut guest = Guest::boot(lab.path(), spec.parameter("NAME", "vm1").parameter("MIB", 1))?;
        guest.step("ready", DEADLINE)?;
        guest.ask("dhcp", DEADLINE)?;
        guest.ask("ping 10.0.0.1", DEADLINE)?;
        assert!(lines.wait(WAIT)?.success(), "{}", lines.tail());
        let pair = [
            "vm1 in     98  10.0.0.2 > 10.0.0.1: ICMP echo request",
            "vm1 out    98  10.0.0.1 > 10.0.0.2: ICMP echo reply",
        ];
        let printed = lines.lines();
        assert_eq!(frames(&printed), [pair, pair, pair].concat(), "{printed:#?}");
        guest.type_line("stop")?;
        guest.finish(DEADLINE)?;
        let said = interrupt(whole)?;
        assert!(said.iter().any(|line| line == "0 frames lost for want of room"), "{said:#?}");
        let read = |filter: &str, field: &str| {
            tshark(&[&["-r", &file, "-Y", filter, "-T", "fields", "-e", field], &CHECKSUMS[..]].concat())
        };
        let mut kinds = read("dhcp.option.dhcp", "dhcp.option.dhcp")?;
        kinds.dedup();
        assert_eq!(kinds, ["1", "2", "3", "5"], "discover, offer, request, acknowledgement");
        assert_eq!(read("icmp", "ip.src")?, ["10.0.0.2", "10.0.0.1"].repeat(3));
        assert_eq!(
            read("_ws.malformed || ip.checksum.status == 0 || icmp.checksum.status == 0", "frame.number")?,
            [""; 0]
        );
        daemon.stop()
    });
}

#[test]
fn a_trace_goes_on_after_the_data_plane_was_killed() {
    run("trace-kill", |containers| {
        let file = containers.path("both.pcapng");
        let mut trace =
            containers.daemon.trace("trace", &["--filter", "udp", "--port", "b", "--write", &file, "--print"])?;
        containers.replay(&[datagram(2, A, B, b"before")], &[])?;
        let (_, next) = trace.wait_for_line("the first", 0, WAIT, |line| line.contains("data 6").then_some(()))?;
        containers.daemon.kill_data_plane()?;
        // Not before it sees frames again does it say so.
        let again = |line: &str| line.contains("the trace goes on").then_some(());
        let (_, next) = trace.wait_for_line("that it goes on", next, WAIT, again)?;
        containers.replay(&[datagram(2, A, B, b"afterwards")], &[])?;
        trace.wait_for_line("the second", next, WAIT, |line| line.contains("data 10").then_some(()))?;
        let lines = interrupt(trace)?;
        assert!(lines.iter().any(|line| line == "2 frames captured"), "{lines:#?}");
        let lengths = tshark(&["-r", &file, "-T", "fields", "-e", "udp.length"])?;
        assert_eq!(lengths, ["14", "18"]);
        Ok(())
    });
}

#[test]
fn what_cannot_be_done_is_refused_with_the_reason() {
    run("trace-mistakes", |containers| {
        let error = |arguments: &[&str]| match containers.daemon.command(arguments) {
            Ok(said) => Err(Failure::new(format!("{arguments:?} worked: {said}"))),
            Err(error) => Ok(error.to_string()),
        };
        let text = error(&["trace", "packet", "--port", "bb"])?;
        assert!(text.contains("there is no port called \"bb\" (did you mean `b`?)"), "{text}");
        let text = error(&["trace", "packet", "--filter", "icmp adn arp"])?;
        assert!(
            text.contains("column 6: found \"adn\", expected and, or, or the end\n  icmp adn arp\n       ^"),
            "{text}"
        );
        let old = containers.path("old.pcap");
        std::fs::write(&old, [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0]).context("writing a file")?;
        let text = error(&["trace", "replay", "--port", "a", &old])?;
        assert!(text.contains("convert it with `editcap -F pcapng"), "{text}");
        let file = containers.path("cut.pcapng");
        let trace = containers
            .daemon
            .trace("trace", &["--port", "b", "--filter", "udp", "--snaplen", "60", "--write", &file])?;
        containers.replay(&[datagram(2, A, B, &[7; 100])], &[])?;
        interrupt_after(&containers.daemon, 1, trace)?;
        let text = error(&["trace", "replay", "--port", "a", &file])?;
        assert!(text.contains("frame 1: only 60 of its 142 bytes were captured"), "{text}");
        Ok(())
    });
}
