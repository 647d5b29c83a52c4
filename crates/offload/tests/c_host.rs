//! A host program in C, compiled with the header and run as another process, with an agent of this one.

use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use softdpu_memory::{Mapping, Window, Words};
use softdpu_offload::{
    AgentSlot, Consumer, Producer, QueueMemory, Replaced, SLOT_LINES, SharedMemory, Transaction, TransactionOutcome,
    WORDS_PER_LINE, queue_lines,
};
use softdpu_sched::threads::{CoreId, FifoThreads, Outcome, Sequence, ThreadEvent, ThreadMessage, ThreadScheduler};

const CAPACITY: usize = 32;
const THREADS: u64 = 2_000;

/// Memory from a word of the file on.
struct Part {
    memory: SharedMemory,
    first: usize,
    count: usize,
}

impl QueueMemory for Part {
    fn words(&self) -> usize {
        self.count
    }
    fn load(&mut self, at: usize) -> u64 {
        self.memory.load(self.first + at)
    }
    fn observe(&mut self, at: usize) -> u64 {
        self.memory.observe(self.first + at)
    }
    fn store(&mut self, at: usize, value: u64) {
        self.memory.store(self.first + at, value);
    }
    fn publish(&mut self, at: usize, value: u64) {
        self.memory.publish(self.first + at, value);
    }
    fn barrier(&mut self) {
        self.memory.barrier();
    }
}

#[test]
fn a_host_in_c_and_an_agent_understand_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (concat!(env!("CARGO_MANIFEST_DIR"), "/tests/host.c"), folder.path().join("host"));
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    let flags = ["-std=c11", "-D_DEFAULT_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", include];
    let compiled = Command::new("cc").args(flags).arg(source).arg("-o").arg(&program).output().expect("cc");
    assert!(compiled.status.success(), "cc: {}", String::from_utf8_lossy(&compiled.stderr));

    let queue = queue_lines(CAPACITY) * WORDS_PER_LINE;
    let bytes = (3 * queue + SLOT_LINES * WORDS_PER_LINE) as u64 * 8;
    let path = folder.path().join("queues");
    let file = std::fs::File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.set_len(bytes).unwrap();
    let mapping = Mapping::file(file.as_fd(), 0, bytes).unwrap();
    assert!(Words::new(Window::of_mapping(mapping.clone())).is_some());
    let memory = SharedMemory::of_mapping(mapping).unwrap();
    let part = |at: usize, count| Part { memory: memory.clone(), first: at * queue, count };
    let mut messages = Consumer::<ThreadMessage, _>::new(part(0, queue), CAPACITY).unwrap();
    let mut transactions = Producer::<Transaction, _>::new(part(1, queue), CAPACITY).unwrap();
    let mut outcomes = Consumer::<TransactionOutcome, _>::new(part(2, queue), CAPACITY).unwrap();
    let mut slot = AgentSlot::<Transaction, _>::new(part(3, SLOT_LINES * WORDS_PER_LINE), 0).unwrap();

    let arguments = [CAPACITY.to_string(), THREADS.to_string()];
    let mut host = Command::new(&program).arg(&path).args(arguments).stdout(Stdio::piped()).spawn().unwrap();

    let core = CoreId(3);
    let mut policy = FifoThreads::run_to_completion();
    let (mut told, mut answered, mut number) = (Vec::new(), Vec::new(), 0);
    let (mut committed, deadline) = (vec![0_u32; THREADS as usize], Instant::now() + Duration::from_secs(90));
    while committed.iter().sum::<u32>() < THREADS as u32 {
        assert!(Instant::now() < deadline, "waited 90 s for outcomes of {THREADS} transactions: {number} were made");
        told.clear();
        messages.poll(&mut told, 8).unwrap();
        for message in &told {
            assert_eq!((message.core, message.class.0), (core, 2));
            let created = ThreadMessage { event: ThreadEvent::Created, sequence: Sequence(0), ..*message };
            policy.message(Default::default(), &created);
            policy.message(Default::default(), message);
        }
        let is_staged = slot.staged().is_some();
        if let Some(decision) = policy.pick(Default::default(), core) {
            number += 1;
            let transaction = Transaction { number, decision, preempts: false };
            // Every other one is prestaged; what is there already is left to be taken.
            let sent = match is_staged || number % 2 == 0 {
                true => transactions.send(&[transaction]).unwrap() == 1,
                false => slot.replace(Some(transaction)) != Replaced::Recalled(transaction),
            };
            if !sent {
                policy.recall(Default::default(), &decision);
            }
        }
        answered.clear();
        outcomes.poll(&mut answered, 8).unwrap();
        for TransactionOutcome { decision, outcome, .. } in &answered {
            assert_eq!(*outcome, Outcome::Committed);
            committed[decision.thread.0 as usize] += 1;
            policy.outcome(Default::default(), decision, *outcome);
        }
        if told.is_empty() && answered.is_empty() {
            std::thread::yield_now();
        }
    }
    let output = host.wait_with_output_or_kill();
    assert!(committed.iter().all(|count| *count == 1), "each thread once: {committed:?}");
    let numbers: Vec<u64> = output.split_whitespace().map(|number| number.parse().unwrap()).collect();
    assert_eq!(numbers[0], THREADS * (THREADS - 1) / 2, "{output}");
    assert!(numbers[1] > 0, "none of the decisions was prestaged: {output}");
}

trait Finished {
    fn wait_with_output_or_kill(&mut self) -> String;
}

impl Finished for std::process::Child {
    fn wait_with_output_or_kill(&mut self) -> String {
        let mut text = String::new();
        std::io::Read::read_to_string(self.stdout.as_mut().unwrap(), &mut text).unwrap();
        assert!(self.wait().unwrap().success());
        text
    }
}
