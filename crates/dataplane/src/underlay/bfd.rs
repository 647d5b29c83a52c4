//! BFD sessions with the hosts that ECMP groups lead to (RFC 5880, 5881, 5883): a host that forwards nothing is no next
//! hop within some hundred milliseconds.
//!
//! ```text
//!  Networks: hosts wanted ──▶ ┌────────────┐ ◀──▶ UDP 3784, 4784 of this node's tunnel end points
//!            status, bell ◀── │ thread bfd │ ◀──▶ a socket for each session
//!                             └─────┬──────┘
//!                                   ▼ snapshots, kept across the death of this process
//! ```
//!
//! The sessions themselves are [`softdpu_bfd`]'s. A host behind a router is reached by multihop packets, the others by
//! single-hop ones, which have to come with a hop limit of 255.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};
use softdpu_bfd::{
    ControlPacket, Diagnostic, MULTIHOP_PORT, SINGLE_HOP_PORT, SINGLE_HOP_TTL, SOURCE_PORTS, Session,
    SessionParameters, SessionSnapshot, State,
};
use softdpu_site as config;
use softdpu_sys::ReapedFd;
use softdpu_sys::hops::HopSocket;
use softdpu_sys::netlink::Netlink;
use softdpu_sys::wake::Doorbell;

use crate::broker::Wire;

/// Datagrams that are read before timers are looked at again: a flood delays no packet of ours.
const BATCH: usize = 64;
/// How often a port that is in use is tried again.
const RETRY: Duration = Duration::from_secs(5);
/// Source ports that are tried for a session.
const PORT_ATTEMPTS: usize = 64;
/// Snapshots are kept, and the control thread is woken, no more often than this, whatever a neighbour says: each change
/// of a state that a group goes by makes new tables.
const KEEP_INTERVAL: Duration = Duration::from_millis(20);
/// Bytes of a datagram that are looked at.
const LARGEST: usize = 64;
/// What the sessions are called in the vault.
const KEPT: &str = "bfd";
/// Layout of what is kept.
const KEPT_VERSION: u32 = 1;

/// What is known of the session with a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SessionStatus {
    pub state: State,
    pub diagnostic: Diagnostic,
    /// The host has taken its side down administratively, which says nothing of the path (RFC 5882 §4.2).
    pub neighbour_is_admin_down: bool,
    /// Packets are expected over routers.
    pub multihop: bool,
}

impl SessionStatus {
    /// As a session begins that an earlier process had. The route is looked up again.
    fn of_kept(snapshot: &SessionSnapshot) -> SessionStatus {
        let session = Session::resume(*snapshot, SessionParameters::default(), Duration::ZERO);
        SessionStatus {
            state: session.state(),
            diagnostic: session.diagnostic(),
            neighbour_is_admin_down: session.neighbour_is_admin_down(),
            multihop: false,
        }
    }

    /// Whether the host may be taken as a next hop.
    pub(crate) fn forwards(&self) -> bool {
        self.state == State::Up || self.neighbour_is_admin_down
    }
}

/// The node's sessions, from when a group asks for the first.
pub(crate) struct BfdSessions {
    wire: Arc<Wire>,
    addresses: Vec<IpAddr>,
    wanted: Wanted,
    thread: Option<Bfd>,
}

impl BfdSessions {
    pub(crate) fn new(wire: Arc<Wire>) -> BfdSessions {
        BfdSessions { wire, addresses: Vec::new(), wanted: Wanted::default(), thread: None }
    }

    /// The hosts with which there are to be sessions, from these tunnel end points of this node. The thread starts with
    /// the first host and goes on with none, as its neighbours may be wanted again.
    pub(crate) fn want(&mut self, mut hosts: Vec<IpAddr>, settings: config::Bfd, addresses: &[IpAddr]) {
        hosts.sort_unstable();
        hosts.dedup();
        let parameters = SessionParameters { interval: settings.interval.0, multiplier: settings.multiplier };
        let wanted = Wanted { hosts, parameters };
        if self.addresses != addresses {
            self.addresses = addresses.to_vec();
            self.thread = None;
        } else if self.wanted == wanted {
            return;
        }
        self.wanted = wanted.clone();
        match &self.thread {
            Some(thread) => thread.want(wanted),
            None if wanted.hosts.is_empty() || addresses.is_empty() => {}
            None => self.start(wanted),
        }
    }

