//! The directories that a service manager made for the daemon, which stand in for the defaults of `node.run-directory`
//! and `node.state-directory`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// What `RuntimeDirectory=` and `StateDirectory=` of a unit gave the process (systemd.exec(5), "Environment Variables
/// Set or Propagated by the Service Manager").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceDirectories {
    /// For sockets; removed when the service stops.
    pub run: Option<PathBuf>,
    /// For what has to survive a reboot.
    pub state: Option<PathBuf>,
}

impl ServiceDirectories {
    /// Those of this process.
    pub fn of_this_process() -> ServiceDirectories {
        ServiceDirectories::new(std::env::var_os("RUNTIME_DIRECTORY"), std::env::var_os("STATE_DIRECTORY"))
    }

    /// From the values of `RUNTIME_DIRECTORY` and `STATE_DIRECTORY`.
    pub fn new(run: Option<OsString>, state: Option<OsString>) -> ServiceDirectories {
        ServiceDirectories { run: run.as_deref().and_then(first), state: state.as_deref().and_then(first) }
    }
}

/// The first of a list with colons. systemd gives absolute paths; anything else is not its variable.
fn first(list: &OsStr) -> Option<PathBuf> {
    let first = list.as_bytes().split(|byte| *byte == b':').next()?;
    let path = PathBuf::from(OsStr::from_bytes(first));
    path.is_absolute().then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_absolute_path_of_a_list_counts() {
        let run = |value: &str| ServiceDirectories::new(Some(value.into()), None).run;
        assert_eq!(run("/run/softdpu"), Some("/run/softdpu".into()));
        assert_eq!(run("/run/softdpu:/run/other"), Some("/run/softdpu".into()));
        assert_eq!(run(""), None);
        assert_eq!(run("run/softdpu"), None);
        let both = ServiceDirectories::new(None, Some("/var/lib/softdpu:/var/lib/other".into()));
        assert_eq!(both, ServiceDirectories { run: None, state: Some("/var/lib/softdpu".into()) });
    }
}
