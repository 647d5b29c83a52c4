//! Two hosts, each with a softdpu and a guest of acme's with a disk and an interface; a wire with VXLAN between them.
//! globex has a port on each host, in a network with the same addresses.

#![allow(missing_docs)]

use std::time::Duration;

use softdpu_tests::{Context, Daemon, Failure, Guest, GuestSpec, Host, Lab, Random, Root, Wire, wait_until};

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
    let globex = |number: u8| GLOBEX[usize::from(number - 1)];
    let (underlay, elsewhere) = (wire.underlay(host), wire.address(other));
    Ok(format!(
        r#"
[node]
dataplane = {{ cores = [0] }}
{underlay}
[[tenant]]
name = "acme"

[[tenant]]
name = "globex"

[[network]]
name   = "acme-vpc"
tenant = "acme"
vni    = 5001
cidr   = "10.0.0.0/16"

[[network.endpoint]]
address = "10.0.0.{}"
mac     = "02:5d:00:00:01:0{other}"
host    = "{elsewhere}"

[[network]]
name    = "globex-vpc"
tenant  = "globex"
vni     = 5002
cidr    = "10.0.0.0/16"
gateway = "10.0.255.254"

[[network.endpoint]]
address = "{}"
mac     = "02:5d:00:00:02:0{other}"
host    = "{elsewhere}"

[[volume]]
name = "root"
file = {{ path = '{}' }}

[[device]]
name       = "disk"
tenant     = "acme"
domain     = "{name}"
virtio-blk = {{ volume = "root" }}

[[device]]
name       = "nic"
tenant     = "acme"
domain     = "{name}"
virtio-net = {{ network = "acme-vpc", address = "10.0.0.{}", mac = "02:5d:00:00:01:0{own}" }}

[[device]]
name   = "globex"
tenant = "globex"
tap    = {{ network = "globex-vpc", address = "{}", mac = "02:5d:00:00:02:0{own}", interface = "globex0" }}
"#,
        other + 1,
        globex(other),
        image.display(),
        own + 1,
        globex(own),
        name = guest(own),
    ))
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

/// Whose web page a host sees at an address.
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

/// The data planes of both hosts are killed in turn in the middle of transfers from the first guest, each one TCP
/// connection.
fn survive(daemons: [&mut Daemon; 2], second: &mut Guest) -> Result<(), Failure> {
    const KILLS: u64 = 4;
    let mut random = Random::from_environment();
    eprintln!("SOFTDPU_SEED={}", random.seed);
    let fetch = "fetch 10.0.0.2 cgi-bin/stream?4";
    let sum: String = second.ask(fetch, DEADLINE)?.get("sum")?;
    let fetched = |guest: &Guest| guest.reports().iter().filter(|report| report.step == "fetch").count();
    let (mut during, mut kills) = (0, 0);
    while during < KILLS {
        assert!(kills < 8 * KILLS, "{kills} kills, and only {during} of them during a transfer");
        second.type_line(fetch)?;
        second.step("progress", DEADLINE)?;
        let before = fetched(second);
        while during < KILLS {
            std::thread::sleep(random.between(Duration::from_millis(20), Duration::from_millis(300)));
            if fetched(second) > before {
                break;
            }
            // The sender's, the receiver's.
            let time = daemons[during as usize % 2].kill_data_plane()?;
            kills += 1;
            eprintln!("kill {kills}: data plane back after {:.0} ms", time.as_secs_f64() * 1e3);
            second.check()?;
            during += u64::from(fetched(second) == before);
        }
        assert_eq!(second.step("fetch", DEADLINE)?.get::<String>("sum")?, sum, "what arrived is not what was sent");
    }
    Ok(())
}

#[test]
fn guests_on_two_hosts_are_one_tenants() {
    let wire = Wire { mtu: 1500, v6: false, backend: "auto" };
    if !Host::is_possible("two-hosts") {
        return;
    }
    Lab::run("two-hosts", |lab| {
        let (a, b) = wire.hosts("two")?;
        let ((mut at_a, mut first), (mut at_b, mut second)) = (start(lab, &a, &wire)?, start(lab, &b, &wire)?);
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
        for way in ["", " -R"] {
            let speed = second.moves(&format!("iperf 10.0.0.2 2{way}"), 5, DEADLINE)?;
            eprintln!("iperf3 between hosts{way}: {:?}", speed.fields);
        }
        tenants(lab, (&a, &b), (&mut first, &mut second))?;
        survive([&mut at_a, &mut at_b], &mut second)?;
        for mut guest in [first, second] {
            guest.type_line("stop")?;
            guest.finish(DEADLINE)?;
        }
        at_a.stop()?;
        at_b.stop()
    });
}
