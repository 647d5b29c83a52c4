//! Listening Unix sockets: where they are, who may connect, and that no other process' socket is taken over.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
};
use rustix::process::geteuid;
use thiserror::Error;

use serde::{Deserialize, Serialize};

use super::reexec::{FdIndex, Leaving, Left, NoFd};
use softdpu_site::accounts;
use softdpu_site::{FileMode, SocketAccess};
use softdpu_sys::ReapedFd;

/// How many connections may wait to be accepted.
const BACKLOG: i32 = 16;

/// Why a socket cannot be listened on.
#[derive(Debug, Error)]
pub enum SocketError {
    /// The kernel has room for 107 bytes (unix(7), sun_path).
    #[error("the socket path {} is too long: Unix sockets have at most 107 bytes", path.display())]
    PathTooLong {
        /// Where.
        path: PathBuf,
    },
    /// Something listens there.
    #[error("{} is in use: another process listens on it; stop it or configure another path", path.display())]
    InUse {
        /// Where.
        path: PathBuf,
    },
    /// There is a file that is no socket.
    #[error("{} exists and is not a socket; it is left alone: remove it or configure another path", path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// Another user has put something else in the place of the socket that was just made.
    #[error("{} is not the socket that was just made there: others can write to its folder; use one that only the daemon's user can write to", path.display())]
    Replaced {
        /// Where.
        path: PathBuf,
    },
    /// A name that the system does not know.
    #[error("{}: there is no {what} {name:?} on this system", path.display())]
    UnknownName {
        /// Where.
        path: PathBuf,
        /// user or group.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The operating system refused.
    #[error("{}: cannot {what}: {source}", path.display())]
    System {
        /// Where.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// What came of it.
        source: io::Error,
    },
}

/// A listening socket. Its file is removed when it is dropped, if it is still this one's.
#[derive(Debug)]
pub(super) struct Listener {
    /// Its last close closes what waits to be accepted, with all that was sent there.
    socket: ReapedFd,
    path: PathBuf,
    /// Device and inode of the file.
    file: (u64, u64),
}

impl Listener {
    /// Binds and listens. A file that a dead process left is removed.
    pub(super) fn bind(access: &SocketAccess) -> Result<Listener, SocketError> {
        let path = access.socket.clone();
        let system = |what| {
            let path = path.clone();
            move |source: io::Error| SocketError::System { path, what, source }
        };
        let errno = |what| {
            let system = system(what);
            move |error: Errno| system(error.into())
        };
        let address = SocketAddrUnix::new(&path).map_err(|_| SocketError::PathTooLong { path: path.clone() })?;
        let owner = access.socket_owner.as_deref().map(|name| user_id(name, &path)).transpose()?;
        let group = access.socket_group.as_deref().map(|name| group_id(name, &path)).transpose()?;
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::create_dir_all(folder).map_err(system("make its folder"))?;
        }
        remove_stale(&path, &address)?;
        let socket = new_socket().map_err(errno("make a socket"))?;
        bind(&socket, &address).map_err(errno("bind a socket"))?;
        // No process can connect before `listen`, so there is no moment at which the wrong ones may.
        let file = grant(&path, owner, group, access.socket_mode)?;
        let listener = Listener { socket: socket.into(), file, path: path.clone() };
        listen(listener.socket.as_fd(), BACKLOG).map_err(errno("listen"))?;
        Ok(listener)
    }

