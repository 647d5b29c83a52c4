//! What goes over a [`NbdLink`](super::link::NbdLink)'s connection: commands out, answers in, and what they mean for
//! the requests.
//!
//! Nothing the server sends is trusted: a magic, a cookie or an order that cannot be ends the connection.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use softdpu_sys::net;

use super::ConnectResult;
use super::link::{FIRST_PAUSE, backing};
use super::mailbox::{LinkId, Mailbox};
use super::request::{NbdRequest, Next};
use crate::{Done, IoError, Volume};
use softdpu_nbd::wire::{self, Export, Reply};

/// Receive calls per poll, so that one volume does not keep a core.
const ROUNDS: usize = 512;
/// Bytes per poll, each way, for the same reason: what is left is there at the next.
const BYTES: usize = 1 << 20;

/// A link's connection and its requests.
pub(super) struct Inner {
    pub id: LinkId,
    pub connection: Option<Connection>,
    pub slots: Vec<Slot>,
    pub free: Vec<u32>,
    /// Slots with a command to send, in order.
    pub queue: VecDeque<u32>,
    pub serial: u64,
    /// The server has just announced its shutdown.
    pub leaving: bool,
    pub owners: Vec<Arc<Mailbox>>,
    pub connected: ConnectResult,
    pub connecting: bool,
    pub retry_at: Option<Instant>,
    pub pause: Duration,
}

#[derive(Default)]
pub(super) struct Slot {
    pub generation: u32,
    pub request: Option<NbdRequest>,
}

pub(super) struct Connection {
    pub socket: Arc<OwnedFd>,
    pub export: Export,
    pub tx: Option<Tx>,
    pub rx: Rx,
    /// Until when the server has time to close.
    pub closing: Option<Instant>,
    /// There is more to send, for which the socket's buffer had no room, or the poll no time.
    pub blocked: bool,
}

pub(super) struct Tx {
    pub index: u32,
    pub head: [u8; wire::REQUEST_LEN],
    /// Bytes gone, header and payload.
    pub gone: u64,
    pub payload: u64,
}

pub(super) enum Rx {
    Header {
        bytes: [u8; wire::REPLY_LEN],
        have: usize,
    },
    Data {
        index: u32,
        at: u64,
        left: u64,
    },
    Skip {
        left: u64,
        then: Option<(u32, IoError)>,
    },
    /// What comes makes no sense any more.
    Deaf,
}

pub(super) const HEADER: Rx = Rx::Header { bytes: [0; wire::REPLY_LEN], have: 0 };

/// How a poll of a connection ended.
pub(super) enum Outcome {
    Fine,
    /// The server has closed, or the socket is broken: all it had received is done, as far as can be known.
    Lost(String),
    /// It cannot be used any more, but has not ended.
    Close {
        reason: String,
        deaf: bool,
    },
    /// The server announces its shutdown (NBD_ESHUTDOWN).
    Leaving,
}

