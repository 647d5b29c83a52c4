//! An exit to the outside world: guests of a network reach a server outside by NAT, and are reached from there. The
//! host of softdpu is the router between its TAP and the wire.
//!
//! ```text
//!   guest 10.0.0.2 ─ virtio-net ─┐         203.0.113.0/24                          192.0.2.1    192.0.2.2
//!                                ├─ softdpu ─ NAT ─ TAP acme-out ─ host's routes ─ wire ─────── outside
//!   container 10.0.1.9 ─── TAP ──┘                  10.0.0.254
//! ```

#![allow(missing_docs)]

use std::path::Path;
use std::time::Duration;

use softdpu_tests::netns::Namespace;
use softdpu_tests::{
    Context, Daemon, Failure, Guest, GuestSpec, Host, Lab, Process, Root, Site, Wire, wait_until, wait_until_still,
};

const DEADLINE: Duration = Duration::from_secs(180);
/// As long as nothing changes, what was under way has arrived; and so much may have been.
const STILL: Duration = Duration::from_millis(500);
const UNDER_WAY: u64 = 64;
const WIRE: Wire = Wire::ETHERNET;
const OUTSIDE: &str = "192.0.2.2";
/// Of guests that share it, and of forwards.
const SHARED: &str = "203.0.113.1";
/// The container's own.
const FLOATING: &str = "203.0.113.9";

/// Connections that are held open.
const HELD: usize = 10;
/// Opens them, and says each line of its input by all of them, from the last to the first and the other way in turns.
const HOLDER: &str = r#"
fds=()
for i in $(seq 10); do exec {fd}<>/dev/tcp/192.0.2.2/9100 || exit 1; fds+=($fd); done
echo held
while read -r line; do
    back=(); for fd in ${fds[@]}; do back=($fd ${back[@]}); done; fds=(${back[@]})
    for fd in ${fds[@]}; do echo $line >&$fd; done
done
"#;
/// Prints what connections say.
const LISTENER: &str = r#"
import os, socket, threading
def serve(connection, peer):
    for line in connection.makefile():
        os.write(1, f"{peer[1]} {line}".encode())
listener = socket.create_server(("192.0.2.2", 9100))
print("listening", flush=True)
while True:
    threading.Thread(target=serve, args=listener.accept(), daemon=True).start()
"#;

fn site() -> Site {
    let nat = format!(
        r#"
route = [{{ prefix = "0.0.0.0/0", address = "10.0.0.254" }}]

[[network.nat]]
exit     = "10.0.0.254"
floating = [{{ inside = "10.0.1.9", outside = "{FLOATING}" }}]
forward  = [{{ protocol = "tcp", outside = "{SHARED}:8080", inside = "10.0.0.2:80" }}]
shared   = [{{ source = "10.0.0.0/26", address = "{SHARED}", ports = "10000-65535", ports-per-guest = 860 }}]
"#
    );
    let exit = "network = 'acme', address = '10.0.0.254', interface = 'acme-out', spoof-check = false";
    let inside = "network = 'acme', address = '10.0.1.9', mac = '02:5d:00:00:01:09', interface = 'inside'";
    Site::on(&[0])
        .network("acme", 5001, &["10.0.0.0/16"])
        .with(&nat)
        .device("outside", &format!("tap = {{ {exit} }}"))
        .device("inside", &format!("tap = {{ {inside} }}"))
        .device("vm", "virtio-net = { network = 'acme', address = '10.0.0.2' }")
}

/// The world: the host that softdpu is on, the one outside, and a container with a TAP of softdpu's.
struct World {
    daemon: Daemon,
    host: Host,
    outside: Host,
    container: Namespace,
}

impl World {
    fn new(test: &str, lab: &Lab) -> Result<World, Failure> {
        let (host, outside) = WIRE.hosts(test)?;
        let container = Namespace::new(test, "inside")?;
        let daemon = host.softdpu(lab, &site().to_string())?;
        // The recipe of docs/guide.md: the host routes between the exit and its wire, and knows no address of inside.
        host.exec(&["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward"])?;
        host.ip(&["addr", "add", "10.0.0.254/32", "dev", "acme-out"])?;
        host.ip(&[
            "route",
            "add",
            "203.0.113.0/24",
            "via",
            "10.0.0.1",
            "dev",
            "acme-out",
            "onlink",
            "src",
            "192.0.2.1",
        ])?;
        outside.ip(&["route", "add", "203.0.113.0/24", "via", "192.0.2.1"])?;
        host.ip(&["link", "set", "inside", "netns", &container.name])?;
        container.ip(&["link", "set", "inside", "up"])?;
        container.ip(&["addr", "add", "10.0.1.9/16", "dev", "inside"])?;
        container.ip(&["route", "add", "default", "via", "10.0.0.1"])?;
        Ok(World { daemon, host, outside, container })
    }

