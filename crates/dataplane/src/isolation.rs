//! The walls around this process: what it gives up of what it may ask of the kernel, by what its site needs.

use std::path::Path;

use softdpu_api::status::IsolationStatus;
use softdpu_isolation::{IsolationError, Needs, confine_calls, confine_process, refused};
use softdpu_site::{Isolation, Site};

use crate::DataPlaneError;

/// Which walls stand.
#[derive(Debug)]
pub(super) struct Walls {
    setting: Isolation,
    calls: bool,
    missing: Vec<String>,
}

/// What the data plane of this site needs beyond what every one does.
fn needs(site: &Site) -> Needs {
    let folder = |file: &Path| file.parent().map(Path::to_owned);
    Needs {
        underlay: site.node.underlay.is_some(),
        recordings: site.node.record.as_deref().and_then(folder).into_iter().collect(),
    }
}

impl Walls {
    /// What concerns the process. Call it while it has one thread.
    pub(super) fn around_process(site: &Site) -> Walls {
        let setting = site.node.isolation;
        let mut walls = Walls { setting, calls: false, missing: Vec::new() };
        if setting != Isolation::Off {
            walls.missing.extend(confine_process(&needs(site)).iter().map(IsolationError::to_string));
        }
        walls
    }

    /// What concerns system calls. Call it when the cores are made: their rings can be made no more afterwards.
    pub(super) fn around_calls(&mut self, site: &Site) {
        if self.setting == Isolation::Off {
            return;
        }
        match confine_calls(&needs(site)) {
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
            calls: self.calls,
            missing: self.missing.clone(),
            refused: refused().into_iter().collect(),
        }
    }
}
