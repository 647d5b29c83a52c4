//! How messages reach a core that may be spinning or asleep.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use softdpu_sys::wake::Doorbell;

use crate::handshake::Sleeper;

/// The sending half. Clones send to the same core.
pub(crate) struct Mailbox<T> {
    sender: Sender<T>,
    shared: Arc<MailboxShared>,
}

impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Mailbox { sender: self.sender.clone(), shared: Arc::clone(&self.shared) }
    }
}

/// The receiving half.
pub(crate) struct Inbox<T> {
    receiver: Receiver<T>,
    shared: Arc<MailboxShared>,
}

struct MailboxShared {
    sleeper: Sleeper,
    bell: Doorbell,
}

/// A connected pair.
pub(crate) fn mailbox<T>() -> std::io::Result<(Mailbox<T>, Inbox<T>)> {
    let (sender, receiver) = channel();
    let shared = Arc::new(MailboxShared { sleeper: Sleeper::new(), bell: Doorbell::new()? });
    Ok((Mailbox { sender, shared: Arc::clone(&shared) }, Inbox { receiver, shared }))
}

impl<T> Mailbox<T> {
    /// Sends; wakes the receiver if it sleeps. A receiver that has ended loses the message, as does one that ends next.
    pub(crate) fn send(&self, message: T) {
        let _ = self.sender.send(message);
        if self.shared.sleeper.post() {
            self.shared.bell.ring();
        }
    }
}

impl<T> Inbox<T> {
    /// Whether anything was posted since the last call. The owner then takes everything with [`take`](Self::take).
    #[inline(always)]
    pub(crate) fn posted(&self) -> bool {
        self.shared.sleeper.posted()
    }

    /// Whether anything was posted since the last call of [`posted`](Self::posted).
    #[inline(always)]
    pub(crate) fn is_posted(&self) -> bool {
        self.shared.sleeper.is_posted()
    }

    /// The next message, for an owner that does not ask [`posted`](Self::posted) first.
    pub(crate) fn next(&self) -> Option<T> {
        self.posted();
        self.take()
    }

    /// The next message.
    pub(crate) fn take(&self) -> Option<T> {
        self.receiver.try_recv().ok()
    }

    /// Declares that the owner is about to sleep on [`bell`](Self::bell). False: something was posted; do not sleep.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.shared.sleeper.fall_asleep()
    }

    /// The owner is awake.
    pub(crate) fn wake_up(&self) {
        self.shared.sleeper.wake_up();
        self.shared.bell.drain();
    }

    /// Readable when it was rung.
    pub(crate) fn bell(&self) -> &Doorbell {
        &self.shared.bell
    }
}

/// How a reader outside of the cores waits: `bell`, `prepare_wait` and `waited` for a type with an `inbox`. Its method
/// `$take` returns the next message.
macro_rules! waitable {
    ($reader:ident, $take:ident) => {
        impl $reader {
            #[doc = concat!("Readable when [`", stringify!($take), "`](Self::", stringify!($take), ") has something.")]
            /// Call [`prepare_wait`](Self::prepare_wait) before waiting.
            pub fn bell(&self) -> std::os::fd::BorrowedFd<'_> {
                std::os::fd::AsFd::as_fd(self.inbox.bell())
            }

            /// The caller is about to wait for [`bell`](Self::bell). False: there is something already.
            pub fn prepare_wait(&self) -> bool {
                self.inbox.fall_asleep()
            }

            /// The caller has waited.
            pub fn waited(&self) {
                self.inbox.wake_up();
            }
        }
    };
}
pub(crate) use waitable;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_message_to_a_sleeper_rings_once() {
        let (sender, inbox) = mailbox().unwrap();
        assert!(inbox.fall_asleep());
        sender.send(1);
        sender.send(2);
        assert!(inbox.bell().drain());
        assert!(!inbox.bell().drain());
        inbox.wake_up();
        assert!(inbox.posted());
        assert_eq!([inbox.take(), inbox.take(), inbox.take()], [Some(1), Some(2), None]);
    }

    #[test]
    fn what_was_posted_before_keeps_the_receiver_awake() {
        let (sender, inbox) = mailbox().unwrap();
        sender.send(());
        assert!(!inbox.fall_asleep());
        assert!(!inbox.bell().drain(), "rung though the owner was awake");
    }

    #[test]
    fn no_wake_up_is_lost_between_threads() {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        use std::os::fd::AsFd;

        const MESSAGES: u32 = 20_000;
        let (sender, inbox) = mailbox();
        let producer = std::thread::spawn(move || {
            for n in 0..MESSAGES {
                sender.send(n);
                if n % 64 == 0 {
                    std::thread::yield_now();
                }
            }
        });
        let mut next = 0;
        while next < MESSAGES {
            if inbox.posted() {
                while let Some(n) = inbox.take() {
                    assert_eq!(n, next);
                    next += 1;
                }
            } else if inbox.fall_asleep() {
                let mut fds = [PollFd::from_borrowed_fd(inbox.bell().as_fd(), PollFlags::IN)];
                let deadline = Timespec { tv_sec: 20, tv_nsec: 0 };
                assert_eq!(poll(&mut fds, Some(&deadline)).unwrap(), 1, "asleep with {next} of {MESSAGES} received");
                inbox.wake_up();
            }
        }
        producer.join().unwrap();

        fn mailbox() -> (Mailbox<u32>, Inbox<u32>) {
            super::mailbox().unwrap()
        }
    }
}
