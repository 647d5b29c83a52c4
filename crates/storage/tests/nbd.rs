//! NBD volumes against servers of others: nbdkit and qemu-nbd.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Core, MIB};
use softdpu_storage::*;

struct Server(Child);

impl Server {
    /// A server that listens on `socket`; none, loudly, where it is not installed.
    fn start(socket: &Path, program: &str, args: &[&str]) -> Option<Server> {
        let _ = std::fs::remove_file(socket);
        let child = Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(child) = child else {
            softdpu_testing::skip("a volume at an NBD server", &format!("{program} is not installed"));
            return None;
        };
        let server = Server(child);
        let deadline = Instant::now() + Duration::from_secs(60);
        while !is_ready(socket) {
            assert!(Instant::now() < deadline, "{program} {args:?} does not come up");
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(server)
    }

    fn nbdkit(socket: &Path, args: &[&str]) -> Option<Server> {
        let path = socket.to_str().unwrap();
        Server::start(socket, "nbdkit", &[&["-f", "--exit-with-parent", "-U", path], args].concat())
    }

    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
        // A thread stops when it next looks, so wait until all have.
        while signal == rustix::process::Signal::STOP && !self.is_stopped() {
            std::thread::yield_now();
        }
    }

    fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        tasks.flatten().all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
        })
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether it is a listening socket (between bind and listen it is not), or a PID file.
fn is_ready(path: &Path) -> bool {
    let Ok(stat) = std::fs::metadata(path) else { return false };
    if stat.is_file() {
        return stat.len() > 0;
    }
    // __SO_ACCEPTCON in the flags.
    let sockets = std::fs::read_to_string("/proc/net/unix").unwrap();
    let path = path.to_str().unwrap();
    sockets.lines().any(|line| line.ends_with(path) && line.split_whitespace().nth(3) == Some("00010000"))
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    // A short path: a Unix socket's has at most 107 bytes.
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd.sock");
    (folder, socket)
}

fn spec(socket: &Path) -> VolumeSpec {
    let kind = VolumeKind::Nbd {
        uri: format!("nbd+unix:///?socket={}", socket.display()).parse().unwrap(),
        answer: Duration::from_secs(20),
        timeout: Duration::from_secs(20),
        reconnect: Duration::from_millis(200),
    };
    VolumeSpec::new("n", kind)
}

fn impatient(socket: &Path, timeout: Duration) -> VolumeSpec {
    let mut spec = spec(socket);
    if let VolumeKind::Nbd { answer, timeout: limit, .. } = &mut spec.kind {
        (*answer, *limit) = (timeout, timeout);
    }
    spec
}

fn pattern(len: u64, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add((i >> 12) as u8).wrapping_add(seed)).collect()
}

#[test]
fn every_operation_works_at_nbdkit() {
    let (_folder, socket) = folder();
    let Some(_server) = Server::nbdkit(&socket, &["memory", "8M"]) else { return };
    let mut core = Core::new(spec(&socket));
    assert_eq!(core.volume.size(), 8 * MIB);
    let data = pattern(MIB, 1);
    core.write(4096, &data).unwrap();
    assert!(core.read(4096, MIB as usize).unwrap() == data);
    core.op(BlockOp::Flush, 0, 0).unwrap();
    core.op(BlockOp::Discard, 8192, 4096).unwrap();
    for unmap in [true, false] {
        core.write(0, &[7; 16384]).unwrap();
        core.op(BlockOp::WriteZeroes { unmap }, 4096, 8192).unwrap();
        assert_eq!(core.read(0, 16384).unwrap(), [vec![7; 4096], vec![0; 8192], vec![7; 4096]].concat());
    }
    let durable = core.request(BlockOp::Write, 0, 4096);
    assert_eq!(core.run(Request { durable: true, ..durable }).result, Ok(()));
    assert_eq!(core.read(8 * MIB, 512), Err(IoError::OutOfRange));
    assert_eq!(core.volume.status().state, VolumeState::Active);
    assert_eq!(core.context.outstanding(), 0);
}

#[test]
fn a_server_without_fua_zeroes_or_trim_is_served_by_other_means() {
    let (_folder, socket) = folder();
    let args = ["--filter=nozero", "--filter=fua", "memory", "8M", "zeromode=none"];
    let Some(_server) = Server::nbdkit(&socket, &args) else { return };
    let mut core = Core::new(VolumeSpec { write_through: true, ..spec(&socket) });
    core.write(0, &vec![7; MIB as usize]).unwrap();
    core.op(BlockOp::WriteZeroes { unmap: true }, 4096, MIB / 2).unwrap();
    let read = core.read(0, MIB as usize).unwrap();
    let zeroes = 4096..4096 + MIB as usize / 2;
    assert!(read.iter().enumerate().all(|(at, byte)| *byte == if zeroes.contains(&at) { 0 } else { 7 }));
}

