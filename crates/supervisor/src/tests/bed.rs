//! A supervisor on a thread, and the other ends of all its sockets in the test's hands. Every wait has a deadline.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
    connect, sendmsg, socket_with,
};
use softdpu_sys::ReapedFd;
use softdpu_sys::wake::Doorbell;

use super::super::poller::Poller;
use super::super::process::{Exit, Process, ProcessState, Spawner};
use super::super::reexec::{self, Executed, Left, Successor, Understood, Verdict};
use super::super::run::{RunError, prepare};
use super::super::supervisor::{Ground, Handle, Supervisor, Timing};
use softdpu_api::{ApiError, Id, Request, Response, decode_response, encode_request};
use softdpu_link::{ConnectionId, DataPlaneLink, Down, FdId, Formats, LINK_FORMAT, Link, SharedFd, Up};
use softdpu_site::{self as config, Site};

/// Longer than anything takes here, even on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// What the data planes of these tests understand.
pub const FORMATS: Formats = Formats { link: LINK_FORMAT, oldest_session: 1, session: 1 };

/// For what must not happen.
pub const A_WHILE: Duration = Duration::from_millis(150);

pub struct Bed {
    pub folder: tempfile::TempDir,
    pub handle: Handle,
    planes: Receiver<FakePlane>,
    successors: Receiver<Running>,
    thread: Option<SupervisorThread>,
    pub starts: Arc<Mutex<Vec<Instant>>>,
}

type SupervisorThread = JoinHandle<Result<(), RunError>>;

/// A supervisor that has followed another.
type Running = (Handle, SupervisorThread);

/// A data plane that the test plays.
pub struct FakePlane {
    pub link: DataPlaneLink,
    /// The program of which it is.
    pub program: PathBuf,
    end: Arc<Doorbell>,
    killed: Arc<AtomicBool>,
    reason: Arc<Mutex<Option<String>>>,
    stuck: Arc<AtomicBool>,
}

/// What is left of a data plane that is dead and cannot be reaped.
pub struct Stuck {
    _link: DataPlaneLink,
    end: Arc<Doorbell>,
    stuck: Arc<AtomicBool>,
}

impl Stuck {
    /// It can be reaped.
    pub fn end(self) {
        self.stuck.store(false, Ordering::SeqCst);
        self.end.ring();
    }
}

/// A program: what it does as a supervisor is in its [name](FakeSuccessor).
#[derive(Clone)]
struct FakeSpawner {
    program: PathBuf,
    planes: Sender<FakePlane>,
    starts: Arc<Mutex<Vec<Instant>>>,
    /// Each dies as soon as it is started.
    stillborn: bool,
    /// All that were started, by their ids.
    processes: Arc<Mutex<HashMap<u32, FakeProcess>>>,
    successors: Sender<Running>,
    timing: Timing,
}

#[derive(Clone)]
struct FakeProcess {
    id: u32,
    end: Arc<Doorbell>,
    killed: Arc<AtomicBool>,
    reason: Arc<Mutex<Option<String>>>,
    stuck: Arc<AtomicBool>,
}

impl Spawner for FakeSpawner {
    fn spawn(&mut self, link: OwnedFd) -> io::Result<Box<dyn Process>> {
        self.starts.lock().unwrap().push(Instant::now());
        let end = Arc::new(Doorbell::new()?);
        let (killed, reason) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(None)));
        let stuck = Arc::new(AtomicBool::new(false));
        static LAST: AtomicU32 = AtomicU32::new(4242);
        let process = FakeProcess {
            id: LAST.fetch_add(1, Ordering::SeqCst),
            end: Arc::clone(&end),
            killed: Arc::clone(&killed),
            reason: Arc::clone(&reason),
            stuck: Arc::clone(&stuck),
        };
        self.processes.lock().unwrap().insert(process.id, process.clone());
        let program = self.program.clone();
        let plane = FakePlane { link: Link::new(link), program, end, killed, reason, stuck };
        if self.stillborn {
            plane.die("exit status 1");
        } else {
            self.planes.send(plane).unwrap();
        }
        Ok(Box::new(process))
    }

    fn other(&self, program: &Path) -> io::Result<Box<dyn Spawner>> {
        if program.ends_with("absent") {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Box::new(FakeSpawner { program: program.to_owned(), stillborn: false, ..self.clone() }))
    }

    fn file(&self) -> io::Result<OwnedFd> {
        let mut file = tempfile::tempfile()?;
        file.write_all(self.program.as_os_str().as_encoded_bytes())?;
        Ok(file.into())
    }

    fn successor(&self) -> io::Result<Arc<dyn Successor>> {
        Ok(Arc::new(FakeSuccessor(Mutex::new(self.clone()))))
    }

    fn of(&self, file: OwnedFd) -> Box<dyn Spawner> {
        let file = File::from(file);
        let mut name = vec![0; file.metadata().unwrap().len() as usize];
        file.read_exact_at(&mut name, 0).unwrap();
        Box::new(FakeSpawner { program: String::from_utf8(name).unwrap().into(), ..self.clone() })
    }

    fn adopt(&self, process: ProcessState, _end: OwnedFd) -> Box<dyn Process> {
        Box::new(self.processes.lock().unwrap()[&process.pid].clone())
    }
}