    fn start(&mut self, wanted: Wanted) {
        let kept = self.wire.kept_fd(KEPT);
        let kept = kept.as_ref().map(|fd| fd.as_fd());
        let wire = Arc::clone(&self.wire);
        let keep = Box::new(move |fd: OwnedFd| {
            if let Err(error) = wire.keep_fd(KEPT, Arc::new(ReapedFd::from(fd))) {
                tracing::warn!(%error, "BFD sessions cannot be kept: a restart takes them down");
            }
        });
        match Bfd::start(self.addresses.clone(), wanted, kept, keep) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => tracing::error!(%error, "BFD: no thread; members of groups with BFD get no packets"),
        }
    }

    /// Readable when the state of a session changed.
    pub(crate) fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.thread.as_ref().map(Bfd::bell)
    }

    /// Whether the state of a session changed since the last call.
    pub(crate) fn changed(&self) -> bool {
        self.thread.as_ref().is_some_and(Bfd::changed)
    }

    /// The sessions by host.
    pub(crate) fn status(&self) -> BTreeMap<IpAddr, SessionStatus> {
        self.thread.as_ref().map(Bfd::status).unwrap_or_default()
    }
}

/// The thread that has the sessions. Dropping this ends it.
struct Bfd {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Clone, Default, PartialEq, Eq)]
struct Wanted {
    hosts: Vec<IpAddr>,
    parameters: SessionParameters,
}

struct Shared {
    wanted: Mutex<Wanted>,
    status: Mutex<BTreeMap<IpAddr, SessionStatus>>,
    /// Rung when `status` changed.
    changed: Doorbell,
    /// Rung when the thread has to look at `wanted` or `ended`.
    woken: Doorbell,
    ended: AtomicBool,
}

/// What is kept of a session for the data plane that follows.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: u32,
    sessions: Vec<(IpAddr, SessionSnapshot)>,
}

/// Takes the descriptor of what is to be kept.
type Keep = Box<dyn Fn(OwnedFd) + Send>;

impl Bfd {
    /// Starts the thread and its first sessions. `addresses` are this node's tunnel end points; `kept` is what an
    /// earlier process gave to `keep`: what was up then is up from the beginning.
    fn start(addresses: Vec<IpAddr>, wanted: Wanted, kept: Option<BorrowedFd<'_>>, keep: Keep) -> io::Result<Bfd> {
        let resumable = kept.map(read_kept).unwrap_or_default();
        let status = resumable.iter().filter(|(host, _)| wanted.hosts.contains(host));
        let status = status.map(|(host, snapshot)| (*host, SessionStatus::of_kept(snapshot))).collect();
        let shared = Arc::new(Shared {
            wanted: Mutex::new(wanted),
            status: Mutex::new(status),
            changed: Doorbell::new()?,
            woken: Doorbell::new()?,
            ended: AtomicBool::new(false),
        });
        shared.woken.ring();
        let mut runner = Runner {
            shared: Arc::clone(&shared),
            addresses,
            netlink: Netlink::new().ok(),
            origin: Instant::now(),
            receivers: Vec::new(),
            retry_at: None,
            hosts: BTreeMap::new(),
            resumable,
            parameters: SessionParameters::default(),
            keep,
            keep_at: None,
            publish_after: Duration::ZERO,
            is_unpublished: false,
            random: fastrand::Rng::new(),
        };
        let thread = std::thread::Builder::new().name("bfd".into()).spawn(move || runner.run())?;
        Ok(Bfd { shared, thread: Some(thread) })
    }

    /// The hosts with which there are to be sessions, and at which interval.
    fn want(&self, wanted: Wanted) {
        *lock(&self.shared.wanted) = wanted;
        self.shared.woken.ring();
    }