#[test]
fn errors_of_the_server_are_errors_of_the_request_only() {
    let (_folder, socket) = folder();
    let args = ["--filter=error", "memory", "8M", "error-pwrite=ENOSPC", "error-pwrite-rate=100%", "error-pread=EIO"];
    let file = socket.with_file_name("broken");
    let trigger = format!("error-file={}", file.display());
    let rate = ["error-pread-rate=100%", &trigger];
    let Some(_server) = Server::nbdkit(&socket, &[&args[..], &rate[..]].concat()) else { return };
    let mut core = Core::new(spec(&socket));
    core.write(0, &[1; 4096]).unwrap();
    std::fs::write(&file, "").unwrap();
    assert_eq!(core.write(0, &[2; 4096]), Err(IoError::NoSpace));
    assert!(matches!(core.read(0, 4096), Err(IoError::Device { .. })));
    std::fs::remove_file(&file).unwrap();
    assert_eq!(core.read(0, 4096).unwrap(), vec![1; 4096]);
    let errors = core.volume.status().errors;
    assert_eq!((errors.no_space, errors.device, errors.disconnects), (1, 1, 0));
}

#[test]
fn a_slow_server_is_waited_for_and_others_are_not_held_up() {
    let (_folder, socket) = folder();
    let Some(_server) = Server::nbdkit(&socket, &["--filter=delay", "memory", "8M", "delay-read=2"]) else {
        return;
    };
    let mut core = Core::new(spec(&socket));
    let slow = core.request(BlockOp::Read, 0, 4096);
    let slow_token = slow.token;
    assert!(core.submit(slow).is_none());
    let before = Instant::now();
    core.write(8192, &[1; 512]).unwrap();
    assert!(before.elapsed() < Duration::from_millis(1900), "the write waited for the read");
    assert_eq!(core.wait(Duration::from_secs(20)).unwrap().token, slow_token);
}

#[test]
fn a_vanished_server_that_returns_gets_everything_again_in_order() {
    let (_folder, socket) = folder();
    let image = socket.with_file_name("disk.img");
    std::fs::write(&image, vec![0; 8 * MIB as usize]).unwrap();
    let path = image.to_str().unwrap();
    // It is killed before it has answered any, however late that is.
    let slow = ["--filter=delay", "file", path, "delay-write=60"];
    let Some(server) = Server::nbdkit(&socket, &slow) else { return };
    let mut core = Core::new(spec(&socket));
    // Overlapping writes: the last one has to win.
    let mut requests: Vec<Request> = (1..=8u8)
        .map(|round| {
            let request = core.request_at(BlockOp::Write, 0, &[4096], 0x1000 * u64::from(round));
            request.buffer.fill(16, 4096, round).unwrap();
            request
        })
        .collect();
    let mut done = Vec::new();
    core.context.submit(core.to, &mut requests, &mut done);
    core.context.flush();
    std::thread::sleep(Duration::from_millis(50));
    server.kill();
    core.context.tick(Instant::now());
    core.context.poll(&mut done);
    assert!(done.is_empty());
    assert_eq!(core.volume.status().state, VolumeState::Recovering);
    // One request at a time, so that the order at the disk is the order on the wire.
    let Some(_server) = Server::nbdkit(&socket, &["--filter=noparallel", "file", path, "serialize=requests"]) else {
        return;
    };
    let deadline = Instant::now() + Duration::from_secs(60);
    while done.len() < 8 && Instant::now() < deadline {
        core.context.tick(Instant::now());
        core.context.poll(&mut done);
    }
    assert_eq!(done.iter().map(|done| done.result).collect::<Vec<_>>(), vec![Ok(()); 8]);
    assert_eq!(core.read(0, 4096).unwrap(), vec![8; 4096]);
    let status = core.volume.status();
    assert_eq!((status.state, status.errors.disconnects), (VolumeState::Active, 1));
    assert!(status.errors.replayed >= 1);
}

