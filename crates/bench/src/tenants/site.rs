//! What tenants do in a case, and the site file of a daemon that serves them.

use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use softdpu_frontend::load::frames::Route;
use softdpu_frontend::{Frames, Station};

/// Bytes of each tenant's volume, in the daemon's memory.
const VOLUME: u64 = 256 << 10;
/// Rules of a firewall that a packet is compared with before the one that lets it pass.
const RULES: u32 = 64;
/// Flows of a tenant's frames.
const FLOWS: u16 = 64;

/// What all tenants of a case do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Load {
    /// A disk each.
    Block,
    /// Frames between two interfaces each.
    Net(Frames),
    /// Every other one has a disk, the others frames.
    Mixed(Frames),
    /// Frames through the applications of MTDA's Table IV.
    Functions(Frames),
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Block => f.write_str("block"),
            Load::Net(frames) => write!(f, "net {frames}"),
            Load::Mixed(frames) => write!(f, "mixed {frames}"),
            Load::Functions(frames) => write!(f, "functions {frames}"),
        }
    }
}

/// What one tenant runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Application {
    /// Requests at a disk.
    Disk,
    /// Frames within a subnet.
    Frames(Frames),
    /// Frames that are counted by source, destination and flow.
    Analytics(Frames),
    /// Frames of which flow records are exported.
    Monitor(Frames),
    /// Frames from a subnet to another.
    Router(Frames),
    /// Frames through a stateful firewall.
    Firewall(Frames),
}

impl Load {
    /// Whether a request of one tenant costs what one of any other does.
    pub fn is_alike(self) -> bool {
        matches!(self, Load::Block | Load::Net(_))
    }

    /// What each of so many tenants does. Applications as in MTDA's Table IV.
    pub fn of(self, tenants: usize) -> Vec<Application> {
        let in_turn = |does: &dyn Fn(usize) -> Application| (0..tenants).map(does).collect();
        match self {
            Load::Block => vec![Application::Disk; tenants],
            Load::Net(frames) => vec![Application::Frames(frames); tenants],
            Load::Mixed(frames) => {
                in_turn(&|at| if at % 2 == 0 { Application::Disk } else { Application::Frames(frames) })
            }
            Load::Functions(frames) => {
                let applications =
                    [Application::Analytics, Application::Monitor, Application::Router, Application::Firewall];
                let eight = [0, 0, 0, 0, 1, 1, 2, 3];
                in_turn(&|at| applications[if tenants == 8 { eight[at] } else { at % 4 }](frames))
            }
        }
    }
}

impl Application {
    fn frames(self) -> Option<Frames> {
        match self {
            Application::Disk => None,
            Application::Frames(frames)
            | Application::Analytics(frames)
            | Application::Monitor(frames)
            | Application::Router(frames)
            | Application::Firewall(frames) => Some(frames),
        }
    }

    /// Sockets of its devices, the sender's first.
    pub fn sockets(self, at: usize, folder: &Path) -> Vec<PathBuf> {
        let count = if self == Application::Disk { 1 } else { 2 };
        (0..count).map(|end| folder.join(format!("{at}-{end}.sock"))).collect()
    }

    /// What it sends; none of a disk. `gateway` gives the MAC address of a network's gateway.
    pub fn route(self, at: usize, gateway: fn(&str, Ipv4Addr) -> [u8; 6]) -> Option<Route> {
        let frames = self.frames()?;
        let [from, to] = self.stations(at);
        let by = match self {
            Application::Router(_) => gateway(&network(at), Ipv4Addr::new(10, 0, 0, 1)),
            _ => to.mac,
        };
        Some(Route { frames, flows: FLOWS, from, to, by })
    }

    fn stations(self, at: usize) -> [Station; 2] {
        let [_, _, high, low] = (at as u32).to_be_bytes();
        [0, 1].map(|end: u8| {
            let subnet = if matches!(self, Application::Router(_)) { end } else { 0 };
            Station { mac: [2, 0x5d, high, low, 0, end], address: Ipv4Addr::new(10, 0, subnet, 10 + end) }
        })
    }

