//! One request on its way to an NBD server: which command is next, and what its answer means.

use std::sync::Arc;
use std::time::{Duration, Instant};

use softdpu_memory::GuestBuffer;
use softdpu_sys::{AlignedBuffer, OneOf};

use super::mailbox::Mailbox;
use crate::{BlockOp, Done, IoError, Request};
use softdpu_nbd::wire::{self, Command, Export};

/// The most bytes of one trim or write-zeroes.
const MAX_RANGE: u64 = 1 << 30;
/// The most zeroes written at a time, for a server without write-zeroes.
const ZEROES: u64 = 256 << 10;

pub(super) type Memory = OneOf<GuestBuffer, AlignedBuffer>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A read or a write, a trim, write-zeroes.
    Main,
    /// Zeroes, written.
    Zeroes,
    /// A flush: the request itself, or what makes a write durable.
    Flush,
}

pub(super) struct NbdRequest {
    pub token: u64,
    pub owner: Arc<Mailbox>,
    /// Order of submission: a lost connection's requests are sent again in it.
    pub serial: u64,
    pub deadline: Instant,
    /// Sent, wholly or partly, on the connection there is.
    pub sent: bool,
    /// When its last command was begun to be sent.
    pub asked: Option<Instant>,
    /// Writes that the server had answered then: what a flush covers.
    pub covers: u64,
    /// It was given up; its answer has to be taken off the wire all the same.
    pub late: bool,
    op: BlockOp,
    offset: u64,
    len: u64,
    /// Where the data starts in the memory.
    skip: u64,
    /// Bytes answered.
    done: u64,
    /// Bytes of the command under way.
    part: u64,
    durable: bool,
    stage: Stage,
    /// None once nothing may be copied any more.
    memory: Option<Memory>,
    /// The guest's buffer, while `memory` is ours.
    guest: Option<GuestBuffer>,
}

fn first_stage(op: BlockOp) -> Stage {
    if op == BlockOp::Flush { Stage::Flush } else { Stage::Main }
}

/// What an answer leads to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another command.
    Send,
    /// The data of a read: this many bytes follow.
    Data(u64),
    /// The end.
    End(Result<(), IoError>),
    /// The server is about to go; again on the next connection.
    Again,
}

impl NbdRequest {
    pub(super) fn new(request: Request, owner: &Arc<Mailbox>, serial: u64, deadline: Instant) -> NbdRequest {
        let Request { token, op, offset, len, buffer, data, durable } = request;
        NbdRequest {
            token,
            owner: Arc::clone(owner),
            serial,
            deadline,
            sent: false,
            asked: None,
            covers: 0,
            late: false,
            op,
            offset,
            len,
            skip: buffer.len_of(0..data.start),
            done: 0,
            part: 0,
            durable,
            stage: first_stage(op),
            memory: Some(OneOf::A(buffer)),
            guest: None,
        }
    }

    /// Until when the server has to have answered what it was sent, if `answer` is what it may take.
    pub(super) fn answer_by(&self, answer: Duration) -> Option<Instant> {
        self.asked.filter(|_| self.sent && !self.late).map(|asked| asked + answer)
    }

    /// What stays in the place of a request that was sent and has timed out: it has no memory.
    pub(super) fn placeholder(of: &NbdRequest) -> NbdRequest {
        NbdRequest { owner: Arc::clone(&of.owner), late: true, memory: None, guest: None, ..*of }
    }

    /// Whether the next command is one that the server does not know, and has nothing to do for: a flush where it has
    /// not offered flushes (it has no cache that outlives an answer), a discard, which is a hint, where it has not
    /// offered trims. A server may refuse a command it has not offered, or hang up.
    pub(super) fn is_moot(&self, export: &Export) -> bool {
        match (self.stage, self.op) {
            (Stage::Flush, _) => !export.can(wire::SEND_FLUSH),
            (Stage::Main, BlockOp::Discard) => !export.can(wire::SEND_TRIM),
            _ => false,
        }
    }