/// A program as a supervisor: one that goes on in this process, on another thread, unless its name says what is wrong
/// with it.
struct FakeSuccessor(Mutex<FakeSpawner>);

impl FakeSuccessor {
    fn is(&self, fault: &str) -> bool {
        self.0.lock().unwrap().program.ends_with(fault)
    }
}

impl Successor for FakeSuccessor {
    fn understands(&self, _: Duration) -> Result<Understood, String> {
        let mut here = reexec::understood();
        if self.is("slow") {
            std::thread::sleep(A_WHILE);
        }
        if self.is("mute") {
            return Err("it does not answer in time".into());
        }
        if self.is("too-new") {
            (here.state.oldest, here.state.newest) = (here.state.newest + 1, here.state.newest + 2);
        }
        if self.is("other-link") {
            (here.link.oldest, here.link.newest) = (LINK_FORMAT + 1, LINK_FORMAT + 1);
        }
        Ok(here)
    }

    fn check(&self, state: BorrowedFd<'_>, _: Duration) -> Result<Verdict, String> {
        if self.is("liar") {
            return Ok(Verdict::Fits(7));
        }
        if self.is("refuses") {
            return Ok(Verdict::Refused("it is not to its taste".into()));
        }
        Ok(reexec::check(state))
    }

    fn execute(&self, state: BorrowedFd<'_>, keep: &[BorrowedFd<'_>], failed: Option<&str>) -> Executed {
        if self.is("cannot-start") {
            return Executed::Failed(io::ErrorKind::PermissionDenied.into());
        }
        let failed = failed.map(str::to_owned).or(self.is("goes-back").then(|| "it could not".to_owned()));
        let fds = keep.iter().map(|fd| fd.try_clone_to_owned().unwrap()).collect();
        let state = reexec::read(state).unwrap().state;
        let spawner = self.0.lock().unwrap().clone();
        let ground = Ground { poller: Poller::new().unwrap(), bell: Arc::new(Doorbell::new().unwrap()) };
        let (successors, timing) = (spawner.successors.clone(), spawner.timing);
        let made = Supervisor::resume(state, Left::new(fds), &spawner, timing, ground, failed);
        let (supervisor, handle) = made.unwrap();
        let thread = std::thread::spawn(move || supervisor.go_on());
        successors.send((handle, thread)).unwrap();
        Executed::Elsewhere
    }
}

impl Process for FakeProcess {
    fn id(&self) -> u32 {
        self.id
    }
    fn end(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }
    fn kill(&mut self) {
        let mut reason = self.reason.lock().unwrap();
        if reason.is_none() {
            *reason = Some("killed by SIGKILL".into());
            self.killed.store(true, Ordering::SeqCst);
            self.end.ring();
        }
    }
    fn exit(&mut self) -> Option<Exit> {
        let reason = self.reason.lock().unwrap().clone().filter(|_| !self.stuck.load(Ordering::SeqCst))?;
        Some(Exit { reason, sent: false })
    }
    fn state(&self) -> ProcessState {
        ProcessState { pid: self.id, oom_kills: None }
    }
    fn hangs(&mut self) -> Option<Exit> {
        let reason = self.reason.lock().unwrap().clone().filter(|_| self.stuck.load(Ordering::SeqCst))?;
        Some(Exit { reason, sent: false })
    }
}

impl FakePlane {
    /// Dies at once: the link closes with what was sent still in it.
    pub fn die(self, reason: &str) {
        *self.reason.lock().unwrap() = Some(reason.into());
        drop(self.link);
        self.end.ring();
    }

    /// Says something and dies in the same moment: which of both is noticed first is not known.
    pub fn die_saying(mut self, message: &Up, reason: &str) {
        self.stuck.store(true, Ordering::SeqCst);
        *self.reason.lock().unwrap() = Some(reason.into());
        // The supervisor looks for an exit again and again from now on.
        self.end.ring();
        std::thread::sleep(Duration::from_millis(2));
        self.say(message, vec![]);
        self.stuck.store(false, Ordering::SeqCst);
    }

    /// Dies, and cannot be reaped: nothing of it is closed, and nothing is told.
    pub fn die_stuck(self, reason: &str) -> Stuck {
        self.stuck.store(true, Ordering::SeqCst);
        *self.reason.lock().unwrap() = Some(reason.into());
        Stuck { _link: self.link, end: self.end, stuck: self.stuck }
    }

