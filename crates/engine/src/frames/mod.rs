//! The forwarder of a core: frames from guests' transmit queues and from the kernel's sockets, through the VPC, into
//! guests' receive queues and sockets.
//!
//! ```text
//!   transmit queue ──▶ channel ──▶ grant ──▶ heads copied out ──▶ Vpc::forward ──▶ receive queue of this core
//!   TAP · underlay ────────────────────────┘                               ├──▶ another core (an egress frame)
//!                                                                          └──▶ TAP · underlay
//! ```
//!
//! A frame's bytes are copied once, from guest memory to guest memory, but for the head that is looked at, which is
//! copied out first: by the core that has the receiver, to which a chain for a port on another core is
//! [lent](crate::queue::Loans). A frame that is segmented or gets its checksum here, and one of a socket for another
//! core, is copied once more; each copy is counted.
//!
//! The queues are the core's. The forwarder borrows its table for each call; a queue that its driver breaks meanwhile
//! is inert at once ([`QueueTable::break_queue`]), and the core settles its accounts after the call.

mod egress;
mod handoff;
mod ingress;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use softdpu_ring::Chain;
use softdpu_sched::Nanos;
use softdpu_sys::clock;
use softdpu_sys::port::MAX_FRAME;
use softdpu_vpc::{
    Asked, Checksum, DropReason, Explanation, Head, IngressOwner, Packet, PortId, Reply, Tables, Verdict, Vpc,
};

use self::egress::{Backpressured, Egress};
use self::handoff::Handoff;
use crate::counters::CoreCounters;
use crate::ids::CoreIndex;
use crate::links::CoreLinks;
use crate::message::ToCore;
use crate::net::{
    BACKLOG, CaptureStart, Captures, CreditPool, DeliveredRun, FrameOutcome, FrameTail, FunctionSwitch, Functions,
    IngressBacklogs, Port, PortTable, Receiver, Socket, TunnelSteering, deliver_run,
};
use crate::queue::{BURST, Loan, NoFrame, QueueTable, Role, Transmit, prefetch, tail_offset};
use crate::sleep::Sleep;

/// Segments that a burst's frames stand for, all together, about: those that are to be segmented come in shorter
/// bursts.
const SEGMENTS: usize = 256;

/// What the forwarder of a core shares with those of the others.
#[derive(Clone)]
pub(crate) struct ForwarderShared {
    /// For the egress frames that wait for each core.
    credits: Arc<[CreditPool]>,
    /// Packets from tunnels that wait for each core.
    steered: Arc<[AtomicUsize]>,
}

impl ForwarderShared {
    /// For so many cores.
    pub(crate) fn new(cores: usize) -> ForwarderShared {
        ForwarderShared {
            credits: (0..cores).map(|_| CreditPool::new(BACKLOG)).collect(),
            steered: (0..cores).map(|_| AtomicUsize::new(0)).collect(),
        }
    }
}

/// The network side of a core.
pub(crate) struct Forwarder {
    links: CoreLinks,
    counters: Arc<CoreCounters>,
    vpc: Vpc,
    ports: PortTable,
    captures: Captures,
    functions: Functions,
    handoff: Handoff,
    steering: TunnelSteering,
    backlogs: IngressBacklogs,
    /// The chain of the frame that is being dispatched, where another core may borrow it.
    loan: Option<Loan>,
    /// Seconds of heavy flows that were published.
    windows: u64,

    // Reused from burst to burst.
    packets: Vec<Packet>,
    verdicts: Vec<Verdict>,
    owners: Vec<IngressOwner>,
    replies: Vec<Reply>,
    /// A frame as a whole, or as it is segmented.
    whole: Vec<u8>,
    segment: Vec<u8>,
}

/// What became of a burst of a transmit queue.
pub(crate) struct BurstOutcome {
    /// Chains that are done with.
    pub done: usize,
    /// The bytes and frames that they carried.
    pub bytes: u64,
    pub frames: u64,
    /// The port without buffers for the frame after them.
    pub backpressure: Option<PortId>,
}

/// A burst of frames that was read from a transmit queue.
#[derive(Default)]
struct ReadBurst {
    count: usize,
    /// Chains that were read.
    chains: usize,
    /// By frame: which chain it is in, and the bytes of its head.
    origins: [u8; BURST],
    heads: [u8; BURST],
    /// Chains that are no frames.
    refused: Vec<(u8, DropReason)>,
    /// What the driver did wrong in the chain behind the last that was read.
    broken: Option<String>,
}

