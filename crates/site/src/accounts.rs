//! Users and groups by name or number, as a site names them.

use nix::unistd::{Group, User};

/// The id of the user called `name`, or `name` itself where it is a number; none where there is no such user.
pub fn user_id(name: &str) -> Option<u32> {
    match User::from_name(name) {
        Ok(Some(user)) => Some(user.uid.as_raw()),
        _ => name.parse().ok(),
    }
}

/// The id of the group called `name`, or `name` itself where it is a number; none where there is no such group.
pub fn group_id(name: &str) -> Option<u32> {
    match Group::from_name(name) {
        Ok(Some(group)) => Some(group.gid.as_raw()),
        _ => name.parse().ok(),
    }
}