impl Inner {
    /// Sends what can be, up to [`BYTES`]: what is left [waits](Self::has_to_send) for the next poll.
    pub(super) fn transmit(&mut self, volume: &Volume, me: &Arc<Mailbox>) -> Outcome {
        let mut room = BYTES;
        while room > 0 {
            let Some(connection) = &mut self.connection else { return Outcome::Fine };
            if connection.closing.is_some() {
                return Outcome::Fine;
            }
            if connection.tx.is_none() {
                let Some(index) = self.queue.pop_front() else { return Outcome::Fine };
                let slot = &mut self.slots[index as usize];
                let Some(request) = slot.request.as_mut() else { continue };
                if request.is_moot(&connection.export) {
                    self.end(index, Ok(()), volume, me);
                    continue;
                }
                let cookie = u64::from(slot.generation) << 32 | u64::from(index);
                let (head, payload) = request.command(cookie, &connection.export);
                request.sent = true;
                request.asked = Some(Instant::now());
                request.covers = backing(volume).map_or(0, |backing| backing.cache.answered());
                connection.tx = Some(Tx { index, head, gone: 0, payload });
            }
            let Some(tx) = &mut connection.tx else { continue };
            let Some(request) = self.slots[tx.index as usize].request.as_mut() else {
                connection.tx = None;
                continue;
            };
            let head = tx.head.get(tx.gone as usize..).unwrap_or(&[]);
            let paid = tx.gone.saturating_sub(wire::REQUEST_LEN as u64);
            let body = request.memory().filter(|_| tx.payload > 0);
            let body = body.map(|(memory, start)| (memory, start + paid, ((tx.payload - paid) as usize).min(room)));
            match net::send(connection.socket.as_fd(), head, body) {
                Ok(sent) => {
                    room = room.saturating_sub(sent);
                    tx.gone += sent as u64;
                    if tx.gone == wire::REQUEST_LEN as u64 + tx.payload {
                        connection.tx = None;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Outcome::Fine,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.raw_os_error() == Some(Errno::FAULT.raw_os_error()) => {
                    // The guest's memory is gone; half a command cannot be taken back.
                    let (index, gone) = (tx.index, tx.gone);
                    connection.tx = None;
                    self.end(index, Err(IoError::Device { errno: Errno::FAULT.raw_os_error() }), volume, me);
                    if gone > 0 {
                        return Outcome::Close { reason: "a guest took back memory of a write".into(), deaf: false };
                    }
                    return Outcome::Fine;
                }
                Err(error) => return Outcome::Lost(format!("cannot send: {error}")),
            }
        }
        Outcome::Fine
    }

    /// Whether something is to be sent on the connection as soon as there is room.
    pub(super) fn has_to_send(&self) -> bool {
        let open = self.connection.as_ref().filter(|connection| connection.closing.is_none());
        open.is_some_and(|connection| connection.tx.is_some() || !self.queue.is_empty())
    }

    pub(super) fn receive(&mut self, volume: &Volume, me: &Arc<Mailbox>) -> Outcome {
        let mut scratch = [0; 16 << 10];
        let mut room = BYTES;
        for _ in 0..ROUNDS {
            if room == 0 {
                return Outcome::Fine;
            }
            let Some(connection) = &mut self.connection else { return Outcome::Fine };
            let socket = Arc::clone(&connection.socket);
            let received = match &mut connection.rx {
                Rx::Header { bytes, have } => recv(&socket, &mut bytes[*have..], RecvFlags::DONTWAIT).map(|(n, _)| n),
                Rx::Skip { left, .. } => {
                    let most = (*left).min(scratch.len() as u64) as usize;
                    recv(&socket, &mut scratch[..most], RecvFlags::DONTWAIT).map(|(n, _)| n)
                }
                Rx::Deaf => recv(&socket, &mut scratch, RecvFlags::DONTWAIT).map(|(n, _)| n),
                Rx::Data { index, at, left } => {
                    let request = self.slots[*index as usize].request.as_ref().filter(|request| !request.late);
                    let Some((memory, start)) = request.and_then(NbdRequest::memory) else {
                        // Given up while its data was arriving.
                        connection.rx = Rx::Skip { left: *left, then: Some((*index, IoError::Gone)) };
                        continue;
                    };
                    let received = net::receive(socket.as_fd(), memory, start + *at, (*left as usize).min(room));
                    received.map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))
                }
            };
            match received {
                Ok(0) => return Outcome::Lost("the server closed the connection".into()),
                Ok(bytes) => {
                    room = room.saturating_sub(bytes);
                    if let Err(reason) = self.received(bytes, volume, me) {
                        return Outcome::Close { reason, deaf: true };
                    }
                    if std::mem::take(&mut self.leaving) {
                        return Outcome::Leaving;
                    }
                }
                Err(Errno::AGAIN) => return Outcome::Fine,
                Err(Errno::INTR) => {}
                Err(Errno::FAULT) if matches!(connection.rx, Rx::Data { .. }) => {
                    if let Rx::Data { index, left, .. } = connection.rx {
                        let fault = IoError::Device { errno: Errno::FAULT.raw_os_error() };
                        connection.rx = Rx::Skip { left, then: Some((index, fault)) };
                    }
                }
                Err(error) => return Outcome::Lost(format!("cannot receive: {error}")),
            }
        }
        Outcome::Fine
    }

