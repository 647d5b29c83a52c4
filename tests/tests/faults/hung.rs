//! An NBD server that is there and does nothing.

use std::time::Duration;

use rustix::process::Signal;
use softdpu_frontend::{BlockOptions, BlockRequest};
use softdpu_ring::Format;
use softdpu_tests::{Context, Daemon, Failure, Lab, wait_until};
use softdpu_transport::vhost_user::ProtocolFeatures;

use crate::common::*;

/// What the server has, and what the guest puts into a buffer that is its own again.
const SERVED: u8 = 0x5a;
const POISON: u8 = 0xee;
const LEN: u32 = 4096;

fn start(lab: &Lab, more: &str) -> Result<(NbdServer, Daemon), Failure> {
    let image = lab.path().join("image");
    std::fs::write(&image, vec![SERVED; MIB as usize]).context("writing the image")?;
    let server = NbdServer::nbdkit(lab, "nbdkit", &["file", text(&image)?])?;
    let site = node(&[0]) + &disk("remote", &server.backend(more), 1) + &disk("local", MEMORY, 1);
    let site = site.replace("virtio-blk = { ", "virtio-blk = { packed = true, ");
    let daemon = Daemon::start(lab.path(), &site)?;
    Ok((server, daemon))
}

#[test]
fn a_hung_server_holds_up_neither_the_stop_of_its_ring_nor_other_devices_and_its_late_reply_goes_nowhere() {
    // With the front end's in-flight region, and with the records that softdpu keeps where there is none.
    late_reply("hung", BlockOptions { inflight: true, ..BlockOptions::default() });
    // And where the front end says that it can take a ring with requests in flight.
    let protocol = ProtocolFeatures::GET_VRING_BASE_INFLIGHT;
    late_reply("hung-suspended", BlockOptions { inflight: true, protocol, ..BlockOptions::default() });
    late_reply("hung-own", BlockOptions::default());
    late_reply("hung-own-packed", BlockOptions { format: Format::Packed, ..BlockOptions::default() });
}

fn late_reply(name: &str, options: BlockOptions) {
    run(name, &["nbdkit"], |lab| {
        let (mut server, daemon) = start(lab, "")?;
        let mut remote = connect(&daemon, "remote", &options)?;
        assert!(remote.negotiated().protocol.contains(options.protocol));
        let mut local = connect(&daemon, "local", &BlockOptions::default())?;
        assert!(read(&mut remote, 0, LEN)? == [SERVED; LEN as usize]);

        server.hang()?;
        let queue = remote.queue_mut(0);
        let tag = queue.submit(BlockRequest::Read { sector: 8, len: LEN }).context("adding a read")?;
        queue.publish();
        wait_until("status to show the request in flight", WAIT, || {
            let status = daemon.status()?;
            let device = entry(&status, "devices", "remote-disk").unwrap_or_default();
            Ok((device["queues"][0]["inflight"] == 1).then_some(()))
        })?;

        let position = within_a_stop(&mut local, || remote.stop(0).context("stopping the ring"))?;
        assert!(remote.queue_mut(0).poll().is_none(), "a request that was given up completed");

        let buffer = remote.queue_mut(0).data(tag, LEN).context("the buffer")?;
        buffer.fill(0, LEN.into(), POISON).context("poisoning the buffer")?;
        server.process.signal(Signal::CONT);
        // The reply is on its way at once; half a second later it is there.
        std::thread::sleep(Duration::from_millis(500));
        assert!(data(&mut remote, tag, LEN)? == [POISON; LEN as usize], "the late reply reached the guest's buffer");
        assert_eq!(volume(&daemon, "remote")?["counters"]["abandoned"], 1);

        // The request is still recorded as in flight: the ring goes on with it.
        remote.start(0, position).context("starting the ring again")?;
        let queue = remote.queue_mut(0);
        queue.kick();
        let done = queue.wait(WAIT).context("waiting for the request that was in flight")?;
        assert_eq!((done.tag, done.status), (tag, OK));
        assert!(data(&mut remote, tag, LEN)? == [SERVED; LEN as usize]);
        write(&mut remote, 16, &[7; LEN as usize])?;
        assert!(read(&mut remote, 16, LEN)? == [7; LEN as usize]);
        drop((remote, local));
        daemon.stop()
    });
}

#[test]
fn a_volume_whose_server_hangs_is_shown_as_recovering_with_the_reason_until_it_answers() {
    run("recovering", &["nbdkit"], |lab| {
        let (mut server, daemon) = start(lab, ", timeout = \"500 ms\"")?;
        let mut remote = connect(&daemon, "remote", &BlockOptions::default())?;
        assert!(read(&mut remote, 0, LEN)? == [SERVED; LEN as usize]);
        assert_eq!(volume(&daemon, "remote")?["state"], "active");

        server.hang()?;
        let queue = remote.queue_mut(0);
        let tag = queue.submit(BlockRequest::Read { sector: 8, len: LEN }).context("adding a read")?;
        queue.publish();
        wait_until("status to show the volume recovering, with what it waits for", WAIT, || {
            let volume = volume(&daemon, "remote")?;
            let named = volume["detail"].as_str().is_some_and(|detail| detail.contains("server"));
            Ok((volume["state"] == "recovering" && named).then_some(()))
        })
        .map_err(|error| Failure::new(format!("{error}; status: {:?}", daemon.status())))?;
        server.process.signal(Signal::CONT);
        let done = remote.queue_mut(0).wait(WAIT).context("waiting for the read")?;
        assert_eq!((done.tag, done.status), (tag, OK), "a request waits for its server, as `reconnect` says");
        wait_until("status to show the volume active again", WAIT, || {
            Ok((volume(&daemon, "remote")?["state"] == "active").then_some(()))
        })?;
        assert!(read(&mut remote, 8, LEN)? == [SERVED; LEN as usize]);
        drop(remote);
        daemon.stop()
    });
}
