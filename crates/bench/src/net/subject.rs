//! Servers of virtio-net interfaces: of two with a network between them, or of one with a way to the underlay.

use std::path::PathBuf;

use softdpu_frontend::{Frames, Station};

use super::report::Route;
use super::wire::{FAR_ADDRESS, NEAR, NEAR_ADDRESS, Wire};
use crate::SetupError;
use crate::process::{Server, in_path};
use crate::scratch::Folder;
use crate::subject::{Running, quoted};

/// The program of DPDK's peer; Debian has it in `dpdk-dev`.
pub const TESTPMD: &str = "dpdk-testpmd";

/// A server to be measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetSubject {
    /// softdpu, this build of it: two interfaces of one network, spoof check on.
    Softdpu {
        /// Its program.
        program: PathBuf,
    },
    /// DPDK's testpmd: two vhost ports, each frame of one goes to the other unseen (`--forward-mode=io`).
    Testpmd {
        /// Its program.
        program: PathBuf,
    },
    /// Whatever serves vhost-user-net at two sockets and carries frames from the first to the second.
    Sockets {
        /// As it is called in results.
        name: String,
        /// The sender's.
        a: PathBuf,
        /// The receiver's.
        b: PathBuf,
    },
}

/// What a subject is to serve.
#[derive(Clone, Copy, Debug)]
pub struct NetService {
    /// Descriptors of a queue.
    pub queue_size: u16,
    /// The CPU the server may use.
    pub cpu: usize,
    /// What is sent.
    pub frames: Frames,
    /// Where it goes. To the underlay: the server runs where the [wire](super::wire) is.
    pub route: Route,
}

impl NetSubject {
    /// testpmd, where it is installed.
    pub fn testpmd() -> Option<NetSubject> {
        Some(NetSubject::Testpmd { program: in_path(TESTPMD)? })
    }

    /// As it is called in results.
    pub fn name(&self) -> &str {
        match self {
            NetSubject::Softdpu { .. } => "softdpu",
            NetSubject::Testpmd { .. } => "testpmd",
            NetSubject::Sockets { name, .. } => name,
        }
    }

    /// Why it cannot send `frames` to the underlay.
    pub fn lacks_underlay(&self, frames: Frames) -> Option<&'static str> {
        match (self, frames) {
            (NetSubject::Softdpu { .. }, _) => None,
            (NetSubject::Testpmd { .. }, Frames::Tso) => Some("its port on AF_PACKET cannot cut frames up"),
            (NetSubject::Testpmd { .. }, _) => None,
            (NetSubject::Sockets { .. }, _) => Some("it is two guests' sockets"),
        }
    }

    /// Starts it, where `wire` is if frames go to the underlay; its sockets are the sender's and the receiver's, if a
    /// guest receives.
    ///
    /// # Errors
    /// [`SetupError`], with the end of the server's output.
    pub fn start(&self, service: &NetService, wire: Option<&Wire>) -> Result<Running, SetupError> {
        if let NetSubject::Sockets { a, b, .. } = self {
            return Ok(Running::new(None, vec![a.clone(), b.clone()], None));
        }
        let folder = Folder::new().map_err(|error| SetupError::Folder(error.to_string()))?;
        let names: &[&str] = if service.route == Route::Guest { &["a.sock", "b.sock"] } else { &["a.sock"] };
        let sockets: Vec<_> = names.iter().map(|name| folder.path().join(name)).collect();
        let (program, arguments, cpu) = match self {
            NetSubject::Testpmd { program } => (program, testpmd_arguments(service), Some(service.cpu)),
            NetSubject::Softdpu { program } => {
                let site = folder.path().join("site.toml");
                std::fs::write(&site, softdpu_site(service, &sockets))
                    .map_err(|error| SetupError::Folder(format!("{}: {error}", site.display())))?;
                // Not pinned from outside: it pins its core itself, and its supervisor stays off it.
                (program, ["run", "site.toml"].map(str::to_owned).into(), None)
            }
            // Taken care of above.
            NetSubject::Sockets { .. } => return Err(SetupError::Plan("sockets are not started".to_owned())),
        };
        let mut server = match wire {
            None => Server::start(self.name(), program, arguments, folder.path(), cpu)?,
            Some(wire) => {
                let (program, arguments) = wire.enter(program, &arguments, folder.path());
                Server::start(self.name(), &program, arguments, folder.path(), cpu)?
            }
        };
        server.until("its sockets", || sockets.iter().all(|socket| socket.exists()).then_some(()))?;
        Ok(Running::new(Some(server), sockets, Some(folder)))
    }
}

