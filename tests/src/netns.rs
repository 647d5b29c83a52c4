//! Network namespaces, which stand for hosts and containers.

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use crate::{Context, Failure, skip};

/// Whether this machine lets us make network namespaces. Says so loudly where not.
pub fn possible(test: &str) -> bool {
    static PROBES: AtomicU32 = AtomicU32::new(0);
    // Tests beside each other have one each. And where two processes make a machine's first ones at once, one of them
    // may have to try again, as the folder that they have in common is not yet made.
    let probe = (0..3).find_map(|turn| {
        std::thread::sleep(Duration::from_millis(100) * turn);
        let probe = format!("softdpu-probe-{}-{}", std::process::id(), PROBES.fetch_add(1, Relaxed));
        run("ip", &["netns", "add", &probe]).is_ok().then_some(probe)
    });
    let Some(probe) = probe else {
        skip(test, "network namespaces cannot be made here (not root?)");
        return false;
    };
    let _ = run("ip", &["netns", "del", &probe]);
    if !Path::new("/dev/net/tun").exists() {
        skip(test, "there is no /dev/net/tun");
        return false;
    }
    true
}

/// Runs a program to its end and gives what it printed.
///
/// # Errors
/// What it said, where it does not end well.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, Failure> {
    let what = format!("`{program} {}`", arguments.join(" "));
    let output = Command::new(program).args(arguments).output().context(&what)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(Failure::new(format!("{what}: {}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr))))
    }
}

/// A namespace of the test's own. Gone when dropped.
pub struct Namespace {
    /// As `ip netns` knows it.
    pub name: String,
}

impl Namespace {
    /// Makes `sd-TEST-WHAT-PID`, with its loopback up.
    ///
    /// # Errors
    /// What `ip` said.
    pub fn new(test: &str, what: &str) -> Result<Namespace, Failure> {
        let name = format!("sd-{test}-{what}-{}", std::process::id());
        run("ip", &["netns", "add", &name])?;
        let namespace = Namespace { name };
        namespace.ip(&["link", "set", "lo", "up"])?;
        Ok(namespace)
    }

    /// `ip ARGUMENTS` in it.
    ///
    /// # Errors
    /// What `ip` said.
    pub fn ip(&self, arguments: &[&str]) -> Result<String, Failure> {
        run("ip", &[&["-n", &self.name], arguments].concat())
    }

    /// Another program in it.
    ///
    /// # Errors
    /// What it said.
    pub fn exec(&self, arguments: &[&str]) -> Result<String, Failure> {
        run("ip", &[&["netns", "exec", &self.name], arguments].concat())
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = run("ip", &["netns", "del", &self.name]);
    }
}
