//! Whether QEMU can use KVM on this machine: only an attempt shows it. `/dev/kvm` may be there and not run a stock
//! kernel (nested hosts), so a guest is booted to its init once, and the answer is kept until the machine boots again.

use std::sync::OnceLock;
use std::time::Duration;

use crate::guest::{Guest, GuestSpec};
use crate::{Failure, paths};

/// How a guest's processors are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// By the host's processor.
    Kvm,
    /// By QEMU's translator: slow, everywhere.
    Tcg,
}

/// A kernel under KVM reaches its init in a second; one that has not in ten never will.
const PROBE_DEADLINE: Duration = Duration::from_secs(10);

impl Accel {
    /// What works on this machine. `SOFTDPU_ACCEL=kvm|tcg` answers without a probe.
    pub fn detect() -> Accel {
        static ANSWER: OnceLock<Accel> = OnceLock::new();
        *ANSWER.get_or_init(|| match std::env::var("SOFTDPU_ACCEL").as_deref() {
            Ok("kvm") => Accel::Kvm,
            Ok("tcg") => Accel::Tcg,
            _ => remembered().unwrap_or_else(probe),
        })
    }

    /// QEMU's arguments.
    pub(crate) fn arguments(self) -> &'static [&'static str] {
        match self {
            Accel::Kvm => &["-accel", "kvm", "-cpu", "host"],
            Accel::Tcg => &["-accel", "tcg,thread=multi", "-cpu", "max"],
        }
    }
}

/// What identifies this boot of the machine.
fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

fn remembered() -> Option<Accel> {
    let text = std::fs::read_to_string(paths::probe_file()).ok()?;
    let (boot, answer) = text.trim().split_once(' ')?;
    match answer {
        _ if boot != boot_id() => None,
        "kvm" => Some(Accel::Kvm),
        "tcg" => Some(Accel::Tcg),
        _ => None,
    }
}

fn probe() -> Accel {
    let usable = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm").is_ok();
    let accel = if usable && boots_under_kvm().is_ok() { Accel::Kvm } else { Accel::Tcg };
    // Not to remember it costs the next run a probe, no more.
    let _ = std::fs::write(paths::probe_file(), format!("{} {}\n", boot_id(), format!("{accel:?}").to_lowercase()));
    accel
}

fn boots_under_kvm() -> Result<(), Failure> {
    let folder = tempfile::tempdir().map_err(|error| Failure::new(format!("a temporary folder: {error}")))?;
    let mut guest = Guest::boot(folder.path(), GuestSpec::new("kvm-probe").accel(Accel::Kvm).script("true"))?;
    guest.finish(PROBE_DEADLINE)
}
