//! The front end of `softdpu-bench` against a running server: every kind of request, both ring formats, stop and start.

#![allow(missing_docs)]

use std::time::Duration;

use softdpu_frontend::{BlockFrontEnd, BlockOptions, BlockRequest, Format};
use softdpu_tests::{Context, Disk, Failure, Lab, Server, ServerKind};

const WAIT: Duration = Duration::from_secs(30);

/// Does one request and gives its tag.
fn ask(front_end: &mut BlockFrontEnd, request: BlockRequest<'_>) -> Result<u16, Failure> {
    let queue = front_end.queue_mut(0);
    let tag = queue.submit(request).context("adding a request")?;
    queue.publish();
    let done = queue.wait(WAIT).context(format_args!("waiting for {request:?}"))?;
    assert_eq!((done.tag, done.status), (tag, 0), "{request:?}");
    Ok(tag)
}

fn read(front_end: &mut BlockFrontEnd, sector: u64, len: u32) -> Result<Vec<u8>, Failure> {
    let tag = ask(front_end, BlockRequest::Read { sector, len })?;
    let mut bytes = vec![0; len as usize];
    let data = front_end.queue_mut(0).data(tag, len).context("looking at the data")?;
    data.read_at(0, &mut bytes).context("copying the data")?;
    Ok(bytes)
}

fn with_disk(options: &BlockOptions, body: impl FnOnce(&mut BlockFrontEnd) -> Result<(), Failure>) {
    Lab::run("front-end", |lab| {
        let disk = Disk::new("data", lab.image("data.img", 16 << 20)?);
        let disk = if options.format == Format::Packed { disk.packed() } else { disk };
        let server = Server::start(ServerKind::from_environment()?, lab, &[disk])?;
        let mut front_end =
            BlockFrontEnd::connect(&server.guest_disk("data")?.socket, options).context("connecting the front end")?;
        body(&mut front_end)?;
        drop(front_end);
        server.stop()
    });
}

fn every_request(options: &BlockOptions) {
    with_disk(options, |front_end| {
        assert_eq!(front_end.capacity(), (16 << 20) / 512);
        ask(front_end, BlockRequest::Write { sector: 8, data: &[0xa5; 8192] })?;
        ask(front_end, BlockRequest::Flush)?;
        assert!(read(front_end, 8, 8192)? == [0xa5; 8192]);
        ask(front_end, BlockRequest::WriteZeroes { sector: 8, sectors: 8, unmap: false })?;
        assert!(read(front_end, 8, 4096)? == [0; 4096]);
        assert!(read(front_end, 16, 4096)? == [0xa5; 4096], "what was not zeroed is as it was");
        ask(front_end, BlockRequest::Discard { sector: 16, sectors: 8 })?;
        ask(front_end, BlockRequest::GetId)?;
        Ok(())
    });
}

#[test]
fn every_kind_of_request_succeeds_on_a_split_ring() {
    every_request(&BlockOptions::default());
}

#[test]
fn every_kind_of_request_succeeds_through_indirect_tables() {
    every_request(&BlockOptions { indirect: true, ..BlockOptions::default() });
}

#[test]
fn every_kind_of_request_succeeds_without_event_index() {
    every_request(&BlockOptions { event_idx: false, ..BlockOptions::default() });
}

#[test]
fn every_kind_of_request_succeeds_on_a_packed_ring() {
    if matches!(ServerKind::from_environment(), Ok(ServerKind::StorageDaemon)) {
        return softdpu_tests::skip("packed front end", "qemu-storage-daemon offers no packed rings");
    }
    every_request(&BlockOptions { format: Format::Packed, ..BlockOptions::default() });
}

#[test]
fn a_queue_that_was_stopped_goes_on_where_it_was() {
    with_disk(&BlockOptions::default(), |front_end| {
        ask(front_end, BlockRequest::Write { sector: 0, data: &[7; 512] })?;
        let position = front_end.stop(0).context("stopping")?;
        assert_eq!(position, front_end.queue_mut(0).driver().returned());
        front_end.start(0, position).context("starting")?;
        assert!(read(front_end, 0, 512)? == [7; 512]);
        Ok(())
    });
}

#[test]
fn a_front_end_that_left_in_the_middle_resumes_with_its_in_flight_region() {
    with_disk(&BlockOptions { inflight: true, ..BlockOptions::default() }, |front_end| {
        ask(front_end, BlockRequest::Write { sector: 0, data: &[9; 4096] })?;
        let queue = front_end.queue_mut(0);
        for sector in 0..64 {
            queue.submit(BlockRequest::Read { sector: sector % 8, len: 512 }).context("adding a read")?;
        }
        queue.publish();
        front_end.reconnect().context("connecting again")?;
        let queue = front_end.queue_mut(0);
        for _ in 0..64 {
            let done = queue.wait(WAIT).context("waiting for what was in flight")?;
            assert_eq!(done.status, 0);
            let mut bytes = [0; 512];
            queue.data(done.tag, 512).and_then(|data| Ok(data.read_at(0, &mut bytes)?)).context("looking")?;
            assert!(bytes == [9; 512]);
        }
        assert_eq!(queue.outstanding(), 0);
        assert!(queue.poll().is_none(), "nothing comes back twice");
        Ok(())
    });
}
