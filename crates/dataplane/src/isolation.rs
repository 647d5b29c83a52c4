//! The walls around this process: what it gives up of what it may ask of the kernel, by what its site needs.

use std::path::Path;

use rustix::process::geteuid;
use softdpu_api::status::IsolationStatus;
use softdpu_isolation::{
    Identity, IsolationError, Needs, capabilities, confine_calls, confine_process, confine_user, refused,
};
use softdpu_site::{Isolation, Site, accounts};

use crate::DataPlaneError;

/// Which walls stand.
#[derive(Debug)]
pub(super) struct Walls {
    setting: Isolation,
    /// Told before another user could not look it up.
    needs: Needs,
    calls: bool,
    missing: Vec<String>,
}

/// The user that the data plane becomes where the site names none, if there is one of this name.
const USER: &str = "softdpu";

/// The user and group that it becomes where there is no such user: a number that no account and no service has
/// (systemd's "Users, Groups, UIDs and GIDs" leaves 65520 to 65533 unused).
const NAMELESS: u32 = 65_520;

/// The user that the data plane becomes where root started it; none where the site names one that is not there.
fn identity(site: &Site) -> Option<Identity> {
    match site.node.user.as_deref() {
        Some(name) => accounts::user(name),
        None => Some(accounts::user(USER).unwrap_or(accounts::Account { uid: NAMELESS, gid: NAMELESS })),
    }
    .filter(|account| account.uid != 0)
    .map(|accounts::Account { uid, gid }| Identity { uid, gid })
}

/// What the data plane of this site needs beyond what every one does.
fn needs(site: &Site) -> Needs {
    let folder = |file: &Path| file.parent().map(Path::to_owned);
    Needs {
        underlay: site.node.underlay.is_some(),
        recordings: site.node.record.as_deref().and_then(folder).into_iter().collect(),
        user: identity(site),
    }
}

impl Walls {
    /// What concerns the process. Call it while it has one thread.
    pub(super) fn around_process(site: &Site) -> Walls {
        let setting = site.node.isolation;
        let mut walls = Walls { setting, needs: needs(site), calls: false, missing: Vec::new() };
        if setting != Isolation::Off {
            walls.missing.extend(confine_process(&walls.needs).iter().map(IsolationError::to_string));
        }
        walls
    }

    /// What concerns its user and system calls. Call it when the cores are made: their rings can be made no more
    /// afterwards, and their priority takes rights.
    pub(super) fn around_cores(&mut self) {
        if self.setting == Isolation::Off {
            return;
        }
        if geteuid().is_root() && self.needs.user.is_none() {
            self.missing.push("a user of its own: `node.user` is not there, or is root".to_owned());
        }
        self.missing.extend(confine_user(&self.needs).err().map(|error| error.to_string()));
        match confine_calls(&self.needs) {
            Ok(()) => self.calls = true,
            Err(error) => self.missing.push(error.to_string()),
        }
    }

    /// Says what is missing.
    ///
    /// # Errors
    /// [`DataPlaneError::Isolation`] where something is, and all is required.
    pub(super) fn check(&self) -> Result<(), DataPlaneError> {
        if self.setting == Isolation::Required && !self.missing.is_empty() {
            return Err(DataPlaneError::Isolation(self.missing.join("; ")));
        }
        for missing in &self.missing {
            tracing::warn!(missing, "the data plane runs with less isolation than it could have");
        }
        Ok(())
    }

    /// For `status`.
    pub(super) fn status(&self) -> IsolationStatus {
        let setting = match self.setting {
            Isolation::On => "on",
            Isolation::Required => "required",
            Isolation::Off => "off",
        };
        IsolationStatus {
            setting: setting.to_owned(),
            user: geteuid().as_raw(),
            capabilities: capabilities(),
            calls: self.calls,
            missing: self.missing.clone(),
            refused: refused().into_iter().collect(),
        }
    }
}
