//! Hosts and the wire between them, on one machine: network namespaces, joined by a veth pair whose ends are called
//! `wire`.

use std::path::Path;
use std::time::Duration;

use crate::netns::{Namespace, possible};
use crate::{Context, Daemon, Failure, Lab, Process, Site, repository, wait_until};

/// The longest that a program takes to start, or a packet to arrive, on a busy machine.
const WAIT: Duration = Duration::from_secs(60);

/// A host: a network namespace with one end of the wire. Gone when dropped.
pub struct Host {
    namespace: Namespace,
    number: u8,
}

impl Host {
    /// Whether this machine lets us make hosts. Says so loudly where not, as the reason why `test` is skipped.
    pub fn is_possible(test: &str) -> bool {
        possible(test)
    }

    /// The namespace's name.
    pub fn name(&self) -> &str {
        &self.namespace.name
    }

    /// From 1 on: the last part of its addresses.
    pub fn number(&self) -> u8 {
        self.number
    }

    /// The number of the host at the wire's other end.
    pub fn other(&self) -> u8 {
        3 - self.number
    }

    /// `ip ARGUMENTS...` on this host.
    pub fn ip(&self, arguments: &[&str]) -> Result<String, Failure> {
        self.namespace.ip(arguments)
    }

    /// Runs a program on this host.
    pub fn exec(&self, arguments: &[&str]) -> Result<String, Failure> {
        self.namespace.exec(arguments)
    }

    /// Starts a program on this host that goes on.
    pub fn start(&self, lab: &Lab, name: &str, arguments: &[&str]) -> Result<Process, Failure> {
        Process::start(name, lab.path(), Path::new("ip"), [&["netns", "exec", self.name()], arguments].concat())
    }

    /// iperf3's server for one client, once it listens.
    pub fn iperf_server(&self, lab: &Lab) -> Result<Process, Failure> {
        let mut server = self.start(lab, "iperf", &["iperf3", "-s", "-1", "--forceflush"])?;
        server.wait_for_line("iperf3's server", 0, WAIT, |line| line.contains("listening").then_some(()))?;
        Ok(server)
    }

    /// Whether an address answers an echo request within a second.
    pub fn reaches(&self, address: &str) -> bool {
        self.exec(&["ping", "-c", "1", "-W", "1", address]).is_ok()
    }

    /// Waits until an address answers an echo request, and gives what `ping` printed then.
    pub fn wait_to_reach(&self, address: &str) -> Result<String, Failure> {
        wait_until(&format!("{} to reach {address}", self.name()), WAIT, || {
            Ok(self.exec(&["ping", "-c", "1", "-W", "1", address]).ok())
        })
    }

    /// softdpu on this host, in a folder of its own.
    pub fn softdpu(&self, lab: &Lab, site: &str) -> Result<Daemon, Failure> {
        let folder = lab.path().join(self.name());
        std::fs::create_dir_all(&folder).context("creating a folder")?;
        Daemon::start_in(self.name(), &folder, site)
    }

    /// A datagram to each of `count` ports of an address, from as many sockets: so many flows at once.
    pub fn knock(&self, address: &str, count: u64) -> Result<(), Failure> {
        let all = format!("for i in $(seq {count}); do echo >/dev/udp/{address}/$((20000+i)); done");
        self.exec(&["bash", "-c", &all]).map(drop)
    }

    /// A counter of its kernel's IPv4, from /proc/net/snmp: `protocol` such as `Udp`, `name` such as `NoPorts`.
    pub fn counter(&self, protocol: &str, name: &str) -> Result<u64, Failure> {
        let text = self.exec(&["cat", "/proc/net/snmp"])?;
        let of =
            |line: &'_ str| line.strip_prefix(protocol).and_then(|rest| rest.strip_prefix(": ")).map(str::to_owned);
        let mut lines = text.lines().filter_map(of);
        let (names, values) = lines.next().zip(lines.next()).ok_or_else(|| Failure::new(format!("no {protocol}")))?;
        let at = names.split(' ').position(|known| known == name);
        let at = at.ok_or_else(|| Failure::new(format!("{protocol} has no {name}")))?;
        values.split(' ').nth(at).unwrap_or_default().parse().context("a counter")
    }

    /// The MAC address of its end of the wire.
    pub fn mac(&self) -> Result<String, Failure> {
        self.exec(&["cat", "/sys/class/net/wire/address"]).map(|text| text.trim().to_owned())
    }
}

/// Datagrams of 1000 bytes from `interface` of the first host to `port` of the second one's TAP, as fast as `rate` says
/// ("10M": bits a second), until what is returned is stopped, the first of it first.
pub fn datagrams(
    lab: &Lab,
    [from, to]: [&Host; 2],
    interface: &str,
    port: u16,
    rate: &str,
) -> Result<[Process; 2], Failure> {
    let port = port.to_string();
    let mut server = to.start(lab, &format!("server-{port}"), &["iperf3", "-s", "-p", &port, "--forceflush"])?;
    server.wait_for_line("iperf3's server", 0, WAIT, |line| line.contains("listening").then_some(()))?;
    let address = format!("10.0.0.{}", to.number());
    let ends = ["iperf3", "-c", &address, "-p", &port, "--bind-dev", interface];
    let load = ["-u", "-b", rate, "-l", "1000", "-t", "600", "--forceflush"];
    let client = from.start(lab, &format!("client-{port}"), &[&ends[..], &load[..]].concat())?;
    Ok([client, server])
}

