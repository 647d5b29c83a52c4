//! Files of loaded entries: a copy of each is taken into the state directory, on a thread of its own, before the data
//! plane reads it; the copy that is in force is in the vault and outlives data planes and supervisors.
//!
//! ```text
//!   FILE ──copy──▶ loaded-N.csv ──▶ data plane: right? ──▶ desired.json names it ──▶ the one before is removed
//!                       └── removed, where it is not
//! ```

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use rustix::fs::OFlags;
use softdpu_sys::wake::Doorbell;

use softdpu_api::{ApiError, ErrorCode};
use softdpu_link::kept::Kept;
use softdpu_site::{
    self as config, Bytes, LARGEST_FILE, LONGEST_LINE, NetworkChanges, NetworkPart, Places, TableSizes, load_line,
};

/// What the copies are called.
const PREFIX: &str = "loaded-";
const SUFFIX: &str = ".csv";

/// So many bytes are copied between two looks at what there is already.
const PIECE: u64 = 64 << 10;

/// So often they are put on the disk: the end of a long copy has no more to wait for than its middle.
const SYNC: u64 = 8 << 20;

/// The most copies that hang; each has a thread.
const MOST_HANGING: usize = 16;

/// Makes copies, one at a time, and collects what came of them; rings `bell` for each.
///
/// One whose file hangs is given up: what comes of it later is thrown away.
pub(super) struct Copier {
    results: Receiver<(u64, CopyOutcome)>,
    sender: Sender<(u64, CopyOutcome)>,
    bell: Arc<Doorbell>,
    /// The number of the next copy, which no copy has had before: one that is on the disk may be needed again.
    next: u64,
    under_way: Option<UnderWay>,
    /// How many were given up and have not ended.
    hanging: usize,
}

/// What is to be copied of a file.
#[derive(Clone, Copy, Debug)]
pub(super) enum CopyOf {
    /// All of it.
    All,
    /// What is in force of a kept file, as lines to load.
    InForce,
}

type CopyOutcome = Result<FromFile, ApiError>;

/// What a file gave.
#[derive(Debug)]
pub(super) enum FromFile {
    /// A copy of it.
    Copy(Copied),
    /// What networks are to have, and where it says so.
    Change(NetworkChanges, Arc<Places>),
}

/// How many bytes a thread has got from its file: more each time that it is looked at, or it hangs.
type Progress = AtomicU64;

/// All is read, and what it says is looked at: between two looks that has to end.
const READ: u64 = u64::MAX;

struct UnderWay {
    number: u64,
    /// Bytes that it has.
    copied: Arc<Progress>,
    /// Those that it had at the last look.
    seen: u64,
    /// When it is looked at next.
    due: Instant,
}

/// A copy that is complete and on the disk.
#[derive(Debug)]
pub(super) struct Copied {
    folder: PathBuf,
    /// Its name in the state directory.
    pub(super) name: String,
    pub(super) file: OwnedFd,
}

impl Copier {
    pub(super) fn new(bell: Arc<Doorbell>) -> Copier {
        let (sender, results) = channel();
        Copier { results, sender, bell, next: 1, under_way: None, hanging: 0 }
    }

    /// The number of the next copy.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Gives the next copy that number.
    pub(super) fn count_on_from(&mut self, next: u64) {
        self.next = self.next.max(next);
    }

