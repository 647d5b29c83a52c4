//! Frames that sockets bring: of interfaces of the host, and of the underlay.

use softdpu_sched::{Nanos, TenantScheduler};
use softdpu_sys::clock;
use softdpu_sys::port::{Frame, PortError, VnetHeader};
use softdpu_vpc::{DropReason, PortId};

use super::Core;
use crate::message::FromCore;
use crate::net::{Injection, Port, Source, left_to_do};
use crate::queue::BURST;

impl<S: TenantScheduler> Core<S> {
    /// Reads the sockets that this core owns. Whether there was anything.
    pub(super) fn read_sockets(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.net.sockets.len() {
            // One that fails may have been put away.
            let Some(id) = self.net.sockets.get(at).copied() else { break };
            let Some(mut socket) = self.net.port(id).and_then(|port| port.socket.take()) else { continue };
            let received = socket.receive(BURST, |frames| self.socket_frames(id, frames));
            if let Some(port) = self.net.port(id) {
                port.socket = Some(socket);
            }
            match received {
                Ok(count) => any |= count > 0,
                Err(error) => self.socket_failed(id, &error),
            }
        }
        any
    }

    /// Takes frames that somebody brings as though the port had. A guest's are not held back: what has no room is
    /// dropped.
    pub(super) fn inject(&mut self, injection: Injection) {
        let Injection { port, mut frames, shared } = injection;
        let is_there = self.net.port(port).is_some_and(|known| *known.name == *shared.name);
        if is_there {
            for burst in frames.chunks_mut(BURST) {
                let mut burst: Vec<Frame<'_>> =
                    burst.iter_mut().map(|bytes| Frame { header: VnetHeader::default(), bytes }).collect();
                self.socket_frames(port, &mut burst);
            }
        }
        shared.took(is_there.then_some(frames.len()));
    }

    fn socket_failed(&mut self, id: PortId, error: &PortError) {
        if error.is_final() {
            // Polled on, it is ready for ever.
            self.set_socket(id, None, None);
            return self.control.send(FromCore::SocketLost { port: id, reason: error.to_string() });
        }
        if let Some(port) = self.net.port(id)
            && !std::mem::replace(&mut port.complained, true)
        {
            tracing::warn!(port = %port.name, %error, "its socket fails; this is said once");
        }
    }

    /// Takes frames of a socket through the VPC.
    fn socket_frames(&mut self, id: PortId, frames: &mut [Frame<'_>]) {
        let mut packets = std::mem::take(&mut self.net.packets);
        let mut rests: [&[u8]; BURST] = [&[]; BURST];
        let mut count = 0;
        let limit = self.net.port(id).and_then(|port| port.limit.clone());
        for frame in frames.iter().take(BURST) {
            if let Some(limit) = &limit {
                if limit.available(Nanos(clock::now())) == 0 {
                    self.net.refuse(id, DropReason::Policed, Source::Bytes(frame.bytes), frame.bytes.len());
                    continue;
                }
                let stands_for = match usize::from(frame.header.gso_size) {
                    0 => 1,
                    size => frame.bytes.len().div_ceil(size),
                };
                limit.take(stands_for as u64, frame.bytes.len() as u64);
            }
            let Some((checksum, segmentation)) = left_to_do(&frame.header, frame.bytes.len()) else {
                self.net.refuse(id, DropReason::BadOffload, Source::Bytes(frame.bytes), frame.bytes.len());
                continue;
            };
            let packet = &mut packets[count];
            packet.head.reset(frame.bytes.len());
            let (head, rest) = frame.bytes.split_at(packet.head.len());
            packet.head.bytes_mut().copy_from_slice(head);
            (packet.tail, packet.port) = (rest.len() as u32, id);
            (packet.checksum, packet.segmentation) = (checksum, segmentation);
            rests[count] = rest;
            count += 1;
            self.count_in(id, frame.bytes.len());
        }
        if self.net.steer.lets_all_stay() {
            return self.take_through(packets, count, &rests);
        }
        count = self.hand_on(id, &mut packets, &mut rests, count);
        let began = clock::now();
        self.take_through(packets, count, &rests);
        self.accounting.counters.steering.worked_ns.add(clock::now().saturating_sub(began));
    }

    /// Hands everything that was written to sockets in this round to the kernel.
    pub(super) fn flush_sockets(&mut self) {
        for at in 0..self.net.sockets.len() {
            let Some(id) = self.net.sockets.get(at).copied() else { break };
            let Some(Port { socket: Some(socket), counters, .. }) = self.net.port(id) else { continue };
            let flushed = socket.flush();
            let dropped = socket.take_dropped();
            if dropped > 0 {
                counters.dropped_out[DropReason::Backend as usize].add(dropped);
            }
            if let Err(error) = flushed {
                self.socket_failed(id, &error);
            }
        }
    }
}
