//! One data-plane core's way to the volumes it serves.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::epoll;
use softdpu_accel::QUANTUM;
use softdpu_memory::GuestBuffer;

use crate::cipher::{self, Stage};
use crate::copies::{MemoryCopies, STEP};
use crate::file::engine::FileEngine;
use crate::file::open_file::OpenFile;
use crate::nbd::NbdLink;
use crate::nbd::mailbox::Mailbox;
use crate::volume::Backing;
use crate::{BlockOp, Done, IoError, Request, Volume, VolumeError, VolumeKind};

/// How often requests that wait for private memory are tried again.
const MEMORY_PAUSE: Duration = Duration::from_millis(5);

/// A volume, as one [`IoContext`] knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Attachment(u32);

struct Attached {
    volume: Arc<Volume>,
    backend: Backend,
}

enum Backend {
    Null,
    Memory(Arc<GuestBuffer>),
    File(Arc<OpenFile>),
    Nbd(NbdAttachment),
}

/// An NBD volume's connection, and what of it is in our epoll set.
struct NbdAttachment {
    link: Arc<NbdLink>,
    timeout: Duration,
    epoch: u32,
    watched: Option<Arc<OwnedFd>>,
}

/// What a core owns of its volumes: its io_uring, its connections, what is outstanding. Used by one thread.
pub struct IoContext {
    attached: Vec<Option<Attached>>,
    copies: MemoryCopies,
    /// Requests of encrypted volumes.
    stage: Stage,
    /// Reused for what the stage asks of a back end, and what that answers at once.
    asked: Vec<Request>,
    answered: Vec<Done>,
    /// Made when the first file is attached.
    files: Option<FileEngine>,
    /// Made when the first NBD volume is attached.
    mailbox: Option<Arc<Mailbox>>,
    epoll: OwnedFd,
    entries: u32,
}

