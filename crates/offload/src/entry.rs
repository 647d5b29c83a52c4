//! What queues carry: messages, transactions, outcomes, each in one line of memory.

use softdpu_sched::threads::{
    CoreId, Outcome, Sequence, SloClass, ThreadDecision, ThreadEvent, ThreadId, ThreadMessage,
};

use crate::memory::WORDS_PER_LINE;

/// The words of an entry beside its flag.
pub(crate) const PAYLOAD: usize = WORDS_PER_LINE - 1;

/// Something that a queue carries. Its first [`WORDS`](Self::WORDS) words are written and read, the others are not
/// touched: over a link every word has its price.
pub trait Entry: Sized {
    /// Words that it takes, at most 7.
    const WORDS: usize;
    /// As words; those behind `WORDS` are 0.
    fn encode(&self) -> [u64; PAYLOAD];
    /// From words that the other side wrote; none where they are no such thing.
    fn decode(words: &[u64; PAYLOAD]) -> Option<Self>;
}

/// A thread and a core in one word.
fn pair(thread: ThreadId, core: CoreId) -> u64 {
    u64::from(thread.0) | u64::from(core.0) << 32
}

fn unpair(word: u64) -> (ThreadId, CoreId) {
    (ThreadId(word as u32), CoreId((word >> 32) as u32))
}

const EVENTS: [ThreadEvent; 7] = [
    ThreadEvent::Created,
    ThreadEvent::Wakeup,
    ThreadEvent::Blocked,
    ThreadEvent::Yield,
    ThreadEvent::Preempted,
    ThreadEvent::Affinity,
    ThreadEvent::Departed,
];

/// The number of an event is its place in [`EVENTS`], from 1: a line of zeroes is no message.
impl Entry for ThreadMessage {
    const WORDS: usize = 3;

    fn encode(&self) -> [u64; PAYLOAD] {
        let event = 1 + EVENTS.iter().position(|event| *event == self.event).unwrap_or(0) as u64;
        let class = u64::from(self.class.0) << 8;
        [pair(self.thread, self.core), self.sequence.0, event | class, 0, 0, 0, 0]
    }

    fn decode(words: &[u64; PAYLOAD]) -> Option<Self> {
        let (thread, core) = unpair(words[0]);
        let event = *EVENTS.get(((words[2] & 0xff) as usize).checked_sub(1)?)?;
        if words[2] >> 16 != 0 {
            return None;
        }
        let class = SloClass((words[2] >> 8) as u8);
        Some(ThreadMessage { thread, sequence: Sequence(words[1]), event, core, class })
    }
}

/// A decision for the host to commit (Wave §3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transaction {
    /// The agent's number for it; its outcome has it too.
    pub number: u32,
    /// What is decided.
    pub decision: ThreadDecision,
    /// Whether a thread that runs on the core gives way.
    pub preempts: bool,
}

/// The bit of a transaction that preempts, above its number.
const PREEMPTS: u64 = 1 << 32;
/// Set in every transaction: a line of zeroes is none.
const IS_TRANSACTION: u64 = 1 << 33;

impl Entry for Transaction {
    const WORDS: usize = 3;

    fn encode(&self) -> [u64; PAYLOAD] {
        let ThreadDecision { core, thread, sequence } = self.decision;
        let preempts = if self.preempts { PREEMPTS } else { 0 };
        let last = u64::from(self.number) | preempts | IS_TRANSACTION;
        [pair(thread, core), sequence.0, last, 0, 0, 0, 0]
    }

    fn decode(words: &[u64; PAYLOAD]) -> Option<Self> {
        let (thread, core) = unpair(words[0]);
        if words[2] >> 33 != 1 {
            return None;
        }
        let decision = ThreadDecision { core, thread, sequence: Sequence(words[1]) };
        Some(Transaction { number: words[2] as u32, decision, preempts: words[2] & PREEMPTS != 0 })
    }
}

/// What became of a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransactionOutcome {
    /// The transaction's number.
    pub number: u32,
    /// What was decided.
    pub decision: ThreadDecision,
    /// What the host made of it.
    pub outcome: Outcome,
}

const OUTCOMES: [Outcome; 5] =
    [Outcome::Committed, Outcome::Stale, Outcome::CoreBusy, Outcome::NotOwned, Outcome::GroupRefused];

impl Entry for TransactionOutcome {
    const WORDS: usize = 3;

    fn encode(&self) -> [u64; PAYLOAD] {
        let ThreadDecision { core, thread, sequence } = self.decision;
        let outcome = 1 + OUTCOMES.iter().position(|outcome| *outcome == self.outcome).unwrap_or(0) as u64;
        [pair(thread, core), sequence.0, u64::from(self.number) | outcome << 32, 0, 0, 0, 0]
    }

    fn decode(words: &[u64; PAYLOAD]) -> Option<Self> {
        let (thread, core) = unpair(words[0]);
        let outcome = *OUTCOMES.get(((words[2] >> 32) as usize).checked_sub(1)?)?;
        let decision = ThreadDecision { core, thread, sequence: Sequence(words[1]) };
        Some(TransactionOutcome { number: words[2] as u32, decision, outcome })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both_ways<T: Entry + PartialEq + std::fmt::Debug>(entry: T) {
        let words = entry.encode();
        assert!(words[T::WORDS..].iter().all(|word| *word == 0), "{entry:?}");
        assert_eq!(T::decode(&words).as_ref(), Some(&entry));
    }

    #[test]
    fn entries_come_back_as_they_were() {
        let decision = ThreadDecision { core: CoreId(u32::MAX), thread: ThreadId(7), sequence: Sequence(u64::MAX) };
        for event in EVENTS {
            let (thread, core) = (ThreadId(u32::MAX), CoreId(3));
            both_ways(ThreadMessage { thread, sequence: Sequence(1 << 60), event, core, class: SloClass(255) });
        }
        for preempts in [false, true] {
            both_ways(Transaction { number: u32::MAX, decision, preempts });
        }
        for outcome in OUTCOMES {
            both_ways(TransactionOutcome { number: 9, decision, outcome });
        }
    }

    #[test]
    fn words_that_nothing_of_ours_wrote_are_no_entries() {
        let zero = [0; PAYLOAD];
        assert!(ThreadMessage::decode(&zero).is_none());
        assert!(Transaction::decode(&zero).is_none());
        assert!(TransactionOutcome::decode(&zero).is_none());
        let ones = [u64::MAX; PAYLOAD];
        assert!(ThreadMessage::decode(&ones).is_none());
        assert!(Transaction::decode(&ones).is_none());
        assert!(TransactionOutcome::decode(&ones).is_none());
    }
}
