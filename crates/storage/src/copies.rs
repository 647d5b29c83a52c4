//! One core's work on `memory` volumes: copies that the core itself makes.
//!
//! A request may be almost 2 GiB long (virtio 1.3 §5.2.6 bounds its segments, not their sum) and a core has other
//! tenants, so a core copies [`STEP`] bytes at most at a time, in turn for all requests that are under way.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;

use softdpu_memory::GuestBuffer;

use crate::volume::Backing;
use crate::{Done, IoError, Request, Volume};

/// The most bytes a core copies before it does anything else: some 50 µs, page faults included.
pub(crate) const STEP: u64 = 256 << 10;

struct MemoryCopy {
    /// Which of the context's attachments it belongs to.
    attachment: u32,
    volume: Arc<Volume>,
    whole: Arc<GuestBuffer>,
    request: Request,
    /// Bytes behind us.
    done: u64,
}

/// Requests that were too long to be done at once.
#[derive(Default)]
pub(crate) struct MemoryCopies {
    under_way: VecDeque<MemoryCopy>,
}

impl MemoryCopies {
    pub(crate) fn len(&self) -> usize {
        self.under_way.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Takes a request that was admitted, to be done by and by.
    pub(crate) fn push(&mut self, attachment: u32, volume: &Arc<Volume>, whole: &Arc<GuestBuffer>, request: Request) {
        let (volume, whole) = (Arc::clone(volume), Arc::clone(whole));
        self.under_way.push_back(MemoryCopy { attachment, volume, whole, request, done: 0 });
    }

    /// MemoryCopies [`STEP`] bytes at most.
    pub(crate) fn step(&mut self, done: &mut Vec<Done>) {
        let mut room = STEP;
        while room > 0 {
            let Some(mut copy) = self.under_way.pop_front() else { return };
            match copy.step(&mut room) {
                ControlFlow::Continue(()) => self.under_way.push_back(copy),
                ControlFlow::Break(result) => {
                    done.push(copy.request.end(result.inspect_err(|error| copy.volume.count(*error))));
                }
            }
        }
    }

    /// Gives up those that match by attachment and token.
    pub(crate) fn abandon(&mut self, mut matches: impl FnMut(u32, u64) -> bool, given_up: &mut Vec<u64>) {
        self.under_way.retain(|copy| {
            let gone = matches(copy.attachment, copy.request.token);
            if gone {
                copy.volume.count_abandoned();
                given_up.push(copy.request.token);
            }
            !gone
        });
    }
}

impl MemoryCopy {
    fn step(&mut self, room: &mut u64) -> ControlFlow<Result<(), IoError>> {
        let Backing::Memory(memory) = &self.volume.backing else { return ControlFlow::Break(Err(IoError::Gone)) };
        let part = (self.request.len - self.done).min(*room);
        *room -= part;
        if let Err(error) = memory.run(&mut self.whole, &self.request, self.done, part) {
            return ControlFlow::Break(Err(error));
        }
        self.done += part;
        if self.done < self.request.len { ControlFlow::Continue(()) } else { ControlFlow::Break(Ok(())) }
    }
}