impl IoContext {
    /// A context for up to `entries` kernel operations at a time; more requests wait their turn inside.
    ///
    /// # Errors
    /// When the process is out of file descriptors. The io_uring is made when the first volume needs it.
    pub fn new(entries: u32) -> Result<Self, VolumeError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| VolumeError::ring(e.into()))?;
        Ok(IoContext {
            attached: Vec::new(),
            copies: MemoryCopies::default(),
            stage: Stage::default(),
            asked: Vec::new(),
            answered: Vec::new(),
            files: None,
            mailbox: None,
            epoll,
            entries,
        })
    }

    /// Prepares to send requests to a volume.
    ///
    /// # Errors
    /// [`VolumeError::NotActive`] before it is fenced; others where the core's part of it cannot be made.
    pub fn attach(&mut self, volume: &Arc<Volume>) -> Result<Attachment, VolumeError> {
        if !volume.is_active() {
            return Err(VolumeError::NotActive { volume: volume.name().into() });
        }
        let backend = match &volume.backing {
            Backing::Null => Backend::Null,
            Backing::Memory(memory) => Backend::Memory(memory.whole()),
            Backing::File(backing) => Backend::File(self.files()?.attach(volume, backing)?),
            Backing::Nbd(backing) => {
                let mailbox = self.mailbox()?;
                let link = backing.link(volume, &mailbox, Instant::now());
                let VolumeKind::Nbd { timeout, .. } = volume.spec().kind else {
                    return Err(VolumeError::NotActive { volume: volume.name().into() });
                };
                let mut remote = NbdAttachment { link, timeout, epoch: 0, watched: None };
                remote.watch(&self.epoll);
                Backend::Nbd(remote)
            }
        };
        let attached = Some(Attached { volume: Arc::clone(volume), backend });
        let index = match self.attached.iter().position(Option::is_none) {
            Some(free) => {
                self.attached[free] = attached;
                free
            }
            None => {
                self.attached.push(attached);
                self.attached.len() - 1
            }
        };
        Ok(Attachment(index as u32))
    }

    /// Makes now what else the first volume in a file would: a process that is about to give up making rings calls it.
    ///
    /// # Errors
    /// What the kernel says; each volume in a file has that error then.
    pub fn prepare_files(&mut self) -> Result<(), VolumeError> {
        self.files().map(drop)
    }

    fn files(&mut self) -> Result<&mut FileEngine, VolumeError> {
        if self.files.is_none() {
            let engine = FileEngine::new(self.entries)?;
            self.watch(engine.wait_fd())?;
            self.files = Some(engine);
        }
        self.files.as_mut().ok_or_else(|| VolumeError::Ring(std::io::ErrorKind::NotFound.into()))
    }

    fn mailbox(&mut self) -> Result<Arc<Mailbox>, VolumeError> {
        if let Some(mailbox) = &self.mailbox {
            return Ok(Arc::clone(mailbox));
        }
        let mailbox = Arc::new(Mailbox::new()?);
        self.watch(mailbox.as_fd())?;
        self.mailbox = Some(Arc::clone(&mailbox));
        Ok(mailbox)
    }

    fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), VolumeError> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN).map_err(|e| VolumeError::ring(e.into()))
    }

    /// Polls the links of all NBD attachments by `each`; then what epoll waits for is brought up to date.
    fn for_links(&mut self, mut each: impl FnMut(&NbdLink, &Arc<Mailbox>)) {
        let Some(mailbox) = &self.mailbox else { return };
        for attached in self.attached.iter_mut().flatten() {
            if let Backend::Nbd(remote) = &mut attached.backend {
                each(&remote.link, mailbox);
                remote.watch(&self.epoll);
            }
        }
    }

    /// Ends an attachment. What is outstanding on it is given up, as by [`abandon`](Self::abandon). Its index may be
    /// used again by the next [`attach`](Self::attach).
    pub fn detach(&mut self, attachment: Attachment) {
        let Some(attached) = self.attached.get_mut(attachment.0 as usize).and_then(Option::take) else { return };
        self.copies.abandon(|other, _| other == attachment.0, &mut Vec::new());
        match (attached.backend, &mut self.files, &self.mailbox) {
            (Backend::File(file), Some(engine), _) => engine.detach(&file, &mut Vec::new()),
            (Backend::Nbd(mut remote), _, Some(mailbox)) => {
                remote.link.leave(mailbox);
                mailbox.give_up_from(remote.link.id());
                remote.unwatch(&self.epoll);
            }
            _ => {}
        }
        self.stage.detach(attachment.0);
    }

    /// Takes all of `requests`. Those that end at once are added to `done`; the others are with [`poll`](Self::poll),
    /// after [`flush`](Self::flush) has sent them on their way.
    ///
    /// A failed request is an answer in `done`, never a failure of the call. After `detach`, all fail as `Gone`.
    #[inline]
    pub fn submit(&mut self, to: Attachment, requests: &mut Vec<Request>, done: &mut Vec<Done>) {
        self.submit_from(to.0, to, requests, done);
    }

    /// As [`submit`](Self::submit), through a channel of the accelerator: one for each queue of the core, numbered
    /// densely from 0. What is to be encrypted and decrypted later waits there for its [turn](Self::next_turns).
    #[inline]
    pub fn submit_from(&mut self, channel: u32, to: Attachment, requests: &mut Vec<Request>, done: &mut Vec<Done>) {
        match self.attached.get(to.0 as usize) {
            Some(Some(attached)) if attached.volume.cipher().is_some() => {
                self.submit_encrypted(channel, to, requests, done)
            }
            _ => self.submit_plain(to, requests, done),
        }
    }

    fn submit_encrypted(&mut self, channel: u32, to: Attachment, requests: &mut Vec<Request>, done: &mut Vec<Done>) {
        let Some(Some(Attached { volume, .. })) = self.attached.get(to.0 as usize) else { return };
        let Some(xts) = volume.cipher() else { return };
        // What waits in the channel has turns of its own: what this call ends is of this call.
        let is_empty = self.stage.is_empty(channel);
        let mut pass = std::mem::take(&mut self.asked);
        for request in requests.drain(..) {
            match self.stage.admit(channel, to.0, volume, xts, request) {
                cipher::Admitted::Pass(request) => pass.push(request),
                cipher::Admitted::Ended(ended) => done.push(ended),
                cipher::Admitted::Taken => {}
            }
        }
        self.submit_plain(to, &mut pass, done);
        self.asked = pass;
        if is_empty {
            self.work(channel, cipher::STEP, done);
        }
    }

    /// Encrypts and decrypts so many bytes of a channel, or a little more. Returns how many.
    fn work(&mut self, channel: u32, most: u64, done: &mut Vec<Done>) -> u64 {
        let mut served = 0;
        while let Some(next) = self.stage.step(channel, most, &mut served) {
            match next {
                cipher::Next::Ask(to, request) => {
                    let (mut asked, mut answered) =
                        (std::mem::take(&mut self.asked), std::mem::take(&mut self.answered));
                    asked.push(request);
                    self.submit_plain(Attachment(to), &mut asked, &mut answered);
                    done.extend(answered.drain(..).filter_map(|ended| self.stage.ended(ended)));
                    (self.asked, self.answered) = (asked, answered);
                }
                cipher::Next::Ended(ended) => done.push(ended),
            }
        }
        served
    }

    #[inline]
    fn submit_plain(&mut self, to: Attachment, requests: &mut Vec<Request>, done: &mut Vec<Done>) {
        let Some(Some(attached)) = self.attached.get_mut(to.0 as usize) else {
            let gone = |request: Request| request.end(Err(IoError::Gone));
            done.extend(requests.drain(..).map(gone));
            return;
        };
        let volume = &*attached.volume;
        match &mut attached.backend {
            Backend::Null => done.extend(requests.drain(..).map(|request| {
                let result = volume.admit(&request).inspect_err(|error| volume.count(*error));
                request.end(result)
            })),
            Backend::Memory(whole) => {
                let Backing::Memory(memory) = &volume.backing else { return };
                let mut room = STEP;
                for request in requests.drain(..) {
                    let len = if request.op == BlockOp::Flush { 0 } else { request.len };
                    let admitted = volume.admit(&request);
                    if admitted.is_ok() && len > room {
                        self.copies.push(to.0, &attached.volume, whole, request);
                        continue;
                    }
                    room -= len.min(room);
                    let result = admitted.and_then(|()| memory.run(whole, &request, 0, len));
                    done.push(request.end(result.inspect_err(|error| volume.count(*error))));
                }
            }
            Backend::File(file) => {
                let Some(engine) = &mut self.files else { return };
                for request in requests.drain(..) {
                    let ended = match volume.admit(&request) {
                        Ok(()) if file.has_to_wait(&request) => {
                            engine.hold(file, request);
                            None
                        }
                        Ok(()) => engine.submit(file, request),
                        Err(error) => {
                            volume.count(error);
                            Some(request.end(Err(error)))
                        }
                    };
                    done.extend(ended);
                }
            }
            Backend::Nbd(remote) => {
                let Some(mailbox) = &self.mailbox else { return };
                let deadline = Instant::now() + remote.timeout;
                for request in requests.drain(..) {
                    match volume.admit(&request) {
                        Ok(()) if request.is_idle(volume) => done.push(request.end(Ok(()))),
                        Ok(()) if !request.has_data() => {
                            let invalid = IoError::Device { errno: rustix::io::Errno::INVAL.raw_os_error() };
                            done.push(request.end(Err(invalid)));
                        }
                        Ok(()) => {
                            let durable = request.durable || volume.spec().write_through;
                            remote.link.submit(Request { durable, ..request }, mailbox, deadline);
                        }
                        Err(error) => {
                            volume.count(error);
                            done.push(request.end(Err(error)));
                        }
                    }
                }
            }
        }
    }

    /// Whether [`submit`](Self::submit) takes its time with each request and has its answer when it returns, as far as
    /// can be told: a driver that waits for one answer gains when requests are submitted one by one.
    #[inline]
    pub fn answers_singly(&self, to: Attachment) -> bool {
        match self.attached.get(to.0 as usize) {
            Some(Some(Attached { backend: Backend::File(file), .. })) => file.answers_singly(),
            _ => false,
        }
    }

    /// Sends what was submitted in this round to the kernel: at most one system call for all files, none where there is
    /// nothing to send.
    #[inline]
    pub fn flush(&mut self) {
        if let Some(engine) = &mut self.files {
            engine.flush();
        }
        if self.mailbox.as_ref().is_some_and(|mailbox| mailbox.outstanding() > 0) {
            let now = Instant::now();
            self.for_links(|link, mailbox| link.flush(mailbox, now));
        }
    }

    /// Collects what has ended, and encrypts and decrypts for a while, channels in turn. No system call where nothing
    /// is outstanding.
    #[inline]
    pub fn poll(&mut self, done: &mut Vec<Done>) {
        self.collect(done);
        if self.has_turns() {
            self.take_turns(done);
        }
    }

    #[cold]
    fn take_turns(&mut self, done: &mut Vec<Done>) {
        let mut served = 0;
        while served < cipher::STEP {
            let next = self.next_turns().next();
            let Some((channel, _)) = next else { break };
            served += self.take_turn(channel, done).max(1);
        }
        self.flush();
    }

    /// Collects what has ended, and leaves [turns](Self::take_turn) to the caller: half of a [`poll`](Self::poll).
    #[inline]
    pub fn collect(&mut self, done: &mut Vec<Done>) {
        if self.stage.is_idle() {
            return self.poll_back_ends(done);
        }
        let mut answered = std::mem::take(&mut self.answered);
        self.poll_back_ends(&mut answered);
        done.extend(answered.drain(..).filter_map(|ended| self.stage.ended(ended)));
        self.answered = answered;
    }

    /// Whether a channel has something to encrypt or decrypt.
    #[inline]
    pub fn has_turns(&self) -> bool {
        self.stage.has_turns()
    }

    /// Channels with something to encrypt or decrypt, in the order of their turns, each with the token of its next
    /// request.
    pub fn next_turns(&mut self) -> impl Iterator<Item = (u32, u64)> {
        self.stage.in_order()
    }

    /// Gives one of those its turn: encrypts or decrypts 16 KiB, or a piece of one request, at most 128 KiB. Back ends
    /// are told with the next [`flush`](Self::flush). Returns how many bytes.
    pub fn take_turn(&mut self, channel: u32, done: &mut Vec<Done>) -> u64 {
        let served = self.work(channel, QUANTUM, done);
        self.stage.end_turn(channel, served);
        served
    }

    #[inline]
    fn poll_back_ends(&mut self, done: &mut Vec<Done>) {
        if !self.copies.is_empty() {
            self.copies.step(done);
        }
        if let Some(engine) = &mut self.files {
            engine.poll(done);
        }
        if self.mailbox.as_ref().is_some_and(|mailbox| mailbox.outstanding() > 0 || mailbox.is_full()) {
            self.poll_links(done);
        }
    }

    #[cold]
    fn poll_links(&mut self, done: &mut Vec<Done>) {
        let now = Instant::now();
        self.for_links(|link, mailbox| link.poll(mailbox, now));
        if let Some(mailbox) = &self.mailbox {
            if mailbox.is_full() {
                mailbox.silence();
            }
            mailbox.take(done);
        }
    }

    /// Requests taken and not yet answered.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.copies.len()
            + self.stage.outstanding()
            + self.files.as_ref().map_or(0, FileEngine::outstanding)
            + self.mailbox.as_ref().map_or(0, |mailbox| mailbox.outstanding())
    }

    /// Gives up the outstanding requests that `matches` selects by token, and adds their tokens to `given_up`: they
    /// will not be in any `done`, and no late answer touches their guest's memory through us. Returns at once.
    ///
    /// What cannot be called back (an operation the kernel is in the middle of) keeps its buffer, and so the mapping of
    /// its guest's memory, until the kernel is done with it: the kernel may still write there, as a disk's DMA might.
    pub fn abandon(&mut self, matches: &mut dyn FnMut(u64) -> bool, given_up: &mut Vec<u64>) {
        let before = given_up.len();
        self.copies.abandon(|_, token| matches(token), given_up);
        if let Some(engine) = &mut self.files {
            engine.abandon(matches, given_up);
        }
        self.for_links(|link, mailbox| link.abandon(mailbox, matches, given_up));
        // Another core may have received an answer that we have not looked at yet; its token is about to mean something
        // else.
        if let Some(mailbox) = &self.mailbox {
            mailbox.abandon(matches, given_up);
        }
        self.stage.abandon(matches, given_up, before);
    }

    /// A descriptor that is readable when [`poll`](Self::poll) has something to do, for the core's own epoll set: add
    /// it once. It stays the same for the life of the context, whatever is attached.
    ///
    /// Before it sleeps, a core calls `flush`, then `poll` once more, and sleeps no longer than
    /// [`next_deadline`](Self::next_deadline). The sleep may end early with EINTR when a completion arrives; that is a
    /// wake-up like any other.
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// When [`tick`](Self::tick) or [`poll`](Self::poll) has something to do without an event; none where nothing is
    /// waiting for time to pass. A time that is past where there is something to copy, or to encrypt.
    pub fn next_deadline(&self) -> Option<Instant> {
        if !self.copies.is_empty() || self.stage.has_turns() {
            return Some(Instant::now());
        }
        // Memory that the kernel is done with comes back without an event.
        let memory = self.stage.is_short().then(|| Instant::now() + MEMORY_PAUSE);
        let remotes = self.attached.iter().flatten().filter_map(|attached| match &attached.backend {
            Backend::Nbd(remote) => remote.link.next_deadline(),
            _ => None,
        });
        remotes.chain(self.files.as_ref().and_then(FileEngine::next_deadline)).chain(memory).min()
    }

    /// Time-outs and reconnections, and letting go of what was abandoned. Call now and then (every few milliseconds
    /// while something is outstanding is plenty), after each sleep, and at [`next_deadline`](Self::next_deadline). What
    /// it ends is with the next [`poll`](Self::poll).
    pub fn tick(&mut self, now: Instant) {
        self.stage.tick();
        if let Some(engine) = &mut self.files {
            engine.sweep();
        }
        if let Some(mailbox) = &self.mailbox {
            // A bell may ring for what a poll has already seen; without this it would never be silent.
            mailbox.silence();
        }
        self.for_links(|link, mailbox| link.tick(mailbox, now));
        if let Some(mailbox) = self.mailbox.as_ref().filter(|mailbox| mailbox.is_full()) {
            mailbox.wake();
        }
    }
}

