//! What a data plane may not open itself and has the supervisor open: backing files, keys, connections to the servers
//! of volumes, TAP interfaces. Each is named by a volume or a device of the desired state; nothing else is opened.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use softdpu_nbd::{NbdServer, NbdUri};
use softdpu_sys::port::InterfaceName;
use softdpu_sys::port::link::Links;
use softdpu_sys::port::tap::{Tap, TapOptions};
use softdpu_sys::{dial, keyring};

use super::opener::Backing;
use softdpu_link::{Open, OpenFailure};
use softdpu_site::{Backend, Device, DeviceKind, Volume};

/// The longest that a server may take to answer.
const MOST_PATIENCE: Duration = Duration::from_secs(10);

/// So many connections to a volume's server are made at once: more than there are cores, twice.
const DIALS: u32 = 256;

/// How often one more may be made after that.
const DIAL_PAUSE: Duration = Duration::from_millis(50);

/// Something that is to be opened.
#[derive(Debug)]
pub(super) enum Wanted {
    /// A volume's file, device or key file.
    Backing(Backing),
    /// The key of this name, of the kernel's keyring.
    Keyring(String),
    /// A connection to a volume's server.
    Server { uri: NbdUri, patience: Duration },
    /// A device's interface.
    Tap { interface: String, mac: [u8; 6], mtu: u16 },
}

fn refused(errno: Errno, message: String) -> OpenFailure {
    OpenFailure { errno: Some(errno.raw_os_error()), message }
}

fn in_words(message: impl ToString) -> OpenFailure {
    OpenFailure { errno: None, message: message.to_string() }
}

impl Wanted {
    /// What `open` asks for of `volume`, whose image may be made if it `is_new`.
    pub(super) fn of_volume(volume: &Volume, open: &Open, is_new: bool) -> Result<Wanted, OpenFailure> {
        let keyring = volume.encryption.as_ref().and_then(|encryption| encryption.keyring.as_ref());
        match keyring.filter(|_| open.key) {
            Some(key) => Ok(Wanted::Keyring(key.clone())),
            None => Backing::of(volume, open, is_new).map(Wanted::Backing),
        }
    }

    /// A connection to the server of `volume`.
    pub(super) fn server_of(volume: &Volume, patience_ms: u64) -> Result<Wanted, OpenFailure> {
        match &volume.backend {
            Backend::Nbd(nbd) => {
                let patience = Duration::from_millis(patience_ms).min(MOST_PATIENCE);
                Ok(Wanted::Server { uri: nbd.uri.clone(), patience })
            }
            _ => Err(refused(Errno::INVAL, format!("volume {:?} has no server", volume.name))),
        }
    }

    /// The interface of `device`, with this MTU where it says none.
    pub(super) fn tap_of(device: &Device, mtu: u16) -> Result<Wanted, OpenFailure> {
        match &device.kind {
            DeviceKind::Tap(tap) => Ok(Wanted::Tap {
                interface: tap.interface.clone(),
                mac: tap.port.mac.0,
                mtu: tap.port.mtu.unwrap_or(mtu),
            }),
            _ => Err(refused(Errno::INVAL, format!("device {:?} is no TAP interface", device.name))),
        }
    }

    /// The image file, if it is one that is made where it is missing.
    pub(super) fn image(&self) -> Option<PathBuf> {
        match self {
            Wanted::Backing(backing) => backing.image(),
            Wanted::Keyring(_) | Wanted::Server { .. } | Wanted::Tap { .. } => None,
        }
    }

    /// Opens it, on a thread that may wait.
    pub(super) fn open(&self) -> Result<OwnedFd, OpenFailure> {
        match self {
            Wanted::Backing(backing) => backing.open(),
            Wanted::Keyring(key) => keyring::user_key_file(key)
                .map_err(|error| OpenFailure { errno: error.raw_os_error(), message: error.to_string() }),
            Wanted::Server { uri, patience } => connect(uri.server(), *patience),
            Wanted::Tap { interface, mac, mtu } => tap(interface, *mac, *mtu),
        }
    }
}

fn connect(server: &NbdServer, patience: Duration) -> Result<OwnedFd, OpenFailure> {
    let deadline = Instant::now() + patience;
    match server {
        NbdServer::Unix(path) => {
            dial::unix(path, deadline).map_err(|error| in_words(format!("cannot connect: {error}")))
        }
        NbdServer::Tcp { host, port } => dial::tcp(host, *port, deadline).map_err(in_words),
    }
}

fn tap(interface: &str, mac: [u8; 6], mtu: u16) -> Result<OwnedFd, OpenFailure> {
    let tap = Tap::open(interface, &TapOptions::default()).map_err(in_words)?;
    let fd = tap.fd().try_clone_to_owned().map_err(in_words)?;
    let name = InterfaceName::new(interface).map_err(in_words)?;
    let links = Links::new().map_err(in_words)?;
    links.set_mac(&name, mac).map_err(in_words)?;
    links.set_mtu(&name, mtu.into()).map_err(in_words)?;
    links.set_up(&name, true).map_err(in_words)?;
    Ok(fd)
}

/// How fast connections to volumes' servers are made: a data plane that asks for one after the other must not have
/// this host flood a server.
#[derive(Debug, Default)]
pub(super) struct Dials {
    /// When the budget of each volume is whole again.
    whole_at: BTreeMap<String, Instant>,
}

impl Dials {
    /// Whether one more to this volume's server may be made now.
    ///
    /// # Errors
    /// What to answer where it may not.
    pub(super) fn one_more(&mut self, volume: &str, now: Instant) -> Result<(), OpenFailure> {
        self.whole_at.retain(|_, at| *at > now);
        let at = self.whole_at.get(volume).map_or(now, |at| (*at).max(now));
        if at.saturating_duration_since(now) >= DIAL_PAUSE * DIALS {
            let message = format!("volume {volume:?}: too many connections to its server were asked for in a row");
            return Err(refused(Errno::AGAIN, message));
        }
        self.whole_at.insert(volume.to_owned(), at + DIAL_PAUSE);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_a_server_have_a_budget_that_fills_with_time() {
        let mut dials = Dials::default();
        let now = Instant::now();
        for _ in 0..DIALS {
            dials.one_more("v", now).unwrap();
        }
        assert!(dials.one_more("v", now).unwrap_err().message.contains("in a row"));
        dials.one_more("w", now).expect("another volume has a budget of its own");
        dials.one_more("v", now + DIAL_PAUSE).expect("one more after a pause");
        assert!(dials.one_more("v", now + DIAL_PAUSE).is_err());
        for _ in 0..DIALS {
            dials.one_more("v", now + 2 * DIAL_PAUSE * DIALS).unwrap();
        }
    }
}
