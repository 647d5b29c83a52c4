//! The broker as the attempts to open one volume have it: once the volume was deleted, they keep nothing any more.
//!
//! An attempt may hang for as long as a file system or a server pleases, and go on when another volume has its volume's
//! name: what it kept then would be taken for that one's, a key above all.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use softdpu_storage::{Broker, NbdUri, VolumeSpec};

/// The broker for as long as a volume is here.
pub(super) struct Attempts {
    broker: Arc<dyn Broker>,
    ended: Mutex<bool>,
}

impl Attempts {
    pub(super) fn new(broker: Arc<dyn Broker>) -> Arc<Attempts> {
        Arc::new(Attempts { broker, ended: Mutex::new(false) })
    }

    /// The volume is no more. What was kept until now is there, and nothing comes after it.
    pub(super) fn end(&self) {
        *self.ended() = true;
    }

    /// Held while something is kept or forgotten, so that `end` comes before that or after it.
    fn ended(&self) -> MutexGuard<'_, bool> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unless_ended(&self, act: impl FnOnce(&dyn Broker) -> io::Result<()>) -> io::Result<()> {
        let ended = self.ended();
        if *ended {
            return Err(io::Error::other("the volume was deleted meanwhile"));
        }
        act(&*self.broker)
    }
}

impl Broker for Attempts {
    fn open_backing(&self, spec: &VolumeSpec) -> io::Result<OwnedFd> {
        self.broker.open_backing(spec)
    }

    fn open_key(&self, spec: &VolumeSpec) -> io::Result<OwnedFd> {
        self.broker.open_key(spec)
    }

    fn connect(&self, name: &str, uri: &NbdUri, limit: Duration) -> io::Result<OwnedFd> {
        self.broker.connect(name, uri, limit)
    }

    fn keep(&self, key: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
        self.unless_ended(|broker| broker.keep(key, fd))
    }

    fn kept(&self, prefix: &str) -> io::Result<Vec<(String, OwnedFd)>> {
        self.broker.kept(prefix)
    }

    fn forget(&self, key: &str) -> io::Result<()> {
        self.unless_ended(|broker| broker.forget(key))
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Instant;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use serde_json::json;
    use softdpu_storage::{KeySource, PathBroker, open_key};

    use super::super::{News, OPEN_PATIENCE, Volumes};
    use super::*;
    use softdpu_site as config;

    /// Longer than anything takes here, even on a busy machine.
    const PATIENCE: Duration = Duration::from_secs(20);

    /// Opens the key file `slow` only when the test lets it.
    struct Slow {
        inner: PathBroker,
        go_on: Mutex<Receiver<()>>,
    }

    impl Broker for Slow {
        fn open_backing(&self, spec: &VolumeSpec) -> io::Result<OwnedFd> {
            self.inner.open_backing(spec)
        }

        fn open_key(&self, spec: &VolumeSpec) -> io::Result<OwnedFd> {
            if let Some(KeySource::File(path)) = spec.encryption.as_ref().map(|encryption| &encryption.key)
                && path.ends_with("slow")
            {
                self.go_on.lock().unwrap().recv_timeout(PATIENCE).expect("the test lets it go on in time");
            }
            open_key(spec)
        }

        fn connect(&self, name: &str, uri: &NbdUri, limit: Duration) -> io::Result<OwnedFd> {
            self.inner.connect(name, uri, limit)
        }

        fn keep(&self, key: &str, fd: BorrowedFd<'_>) -> io::Result<()> {
            self.inner.keep(key, fd)
        }

        fn kept(&self, prefix: &str) -> io::Result<Vec<(String, OwnedFd)>> {
            self.inner.kept(prefix)
        }

        fn forget(&self, key: &str) -> io::Result<()> {
            self.inner.forget(key)
        }
    }

    fn volume(folder: &Path, key: &str, bytes: std::ops::Range<u8>) -> config::Volume {
        let path = folder.join(key);
        fs::write(&path, bytes.collect::<Vec<u8>>()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        let encryption = json!({"cipher": "aes-xts-plain64", "key-file": path});
        config::volume_from_json(&json!({"name": "v", "memory": {"size": "1 MiB"}, "encryption": encryption})).unwrap()
    }

    /// Waits for the bell.
    fn rings(volumes: &Volumes) {
        let pause = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
        let bell = volumes.bell();
        assert_eq!(poll(&mut [PollFd::from_borrowed_fd(bell, PollFlags::IN)], Some(&pause)), Ok(1), "it ends in time");
    }

    #[test]
    fn what_an_attempt_finds_after_its_volume_was_given_up_is_not_the_next_volumes() {
        let folder = tempfile::tempdir().unwrap();
        let (gate, go_on) = channel();
        let broker = Arc::new(Slow { inner: PathBroker::default(), go_on: Mutex::new(go_on) });
        let mut volumes = Volumes::new(Arc::clone(&broker) as Arc<dyn Broker>).unwrap();
        let now = Instant::now();
        volumes.add(volume(folder.path(), "slow", 1..65), Some(1), now);
        assert!(volumes.turn(now).is_empty());
        let news = volumes.turn(now + OPEN_PATIENCE);
        assert!(matches!(news[..], [News::NotCreated { asked: 1, .. }]));

        volumes.add(volume(folder.path(), "key", 2..66), Some(2), now);
        assert!(volumes.turn(now).is_empty());
        rings(&volumes);
        assert!(matches!(volumes.turn(now)[..], [News::Opened { asked: Some(2), .. }]));
        let names = || broker.kept("").unwrap().into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        let before = names();
        gate.send(()).unwrap();
        rings(&volumes);
        assert!(volumes.turn(now).is_empty());

        assert_eq!(names(), before);
        let (_, key) = broker.kept("key/v").unwrap().remove(0);
        let mut bytes = Vec::new();
        io::Seek::rewind(&mut File::from(key.try_clone().unwrap())).unwrap();
        File::from(key).read_to_end(&mut bytes).unwrap();
        assert!(bytes == (2..66).collect::<Vec<u8>>(), "the other volume's key is kept");
    }
}