    fn boot(&self, lab: &Lab) -> Result<Guest, Failure> {
        let device = self.daemon.guest_device("vm")?;
        let spec = GuestSpec::new("vm").root(Root::NetworkRam).device(device).job("network");
        let mut guest = Guest::boot(lab.path(), spec.parameter("NAME", "vm").parameter("MIB", 1))?;
        guest.step("ready", DEADLINE)?;
        guest.ask("dhcp", DEADLINE)?;
        Ok(guest)
    }
}

/// Runs a scenario in a world of its own.
fn run(test: &str, scenario: impl FnOnce(&Lab, &mut World) -> Result<(), Failure>) {
    if !Host::is_possible(test) {
        return;
    }
    Lab::run(test, |lab| {
        let mut world = World::new(test, lab)?;
        scenario(lab, &mut world)?;
        world.daemon.stop()
    });
}

/// What a web server says of itself, asked for with `exec` from where that runs.
fn name_at(exec: impl FnOnce(&[&str]) -> Result<String, Failure>, address: &str, port: u16) -> Result<String, Failure> {
    let get = format!("exec 3<>/dev/tcp/{address}/{port} && printf 'GET /name HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3");
    let answer = exec(&["timeout", "60", "bash", "-c", &get])?;
    Ok(answer.lines().last().unwrap_or_default().to_owned())
}

/// The guest's TCP to the server outside, with `more` of iperf3's options; the address and the port that it has there.
fn transfer(lab: &Lab, world: &World, guest: &mut Guest, more: &str) -> Result<(String, u16), Failure> {
    let mut server = world.outside.iperf_server(lab)?;
    guest.ask(&format!("iperf {OUTSIDE} {more}"), DEADLINE)?;
    let accepted = |line: &str| {
        let (address, port) = line.strip_prefix("Accepted connection from ")?.split_once(", port ")?;
        Some((address.to_owned(), port.trim().parse().ok()?))
    };
    let (from, _) = server.wait_for_line("a connection", 0, DEADLINE, accepted)?;
    server.wait(DEADLINE)?;
    Ok(from)
}

#[test]
fn a_guest_reaches_a_server_outside_and_is_reached_by_a_port_of_the_address_that_it_shares() {
    run("nat", |lab, world| {
        let mut guest = world.boot(lab)?;
        guest.ask(&format!("ping {OUTSIDE}"), DEADLINE)?;
        // Its block is the third of 860 ports: by the place of 10.0.0.2 among the sources.
        let block = 10_000 + 2 * 860..10_000 + 3 * 860;
        for more in ["4M", "4M -R"] {
            let (address, port) = transfer(lab, world, &mut guest, more)?;
            assert_eq!(address, SHARED, "outside knows no address of inside");
            assert!(block.contains(&port), "port {port} is not of the guest's block {block:?}");
        }
        // Inward, by a forward; and from inside by the same address (hairpin).
        guest.ask("serve", DEADLINE)?;
        assert_eq!(name_at(|get| world.outside.exec(get), SHARED, 8080)?, "vm");
        assert_eq!(name_at(|get| world.container.exec(get), SHARED, 8080)?, "vm");
        // The next data planes have its port: a connection goes on.
        let mut server = world.outside.iperf_server(lab)?;
        guest.type_line(&format!("iperf {OUTSIDE} 4"))?;
        let moved = |world: &World| world.daemon.port("outside").map(|port| port.count("frames_out"));
        let before = moved(world)?;
        wait_until("the transfer to be under way", DEADLINE, || Ok((moved(world)? > before + 500).then_some(())))?;
        world.daemon.kill_data_plane()?;
        wait_until("the transfer to go on", DEADLINE, || Ok((moved(world)? > 500).then_some(())))?;
        world.daemon.upgrade()?;
        wait_until("the transfer to go on after an upgrade", DEADLINE, || Ok((moved(world)? > 500).then_some(())))?;
        guest.step("iperf", DEADLINE)?;
        server.wait(DEADLINE)?;
        assert_eq!(name_at(|get| world.outside.exec(get), SHARED, 8080)?, "vm");
        // What nothing leads to is dropped, and counted where it came in.
        let port = &world.daemon.port("outside")?;
        let before = port.dropped_in("no-translation");
        world.outside.exec(&["bash", "-c", &format!("echo >/dev/udp/{SHARED}/53")])?;
        wait_until("a datagram to no guest to be dropped", DEADLINE, || {
            Ok((world.daemon.port("outside")?.dropped_in("no-translation") > before).then_some(()))
        })?;
        guest.type_line("stop")?;
        guest.finish(DEADLINE)
    });
}

