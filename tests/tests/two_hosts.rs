//! Two hosts, each with a softdpu and a guest of acme's with a disk and an interface; a wire with VXLAN between them.
//! globex has a port on each host, in a network with the same addresses.

#![allow(missing_docs)]

use std::time::Duration;

use softdpu_tests::{Context, Daemon, Failure, Guest, GuestSpec, Host, Lab, Root, Site, Wire, wait_until};

/// A step takes seconds, without KVM and on a busy machine some tens of them.
const DEADLINE: Duration = Duration::from_secs(180);

/// What the first guest's web server has.
const MIB: u32 = 8;

/// globex's ports: on the first host with the address of acme's guest there, on the second with one of its own.
const GLOBEX: [&str; 2] = ["10.0.0.2", "10.0.0.4"];

fn guest(number: u8) -> String {
    format!("acme-vm{number}")
}

fn site(lab: &Lab, host: &Host, wire: &Wire) -> Result<String, Failure> {
    let (own, other) = (host.number(), host.other());
    let image = lab.root_image(&format!("{}.img", guest(own)))?;
    let elsewhere = wire.address(other);
    let acme = |number: u8| (format!("10.0.0.{}", number + 1), format!("02:5d:00:00:01:0{number}"));
    let globex = |number: u8| (GLOBEX[usize::from(number - 1)], format!("02:5d:00:00:02:0{number}"));
    let domain = format!("domain = '{}'", guest(own));
    let nic = format!("network = 'acme-vpc', address = '{}', mac = '{}'", acme(own).0, acme(own).1);
    let port = format!("network = 'globex-vpc', address = '{}', mac = '{}'", globex(own).0, globex(own).1);
    let site = Site::on(&[0])
        .with(&wire.underlay(host))
        .tenants(["acme", "globex"])
        .network("acme-vpc", 5001, &["10.0.0.0/16"])
        .of("acme")
        .endpoint(&[&acme(other).0], &acme(other).1, &elsewhere)
        .network("globex-vpc", 5002, &["10.0.0.0/16"])
        .of("globex")
        .with("gateway = '10.0.255.254'")
        .endpoint(&[globex(other).0], &globex(other).1, &elsewhere)
        .volume("root", &format!("file = {{ path = '{}' }}", image.display()))
        .device("disk", "virtio-blk = { volume = 'root' }")
        .of("acme")
        .with(&domain)
        .device("nic", &format!("virtio-net = {{ {nic} }}"))
        .of("acme")
        .with(&domain)
        .device("globex", &format!("tap = {{ {port}, interface = 'globex0' }}"))
        .of("globex");
    Ok(site.to_string())
}

/// softdpu on a host, with globex's port configured, and the guest of acme's as it starts.
fn start(lab: &Lab, host: &Host, wire: &Wire) -> Result<(Daemon, Guest), Failure> {
    let daemon = host.softdpu(lab, &site(lab, host, wire)?)?;
    let address = format!("{}/16", GLOBEX[usize::from(host.number() - 1)]);
    host.ip(&["addr", "add", &address, "dev", "globex0"])?;
    let name = guest(host.number());
    let spec = GuestSpec::new(&name).root(Root::FirstDisk).job("network");
    let spec = spec.device(daemon.guest_device("disk")?).device(daemon.guest_device("nic")?);
    let guest = Guest::boot(lab.path(), spec.parameter("NAME", name).parameter("MIB", MIB))?;
    Ok((daemon, guest))
}

/// A program of a host gets no answer to its echo requests.
fn silence(host: &Host, address: &str) {
    let error = host.exec(&["ping", "-c", "3", "-i", "0.2", "-W", "1", address]).unwrap_err().to_string();
    assert!(error.contains("100% packet loss"), "{} reaches {address}: {error}", host.name());
}

/// The web page that a host sees at an address: the name of its owner.
fn page(host: &Host, address: &str) -> Result<String, Failure> {
    let ask = format!("exec 3<>/dev/tcp/{address}/80 && printf 'GET /name HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3");
    let answer = host.exec(&["timeout", "5", "bash", "-c", &ask])?;
    Ok(answer.lines().last().unwrap_or_default().to_owned())
}

