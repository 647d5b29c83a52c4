//! A guest on an encrypted disk: nothing it writes can be read in the file, and a kill of the data plane changes
//! nothing.

#![allow(missing_docs)]

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use softdpu_tests::{Context, Daemon, Disk, Failure, Guest, GuestSpec, Lab, Random, Server};

const MIB: u64 = 1 << 20;
const DEADLINE: Duration = Duration::from_secs(240);
const KILLS: u32 = 5;

/// What fio fills its blocks with: the round's number in four bytes and the block's offset in eight, again and again.
const PERIOD: usize = 12;

/// What is kept in the key file.
fn key() -> Vec<u8> {
    (1..65).collect()
}

fn write_key(path: &Path) -> Result<(), Failure> {
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(path).context("the key file")?;
    file.write_all(&key()).context("the key file")
}

fn site(image: &Path, key: Option<&Path>) -> String {
    let encryption = key.map_or_else(String::new, |key| {
        format!("encryption = {{ cipher = \"aes-xts-plain64\", key-file = '{}' }}\n", key.display())
    });
    format!(
        "[node]\ndataplane = {{ cores = [0] }}\nstate-directory = \"state\"\nlog = {{ level = \"trace\" }}\n\n[[volume]]\nname = \"data\"\n{encryption}file = {{ path = '{}' }}\n\n\
         [[device]]\nname = \"data-disk\"\ndomain = \"guest\"\n\
         virtio-blk = {{ volume = \"data\", queues = 4, socket = \"data-disk.sock\" }}\n",
        image.display()
    )
}

/// Starts a guest whose fio writes and verifies, kills the data plane now and then, and has the guest end.
fn write_and_verify(lab: &Lab, name: &str, image: &Path, key: Option<&Path>, kills: u32) -> Result<(), Failure> {
    let mut random = Random::from_environment();
    eprintln!("SOFTDPU_SEED={}", random.seed);
    let disk = Disk::new("data", image.to_path_buf()).queues(4);
    let mut server = Server::start_softdpu(lab, &site(image, key), &[disk])?;
    let spec = GuestSpec::new(name).cpus(4).memory_mib(768).disk(server.guest_disk("data")?).job("kill-loop");
    let spec = spec.parameter("DISK", "vda").parameter("MIB", 8).parameter("JOBS", 4);
    let mut guest = Guest::boot(lab.path(), spec)?;
    guest.step("bystander", DEADLINE)?;
    for kill in 0..kills {
        std::thread::sleep(random.between(Duration::from_millis(50), Duration::from_millis(1500)));
        guest.check()?;
        server.daemon()?.kill_data_plane()?;
        if kill == 0
            && let Some(key) = key
        {
            // The supervisor has it for the data planes to come.
            std::fs::remove_file(key).context("the key file")?;
        }
    }
    // Two whole rounds after the last kill: what was lost, misplaced or decrypted with another key would be found.
    let rounds = guest.reports().iter().filter(|report| report.step == "round").count();
    softdpu_tests::wait_until("two more rounds", DEADLINE, || {
        guest.check()?;
        let now = guest.reports().iter().filter(|report| report.step == "round").count();
        Ok((now >= rounds + 2).then_some(()))
    })?;
    let status = server.daemon()?.command(&["status", "--json"])?;
    assert_eq!(status.contains("aes-xts-plain64 512"), key.is_some(), "{status}");
    has_no_key(lab, server.daemon()?)?;
    guest.type_line("stop")?;
    guest.finish(DEADLINE)?;
    let (_, restarts) = server.daemon()?.data_plane()?;
    assert_eq!(restarts, u64::from(kills), "other restarts than kills");
    server.stop()
}

