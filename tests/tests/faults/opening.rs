//! Volumes that cannot be opened yet: no other device waits for them, no front end is disconnected, and they are tried
//! again.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use softdpu_frontend::{BlockOptions, BlockRequest};
use softdpu_tests::{Context, Daemon, Failure, Lab, wait_until};

use crate::common::*;

/// How long a volume waits for a server that never answers.
const DEAD: Duration = Duration::from_secs(8);
/// The most that a request takes that need not wait for such a server, on a machine that is busy with something else
/// for seconds.
const AT_ONCE: Duration = Duration::from_secs(6);

/// A listener whose backlog is full, so that the kernel drops what else wants to connect: a host that is not there.
fn black_hole() -> Result<(TcpListener, Vec<TcpStream>), Failure> {
    let listener = TcpListener::bind("127.0.0.1:0").context("a listener")?;
    rustix::net::listen(&listener, 0).context("a short backlog")?;
    let address = listener.local_addr().context("its address")?;
    let full = (0..16).map_while(|_| TcpStream::connect_timeout(&address, Duration::from_millis(200)).ok()).collect();
    Ok((listener, full))
}

/// A server that says nothing until `open`, and then serves 1 MiB of zeroes.
fn slow_server(lab: &Lab, open: Arc<AtomicBool>) -> Result<String, Failure> {
    let socket = lab.path().join("slow.sock");
    let listener = UnixListener::bind(&socket).context("a slow server")?;
    let serve = |mut stream: UnixStream, open: &AtomicBool| -> std::io::Result<()> {
        while !open.load(SeqCst) {
            std::thread::sleep(Duration::from_millis(10));
        }
        stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
        stream.read_exact(&mut [0; 4 + 8 + 4 + 4 + 4 + 2 + 2])?;
        let reply = |kind: u32, body: &[u8]| {
            let head = [&0x3e889045565a9u64.to_be_bytes()[..], &7u32.to_be_bytes(), &kind.to_be_bytes()].concat();
            [&head[..], &(body.len() as u32).to_be_bytes(), body].concat()
        };
        let export = [&[0, 0][..], &MIB.to_be_bytes(), &1u16.to_be_bytes()].concat();
        stream.write_all(&[reply(3, &export), reply(1, &[])].concat())?;
        let mut asked = [0; 28];
        loop {
            stream.read_exact(&mut asked)?;
            let len = u32::from_be_bytes([asked[24], asked[25], asked[26], asked[27]]);
            let head = [&0x67446698u32.to_be_bytes()[..], &[0; 4], &asked[8..16]].concat();
            stream.write_all(&[head, vec![0; len as usize]].concat())?;
        }
    };
    // Ends with the test process.
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let open = Arc::clone(&open);
            std::thread::spawn(move || serve(stream, &open));
        }
    });
    Ok(format!("nbd = {{ uri = \"nbd+unix:///?socket={}\" }}", socket.display()))
}

fn serves_at_once(daemon: &Daemon, name: &str) -> Result<(), Failure> {
    let start = Instant::now();
    let mut front_end = connect(daemon, name, &BlockOptions::default())?;
    write(&mut front_end, 0, &[1; 4096])?;
    assert!(start.elapsed() < AT_ONCE, "{name} took {:?}", start.elapsed());
    Ok(())
}

fn device(daemon: &Daemon, name: &str) -> Result<serde_json::Value, Failure> {
    entry(&daemon.status()?, "devices", name).ok_or_else(|| Failure::new(format!("status has no device {name}")))
}

#[test]
fn servers_that_never_answer_hold_up_neither_the_start_nor_other_devices_and_status_says_so() {
    run("dead-servers", &[], |lab| {
        let mute = lab.path().join("mute.sock");
        let other = lab.path().join("other.sock");
        let _mute = [&mute, &other].map(|socket| UnixListener::bind(socket).context("a mute server"));
        let (hole, _full) = black_hole()?;
        let mute = format!(
            "nbd = {{ uri = \"nbd+unix:///?socket={}\", timeout = \"{} s\", reconnect = \"never\" }}",
            mute.display(),
            DEAD.as_secs()
        );
        let hole = hole.local_addr().context("an address")?;
        let hole =
            format!("nbd = {{ uri = \"nbd://{hole}/\", timeout = \"{} s\", reconnect = \"never\" }}", DEAD.as_secs());
        let local = disk("local", MEMORY, 1);
        let start = Instant::now();
        let daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("a", &mute, 1) + &disk("b", &hole, 1) + &local))?;
        assert!(start.elapsed() < AT_ONCE, "the start took {:?}", start.elapsed());
        for name in ["a", "b"] {
            assert_eq!(volume(&daemon, name)?["state"], "opening");
            assert_eq!(device(&daemon, &format!("{name}-disk"))?["state"], "opening");
        }
        serves_at_once(&daemon, "local")?;

        // A change that waits for such a server keeps no other request waiting either.
        std::thread::scope(|scope| {
            let asked = scope.spawn(|| {
                let uri = format!("nbd+unix:///?socket={}", other.display());
                let timeout = format!("{} s", DEAD.as_secs());
                let params =
                    serde_json::json!({"name": "c", "nbd": {"uri": uri, "timeout": timeout, "reconnect": "never"}});
                Api::connect(lab).and_then(|mut api| api.call("volume.create", &params))
            });
            std::thread::sleep(Duration::from_millis(300));
            let start = Instant::now();
            serves_at_once(&daemon, "local")?;
            daemon.status()?;
            assert!(start.elapsed() < AT_ONCE, "status took {:?}", start.elapsed());
            assert!(!asked.is_finished(), "the change is still under way: {:?}", asked.join());
            let refused = asked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            let error = refused.expect_err("a volume at a server that never answers").to_string();
            assert!(error.contains("no answer in time"), "{error}");
            Ok::<(), Failure>(())
        })?;

        for (name, why) in [("a", "no answer in time"), ("b", "cannot connect")] {
            wait_until("status to tell why a volume is not open", WAIT, || {
                let (volume, device) = (volume(&daemon, name)?, device(&daemon, &format!("{name}-disk"))?);
                let names = |text: &serde_json::Value| text.as_str().is_some_and(|text| text.contains(why));
                let failed = volume["state"] == "failed" && device["state"] == "broken";
                Ok((failed && names(&volume["error"]) && names(&device["broken_reason"])).then_some(()))
            })
            .map_err(|error| Failure::new(format!("{error}: {:?}", daemon.status())))?;
        }
        serves_at_once(&daemon, "local")?;
        assert_eq!(daemon.data_plane()?.1, 0, "the data plane was never restarted");
        daemon.stop()
    });
}

