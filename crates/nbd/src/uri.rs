//! NBD URIs (doc/uri.md): `nbd://host[:port]/export` and `nbd+unix:///export?socket=PATH`.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::wire::MAX_STRING;

/// The port registered for NBD.
pub const DEFAULT_PORT: u16 = 10809;

/// Bytes of a Unix socket's path without its closing zero: `sun_path` has 108 (unix(7)).
pub const MAX_SOCKET_PATH: usize = 107;

/// Where an NBD export is. In JSON it is the URI's text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct NbdUri {
    server: NbdServer,
    export: String,
}

/// Where an NBD server listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum NbdServer {
    /// TCP.
    Tcp {
        /// A host name or address, without the brackets of an IPv6 address.
        host: String,
        /// Its port; not 0.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

/// Why an NBD URI cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum NbdUriError {
    /// Neither `nbd://` nor `nbd+unix://`.
    #[error("write nbd://host:port/export or nbd+unix:///export?socket=PATH")]
    Scheme,
    /// `nbds://` or `nbds+unix://`.
    #[error("TLS (nbds://) is not supported yet: use nbd:// on a trusted network, or nbd+unix:// with a local proxy")]
    Tls,
    /// `nbd://` without a host.
    #[error("the host is missing")]
    NoHost,
    /// More than one `:` in the host, or a bracket without its partner.
    #[error("an IPv6 address is written in brackets, such as nbd://[::1]:10809/export")]
    Brackets,
    /// No number from 1 to 65535.
    #[error("`{0}` is not a port number")]
    Port(String),
    /// `nbd+unix://` without the parameter `socket`.
    #[error("nbd+unix needs ?socket=PATH")]
    NoSocket,
    /// `nbd+unix://host/`.
    #[error("nbd+unix has no host: write nbd+unix:/// with three slashes")]
    HostWithSocket,
    /// Longer than [`MAX_SOCKET_PATH`].
    #[error("the socket's path has {0} bytes, and the kernel takes at most {MAX_SOCKET_PATH}")]
    LongSocket(usize),
    /// Longer than [`MAX_STRING`].
    #[error("the export's name has {0} bytes, and the NBD protocol allows {MAX_STRING}")]
    LongExport(usize),
    /// Percent-encoding that decodes to no text.
    #[error("a `%` must be followed by two hexadecimal digits, and the result must be UTF-8")]
    Percent,
    /// `%00`, or a zero byte.
    #[error("a zero byte cannot be part of it")]
    Zero,
    /// A parameter other than `socket`.
    #[error("unknown parameter `{0}`")]
    Parameter(String),
}

impl NbdUri {
    /// The server.
    pub fn server(&self) -> &NbdServer {
        &self.server
    }

    /// The export's name: at most [`MAX_STRING`] bytes. The server's default export where it is empty.
    pub fn export(&self) -> &str {
        &self.export
    }

    /// The same export; a relative path of a Unix socket is taken from the folder `base`.
    ///
    /// # Errors
    /// The path is then longer than [`MAX_SOCKET_PATH`].
    pub fn relative_to(self, base: &Path) -> Result<NbdUri, NbdUriError> {
        let server = match self.server {
            NbdServer::Unix(path) => NbdServer::Unix(short_enough(base.join(path))?),
            tcp @ NbdServer::Tcp { .. } => tcp,
        };
        Ok(NbdUri { server, ..self })
    }
}

impl FromStr for NbdUri {
    type Err = NbdUriError;

    fn from_str(text: &str) -> Result<Self, NbdUriError> {
        let (scheme, rest) = text.split_once("://").ok_or(NbdUriError::Scheme)?;
        match scheme {
            "nbd" | "nbd+unix" => {}
            "nbds" | "nbds+unix" => return Err(NbdUriError::Tls),
            _ => return Err(NbdUriError::Scheme),
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decode_text(export)?;
        if export.len() > MAX_STRING {
            return Err(NbdUriError::LongExport(export.len()));
        }
        let mut socket = None;
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            match parameter.split_once('=') {
                Some(("socket", path)) if scheme == "nbd+unix" => socket = Some(OsString::from_vec(decode(path)?)),
                _ => return Err(NbdUriError::Parameter(parameter.to_owned())),
            }
        }
        let server = match scheme {
            "nbd" => tcp_server(authority)?,
            _ if !authority.is_empty() => return Err(NbdUriError::HostWithSocket),
            _ => match socket {
                Some(path) if !path.is_empty() => NbdServer::Unix(short_enough(path.into())?),
                _ => return Err(NbdUriError::NoSocket),
            },
        };
        Ok(NbdUri { server, export })
    }
}

