//! Users and groups by name or number, as a site names them.

use nix::unistd::{Group, User};

/// The id of the user called `name`, or `name` itself where it is a number; none where there is no such user.
pub fn user_id(name: &str) -> Option<u32> {
    match User::from_name(name) {
        Ok(Some(user)) => Some(user.uid.as_raw()),
        _ => name.parse().ok(),
    }
}

/// A user and its own group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Account {
    /// The user's number.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
}

/// The account of the user called `name`, or of the number `name` (with a group of that number where there is
/// no such account); none where it is neither.
pub fn user(name: &str) -> Option<Account> {
    let account = |user: User| Account { uid: user.uid.as_raw(), gid: user.gid.as_raw() };
    if let Ok(Some(user)) = User::from_name(name) {
        return Some(account(user));
    }
    let uid: u32 = name.parse().ok()?;
    let known = User::from_uid(uid.into()).ok().flatten().map(account);
    Some(known.unwrap_or(Account { uid, gid: uid }))
}

/// The id of the group called `name`, or `name` itself where it is a number; none where there is no such group.
pub fn group_id(name: &str) -> Option<u32> {
    match Group::from_name(name) {
        Ok(Some(group)) => Some(group.gid.as_raw()),
        _ => name.parse().ok(),
    }
}