/// What `[[network.nat]]` counted at the exit: translations, and packets that found no port.
fn counted(daemon: &Daemon) -> Result<(u64, u64), Failure> {
    let exit = daemon.status()?["networks"][0]["nat"][0].clone();
    assert_eq!(exit["exit"], "10.0.0.254", "{exit}");
    let count = |key: &str| exit[key].as_u64().ok_or_else(|| Failure::new(format!("no {key}: {exit}")));
    Ok((count("translations")?, count("exhausted")?))
}

/// Puts rules in the place of those of the network, on a running daemon.
fn change(lab: &Lab, daemon: &Daemon, rules: &str) -> Result<String, Failure> {
    let file = lab.path().join("nat.toml");
    std::fs::write(&file, format!("network = \"acme\"\n{rules}\n")).context("the file of rules")?;
    daemon.command(&["network", "nat", &file.display().to_string()])
}

#[test]
fn rules_change_while_connections_live_and_ports_are_counted() {
    run("nat-change", |lab, world| {
        // The container is the third of four that share an address, with 16 ports each.
        let shared = |first: u16| {
            format!(
                "[[nat]]\nexit = \"10.0.0.254\"\nshared = [{{ source = \"10.0.1.8/30\", address = \"{SHARED}\", \
                 ports = \"{first}-{}\", ports-per-guest = 16 }}]",
                first + 63
            )
        };
        change(lab, &world.daemon, &shared(4000))?;
        let _server = world.outside.iperf_server(lab)?;
        let load = ["-c", OUTSIDE, "-t", "600", "-b", "2M", "-l", "1K"];
        let mut client =
            Process::start_in(Some(&world.container.name), "client", lab.path(), Path::new("iperf3"), load)?;
        let moved = |world: &World| world.daemon.port("outside").map(|port| port.count("frames_out"));
        let moves = |world: &World, what: &str| {
            let before = moved(world)?;
            wait_until(what, DEADLINE, || Ok((moved(world)? > before + 50).then_some(())))
        };
        moves(world, "the connection to carry something")?;
        let (translations, exhausted) = counted(&world.daemon)?;
        assert!((1..=3).contains(&translations) && exhausted == 0, "{translations} {exhausted}");
        // A list of rules in which the container's are the same changes nothing for it.
        let forward = "\nforward = [{ protocol = \"udp\", outside = \"203.0.113.1:53\", inside = \"10.0.0.2:53\" }]";
        change(lab, &world.daemon, &format!("{}{forward}", shared(4000)))?;
        moves(world, "the connection to go on by other rules")?;
        // Explained without anything being given.
        let ask = ["trace", "explain", "--from", "inside", "--to", OUTSIDE, "--protocol", "udp", "--port", "53"];
        let answer = world.daemon.command(&ask)?;
        assert!(answer.contains("exit 10.0.0.254 of acme, outward") && answer.contains(SHARED), "{answer}");
        // More conversations with one end than it has ports.
        world.container.exec(&["bash", "-c", &format!("for i in $(seq 41); do echo >/dev/udp/{OUTSIDE}/9; done")])?;
        wait_until("packets without a port to be counted", DEADLINE, || {
            Ok((counted(&world.daemon)?.1 >= 41 - 16).then_some(()))
        })?;
        let shown = world.daemon.command(&["status"])?;
        assert!(shown.contains("TRANSLATIONS") && shown.contains("NO PORT"), "{shown}");
        // Without a rule for it nothing passes from the moment that the command has returned.
        change(lab, &world.daemon, &format!("[[nat]]\nexit = \"10.0.0.254\"{forward}"))?;
        // What was decided before is on its way.
        let before = (moved(world)?, world.daemon.port("inside")?.dropped_in("no-translation"));
        let left = wait_until_still("nothing to leave", STILL, DEADLINE, || moved(world))?;
        assert!(left - before.0 <= UNDER_WAY, "{} left without a rule", left - before.0);
        wait_until("the connection's segments to be dropped", DEADLINE, || {
            Ok((world.daemon.port("inside")?.dropped_in("no-translation") > before.1).then_some(()))
        })?;
        client.stop()?;
        let error = change(lab, &world.daemon, "[[nat]]\nexit = \"10.0.0.77\"\nfloating = []").err();
        let error = error.ok_or_else(|| Failure::new("an exit that is none"))?.to_string();
        assert!(error.contains("nat.toml:3:8: no device of this host has the address 10.0.0.77"), "{error}");
        // The next data plane has the rules of the last change.
        change(lab, &world.daemon, &shared(6000))?;
        world.daemon.kill_data_plane()?;
        world.container.exec(&["ping", "-c", "3", "-i", "0.1", "-W", "5", OUTSIDE])?;
        Ok(())
    });
}

