//! Encrypted volumes: what the back end gets, which keys are taken, and what stays as it is.

mod common;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Core, MIB, write_key};
use softdpu_storage::*;

struct Place {
    _folder: tempfile::TempDir,
    image: PathBuf,
    key: PathBuf,
}

fn place() -> Place {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (image, key) = (folder.path().join("image"), folder.path().join("key"));
    write_key(&key, 1..65);
    Place { _folder: folder, image, key }
}

fn spec(place: &Place, sector_size: u32) -> VolumeSpec {
    let path = place.image.clone();
    let kind = VolumeKind::File { path, size: Some(4 * MIB), create: true, direct: false, discard: true };
    let key = KeySource::File(place.key.clone());
    let encryption = Some(Encryption { key, sector_size, discard: false });
    VolumeSpec { block_size: 4096, encryption, ..VolumeSpec::new("v", kind) }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| b"what no other party reads. "[at % 27]).collect()
}

fn holds(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

/// Decrypts a file's first `len` bytes with an implementation that has nothing to do with ours; none where there is
/// none.
fn decrypted_by_openssl(place: &Place, sector: u32, len: usize) -> Option<Vec<u8>> {
    const SCRIPT: &str = "
import sys
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
image, key, sector, length = sys.argv[1], open(sys.argv[2], 'rb').read(), int(sys.argv[3]), int(sys.argv[4])
with open(image, 'rb') as file:
    for at in range(0, length, sector):
        tweak = (at // 512).to_bytes(16, 'little')
        decryptor = Cipher(algorithms.AES(key), modes.XTS(tweak)).decryptor()
        sys.stdout.buffer.write(decryptor.update(file.read(sector)) + decryptor.finalize())
";
    let python = |arguments: &[&str]| {
        Command::new("python3")
            .args(arguments)
            .stderr(Stdio::null())
            .output()
            .ok()
            .filter(|output| output.status.success())
    };
    python(&["-c", "import cryptography"])?;
    let (image, key) = (place.image.to_str().unwrap(), place.key.to_str().unwrap());
    let output = python(&["-c", SCRIPT, image, key, &sector.to_string(), &len.to_string()]);
    Some(output.expect("the script runs").stdout)
}

#[test]
fn what_is_on_disk_is_what_another_implementation_encrypts() {
    for (sector, key_bytes) in [(512, 64), (4096, 64), (512, 32), (4096, 32)] {
        let place = place();
        write_key(&place.key, 1..=key_bytes);
        let mut core = Core::new(spec(&place, sector));
        let data = pattern(MIB as usize);
        core.write(0, &data).unwrap();
        core.op(BlockOp::WriteZeroes { unmap: true }, 64 << 10, 64 << 10).unwrap();
        core.op(BlockOp::Flush, 0, 0).unwrap();
        let file = std::fs::read(&place.image).unwrap();
        assert!(!holds(&file, b"no other party") && !holds(&file[..MIB as usize], &[0; 64]), "plaintext on disk");
        let Some(plain) = decrypted_by_openssl(&place, sector, data.len()) else {
            return softdpu_testing::skip(
                "encryption against another implementation",
                "python3-cryptography is not installed",
            );
        };
        let mut expected = data;
        expected[64 << 10..128 << 10].fill(0);
        assert!(plain == expected, "sectors of {sector}, key of {key_bytes} bytes");
    }
}

#[test]
fn a_write_leaves_the_guests_memory_as_it_is() {
    let place = place();
    let mut core = Core::new(spec(&place, 4096));
    let data = pattern(300 << 10);
    let request = core.request(BlockOp::Write, 0, data.len() as u64);
    request.buffer.write_at(16, &data).unwrap();
    let done = core.run(request);
    let mut after = vec![0; data.len()];
    done.buffer.read_at(16, &mut after).unwrap();
    assert_eq!((done.result, after == data), (Ok(()), true));
    assert!(core.read(0, data.len()).unwrap() == data);
}

#[test]
fn another_key_reads_noise_and_nothing_breaks() {
    let place = place();
    let data = pattern(64 << 10);
    Core::new(spec(&place, 512)).write(0, &data).unwrap();
    write_key(&place.key, 2..66);
    let mut core = Core::with(open_free(spec(&place, 512)));
    let noise = core.read(0, data.len()).unwrap();
    assert!(noise != data && !holds(&noise, b"no other party"));
    core.write(4096, &data[..4096]).unwrap();
    assert!(core.read(4096, 4096).unwrap() == data[..4096]);
    assert_eq!(core.volume.status().errors, ErrorCounts::default());
}

/// Opens and activates a volume that the last holder has just let go of.
fn open_free(spec: VolumeSpec) -> Arc<Volume> {
    let volume = Volume::open(spec, &PathBroker::new()).unwrap();
    common::activate(&volume);
    volume
}

#[test]
fn a_killed_data_planes_successor_has_the_key_though_its_file_is_gone() {
    let place = place();
    let broker = PathBroker::new();
    let data = pattern(4096);
    let open = |broker: &Arc<dyn Broker>| Volume::open(spec(&place, 512), broker);
    Core::with(open(&broker).unwrap()).write(0, &data).unwrap();
    std::fs::remove_file(&place.key).unwrap();
    assert!(Core::with(open(&broker).unwrap()).read(0, 4096).unwrap() == data);
    write_key(&place.key, 5..69);
    assert!(Core::with(open(&broker).unwrap()).read(0, 4096).unwrap() == data, "a change is for the next start");
    Volume::forget_kept("v", &*broker);
    assert!(Core::with(open(&broker).unwrap()).read(0, 4096).unwrap() != data, "a deleted volume's key is forgotten");
    std::fs::remove_file(&place.key).unwrap();
    Volume::forget_kept("v", &*broker);
    let error = open(&broker).unwrap_err().to_string();
    assert!(error.contains("key file") && error.contains(place.key.to_str().unwrap()), "{error}");
}

#[test]
fn the_key_of_a_volume_that_could_not_be_opened_is_not_kept() {
    let place = place();
    let broker = PathBroker::new();
    let missing = place.image.with_file_name("missing").join("image");
    let kind = VolumeKind::File { path: missing, size: Some(4 * MIB), create: true, direct: false, discard: true };
    Volume::open(VolumeSpec { kind, ..spec(&place, 512) }, &broker).unwrap_err();
    assert!(broker.kept("key/").unwrap().is_empty());
    // The next attempt has the key that is in the file now.
    write_key(&place.key, 2..66);
    let data = pattern(4096);
    Core::with(Volume::open(spec(&place, 512), &broker).unwrap()).write(0, &data).unwrap();
    assert!(Core::with(open_free(spec(&place, 512))).read(0, 4096).unwrap() == data);
    let kept: Vec<String> = broker.kept("").unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(kept, ["key/v"]);
    assert!(Volume::is_kept_of("v", "key/v") && Volume::is_kept_of("v", "nbd/v/0"));
    assert!(!["key/vv", "nbd/vv/0", "networks.loaded"].iter().any(|key| Volume::is_kept_of("v", key)));
}

fn refusal(place: &Place) -> String {
    Volume::open(spec(place, 512), &PathBroker::new()).unwrap_err().to_string()
}

#[test]
fn a_key_that_is_none_or_that_others_can_read_is_refused_with_what_to_do() {
    let place = place();
    let shown = |path: &Path| path.to_str().unwrap().to_owned();
    for mode in [0o640, 0o604, 0o620] {
        std::fs::set_permissions(&place.key, std::fs::Permissions::from_mode(mode)).unwrap();
        let refused = refusal(&place);
        assert!(refused.contains(&format!("mode {mode:04o}")), "{refused}");
        assert!(refused.contains(&format!("chmod 600 {}", shown(&place.key))), "{refused}");
    }
    std::fs::set_permissions(&place.key, std::fs::Permissions::from_mode(0o600)).unwrap();
    for (bytes, said) in [
        (vec![0xab; 16], "this one has 16"),
        (vec![0xab; 0], "this one has 0"),
        (vec![0xab; 100], "this one has 65"),
        (vec![0xab; 64], "halves of the key are equal"),
    ] {
        write_key(&place.key, bytes);
        let refused = refusal(&place);
        assert!(refused.contains(said) && refused.contains("head -c 64 /dev/urandom"), "{refused}");
        assert!(!refused.contains("ab, ab") && !refused.contains("171") && !refused.contains("abab"), "{refused}");
    }
    std::fs::remove_file(&place.key).unwrap();
    std::fs::create_dir(&place.key).unwrap();
    assert!(refusal(&place).contains("no regular file"), "{}", refusal(&place));
}

#[test]
fn status_names_the_cipher_and_nothing_shows_the_key() {
    let place = place();
    write_key(&place.key, b"SECRETSECRETSECRETsecretsecret!!".iter().copied());
    let core = Core::new(spec(&place, 4096));
    let status = core.volume.status();
    assert_eq!(status.encryption.as_deref(), Some("aes-xts-plain64 256"));
    let shown = format!("{status:?} {:?} {:?}", core.volume, core.volume.spec());
    assert!(!shown.to_lowercase().contains("secretsecret"), "{shown}");
}

#[test]
fn discards_reach_the_back_end_only_where_they_may() {
    for (discard, kept) in [(false, true), (true, false)] {
        let place = place();
        let mut spec = spec(&place, 512);
        spec.encryption.as_mut().unwrap().discard = discard;
        let mut core = Core::new(spec);
        assert_eq!(core.volume.limits().discard.is_some(), discard);
        let data = pattern(64 << 10);
        core.write(0, &data).unwrap();
        core.op(BlockOp::Discard, 0, 64 << 10).unwrap();
        core.op(BlockOp::Flush, 0, 0).unwrap();
        assert_eq!(core.read(0, data.len()).unwrap() == data, kept);
        core.op(BlockOp::WriteZeroes { unmap: true }, 0, 64 << 10).unwrap();
        assert!(core.read(0, data.len()).unwrap().iter().all(|byte| *byte == 0), "zeroes through the cipher");
        let file = std::fs::read(&place.image).unwrap();
        assert!(!holds(&file[..64 << 10], &[0; 64]), "and none on disk");
    }
}

#[test]
fn half_a_sector_is_refused() {
    let place = place();
    let mut core = Core::new(spec(&place, 4096));
    let errno = rustix::io::Errno::INVAL.raw_os_error();
    assert_eq!(core.write(512, &[1; 512]), Err(IoError::Device { errno }));
    assert_eq!(core.read(0, 1024).unwrap_err(), IoError::Device { errno });
    assert_eq!(core.write(4 * MIB, &[1; 4096]), Err(IoError::OutOfRange));
    let read_only = VolumeSpec { read_only: true, ..spec(&place, 4096) };
    let VolumeKind::File { path, .. } = read_only.kind.clone() else { panic!("a file") };
    drop(core);
    let kind = VolumeKind::File { path, size: None, create: false, direct: false, discard: true };
    let mut core = Core::with(open_free(VolumeSpec { kind, ..read_only }));
    assert_eq!(core.write(0, &[1; 4096]), Err(IoError::ReadOnly));
}

#[test]
fn a_call_ends_what_it_was_given_and_nothing_of_a_call_before() {
    let place = place();
    let memory = VolumeSpec { kind: VolumeKind::Memory { size: 4 * MIB }, ..spec(&place, 512) };
    let mut core = Core::new(memory);
    let long = core.request(BlockOp::Write, 0, 2 * MIB);
    let long_token = long.token;
    assert!(core.submit(long).is_none(), "a core does not encrypt 2 MiB at once");
    let mut done = Vec::new();
    let short: Vec<Request> = (0..8).map(|at| core.request(BlockOp::Write, 2 * MIB + at * 4096, 4096)).collect();
    let tokens: Vec<u64> = short.iter().map(|request| request.token).collect();
    for request in short {
        let token = request.token;
        let ended = core.submit(request);
        assert!(ended.is_none_or(|ended| ended.token == token));
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while core.context.outstanding() > 0 {
        assert!(Instant::now() < deadline, "{} are left", core.context.outstanding());
        core.context.poll(&mut done);
    }
    assert!(done.iter().all(|done| done.result.is_ok()));
    assert!(done.iter().filter(|done| done.token != long_token).all(|done| tokens.contains(&done.token)));
    assert!(done.iter().any(|done| done.token == long_token));
}

#[test]
fn more_requests_than_private_memory_all_end_and_what_was_given_up_does_not() {
    let place = place();
    let mut core = Core::new(spec(&place, 512));
    // 64 MiB of private memory are lent at a time, half of it to one volume.
    let count = 400u64;
    let mut requests: Vec<Request> = (0..count).map(|_| core.request(BlockOp::Write, 0, 3 * MIB)).collect();
    for request in &requests {
        request.buffer.fill(16, 3 * MIB, 0x5a).unwrap();
    }
    let tokens: Vec<u64> = requests.iter().map(|request| request.token).collect();
    let mut done = Vec::new();
    core.context.submit(core.to, &mut requests, &mut done);
    core.context.flush();
    assert_eq!(core.context.outstanding() + done.len(), tokens.len());
    let mut given_up = Vec::new();
    core.context.abandon(&mut |token| tokens[4..].contains(&token), &mut given_up);
    let deadline = Instant::now() + Duration::from_secs(60);
    while core.context.outstanding() > 0 {
        assert!(Instant::now() < deadline, "{} are left", core.context.outstanding());
        core.context.tick(Instant::now());
        core.context.poll(&mut done);
    }
    assert_eq!(done.len() + given_up.len(), tokens.len());
    assert!(done.iter().all(|done| done.result.is_ok() && !given_up.contains(&done.token)));
    assert_eq!(core.volume.status().errors.abandoned, given_up.len() as u64);
    assert!(core.read(0, MIB as usize).unwrap().iter().all(|byte| *byte == 0x5a));
}

/// A core with two encrypted volumes in memory, and the attachment of the second.
fn two_encrypted() -> (Core, Attachment) {
    let (first, second) = (place(), place());
    let memory = |place: &Place| VolumeSpec { kind: VolumeKind::Memory { size: 4 * MIB }, ..spec(place, 4096) };
    let mut core = Core::new(memory(&first));
    let volume = open_free(memory(&second));
    let to = core.context.attach(&volume).unwrap();
    (core, to)
}

#[test]
fn a_flood_of_one_volume_delays_a_request_of_another_by_a_turn_for_each_of_its_pieces() {
    let (mut core, to) = two_encrypted();
    let mut done = Vec::new();
    let mut flood: Vec<Request> = (0..16).map(|_| core.request(BlockOp::Write, 0, 3 * MIB)).collect();
    core.context.submit_from(0, core.to, &mut flood, &mut done);
    let single = core.request(BlockOp::Read, 0, MIB);
    let (token, pieces) = (single.token, MIB / (128 << 10));
    core.context.submit_from(7, to, &mut vec![single], &mut done);
    assert!(done.is_empty(), "a core does not decrypt so much at once");
    let mut polls = 0;
    while !done.iter().any(|done| done.token == token) {
        core.context.poll(&mut done);
        polls += 1;
        // Each of its pieces waits for one of the flood's.
        assert!(polls <= 2 * pieces, "after {polls} polls of 128 KiB each, of {pieces} pieces");
    }
    assert!(core.context.outstanding() > 0, "the flood goes on");
}

#[test]
fn small_requests_and_large_ones_have_the_same_turns_in_bytes() {
    let (mut core, to) = two_encrypted();
    let mut done = Vec::new();
    let mut large: Vec<Request> = (0..8).map(|_| core.request(BlockOp::Write, 0, 3 * MIB)).collect();
    let mut small: Vec<Request> = (0..512).map(|at| core.request(BlockOp::Write, at % 256 * 4096, 4096)).collect();
    let tokens: Vec<u64> = small.iter().map(|request| request.token).collect();
    core.context.submit_from(0, core.to, &mut large, &mut done);
    core.context.submit_from(1, to, &mut small, &mut done);
    let ended = |done: &[Done]| done.iter().filter(|done| tokens.contains(&done.token)).count() as u64;
    let before = ended(&done);
    // Of 4 MiB half are the small ones' if both have the same: 256 of 4 KiB each, and what it takes to ask for them.
    for _ in 0..16 {
        core.context.poll(&mut done);
    }
    let had = (ended(&done) - before) * 4096;
    assert!((640 << 10..=1280 << 10).contains(&had), "{had} bytes of 2 MiB");
}