    /// The next connection, if one waits.
    pub(super) fn accept(&self) -> Result<Option<OwnedFd>, Errno> {
        match accept_with(self.socket.as_fd(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A [`Listener`] as the next program of the supervisor is given it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListenerState {
    socket: FdIndex,
    path: PathBuf,
    file: (u64, u64),
}

impl Listener {
    pub(super) fn state<'a>(&'a self, leaving: &mut Leaving<'a>) -> ListenerState {
        ListenerState { socket: leaving.add(self.socket.as_fd()), path: self.path.clone(), file: self.file }
    }

    pub(super) fn resume(state: ListenerState, left: &mut Left) -> Result<Listener, NoFd> {
        let ListenerState { socket, path, file } = state;
        // That of another process is not to be removed.
        let file = if left.are_stand_ins() { (0, 0) } else { file };
        Ok(Listener { socket: left.own(socket)?.into(), path, file })
    }

    /// Another program has it: its file stays when this is dropped.
    #[cfg(test)]
    pub(super) fn leave_file(&mut self) {
        self.file = (0, 0);
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|file| (file.dev(), file.ino()) == self.file);
        if ours {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Gives the socket at `path` its owner and mode; returns its device and inode. Whoever can write to the folder may
/// have put a link there since it was bound: what is changed is the very file that was looked at, and a socket of this
/// process' user.
fn grant(path: &Path, owner: Option<u32>, group: Option<u32>, mode: FileMode) -> Result<(u64, u64), SocketError> {
    let system = |what| move |source: io::Error| SocketError::System { path: path.to_owned(), what, source };
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file =
        fs::File::from(open(path, flags, Mode::empty()).map_err(|error| system("look at the socket")(error.into()))?);
    let metadata = file.metadata().map_err(system("look at the socket"))?;
    if !metadata.file_type().is_socket() || metadata.uid() != geteuid().as_raw() {
        return Err(SocketError::Replaced { path: path.to_owned() });
    }
    // chmod(2) takes no descriptor of a socket's file but through this path, which leads to it wherever it is now.
    let same = format!("/proc/self/fd/{}", file.as_raw_fd());
    if owner.is_some() || group.is_some() {
        chown(&same, owner, group).map_err(system("give the socket its owner"))?;
    }
    fs::set_permissions(&same, fs::Permissions::from_mode(mode.0)).map_err(system("give the socket its mode"))?;
    Ok((metadata.dev(), metadata.ino()))
}

fn new_socket() -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

/// Removes a socket that no process listens on any more; anything else stays and is an error.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), SocketError> {
    let system = |what, source| SocketError::System { path: path.to_owned(), what, source };
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system("look for an old socket", error)),
    };
    if !metadata.file_type().is_socket() {
        return Err(SocketError::NotASocket { path: path.to_owned() });
    }
    let probe = new_socket().map_err(|error| system("make a socket", error.into()))?;
    match connect(&probe, address) {
        Err(Errno::CONNREFUSED) => {
            tracing::info!(path = %path.display(), "removing the socket that a dead process left");
            fs::remove_file(path).map_err(|error| system("remove the old socket", error))
        }
        Err(Errno::NOENT) => Ok(()),
        // AGAIN: a process listens, and has more waiting than it takes.
        Ok(()) | Err(Errno::AGAIN) => Err(SocketError::InUse { path: path.to_owned() }),
        Err(error) => Err(system("find out whether anybody listens", error.into())),
    }
}

fn user_id(name: &str, path: &Path) -> Result<u32, SocketError> {
    accounts::user_id(name).ok_or_else(|| unknown("user", name, path))
}

fn group_id(name: &str, path: &Path) -> Result<u32, SocketError> {
    accounts::group_id(name).ok_or_else(|| unknown("group", name, path))
}

fn unknown(what: &'static str, name: &str, path: &Path) -> SocketError {
    SocketError::UnknownName { path: path.to_owned(), what, name: name.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    fn at(path: &Path) -> SocketAccess {
        SocketAccess { socket_mode: FileMode(0o660), ..SocketAccess::at(path.to_owned()) }
    }

    #[test]
    fn a_socket_has_the_configured_mode_and_goes_when_it_is_closed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("made/for/it.sock");
        let listener = Listener::bind(&at(&path)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o660);
        assert!(listener.accept().unwrap().is_none());
        let _client = UnixStream::connect(&path).unwrap();
        assert!(listener.accept().unwrap().is_some());
        drop(listener);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_whose_process_is_dead_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists(), "closing does not remove it");
        let _listener = Listener::bind(&at(&path)).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_socket_that_somebody_listens_on_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let other = UnixListener::bind(&path).unwrap();
        let error = Listener::bind(&at(&path)).unwrap_err();
        assert!(matches!(error, SocketError::InUse { .. }), "{error}");
        drop(other);
        assert!(path.exists());
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("precious");
        fs::write(&path, "data").unwrap();
        assert!(matches!(Listener::bind(&at(&path)).unwrap_err(), SocketError::NotASocket { .. }));
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    }

    #[test]
    fn a_link_in_the_place_of_the_socket_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, precious) = (folder.path().join("s"), folder.path().join("precious"));
        fs::write(&precious, "data").unwrap();
        fs::set_permissions(&precious, fs::Permissions::from_mode(0o600)).unwrap();
        let other = folder.path().join("other");
        let _other = UnixListener::bind(&other).unwrap();
        let mode_of = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        let before = mode_of(&other);
        for target in [&precious, &other] {
            std::os::unix::fs::symlink(target, &path).unwrap();
            let error = grant(&path, None, Some(12345), FileMode(0o666)).unwrap_err();
            assert!(matches!(error, SocketError::Replaced { .. }), "{error}");
            assert!(matches!(Listener::bind(&at(&path)).unwrap_err(), SocketError::NotASocket { .. }));
            fs::remove_file(&path).unwrap();
        }
        assert_eq!((mode_of(&precious), mode_of(&other)), (0o600, before));
        assert_ne!(fs::metadata(&precious).unwrap().gid(), 12345);
    }

    #[test]
    fn the_successor_of_a_socket_is_not_removed_by_the_end_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s");
        let first = Listener::bind(&at(&path)).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = UnixListener::bind(&path).unwrap();
        drop(first);
        assert!(path.exists());
    }

    #[test]
    fn errors_say_what_is_wrong_with_the_path_or_the_owner() {
        let folder = tempfile::tempdir().unwrap();
        let long = folder.path().join("x".repeat(120));
        assert!(matches!(Listener::bind(&at(&long)).unwrap_err(), SocketError::PathTooLong { .. }));
        let access = SocketAccess { socket_group: Some("no-such-group".into()), ..at(&folder.path().join("s")) };
        let error = Listener::bind(&access).unwrap_err().to_string();
        assert!(error.ends_with("there is no group \"no-such-group\" on this system"), "{error}");
    }
}
