//! A question and its answers on a netlink socket.

use std::os::fd::OwnedFd;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with};

use super::NetlinkError;

/// The kernel makes no answer larger than 32 KiB.
const BUFFER: usize = 64 * 1024;
/// The kernel answers while it is asked; this is for a kernel that does not.
const PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of a message's header (struct nlmsghdr).
const HEADER: usize = 16;

/// What a message asks for (rtnetlink: `RTM_GET…`, `RTM_NEW…`).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// One object.
    Get,
    /// All objects (`NLM_F_DUMP`).
    Dump,
    /// To make an object (`NLM_F_CREATE`).
    Create,
}

#[derive(Debug)]
pub(super) struct Exchange {
    socket: OwnedFd,
    sequence: u32,
    buffer: Box<[u8]>,
}

/// A socket subscribed to `groups` (RTMGRP_…).
pub(super) fn socket(flags: SocketFlags, groups: u32) -> Result<OwnedFd, Errno> {
    // NETLINK_ROUTE is protocol 0.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags | SocketFlags::CLOEXEC, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, groups))?;
    Ok(socket)
}

/// The messages of a datagram. One of a kind that is not understood (of a newer kernel, say) is an error of its own.
pub(super) fn messages(
    mut datagram: &[u8],
) -> impl Iterator<Item = Result<NetlinkMessage<RouteNetlinkMessage>, String>> {
    std::iter::from_fn(move || {
        let len = u32::from_ne_bytes(*datagram.first_chunk::<4>()?) as usize;
        if len < HEADER || len > datagram.len() {
            let problem = format!("a message of {len} bytes where {} are left", datagram.len());
            datagram = &[];
            return Some(Err(problem));
        }
        let message = NetlinkMessage::deserialize(&datagram[..len]).map_err(|error| error.to_string());
        datagram = &datagram[len.next_multiple_of(4).min(datagram.len())..];
        Some(message)
    })
}

impl Exchange {
    pub(super) fn new() -> Result<Self, Errno> {
        let socket = socket(SocketFlags::empty(), 0)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        Ok(Exchange { socket, sequence: 0, buffer: vec![0; BUFFER].into_boxed_slice() })
    }

    /// Asks, gives what the kernel answers to `each`, and returns when all is there.
    pub(super) fn ask(
        &mut self,
        doing: &'static str,
        request: Request,
        question: RouteNetlinkMessage,
        mut each: impl FnMut(RouteNetlinkMessage),
    ) -> Result<(), NetlinkError> {
        let at = NetlinkError::at(doing);
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.sequence_number = self.sequence;
        header.flags = NLM_F_REQUEST
            | match request {
                Request::Get => NLM_F_ACK,
                Request::Dump => NLM_F_DUMP,
                Request::Create => NLM_F_ACK | NLM_F_CREATE,
            };
        let mut message = NetlinkMessage::new(header, NetlinkPayload::from(question));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        send(&self.socket, &bytes, SendFlags::empty()).map_err(&at)?;
        loop {
            let (len, _) = match recv(&self.socket, &mut self.buffer[..], RecvFlags::empty()) {
                Err(Errno::INTR) => continue,
                other => other.map_err(&at)?,
            };
            for message in messages(&self.buffer[..len]) {
                let message = match message {
                    // In a list, one that is not understood is none that was asked for.
                    Err(_) if request == Request::Dump => continue,
                    other => other.map_err(|problem| NetlinkError::Answer { doing, problem })?,
                };
                if message.header.sequence_number != self.sequence {
                    continue;
                }
                match message.payload {
                    NetlinkPayload::InnerMessage(answer) => each(answer),
                    NetlinkPayload::Done(done) => return ended(done.code).map_err(&at),
                    NetlinkPayload::Error(error) => return ended(error.raw_code()).map_err(&at),
                    _ => {}
                }
            }
        }
    }
}

/// 0, or an error's number below it.
fn ended(code: i32) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(code.wrapping_neg())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_datagram_ends_with_an_error() {
        let mut datagram = [0; 20];
        datagram[..4].copy_from_slice(&400_u32.to_ne_bytes());
        let all: Vec<_> = messages(&datagram).collect();
        assert!(all.len() == 1 && all[0].is_err(), "{all:?}");
        assert_eq!(messages(&[0; 3]).count(), 0);
    }
}