    pub fn was_killed(&self) -> bool {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if self.killed.load(Ordering::SeqCst) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    pub fn next(&mut self) -> (Down, Vec<ReapedFd>) {
        self.link.wait(Some(PATIENCE)).unwrap().expect("the supervisor says something in time")
    }

    /// Says nothing came for a while.
    pub fn hears_nothing(&mut self) -> bool {
        self.link.wait(Some(A_WHILE)).unwrap().is_none()
    }

    pub fn say(&mut self, message: &Up, fds: Vec<SharedFd>) {
        self.link.send(message, fds).unwrap();
        self.link.drain().unwrap();
    }

    pub fn greet(&mut self, version: &str, formats: Formats) {
        self.say(&Up::Hello { version: version.into(), formats }, vec![]);
    }

    pub fn start(&mut self) -> (Site, u64, Vec<String>, Vec<ReapedFd>) {
        match self.next() {
            (Down::Start { site, incarnation, kept, .. }, fds) => (*site, incarnation, kept, fds),
            other => panic!("expected Start, got {other:?}"),
        }
    }

    /// Takes up the session that is to come next.
    pub fn attach(&mut self) -> (ConnectionId, Option<String>, Vec<FdId>, Vec<ReapedFd>) {
        match self.next() {
            (Down::Attach { connection, session, fds, .. }, attached) => {
                self.say(&Up::Attached { connection }, vec![]);
                (connection, session, fds, attached)
            }
            other => panic!("expected Attach, got {other:?}"),
        }
    }

    /// Takes up whatever session comes, leaves messages unanswered, and dies of the first thing that is deadly.
    pub fn die_of(mut self, deadly: impl Fn(&Down) -> bool) {
        loop {
            let (message, _) = self.next();
            if deadly(&message) {
                return self.die("killed by SIGSEGV");
            }
            if let Down::Attach { connection, .. } = message {
                self.say(&Up::Attached { connection }, vec![]);
            }
        }
    }

    /// Takes up whatever session comes until it has not heard anything for `quiet`, and dies.
    pub fn die_after(mut self, quiet: Duration) {
        while let Some((message, _)) = self.link.wait(Some(quiet)).unwrap() {
            if let Down::Attach { connection, .. } = message {
                self.say(&Up::Attached { connection }, vec![]);
            }
        }
        self.die("killed by SIGSEGV");
    }

    pub fn message(&mut self) -> (ConnectionId, Vec<u8>, Vec<FdId>, Vec<ReapedFd>) {
        match self.next() {
            (Down::Message { connection, header, payload, fds }, attached) => {
                (connection, [&header[..], &payload].concat(), fds, attached)
            }
            other => panic!("expected Message, got {other:?}"),
        }
    }

    pub fn call(&mut self) -> (u64, softdpu_link::Call) {
        match self.next() {
            (Down::Call { id, call }, _) => (id, call),
            other => panic!("expected Call, got {other:?}"),
        }
    }

    pub fn handled(&mut self, connection: ConnectionId, reply: &[u8], session: &str) {
        self.say(&handled(connection, reply, session), vec![]);
    }
}

/// The plainest answer.
pub fn handled(connection: ConnectionId, reply: &[u8], session: &str) -> Up {
    Up::Handled {
        connection,
        reply: reply.to_vec(),
        reply_fds: 0,
        session: session.into(),
        kept: vec![],
        released: vec![],
        close: None,
    }
}

impl Bed {
    pub fn new() -> Bed {
        Bed::with(Timing::default(), false)
    }

    pub fn with(timing: Timing, stillborn: bool) -> Bed {
        let folder = tempfile::tempdir().unwrap();
        Bed::try_in(folder, timing, stillborn).unwrap()
    }

    pub fn try_in(folder: tempfile::TempDir, timing: Timing, stillborn: bool) -> Result<Bed, RunError> {
        let site = site(&folder);
        let (planes_in, planes) = channel();
        let starts: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let program = PathBuf::from("first");
        let (successors_in, successors) = channel();
        let spawner = FakeSpawner {
            program,
            planes: planes_in,
            starts: Arc::clone(&starts),
            stillborn,
            processes: Arc::default(),
            successors: successors_in,
            timing,
        };
        let (supervisor, handle) = prepare(site, Box::new(spawner), timing)?;
        let thread = Some(std::thread::spawn(move || supervisor.run()));
        Ok(Bed { folder, handle, planes, successors, thread, starts })
    }

    /// Another program has followed in the supervisor: waits for it, and for the end of the one before.
    pub fn followed(&mut self) {
        let (handle, thread) = self.successors.recv_timeout(PATIENCE).expect("another program follows in time");
        self.finished().unwrap();
        (self.handle, self.thread) = (handle, Some(thread));
    }

