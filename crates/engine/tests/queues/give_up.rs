//! A queue that moved and is stopped while its volume hangs.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use crate::common::cores::{engine, event};
use crate::common::disk::Guest;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softdpu_engine::{CoreIndex, FromCore};
use softdpu_ring::Format;
use softdpu_storage::{PathBroker, Volume, VolumeKind, VolumeSpec};

const SIZE: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

/// An NBD server that says when a read of one block has come, and answers it with sevens when it is told to.
fn serve(listener: &UnixListener, came: &Sender<()>, answer: &Receiver<()>) -> std::io::Result<()> {
    let (mut stream, _) = listener.accept()?;
    stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
    // Client flags, and NBD_OPT_GO for the default export.
    stream.read_exact(&mut [0; 4 + 8 + 4 + 4 + 4 + 2 + 2])?;
    let reply = |stream: &mut UnixStream, kind: u32, body: &[u8]| {
        let head = [&0x0003_e889_0455_65a9_u64.to_be_bytes()[..], &7u32.to_be_bytes(), &kind.to_be_bytes()].concat();
        stream.write_all(&[&head[..], &(body.len() as u32).to_be_bytes(), body].concat())
    };
    // NBD_REP_INFO with NBD_INFO_EXPORT: its size, NBD_FLAG_HAS_FLAGS; then NBD_REP_ACK.
    reply(&mut stream, 3, &[&[0, 0][..], &SIZE.to_be_bytes(), &1u16.to_be_bytes()].concat())?;
    reply(&mut stream, 1, &[])?;
    let mut request = [0; 28];
    stream.read_exact(&mut request)?;
    let _ = came.send(());
    let _ = answer.recv_timeout(PATIENCE);
    stream.write_all(&[&0x6744_6698u32.to_be_bytes()[..], &[0; 4], &request[8..16], &[7; 512]].concat())?;
    // Until the client has gone.
    let _ = stream.read(&mut [0; 28]);
    Ok(())
}

#[test]
fn once_a_stop_is_told_no_core_that_the_queue_was_on_touches_its_guests_memory() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("nbd.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let ((came, coming), (answer, answers)) = (channel(), channel());
    let server = std::thread::spawn(move || serve(&listener, &came, &answers));
    let uri = format!("nbd+unix:///?socket={}", socket.display()).parse().unwrap();
    let kind = VolumeKind::Nbd { uri, answer: PATIENCE, timeout: PATIENCE, reconnect: PATIENCE };
    let volume: Arc<Volume> = Volume::open(VolumeSpec::new("disk", kind), &PathBroker::new()).unwrap();
    volume.activate().unwrap();

    let mut engine = engine(None);
    let mut guest = Guest::new(Format::Split);
    let key = engine.start_queue(Some(CoreIndex(0)), guest.spec(&volume, 0)).unwrap();
    assert!(guest.submit(None, 0));
    guest.publish();
    coming.recv_timeout(PATIENCE).expect("the read reaches the server");
    engine.move_queue(key, CoreIndex(1)).unwrap();
    engine.stop_queue(key, Duration::ZERO).unwrap();

    // Until it can be read that the queue has stopped, and not further: from then on its memory is the guest's.
    let deadline = Instant::now() + PATIENCE;
    while engine.prepare_wait() {
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        poll(&mut [PollFd::new(&engine.bell(), PollFlags::IN)], Some(&second)).unwrap();
        engine.waited();
        assert!(Instant::now() < deadline, "the queue has not stopped");
    }
    engine.waited();
    let before = guest.bytes();
    answer.send(()).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(guest.bytes() == before, "the late answer reached the guest's memory");
    let abandoned = event(&mut engine, "the queue stops", |event| match event {
        FromCore::Stopped { key: stopped, abandoned, .. } if stopped == key => Some(abandoned),
        _ => None,
    });
    assert_eq!(abandoned, 1);
    drop(engine);
    drop(volume);
    server.join().unwrap().unwrap();
}