/// The ports towards one remote end that a guest has by its own ports, and those that it was given because that one was
/// taken: a data plane that knew none of them would give others.
#[test]
fn translations_have_their_ports_when_the_data_plane_is_killed_or_upgraded() {
    run("nat-kept", |lab, world| {
        // Of 16 ports nearly all are in use: which one a connection has depends on those before it.
        let shared = format!(
            "[[nat]]\nexit = \"10.0.0.254\"\nshared = [{{ source = \"10.0.1.8/30\", address = \"{SHARED}\", \
             ports = \"4000-4063\", ports-per-guest = 16 }}]"
        );
        change(lab, &world.daemon, &shared)?;
        let mut server = world.outside.start(lab, "listener", &["python3", "-c", LISTENER])?;
        server.wait_for_line("the server", 0, DEADLINE, |line| line.contains("listening").then_some(()))?;
        let mut client =
            Process::start_in(Some(&world.container.name), "held", lab.path(), Path::new("bash"), ["-c", HOLDER])?;
        client.wait_for_line("the connections", 0, DEADLINE, |line| line.contains("held").then_some(()))?;
        let all_say = |client: &mut Process, word: &str| {
            client.send_line(word)?;
            wait_until(&format!("all connections to say {word}"), DEADLINE, || {
                let said = |line: &String| line.ends_with(word);
                Ok((server.lines().iter().filter(|line| said(line)).count() == HELD).then_some(()))
            })
        };
        all_say(&mut client, "before")?;
        for round in 1..=3 {
            world.daemon.kill_data_plane()?;
            all_say(&mut client, &format!("killed-{round}"))?;
            world.daemon.upgrade()?;
            all_say(&mut client, &format!("upgraded-{round}"))?;
        }
        assert!(counted(&world.daemon)?.0 >= HELD as u64, "{:?}", world.daemon.status()?["taken_over"]);
        client.stop()?;
        server.stop()?;
        Ok(())
    });
}

#[test]
fn a_floating_address_is_the_containers_both_ways() {
    run("nat-floating", |_, world| {
        // Outside has the prefix on its link: the host answers ARP for it.
        world.host.exec(&["sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/wire/proxy_arp"])?;
        world.outside.ip(&["route", "replace", "203.0.113.0/24", "dev", "wire"])?;
        world.outside.wait_to_reach(FLOATING)?;
        world.container.exec(&["ping", "-c", "3", "-i", "0.1", "-W", "5", OUTSIDE])?;
        // What the host says of a packet that it cannot send on (an ICMP error) finds the inside address.
        let far = "198.51.100.7";
        let unreachable = world.container.exec(&["ping", "-c", "1", "-W", "5", far]).err();
        let said = unreachable.ok_or_else(|| Failure::new(format!("{far} answers")))?.to_string();
        assert!(said.contains("Unreachable"), "no error came back: {said}");
        Ok(())
    });
}
