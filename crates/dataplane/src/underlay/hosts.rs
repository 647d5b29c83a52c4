//! The next hop towards each host, and whether the interface that leads there is still what it was.
//!
//! Routes and neighbours are the kernel's: it is asked again and again, on a thread of its own, as an answer may take a
//! neighbour's.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use softdpu_sys::netlink::{Interface, Netlink, NetlinkError};
use softdpu_sys::port::PortError;
use softdpu_sys::wake::Doorbell;
use softdpu_vpc::Mac;
use softdpu_vpc::spec::NeighborSpec;

/// How often the interface, and the way to each host, are asked for.
const REFRESH: Duration = Duration::from_secs(1);

/// How long an interface may be without a carrier before it counts as lost: many are for some seconds when their speed
/// is negotiated anew, and where that is done when a program is attached to them, to open it anew at once would never
/// end.
const DARK: Duration = Duration::from_secs(5);

/// What is known of the ways out of an interface, for as long as that is there.
pub(super) struct Hosts {
    seen: Arc<Mutex<Seen>>,
    bell: Arc<Doorbell>,
    /// Ends the thread when it is dropped.
    wanted: Sender<Wanted>,
}

/// Hosts to be resolved, and whether the kernel is to probe the neighbour again and again: it
/// does not by itself, as our frames do not pass its stack.
pub(super) type Wanted = BTreeMap<IpAddr, bool>;

#[derive(Default)]
struct Seen {
    next: BTreeMap<IpAddr, [u8; 6]>,
    /// Why the interface carries nothing any more.
    lost: Option<String>,
}

impl Hosts {
    /// Begins to ask for what is behind `interface`.
    pub(super) fn ask(netlink: Netlink, interface: &Interface) -> std::io::Result<Hosts> {
        let bell = Arc::new(Doorbell::new()?);
        let seen = Arc::default();
        let (wanted, asked) = channel();
        let asker = Asker {
            netlink,
            index: interface.index,
            name: interface.name.clone(),
            seen: Arc::clone(&seen),
            bell: Arc::clone(&bell),
            dark: None,
        };
        std::thread::Builder::new().name("underlay".into()).spawn(move || asker.run(&asked))?;
        Ok(Hosts { seen, bell, wanted })
    }

    /// The hosts to be resolved.
    pub(super) fn want(&self, hosts: Wanted) {
        // Where the interface is lost, the thread has ended.
        let _ = self.wanted.send(hosts);
    }

    /// Readable when something changed.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Whether something changed since the last call.
    pub(super) fn changed(&self) -> bool {
        self.bell.drain()
    }

    /// Why the interface carries nothing any more, if so.
    pub(super) fn lost(&self) -> Option<String> {
        lock(&self.seen).lost.clone()
    }

    /// The next hop towards each host, as far as it is resolved.
    pub(super) fn neighbors(&self) -> Vec<NeighborSpec> {
        lock(&self.seen).next.iter().map(|(host, mac)| NeighborSpec { host: *host, mac: Mac(*mac) }).collect()
    }
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Asker {
    netlink: Netlink,
    index: u32,
    name: String,
    seen: Arc<Mutex<Seen>>,
    bell: Arc<Doorbell>,
    /// Since when there is no carrier.
    dark: Option<Instant>,
}

impl Asker {
    /// Asks the kernel until the underlay is closed, or the interface is lost.
    fn run(mut self, wanted: &Receiver<Wanted>) {
        let mut hosts = Wanted::new();
        loop {
            match wanted.recv_timeout(REFRESH) {
                // Of several that came while the kernel was asked, the last one counts.
                Ok(others) => hosts = wanted.try_iter().last().unwrap_or(others),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Some(reason) = self.lost() {
                lock(&self.seen).lost = Some(reason);
                self.bell.ring();
                return;
            }
            let next = hosts
                .iter()
                .filter_map(|(host, is_watched)| Some((*host, self.next_hop(*host, *is_watched)?)))
                .collect();
            let mut seen = lock(&self.seen);
            if seen.next != next {
                seen.next = next;
                drop(seen);
                self.bell.ring();
            }
        }
    }

    /// Why the interface carries nothing any more. None as well where the kernel cannot tell just now.
    fn lost(&mut self) -> Option<String> {
        let link = self.netlink.link(&self.name);
        if !link.as_ref().is_ok_and(|link| link.state.is_without_carrier()) {
            self.dark = None;
        }
        match link {
            Ok(link) if link.index != self.index => Some(format!("{}: another interface has this name now", self.name)),
            Ok(link) if !link.up => Some(PortError::Down { name: self.name.clone() }.to_string()),
            Ok(link) if link.state.is_without_carrier() => {
                let since = *self.dark.get_or_insert_with(Instant::now);
                (since.elapsed() >= DARK).then(|| PortError::NoCarrier { name: self.name.clone() }.to_string())
            }
            Err(gone @ NetlinkError::NoInterface { .. }) => Some(gone.to_string()),
            Ok(_) | Err(_) => None,
        }
    }

    /// The MAC address to which frames for `host` go out of the interface. None: there is no such way, or it is not
    /// known yet, and the kernel was asked to find out. With `is_watched` it is asked to make sure of a known one, too:
    /// one that does not answer is lost then, as fast as the neighbour parameters of the interface say.
    fn next_hop(&mut self, host: IpAddr, is_watched: bool) -> Option<[u8; 6]> {
        let route = self.netlink.route(host).ok().filter(|route| route.interface == self.index && !route.local)?;
        let next = route.gateway.unwrap_or(host);
        let known = self.netlink.neighbour(self.index, next).ok().flatten().and_then(|neighbour| neighbour.mac);
        if (known.is_none() || is_watched)
            && let Err(error) = self.netlink.resolve(self.index, next)
        {
            tracing::debug!(%host, %next, %error, "the next hop cannot be asked for");
        }
        known
    }
}