impl ReadBurst {
    /// Copies the heads of the frames in `chains`, of which there are at most [`BURST`], to `packets`.
    // On its own: a loop that has the processor's registers for itself.
    #[inline(never)]
    fn read(&mut self, transmit: &Transmit, chains: &[Chain], packets: &mut [Packet]) {
        chains.iter().for_each(prefetch);
        let (mut count, mut segments) = (0, 0);
        self.chains = chains.len();
        for (index, chain) in chains.iter().enumerate() {
            let (Some(packet), Some(origin), Some(head)) =
                (packets.get_mut(count), self.origins.get_mut(count), self.heads.get_mut(count))
            else {
                break;
            };
            match transmit.read(chain, packet) {
                Ok(()) => {
                    *origin = index as u8;
                    *head = packet.head.len() as u8;
                    count += 1;
                    if let Some(segmentation) = packet.segmentation {
                        segments += packet.len() / usize::from(segmentation.size.max(1));
                        if segments >= SEGMENTS {
                            self.chains = index + 1;
                            break;
                        }
                    }
                }
                Err(NoFrame::Drop(reason)) => self.refused.push((index as u8, reason)),
                Err(NoFrame::Broken(reason)) => {
                    self.broken = Some(reason);
                    break;
                }
            }
        }
        self.count = count;
    }
}

impl Forwarder {
    /// A forwarder without ports. `flows`: flows that it keeps at most.
    pub(crate) fn new(
        links: CoreLinks,
        counters: Arc<CoreCounters>,
        shared: ForwarderShared,
        tables: Arc<Tables>,
        flows: usize,
    ) -> Forwarder {
        let packet = Packet {
            head: Head::with_len(0),
            tail: 0,
            checksum: Checksum::Complete,
            segmentation: None,
            port: PortId(0),
        };
        Forwarder {
            links,
            counters,
            vpc: Vpc::with_flows(tables, flows),
            ports: PortTable::default(),
            captures: Captures::default(),
            functions: Functions::default(),
            handoff: Handoff::new(shared.credits),
            steering: TunnelSteering::new(shared.steered),
            backlogs: IngressBacklogs::default(),
            owners: Vec::with_capacity(BURST),
            loan: None,
            windows: 0,
            packets: vec![packet; BURST],
            verdicts: Vec::with_capacity(BURST),
            replies: Vec::new(),
            whole: Vec::new(),
            segment: Vec::new(),
        }
    }

    /// Takes a burst of a transmit queue through the VPC. Each of its chains may be lent, the first as `loan`.
    pub(crate) fn transmit_burst(
        &mut self,
        queues: &mut QueueTable,
        number: u32,
        chains: &[Chain],
        loan: Loan,
    ) -> BurstOutcome {
        let mut packets = std::mem::take(&mut self.packets);
        let mut verdicts = std::mem::take(&mut self.verdicts);
        let mut read = ReadBurst::default();
        let mut sender = None;
        if let Some(queue) = queues.get(number)
            && let Role::Transmit(transmit) = &queue.spec.role
        {
            sender = Some(transmit.port);
            read.read(transmit, chains, &mut packets);
        }
        let ReadBurst { count, chains: taken, origins, heads, refused, broken } = read;
        let chains = &chains[..taken.min(chains.len())];
        verdicts.clear();
        let tail = |at: usize| {
            let chain = &chains[usize::from(origins[at])];
            FrameTail::Guest(&chain.buffer, tail_offset(heads[at].into()))
        };
        self.captures.arrive(self.vpc.tables(), &packets[..count], tail);
        self.forward(&mut packets[..count], &mut verdicts);
        let (mut done, mut bytes, mut frames, mut went) = (chains.len(), 0, 0, 0);
        let mut backpressure = None;
        let mut passed = count;
        let mut at = 0;
        while at < count {
            let run = self.deliver_run(queues, &mut packets[at..count], &verdicts[at..], |index| tail(at + index));
            for (packet, head) in packets[at..][..run].iter().zip(&heads[at..]) {
                bytes += u64::from(*head) + u64::from(packet.tail);
            }
            frames += run as u64;
            went += run as u64;
            at += run;
            let (Some(packet), Some(verdict)) = (packets[..count].get(at), verdicts.get(at)) else { break };
            let len = usize::from(heads[at]) + packet.tail as usize;
            self.loan = Some(Loan { number: loan.number + u64::from(origins[at]), ..loan });
            let dispatched = self.dispatch(queues, packet, *verdict, tail(at), true);
            self.loan = None;
            if let Err(Backpressured(by)) = dispatched {
                (done, passed) = (usize::from(origins[at]), at);
                backpressure = Some(by);
                break;
            }
            bytes += len as u64;
            frames += packet.segmentation.map_or(1, |s| len.div_ceil(usize::from(s.size)) as u64);
            went += 1;
            at += 1;
        }
        if let Some(port) = packets[..count].first().and_then(|packet| self.ports.get(packet.port)) {
            port.counters.frames_in.add(went);
            port.counters.bytes_in.add(bytes);
        }
        if let Some(queue) = queues.get(number) {
            let refused = refused.iter().filter(|(index, _)| usize::from(*index) < done).count();
            queue.spec.counters.count_frames(went, bytes);
            queue.spec.counters.dropped.add(refused as u64);
        }
        self.functions.settle(&packets[..count], passed);
        self.captures.depart(self.vpc.tables(), &packets[..passed], &verdicts, tail);
        self.packets = packets;
        self.verdicts = verdicts;
        // Those behind a frame that is held come again with it.
        for (index, reason) in refused.into_iter().filter(|(index, _)| usize::from(*index) < done) {
            let (Some(port), Some(chain)) = (sender, chains.get(usize::from(index))) else { continue };
            let tail = FrameTail::Guest(&chain.buffer, tail_offset(0));
            let readable = chain.buffer.len_of(0..chain.readable);
            let len = readable.saturating_sub(tail_offset(0)).min(MAX_FRAME as u64) as usize;
            self.refuse(port, reason, tail, len);
        }
        if let Some(reason) = broken {
            queues.break_queue(number, reason);
        }
        BurstOutcome { done, bytes, frames, backpressure }
    }