    /// Readable when the state of a session changed.
    fn bell(&self) -> BorrowedFd<'_> {
        self.shared.changed.as_fd()
    }

    /// Whether the state of a session changed since the last call.
    fn changed(&self) -> bool {
        self.shared.changed.drain()
    }

    /// The sessions by host.
    fn status(&self) -> BTreeMap<IpAddr, SessionStatus> {
        lock(&self.shared.status).clone()
    }
}

impl Drop for Bfd {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.woken.ring();
        // Its ports are free for the next one then.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sessions of an earlier process; none where it was another release with another layout.
fn read_kept(file: BorrowedFd<'_>) -> BTreeMap<IpAddr, SessionSnapshot> {
    let read = || -> io::Result<Kept> {
        let mut file = File::from(file.try_clone_to_owned()?);
        file.seek(SeekFrom::Start(0))?;
        let mut text = Vec::new();
        file.take(16 << 20).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    };
    match read() {
        Ok(Kept { version: KEPT_VERSION, sessions }) => sessions.into_iter().collect(),
        Ok(Kept { version, .. }) => {
            tracing::warn!(version, "BFD sessions of another release are not taken over");
            BTreeMap::new()
        }
        Err(error) => {
            tracing::warn!(%error, "BFD sessions of the data plane before this one cannot be read");
            BTreeMap::new()
        }
    }
}

/// A socket that packets come to.
struct Receiver {
    address: IpAddr,
    socket: HopSocket,
    multihop: bool,
}

/// A session with a host.
struct Host {
    session: Session,
    socket: HopSocket,
    multihop: bool,
}

struct Runner {
    shared: Arc<Shared>,
    addresses: Vec<IpAddr>,
    /// Tells which hosts are behind routers; none where the kernel gives no netlink socket.
    netlink: Option<Netlink>,
    origin: Instant,
    receivers: Vec<Receiver>,
    /// When to try again to open what could not be opened.
    retry_at: Option<Duration>,
    hosts: BTreeMap<IpAddr, Host>,
    /// Sessions of an earlier process that no host was wanted for yet.
    resumable: BTreeMap<IpAddr, SessionSnapshot>,
    parameters: SessionParameters,
    keep: Keep,
    /// Snapshots changed; when they are to be kept.
    keep_at: Option<Duration>,
    /// Not before this is the control thread woken again.
    publish_after: Duration,
    /// States changed that the control thread does not know.
    is_unpublished: bool,
    random: fastrand::Rng,
}

impl Runner {
    fn run(&mut self) {
        while !self.shared.ended.load(Ordering::Relaxed) {
            if self.shared.woken.drain() {
                self.follow_wanted();
            }
            self.read();
            self.turn();
            self.publish();
            self.wait();
        }
    }

    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    /// Starts and ends sessions as wanted.
    fn follow_wanted(&mut self) {
        let (hosts, parameters) = {
            let wanted = lock(&self.shared.wanted);
            (wanted.hosts.clone(), wanted.parameters)
        };
        let now = self.now();
        self.hosts.retain(|host, _| hosts.contains(host));
        if parameters != self.parameters {
            self.parameters = parameters;
            for host in self.hosts.values_mut() {
                host.session.set_parameters(parameters, now);
            }
        }
        self.keep_at = self.keep_at.or(Some(now));
        if hosts.is_empty() {
            self.receivers.clear();
            self.retry_at = None;
            return;
        }
        self.listen(now);
        for host in hosts {
            if !self.hosts.contains_key(&host) {
                self.add(host, now);
            }
        }
        // A host that comes later begins anew: what was up long ago says nothing.
        self.resumable.clear();
    }

    /// Opens the ports that packets come to, as far as they are not open.
    fn listen(&mut self, now: Duration) {
        self.retry_at = None;
        for &address in &self.addresses {
            for (port, multihop) in [(SINGLE_HOP_PORT, false), (MULTIHOP_PORT, true)] {
                let is_it = |open: &Receiver| open.address == address && open.multihop == multihop;
                if self.receivers.iter().any(is_it) {
                    continue;
                }
                match HopSocket::bind(SocketAddr::new(address, port), SINGLE_HOP_TTL) {
                    Ok(socket) => self.receivers.push(Receiver { address, socket, multihop }),
                    Err(error) => {
                        tracing::error!(%address, port, %error, "BFD: the port cannot be opened; it is tried again");
                        self.retry_at = Some(now + RETRY);
                    }
                }
            }
        }
    }

