//! Keys that the kernel keeps (keyrings(7)): looked up by name, read once.

use std::ffi::CString;
use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, memfd_create};
use zeroize::Zeroizing;

/// The payload of the key of type `user` that is called `name`, from the keyrings of this thread, process, session and
/// user (request_key(2)); at most `most` bytes of it.
///
/// # Errors
/// `ENOKEY` where there is none of that name, `EKEYEXPIRED`, `EKEYREVOKED`, `EACCES` where it cannot be read by us,
/// `ENOSYS` or `EPERM` where this system does without keyrings; `InvalidInput` for a name with a NUL in it; `EFBIG`
/// where it is longer.
pub fn read_user_key(name: &str, most: usize) -> io::Result<Zeroizing<Vec<u8>>> {
    let name = CString::new(name)?;
    let none: *const libc::c_char = std::ptr::null();
    // SAFETY: two strings that end with a NUL; no call-out information (so nothing is started to make the key) and no
    // keyring to link it to.
    let serial = unsafe { libc::syscall(libc::SYS_request_key, c"user".as_ptr(), name.as_ptr(), none, 0) };
    if serial < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut payload = Zeroizing::new(vec![0; most]);
    let read = libc::c_long::from(libc::KEYCTL_READ);
    // SAFETY: the buffer has `most` bytes and is ours alone; the kernel writes no more than `most` bytes.
    let len = unsafe { libc::syscall(libc::SYS_keyctl, read, serial, payload.as_mut_ptr(), most) };
    let Ok(len) = usize::try_from(len) else { return Err(io::Error::last_os_error()) };
    if len > most {
        // The result is the key's length, however much of it was copied.
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    payload.truncate(len);
    Ok(payload)
}

/// The longest key that [`user_key_file`] gives: far more than any cipher takes.
const LONGEST: usize = 4096;

/// The same payload in a file of its own, which has no name and no pages on a disk: for another process.
///
/// # Errors
/// As [`read_user_key`].
pub fn user_key_file(name: &str) -> io::Result<OwnedFd> {
    let key = read_user_key(name, LONGEST)?;
    let file = memfd_create("softdpu key", MemfdFlags::CLOEXEC)?;
    match rustix::io::pwrite(&file, &key, 0)? {
        written if written == key.len() => Ok(file),
        _ => Err(io::ErrorKind::WriteZero.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A key in this process's own keyring, which ends with it.
    fn add(name: &str, payload: &[u8]) -> io::Result<()> {
        let name = CString::new(name).unwrap();
        let process = i64::from(libc::KEY_SPEC_PROCESS_KEYRING);
        // SAFETY: two strings that end with a NUL, and a payload of that length.
        let added = unsafe {
            let (kind, name) = (c"user".as_ptr(), name.as_ptr());
            libc::syscall(libc::SYS_add_key, kind, name, payload.as_ptr(), payload.len(), process)
        };
        if added < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    #[test]
    fn a_key_is_found_by_its_name_and_what_is_none_is_said() {
        if let Err(error) = add("softdpu:test of the keyring", b"some bytes") {
            return softdpu_testing::skip("the kernel's keyring", &format!("no key can be added: {error}"));
        }
        assert_eq!(read_user_key("softdpu:test of the keyring", 64).unwrap().as_slice(), b"some bytes");
        let long = read_user_key("softdpu:test of the keyring", 4).unwrap_err();
        assert_eq!(long.raw_os_error(), Some(libc::EFBIG));
        let none = read_user_key("softdpu:there is none", 64).unwrap_err();
        assert_eq!(none.raw_os_error(), Some(libc::ENOKEY));
        assert!(read_user_key("a\0b", 64).is_err());
    }
}