    /// The next command's header and how many bytes of memory follow it.
    pub(super) fn command(&mut self, cookie: u64, export: &Export) -> ([u8; wire::REQUEST_LEN], u64) {
        let at = self.offset + self.done;
        let left = self.len - self.done;
        if let (Stage::Main, BlockOp::WriteZeroes { .. }) = (self.stage, self.op)
            && !export.can(wire::SEND_WRITE_ZEROES)
        {
            self.fall_back();
        }
        let fua = if self.durable && export.can(wire::SEND_FUA) { wire::CMD_FUA } else { 0 };
        let payload = left.min(u64::from(export.max_payload));
        let (command, flags, part, sends) = match (self.stage, self.op) {
            (Stage::Flush, _) | (_, BlockOp::Flush) => (Command::Flush, 0, 0, false),
            (Stage::Zeroes, _) => (Command::Write, fua, payload.min(ZEROES), true),
            (Stage::Main, BlockOp::Read) => (Command::Read, 0, payload, false),
            (Stage::Main, BlockOp::Write) => (Command::Write, fua, payload, true),
            (Stage::Main, BlockOp::Discard) => (Command::Trim, fua, left.min(MAX_RANGE), false),
            (Stage::Main, BlockOp::WriteZeroes { unmap }) => {
                let no_hole = if unmap { 0 } else { wire::CMD_NO_HOLE };
                (Command::WriteZeroes, fua | no_hole, left.min(MAX_RANGE), false)
            }
        };
        self.part = part;
        let at = if command == Command::Flush { 0 } else { at };
        // Parts are at most MAX_RANGE or max_payload.
        (wire::request(command, flags, cookie, at, part as u32), if sends { part } else { 0 })
    }

    /// The memory the command under way works on, and where its bytes start.
    pub(super) fn memory(&self) -> Option<(&Memory, u64)> {
        let start = if self.stage == Stage::Zeroes { 0 } else { self.skip + self.done };
        self.memory.as_ref().map(|memory| (memory, start))
    }

    /// The server answered the command under way.
    pub(super) fn answered(&mut self, error: u32, export: &Export) -> Next {
        if error == wire::ESHUTDOWN {
            return Next::Again;
        }
        if error != 0 {
            let error = IoError::from_errno(i32::try_from(error).unwrap_or(0));
            if error == IoError::Unsupported && self.stage == Stage::Main {
                match self.op {
                    // A discard is a hint.
                    BlockOp::Discard => return Next::End(Ok(())),
                    BlockOp::WriteZeroes { .. } => {
                        self.fall_back();
                        return Next::Send;
                    }
                    BlockOp::Read | BlockOp::Write | BlockOp::Flush => {}
                }
            }
            return Next::End(Err(error));
        }
        if self.stage == Stage::Main && self.op == BlockOp::Read { Next::Data(self.part) } else { self.moved(export) }
    }

    /// The command under way has done its part.
    pub(super) fn moved(&mut self, export: &Export) -> Next {
        if self.stage == Stage::Flush {
            return Next::End(Ok(()));
        }
        self.done += self.part;
        if self.done < self.len {
            return Next::Send;
        }
        if self.durable && self.op.is_write() && !export.can(wire::SEND_FUA) && export.can(wire::SEND_FLUSH) {
            self.stage = Stage::Flush;
            return Next::Send;
        }
        Next::End(Ok(()))
    }

    /// Its connection is lost: all of it is to be done again on the next. What the server has answered may be lost as
    /// well, with the cache of a server that died, so a write that was to be made durable by a flush is written again
    /// before that. Whether any of it had been sent.
    pub(super) fn rewind(&mut self) -> bool {
        let begun = self.sent || self.done > 0 || self.stage != first_stage(self.op);
        (self.sent, self.done, self.part, self.stage) = (false, 0, 0, first_stage(self.op));
        begun
    }

    fn fall_back(&mut self) {
        self.stage = Stage::Zeroes;
        if let Some(OneOf::A(guest)) = self.memory.take() {
            self.guest = Some(guest);
        }
        self.memory = Some(OneOf::B(AlignedBuffer::new(ZEROES.min(self.len) as usize)));
    }

    /// A flush was the last thing that was done for it.
    pub(super) fn is_flushed(&self) -> bool {
        self.stage == Stage::Flush
    }

    /// It may be in the server's cache only.
    pub(super) fn is_cached(&self) -> bool {
        matches!(self.op, BlockOp::Write | BlockOp::WriteZeroes { .. }) && !self.durable
    }

    /// Whether what was sent of it may change the volume.
    pub(super) fn writes(&self) -> bool {
        self.op.is_write()
    }

    /// Lets go of the guest's memory.
    pub(super) fn let_go(&mut self) {
        self.late = true;
        (self.memory, self.guest) = (None, None);
    }

    pub(super) fn end(mut self, result: Result<(), IoError>) -> Option<(Arc<Mailbox>, Done)> {
        let buffer = match self.memory.take() {
            Some(OneOf::A(guest)) => Some(guest),
            Some(OneOf::B(_)) | None => self.guest.take(),
        };
        buffer.map(|buffer| (self.owner, Done { token: self.token, result, buffer }))
    }
}