fn tcp_server(authority: &str) -> Result<NbdServer, NbdUriError> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => match rest.split_once(']').ok_or(NbdUriError::Brackets)? {
            (address, "") => (address, None),
            (address, port) => {
                (address, Some(port.strip_prefix(':').ok_or_else(|| NbdUriError::Port(port.to_owned()))?))
            }
        },
        None => match authority.split_once(':') {
            Some((_, port)) if port.contains(':') => return Err(NbdUriError::Brackets),
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
    Ok(NbdServer::Tcp { host: decode_text(host)?, port })
}

fn short_enough(path: PathBuf) -> Result<PathBuf, NbdUriError> {
    match path.as_os_str().len() {
        len if len > MAX_SOCKET_PATH => Err(NbdUriError::LongSocket(len)),
        _ => Ok(path),
    }
}

fn decode_text(text: &str) -> Result<String, NbdUriError> {
    String::from_utf8(decode(text)?).map_err(|_| NbdUriError::Percent)
}

fn decode(text: &str) -> Result<Vec<u8>, NbdUriError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let byte = if byte == b'%' {
            let mut digit = || rest.next().and_then(|byte| (byte as char).to_digit(16)).ok_or(NbdUriError::Percent);
            (digit()? * 16 + digit()?) as u8
        } else {
            byte
        };
        if byte == 0 {
            return Err(NbdUriError::Zero);
        }
        bytes.push(byte);
    }
    Ok(bytes)
}

impl fmt::Display for NbdUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What RFC 3986 §3.3 allows in a path, without what would end one.
        const PATH: &[u8] = b"/:@!$'()*+,;";
        match &self.server {
            NbdServer::Tcp { host, port } if host.contains(':') => {
                write!(f, "nbd://[{}]:{port}/", encode(host.as_bytes(), b":"))?;
            }
            NbdServer::Tcp { host, port } => write!(f, "nbd://{}:{port}/", encode(host.as_bytes(), b""))?,
            NbdServer::Unix(_) => f.write_str("nbd+unix:///")?,
        }
        f.write_str(&encode(self.export.as_bytes(), PATH))?;
        match &self.server {
            NbdServer::Unix(path) => write!(f, "?socket={}", encode(path.as_os_str().as_bytes(), PATH)),
            NbdServer::Tcp { .. } => Ok(()),
        }
    }
}