fn tenants(lab: &Lab, (a, b): (&Host, &Host), (first, second): (&mut Guest, &mut Guest)) -> Result<(), Failure> {
    let folder = lab.path().join("globex-web");
    std::fs::create_dir(&folder).context("creating a folder")?;
    std::fs::write(folder.join("name"), "globex").context("writing a page")?;
    let listen = format!("{}:80", GLOBEX[0]);
    let mut server =
        a.start(lab, "httpd", &["busybox", "httpd", "-f", "-p", &listen, "-h", &folder.to_string_lossy()])?;
    let seen = wait_until("globex's web server", Duration::from_secs(60), || Ok(page(b, GLOBEX[0]).ok()))?;
    assert_eq!(seen, "globex", "globex's port reaches globex's, not acme's guest with the same address");
    b.exec(&["ping", "-c", "3", "-i", "0.2", "-W", "5", GLOBEX[0]])?;
    // acme's second guest is on b: neither its neighbour there nor the port beyond the tunnel reaches it.
    silence(b, "10.0.0.3");
    silence(a, "10.0.0.3");
    for guest in [first, second] {
        guest.ask(&format!("silence {}", GLOBEX[1]), DEADLINE)?;
    }
    server.stop().map(|_| ())
}

/// The data planes of both hosts are killed and upgraded in turn in the middle of transfers from the first guest, each
/// one TCP connection.
fn survive(daemons: [&mut Daemon; 2], second: &mut Guest) -> Result<(), Failure> {
    const KILLS: u64 = 4;
    let fetch = "fetch 10.0.0.2 cgi-bin/stream?4";
    let sum: String = second.ask(fetch, DEADLINE)?.get("sum")?;
    // The sender's, the receiver's: in turn.
    second.fetch_through((fetch, &sum), KILLS, Duration::from_millis(300), DEADLINE, |during| {
        let daemon = &mut *daemons[during as usize % 2];
        if (during / 2).is_multiple_of(2) {
            let time = daemon.kill_data_plane()?;
            eprintln!("a kill after {during} in transfers: data plane back after {:.0} ms", time.as_secs_f64() * 1e3);
        } else {
            let switched = daemon.upgrade()?["switched_us"].as_f64().unwrap_or(0.0) / 1e3;
            eprintln!("an upgrade after {during} in transfers: switched in {switched:.1} ms");
        }
        Ok(())
    })?;
    Ok(())
}

#[test]
fn guests_on_two_hosts_are_one_tenants() {
    let wire = Wire::ETHERNET;
    wire.run("two", |lab, a, b| {
        let ((mut at_a, mut first), (mut at_b, mut second)) = (start(lab, a, &wire)?, start(lab, b, &wire)?);
        for (guest, address) in [(&mut first, "10.0.0.2/16"), (&mut second, "10.0.0.3/16")] {
            guest.step("ready", DEADLINE)?;
            let lease = guest.ask("dhcp", DEADLINE)?;
            assert_eq!(lease.get::<String>("address")?, address);
            assert_eq!(lease.get::<String>("gateway")?, "10.0.0.1");
            assert_eq!(lease.get::<u32>("mtu")?, wire.inner_mtu());
        }
        first.ask("ping 10.0.0.3", DEADLINE)?;
        second.ask("ping 10.0.0.2", DEADLINE)?;
        let sum: String = first.ask("serve", DEADLINE)?.get("sum")?;
        assert_eq!(second.ask("fetch 10.0.0.2 file", DEADLINE)?.get::<String>("sum")?, sum);
        for direction in ["", " -R"] {
            let speed = second.ask(&format!("iperf 10.0.0.2 4M{direction}"), DEADLINE)?;
            eprintln!("iperf3 between hosts{direction}: {:?}", speed.fields);
        }
        tenants(lab, (a, b), (&mut first, &mut second))?;
        survive([&mut at_a, &mut at_b], &mut second)?;
        for mut guest in [first, second] {
            guest.type_line("stop")?;
            guest.finish(DEADLINE)?;
        }
        at_a.stop()?;
        at_b.stop()
    });
}