/// Volumes with keys are made on the running daemon, also where nothing else has to be asked for.
fn made_while_it_runs(lab: &Lab, image: &Path, key: &Path) -> Result<(), Failure> {
    let disk = Disk::new("data", image.to_owned());
    let mut server = Server::start_softdpu(lab, &site(image, Some(key)), &[disk])?;
    let daemon = server.daemon()?;
    let key = key.to_str().ok_or_else(|| Failure::new("the key file's name is no text"))?;
    daemon.command(&["volume", "create", "scratch", "--memory", "--size", "1 MiB", "--key-file", key])?;
    let refused =
        daemon.command(&["volume", "create", "other", "--memory", "--size", "1 MiB", "--keyring", "softdpu:none"]);
    let refused = refused.map(|_| ()).expect_err("there is no such key").to_string();
    assert!(refused.contains("softdpu:none"), "{refused}");
    assert_eq!(daemon.data_plane()?.1, 0, "the data plane was started again");
    // The change that made it is kept there.
    let kept = files(&lab.path().join("state"))?;
    assert!(kept.iter().any(|(_, bytes)| holds(bytes, b"scratch")), "nothing is kept of the volume that was made");
    has_no_key(lab, daemon)?;
    daemon.command(&["volume", "delete", "scratch"])?;
    server.stop()
}

fn holds(bytes: &[u8], what: &[u8]) -> bool {
    bytes.windows(what.len()).any(|window| window == what)
}

/// All files of a folder, and what is in them.
fn files(folder: &Path) -> Result<Vec<(PathBuf, Vec<u8>)>, Failure> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).context(folder.display())? {
        let path = entry.context(folder.display())?.path();
        if path.is_dir() {
            all.extend(files(&path)?);
        } else {
            all.push((path.clone(), std::fs::read(&path).context(path.display())?));
        }
    }
    Ok(all)
}

/// What the daemon has logged, what it shows and what it keeps has no eight bytes of the key, nor as text.
fn has_no_key(lab: &Lab, daemon: &Daemon) -> Result<(), Failure> {
    let mut shown = files(&lab.path().join("state"))?;
    shown.push(("the log".into(), daemon.log().join("\n").into_bytes()));
    let pages: [&[&str]; 2] = [&["status"], &["status", "--json"]];
    for page in pages {
        shown.push((page.join(" ").into(), daemon.command(page)?.into_bytes()));
    }
    let key = key();
    for part in key.chunks_exact(8) {
        let hex: String = part.iter().map(|byte| format!("{byte:02x}")).collect();
        let list = part.iter().map(u8::to_string).collect::<Vec<_>>();
        let forms =
            [part.to_vec(), hex.to_uppercase().into(), list.join(", ").into(), list.join(",").into(), hex.into()];
        for (place, bytes) in &shown {
            assert!(
                !forms.iter().any(|form| holds(bytes, form)),
                "{} has a part of the key: {part:?}",
                place.display()
            );
        }
    }
    Ok(())
}

/// Sectors of the image that hold what fio writes.
fn fio_sectors(image: &Path) -> Result<usize, Failure> {
    let bytes = std::fs::read(image).context("the image")?;
    let repeats =
        |sector: &[u8]| sector[PERIOD..] == sector[..sector.len() - PERIOD] && sector.iter().any(|byte| *byte != 0);
    Ok(bytes.chunks_exact(512).filter(|sector| repeats(sector)).count())
}

#[test]
fn a_guest_on_an_encrypted_disk_notices_no_kill_and_its_file_shows_nothing() {
    Lab::run("encrypted", |lab| {
        let (plain, encrypted) = (lab.image("plain.img", 64 * MIB)?, lab.image("encrypted.img", 64 * MIB)?);
        let key = lab.path().join("data.key");
        write_key(&key)?;
        made_while_it_runs(lab, &encrypted, &key)?;
        write_and_verify(lab, "guest", &encrypted, Some(&key), KILLS)?;
        write_and_verify(lab, "plain-guest", &plain, None, 0)?;
        let (seen, shown) = (fio_sectors(&plain)?, fio_sectors(&encrypted)?);
        assert!(seen > 1000, "fio's sectors are not recognised in a plain file: {seen}");
        assert_eq!(shown, 0, "sectors of the encrypted file are as the guest wrote them");
        Ok(())
    });
}
