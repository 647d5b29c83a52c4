//! What the loop waits for: descriptors with tokens, level-triggered.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// A handle to the loop's epoll set. Each part of the supervisor has one, and watches its own descriptors by it.
#[derive(Clone)]
pub(super) struct Poller(Arc<Set>);

struct Set {
    epoll: OwnedFd,
    interests: Mutex<Interests>,
}

/// What is watched.
#[derive(Default)]
struct Interests {
    by_token: HashMap<Token, (u64, EventFlags)>,
    by_key: HashMap<u64, Token>,
    next_key: u64,
}

impl Poller {
    pub(super) fn new() -> Result<Poller, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Poller(Arc::new(Set { epoll, interests: Mutex::default() })))
    }

    /// Only the loop's thread takes this lock.
    fn interests(&self) -> MutexGuard<'_, Interests> {
        self.0.interests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches `fd` for `events`, or for others than so far. An empty set still reports its end (HUP).
    pub(super) fn watch(&self, fd: BorrowedFd<'_>, token: Token, events: EventFlags) -> Result<(), Errno> {
        let mut interests = self.interests();
        match interests.by_token.get_mut(&token) {
            Some((_, watched)) if *watched == events => Ok(()),
            Some((key, watched)) => {
                epoll::modify(&self.0.epoll, fd, epoll::EventData::new_u64(*key), events)?;
                *watched = events;
                Ok(())
            }
            None => {
                let key = interests.next_key;
                epoll::add(&self.0.epoll, fd, epoll::EventData::new_u64(key), events)?;
                interests.next_key += 1;
                interests.by_token.insert(token, (key, events));
                interests.by_key.insert(key, token);
                Ok(())
            }
        }
    }

    /// No longer watches `fd`. What is already on its way for it is not reported.
    pub(super) fn forget(&self, fd: BorrowedFd<'_>, token: Token) {
        let mut interests = self.interests();
        if let Some((key, _)) = interests.by_token.remove(&token) {
            interests.by_key.remove(&key);
            // It fails only for a descriptor that is not there.
            let _ = epoll::delete(&self.0.epoll, fd);
        }
    }

    /// Waits at most `timeout`.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Result<Vec<(Token, EventFlags)>, Errno> {
        // Whole milliseconds, rounded up, so that a timer that is waited for has passed.
        let timeout = timeout.map(|timeout| {
            let ms = timeout.as_nanos().div_ceil(1_000_000).min(86_400_000) as i64;
            Timespec { tv_sec: ms / 1000, tv_nsec: (ms % 1000) * 1_000_000 }
        });
        let mut ready = Vec::with_capacity(BATCH);
        match epoll::wait(&self.0.epoll, spare_capacity(&mut ready), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let interests = self.interests();
        let token = |event: &epoll::Event| {
            let (data, flags) = (event.data, event.flags);
            interests.by_key.get(&data.u64()).map(|token| (*token, flags))
        };
        Ok(ready.iter().filter_map(token).collect())
    }
}