/// QEMU's arguments for the guest's end of a wire that is a TAP, `netdev=wire` for its interface. What the host sends
/// is as on a wire: without a virtio header, which would say what of it is unfinished.
pub const TAP: [&str; 2] = ["-netdev", "tap,id=wire,ifname=wire,script=no,downscript=no,vnet_hdr=off"];

/// What is between two hosts.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    /// The largest packet that it takes, bytes.
    pub mtu: u32,
    /// Whether the hosts have IPv6 addresses instead of IPv4 ones.
    pub v6: bool,
    /// The underlay's back end in the site file.
    pub backend: &'static str,
}

/// Two hosts, each with a softdpu and a TAP `acme0` in the network acme: [`Wire::run_softdpus`].
///
/// The daemons come first: a host goes after what runs on it.
pub struct TwoHosts {
    /// softdpu on the first host.
    pub at_a: Daemon,
    /// softdpu on the second host.
    pub at_b: Daemon,
    /// The first host.
    pub a: Host,
    /// The second host.
    pub b: Host,
}

/// A softdpu without guests between two sites, each a kernel's VXLAN device that knows the gateway alone:
/// [`Wire::run_gateway`].
pub struct Gateway {
    /// The gateway.
    pub daemon: Daemon,
    /// The host of the first site's guest, 10.0.1.2.
    pub a: Host,
    /// The host of the second site's guest, 10.0.2.2.
    pub b: Host,
    _between: Host,
    _hub: Namespace,
}

impl Wire {
    /// As most tests have it: IPv4, packets of 1,500 bytes, the back end that softdpu chooses.
    pub const ETHERNET: Wire = Wire { mtu: 1500, v6: false, backend: "auto" };

    /// Runs a scenario on two hosts that it joins. Skipped where this machine makes no hosts.
    pub fn run(&self, test: &str, scenario: impl FnOnce(&Lab, &Host, &Host) -> Result<(), Failure>) {
        if !Host::is_possible(test) {
            return;
        }
        Lab::run(test, |lab| {
            let (a, b) = self.hosts(test)?;
            scenario(lab, &a, &b)
        });
    }

    /// Runs a scenario on two hosts with a softdpu each, whose TAPs have their addresses; the daemons are stopped in
    /// good order after it.
    pub fn run_softdpus(
        &self,
        test: &str,
        site: impl Fn(&Host) -> String,
        scenario: impl FnOnce(&Lab, &mut TwoHosts) -> Result<(), Failure>,
    ) {
        if !Host::is_possible(test) {
            return;
        }
        Lab::run(test, |lab| {
            let (a, b) = self.hosts(test)?;
            let (at_a, at_b) = (a.softdpu(lab, &site(&a))?, b.softdpu(lab, &site(&b))?);
            for host in [&a, &b] {
                host.ip(&["addr", "add", &format!("10.0.0.{}/16", host.number()), "dev", "acme0"])?;
            }
            let mut hosts = TwoHosts { at_a, at_b, a, b };
            scenario(lab, &mut hosts)?;
            hosts.at_a.stop()?;
            hosts.at_b.stop()
        });
    }

    /// Runs a scenario on a gateway and its two sites, once they reach each other; the gateway is stopped in good order
    /// after it. `edit` changes the sample's site file, lab/sites/gateway.toml.
    pub fn run_gateway(
        &self,
        test: &str,
        edit: impl Fn(String) -> String,
        scenario: impl FnOnce(&Lab, &mut Gateway) -> Result<(), Failure>,
    ) {
        if !Host::is_possible(test) {
            return;
        }
        Lab::run(test, |lab| {
            let ([a, b, between], hub) = self.three_hosts(test)?;
            let site = std::fs::read_to_string(repository().join("lab/sites/gateway.toml")).context("the sample")?;
            let site = site.replace("\"eth0\"", "\"wire\"").replace("run-directory = \"run\"\n", "");
            let daemon = between.softdpu(lab, &edit(site))?;
            self.site_guest(&a)?;
            self.site_guest(&b)?;
            a.wait_to_reach("10.0.2.2")?;
            let mut gateway = Gateway { daemon, a, b, _between: between, _hub: hub };
            scenario(lab, &mut gateway)?;
            gateway.daemon.stop()
        });
    }

    /// The address of a host.
    pub fn address(&self, number: u8) -> String {
        if self.v6 { format!("2001:db8::{number}") } else { format!("192.0.2.{number}") }
    }

    /// The largest packet that a tunnel over it takes.
    pub fn inner_mtu(&self) -> u32 {
        self.mtu - if self.v6 { 70 } else { 50 }
    }

