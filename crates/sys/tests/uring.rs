//! The ring gives every buffer back once, and none too early.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use softdpu_sys::uring::{Completion, Operation, Ring};
use softdpu_sys::{AlignedBuffer, IoMemory};

fn wait<M: IoMemory, T>(ring: &mut Ring<M, T>) -> Completion<M, T> {
    let deadline = Instant::now() + Duration::from_secs(60);
    ring.submit();
    loop {
        if let Some(completion) = ring.reap() {
            return completion;
        }
        assert!(Instant::now() < deadline, "no completion");
        std::thread::yield_now();
    }
}

fn buffer(bytes: &[u8]) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::new(bytes.len());
    buffer.write_at(0, bytes);
    buffer.set_len(bytes.len());
    buffer
}

#[test]
fn what_was_written_is_read_and_the_end_is_a_short_read() {
    let mut ring = Ring::new(4, 2).unwrap();
    let file = tempfile::tempfile().unwrap();
    let index = ring.add_file(file.as_fd()).unwrap();
    let write = Operation::Write { at: 10, skip: 2, len: 5, durable: true };
    ring.push(index, write, buffer(b"..hello"), 'w').unwrap();
    let done = wait(&mut ring);
    assert_eq!((done.result, done.payload), (Ok(5), 'w'));
    ring.push(index, Operation::Sync, buffer(b""), 's').unwrap();
    assert_eq!(wait(&mut ring).result, Ok(0));
    ring.push(index, Operation::Read { at: 10, skip: 1, len: 100 }, AlignedBuffer::new(4096), 'r').unwrap();
    let done = wait(&mut ring);
    assert_eq!(done.result, Ok(5));
    let mut bytes = [0; 6];
    done.memory.read_at(0, &mut bytes);
    assert_eq!(&bytes, b"\0hello");
    assert!(ring.reap().is_none());
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn a_full_ring_gives_the_buffer_back() {
    let mut ring = Ring::new(2, 1).unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let index = ring.add_file(reader.as_fd()).unwrap();
    let read = Operation::Read { at: 0, skip: 0, len: 1 };
    for name in 0..2 {
        assert!(ring.push(index, read, AlignedBuffer::new(1), name).is_ok());
    }
    assert!(matches!(ring.push(index, read, AlignedBuffer::new(1), 2), Err((_, 2))));
    assert!(ring.add_file(reader.as_fd()).is_err(), "one file only");
}

#[test]
fn a_removed_files_place_is_free_when_what_is_in_flight_on_it_has_ended() {
    let mut ring = Ring::new(4, 1).unwrap();
    let (first, mut writer) = std::io::pipe().unwrap();
    let second = tempfile::tempfile().unwrap();
    let index = ring.add_file(first.as_fd()).unwrap();
    let read = Operation::Read { at: 0, skip: 0, len: 1 };
    // One that the kernel has, and one that it has not seen yet.
    ring.push(index, read, AlignedBuffer::new(1), 1).unwrap();
    ring.submit();
    ring.push(index, read, AlignedBuffer::new(1), 2).unwrap();
    ring.remove_file(index);
    assert!(ring.add_file(second.as_fd()).is_err(), "two reads still need the first file's place");

    writer.write_all(b"a").unwrap();
    assert_eq!(wait(&mut ring).result, Ok(1));
    assert!(ring.add_file(second.as_fd()).is_err(), "one read still needs it");
    writer.write_all(b"b").unwrap();
    assert_eq!(wait(&mut ring).result, Ok(1), "from the first file, as it was when it was pushed");
    let index = ring.add_file(second.as_fd()).expect("the place is free");
    ring.push(index, read, AlignedBuffer::new(1), 3).unwrap();
    assert_eq!(wait(&mut ring).result, Ok(0), "the second file is empty");
    ring.remove_file(index);
    ring.add_file(second.as_fd()).expect("with nothing in flight it is free at once");
}

#[test]
fn a_cancelled_operation_comes_back() {
    let mut ring = Ring::new(2, 1).unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let index = ring.add_file(reader.as_fd()).unwrap();
    let ticket = ring.push(index, Operation::Read { at: 0, skip: 0, len: 1 }, AlignedBuffer::new(1), ()).unwrap();
    ring.submit();
    assert!(ring.reap().is_none());
    ring.cancel(ticket);
    assert!(wait(&mut ring).result.is_err());
}

#[test]
fn the_descriptor_is_readable_when_something_has_ended() {
    let mut ring = Ring::new(2, 1).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    let index = ring.add_file(reader.as_fd()).unwrap();
    ring.push(index, Operation::Read { at: 0, skip: 0, len: 1 }, AlignedBuffer::new(1), ()).unwrap();
    ring.submit();
    let ready = |ring: &Ring<_, _>, timeout: Duration| {
        let mut set = [rustix::event::PollFd::new(ring, rustix::event::PollFlags::IN)];
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: timeout.as_nanos() as i64 };
        match rustix::event::poll(&mut set, Some(&timeout)) {
            Ok(n) => n == 1,
            Err(rustix::io::Errno::INTR) => true,
            Err(error) => panic!("{error}"),
        }
    };
    assert!(!ready(&ring, Duration::from_millis(1)));
    writer.write_all(b"x").unwrap();
    assert!((0..20).any(|_| ready(&ring, Duration::from_millis(900))));
    assert_eq!(wait(&mut ring).result, Ok(1));
}

