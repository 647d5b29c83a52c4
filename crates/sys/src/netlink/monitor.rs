//! Word of changes, as they happen.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use netlink_packet_core::NetlinkPayload;
use netlink_packet_route::RouteNetlinkMessage;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, recv};

use super::exchange::{messages, socket};
use super::{Interface, Neighbour, NetlinkError, read};

// linux/rtnetlink.h: RTMGRP_…
const LINK: u32 = 1;
const NEIGHBOUR: u32 = 4;
const V4_ADDRESS: u32 = 0x10;
const V4_ROUTE: u32 = 0x40;
const V6_ADDRESS: u32 = 0x100;
const V6_ROUTE: u32 = 0x400;

/// Something that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// An interface is new or different; its addresses are not in here.
    Link(Interface),
    /// An interface is gone; its number and name.
    LinkGone(u32, String),
    /// An address of this interface came or went.
    Address(u32),
    /// A neighbour is new or different.
    Neighbour(Neighbour),
    /// The kernel has forgotten a neighbour.
    NeighbourGone(Neighbour),
    /// A route came or went: any answer about routes may be another now.
    Route,
    /// The kernel had more to tell than there was room for: whatever was read before may be out of date.
    Lost,
}

/// Hears of changes in the network namespace of the thread that made it.
#[derive(Debug)]
pub struct Monitor {
    socket: OwnedFd,
    buffer: Box<[u8]>,
}

impl Monitor {
    /// For the calling thread's network namespace. To miss nothing, make it before asking for what there is.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn new() -> Result<Self, NetlinkError> {
        let groups = LINK | NEIGHBOUR | V4_ADDRESS | V4_ROUTE | V6_ADDRESS | V6_ROUTE;
        let socket = socket(SocketFlags::NONBLOCK, groups).map_err(NetlinkError::at("opening a socket"))?;
        Ok(Monitor { socket, buffer: vec![0; 64 * 1024].into_boxed_slice() })
    }

    /// For poll and epoll: readable when something has changed.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Gives what has changed since the last call to `each`; returns at once if nothing has.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn receive(&mut self, mut each: impl FnMut(Change)) -> Result<(), NetlinkError> {
        loop {
            let len = match recv(&self.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((len, _)) => len,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => continue,
                Err(Errno::NOBUFS) => {
                    each(Change::Lost);
                    continue;
                }
                Err(errno) => return Err(NetlinkError::at("hearing of changes")(errno)),
            };
            // A message that cannot be decoded is of a kind that is not reported here.
            for message in messages(&self.buffer[..len]).flatten() {
                if let NetlinkPayload::InnerMessage(message) = message.payload
                    && let Some(change) = change(&message)
                {
                    each(change);
                }
            }
        }
    }
}

fn change(message: &RouteNetlinkMessage) -> Option<Change> {
    Some(match message {
        RouteNetlinkMessage::NewLink(link) => Change::Link(read::interface(link)),
        RouteNetlinkMessage::DelLink(link) => Change::LinkGone(link.header.index, read::interface(link).name),
        RouteNetlinkMessage::NewAddress(message) | RouteNetlinkMessage::DelAddress(message) => {
            Change::Address(message.header.index)
        }
        RouteNetlinkMessage::NewNeighbour(message) => Change::Neighbour(read::neighbour(message)?),
        RouteNetlinkMessage::DelNeighbour(message) => Change::NeighbourGone(read::neighbour(message)?),
        RouteNetlinkMessage::NewRoute(_) | RouteNetlinkMessage::DelRoute(_) => Change::Route,
        _ => return None,
    })
}
