//! The user that the data plane becomes, and the capabilities that it keeps.
//!
//! A process that was started by root keeps root's rights until its cores are made: they need them for their priority
//! and for locked memory. Then all its threads become another user at once, which takes every capability from them. One
//! that was not started by root drops its capabilities while it has one thread; its priority and locked memory are
//! limits of its service (LimitNICE=, LimitMEMLOCK=).

use std::io;

use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};
use rustix::process::{DumpableBehavior, geteuid, set_dumpable_behavior};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_keep_capabilities};

use crate::{IsolationError, Needs};

/// A user and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user's number.
    pub uid: u32,
    /// The group's number.
    pub gid: u32,
}

/// What opening an underlay needs: packet sockets, neighbours that are resolved, AF_XDP with locked memory and its
/// program, which compares pointers (PERFMON).
const UNDERLAY: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::IPC_LOCK);

/// What becoming another user needs. KILL is the supervisor's need: it ends a process of another user, and has what
/// this process has, as it started it.
const CHANGE: CapabilitySet = CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::KILL);

/// What data-plane cores need when they are made.
const CORES: CapabilitySet = CapabilitySet::SYS_NICE.union(CapabilitySet::IPC_LOCK);

fn kept(needs: &Needs) -> CapabilitySet {
    if needs.underlay { UNDERLAY } else { CapabilitySet::empty() }
}

/// Leaves this thread, and those that it starts, no more than `most` of its capabilities.
fn keep_at_most(most: CapabilitySet) -> rustix::io::Result<()> {
    let permitted = capabilities(None)?.permitted.intersection(most);
    let inheritable = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: permitted, permitted, inheritable })
}

fn refused(what: &'static str) -> impl Fn(io::Error) -> IsolationError {
    move |source| IsolationError::Process { what, source }
}

/// The first step, while there is one thread.
pub(crate) fn before_cores(needs: &Needs) -> Result<(), IsolationError> {
    let most = if geteuid().is_root() { kept(needs) | CORES | CHANGE } else { kept(needs) };
    keep_at_most(most).map_err(|errno| refused("no capabilities")(errno.into()))
}

/// The second step, for all threads.
pub(crate) fn after_cores(needs: &Needs) -> Result<(), IsolationError> {
    let Some(Identity { uid, gid }) = needs.user.filter(|_| geteuid().is_root()) else { return Ok(()) };
    let become_it = || -> io::Result<()> {
        let has = capabilities(None)?.permitted;
        if !has.contains(CHANGE) {
            let text = "it takes CAP_SETUID, CAP_SETGID and CAP_KILL";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        // This thread's alone; the others lose them all.
        set_keep_capabilities(needs.underlay)?;
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
        setgroups(&[group])?;
        setresgid(group, group, group)?;
        setresuid(user, user, user)?;
        set_keep_capabilities(false)?;
        keep_at_most(kept(needs))?;
        // The kernel sets it anew for another user: to 2 where fs.suid_dumpable is.
        Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
    };
    become_it().map_err(refused("a user of its own"))
}

/// The capabilities that the calling thread has, in capabilities(7)'s words.
pub(crate) fn names() -> Vec<String> {
    let set = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.permitted);
    set.iter_names().map(|(name, _)| format!("CAP_{name}")).collect()
}
