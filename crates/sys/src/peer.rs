//! The process behind a connected Unix socket (SO_PEERCRED, unix(7)).

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd};

/// The process that connected a socket, as the kernel recorded it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCredentials {
    /// Process id, in this process's PID namespace; 0 where the peer is in one that is not visible from here.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Credentials of the peer of a connected Unix socket.
///
/// rustix's `socket_peercred` has a process id that must not be 0, which the kernel reports across PID namespaces.
///
/// # Errors
/// Those of getsockopt(2): for example `ENOTSOCK`.
pub fn credentials(socket: impl AsFd) -> io::Result<PeerCredentials> {
    let mut found = MaybeUninit::<libc::ucred>::zeroed();
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `found`, which is that long, and `len` is valid for the call.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            found.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it was zeroed, and any bytes are a `ucred`: three integers.
    let libc::ucred { pid, uid, gid } = unsafe { found.assume_init() };
    Ok(PeerCredentials { pid, uid, gid })
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_this_process() {
        let (one, _other) = UnixStream::pair().unwrap();
        let found = credentials(&one).unwrap();
        assert_eq!(found.pid, std::process::id() as i32);
        assert_eq!(found.uid, rustix::process::getuid().as_raw());
    }

    #[test]
    fn a_file_has_no_peer() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(credentials(&file).unwrap_err().raw_os_error(), Some(libc::ENOTSOCK));
    }
}
