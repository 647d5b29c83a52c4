//! The supervisor with data planes that are real processes and are really killed.
//!
//! This program is its own data plane: the supervisor starts it with the subcommand, and it answers each message with
//! its process id, the session before the message, and what it finds in the descriptors it was given.

use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, getpid, kill_process};
use serde_json::json;
use softdpu_api::status::NodeStatus;
use softdpu_api::{Client, Query};
use softdpu_link::{BEAT, DataPlaneLink, Down, Link, LinkError, Up};
use softdpu_supervisor::{RunOptions, SUBCOMMAND, run};

const PATIENCE: Duration = Duration::from_secs(30);

/// Ask for the reply.
const ECHO: u32 = 1;
/// Die before the reply, unless the session says that this has happened.
const DIE_ONCE: u32 = 2;

fn main() {
    if std::env::args().nth(1).as_deref() == Some(SUBCOMMAND) {
        return data_plane();
    }
    let folder = tempfile::tempdir().unwrap();
    kills_lose_nothing(folder.path());
    println!("test kills_lose_nothing ... ok");
}

fn data_plane() {
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let mut link: DataPlaneLink = Link::new(stdin);
    let (mut session, mut incarnation) = (String::new(), 0);
    loop {
        let (message, fds) = match link.wait(Some(BEAT)) {
            Ok(Some(received)) => received,
            Ok(None) => {
                link.send(&Up::Alive, vec![]).unwrap();
                continue;
            }
            Err(LinkError::Closed) => return,
            Err(error) => panic!("{error}"),
        };
        match message {
            Down::Start { incarnation: number, .. } => {
                incarnation = number;
                link.send(&Up::Ready, vec![]).unwrap();
            }
            Down::Attach { connection, session: before, .. } => {
                session = before.unwrap_or_default();
                link.send(&Up::Attached { connection }, vec![]).unwrap();
            }
            Down::Message { connection, header, .. } => {
                if header[0] == DIE_ONCE as u8 && incarnation == 1 {
                    kill_process(getpid(), Signal::KILL).unwrap();
                }
                let mut reply = format!("{} {session:?}", std::process::id());
                for fd in fds {
                    let mut text = [0; 16];
                    let count = rustix::io::pread(&fd, &mut text, 0).unwrap();
                    reply += &format!(" {}", String::from_utf8_lossy(&text[..count]));
                }
                session = format!("{session}{}", header[0]);
                let up = Up::Handled {
                    connection,
                    reply: format!("{reply}\n").into_bytes(),
                    reply_fds: 0,
                    session: session.clone(),
                    kept: vec![],
                    released: vec![],
                    close: None,
                };
                link.send(&up, vec![]).unwrap();
            }
            Down::Call { id, .. } => {
                link.send(&Up::Answer { id, result: Ok(json!(NodeStatus::default())) }, vec![]).unwrap();
            }
            Down::Shutdown => return,
            Down::Closed { .. } | Down::Opened { .. } | Down::TakeOver { .. } | Down::Quiesce { .. } => {}
        }
    }
}

fn send(front_end: &UnixStream, request: u32, fd: Option<&OwnedFd>) {
    let bytes: Vec<u8> = [request, 1, 0].iter().flat_map(|word| word.to_le_bytes()).collect();
    let fds: Vec<_> = fd.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
    }
    assert_eq!(sendmsg(front_end, &[IoSlice::new(&bytes)], &mut control, SendFlags::empty()), Ok(12));
}

/// The process that answered, and its answer.
fn answer(front_end: &mut UnixStream) -> (i32, String) {
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        front_end.read_exact(&mut byte).unwrap();
        line.push(byte[0]);
    }
    let line = String::from_utf8(line).unwrap();
    let (pid, rest) = line.trim_end().split_once(' ').unwrap();
    (pid.parse().unwrap(), rest.to_owned())
}

fn kills_lose_nothing(folder: &Path) {
    let site = folder.join("site.toml");
    let cpu = 0;
    let text = format!(
        r#"
        [node]
        run-directory = "run"
        dataplane = {{ cores = [{cpu}] }}
        [[volume]]
        name = "disk"
        memory = {{ size = "1 MiB" }}
        [[device]]
        name = "a"
        domain = "vm"
        virtio-blk = {{ volume = "disk", socket = "a.sock" }}
        "#
    );
    std::fs::write(&site, text).unwrap();
    let options = RunOptions { program: Some(std::env::current_exe().unwrap()), ..RunOptions::default() };
    let supervisor = std::thread::spawn(move || run(&site, options));
    let deadline = Instant::now() + PATIENCE;
    let mut front_end = loop {
        match UnixStream::connect(folder.join("a.sock")) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        assert!(!supervisor.is_finished(), "{:?}", supervisor.join());
        std::thread::sleep(Duration::from_millis(10));
    };
    front_end.set_read_timeout(Some(PATIENCE)).unwrap();

    let mut file = tempfile::tempfile().unwrap();
    file.write_all(b"kick").unwrap();
    let fd = Arc::new(OwnedFd::from(file));
    send(&front_end, ECHO, None);
    let (first, text) = answer(&mut front_end);
    assert_eq!(text, "\"\"");
    send(&front_end, DIE_ONCE, Some(&fd));
    let (mut pid, text) = answer(&mut front_end);
    assert_ne!(pid, first, "the one that had the message first is dead");
    assert_eq!(text, "\"1\" kick", "the next one had the session and the descriptor");

    let mut session = "12".to_owned();
    for _ in 0..20 {
        send(&front_end, ECHO, None);
        // Dead already where it died of an earlier round's kill.
        let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        let (answered_by, text) = answer(&mut front_end);
        assert_eq!(text, format!("{session:?}"), "applied once, in order");
        session.push('1');
        pid = answered_by;
    }

    let mut client = Client::connect(&folder.join("run/api.sock"), PATIENCE).unwrap();
    let status = client.status().unwrap();
    assert!(status.data_plane.restarts >= 10, "{:?}", status.data_plane);
    assert_eq!(status.data_plane.last_exit.as_deref(), Some("killed by SIGKILL"));
    client.call::<serde_json::Value>(Query::Shutdown).unwrap();
    supervisor.join().unwrap().unwrap();
    assert!(!folder.join("a.sock").exists(), "nothing is left behind");
}