    /// Whether a thread of it runs.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.is_some() || self.hanging > 0
    }

    /// Gives copies in `folder` numbers after those that are there.
    pub(super) fn count_from(&mut self, folder: &Path) {
        let last = copies(folder).filter_map(|name| number(&name)).max();
        self.next = self.next.max(last.unwrap_or(0).saturating_add(1));
    }

    /// The name of a copy that is not made by a thread.
    pub(super) fn name(&mut self) -> String {
        self.next += 1;
        name(self.next - 1)
    }

    /// Copies `from`, or what is in force of a kept file, into `folder`; to be looked after from `due` on.
    pub(super) fn start(
        &mut self,
        from: PathBuf,
        folder: PathBuf,
        sizes: TableSizes,
        what: CopyOf,
        due: Instant,
    ) -> io::Result<()> {
        let number = self.next;
        let entries = u64::from(sizes.endpoints) + u64::from(sizes.routes);
        // Longer is nothing that fits; comments have room.
        let most = (entries + 1024) * LONGEST_LINE as u64;
        self.run(due, move |progress| {
            let copied = copy(&from, folder, name(number), most, what, progress).map(FromFile::Copy);
            copied.map_err(|error| {
                ApiError::new(ErrorCode::Failed, format!("cannot be copied: {}: {error}", from.display()))
            })
        })
    }

    /// Reads what networks are to have from `path`; to be looked after from `due` on.
    pub(super) fn read(&mut self, part: NetworkPart, path: PathBuf, due: Instant) -> io::Result<()> {
        self.run(due, move |progress| {
            let name = path.display().to_string();
            let text = read_text(&path, progress)
                .map_err(|error| ApiError::new(ErrorCode::Failed, format!("cannot be read: {name}: {error}")))?;
            let read = config::networks_file(part, text, &name);
            let (change, places) = read.map_err(|problems| ApiError::new(ErrorCode::InvalidParams, problems))?;
            Ok(FromFile::Change(change, Arc::new(places)))
        })
    }

    fn run(&mut self, due: Instant, job: impl FnOnce(&Progress) -> CopyOutcome + Send + 'static) -> io::Result<()> {
        if self.hanging >= MOST_HANGING {
            return Err(io::Error::other(format!("{MOST_HANGING} others hang")));
        }
        let (sender, bell, number) = (self.sender.clone(), Arc::clone(&self.bell), self.next);
        let copied = Arc::new(Progress::new(0));
        let so_far = Arc::clone(&copied);
        let run = move || {
            // A change would wait for ever for a thread that says nothing. What the job has is its own, and goes with
            // it.
            let outcome = catch_unwind(AssertUnwindSafe(|| job(&so_far))).unwrap_or_else(|_| {
                let message =
                    "the thread that read the file ended early, which is a mistake of softdpu; nothing was changed";
                Err(ApiError::new(ErrorCode::Failed, message).hint("the log says where"))
            });
            // The receiver is gone only when the supervisor is.
            let _ = sender.send((number, outcome));
            bell.ring();
        };
        std::thread::Builder::new().name("copy".into()).spawn(run)?;
        self.next += 1;
        self.under_way = Some(UnderWay { number, copied, seen: 0, due });
        Ok(())
    }

    /// What is ready.
    pub(super) fn take(&mut self) -> Option<CopyOutcome> {
        while let Ok((number, result)) = self.results.try_recv() {
            if self.under_way.take_if(|it| it.number == number).is_some() {
                return Some(result);
            }
            self.hanging = self.hanging.saturating_sub(1);
            if let Ok(FromFile::Copy(Copied { folder, name, .. })) = result {
                remove(&folder, &name);
            }
        }
        None
    }

    /// When the copy under way is to be looked at.
    pub(super) fn due(&self) -> Option<Instant> {
        self.under_way.as_ref().map(|it| it.due)
    }

    /// Whether the copy under way has got nothing more since the last look, or has not made an end of what it read; it
    /// is given up then.
    pub(super) fn is_stuck(&mut self, next_look: Instant) -> bool {
        let Some(it) = &mut self.under_way else { return false };
        let copied = it.copied.load(Ordering::Relaxed);
        if copied > it.seen {
            (it.seen, it.due) = (copied, next_look);
            return false;
        }
        self.under_way = None;
        self.hanging += 1;
        true
    }
}

fn name(number: u64) -> String {
    format!("{PREFIX}{number}{SUFFIX}")
}

fn number(name: &str) -> Option<u64> {
    name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()
}