/// Percent-encodes what is neither unreserved (RFC 3986 §2.3) nor among the `kept`.
fn encode(bytes: &[u8], kept: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || kept.contains(&byte) {
            text.push(byte.into());
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

impl fmt::Display for NbdServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdServer::Tcp { host, port } => write!(f, "{host}:{port}"),
            NbdServer::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl From<NbdUri> for String {
    fn from(uri: NbdUri) -> String {
        uri.to_string()
    }
}

impl TryFrom<String> for NbdUri {
    type Error = NbdUriError;

    fn try_from(text: String) -> Result<NbdUri, NbdUriError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tcp(host: &str, port: u16, export: &str) -> NbdUri {
        NbdUri { server: NbdServer::Tcp { host: host.into(), port }, export: export.into() }
    }

    fn unix(path: &str, export: &str) -> NbdUri {
        NbdUri { server: NbdServer::Unix(path.into()), export: export.into() }
    }

    #[test]
    fn uris_of_the_specification_are_understood() {
        for (text, expected) in [
            ("nbd://example.com", tcp("example.com", 10809, "")),
            ("nbd://example.com:10810/disk", tcp("example.com", 10810, "disk")),
            ("nbd://store.example/disk1", tcp("store.example", 10809, "disk1")),
            ("nbd://10.0.0.1:99", tcp("10.0.0.1", 99, "")),
            ("nbd://[::1]/a%20b", tcp("::1", 10809, "a b")),
            ("nbd://[::1]:99/a%2fb/c", tcp("::1", 99, "a/b/c")),
            ("nbd://[2001:db8::1]:99/x/y", tcp("2001:db8::1", 99, "x/y")),
            ("nbd+unix:///e?socket=/run/my%20nbd", unix("/run/my nbd", "e")),
            ("nbd+unix://?socket=s", unix("s", "")),
        ] {
            let uri: NbdUri = text.parse().unwrap();
            assert_eq!(uri, expected, "{text}");
            assert_eq!(uri.to_string().parse(), Ok(uri));
        }
    }

    #[test]
    fn a_relative_socket_is_relative_to_the_site() {
        let uri: NbdUri = "nbd+unix:///disk?socket=run/nbd.sock".parse().unwrap();
        let uri = uri.relative_to(Path::new("/srv/my site")).unwrap();
        assert_eq!(uri.to_string(), "nbd+unix:///disk?socket=/srv/my%20site/run/nbd.sock");
        assert_eq!(uri.to_string().parse(), Ok(uri));
    }

    #[test]
    fn what_is_not_one_is_refused_with_the_reason() {
        for (text, error) in [
            ("disk", NbdUriError::Scheme),
            ("http://x/", NbdUriError::Scheme),
            ("localhost:10809", NbdUriError::Scheme),
            ("nbds://x/", NbdUriError::Tls),
            ("nbd:///export", NbdUriError::NoHost),
            ("nbd://:99/export", NbdUriError::NoHost),
            ("nbd://x:0/", NbdUriError::Port("0".into())),
            ("nbd://x:http/", NbdUriError::Port("http".into())),
            ("nbd://[::1]99/", NbdUriError::Port("99".into())),
            ("nbd://::1/", NbdUriError::Brackets),
            ("nbd://fe80::1:99/", NbdUriError::Brackets),
            ("nbd://[", NbdUriError::Brackets),
            ("nbd://[::1:99/", NbdUriError::Brackets),
            ("nbd+unix:///x", NbdUriError::NoSocket),
            ("nbd+unix:///x?socket=", NbdUriError::NoSocket),
            ("nbd+unix://host/x?socket=/s", NbdUriError::HostWithSocket),
            ("nbd://x/%zz", NbdUriError::Percent),
            ("nbd://x/%+f", NbdUriError::Percent),
            ("nbd://x/%ff", NbdUriError::Percent),
            ("nbd://x/a%00b", NbdUriError::Zero),
            ("nbd+unix:///x?socket=/a%00b", NbdUriError::Zero),
            ("nbd://x/?tls=1", NbdUriError::Parameter("tls=1".into())),
        ] {
            assert_eq!(text.parse::<NbdUri>(), Err(error), "{text}");
        }
    }

    #[test]
    fn an_export_has_at_most_the_bytes_that_the_protocol_allows() {
        let of = |len| format!("nbd://x/{}", "e".repeat(len)).parse::<NbdUri>();
        assert_eq!(of(MAX_STRING).unwrap().export().len(), MAX_STRING);
        assert_eq!(of(MAX_STRING + 1), Err(NbdUriError::LongExport(MAX_STRING + 1)));
        // Bytes, not characters, and of the name, not of how it is written.
        let umlauts = |count| format!("nbd://x/{}", "%C3%A4".repeat(count)).parse::<NbdUri>();
        assert_eq!(umlauts(MAX_STRING / 2).unwrap().export().chars().count(), MAX_STRING / 2);
        assert_eq!(umlauts(MAX_STRING / 2 + 1), Err(NbdUriError::LongExport(MAX_STRING + 2)));
    }

    #[test]
    fn a_socket_has_at_most_the_bytes_that_the_kernel_takes() {
        let of = |len: usize| format!("nbd+unix:///?socket=/{}", "s".repeat(len - 1)).parse::<NbdUri>();
        assert!(of(MAX_SOCKET_PATH).is_ok());
        assert_eq!(of(MAX_SOCKET_PATH + 1), Err(NbdUriError::LongSocket(MAX_SOCKET_PATH + 1)));
        let relative: NbdUri = "nbd+unix:///?socket=s".parse().unwrap();
        let base = |len: usize| PathBuf::from(format!("/{}", "b".repeat(len - 1)));
        assert!(relative.clone().relative_to(&base(MAX_SOCKET_PATH - 2)).is_ok());
        let error = relative.relative_to(&base(MAX_SOCKET_PATH - 1));
        assert_eq!(error, Err(NbdUriError::LongSocket(MAX_SOCKET_PATH + 1)));
    }

    #[test]
    fn json_has_the_text_and_nothing_that_is_not_a_uri() {
        let uri = unix("/run/s", "e");
        assert_eq!(serde_json::to_string(&uri).unwrap(), "\"nbd+unix:///e?socket=/run/s\"");
        assert_eq!(serde_json::from_str::<NbdUri>("\"nbd+unix:///e?socket=/run/s\"").unwrap(), uri);
        let error = serde_json::from_str::<NbdUri>("\"nbds://h\"").unwrap_err();
        assert!(error.to_string().contains("TLS"), "{error}");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_again(
            host in "[^\0]{1,20}",
            port in 1..=u16::MAX,
            export in "[^\0]{0,40}",
            path in prop::collection::vec(1..=255u8, 1..MAX_SOCKET_PATH),
            is_tcp: bool,
        ) {
            let server = match is_tcp {
                true => NbdServer::Tcp { host, port },
                false => NbdServer::Unix(OsString::from_vec(path).into()),
            };
            let uri = NbdUri { server, export };
            prop_assert_eq!(uri.to_string().parse(), Ok(uri));
        }

        #[test]
        fn no_text_makes_it_panic(text in "(nbd|nbd\\+unix)://[\\[\\]:%/?=&a-z0-9]{0,30}") {
            if let Ok(uri) = text.parse::<NbdUri>() {
                prop_assert_eq!(uri.to_string().parse(), Ok(uri));
            }
        }
    }
}