    /// Bytes came. An error is nonsense from the server.
    fn received(&mut self, bytes: usize, volume: &Volume, me: &Arc<Mailbox>) -> Result<(), String> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        match &mut connection.rx {
            Rx::Header { bytes: header, have } => {
                *have += bytes;
                if *have < wire::REPLY_LEN {
                    return Ok(());
                }
                let reply = Reply::parse(header);
                connection.rx = HEADER;
                let reply = reply.map_err(|magic| format!("the server sent a reply with magic {magic:#010x}"))?;
                self.reply(reply, volume, me)
            }
            Rx::Data { index, at, left } => {
                *at += bytes as u64;
                *left -= bytes as u64;
                if *left == 0 {
                    let index = *index;
                    connection.rx = HEADER;
                    let export = connection.export;
                    if let Some(request) = self.slots[index as usize].request.as_mut() {
                        let next = request.moved(&export);
                        self.go_on(index, next, volume, me);
                    }
                }
                Ok(())
            }
            Rx::Skip { left, then } => {
                *left -= bytes as u64;
                if *left == 0 {
                    let then = *then;
                    connection.rx = HEADER;
                    if let Some((index, error)) = then {
                        self.end(index, Err(error), volume, me);
                    }
                }
                Ok(())
            }
            Rx::Deaf => Ok(()),
        }
    }

    fn reply(&mut self, reply: Reply, volume: &Volume, me: &Arc<Mailbox>) -> Result<(), String> {
        let index = reply.cookie as u32;
        let generation = (reply.cookie >> 32) as u32;
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let sending = connection.tx.as_ref().map(|tx| tx.index);
        let slot = self.slots.get_mut(index as usize).filter(|slot| slot.generation == generation);
        let request = slot.and_then(|slot| slot.request.as_mut()).filter(|request| request.sent);
        let request =
            request.ok_or_else(|| format!("the server answered a request {:#x} that was not made", reply.cookie))?;
        if sending == Some(index) {
            // qemu-nbd and nbdkit read a whole request before they answer; one that does not leaves us out of step.
            return Err(format!("the server answered request {:#x} before it had all of it", reply.cookie));
        }
        self.pause = FIRST_PAUSE;
        let next = request.answered(reply.error, &connection.export);
        if let Next::Data(left) = next {
            connection.rx = if request.late {
                Rx::Skip { left, then: Some((index, IoError::Gone)) }
            } else {
                Rx::Data { index, at: 0, left }
            };
            return Ok(());
        }
        self.go_on(index, next, volume, me);
        Ok(())
    }

    fn go_on(&mut self, index: u32, next: Next, volume: &Volume, me: &Arc<Mailbox>) {
        let slot = &mut self.slots[index as usize];
        let late = slot.request.as_ref().is_none_or(|request| request.late);
        match next {
            _ if late => self.end(index, Err(IoError::Gone), volume, me),
            Next::Send => {
                if let Some(request) = slot.request.as_mut() {
                    request.sent = false;
                    // A new command: a second answer to the old one matches none.
                    slot.generation = slot.generation.wrapping_add(1);
                    self.queue.push_back(index);
                }
            }
            Next::Data(_) => {}
            Next::End(result) => self.end(index, result, volume, me),
            // Stays sent: it goes again when this connection has ended.
            Next::Again => self.leaving = true,
        }
    }

    fn end(&mut self, index: u32, result: Result<(), IoError>, volume: &Volume, me: &Arc<Mailbox>) {
        let Some(request) = self.slots[index as usize].request.take() else { return };
        self.free.push(index);
        if request.late {
            return;
        }
        let export = self.connection.as_ref().map(|connection| connection.export);
        match (result, backing(volume)) {
            (Err(error), _) => volume.count(error),
            // Without flushes there is no cache that outlives an answer.
            (Ok(()), Some(backing)) if export.is_some_and(|export| export.can(wire::SEND_FLUSH)) => {
                if request.is_flushed() {
                    backing.cache.flush(request.covers);
                } else if request.is_cached() {
                    backing.cache.add();
                }
            }
            (Ok(()), _) => {}
        }
        if let Some((owner, done)) = request.end(result) {
            answer(&owner, self.id, done, me);
        }
    }

    /// Ends what has waited too long. Whether the server owes an answer to some of it, or has owed one for longer than
    /// `patience`.
    pub(super) fn expire(&mut self, volume: &Volume, me: &Arc<Mailbox>, now: Instant, patience: Duration) -> bool {
        let requests = self.slots.iter().filter_map(|slot| slot.request.as_ref());
        let mut hung = requests.filter_map(|request| request.answer_by(patience)).any(|by| by <= now);
        for index in 0..self.slots.len() as u32 {
            let slot = &mut self.slots[index as usize];
            let Some(request) = slot.request.as_mut().filter(|request| !request.late && request.deadline <= now) else {
                continue;
            };
            if !request.sent {
                self.end(index, Err(IoError::Timeout), volume, me);
                continue;
            }
            hung = true;
            // The slot stays taken until the answer comes or the connection ends, so that its cookie means nothing
            // else.
            let mut rest = NbdRequest::placeholder(request);
            std::mem::swap(request, &mut rest);
            volume.count(IoError::Timeout);
            if let Some((owner, done)) = rest.end(Err(IoError::Timeout)) {
                answer(&owner, self.id, done, me);
            }
        }
        self.forget_unqueued();
        hung
    }

    /// Takes out of the queue what has ended before it was sent: once for all that have.
    pub(super) fn forget_unqueued(&mut self) {
        self.queue.retain(|queued| self.slots[*queued as usize].request.is_some());
    }

    /// Everything unanswered is to be sent again, in the order in which it was submitted. How many were under way.
    pub(super) fn requeue(&mut self) -> u64 {
        let mut waiting: Vec<(u64, u32)> = Vec::new();
        let mut replayed = 0;
        for (index, slot) in self.slots.iter_mut().enumerate() {
            let Some(request) = slot.request.as_mut() else { continue };
            if request.late {
                slot.request = None;
                self.free.push(index as u32);
                continue;
            }
            if request.rewind() {
                replayed += 1;
                slot.generation = slot.generation.wrapping_add(1);
            }
            waiting.push((request.serial, index as u32));
        }
        waiting.sort_unstable();
        self.queue.clear();
        self.queue.extend(waiting.into_iter().map(|(_, index)| index));
        replayed
    }

    pub(super) fn wake_others(&self, me: &Arc<Mailbox>) {
        for owner in self.owners.iter().filter(|owner| !Arc::ptr_eq(owner, me)) {
            owner.wake();
        }
    }
}

fn answer(owner: &Arc<Mailbox>, from: LinkId, done: Done, me: &Arc<Mailbox>) {
    owner.put(from, done);
    if !Arc::ptr_eq(owner, me) {
        owner.wake();
    }
}