fn copy(from: &Path, folder: PathBuf, name: String, most: u64, what: CopyOf, copied: &Progress) -> io::Result<Copied> {
    let (mut source, length) = open_regular(from)?;
    if length > most && matches!(what, CopyOf::All) {
        return Err(too_long(length, most));
    }
    fs::create_dir_all(&folder)?;
    let path = folder.join(&name);
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    let written = match what {
        CopyOf::All => write(&mut source, &mut file, most, copied),
        // Of our own copy, which is no longer than it may be.
        CopyOf::InForce => write_in_force(&source, &file, copied).and_then(|()| file.sync_all()),
    };
    if written.is_err() {
        let _ = fs::remove_file(&path);
    }
    fs::File::open(&folder)?.sync_all()?;
    written?;
    let file = File::open(&path)?.into();
    Ok(Copied { folder, name, file })
}

/// Writes what is in force of the kept file `source`.
fn write_in_force(source: &File, file: &File, copied: &Progress) -> io::Result<()> {
    let kept = Kept::read(source)?;
    let mut input = source;
    input.rewind()?;
    let mut input = BufReader::with_capacity(1 << 18, Counted { file: source, copied }.take(kept.loaded));
    let mut to = BufWriter::with_capacity(1 << 18, Synced { file, since: 0 });
    let mut bytes = Vec::with_capacity(LONGEST_LINE);
    while input.read_until(b'\n', &mut bytes)? > 0 {
        // It was read before: nothing in it is wrong.
        let entry = std::str::from_utf8(&bytes).ok().and_then(|line| load_line(line).ok()).flatten();
        if entry.is_none_or(|entry| kept.has(&entry)) {
            to.write_all(&bytes)?;
        }
        bytes.clear();
    }
    for line in kept.lines() {
        to.write_all(line.as_bytes())?;
    }
    to.flush()
}

/// A file that a client has named, and its length by its metadata.
fn open_regular(path: &Path) -> io::Result<(File, u64)> {
    // NONBLOCK: a FIFO must not hang the thread.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = fs::OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() { Ok((file, metadata.len())) } else { Err(io::Error::other("it is no regular file")) }
}

/// The text of a file of [`LARGEST_FILE`] bytes at the most.
fn read_text(path: &Path, progress: &Progress) -> io::Result<String> {
    let (file, length) = open_regular(path)?;
    let most = LARGEST_FILE;
    let too_long = || io::Error::other(format!("it is larger than {}: is this the right file?", Bytes(most)));
    if length > most {
        return Err(too_long());
    }
    let mut bytes = Vec::with_capacity(length as usize);
    // What it has may be more.
    Counted { file: &file, copied: progress }.take(most + 1).read_to_end(&mut bytes)?;
    progress.store(READ, Ordering::Relaxed);
    if bytes.len() as u64 > most {
        return Err(too_long());
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::other(format!("it is not UTF-8 text (byte {at} is wrong)"))
    })
}

/// A file that is read, however little of it is kept, is no file that hangs.
struct Counted<'a> {
    file: &'a File,
    copied: &'a Progress,
}

impl Read for Counted<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(bytes)?;
        self.copied.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Puts what is written on the disk every [`SYNC`] bytes.
struct Synced<'a> {
    file: &'a File,
    since: u64,
}

