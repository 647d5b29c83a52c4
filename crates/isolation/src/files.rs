//! The files that the data plane may open by itself, and what it may reach of other processes (Landlock).
//!
//! It opens no volume, no key and no socket of a front end: the supervisor does, and passes descriptors, on which
//! Landlock has no say. What is left is what the kernel tells about itself and the machine.

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr,
    RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use std::path::Path;

use crate::{IsolationError, Needs};

/// What is asked for: files (Linux 5.13), device numbers (6.10), signals and abstract sockets of others (6.12).
const ASKED: ABI = ABI::V6;

/// Read, and never written: processors, disks and interfaces of the machine, its libraries for the
/// symbols of a panic's backtrace, and how it finds the addresses of names.
const READ: &[&str] =
    &["/sys", "/proc/meminfo", "/proc/cpuinfo", "/proc/sys", "/usr", "/lib", "/lib64", "/etc", "/run"];

/// Read and written: the process's own place in the kernel's schedule.
const WRITTEN: &[&str] = &["/proc/self", "/dev/null"];

/// Puts the rules in force for this thread and those that it starts.
pub(crate) fn restrict(needs: &Needs) -> Result<(), IsolationError> {
    let status = rules(needs)
        .and_then(RulesetCreated::restrict_self)
        .map_err(|error| IsolationError::Files(error.to_string()))?;
    let lacks = match status.ruleset {
        RulesetStatus::FullyEnforced => return Ok(()),
        RulesetStatus::PartiallyEnforced => "this kernel has it in part: Linux 6.12 is needed for all of it",
        RulesetStatus::NotEnforced => "this kernel does not have it, or `lsm=` of its command line leaves it out",
    };
    Err(IsolationError::Files(lacks.to_owned()))
}

fn rules(needs: &Needs) -> Result<RulesetCreated, RulesetError> {
    let read = AccessFs::from_read(ASKED) & !BitFlags::from(AccessFs::Execute);
    let written = read | AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
    let made = written | AccessFs::MakeReg;
    let own = std::env::current_exe().ok();
    let fixed =
        READ.iter().map(|path| (Path::new(path), read)).chain(WRITTEN.iter().map(|path| (Path::new(path), written)));
    let program = own.as_deref().map(|path| (path, read));
    let recordings = needs.recordings.iter().map(|folder| (folder.as_path(), made));
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(ASKED))?
        .scope(Scope::from_all(ASKED))?
        .create()?;
    for (path, access) in fixed.chain(program).chain(recordings) {
        // What this machine does not have need not be allowed.
        if let Ok(fd) = PathFd::new(path) {
            let access = if path.is_dir() { access } else { access & AccessFs::from_file(ASKED) };
            ruleset = ruleset.add_rule(PathBeneath::new(fd, access))?;
        }
    }
    Ok(ruleset)
}
