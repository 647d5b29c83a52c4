//! NBD URIs (NetworkBlockDevice/nbd, doc/uri.md): `nbd://host[:port]/export`, `nbd+unix:///export?socket=path`.

use std::path::PathBuf;

/// The port registered for NBD.
const PORT: u16 = 10809;

/// Where an export is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Uri {
    pub server: Server,
    pub export: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl Uri {
    /// # Errors
    /// What is wrong with it and what it should look like.
    pub(crate) fn parse(text: &str) -> Result<Uri, String> {
        const SHAPE: &str = "expected nbd://host[:port]/export or nbd+unix:///export?socket=/path";
        let wrong = |what: &str| format!("NBD URI {text:?}: {what}; {SHAPE}");
        let (scheme, rest) = text.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, export) = rest.split_once('/').unwrap_or((rest, ""));
        let export = decode(export).ok_or_else(|| wrong("its export name is not valid percent-encoded UTF-8"))?;
        // NBD protocol: a string is at most 4096 bytes.
        if export.len() > 4096 {
            return Err(wrong("its export name is longer than 4096 bytes"));
        }
        let server = match scheme {
            "nbd" => tcp(authority).ok_or_else(|| wrong("its host or port is not valid"))?,
            "nbd+unix" => {
                if !authority.is_empty() {
                    return Err(wrong("a Unix socket has no host"));
                }
                let socket = query.split('&').find_map(|pair| pair.strip_prefix("socket="));
                let socket = socket.and_then(decode).filter(|path| !path.is_empty());
                Server::Unix(socket.ok_or_else(|| wrong("it names no socket"))?.into())
            }
            "nbds" | "nbds+unix" => return Err(wrong("TLS is not supported")),
            other => return Err(wrong(&format!("unknown scheme {other:?}"))),
        };
        Ok(Uri { server, export })
    }
}

fn tcp(authority: &str) -> Option<Server> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(v6) => {
            let (host, rest) = v6.split_once(']')?;
            let port = if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) };
            (host, port)
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = match port {
        Some(port) => port.parse().ok()?,
        None => PORT,
    };
    // An empty host is the local machine.
    let host = if host.is_empty() { "localhost" } else { host };
    Some(Server::Tcp { host: host.into(), port })
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next()?, rest.next()?];
            bytes.push(u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

impl std::fmt::Display for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Server::Tcp { host, port } => write!(f, "{host}:{port}"),
            Server::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_servers_and_exports() {
        let tcp = |host: &str, port, export: &str| Uri {
            server: Server::Tcp { host: host.into(), port },
            export: export.into(),
        };
        assert_eq!(Uri::parse("nbd://store.example/disk1").unwrap(), tcp("store.example", 10809, "disk1"));
        assert_eq!(Uri::parse("nbd://10.0.0.1:99").unwrap(), tcp("10.0.0.1", 99, ""));
        assert_eq!(Uri::parse("nbd://[::1]:99/a%2fb/c").unwrap(), tcp("::1", 99, "a/b/c"));
        let unix = Uri::parse("nbd+unix:///e?socket=/run/my%20nbd").unwrap();
        assert_eq!(unix, Uri { server: Server::Unix("/run/my nbd".into()), export: "e".into() });
        assert_eq!(Uri::parse("nbd+unix://?socket=s").unwrap().export, "");
    }

    #[test]
    fn what_is_not_one_says_why() {
        for (text, why) in [
            ("disk", "no scheme"),
            ("http://h/", "unknown scheme"),
            ("nbds://h/", "TLS"),
            ("nbd://h:port/", "host or port"),
            ("nbd://h/%zz", "percent"),
            ("nbd+unix:///e", "no socket"),
            ("nbd+unix://h/e?socket=s", "has no host"),
        ] {
            let error = Uri::parse(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