#[test]
fn a_front_end_that_comes_before_its_volume_is_open_is_served_when_it_is() {
    run("early", &[], |lab| {
        let open = Arc::new(AtomicBool::new(false));
        let backend = slow_server(lab, Arc::clone(&open))?;
        let daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("slow", &backend, 1)))?;
        assert_eq!(device(&daemon, "slow-disk")?["state"], "opening");
        let mut front_end = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(1));
                open.store(true, SeqCst);
            });
            connect(&daemon, "slow", &BlockOptions::default())
        })?;
        assert_eq!(front_end.capacity(), MIB / 512);
        assert!(read(&mut front_end, 0, 4096)? == [0; 4096]);
        assert_eq!(device(&daemon, "slow-disk")?["state"], "running");
        assert_eq!(daemon.data_plane()?.1, 0, "the data plane was never restarted");
        drop(front_end);
        daemon.stop()
    });
}

#[test]
fn a_volume_that_cannot_be_opened_after_a_kill_costs_no_guest_its_disk() {
    run("gone-after-kill", &[], |lab| {
        let image = lab.image("data.img", 1 << 20)?;
        let away = lab.path().join("away.img");
        let backend = format!("file = {{ path = \"{}\" }}", image.display());
        let mut daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("data", &backend, 1)))?;
        let mut front_end = connect(&daemon, "data", &BlockOptions { inflight: true, ..BlockOptions::default() })?;
        write(&mut front_end, 0, &[0x42; 4096])?;

        std::fs::rename(&image, &away).context("taking the image away")?;
        daemon.kill_data_plane()?;
        let queue = front_end.queue_mut(0);
        let tag = queue.submit(BlockRequest::Read { sector: 0, len: 4096 }).context("adding a read")?;
        queue.publish();
        wait_until("status to show that the image is gone", WAIT, || {
            let shown = device(&daemon, "data-disk")?;
            let named = shown["broken_reason"].as_str().is_some_and(|why| why.contains("data.img"));
            Ok((shown["state"] == "broken" && named && volume(&daemon, "data")?["state"] == "failed").then_some(()))
        })
        .map_err(|error| Failure::new(format!("{error}: {:?}", daemon.status())))?;
        std::thread::sleep(Duration::from_millis(500));
        assert!(front_end.queue_mut(0).poll().is_none(), "a request without a volume was answered");

        std::fs::rename(&away, &image).context("bringing it back")?;
        let done = front_end.queue_mut(0).wait(WAIT).context("waiting for the read")?;
        assert_eq!((done.tag, done.status), (tag, OK));
        assert!(data(&mut front_end, tag, 4096)? == [0x42; 4096]);
        wait_until("status to show the device at work again", WAIT, || {
            let shown = device(&daemon, "data-disk")?;
            Ok((shown["state"] == "running" && shown.get("broken_reason").is_none()).then_some(()))
        })?;

        // Its ring can be stopped while the volume is away: the guest's host must not hang.
        std::fs::rename(&image, &away).context("taking the image away")?;
        daemon.kill_data_plane()?;
        let start = Instant::now();
        let position = front_end.stop(0).context("stopping the ring")?;
        assert!(start.elapsed() < AT_ONCE, "the stop took {:?}", start.elapsed());
        std::fs::rename(&away, &image).context("bringing it back")?;
        front_end.start(0, position).context("starting the ring")?;
        assert!(read(&mut front_end, 0, 4096)? == [0x42; 4096]);
        drop(front_end);
        daemon.stop()
    });
}

#[test]
fn an_image_that_is_not_there_at_the_start_costs_no_other_device_its_disk_and_is_served_when_it_comes() {
    let disks = disk("later", "file = { path = 'later.img' }", 1) + &disk("local", MEMORY, 1);
    run_disks("image-comes", &disks, |lab, daemon| {
        let later = lab.path().join("later.img");
        serves_at_once(daemon, "local")?;
        wait_until("status to show that the image is not there", WAIT, || {
            let volume = volume(daemon, "later")?;
            let named = volume["error"].as_str().is_some_and(|why| why.contains("later.img"));
            Ok((volume["state"] == "failed" && named).then_some(()))
        })?;
        let beside = lab.path().join("beside.img");
        std::fs::write(&beside, [0x42; 1 << 20]).context("making the image")?;
        std::fs::rename(&beside, &later).context("moving it to its place")?;
        left_alone(daemon, "later").context("the image is served")?;
        let mut front_end = connect(daemon, "later", &BlockOptions::default())?;
        assert!(read(&mut front_end, 0, 4096)? == [0x42; 4096]);
        Ok(())
    });
}
