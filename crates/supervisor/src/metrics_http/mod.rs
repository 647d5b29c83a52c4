//! `GET /metrics` for Prometheus. One thread, one small asynchronous runtime, nothing shared with the data path but the
//! function that renders a snapshot.

mod limits;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header;
use axum::routing::get;

use self::limits::{Limited, PATIENCE};

/// The content type of the text exposition format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves `snapshot()` at `/metrics` on `listener` until the process ends; give it a thread of its own. `snapshot` is
/// called in that thread once for each scrape and must not take long.
pub fn serve(listener: TcpListener, snapshot: impl Fn() -> String + Send + Sync + 'static) -> io::Result<()> {
    serve_with(listener, snapshot, PATIENCE)
}

fn serve_with(
    listener: TcpListener,
    snapshot: impl Fn() -> String + Send + Sync + 'static,
    patience: Duration,
) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let snapshot = Arc::new(snapshot);
    let router = Router::new()
        .route(
            "/metrics",
            get(move || {
                let snapshot = Arc::clone(&snapshot);
                async move { ([(header::CONTENT_TYPE, CONTENT_TYPE)], snapshot()) }
            }),
        )
        .route("/", get(|| async { "softdpu: metrics are at /metrics\n" }));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = Limited::new(tokio::net::TcpListener::from_std(listener)?, patience);
        axum::serve(listener, router).await
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::thread;

    fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn a_scrape_gets_the_snapshot_of_its_moment() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let scrapes = std::sync::atomic::AtomicU32::new(0);
        thread::spawn(move || {
            serve(listener, move || format!("scrapes {}\n", scrapes.fetch_add(1, std::sync::atomic::Ordering::Relaxed)))
        });
        for scrape in 0..2 {
            let answer = get(address, "/metrics");
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
            assert!(answer.contains("content-type: text/plain; version=0.0.4"), "{answer}");
            assert!(answer.ends_with(&format!("\r\n\r\nscrapes {scrape}\n")), "{answer}");
        }
        assert!(get(address, "/nothing").starts_with("HTTP/1.1 404"));
    }

    fn start(patience: Duration) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || serve_with(listener, || "up 1\n".to_owned(), patience));
        address
    }

    fn idle(address: std::net::SocketAddr, sent: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(sent).unwrap();
        stream
    }

    fn is_closed(stream: &mut TcpStream, patience: Duration) -> bool {
        stream.set_read_timeout(Some(patience)).unwrap();
        match stream.read(&mut [0; 16]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == io::ErrorKind::ConnectionReset,
        }
    }

    #[test]
    fn connections_that_ask_nothing_are_few_and_keep_no_scrape_waiting() {
        let address = start(Duration::from_secs(600));
        let mut idle: Vec<_> = (0..200).map(|_| idle(address, b"GET /metr")).collect();
        assert!(get(address, "/metrics").ends_with("up 1\n"));
        assert!(idle.iter_mut().take(180).all(|stream| is_closed(stream, Duration::from_secs(20))));
        assert!(!is_closed(&mut idle[199], Duration::from_millis(200)), "the newest has its time");
    }

    #[test]
    fn a_request_that_does_not_come_and_one_that_comes_byte_by_byte_have_the_same_time() {
        let address = start(Duration::from_secs(1));
        let mut silent = idle(address, b"");
        assert_eq!(silent.read(&mut [0; 16]).unwrap(), 0);
        let mut slow = idle(address, b"GET /metrics HTTP/1.1\r\n");
        let before = std::time::Instant::now();
        while slow.write_all(b"a").is_ok() {
            assert!(before.elapsed() < Duration::from_secs(30), "it is never closed");
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_connection_that_is_kept_open_serves_one_scrape_after_the_other_and_ends_when_it_is_idle() {
        let address = start(Duration::from_secs(2));
        let mut stream = idle(address, b"");
        // Altogether for longer than it may be idle.
        for _ in 0..5 {
            thread::sleep(Duration::from_millis(500));
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n").unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"up 1\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                answer.push(byte[0]);
            }
        }
        assert_eq!(stream.read(&mut [0; 16]).unwrap(), 0);
    }
}
