//! Where frames arrive.

use std::borrow::BorrowMut;

use rustix::event::PollFd;

use crate::net::{CorruptFrame, FrameReceiver};
use crate::{Frames, FrontEndError, NetFrontEnd};

/// What a load needs of the place where its frames arrive.
pub trait FrameSink {
    /// Takes up to `most` frames that are there; how many it took.
    ///
    /// # Errors
    /// [`CorruptFrame`] for a frame that is not as it was sent.
    fn take(&mut self, most: usize) -> Result<usize, CorruptFrame>;
    /// Frames so far, and bytes of them as they were sent.
    fn received(&self) -> (u64, u64);
    /// The least number of a frame that can still come, as of the last batch.
    fn next(&self) -> u64;
    /// Frames below this number will not come.
    fn write_off(&mut self, sent: u64);
    /// Kicks sent, and notifications slept for.
    fn signals(&self) -> (u64, u64);
    /// Kicks, wanted or not: the server may sleep already.
    fn kick(&mut self);
    /// Asks to be woken; true where something is there already.
    fn arm(&mut self) -> bool;
    /// What to sleep on.
    fn poll_fd(&self) -> PollFd<'_>;
    /// Awake again.
    fn woken(&mut self);
}

/// The receiving guest. `P` owns or borrows its port.
pub struct GuestSink<P> {
    port: P,
    receiver: FrameReceiver,
}

impl<P: BorrowMut<NetFrontEnd>> GuestSink<P> {
    /// Makes `size` buffers of a port without a frame available.
    ///
    /// # Errors
    /// As [`FrameReceiver::new`].
    pub fn new(mut port: P, size: u16, frames: Frames) -> Result<Self, FrontEndError> {
        let receiver = FrameReceiver::new(port.borrow_mut(), size, frames)?;
        Ok(GuestSink { port, receiver })
    }
}

impl<P: BorrowMut<NetFrontEnd>> FrameSink for GuestSink<P> {
    #[inline(always)]
    fn take(&mut self, most: usize) -> Result<usize, CorruptFrame> {
        self.receiver.take(&mut self.port.borrow_mut().receive, most)
    }

    fn received(&self) -> (u64, u64) {
        (self.receiver.received(), self.receiver.received_bytes())
    }

    #[inline(always)]
    fn next(&self) -> u64 {
        self.receiver.next()
    }

    fn write_off(&mut self, _sent: u64) {}

    fn signals(&self) -> (u64, u64) {
        let receive = &self.port.borrow().receive;
        (receive.kicks(), receive.interrupts())
    }

    fn kick(&mut self) {
        self.port.borrow_mut().receive.kick();
    }

    fn arm(&mut self) -> bool {
        self.port.borrow_mut().receive.driver.arm()
    }

    fn poll_fd(&self) -> PollFd<'_> {
        self.port.borrow().receive.poll_fd()
    }

    fn woken(&mut self) {
        let receive = &mut self.port.borrow_mut().receive;
        receive.take_notification();
        receive.driver.disarm();
    }
}