    /// Takes the first `count` frames, with `rests` behind their heads, through the VPC. They are of one port. What
    /// finds no buffer is dropped.
    #[inline]
    fn forward_burst(
        &mut self,
        queues: &mut QueueTable,
        mut packets: Vec<Packet>,
        count: usize,
        rests: &[&[u8]; BURST],
    ) {
        let mut verdicts = std::mem::take(&mut self.verdicts);
        verdicts.clear();
        let tail = |at: usize| FrameTail::Bytes(rests[at]);
        self.captures.arrive(self.vpc.tables(), &packets[..count], tail);
        self.forward(&mut packets[..count], &mut verdicts);
        for (at, (packet, verdict)) in packets[..count].iter().zip(&verdicts).enumerate() {
            let _ = self.dispatch(queues, packet, *verdict, tail(at), false);
        }
        self.functions.settle(&packets[..count], count);
        self.captures.depart(self.vpc.tables(), &packets[..count], &verdicts, tail);
        self.packets = packets;
        self.verdicts = verdicts;
    }

    /// Decides what becomes of a burst of one port. Frames with a capture that wants their path are traced.
    #[inline]
    fn forward(&mut self, packets: &mut [Packet], verdicts: &mut Vec<Verdict>) {
        let now = clock::now();
        let Forwarder { captures, functions, ports, vpc, .. } = self;
        let mut through =
            |first, packets: &mut [Packet], verdicts: &mut Vec<Verdict>| match captures.tracer(first, ports) {
                Some(mut tracer) => vpc.forward_watched(now, packets, verdicts, &mut tracer),
                None => vpc.forward(now, packets, verdicts),
            };
        match functions.active() {
            None => through(0, packets, verdicts),
            Some(functions) => functions.forward(now, packets, verdicts, through),
        }
    }

