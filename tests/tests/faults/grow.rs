//! Volumes that grow while their driver runs.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use softdpu_frontend::{BlockFrontEnd, BlockOptions};
use softdpu_tests::{Context, Daemon, Failure};
use softdpu_transport::vhost_user::client::backend_request::CONFIG_CHANGE_MSG;
use softdpu_transport::vhost_user::{HEADER_SIZE, Header, Message, ProtocolFeatures};

use crate::common::*;

/// The next message on the back-end channel is that the configuration changed.
fn expect_config_change(channel: &mut UnixStream) -> Result<(), Failure> {
    let mut head = [0; HEADER_SIZE];
    channel.read_exact(&mut head).context("waiting for VHOST_USER_BACKEND_CONFIG_CHANGE_MSG")?;
    let header = Header::parse(&head).context("the back-end channel")?;
    assert_eq!((header.request, header.size), (CONFIG_CHANGE_MSG, 0));
    Ok(())
}

fn capacity(front_end: &mut BlockFrontEnd) -> Result<u64, Failure> {
    front_end.read_config().context("reading the configuration space")?;
    Ok(front_end.capacity() * 512)
}

#[test]
fn a_volume_that_grows_is_larger_for_its_driver_at_once_and_after_a_kill() {
    run("grow", &[], |lab| {
        let image = lab.image("image", 16 * MIB)?;
        let backend = format!("file = {{ path = '{}' }}", image.display());
        let mut daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("data", &backend, 1)))?;
        let options =
            BlockOptions { inflight: true, protocol: ProtocolFeatures::BACKEND_REQ, ..BlockOptions::default() };
        let mut front_end = connect(&daemon, "data", &options)?;
        let (mut channel, theirs) = UnixStream::pair().context("a socket pair")?;
        channel.set_read_timeout(Some(WAIT)).context("a timeout")?;
        front_end.connection().call(&Message::SetBackendReqFd, &[theirs.as_fd()]).context("SET_BACKEND_REQ_FD")?;
        drop(theirs);
        assert_eq!(capacity(&mut front_end)?, 16 * MIB);

        let beyond = 16 * MIB / 512;
        let request = softdpu_frontend::BlockRequest::Read { sector: beyond, len: 4096 };
        assert_eq!(ask(&mut front_end, request)?.1, IOERR, "reading behind the end");
        daemon.grow("data", "24 MiB")?;
        expect_config_change(&mut channel)?;
        assert_eq!(capacity(&mut front_end)?, 24 * MIB);
        assert!(read(&mut front_end, beyond, 4096)? == [0; 4096]);
        write(&mut front_end, beyond, &[5; 4096])?;
        assert!(read(&mut front_end, beyond, 4096)? == [5; 4096]);

        let words = refused(&daemon, &["volume", "grow", "data", "20 MiB"]);
        assert!(words.contains("data") && words.contains("cannot shrink"), "{words}");
        assert_eq!(capacity(&mut front_end)?, 24 * MIB);

        daemon.kill_data_plane()?;
        assert_eq!(capacity(&mut front_end)?, 24 * MIB);
        assert!(read(&mut front_end, beyond, 4096)? == [5; 4096]);
        // The channel outlives the kill.
        daemon.grow("data", "32 MiB")?;
        expect_config_change(&mut channel)?;
        assert_eq!(capacity(&mut front_end)?, 32 * MIB);
        assert!(read(&mut front_end, 24 * MIB / 512, 4096)? == [0; 4096]);
        drop(front_end);
        daemon.stop()
    });
}