#[test]
fn a_server_that_is_killed_again_and_again_loses_no_write() {
    let (_folder, socket) = folder();
    let image = socket.with_file_name("disk.img");
    std::fs::write(&image, vec![0; 8 * MIB as usize]).unwrap();
    let start = || Server::nbdkit(&socket, &["file", image.to_str().unwrap()]);
    let Some(mut server) = start() else { return };
    let mut core = Core::new(spec(&socket));
    // Sixteen slots of 64 KiB, each with one write under way: slot, round.
    let mut written = [0u64; 16];
    let mut kills = 0;
    let mut done = Vec::new();
    let mut requests: Vec<Request> = Vec::new();
    let started = Instant::now();
    let write = |core: &mut Core, slot: u64, round: u64| {
        let request = core.request_at(BlockOp::Write, slot * 65536, &[65536], 0x1000 + slot * 65536);
        request.buffer.fill(16, 65536, (slot * 16 + round) as u8).unwrap();
        Request { token: slot, ..request }
    };
    requests.extend((0..16).map(|slot| write(&mut core, slot, 1)));
    while kills < 10 || core.context.outstanding() > 0 {
        assert!(started.elapsed() < Duration::from_secs(60), "{:?}", core.volume.status());
        core.context.submit(core.to, &mut requests, &mut done);
        core.context.flush();
        core.context.tick(Instant::now());
        core.context.poll(&mut done);
        for one in done.drain(..) {
            assert_eq!(one.result, Ok(()));
            let slot = one.token;
            written[slot as usize] += 1;
            if kills < 10 {
                requests.push(write(&mut core, slot, written[slot as usize] + 1));
            }
        }
        if kills < 10 && written.iter().sum::<u64>() > (kills + 1) * 300 {
            server.kill();
            server = start().unwrap();
            kills += 1;
        }
    }
    for slot in 0..16u64 {
        let last = (slot * 16 + written[slot as usize]) as u8;
        assert!(core.read(slot * 65536, 65536).unwrap().iter().all(|byte| *byte == last), "slot {slot}");
    }
    let errors = core.volume.status().errors;
    assert!(errors.disconnects == 10 && errors.replayed > 0, "{errors:?}");
}

#[test]
fn a_server_that_stays_away_fails_requests_at_the_timeout_and_is_used_again_when_back() {
    let (_folder, socket) = folder();
    let Some(server) = Server::nbdkit(&socket, &["memory", "8M"]) else { return };
    let mut core = Core::new(impatient(&socket, Duration::from_secs(2)));
    core.write(0, &[1; 512]).unwrap();
    server.kill();
    let before = Instant::now();
    assert_eq!(core.write(0, &[2; 512]), Err(IoError::Timeout));
    assert!((Duration::from_millis(1500)..Duration::from_secs(20)).contains(&before.elapsed()));
    assert_eq!(core.context.outstanding(), 0);
    let Some(_server) = Server::nbdkit(&socket, &["memory", "8M"]) else { return };
    let deadline = Instant::now() + Duration::from_secs(60);
    while core.write(0, &[3; 512]).is_err() {
        assert!(Instant::now() < deadline, "the volume does not come back: {:?}", core.volume.status());
    }
}

#[test]
fn a_hung_server_fails_requests_at_the_timeout_and_late_answers_touch_nothing() {
    let (_folder, socket) = folder();
    let Some(server) = Server::nbdkit(&socket, &["memory", "8M"]) else { return };
    let mut core = Core::new(impatient(&socket, Duration::from_secs(2)));
    core.write(0, &[9; 4096]).unwrap();
    server.signal(rustix::process::Signal::STOP);
    let read = core.request(BlockOp::Read, 0, 4096);
    let done = core.run(read);
    assert_eq!(done.result, Err(IoError::Timeout));
    done.buffer.write_at(16, &[0x55; 4096]).unwrap();
    server.signal(rustix::process::Signal::CONT);
    let deadline = Instant::now() + Duration::from_secs(60);
    while core.write(4096, &[3; 512]).is_err() {
        assert!(Instant::now() < deadline, "the volume does not come back: {:?}", core.volume.status());
    }
    let mut bytes = vec![0; 4096];
    done.buffer.read_at(16, &mut bytes).unwrap();
    // The later write used the first 512 bytes of the same memory.
    assert_eq!(bytes[512..], [0x55; 4096 - 512]);
}

