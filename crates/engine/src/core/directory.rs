//! Where the queues are that are not on this core: those that moved on, that have not arrived yet, and that have ended.

use std::collections::HashMap;

use crate::flight::CompletedRequest;
use crate::ids::{CoreIndex, QueueKey};
use crate::links::CoreLinks;
use crate::message::{FromCore, PendingStop, ToCore};

/// What a core knows of queues that it does not have.
#[derive(Default)]
pub(super) struct QueueDirectory {
    /// Queues that moved to another core.
    moved: HashMap<QueueKey, CoreIndex>,
    /// Messages for queues that have not arrived yet.
    early: Vec<ToCore>,
    /// Stops that are reported when other cores have given up what they hold of the queue.
    stops: Vec<PendingStop>,
    /// By queue number: the last generation for which no message comes any more. Generations only grow.
    forgotten: Vec<u32>,
    /// Completed requests of queues that moved.
    travelling: Vec<(QueueKey, CoreIndex, Vec<CompletedRequest>)>,
}

impl QueueDirectory {
    /// A queue has arrived. Returns the messages that came for it before.
    pub(super) fn arrived(&mut self, key: QueueKey) -> Vec<ToCore> {
        let early = std::mem::take(&mut self.early);
        let (messages, early) = early.into_iter().partition(|message| message.queue() == Some(key));
        self.early = early;
        messages
    }

    /// A queue is about to be on this core.
    pub(super) fn expect(&mut self, key: QueueKey) {
        self.moved.remove(&key);
    }

    /// A queue moves to another core.
    pub(super) fn departed(&mut self, key: QueueKey, to: CoreIndex) {
        self.moved.insert(key, to);
    }

    /// No message comes for this queue again.
    pub(super) fn forget(&mut self, key: QueueKey) {
        self.moved.remove(&key);
        self.early.retain(|message| message.queue() != Some(key));
        let number = key.number as usize;
        if self.forgotten.len() <= number {
            self.forgotten.resize(number + 1, 0);
        }
        self.forgotten[number] = key.generation;
    }

    /// Forwards a message for a queue that is not on this core, or keeps it until the queue arrives.
    pub(super) fn forward(&mut self, key: QueueKey, message: ToCore, links: &CoreLinks) {
        match self.moved.get(&key) {
            Some(core) => links.send(*core, message),
            None if self.forgotten.get(key.number as usize).is_some_and(|gone| key.generation <= *gone) => {}
            None => self.early.push(message),
        }
    }

    /// Keeps a completed request for the core that its queue is on now, if any. Otherwise the queue has ended and
    /// abandoned the request.
    #[cold]
    pub(super) fn forward_completed(&mut self, key: QueueKey, completed: CompletedRequest) {
        let Some(&core) = self.moved.get(&key) else { return };
        match self.travelling.iter_mut().find(|(other, ..)| *other == key) {
            Some((_, _, batch)) => batch.push(completed),
            None => self.travelling.push((key, core, vec![completed])),
        }
    }

    /// Sends completed requests to the cores that their queues are on. Returns how many.
    #[inline]
    pub(super) fn send_completed(&mut self, links: &CoreLinks) -> usize {
        if self.travelling.is_empty() { 0 } else { self.send_travelling(links) }
    }

    #[inline(never)]
    fn send_travelling(&mut self, links: &CoreLinks) -> usize {
        let mut count = 0;
        for (key, core, done) in self.travelling.drain(..) {
            count += done.len();
            links.send(core, ToCore::Completed { key, done });
        }
        count
    }

    /// A queue has ended, but the cores `asked` may still hold requests or chains of it: its stop is reported when they
    /// have [given them up](Self::given_up).
    pub(super) fn ask_to_give_up(&mut self, stop: PendingStop, asked: Vec<CoreIndex>, links: &CoreLinks) {
        let (key, by) = (stop.key, links.index);
        self.stops.push(stop);
        for core in asked {
            links.send(core, ToCore::GiveUp { key, by });
        }
    }

    /// One of the cores that were asked has given up what it held of a queue.
    pub(super) fn given_up(&mut self, key: QueueKey, links: &CoreLinks) {
        let Some(at) = self.stops.iter().position(|stop| stop.key == key) else { return };
        self.stops[at].unanswered -= 1;
        if self.stops[at].unanswered == 0 {
            let PendingStop { position, abandoned, .. } = self.stops.swap_remove(at);
            links.report(FromCore::Stopped { key, position, abandoned });
        }
    }
}
