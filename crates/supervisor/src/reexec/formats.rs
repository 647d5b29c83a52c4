//! The formats of a state that this release reads and writes, and the way from one to the next.

use serde_json::Value;

/// The oldest format.
pub(crate) const OLDEST: u32 = 1;

/// The newest format: that of [`State`](super::state::State). With it changes what another release would misread; a
/// member that is added is such a change.
#[cfg(not(feature = "next-release"))]
pub(crate) const NEWEST: u32 = 1;

/// The formats of a release to come, for tests of upgrades between two.
#[cfg(feature = "next-release")]
pub(crate) const NEWEST: u32 = 2;

/// This release.
#[cfg(not(feature = "next-release"))]
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A release to come.
#[cfg(feature = "next-release")]
pub(crate) const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-next");

/// A state of the newest format as one of `format`.
#[cfg(not(feature = "next-release"))]
pub(super) fn write(state: Value, _format: u32) -> Value {
    state
}

/// A state of `format` as one of the newest.
#[cfg(not(feature = "next-release"))]
pub(super) fn read(state: Value, _format: u32) -> Value {
    state
}

/// What the next release changes here: clients are sessions.
#[cfg(feature = "next-release")]
fn rename(mut state: Value, from: &str, to: &str) -> Value {
    if let Some(members) = state.as_object_mut()
        && let Some(member) = members.remove(from)
    {
        members.insert(to.to_owned(), member);
    }
    state
}

#[cfg(feature = "next-release")]
pub(super) fn write(state: Value, format: u32) -> Value {
    if format < 2 { state } else { rename(state, "clients", "sessions") }
}

#[cfg(feature = "next-release")]
pub(super) fn read(state: Value, format: u32) -> Value {
    if format < 2 { state } else { rename(state, "sessions", "clients") }
}
