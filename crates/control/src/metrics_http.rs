//! `GET /metrics` for Prometheus. One thread, one small asynchronous runtime, nothing shared with the data path but the
//! function that renders a snapshot.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;

use axum::Router;
use axum::http::header;
use axum::routing::get;

/// The content type of the text exposition format.
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Serves `snapshot()` at `/metrics` on `listener` until the process ends; give it a thread of its own. `snapshot` is called
/// in that thread once for each scrape and must not take long.
pub fn serve(listener: TcpListener, snapshot: impl Fn() -> String + Send + Sync + 'static) -> io::Result<()> {
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
    runtime.block_on(async { axum::serve(tokio::net::TcpListener::from_std(listener)?, router).await })
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
}
