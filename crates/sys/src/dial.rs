//! Connecting to servers with a deadline: for the process that may, on a thread that may wait.

use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with, sockopt};

/// Connects to a Unix stream socket. connect(2) waits for the server's backlog at most; SO_SNDTIMEO bounds that.
///
/// # Errors
/// What the operating system says.
pub fn unix(path: &Path, deadline: Instant) -> io::Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let _ = sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(left(deadline)));
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// Connects to the first address of `host` that answers, without Nagle's delay. The kernel ends the connection within
/// about half a minute after its peer is gone without a FIN.
///
/// # Errors
/// What failed for the last address.
pub fn tcp(host: &str, port: u16, deadline: Instant) -> Result<OwnedFd, String> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| format!("cannot resolve: {error}"))?;
    let mut last = String::from("its name has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, left(deadline)) {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                watch_peer(&stream);
                return Ok(stream.into());
            }
            Err(error) => last = format!("cannot connect to {address}: {error}"),
        }
    }
    Err(last)
}

/// What is left until `deadline`: at least a moment, as zero would mean "for ever" to the kernel.
pub fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
}

/// Has the kernel look for a peer that is gone: by probes while the connection is idle (10 s, then 4 in 5 s each), by a
/// limit while something is on its way, which probes do not look at. Also after the process that uses it has died, so
/// that a successor that waits for the end of its connections does not wait for a host that has none.
fn watch_peer(stream: &TcpStream) {
    let _ = sockopt::set_socket_keepalive(stream, true);
    let _ = sockopt::set_tcp_keepidle(stream, Duration::from_secs(10));
    let _ = sockopt::set_tcp_keepintvl(stream, Duration::from_secs(5));
    let _ = sockopt::set_tcp_keepcnt(stream, 4);
    let _ = sockopt::set_tcp_user_timeout(stream, 30_000);
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_peer_that_is_gone_without_a_word_is_noticed_by_the_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let socket = tcp("127.0.0.1", port, Instant::now() + Duration::from_secs(10)).unwrap();
        assert!(sockopt::socket_keepalive(&socket).unwrap());
        let (idle, pause) = (sockopt::tcp_keepidle(&socket).unwrap(), sockopt::tcp_keepintvl(&socket).unwrap());
        assert_eq!(idle + pause * sockopt::tcp_keepcnt(&socket).unwrap(), Duration::from_secs(30));
        assert_eq!(sockopt::tcp_user_timeout(&socket).unwrap(), 30_000, "also with data on its way");
    }
}
