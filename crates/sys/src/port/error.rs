//! What can be wrong with a port, said so that a person can put it right.

use std::io;

use rustix::io::Errno;

/// Why a port could not be opened or does not work.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// No interface has that name.
    #[error("{name}: no such network interface; `ip link` lists them")]
    NoInterface {
        /// The interface.
        name: String,
    },
    /// Not a name the kernel would accept.
    #[error("\"{name}\" cannot name a network interface: 1 to 15 bytes, without '/', ':' and white space")]
    BadName {
        /// What was given.
        name: String,
    },
    /// The interface is administratively down.
    #[error("{name}: the interface is down; `ip link set {name} up` starts it")]
    Down {
        /// The interface.
        name: String,
    },
    /// The interface is up and carries nothing: its cable, or what stands for it, is gone.
    #[error("{name}: the interface has no carrier; is its cable plugged in, and the other end up?")]
    NoCarrier {
        /// The interface.
        name: String,
    },
    /// The process may not do this.
    #[error(
        "{name}: {doing} is not permitted; it needs {capability} (run as root, or AmbientCapabilities={capability} in the systemd unit)"
    )]
    NotPermitted {
        /// The interface.
        name: String,
        /// What was tried.
        doing: &'static str,
        /// The capability that allows it.
        capability: &'static str,
    },
    /// Another program, or another port of this one, has it.
    #[error("{name}: {doing} failed as another program or port holds it; {remedy}")]
    Busy {
        /// The interface.
        name: String,
        /// What was tried.
        doing: &'static str,
        /// How to find and stop the other.
        remedy: &'static str,
    },
    /// The kernel or the driver cannot do it.
    #[error("{name}: {what} is not supported here; {remedy}")]
    Unsupported {
        /// The interface.
        name: String,
        /// What is missing.
        what: &'static str,
        /// What to do instead.
        remedy: &'static str,
    },
    /// A descriptor that was handed over is not what it should be.
    #[error("{name}: the descriptor handed over {problem}")]
    WrongDescriptor {
        /// What it was to be used for.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A setting outside its range.
    #[error("{name}: {problem}")]
    Setting {
        /// The interface.
        name: String,
        /// What was wrong, and what would be right.
        problem: String,
    },
    /// The kernel refused for a reason of its own.
    #[error("{name}: {doing} failed: {source}")]
    Kernel {
        /// The interface.
        name: String,
        /// What was tried.
        doing: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl PortError {
    /// Whether what the port is an end of is gone for good, as a TAP after its interface was deleted: no call on it
    /// does anything again.
    pub fn is_final(&self) -> bool {
        matches!(self, PortError::Kernel { source, .. } if Errno::from_io_error(source) == Some(Errno::BADFD))
    }

    /// Turns the kernel's answer to `doing` on interface `name` into what a person can act on; `capability` is what the
    /// call needs.
    pub(crate) fn at(name: &str, doing: &'static str, capability: &'static str, source: impl Into<io::Error>) -> Self {
        let (source, name) = (source.into(), name.to_owned());
        match Errno::from_io_error(&source) {
            Some(Errno::PERM | Errno::ACCESS) => PortError::NotPermitted { name, doing, capability },
            Some(Errno::NODEV | Errno::NXIO) => PortError::NoInterface { name },
            Some(Errno::NETDOWN) => PortError::Down { name },
            _ => PortError::Kernel { name, doing, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_answers_become_advice() {
        let text = |errno| PortError::at("eth7", "binding", "CAP_NET_RAW", errno).to_string();
        assert_eq!(text(Errno::NODEV), "eth7: no such network interface; `ip link` lists them");
        assert!(text(Errno::PERM).contains("needs CAP_NET_RAW"));
        assert!(text(Errno::NETDOWN).contains("`ip link set eth7 up`"));
        assert!(text(Errno::INVAL).starts_with("eth7: binding failed: "));
    }
}