    /// Delivers the first so many frames, returns how many, which go to the only receive queue of one port, on this
    /// core, and with which nothing else is to be done than to deliver them.
    #[inline]
    fn deliver_run<'a>(
        &mut self,
        queues: &mut QueueTable,
        packets: &mut [Packet],
        verdicts: &[Verdict],
        tail: impl Fn(usize) -> FrameTail<'a>,
    ) -> usize {
        let Some(Verdict::Local { port, .. }) = verdicts.first().copied() else { return 0 };
        let key = match self.ports.get(port) {
            Some(Port { owner: None, receive_limit: None, receivers, .. }) => match receivers[..] {
                [Receiver { core, key }] if core == self.links.index => key,
                _ => return 0,
            },
            _ => return 0,
        };
        let found = queues.find_to_finish(key).filter(|(queue, _)| queue.is_active());
        let Some((queue, unpublished)) = found else { return 0 };
        let same = |verdict: &&Verdict| matches!(verdict, Verdict::Local { port: to, .. } if *to == port);
        let together = verdicts.iter().take_while(same).count();
        let run = match deliver_run(queue, packets.get_mut(..together).unwrap_or_default(), tail) {
            Ok(run) => run,
            Err(error) => {
                queues.break_queue(key.number, error.to_string());
                return 0;
            }
        };
        if run.frames > 0 {
            queue.spec.counters.count_frames(run.frames as u64, run.bytes);
            unpublished.add(queue);
            self.delivered(port, run);
        }
        run.frames
    }

    /// Counts frames that were delivered at a port.
    fn delivered(&mut self, to: PortId, run: DeliveredRun) {
        if let Some(port) = self.ports.get_mut(to) {
            port.patience.took();
            port.counters.frames_out.add(run.frames as u64);
            port.counters.bytes_out.add(run.bytes);
            port.counters.copied.add(run.bytes);
            port.counters.copied_heads.add(run.bytes - run.tails);
        }
    }

    /// Does what was decided about a frame. `may_hold`: its sender can try again where there is no buffer.
    fn dispatch(
        &mut self,
        queues: &mut QueueTable,
        packet: &Packet,
        verdict: Verdict,
        tail: FrameTail<'_>,
        may_hold: bool,
    ) -> Result<(), Backpressured> {
        match verdict {
            Verdict::Local { port, hash } => {
                let egress = Egress { port, hash, overhead: 0 };
                match self.ports.get(port).and_then(|port| port.receive_limit.clone()) {
                    None => self.send(queues, egress, packet, tail, may_hold),
                    Some(limit) => self.send_within(&limit, queues, egress, packet, tail, may_hold),
                }
            }
            Verdict::Underlay { port, hash, overhead } => {
                self.send(queues, Egress { port, hash, overhead }, packet, tail, may_hold)
            }
            Verdict::Software => {
                self.run_software_tier(queues, packet, tail);
                Ok(())
            }
            Verdict::Consumed => Ok(()),
            Verdict::Drop(reason) => {
                self.drop_in(packet, reason);
                Ok(())
            }
        }
    }

    /// The frame is dropped before it comes to a port that it could leave by.
    fn drop_in(&mut self, packet: &Packet, reason: DropReason) {
        self.ports.drop_in(packet.port, reason);
        self.captures.note(packet, FrameOutcome::DroppedAtIngress(reason));
    }

    /// The frame is dropped at the port by which it was to leave.
    fn drop_out(&mut self, port: PortId, packet: &Packet, reason: DropReason) {
        self.ports.drop_out(port, reason);
        self.captures.note(packet, FrameOutcome::DroppedAtEgress(reason));
    }

    /// What came in by a port, `len` bytes from `tail`, is dropped before it becomes a packet.
    #[cold]
    fn refuse(&mut self, port: PortId, reason: DropReason, tail: FrameTail<'_>, len: usize) {
        self.ports.drop_in(port, reason);
        self.captures.refused(self.vpc.tables(), port, reason, tail, len);
    }

    /// Another configuration of the networks. Returns the one before it.
    pub(crate) fn replace_tables(&mut self, tables: Arc<Tables>) -> Arc<Tables> {
        let old = Arc::clone(self.vpc.tables());
        self.vpc.replace(tables);
        old
    }

    /// A port as this core has it from now on, or none: it is removed.
    pub(crate) fn set_port(&mut self, id: PortId, port: Option<Port>, sleep: &Sleep) {
        (0..self.backlogs.forget_port(id)).for_each(|_| self.ports.drop_in(id, DropReason::PortDown));
        self.ports.set(id, port, sleep);
        self.vpc.begin_anew(id);
        self.captures.ports_changed(&self.ports);
    }

    /// Another socket for a port, which `owner` has, or none for now.
    pub(crate) fn set_socket(
        &mut self,
        id: PortId,
        owner: Option<CoreIndex>,
        socket: Option<Box<Socket>>,
        sleep: &Sleep,
    ) {
        self.ports.set_socket(id, owner, socket, sleep);
    }

    /// Gives the socket of a port to core `to`. Its frames come after the socket: each other core learns of `to` later.
    pub(crate) fn hand_socket(&mut self, port: PortId, to: CoreIndex, sleep: &Sleep) {
        let from = self.links.index;
        let Some(socket) = self.ports.take_socket(port, sleep) else { return };
        self.links.send(to, ToCore::SocketMoved { port, from, to, socket: Some(Box::new(socket)) });
        for core in (0..self.links.peers.len()).map(CoreIndex).filter(|core| *core != to) {
            self.links.send(core, ToCore::SocketMoved { port, from, to, socket: None });
        }
    }

    /// The socket of a port has gone from one core to another, unless it has others since.
    pub(crate) fn socket_moved(
        &mut self,
        port: PortId,
        (from, to): (CoreIndex, CoreIndex),
        socket: Option<Box<Socket>>,
        sleep: &Sleep,
    ) {
        if self.ports.get(port).is_some_and(|port| port.owner == Some(from)) {
            self.ports.set_socket(port, Some(to), socket, sleep);
        }
    }

    /// Other receive queues take a port's frames.
    pub(crate) fn set_receivers(&mut self, id: PortId, receivers: Arc<[Receiver]>) {
        if let Some(port) = self.ports.get_mut(id) {
            port.receivers = receivers;
        }
    }

    /// Begins to capture frames.
    pub(crate) fn begin_capture(&mut self, start: CaptureStart) {
        self.captures.begin(self.links.index, start, &self.ports);
    }

    /// Ports have other functions from now on, or none.
    pub(crate) fn switch_functions(&mut self, switch: FunctionSwitch) {
        self.functions.switch(self.links.index, switch);
    }

    /// What would become of a frame that came in by a port, which has to have this name still.
    pub(crate) fn explain(&self, id: PortId, name: &str, frame: &[u8]) -> Option<Explanation> {
        let port = self.ports.get(id)?;
        let names = |port| self.ports.name(port);
        let asked = Asked { names: &names, clock: &clock::now };
        (*port.name == *name).then(|| self.vpc.explain(clock::now(), id, frame, asked))
    }

    /// The core is about to sleep.
    pub(crate) fn rest(&mut self) {
        self.vpc.rest();
    }

    /// What is due in the network without a frame: functions turn, and guests get router advertisements.
    pub(crate) fn advertise(&mut self, queues: &mut QueueTable, now: u64) {
        self.functions.turn(now);
        let mut replies = std::mem::take(&mut self.replies);
        let (ports, index) = (&self.ports, self.links.index);
        self.vpc.advertise(now, |id| ports.get(id).is_some_and(|port| port.is_up_at(index)), &mut replies);
        let any = !replies.is_empty();
        self.send_replies(queues, replies, None);
        if any {
            self.captures.send();
        }
    }

    /// Announces a port's endpoint in its network.
    pub(crate) fn announce(&mut self, queues: &mut QueueTable, port: PortId) {
        let mut replies = std::mem::take(&mut self.replies);
        self.vpc.announce(clock::now(), port, &mut replies);
        self.send_replies(queues, replies, None);
        self.captures.send();
    }

    /// Forgets captures that have ended, and publishes what the VPC counts.
    pub(crate) fn tick(&mut self, now: Nanos) {
        self.captures.forget_ended();
        let stats = self.vpc.stats();
        self.counters.frames.set(stats.received);
        self.counters.by_flow.set(stats.cached);
        self.counters.by_software.set(stats.software);
        self.counters.forwarding.take(&mut self.vpc, now, &mut self.windows);
    }

    /// Whether a transmit queue that a port without buffers has held may go on: there is a buffer, or patience is over.
    pub(crate) fn may_go_on(&mut self, queues: &mut QueueTable, port: PortId, now: Nanos) -> bool {
        let receivers = self.ports.get(port).map(|port| Arc::clone(&port.receivers)).unwrap_or_default();
        let has_buffer = receivers.is_empty()
            || receivers
                .iter()
                .any(|receiver| queues.find(receiver.key).is_none_or(|queue| !queue.is_active() || queue.has_buffer()));
        has_buffer || !self.ports.get_mut(port).is_some_and(|port| port.patience.hold(now))
    }

    /// Whether this core has sockets.
    #[inline]
    pub(crate) fn has_sockets(&self) -> bool {
        self.ports.has_sockets()
    }

    /// Whether anything waits that the next round would do.
    pub(crate) fn has_work(&self) -> bool {
        self.handoff.has_work() || self.steering.is_ready()
    }

    /// When functions are to turn even if no frame comes, nanoseconds.
    pub(crate) fn functions_due(&self) -> Option<u64> {
        self.functions.due()
    }

    /// Whether frames wait for a socket that took no more.
    pub(crate) fn is_backed_up(&self) -> bool {
        self.ports.is_backed_up()
    }

    /// The core ends: functions report what they have not reported yet.
    pub(crate) fn finish(&mut self) {
        self.functions.finish();
    }
}
