//! Network namespaces, which stand for hosts and containers.

use std::path::Path;
use std::process::Command;

use crate::{Context, Failure, skip};

/// Whether this machine lets us make network namespaces. Says so loudly where not.
pub fn possible(test: &str) -> bool {
    let probe = format!("softdpu-probe-{}", std::process::id());
    if run("ip", &["netns", "add", &probe]).is_err() {
        skip(test, "network namespaces cannot be made here (not root?)");
        return false;
    }
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
