//! Asynchronous events (Base §5.2).

use super::abi::event;
use super::admin::Done;
use super::{Controller, Status};

/// Asynchronous Event Requests that may be outstanding: AERL + 1.
pub(super) const LIMIT: usize = 4;

/// Changed namespaces that are told one by one; more are told as "more" (Base §5.16.1.5).
pub(super) const CHANGED: usize = 1024;

/// Event types that are kept: error, SMART, notice.
const TYPES: usize = 3;

/// Events, and the requests that they complete.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Slots of outstanding requests, oldest first.
    pub requests: Vec<u16>,
    /// By type: the event that waits for a request, as (information, log page).
    pub waiting: [Option<(u8, u8)>; TYPES],
    /// By type: reported, and its log page was not read since.
    pub masked: [bool; TYPES],
    /// Namespaces that changed since the log page was read, ascending.
    pub changed: Vec<u32>,
}

impl Events {
    pub fn reset(&mut self) {
        *self = Events::default();
    }

    pub fn namespace_changed(&mut self, nsid: u32) {
        if let Err(at) = self.changed.binary_search(&nsid)
            && self.changed.len() <= CHANGED
        {
            self.changed.insert(at, nsid);
        }
    }

    /// The log page of a type was read, without Retain Asynchronous Event: its events are reported again.
    pub fn unmask(&mut self, kind: u8) {
        if let Some(masked) = self.masked.get_mut(usize::from(kind)) {
            *masked = false;
        }
    }

    /// The next event for the oldest request: its slot, and dword 0.
    fn next(&mut self) -> Option<(u16, u32)> {
        if self.requests.is_empty() {
            return None;
        }
        let kind = (0..TYPES).find(|kind| self.waiting[*kind].is_some() && !self.masked[*kind])?;
        let (info, page) = self.waiting[kind].take()?;
        self.masked[kind] = true;
        let slot = self.requests.remove(0);
        Some((slot, kind as u32 | u32::from(info) << 8 | u32::from(page) << 16))
    }
}

impl Controller {
    /// Asynchronous Event Request: completed when something happens.
    pub(super) fn async_event(&mut self, slot: u16) -> Result<Done, Status> {
        if self.events.requests.len() >= LIMIT {
            return Err(Status::EVENT_LIMIT);
        }
        self.events.requests.push(slot);
        Ok(Done::Later)
    }

    /// Something happened.
    pub(super) fn event(&mut self, kind: u8, info: u8, page: u8) {
        if let Some(waiting) = self.events.waiting.get_mut(usize::from(kind)) {
            waiting.get_or_insert((info, page));
        }
        self.report_events();
    }

    /// Completes requests with the events that wait.
    pub(super) fn report_events(&mut self) {
        while let Some((slot, result)) = self.events.next() {
            self.finish(slot, Ok(result));
        }
    }

    /// The log page of an event was read.
    pub(super) fn log_was_read(&mut self, page: u8) {
        match page {
            super::abi::log::ERRORS => self.events.unmask(event::ERROR),
            super::abi::log::CHANGED => {
                self.events.changed.clear();
                self.events.unmask(event::NOTICE);
            }
            _ => {}
        }
        self.report_events();
    }
}