/// Both of testpmd's threads are on one CPU: its main one sleeps. Without huge pages, as front ends bring the memory
/// that counts; with segmentation offload and what makes it survive from port to port, where that is what is measured.
fn testpmd_arguments(service: &NetService) -> Vec<String> {
    let cpu = service.cpu;
    let offload = if service.frames == Frames::Tso { ",tso=1,legacy-ol-flags=1" } else { "" };
    let mut arguments: Vec<String> =
        ["--no-huge", "--no-pci", "--no-shconf", "--no-telemetry", "-m", "512"].map(str::to_owned).into();
    arguments.push(format!("--lcores=0@{cpu},1@{cpu}"));
    // Relative paths, as its option parser has no way to write a comma; it is started in the folder.
    arguments.push(format!("--vdev=net_vhost0,iface=a.sock,queues=1{offload}"));
    arguments.push(match service.route {
        Route::Guest => format!("--vdev=net_vhost1,iface=b.sock,queues=1{offload}"),
        // Past the queueing discipline, as softdpu.
        Route::Underlay => format!("--vdev=net_af_packet0,iface={NEAR},qdisc_bypass=1"),
    });
    // A period of statistics keeps it from reading its standard input, whose end would end it.
    arguments.extend(
        ["--", "--forward-mode=io", "--auto-start", "--nb-cores=1", "--total-num-mbufs=32768", "--stats-period=3600"]
            .map(str::to_owned),
    );
    arguments
}

fn softdpu_site(service: &NetService, sockets: &[PathBuf]) -> String {
    use std::fmt::Write;
    // Writing to a String cannot fail.
    let mut site = format!("[node]\ndataplane = {{ cores = [{}] }}\nrun-directory = \"run\"\n", service.cpu);
    site.push_str("log = { level = \"warn\" }\n");
    if service.route == Route::Underlay {
        let _ = writeln!(site, "underlay = {{ interface = \"{NEAR}\", address = \"{NEAR_ADDRESS}\" }}");
    }
    site.push_str("\n[[network]]\nname = \"bench\"\nvni = 5001\ncidr = \"10.0.0.0/24\"\nmtu = 1500\n");
    for ((name, station), socket) in [("a", Station::A), ("b", Station::B)].iter().zip(sockets) {
        // Queues of less than 256 are a front end's choice, not a site's.
        let _ = write!(
            site,
            "\n[[device]]\nname = \"{name}\"\ndomain = \"guest-{name}\"\nvirtio-net = {{ network = \"bench\", address = \
             \"{}\", mac = \"{}\", queue-size = {}, socket = {} }}\n",
            station.address,
            station.mac_text(),
            service.queue_size.max(256).next_power_of_two(),
            quoted(socket)
        );
    }
    if service.route == Route::Underlay {
        let (address, mac) = (Station::B.address, Station::B.mac_text());
        let _ = write!(
            site,
            "\n[[network.endpoint]]\naddress = \"{address}\"\nmac = \"{mac}\"\nhost = \"{FAR_ADDRESS}\"\n"
        );
    }
    site
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_has_one_network_and_both_stations_in_it() {
        let service = NetService { queue_size: 256, cpu: 1, frames: Frames::Smallest, route: Route::Guest };
        let site = softdpu_site(&service, &["/tmp/a.sock".into(), "/tmp/b.sock".into()]);
        assert_eq!(site.matches("[[network]]").count(), 1);
        assert!(site.contains(
            "virtio-net = { network = \"bench\", address = \"10.0.0.11\", mac = \"02:5d:00:00:00:0b\", queue-size = 256, \
             socket = \"/tmp/b.sock\" }"
        ));
    }

    #[test]
    fn testpmd_keeps_to_its_cpu_and_segments_only_where_that_is_measured() {
        let arguments =
            |frames| testpmd_arguments(&NetService { queue_size: 256, cpu: 3, frames, route: Route::Guest });
        assert!(arguments(Frames::Imix).contains(&"--lcores=0@3,1@3".to_owned()));
        assert!(!arguments(Frames::Imix).iter().any(|argument| argument.contains("tso")));
        assert!(arguments(Frames::Tso).iter().filter(|argument| argument.contains("tso=1")).count() == 2);
    }

    #[test]
    fn to_the_underlay_there_is_one_guest_and_the_other_is_on_another_host() {
        let service = NetService { queue_size: 256, cpu: 1, frames: Frames::Mtu, route: Route::Underlay };
        let site = softdpu_site(&service, &["/tmp/a.sock".into()]);
        assert_eq!((site.matches("[[device]]").count(), site.matches("[[network.endpoint]]").count()), (1, 1));
        assert!(site.contains("underlay = { interface = \"wire\", address = \"192.0.2.1\" }"));
        assert!(testpmd_arguments(&service).contains(&"--vdev=net_af_packet0,iface=wire,qdisc_bypass=1".to_owned()));
    }
}