    /// Its part of the site file.
    fn write(self, at: usize, collector: SocketAddr, site: &mut String) -> fmt::Result {
        if self == Application::Disk {
            return write!(
                site,
                "\n[[volume]]\nname = \"v{at}\"\nmemory = {{ size = \"{VOLUME} B\" }}\n\n[[device]]\nname = \"d{at}\"\n\
                 tenant = \"t{at}\"\nvirtio-blk = {{ volume = \"v{at}\", queue-size = 1024, socket = \"{at}-0.sock\" }}\n"
            );
        }
        let subnets = match self {
            Application::Router(_) => "[\"10.0.0.0/24\", \"10.0.1.0/24\"]",
            _ => "\"10.0.0.0/24\"",
        };
        let vni = at + 1;
        write!(site, "\n[[network]]\nname = \"{}\"\nvni = {vni}\ncidr = {subnets}\nmtu = 1500\n", network(at))?;
        let function = match self {
            Application::Analytics(_) => {
                Some("analytics = { by = [\"source\", \"destination\", \"flow\"] }".to_owned())
            }
            Application::Monitor(_) => Some(format!("monitor = {{ collector = \"{collector}\" }}")),
            Application::Firewall(_) => {
                let mut rules = String::new();
                for rule in 1..=RULES {
                    let port = 20_000 + rule;
                    let deny = "action = \"deny\", protocol = \"udp\"";
                    write!(rules, "{{ priority = {rule}, {deny}, ports = {port} }}, ")?;
                }
                Some(format!(
                    "firewall = {{ default = \"deny\", rule = [{rules}{{ priority = 1000, action = \"allow\" }}] }}"
                ))
            }
            _ => None,
        };
        if let Some(function) = &function {
            write!(site, "\n[[function]]\nname = \"f{at}\"\n{function}\n")?;
        }
        let functions = if function.is_some() { format!(", functions = [\"f{at}\"]") } else { String::new() };
        for (end, station) in self.stations(at).iter().enumerate() {
            write!(
                site,
                "\n[[device]]\nname = \"d{at}-{end}\"\ntenant = \"t{at}\"\ndomain = \"g{at}-{end}\"\nvirtio-net = {{ network = \
                 \"{}\", address = \"{}\", mac = \"{}\", queue-size = 1024, socket = \"{at}-{end}.sock\"{functions} }}\n",
                network(at),
                station.address,
                station.mac_text(),
            )?;
        }
        Ok(())
    }
}

fn network(at: usize) -> String {
    format!("n{at}")
}

/// A site of tenants that run `applications`, with weights `wants`. Flow records go to `collector`.
pub fn site(scheduler: &str, cpu: usize, applications: &[Application], wants: &[u32], collector: SocketAddr) -> String {
    let mut site = format!(
        "[node]\nfairness = \"{scheduler}\"\ndataplane = {{ cores = [{cpu}], idle-sleep = \"never\" }}\n\
         run-directory = \"run\"\nlog = {{ level = \"error\" }}\n"
    );
    for (at, (application, want)) in applications.iter().zip(wants).enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(site, "\n[[tenant]]\nname = \"t{at}\"\nweight = {want}\n");
        let _ = application.write(at, collector, &mut site);
    }
    site
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applications_are_those_of_the_papers_table() {
        let frames = Frames::Smallest;
        let load = Load::Functions(frames);
        let (a, m, r, f) = (
            Application::Analytics(frames),
            Application::Monitor(frames),
            Application::Router(frames),
            Application::Firewall(frames),
        );
        assert_eq!(load.of(1), [a]);
        assert_eq!(load.of(2), [a, m]);
        assert_eq!(load.of(4), [a, m, r, f]);
        assert_eq!(load.of(8), [a, a, a, a, m, m, r, f]);
        assert_eq!(Load::Mixed(frames).of(2), [Application::Disk, Application::Frames(frames)]);
    }

    #[test]
    fn a_site_has_what_each_tenant_needs() {
        let applications = Load::Functions(Frames::Mtu).of(4);
        let text = site("weighted", 1, &applications, &[4, 2, 2, 1], ([127, 0, 0, 1], 4739).into());
        assert_eq!((text.matches("[[device]]").count(), text.matches("[[function]]").count()), (8, 3));
        assert!(text.contains("weight = 4") && text.contains("collector = \"127.0.0.1:4739\""));
        let route = applications[2].route(2, |_, _| [9; 6]).expect("frames");
        assert_eq!((route.by, route.to.address), ([9; 6], Ipv4Addr::new(10, 0, 1, 11)));
    }
}
