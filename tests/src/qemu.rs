//! The QEMU that runs a guest: the machine's own, or a newer one that `lab/setup.sh --bench` unpacked.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::{Context, Failure, paths};

/// The first major version in which a vhost-user interface with MSI-X starts without KVM. In 7.2 the notifiers of its
/// vectors look into a table of KVM's that is not there; the versions between were not tried.
const MSIX_WITHOUT_KVM: u32 = 10;

/// A QEMU for guests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Qemu {
    program: PathBuf,
    version: String,
}

impl Qemu {
    /// The machine's own.
    ///
    /// # Errors
    /// It is not installed, or does not run.
    pub fn of_machine() -> Result<Qemu, Failure> {
        static ANSWER: OnceLock<Qemu> = OnceLock::new();
        if let Some(answer) = ANSWER.get() {
            return Ok(answer.clone());
        }
        let found = Qemu::open(Path::new("qemu-system-x86_64"))?;
        Ok(ANSWER.get_or_init(|| found).clone())
    }

    /// One on which every guest may have MSI-X: the machine's own, or that of `lab/setup.sh --bench`.
    ///
    /// # Errors
    /// The machine's is too old, and there is no other.
    pub fn with_msix() -> Result<Qemu, Failure> {
        let own = Qemu::of_machine()?;
        if own.has_msix_without_kvm() {
            return Ok(own);
        }
        Qemu::open(&paths::newer_qemu()?)
    }

    fn open(program: &Path) -> Result<Qemu, Failure> {
        let what = format!("`{} --version`", program.display());
        let output = Command::new(program).arg("--version").output().context(&what)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let version = version(&text).ok_or_else(|| Failure::new(format!("{what} printed no version: {text}")))?;
        Ok(Qemu { program: program.to_owned(), version: version.to_owned() })
    }

    #[cfg(test)]
    pub(crate) fn of_version(version: &str) -> Qemu {
        Qemu { program: PathBuf::new(), version: version.to_owned() }
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }

    /// As it calls itself: `10.0.13`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether a vhost-user interface may have MSI-X where guests run without KVM.
    pub fn has_msix_without_kvm(&self) -> bool {
        let major = self.version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        major.is_some_and(|major| major >= MSIX_WITHOUT_KVM)
    }
}

/// Of `QEMU emulator version 7.2.22 (Debian …)`.
fn version(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once("version ")?;
    rest.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn msix_without_kvm_is_a_matter_of_the_version() {
        let qemu = |said: &str| Qemu::of_version(version(said).unwrap());
        let old = qemu("QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright (c) 2003-2022");
        let new = qemu("QEMU emulator version 10.0.13 (Debian 1:10.0.13+ds-0+deb13u1)\nCopyright (c) 2003-2025");
        assert_eq!((old.version(), new.version()), ("7.2.22", "10.0.13"));
        assert_eq!((old.has_msix_without_kvm(), new.has_msix_without_kvm()), (false, true));
        assert_eq!(version("no such option"), None);
    }
}
