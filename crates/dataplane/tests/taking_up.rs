//! The data plane takes up a front end when its volume is open, and says what it does: the supervisor counts on that
//! when it looks for the one that data planes die of.
//!
//! The data plane is the real one, on a thread; the supervisor is this test, which opens files when it likes.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use softdpu_dataplane as dataplane;
use softdpu_link::{ConnectionId, Down, Link, OpenFailure, SharedFd, SupervisorLink, Up};
use softdpu_site::{Isolation, parse};

const PATIENCE: Duration = Duration::from_secs(20);

/// For what must not come.
const A_WHILE: Duration = Duration::from_millis(300);

/// A device without a file, one with a file that opens late, one with a file that does not open.
const SITE: &str = "
[[volume]]
name = \"null\"
null = { size = \"1 MiB\" }
[[volume]]
name = \"late\"
file = { path = \"late.img\", direct = false }
[[volume]]
name = \"never\"
file = { path = \"never.img\", direct = false }
[[device]]
name = \"at-once\"
virtio-blk = { volume = \"null\" }
[[device]]
name = \"late\"
virtio-blk = { volume = \"late\" }
[[device]]
name = \"never\"
virtio-blk = { volume = \"never\" }
";

struct Supervisor {
    link: SupervisorLink,
    /// The calls to open the files that nothing was said about.
    opens: Vec<(String, u64)>,
}

impl Supervisor {
    /// What is said of connections within `patience`, as text; the first only.
    fn hears(&mut self, patience: Duration) -> Option<String> {
        let deadline = Instant::now() + patience;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.link.wait(Some(left)).unwrap()?.0 {
                Up::Open { call, open } => self.opens.push((open.volume, call)),
                Up::Ready => return Some("ready".to_owned()),
                Up::Attached { connection } => return Some(format!("attached {}", connection.0)),
                Up::Held { connection } => return Some(format!("held {}", connection.0)),
                Up::Close { connection, .. } => return Some(format!("close {}", connection.0)),
                _ => {}
            }
        }
    }

    fn says(&mut self, message: &Down, fds: Vec<SharedFd>) {
        self.link.send(message, fds).unwrap();
        self.link.drain().unwrap();
    }

    fn attaches(&mut self, device: &str, connection: u64) {
        let connection = ConnectionId(connection);
        self.says(
            &Down::Attach { device: device.to_owned(), connection, session: None, fds: vec![], more: false },
            vec![],
        );
    }

    fn opened(&mut self, volume: &str, file: Result<SharedFd, OpenFailure>) {
        let place = self.opens.iter().position(|(name, _)| name == volume).expect("it was asked for");
        let (_, call) = self.opens.remove(place);
        let (result, fds) = match file {
            Ok(file) => (Ok(()), vec![file]),
            Err(failure) => (Err(failure), vec![]),
        };
        self.says(&Down::Opened { call, result }, fds);
    }
}

fn start(folder: &Path) -> Supervisor {
    for file in ["late.img", "never.img"] {
        std::fs::write(folder.join(file), vec![0; 1 << 20]).unwrap();
    }
    let loaded = parse(SITE, "site.toml", folder, None);
    let mut site = Box::new(loaded.site.unwrap_or_else(|| panic!("{}", loaded.report)));
    // The data plane is a thread of this process here, and the other threads need more than it does.
    site.node.isolation = Isolation::Off;
    let (link, socket) = Link::pair().unwrap();
    std::thread::spawn(move || dataplane::run(socket, |_| ()));
    let mut supervisor = Supervisor { link, opens: Vec::new() };
    let message = Down::Start {
        site,
        incarnation: 1,
        kept: vec![],
        placements: vec![],
        death: None,
        loaded: vec![],
        standby: false,
    };
    supervisor.says(&message, vec![]);
    assert_eq!(supervisor.hears(PATIENCE).as_deref(), Some("ready"));
    supervisor
}

#[test]
fn attached_is_said_once_when_the_volume_is_open_and_never_of_one_that_is_turned_away() {
    let folder = tempfile::tempdir().unwrap();
    let mut supervisor = start(folder.path());

    supervisor.attaches("at-once", 1);
    assert_eq!(supervisor.hears(PATIENCE).as_deref(), Some("attached 1"));
    supervisor.attaches("late", 2);
    assert_eq!(supervisor.hears(PATIENCE).as_deref(), Some("held 2"));
    supervisor.attaches("never", 3);
    assert_eq!(supervisor.hears(PATIENCE).as_deref(), Some("held 3"));
    assert_eq!(supervisor.hears(A_WHILE), None);

    let file = std::fs::File::options().read(true).write(true).open(folder.path().join("late.img")).unwrap();
    supervisor.opened("late", Ok(Arc::new(file.into())));
    assert_eq!(supervisor.hears(PATIENCE).as_deref(), Some("attached 2"));
    supervisor.opened("never", Err(OpenFailure { errno: Some(13), message: "not allowed".to_owned() }));
    assert_eq!(supervisor.hears(PATIENCE).as_deref(), Some("close 3"));
    assert_eq!(supervisor.hears(A_WHILE), None);
    supervisor.says(&Down::Shutdown, vec![]);
}

#[test]
fn a_connection_that_is_taken_back_while_it_waits_is_not_taken_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut supervisor = start(folder.path());
    supervisor.attaches("late", 1);
    assert_eq!(supervisor.hears(PATIENCE).as_deref(), Some("held 1"));
    supervisor.says(&Down::Closed { connection: ConnectionId(1) }, vec![]);
    supervisor.attaches("late", 1);
    assert_eq!(supervisor.hears(PATIENCE).as_deref(), Some("held 1"));
    supervisor.says(&Down::Closed { connection: ConnectionId(1) }, vec![]);

    let file = std::fs::File::options().read(true).write(true).open(folder.path().join("late.img")).unwrap();
    supervisor.opened("late", Ok(Arc::new(file.into())));
    assert_eq!(supervisor.hears(A_WHILE), None);
    supervisor.attaches("late", 1);
    assert_eq!(supervisor.hears(PATIENCE).as_deref(), Some("attached 1"));
    supervisor.says(&Down::Shutdown, vec![]);
}
