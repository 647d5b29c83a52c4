//! How many connections there are, and for how long one may do nothing.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::serve::Listener;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::{Instant, Sleep, sleep};

/// The most connections at once. A further one takes the place of the oldest: a client that holds connections open
/// without asking anything keeps no other out.
pub(super) const MOST_CONNECTIONS: usize = 16;

/// How long a request may take to arrive, and how long a connection may be kept open for the next one.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Accepts connections that end when they are too many or do nothing.
pub(super) struct Limited {
    listener: TcpListener,
    patience: Duration,
    /// The oldest first; dropping a sender ends its connection.
    open: VecDeque<oneshot::Sender<()>>,
}

impl Limited {
    pub(super) fn new(listener: TcpListener, patience: Duration) -> Limited {
        Limited { listener, patience, open: VecDeque::new() }
    }
}

impl Listener for Limited {
    type Io = Connection;
    type Addr = std::net::SocketAddr;

    async fn accept(&mut self) -> (Connection, Self::Addr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        self.open.retain(|connection| !connection.is_closed());
        if self.open.len() >= MOST_CONNECTIONS {
            self.open.pop_front();
        }
        let (sender, displaced) = oneshot::channel();
        self.open.push_back(sender);
        let timer = Box::pin(sleep(self.patience));
        (Connection { stream, displaced, timer, patience: self.patience }, address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.listener.local_addr()
    }
}

/// A connection. What is read from it does not prolong its time, what it takes of an answer does: a request that comes
/// byte by byte has no more time than one that does not come.
pub(super) struct Connection {
    stream: TcpStream,
    displaced: oneshot::Receiver<()>,
    timer: Pin<Box<Sleep>>,
    patience: Duration,
}

impl Connection {
    /// An error when its time is over; registers for that moment.
    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if Pin::new(&mut self.displaced).poll(context).is_ready() {
            return Err(io::Error::new(io::ErrorKind::ConnectionAborted, "newer connections took its place"));
        }
        match self.timer.as_mut().poll(context) {
            Poll::Ready(()) => Err(io::ErrorKind::TimedOut.into()),
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(context)?;
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if matches!(written, Poll::Ready(Ok(_))) {
            let until = Instant::now() + self.patience;
            self.timer.as_mut().reset(until);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
