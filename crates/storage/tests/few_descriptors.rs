//! Volumes in a process that may have few files open. A program of its own, as the limit is the whole process's.

mod common;

use common::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use softdpu_storage::*;

fn limit(files: u64) {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(files), maximum }).unwrap();
}

#[test]
fn a_file_is_served_with_fewer_descriptors_than_a_ring_has_places_and_without_any_the_reason_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let spec = |name: &str| {
        let path = folder.path().join(name);
        let kind = VolumeKind::File { path, size: Some(MIB), create: true, direct: false, discard: true };
        VolumeSpec { block_size: 512, ..VolumeSpec::new(name, kind) }
    };
    limit(256);
    let mut core = Core::new(spec("a"));
    core.write(0, &[7; 512]).unwrap();
    assert_eq!(core.read(0, 512).unwrap(), [7; 512]);

    let volume = Volume::open(spec("b"), &PathBroker::new()).unwrap();
    activate(&volume);
    let mut context = IoContext::new(8).unwrap();
    // All descriptors below the limit are taken.
    let file = std::fs::File::open("/dev/null").unwrap();
    let taken: Vec<_> = std::iter::from_fn(|| file.try_clone().ok()).collect();
    let error = context.attach(&volume).unwrap_err().to_string();
    drop(taken);
    assert!(error.contains("limit of open files") && !error.contains("Linux 5.19"), "{error}");
    context.attach(&volume).unwrap();
}