impl Write for Synced<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.since += count as u64;
        if self.since >= SYNC {
            self.since = 0;
            self.file.sync_data()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// What a file tells of its length is not what it has: it may be written to, or be made up by the kernel.
fn write(source: &mut File, file: &mut File, most: u64, copied: &Progress) -> io::Result<()> {
    let mut total = 0;
    loop {
        let piece = io::copy(&mut Read::by_ref(source).take(PIECE.min(most + 1 - total)), file)?;
        if piece == 0 {
            return file.sync_all();
        }
        if (total + piece) / SYNC > total / SYNC {
            file.sync_data()?;
        }
        total += piece;
        copied.store(total, Ordering::Relaxed);
        if total > most {
            return Err(too_long(total, most));
        }
    }
}

fn too_long(bytes: u64, most: u64) -> io::Error {
    io::Error::other(format!("it has {bytes} bytes or more: node.tables has room for the entries of {most}"))
}

/// Opens the copy that is in force.
pub(super) fn open(folder: &Path, name: &str) -> io::Result<OwnedFd> {
    File::open(folder.join(name)).map(OwnedFd::from)
}

/// Removes a copy that is not in force.
pub(super) fn remove(folder: &Path, name: &str) {
    if let Err(error) = fs::remove_file(folder.join(name)) {
        tracing::warn!(%error, name, "a copy of loaded entries that are not in force cannot be removed");
    }
}

/// Removes all copies but the one in force: those that a supervisor left behind which was killed.
pub(super) fn tidy(folder: &Path, in_force: Option<&str>) {
    for name in copies(folder).filter(|name| in_force != Some(name)) {
        remove(folder, &name);
    }
}

/// The names of the copies that there are.
fn copies(folder: &Path) -> impl Iterator<Item = String> {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.file_name().into_string().ok()).filter(|name| number(name).is_some())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use softdpu_api::{EntryChanges, EntryEdit, EntryOp, NetworkEntries};

    use super::super::record::Record;
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> = copies(folder).collect();
        names.sort();
        names
    }

    /// The folder, the copier, and the bell that it rings.
    fn copier() -> (tempfile::TempDir, Copier, Arc<Doorbell>) {
        let bell = Arc::new(Doorbell::new().unwrap());
        (tempfile::tempdir().unwrap(), Copier::new(Arc::clone(&bell)), bell)
    }

    fn rings(bell: &Doorbell) {
        let pause = Timespec { tv_sec: 20, tv_nsec: 0 };
        assert_eq!(poll(&mut [PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)], Some(&pause)), Ok(1), "in time");
        bell.drain();
    }

    #[test]
    fn a_file_that_turns_out_longer_than_it_said_is_refused() {
        let (folder, ..) = copier();
        // The kernel makes it up, and tells a length of nothing.
        let from = Path::new("/proc/self/status");
        assert_eq!(fs::metadata(from).unwrap().len(), 0);
        let copy = |name: &str, most| {
            copy(from, folder.path().to_owned(), name.to_owned(), most, CopyOf::All, &AtomicU64::new(0))
        };
        let error = copy("loaded-1.csv", 10).unwrap_err().to_string();
        assert_eq!(error, "it has 11 bytes or more: node.tables has room for the entries of 10");
        assert!(names(folder.path()).is_empty());
        copy("loaded-2.csv", 1 << 20).unwrap();
        assert!(fs::read_to_string(folder.path().join("loaded-2.csv")).unwrap().starts_with("Name:"));
        // One that is there already is not written over.
        assert_eq!(copy("loaded-2.csv", 1 << 20).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(names(folder.path()), ["loaded-2.csv"]);
    }

    #[test]
    fn what_is_in_force_of_a_kept_file_is_copied_and_what_is_read_for_it_is_counted() {
        let (folder, ..) = copier();
        let text = "# ours\nroute,acme,10.0.0.0/8,192.0.2.2\nroute,acme,11.0.0.0/8,192.0.2.2\n";
        fs::write(folder.path().join("loaded-1.csv"), text).unwrap();
        let edits = [(EntryOp::Delete, "10.0.0.0/8", None), (EntryOp::Add, "12.0.0.0/8", Some("192.0.2.3"))];
        let edit = |(op, prefix, host): (EntryOp, &str, Option<&str>)| EntryEdit {
            host: host.map(|host| host.parse().unwrap()),
            ..EntryEdit::route(op, prefix.parse().unwrap())
        };
        let changes = EntryChanges { network: "acme".into(), changes: edits.map(edit).into() };
        let record = Record::append(folder.path(), "loaded-1.csv".into(), false, &changes).unwrap();
        record.made(NetworkEntries { endpoints: 0, routes: 2 }).unwrap();
        let counted = AtomicU64::new(0);
        let (from, to) = (folder.path().join("loaded-1.csv"), folder.path().to_owned());
        copy(&from, to, "loaded-2.csv".into(), 1, CopyOf::InForce, &counted).unwrap();
        assert!(counted.into_inner() >= text.len() as u64);
        let left = "# ours\nroute,acme,11.0.0.0/8,192.0.2.2\nroute,acme,12.0.0.0/8,192.0.2.3\n";
        assert_eq!(fs::read_to_string(folder.path().join("loaded-2.csv")).unwrap(), left);
    }

    #[test]
    fn a_reader_that_panics_or_never_ends_is_told_of() {
        let (_folder, mut copier, bell) = copier();
        let (now, patience) = (Instant::now(), Duration::from_secs(20));
        copier.run(now + patience, |_| panic!("a mistake")).unwrap();
        rings(&bell);
        let error = copier.take().unwrap().unwrap_err();
        assert!(error.message.contains("a mistake of softdpu; nothing was changed"), "{}", error.message);
        // All is read, and nothing comes of it.
        let (end, ended) = channel::<()>();
        let (begin, begun) = channel();
        let job = move |progress: &Progress| {
            progress.store(READ, Ordering::Relaxed);
            let _ = begin.send(());
            let _ = ended.recv();
            Err(ApiError::new(ErrorCode::Failed, "late".to_owned()))
        };
        copier.run(now + patience, job).unwrap();
        begun.recv().unwrap();
        assert!(!copier.is_stuck(now + 2 * patience));
        assert!(copier.is_stuck(now + 3 * patience));
        drop(end);
        rings(&bell);
        assert!(copier.take().is_none() && copier.hanging == 0);
    }

    #[test]
    fn only_a_regular_file_of_text_that_is_no_larger_than_one_may_be_is_read() {
        let (folder, ..) = copier();
        let path = folder.path().join("policy.toml");
        let read = |path: &Path| read_text(path, &AtomicU64::new(0)).map_err(|error| error.to_string());
        fs::write(&path, "acl = []").unwrap();
        assert_eq!(read(&path).unwrap(), "acl = []");
        fs::write(&path, b"acl\xff").unwrap();
        assert_eq!(read(&path).unwrap_err(), "it is not UTF-8 text (byte 3 is wrong)");
        File::create(&path).unwrap().set_len(LARGEST_FILE + 1).unwrap();
        assert!(read(&path).unwrap_err().starts_with("it is larger than 16 MiB"));
        assert_eq!(read(folder.path()).unwrap_err(), "it is no regular file");
        // One that tells a length of nothing has what it has.
        assert!(read(Path::new("/proc/self/status")).unwrap().starts_with("Name:"));
    }

    #[test]
    fn what_comes_of_a_copy_that_was_given_up_is_thrown_away() {
        let (folder, mut copier, bell) = copier();
        let (now, patience) = (Instant::now(), Duration::from_secs(20));
        let from = folder.path().join("guests.csv");
        fs::write(&from, "endpoint").unwrap();
        fs::write(folder.path().join("loaded-7.csv"), "before").unwrap();
        copier.count_from(folder.path());
        let begin = |copier: &mut Copier| {
            copier
                .start(from.clone(), folder.path().to_owned(), TableSizes::default(), CopyOf::All, now + patience)
                .unwrap();
        };
        begin(&mut copier);
        assert_eq!(copier.due(), Some(now + patience));
        rings(&bell);
        // It has got something since it began, and nothing since then.
        assert!(!copier.is_stuck(now + 2 * patience));
        assert_eq!(copier.due(), Some(now + 2 * patience));
        assert!(copier.is_stuck(now + 3 * patience));
        assert_eq!((copier.due(), copier.hanging), (None, 1));

        begin(&mut copier);
        rings(&bell);
        let FromFile::Copy(copied) = copier.take().unwrap().unwrap() else { panic!("it is a copy") };
        assert_eq!((copied.name.as_str(), copier.hanging), ("loaded-9.csv", 0));
        assert!(copier.take().is_none());
        assert_eq!(names(folder.path()), ["loaded-7.csv", "loaded-9.csv"]);
    }
}