    /// The next data plane, just started.
    pub fn plane(&self) -> FakePlane {
        self.planes.recv_timeout(PATIENCE).expect("a data plane is started in time")
    }

    /// The next data plane, started and ready.
    pub fn ready_plane(&self) -> FakePlane {
        let mut plane = self.plane();
        plane.greet("1", FORMATS);
        plane.start();
        plane.say(&Up::Ready, vec![]);
        plane
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn connect(&self, device: &str) -> FrontEndStub {
        let stream = UnixStream::connect(self.path(&format!("{device}.sock"))).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        FrontEndStub(stream)
    }

    /// Connects unless so many wait to be accepted, for a while, that there is no room for one more.
    pub fn try_connect(&self, device: &str) -> Option<FrontEndStub> {
        let address = SocketAddrUnix::new(self.path(&format!("{device}.sock"))).unwrap();
        let deadline = Instant::now() + A_WHILE;
        loop {
            let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
            match connect(&socket, &address) {
                Ok(()) => {
                    let stream = UnixStream::from(socket);
                    stream.set_nonblocking(false).unwrap();
                    stream.set_read_timeout(Some(PATIENCE)).unwrap();
                    return Some(FrontEndStub(stream));
                }
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(1)),
                Err(Errno::AGAIN) => return None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    pub fn api(&self) -> ApiStub {
        let stream = UnixStream::connect(self.path("run/api.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        ApiStub { stream: BufReader::new(stream), next: 1 }
    }

    /// Waits until the supervisor's status is as wanted.
    pub fn status_becomes(&self, wanted: impl Fn(&softdpu_api::status::NodeStatus) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.handle.status(PATIENCE).unwrap();
            if wanted(&status) {
                return;
            }
            assert!(Instant::now() < deadline, "{status:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the supervisor's thread.
    pub fn finished(&mut self) -> Result<(), RunError> {
        let thread = self.thread.take().unwrap();
        let deadline = Instant::now() + PATIENCE;
        while !thread.is_finished() {
            assert!(Instant::now() < deadline, "the supervisor stops in time");
            std::thread::sleep(Duration::from_millis(5));
        }
        thread.join().unwrap()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.handle.stop();
        }
    }
}

pub fn site(folder: &tempfile::TempDir) -> Site {
    let base = folder.path();
    let text = format!(
        r#"
        [node]
        run-directory = "{0}/run"
        state-directory = "{0}/state"
        [[volume]]
        name = "disk"
        file = {{ path = "{0}/disk.img", size = "1 MiB" }}
        [[volume]]
        name = "scratch"
        memory = {{ size = "1 MiB" }}
        shared = true
        [[device]]
        name = "a"
        domain = "vm"
        virtio-blk = {{ volume = "disk", socket = "{0}/a.sock" }}
        [[device]]
        name = "b"
        domain = "vm"
        virtio-blk = {{ volume = "scratch", socket = "{0}/b.sock" }}
        "#,
        base.display()
    );
    let loaded = config::parse(&text, "site.toml", base, None);
    let mut site = loaded.site.unwrap_or_else(|| panic!("{}", loaded.report));
    site.node.api.socket = base.join("run/api.sock");
    site
}

/// A vhost-user front end.
pub struct FrontEndStub(pub UnixStream);

/// A message as it is on the wire.
pub fn message(request: u32, payload: &[u8]) -> Vec<u8> {
    let words = [request, 1, payload.len() as u32];
    words.iter().flat_map(|word| word.to_le_bytes()).chain(payload.iter().copied()).collect()
}

impl FrontEndStub {
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).unwrap();
    }

    pub fn send_with_fds(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = vec![std::mem::MaybeUninit::uninit(); 4096];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
        let sent = sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
        assert_eq!(sent, bytes.len());
    }

    pub fn receive(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn receives_nothing(&mut self) -> bool {
        self.0.set_read_timeout(Some(A_WHILE)).unwrap();
        let result = self.0.read(&mut [0]);
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        matches!(result, Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    pub fn is_closed(&mut self) -> bool {
        match self.0.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

/// A client of the management socket.
pub struct ApiStub {
    stream: BufReader<UnixStream>,
    next: u64,
}

impl ApiStub {
    pub fn ask(&mut self, request: impl Into<Request>) -> Id {
        let id = Id::Number(self.next);
        self.next += 1;
        self.stream.get_mut().write_all(encode_request(&id, &request.into()).as_bytes()).unwrap();
        id
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    pub fn response(&mut self) -> Response {
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        decode_response(line.trim_end().as_bytes()).unwrap()
    }

    pub fn answer(&mut self, id: Id) -> Result<serde_json::Value, ApiError> {
        let response = self.response();
        assert_eq!(response.id, Some(id));
        response.outcome
    }
}