impl Drop for IoContext {
    fn drop(&mut self) {
        for index in 0..self.attached.len() {
            self.detach(Attachment(index as u32));
        }
    }
}

impl NbdAttachment {
    /// Brings the epoll set up to date with the connection.
    #[inline]
    fn watch(&mut self, epoll: &OwnedFd) {
        let epoch = self.link.epoch();
        if epoch == self.epoch {
            return;
        }
        self.epoch = epoch;
        let Some((socket, writable)) = self.link.interest() else { return self.unwatch(epoll) };
        let flags = if writable { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        let data = epoll::EventData::new_u64(0);
        if self.watched.as_ref().is_some_and(|watched| Arc::ptr_eq(watched, &socket)) {
            let _ = epoll::modify(epoll, &socket, data, flags);
        } else {
            self.unwatch(epoll);
            // Without room in the set the core still polls it.
            let _ = epoll::add(epoll, &socket, data, flags);
            self.watched = Some(socket);
        }
    }

    /// The broker keeps a copy of the socket, so closing ours would not take it out of the set.
    fn unwatch(&mut self, epoll: &OwnedFd) {
        if let Some(socket) = self.watched.take() {
            let _ = epoll::delete(epoll, &socket);
        }
    }
}

impl std::fmt::Debug for IoContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoContext").field("attached", &self.attached.len()).field("entries", &self.entries).finish()
    }
}