#[test]
fn abandoned_requests_are_given_up_at_once_though_the_server_hangs() {
    let (_folder, socket) = folder();
    let Some(server) = Server::nbdkit(&socket, &["memory", "8M"]) else { return };
    let mut core = Core::new(spec(&socket));
    core.write(0, &[9; 4096]).unwrap();
    server.signal(rustix::process::Signal::STOP);
    // Large enough that the socket's buffer holds only a part: one of the writes is abandoned in the middle. Half of it
    // is never written.
    let mut requests = vec![core.request(BlockOp::Read, 0, 4096)];
    requests.extend((0..4).map(|_| core.request(BlockOp::Write, MIB, MIB)));
    let mut done = Vec::new();
    let view = requests[0].buffer.view().clone();
    core.context.submit(core.to, &mut requests, &mut done);
    core.context.flush();
    let before = Instant::now();
    let mut given_up = Vec::new();
    core.context.abandon(&mut |_| true, &mut given_up);
    // Not as long as it waits for a server.
    assert!(before.elapsed() < Duration::from_secs(10));
    assert_eq!((given_up.len(), core.context.outstanding()), (5, 0));
    let guest = view.buffer(softdpu_memory::GuestAddress(0x1000), 4096).unwrap();
    guest.fill(0, 4096, 0x55).unwrap();
    server.signal(rustix::process::Signal::CONT);
    assert_eq!(core.write(4 * MIB, &[3; 512]), Ok(()), "on another connection, behind what was given up");
    assert_eq!(core.volume.status().errors.disconnects, 1);
    core.context.poll(&mut done);
    assert!(done.is_empty());
    let mut bytes = vec![0; 4096];
    guest.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes[512..], [0x55; 4096 - 512], "the late answer did not go to guest memory");
}

#[test]
fn cores_share_one_connection_where_the_server_wants_it_so() {
    for mode in ["multi-conn-mode=disable", "multi-conn-mode=unsafe"] {
        let (_folder, socket) = folder();
        let Some(_server) = Server::nbdkit(&socket, &["--filter=multi-conn", "memory", "8M", mode]) else { return };
        let volume = Volume::open(spec(&socket), &PathBroker::new()).unwrap();
        let mut first = Core::with(volume.clone());
        let mut second = Core::with(volume.clone());
        first.write(0, &[1; 4096]).unwrap();
        assert_eq!(second.read(0, 4096).unwrap(), vec![1; 4096]);
        // What one core receives for another reaches it, also while it sleeps.
        let request = second.request(BlockOp::Read, 0, 4096);
        assert!(second.submit(request).is_none());
        first.read(0, 4096).unwrap();
        let mut set = [rustix::event::PollFd::from_borrowed_fd(second.context.wait_fd(), rustix::event::PollFlags::IN)];
        let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(rustix::event::poll(&mut set, Some(&limit)), Ok(1));
        assert!(second.wait(Duration::from_secs(20)).is_some());
        drop(first);
        assert_eq!(second.read(0, 4096).unwrap(), vec![1; 4096]);
    }
}

#[test]
fn a_read_only_export_has_to_be_a_read_only_volume() {
    let (_folder, socket) = folder();
    let Some(_server) = Server::nbdkit(&socket, &["-r", "memory", "8M"]) else { return };
    let refused = Volume::open(spec(&socket), &PathBroker::new()).unwrap_err().to_string();
    assert!(refused.contains("set read_only = true"), "{refused}");
    let mut core = Core::new(VolumeSpec { read_only: true, ..spec(&socket) });
    assert_eq!(core.read(0, 512).unwrap(), vec![0; 512]);
}

#[test]
fn what_is_not_there_says_so() {
    let (_folder, socket) = folder();
    let refused = Volume::open(spec(&socket), &PathBroker::new()).unwrap_err().to_string();
    assert!(refused.contains("cannot connect") && refused.contains("nbd.sock"), "{refused}");
    let image = socket.with_file_name("disk.img");
    std::fs::write(&image, vec![0; 8 * MIB as usize]).unwrap();
    let args = ["-t", "-x", "right", "-f", "raw", "-k", socket.to_str().unwrap(), image.to_str().unwrap()];
    let Some(_server) = Server::start(&socket, "qemu-nbd", &args) else { return };
    let refused = Volume::open(spec(&socket), &PathBroker::new()).unwrap_err().to_string();
    assert!(refused.contains("no export named \"\""), "{refused}");
}

