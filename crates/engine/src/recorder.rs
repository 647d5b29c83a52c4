//! Records a core's policy while it works: `softdpu run --record`.
//!
//! The core encodes each call and each answer into a buffer of its own; a thread writes full buffers to the file and
//! gives them back. The core never waits for the file: where buffers do not come back in time, the recording ends, and
//! says so.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use softdpu_sched::record::{Encoder, Event, EventSink, Header, Recording};
use softdpu_sched::{Nanos, Policy, Scheduler};

/// Bytes of a buffer.
const BUFFER: usize = 1 << 20;
/// Buffers that go round between a core and its file, beside the one that is written to: a busy core fills one in 20
/// ms.
const SPARE: usize = 15;
/// What is handed over as soon as there is a buffer for what follows, bytes.
const PIECE: usize = 256 << 10;
/// What is handed over after so long, however little it is: a core that is killed has lost no more.
const LATEST: Nanos = Nanos(100_000_000);

/// Encodes a core's events and hands them to the thread that writes the file.
pub(crate) struct Recorder {
    encoder: Encoder,
    /// None once the file cannot be written any more.
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
        let encoder = Encoder::new(&header, BUFFER);
        // Each has room for all buffers there are.
        let (full, written) = sync_channel(SPARE + 1);
        let (back, spare) = sync_channel(SPARE + 1);
        for _ in 0..SPARE {
            back.send(Vec::with_capacity(BUFFER)).map_err(io::Error::other)?;
        }
        let path = path.to_owned();
        let write = move || write_all(file, &path, &written, &back);
        let writer = std::thread::Builder::new().name(format!("record-{core}")).spawn(write)?;
        let recorder = Recorder { encoder, full: Some(full), spare, writer: Some(writer), last: Nanos(0) };
        Ok(Scheduler::Other(Box::new(Recording::with_sink(policy.build(), recorder))))
    }

    /// Hands over what was written since the last time, if there is a buffer for what follows.
    #[cold]
    fn hand_over(&mut self, now: Nanos) {
        self.last = now;
        let Some(full) = &self.full else { return };
        if let Ok(next) = self.spare.try_recv()
            && full.try_send(self.encoder.take(next)).is_err()
        {
            // Its thread has said why.
            self.full = None;
        }
    }
}

impl EventSink for Recorder {
    fn write(&mut self, event: &Event) {
        if let Event::Decide { now, .. } = *event
            && (self.encoder.pending() >= PIECE || now.since(self.last) >= LATEST)
        {
            self.hand_over(now);
        }
        self.encoder.write(event);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if let Some(full) = self.full.take() {
            let _ = full.send(self.encoder.take(Vec::new()));
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