#[test]
fn every_buffer_comes_back_once_under_load() {
    static LIVE: AtomicUsize = AtomicUsize::new(0);
    struct Counted;
    impl Counted {
        fn new() -> Self {
            LIVE.fetch_add(1, Ordering::Relaxed);
            Counted
        }
    }
    impl Drop for Counted {
        fn drop(&mut self) {
            LIVE.fetch_sub(1, Ordering::Relaxed);
        }
    }
    let mut ring = Ring::new(8, 1).unwrap();
    let file = tempfile::tempfile().unwrap();
    let index = ring.add_file(file.as_fd()).unwrap();
    let (mut pushed, mut ended) = (0, 0);
    for round in 0..1000u64 {
        for _ in 0..(round % 9) {
            let write = Operation::Write { at: round * 512, skip: 0, len: 512, durable: false };
            if ring.push(index, write, AlignedBuffer::new(512), Counted::new()).is_err() {
                // The ring is full: on a slow machine it often is.
                assert_eq!(wait(&mut ring).result, Ok(512));
                ended += 1;
                continue;
            }
            pushed += 1;
        }
        ring.submit();
        while let Some(done) = ring.reap() {
            assert_eq!(done.result, Ok(512));
            ended += 1;
        }
    }
    while ring.in_flight() > 0 {
        wait(&mut ring);
        ended += 1;
    }
    assert!(pushed > 1000, "{pushed}");
    assert_eq!(ended, pushed);
    assert_eq!(LIVE.load(Ordering::Relaxed), 0);
}

#[test]
fn a_dropped_ring_waits_for_or_leaks_what_is_in_flight() {
    let (reader, _writer) = std::io::pipe().unwrap();
    let count = Arc::new(());
    let mut ring = Ring::new(2, 1).unwrap();
    let index = ring.add_file(reader.as_fd()).unwrap();
    ring.push(index, Operation::Read { at: 0, skip: 0, len: 1 }, AlignedBuffer::new(1), Arc::clone(&count)).unwrap();
    ring.submit();
    let before = Instant::now();
    drop(ring);
    // What it waits for would never come by itself.
    assert!(before.elapsed() < Duration::from_secs(30));
    // A read of an empty pipe can be cancelled, so here it came back.
    assert_eq!(Arc::strong_count(&count), 1);
}

#[test]
fn holes_are_punched() {
    let mut ring = Ring::new(2, 1).unwrap();
    let mut file: File = tempfile::tempfile().unwrap();
    file.write_all(&[7; 8192]).unwrap();
    let index = ring.add_file(file.as_fd()).unwrap();
    let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
    let punch = Operation::Allocate { mode: mode.bits(), at: 0, len: 4096 };
    ring.push(index, punch, AlignedBuffer::new(1), ()).unwrap();
    assert_eq!(wait(&mut ring).result, Ok(0));
    ring.push(index, Operation::Read { at: 4095, skip: 0, len: 2 }, AlignedBuffer::new(2), ()).unwrap();
    let mut bytes = [1; 2];
    wait(&mut ring).memory.read_at(0, &mut bytes);
    assert_eq!(bytes, [0, 7]);
}