#[test]
fn a_successor_waits_until_the_server_has_ended_what_its_predecessor_sent() {
    let (_folder, socket) = folder();
    // A server that finishes what it has begun, slowly: the first write lands when it is let. (nbdkit's own delay
    // filter ends its sleep, and the request, when its client goes.)
    let image = socket.with_file_name("disk.img");
    std::fs::write(&image, vec![0; 8 * MIB as usize]).unwrap();
    let file = image.display();
    let pwrite = format!(
        "pwrite=test -e {file}.slow || {{ touch {file}.slow; for _ in $(seq 600); do test -e {file}.go && break; sleep 0.05; done; }}; \
         dd of={file} seek=$4 oflag=seek_bytes conv=notrunc status=none"
    );
    let pread = format!("pread=dd if={file} skip=$4 count=$3 iflag=skip_bytes,count_bytes status=none");
    let Some(_server) = Server::nbdkit(&socket, &["eval", "get_size=echo 8M", &pread, &pwrite]) else { return };
    let broker = PathBroker::new();
    // A process that is killed: its socket lives on at the broker, its write at the server.
    let mut dead = Core::with(Volume::open(spec(&socket), &broker).unwrap());
    let request = dead.request(BlockOp::Write, 0, 4096);
    request.buffer.fill(16, 4096, 0xaa).unwrap();
    assert!(dead.submit(request).is_none());
    let deadline = Instant::now() + Duration::from_secs(20);
    while !socket.with_file_name("disk.img.slow").exists() {
        assert!(Instant::now() < deadline, "the write does not reach the server");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::mem::forget(dead);
    assert_eq!(broker.kept("nbd/n/").unwrap().len(), 1);

    let volume = Volume::open(spec(&socket), &broker).unwrap();
    let Activation::Busy { why } = volume.activate().unwrap() else { panic!("no fence") };
    assert!(why.contains("not yet ended"), "{why}");
    let before = Instant::now();
    let go = socket.with_file_name("disk.img.go");
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(500));
        std::fs::write(go, "").unwrap();
    });
    let mut core = Core::with(volume);
    assert!(before.elapsed() > Duration::from_millis(300), "{:?}", before.elapsed());
    core.write(0, &[0xbb; 4096]).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(core.read(0, 4096).unwrap(), vec![0xbb; 4096]);
    drop(core);
    assert!(broker.kept("nbd/n/").unwrap().is_empty(), "an orderly end leaves nothing to wait for");
}

#[test]
fn qcow2_with_snapshot_and_clone_through_qemu_nbd() {
    let (folder, socket) = folder();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let image = |args: &[&str]| Command::new("qemu-img").args(args).stdout(Stdio::null()).status().map(|s| s.success());
    let (base, clone) = (at("base.qcow2"), at("clone.qcow2"));
    if image(&["create", "-q", "-f", "qcow2", &base, "64M"]).ok() != Some(true) {
        return softdpu_testing::skip("qcow2_with_snapshot_and_clone_through_qemu_nbd", "qemu-img is not installed");
    }
    let serve = |path: &str| {
        Server::start(
            &socket,
            "qemu-nbd",
            &["-t", "-f", "qcow2", "--discard=unmap", "-k", socket.to_str().unwrap(), path],
        )
        .unwrap()
    };
    let server = serve(&base);
    let mut core = Core::new(spec(&socket));
    assert_eq!(core.volume.size(), 64 * MIB);
    core.write(10 * MIB, &pattern(65536, 1)).unwrap();
    core.op(BlockOp::WriteZeroes { unmap: true }, 11 * MIB, 65536).unwrap();
    core.op(BlockOp::Discard, 12 * MIB, 65536).unwrap();
    core.op(BlockOp::Flush, 0, 0).unwrap();
    drop(core);
    server.signal(rustix::process::Signal::TERM);
    drop(server);
    assert!(image(&["snapshot", "-c", "before", &base]).unwrap());
    assert!(image(&["create", "-q", "-f", "qcow2", "-b", &base, "-F", "qcow2", &clone]).unwrap());
    let _server = serve(&clone);
    let mut core = Core::new(spec(&socket));
    assert!(core.read(10 * MIB, 65536).unwrap() == pattern(65536, 1), "the clone has what its base had");
    core.write(10 * MIB, &pattern(65536, 2)).unwrap();
    assert!(core.read(10 * MIB, 65536).unwrap() == pattern(65536, 2));
}

#[test]
fn tcp_works_too() {
    let (_folder, socket) = folder();
    // A free port; until the server starts another program could take it, which would fail the test loudly.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let pid = socket.to_str().unwrap();
    let args = ["-f", "--exit-with-parent", "-P", pid, "-i", "127.0.0.1", "-p", &port, "memory", "8M"];
    let Some(_server) = Server::start(&socket, "nbdkit", &args) else { return };
    let kind = VolumeKind::Nbd {
        uri: format!("nbd://127.0.0.1:{port}").parse().unwrap(),
        answer: Duration::from_secs(20),
        timeout: Duration::from_secs(20),
        reconnect: Duration::from_millis(100),
    };
    let mut core = Core::new(VolumeSpec::new("t", kind));
    let data = pattern(2 * MIB, 3);
    core.write(0, &data).unwrap();
    assert!(core.read(0, data.len()).unwrap() == data);
}