    /// Two hosts joined by it.
    pub fn hosts(&self, test: &str) -> Result<(Host, Host), Failure> {
        let host = |number: u8| Namespace::new(test, &number.to_string()).map(|namespace| Host { namespace, number });
        let (a, b) = (host(1)?, host(2)?);
        self.join(&a, &b)?;
        Ok((a, b))
    }

    /// Three hosts on one wire, each at its number; the wire is there as long as what comes with them.
    pub fn three_hosts(&self, test: &str) -> Result<([Host; 3], Namespace), Failure> {
        let (hosts, hub) = self.many_hosts(test, 3)?;
        let hosts = <[Host; 3]>::try_from(hosts).map_err(|_| Failure::new("not three hosts"))?;
        Ok((hosts, hub))
    }

    /// The same with so many.
    pub fn many_hosts(&self, test: &str, count: u8) -> Result<(Vec<Host>, Namespace), Failure> {
        let hub = Namespace::new(test, "hub")?;
        hub.ip(&["link", "add", "hub", "type", "bridge"])?;
        hub.ip(&["link", "set", "hub", "mtu", &self.mtu.to_string(), "up"])?;
        let host = |number: u8| -> Result<Host, Failure> {
            let host = Host { namespace: Namespace::new(test, &number.to_string())?, number };
            let port = format!("port{number}");
            host.ip(&["link", "add", "wire", "type", "veth", "peer", "name", &port, "netns", &hub.name])?;
            hub.ip(&["link", "set", &port, "mtu", &self.mtu.to_string(), "master", "hub", "up"])?;
            self.connect(&host)?;
            Ok(host)
        };
        Ok(((1..=count).map(host).collect::<Result<_, _>>()?, hub))
    }

    /// The second host, whose end of the wire is a TAP for a guest to be at the other end ([`TAP`]).
    pub fn host_of_guest(&self, test: &str) -> Result<Host, Failure> {
        let host = Host { namespace: Namespace::new(test, "2")?, number: 2 };
        host.exec(&["ip", "tuntap", "add", "wire", "mode", "tap"])?;
        self.connect(&host)?;
        Ok(host)
    }

    /// Puts it between two hosts that have none.
    pub fn join(&self, a: &Host, b: &Host) -> Result<(), Failure> {
        a.ip(&["link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", b.name()])?;
        self.connect(a)?;
        self.connect(b)
    }

    /// Sets a host's end up.
    fn connect(&self, host: &Host) -> Result<(), Failure> {
        let prefix = if self.v6 { 64 } else { 24 };
        let address = format!("{}/{prefix}", self.address(host.number));
        let nodad: &[&str] = if self.v6 { &["nodad"] } else { &[] };
        host.ip(&[&["addr", "add", &address, "dev", "wire"], nodad].concat())?;
        host.ip(&["link", "set", "wire", "mtu", &self.mtu.to_string(), "up"])?;
        Ok(())
    }

    /// A host's site file: a TAP `acme0` at 10.0.0.NUMBER in the network acme, and the other host's behind the
    /// underlay. `network` is what else the network has, `port` what else the TAP has, with a comma before it.
    pub fn site(&self, host: &Host, network: &str, port: &str) -> String {
        let (own, other) = (host.number(), host.other());
        Site::on(&[0])
            .with(&self.underlay(host))
            .network("acme", 5001, &["10.0.0.0/16"])
            .with(&format!("gateway = '10.0.9.9'\n{network}"))
            .endpoint(&[&format!("10.0.0.{other}")], &format!("02:5d:00:00:00:0{other}"), &self.address(other))
            .tap("port", own, &[&format!("10.0.0.{own}")], port)
            .to_string()
    }

    /// A site's guest on the first or the second host: a kernel's VXLAN device in VNI 5001, to which the other site's
    /// guest is behind the third host.
    fn site_guest(&self, host: &Host) -> Result<(), Failure> {
        let (own, gateway) = (self.address(host.number()), self.address(3));
        let mac = |number| format!("02:5d:00:00:0{number}:02");
        let tunnel = ["id", "5001", "local", &own, "remote", &gateway, "dstport", "4789"];
        host.ip(&[&["link", "add", "acme0", "address", &mac(host.number()), "type", "vxlan"], &tunnel[..]].concat())?;
        host.ip(&["link", "set", "acme0", "mtu", &self.inner_mtu().to_string(), "up"])?;
        host.ip(&["addr", "add", &format!("10.0.{}.2/16", host.number()), "dev", "acme0"])?;
        let address = format!("10.0.{}.2", host.other());
        host.ip(&["neigh", "replace", &address, "lladdr", &mac(host.other()), "dev", "acme0", "nud", "permanent"])?;
        Ok(())
    }

    /// The part of a host's site file that says where its underlay is, for the table `node`.
    pub fn underlay(&self, host: &Host) -> String {
        let (address, backend) = (self.address(host.number), self.backend);
        format!("underlay = {{ interface = 'wire', address = '{address}', backend = '{backend}' }}")
    }
}
