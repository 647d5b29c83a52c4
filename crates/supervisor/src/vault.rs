//! Descriptors that data planes want kept for those to come.

use std::collections::BTreeMap;

use std::os::fd::AsFd;

use super::reexec::{FdIndex, Leaving, Left, NoFd};
use softdpu_link::{SharedFd, is_kept_of_volume};
use thiserror::Error;

/// The most descriptors the vault holds.
const MAX_VAULT: usize = 16 << 10;

/// The vault has no room for another descriptor.
#[derive(Debug, Error)]
#[error("it keeps more than {MAX_VAULT} descriptors")]
pub(super) struct VaultFull;

/// Descriptors by their keys.
#[derive(Default)]
pub(super) struct Vault {
    kept: BTreeMap<String, SharedFd>,
}

impl Vault {
    /// Keeps a descriptor; an older one of that key is replaced.
    pub(super) fn keep(&mut self, key: String, fd: SharedFd) -> Result<(), VaultFull> {
        if self.kept.len() >= MAX_VAULT && !self.kept.contains_key(&key) {
            return Err(VaultFull);
        }
        self.kept.insert(key, fd);
        Ok(())
    }

    /// Keeps a descriptor of the supervisor's own, for which there is always room.
    pub(super) fn keep_own(&mut self, key: &str, fd: SharedFd) {
        self.kept.insert(key.to_owned(), fd);
    }

    /// Keeps it no longer.
    pub(super) fn forget(&mut self, key: &str) {
        self.kept.remove(key);
    }

    /// Keeps nothing of a volume any more.
    pub(super) fn forget_volume(&mut self, name: &str) {
        self.kept.retain(|key, _| !is_kept_of_volume(name, key));
    }

    /// As the next program of the supervisor is given it.
    pub(super) fn state<'a>(&'a self, leaving: &mut Leaving<'a>) -> BTreeMap<String, FdIndex> {
        self.kept.iter().map(|(key, fd)| (key.clone(), leaving.add(fd.as_fd()))).collect()
    }

    pub(super) fn resume(state: BTreeMap<String, FdIndex>, left: &mut Left) -> Result<Vault, NoFd> {
        let kept = state.into_iter().map(|(key, fd)| Ok((key, left.share(fd)?)));
        Ok(Vault { kept: kept.collect::<Result<_, NoFd>>()? })
    }

    /// All keys, and the descriptors in the same order.
    pub(super) fn contents(&self) -> (Vec<String>, Vec<SharedFd>) {
        self.kept.iter().map(|(key, fd)| (key.clone(), fd.clone())).unzip()
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use super::*;

    #[test]
    fn a_full_vault_takes_another_descriptor_only_in_the_place_of_one_it_has() {
        let fd: SharedFd = Arc::new(OwnedFd::from(File::open("/dev/null").unwrap()).into());
        let mut vault = Vault::default();
        for number in 0..MAX_VAULT {
            vault.keep(format!("memory/{number}"), Arc::clone(&fd)).unwrap();
        }
        assert!(vault.keep("memory/0".into(), Arc::clone(&fd)).is_ok());
        let error = vault.keep("memory/another".into(), Arc::clone(&fd)).unwrap_err();
        assert_eq!(error.to_string(), "it keeps more than 16384 descriptors");
        vault.keep_own("own", Arc::clone(&fd));
        assert!(vault.contents().0.contains(&"own".to_owned()));
        vault.forget("own");
        vault.forget_volume("7");
        assert!(vault.keep("memory/another".into(), fd).is_ok());
        assert!(!vault.contents().0.contains(&"memory/7".to_owned()));
    }
}
