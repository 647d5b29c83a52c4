//! A ring in a process that may have few files open. A program of its own, as the limit is the whole process's.

use std::os::fd::AsFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use softdpu_sys::AlignedBuffer;
use softdpu_sys::uring::Ring;

#[test]
fn a_ring_has_no_more_places_for_files_than_the_process_may_have_open() {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
    let mut ring = Ring::<AlignedBuffer, ()>::new(4, 1024).unwrap();
    let file = tempfile::tempfile().unwrap();
    for _ in 0..64 {
        ring.add_file(file.as_fd()).unwrap();
    }
    let full = ring.add_file(file.as_fd()).unwrap_err();
    assert!(full.to_string().contains("places for 64 files"), "{full}");
}
