//! A wire to the underlay: a veth pair in a network namespace of its own. The server has the one end, a counter the
//! other.
//!
//! The namespace is that of a process which does nothing and ends with this one however that ends; the kernel then
//! removes all that is in it. It has a /sys of its own, as that shows the interfaces of one namespace.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use softdpu_frontend::net::frames::mac_text;
use softdpu_sys::namespace;

use crate::SetupError;
use crate::process::{Server, in_path};
use crate::scratch::Folder;

/// The server's end.
pub const NEAR: &str = "wire";
/// The counter's.
pub const FAR: &str = "far";
/// The server's address as a tunnel's end.
pub const NEAR_ADDRESS: &str = "192.0.2.1";
/// The address of the host that the far end stands for.
pub const FAR_ADDRESS: &str = "192.0.2.2";
/// That of another one, which it stands for as well.
pub const OTHER_ADDRESS: &str = "192.0.2.3";
/// The MAC address of the one end.
pub const NEAR_MAC: [u8; 6] = [2, 0x5d, 0xff, 0, 0, 1];
/// That of the other.
pub const FAR_MAC: [u8; 6] = [2, 0x5d, 0xff, 0, 0, 2];
/// Room for IP packets of 1500 bytes in VXLAN.
const MTU: &str = "1600";

/// What the process that has the namespace does.
const HOLD: &str = "mount -t sysfs sysfs /sys && : >ready && exec sleep infinity";

/// The wire; gone when dropped.
pub struct Wire {
    namespace: File,
    holder: Server,
    _folder: Folder,
}

impl Wire {
    /// Makes it.
    ///
    /// # Errors
    /// [`SetupError`], as where this process may not make network namespaces.
    pub fn new() -> Result<Wire, SetupError> {
        let failed = |reason: String| SetupError::Start { program: "unshare --net".into(), reason };
        let program = in_path("unshare").ok_or_else(|| failed("it is not in PATH (Debian: util-linux)".to_owned()))?;
        let folder = Folder::new().map_err(|error| SetupError::Folder(error.to_string()))?;
        let arguments = ["--net", "--mount", "--", "sh", "-c", HOLD];
        let mut holder = Server::start("namespace", &program, arguments, folder.path(), None)?;
        holder.until("a network namespace", || folder.path().join("ready").exists().then_some(()))?;
        let path = format!("/proc/{}/ns/net", holder.pid());
        let namespace = namespace::open(&path).map_err(|error| failed(error.to_string()))?;
        let wire = Wire { namespace, holder, _folder: folder };
        let [near, far] = [NEAR_MAC, FAR_MAC].map(mac_text);
        let peer = ["type", "veth", "peer", "name", FAR, "address", &far];
        wire.ip(&[&["link", "add", NEAR, "address", &near], &peer[..]].concat())?;
        for end in [NEAR, FAR] {
            // Without an address of its own an interface sends nothing: all frames are the load's.
            wire.ip(&["link", "set", end, "mtu", MTU, "addrgenmode", "none", "up"])?;
        }
        wire.ip(&["address", "add", &format!("{NEAR_ADDRESS}/24"), "dev", NEAR])?;
        for host in [FAR_ADDRESS, OTHER_ADDRESS] {
            wire.ip(&["neighbor", "add", host, "lladdr", &far, "dev", NEAR, "nud", "permanent"])?;
        }
        Ok(wire)
    }

    /// What runs `program` in `folder` where the wire is.
    pub fn enter(&self, program: &Path, arguments: &[String], folder: &Path) -> (PathBuf, Vec<OsString>) {
        let mut wrapped: Vec<OsString> =
            ["--target", &self.holder.pid().to_string(), "--net", "--mount"].map(OsString::from).into();
        let mut place = OsString::from("--wd=");
        place.push(folder);
        wrapped.extend([place, "--".into(), program.into()]);
        wrapped.extend(arguments.iter().map(OsString::from));
        ("nsenter".into(), wrapped)
    }

    /// Runs `work` in the wire's namespace, which processes and threads that it starts are in, too.
    ///
    /// # Errors
    /// [`SetupError`] where the namespace cannot be entered.
    pub fn within<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, SetupError> {
        namespace::within(self.namespace.as_fd(), work)
            .map_err(|error| SetupError::Start { program: "a network namespace".into(), reason: error.to_string() })
    }

    fn ip(&self, arguments: &[&str]) -> Result<(), SetupError> {
        let failed =
            |reason: String| SetupError::Start { program: format!("ip {}", arguments.join(" ")).into(), reason };
        let output = self.within(|| Command::new("ip").args(arguments).output())?;
        let output = output.map_err(|error| failed(error.to_string()))?;
        if output.status.success() {
            return Ok(());
        }
        Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
    }
}
