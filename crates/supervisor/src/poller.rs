//! What the loop waits for: descriptors with tokens, level-triggered.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

pub(super) use rustix::event::epoll::EventFlags;

use softdpu_link::ConnectionId;

/// So many events are taken at once.
const BATCH: usize = 64;

/// What has become ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Token {
    Bell,
    Signal,
    Link { incarnation: u64 },
    End { incarnation: u64 },
    Port(u64),
    FrontEnd(ConnectionId),
    Api,
    Client(u64),
}

/// An epoll set that knows what it watches.
pub(super) struct Poller {
    epoll: OwnedFd,
    watched: HashMap<Token, (u64, EventFlags)>,
    tokens: HashMap<u64, Token>,
    next: u64,
}

impl Poller {
    pub(super) fn new() -> Result<Poller, Errno> {
        Ok(Poller {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            watched: HashMap::new(),
            tokens: HashMap::new(),
            next: 0,
        })
    }

    /// Watches `fd` for `events`, or for others than so far. An empty set still reports its end (HUP).
    pub(super) fn watch(&mut self, fd: BorrowedFd<'_>, token: Token, events: EventFlags) -> Result<(), Errno> {
        match self.watched.get_mut(&token) {
            Some((_, watched)) if *watched == events => Ok(()),
            Some((key, watched)) => {
                epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(*key), events)?;
                *watched = events;
                Ok(())
            }
            None => {
                let key = self.next;
                self.next += 1;
                epoll::add(&self.epoll, fd, epoll::EventData::new_u64(key), events)?;
                self.watched.insert(token, (key, events));
                self.tokens.insert(key, token);
                Ok(())
            }
        }
    }

    /// No longer watches `fd`. What is already on its way for it is not reported.
    pub(super) fn forget(&mut self, fd: BorrowedFd<'_>, token: Token) {
        if let Some((key, _)) = self.watched.remove(&token) {
            self.tokens.remove(&key);
            // It fails only for a descriptor that is not there.
            let _ = epoll::delete(&self.epoll, fd);
        }
    }

    /// Waits at most `timeout`.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> Result<Vec<(Token, EventFlags)>, Errno> {
        // Whole milliseconds, rounded up, so that a timer that is waited for has passed.
        let timeout = timeout.map(|timeout| {
            let ms = timeout.as_nanos().div_ceil(1_000_000).min(86_400_000) as i64;
            Timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000) * 1_000_000 }
        });
        let mut ready = Vec::with_capacity(BATCH);
        match epoll::wait(&self.epoll, spare_capacity(&mut ready), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let tokens = &self.tokens;
        let token = |event: &epoll::Event| {
            let (data, flags) = (event.data, event.flags);
            tokens.get(&data.u64()).map(|token| (*token, flags))
        };
        Ok(ready.iter().filter_map(token).collect())
    }
}
