//! Where an NBD export is, as the NBD project's URI specification writes it (doc/uri.md):
//! `nbd://host[:port]/export` and `nbd+unix:///export?socket=PATH`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// The port registered for NBD.
pub const DEFAULT_PORT: u16 = 10809;

/// A parsed NBD URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdUri {
    /// The server.
    pub server: NbdServer,
    /// The export's name; the server's default export where empty.
    pub export: String,
}

/// Where an NBD server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdServer {
    /// TCP.
    Tcp {
        /// A host name or address, without the brackets of an IPv6 address.
        host: String,
        /// Its port.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// Why an NBD URI cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NbdUriError {
    /// not an NBD URI
    #[error("write nbd://host:port/export or nbd+unix:///export?socket=PATH")]
    Scheme,
    /// TLS
    #[error("TLS (nbds://) is not supported yet: use nbd:// on a trusted network, or nbd+unix:// with a local proxy")]
    Tls,
    /// no host
    #[error("the host is missing")]
    NoHost,
    /// bad port
    #[error("`{0}` is not a port number")]
    Port(String),
    /// no socket
    #[error("nbd+unix needs ?socket=PATH")]
    NoSocket,
    /// a host where none belongs
    #[error("nbd+unix has no host: write nbd+unix:/// with three slashes")]
    HostWithSocket,
    /// bad percent-encoding
    #[error("a `%` must be followed by two hexadecimal digits, and the result must be UTF-8")]
    Percent,
    /// unknown query
    #[error("unknown parameter `{0}`")]
    Parameter(String),
}

impl FromStr for NbdUri {
    type Err = NbdUriError;

    fn from_str(text: &str) -> Result<Self, NbdUriError> {
        let (scheme, rest) = text.split_once("://").ok_or(NbdUriError::Scheme)?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decode(export)?;
        let mut socket = None;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("socket", path)) if scheme == "nbd+unix" => socket = Some(decode(path)?),
                _ => return Err(NbdUriError::Parameter(parameter.to_owned())),
            }
        }
        let server = match scheme {
            "nbd" => tcp_server(authority)?,
            "nbd+unix" if !authority.is_empty() => return Err(NbdUriError::HostWithSocket),
            "nbd+unix" => match socket {
                Some(path) if !path.is_empty() => NbdServer::Unix(path.into()),
                _ => return Err(NbdUriError::NoSocket),
            },
            "nbds" | "nbds+unix" => return Err(NbdUriError::Tls),
            _ => return Err(NbdUriError::Scheme),
        };
        Ok(NbdUri { server, export })
    }
}

fn tcp_server(authority: &str) -> Result<NbdServer, NbdUriError> {
    let (host, port) = match authority.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => (address, None),
        Some((address, port)) => {
            (address, Some(port.strip_prefix(':').ok_or_else(|| NbdUriError::Port(port.to_owned()))?))
        }
        None => match authority.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    if host.is_empty() {
        return Err(NbdUriError::NoHost);
    }
    let port = match port {
        None => DEFAULT_PORT,
        Some(text) => match text.parse() {
            Ok(port) if port != 0 => port,
            _ => return Err(NbdUriError::Port(text.to_owned())),
        },
    };
    Ok(NbdServer::Tcp { host: decode(host)?, port })
}

impl NbdUri {
    /// The same export with the path of a Unix socket made absolute.
    pub fn relative_to(mut self, base: &Path) -> NbdUri {
        if let NbdServer::Unix(path) = &mut self.server {
            *path = base.join(&path);
        }
        self
    }
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            NbdServer::Tcp { host, port } if host.contains(':') => write!(f, "nbd://[{host}]:{port}/")?,
            NbdServer::Tcp { host, port } => write!(f, "nbd://{}:{port}/", encode(host))?,
            NbdServer::Unix(_) => f.write_str("nbd+unix:///")?,
        }
        f.write_str(&encode(&self.export))?;
        match &self.server {
            NbdServer::Unix(path) => write!(f, "?socket={}", encode(&path.to_string_lossy())),
            NbdServer::Tcp { .. } => Ok(()),
        }
    }
}

fn decode(text: &str) -> Result<String, NbdUriError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| (byte as char).to_digit(16)).ok_or(NbdUriError::Percent);
        bytes.push((digit()? * 16 + digit()?) as u8);
    }
    String::from_utf8(bytes).map_err(|_| NbdUriError::Percent)
}

/// Percent-encodes what RFC 3986 §3.3 does not allow in a path, and what would end one.
fn encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b if b.is_ascii_alphanumeric() || b"-._~/:@!$'()*+,;".contains(&b) => (b as char).to_string(),
            b => format!("%{b:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_of_the_specification_are_understood() {
        for (text, host, port, export) in [
            ("nbd://example.com", "example.com", 10809, ""),
            ("nbd://example.com:10810/disk", "example.com", 10810, "disk"),
            ("nbd://[::1]/a%20b", "::1", 10809, "a b"),
            ("nbd://[2001:db8::1]:99/x/y", "2001:db8::1", 99, "x/y"),
        ] {
            let uri: NbdUri = text.parse().unwrap();
            assert_eq!(uri, NbdUri { server: NbdServer::Tcp { host: host.into(), port }, export: export.into() });
            assert_eq!(uri.to_string().parse(), Ok(uri));
        }
    }

    #[test]
    fn a_relative_socket_is_relative_to_the_site() {
        let uri: NbdUri = "nbd+unix:///disk?socket=run/nbd.sock".parse().unwrap();
        let uri = uri.relative_to(Path::new("/srv/my site"));
        assert_eq!(uri.to_string(), "nbd+unix:///disk?socket=/srv/my%20site/run/nbd.sock");
        assert_eq!(uri.to_string().parse(), Ok(uri));
    }

    #[test]
    fn what_is_not_one_is_refused_with_the_reason() {
        for (text, error) in [
            ("http://x/", NbdUriError::Scheme),
            ("localhost:10809", NbdUriError::Scheme),
            ("nbds://x/", NbdUriError::Tls),
            ("nbd:///export", NbdUriError::NoHost),
            ("nbd://x:0/", NbdUriError::Port("0".into())),
            ("nbd://x:http/", NbdUriError::Port("http".into())),
            ("nbd+unix:///x", NbdUriError::NoSocket),
            ("nbd+unix://host/x?socket=/s", NbdUriError::HostWithSocket),
            ("nbd://x/%zz", NbdUriError::Percent),
            ("nbd://x/?tls=1", NbdUriError::Parameter("tls=1".into())),
        ] {
            assert_eq!(text.parse::<NbdUri>(), Err(error), "{text}");
        }
    }
}