    /// Starts the session with a host, where an earlier process left it if there was one.
    fn add(&mut self, host: IpAddr, now: Duration) {
        let Some(&local) = self.addresses.iter().find(|address| address.is_ipv4() == host.is_ipv4()) else {
            tracing::error!(%host, "BFD: this node has no tunnel end point of the host's address family");
            return;
        };
        let socket = match self.source(local) {
            Ok(socket) => socket,
            Err(error) => {
                tracing::error!(%host, %error, "BFD: no socket for a session; it is tried again");
                self.retry_at = Some(now + RETRY);
                return;
            }
        };
        let session = match self.resumable.remove(&host) {
            Some(snapshot) => Session::resume(snapshot, self.parameters, now),
            None => Session::new(self.parameters, self.discriminator(), now),
        };
        let multihop = self.is_multihop(host);
        self.hosts.insert(host, Host { session, socket, multihop });
    }

    /// A socket whose port no other session here sends from (RFC 5881 §4).
    fn source(&mut self, local: IpAddr) -> io::Result<HopSocket> {
        let mut last = io::Error::from(io::ErrorKind::AddrInUse);
        for _ in 0..PORT_ATTEMPTS {
            let port = self.random.u16(SOURCE_PORTS);
            match HopSocket::bind(SocketAddr::new(local, port), SINGLE_HOP_TTL) {
                Ok(socket) => return Ok(socket),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// A number that no session here has.
    fn discriminator(&mut self) -> NonZeroU32 {
        loop {
            if let Some(number) = NonZeroU32::new(self.random.u32(..))
                && self.hosts.values().all(|host| host.session.my_discriminator() != number)
                && self.resumable.values().all(|snapshot| snapshot.my_discriminator() != number)
            {
                return number;
            }
        }
    }

    /// Whether the kernel's route to a host leads over a router.
    fn is_multihop(&mut self, host: IpAddr) -> bool {
        let route = self.netlink.as_mut().and_then(|netlink| netlink.route(host).ok());
        route.is_some_and(|route| route.gateway.is_some())
    }

    /// Takes what has come, a bounded number of datagrams.
    fn read(&mut self) {
        let now = self.now();
        let mut buffer = [0; LARGEST];
        for receiver in &self.receivers {
            for _ in 0..BATCH {
                let datagram = match receiver.socket.receive(&mut buffer) {
                    Ok(datagram) => datagram,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    // An ICMP error to what was sent, say: the detection time tells what it means.
                    Err(_) => continue,
                };
                if !receiver.multihop && datagram.hop_limit != SINGLE_HOP_TTL {
                    continue;
                }
                let Ok(packet) = ControlPacket::parse(&buffer[..datagram.len]) else { continue };
                let Some(host) = self.hosts.get_mut(&datagram.from.ip()) else { continue };
                if host.multihop != receiver.multihop {
                    continue;
                }
                // Anyone may send it, from any distance. A host that has forgotten the session is noticed by its
                // silence.
                let is_unnamed = packet.your_discriminator.is_none();
                if host.multihop && is_unnamed && host.session.state() == State::Up {
                    continue;
                }
                let before = host.session.snapshot();
                let Ok(answer) = host.session.receive(&packet, now) else { continue };
                if let Some(answer) = answer {
                    send(host, datagram.from.ip(), answer);
                }
                if before != host.session.snapshot() {
                    self.keep_at = self.keep_at.or(Some(now + KEEP_INTERVAL));
                }
            }
        }
    }

    /// Sends what is due, and notices silence.
    fn turn(&mut self) {
        let now = self.now();
        if self.retry_at.is_some_and(|at| at <= now) {
            self.retry_at = None;
            self.follow_wanted();
        }
        let addresses: Vec<IpAddr> = self.hosts.keys().copied().collect();
        for address in addresses {
            let random = self.random.u32(..);
            let Some(host) = self.hosts.get_mut(&address) else { continue };
            let before = host.session.snapshot();
            let packet = host.session.poll(now, random);
            if host.session.snapshot() != before {
                self.keep_at = self.keep_at.or(Some(now));
            }
            let Some(packet) = packet else { continue };
            send(host, address, packet);
            let is_up = host.session.state() == State::Up;
            // Routes change; while a session is not up, one packet a second goes by the route of the moment.
            if !is_up {
                let multihop = self.is_multihop(address);
                if let Some(host) = self.hosts.get_mut(&address) {
                    host.multihop = multihop;
                }
            }
        }
        if self.keep_at.is_some_and(|at| at <= now) {
            self.keep_at = None;
            self.keep_sessions();
        }
    }

    /// Tells the control thread of other states.
    fn publish(&mut self) {
        let now = self.now();
        let status: BTreeMap<IpAddr, SessionStatus> =
            self.hosts.iter().map(|(host, of)| (*host, of.status())).collect();
        let mut published = lock(&self.shared.status);
        self.is_unpublished = *published != status;
        if !self.is_unpublished || now < self.publish_after {
            return;
        }
        self.is_unpublished = false;
        self.publish_after = now + KEEP_INTERVAL;
        for (host, session) in &status {
            let before = published.get(host).map_or(State::Down, |before| before.state);
            if before != session.state && (before == State::Up || session.state == State::Up) {
                tracing::info!(%host, state = session.state.as_str(), diagnostic = %session.diagnostic, "BFD");
            }
        }
        *published = status;
        drop(published);
        self.shared.changed.ring();
    }

    /// Keeps the sessions for the data plane that follows.
    fn keep_sessions(&self) {
        let sessions = self.hosts.iter().map(|(host, of)| (*host, of.session.snapshot())).collect();
        let write = || -> io::Result<OwnedFd> {
            let mut file = File::from(memfd_create("softdpu-bfd", MemfdFlags::CLOEXEC)?);
            file.write_all(&serde_json::to_vec(&Kept { version: KEPT_VERSION, sessions })?)?;
            Ok(file.into())
        };
        match write() {
            Ok(fd) => (self.keep)(fd),
            Err(error) => tracing::warn!(%error, "BFD sessions cannot be kept: a restart takes them down"),
        }
    }

    /// Until a packet comes, a session has something to do, or other hosts are wanted.
    fn wait(&self) {
        let sessions = self.hosts.values().filter_map(|host| host.session.deadline());
        let publish_at = self.is_unpublished.then_some(self.publish_after);
        let due = sessions.chain(self.retry_at).chain(self.keep_at).chain(publish_at).min();
        let pause = due.map(|due| due.saturating_sub(self.now()));
        let pause =
            pause.map(|pause| Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: pause.subsec_nanos().into() });
        let mut fds = vec![PollFd::new(&self.shared.woken, PollFlags::IN)];
        fds.extend(self.receivers.iter().map(|receiver| PollFd::new(&receiver.socket, PollFlags::IN)));
        // EINTR is a wake-up like any other.
        let _ = poll(&mut fds, pause.as_ref());
    }
}

impl Host {
    fn status(&self) -> SessionStatus {
        SessionStatus {
            state: self.session.state(),
            diagnostic: self.session.diagnostic(),
            neighbour_is_admin_down: self.session.neighbour_is_admin_down(),
            multihop: self.multihop,
        }
    }
}

/// A packet that cannot be sent counts as lost on the way.
fn send(host: &Host, to: IpAddr, packet: ControlPacket) {
    let port = if host.multihop { MULTIHOP_PORT } else { SINGLE_HOP_PORT };
    if let Err(error) = host.socket.send_to(&packet.to_bytes(), SocketAddr::new(to, port)) {
        tracing::debug!(%to, %error, "BFD: a packet was not sent");
    }
}

#[cfg(test)]
mod tests;
