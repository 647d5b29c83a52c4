//! A core's policy that is written down while it works: `softdpu run --record`.
//!
//! The core encodes each call and each answer into a buffer of its own; a thread writes full buffers to the file and gives them
//! back. The core never waits for the file: where buffers do not come back in time, the recording ends, and says so.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use softdpu_sched::record::{Header, Recording};
use softdpu_sched::{
    Account, Cost, Decision, Grant, Nanos, Placement, Policy, QueueId, Scheduler, Share, TenantId, TenantScheduler,
    Work,
};

/// Bytes of a buffer.
const BUFFER: usize = 1 << 20;
/// Buffers that go round between a core and its file, beside the one that is written to: a busy core fills one in 20 ms.
const SPARE: usize = 15;
/// What is handed over as soon as there is a buffer for what follows, bytes.
const PIECE: usize = 256 << 10;
/// What is handed over after so long, however little it is: a core that is killed has lost no more.
const LATEST: Nanos = Nanos(100_000_000);

/// A policy, its recording, and the way to the file.
pub(crate) struct Recorder {
    recording: Recording<Scheduler>,
    /// None once it has ended.
    full: Option<SyncSender<Vec<u8>>>,
    spare: Receiver<Vec<u8>>,
    writer: Option<JoinHandle<()>>,
    /// When something was handed over last.
    last: Nanos,
}

impl Recorder {
    /// Starts a core's policy with a recording of it in a new file.
    pub(crate) fn start(policy: &Policy, core: usize, path: &Path) -> io::Result<Scheduler> {
        let file = File::create(path)?;
        let header = Header { core: core as u32, policy: policy.name().to_owned(), parameters: policy.parameters() };
        let recording = Recording::new(policy.build(), &header, BUFFER);
        // Each has room for all buffers there are.
        let (full, written) = sync_channel(SPARE + 1);
        let (back, spare) = sync_channel(SPARE + 1);
        for _ in 0..SPARE {
            back.send(Vec::with_capacity(BUFFER)).map_err(io::Error::other)?;
        }
        let path = path.to_owned();
        let write = move || write_all(file, &path, &written, &back);
        let writer = std::thread::Builder::new().name(format!("record-{core}")).spawn(write)?;
        let recorder = Recorder { recording, full: Some(full), spare, writer: Some(writer), last: Nanos(0) };
        Ok(Scheduler::Other(Box::new(recorder)))
    }

    /// Hands over what was written since the last time, if there is a buffer for what follows.
    #[cold]
    fn hand_over(&mut self, now: Nanos) {
        self.last = now;
        let Some(full) = &self.full else { return };
        if let Ok(next) = self.spare.try_recv()
            && full.try_send(self.recording.take(next)).is_err()
        {
            // Its thread has said why.
            self.full = None;
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(full) = self.full.take() {
            let _ = full.send(self.recording.take(Vec::new()));
        }
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// Writes what comes until nothing more does, and gives the buffers back.
fn write_all(mut file: File, path: &Path, full: &Receiver<Vec<u8>>, back: &SyncSender<Vec<u8>>) {
    while let Ok(buffer) = full.recv() {
        if let Err(error) = file.write_all(&buffer) {
            tracing::error!(file = %path.display(), %error, "a core is not recorded any more");
            return;
        }
        let _ = back.try_send(buffer);
    }
}

impl TenantScheduler for Recorder {
    fn configure(&mut self, tenant: TenantId, share: Share) {
        self.recording.configure(tenant, share);
    }

    fn place(&mut self, queue: QueueId, placement: Placement) {
        self.recording.place(queue, placement);
    }

    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        self.recording.ready(now, queue, work);
    }

    fn decide(&mut self, now: Nanos) -> Decision {
        if self.recording.pending() >= PIECE || now.since(self.last) >= LATEST {
            self.hand_over(now);
        }
        self.recording.decide(now)
    }

    fn charge(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        self.recording.charge(now, grant, cost);
    }

    fn complete(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        self.recording.complete(now, grant, cost);
    }

    fn cancel(&mut self, now: Nanos, queue: QueueId) {
        self.recording.cancel(now, queue);
    }

    fn turn(&self, now: Nanos) -> Nanos {
        self.recording.turn(now)
    }

    fn preempts(&self, tenant: TenantId) -> bool {
        self.recording.preempts(tenant)
    }

    fn can_preempt(&self) -> bool {
        self.recording.can_preempt()
    }

    fn looks(&self) -> Option<Nanos> {
        self.recording.looks()
    }

    fn gives_way(&self, tenant: TenantId) -> bool {
        self.recording.gives_way(tenant)
    }

    fn account(&self, now: Nanos, tenant: TenantId) -> Account {
        self.recording.account(now, tenant)
    }
}
