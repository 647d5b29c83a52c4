//! What would become of a frame, without anything of it happening.

use std::sync::Arc;

use super::{Batch, Vpc};
use crate::flow::Heavy;
use crate::id::PortId;
use crate::packet::{Checksum, Head, Packet};
use crate::software;
use crate::stats::Stats;
use crate::trace::{Step, TraceTo, Watch, narrate};
use crate::verdict::{Reply, Verdict};

/// What would become of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// Its steps, with nanoseconds since it was taken up.
    pub steps: Vec<(u64, Step)>,
    /// What would become of it: [`Consumed`](Verdict::Consumed) or dropped where the software tier has to see it.
    pub verdict: Verdict,
    /// The frame as it would leave.
    pub frame: Vec<u8>,
    /// What the software tier would send.
    pub replies: Vec<Reply>,
    /// The core has a flow of it.
    pub is_flow: bool,
}

/// What only the caller knows.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// What people call a port.
    pub names: &'a dyn Fn(PortId) -> String,
    /// The time, nanoseconds, by which the steps are timed.
    pub clock: &'a dyn Fn() -> u64,
}

/// Takes the steps of one packet down.
struct Scribe<'a> {
    asked: Asked<'a>,
    begun: u64,
    steps: Vec<(u64, Step)>,
}

impl Scribe<'_> {
    fn write(&mut self, step: Step) {
        self.steps.push(((self.asked.clock)().saturating_sub(self.begun), step));
    }
}

impl Watch for Scribe<'_> {
    fn identifier(&self, _at: usize) -> u32 {
        1
    }

    fn step(&mut self, _at: usize, step: Step) {
        self.write(step);
    }

    fn port(&self, port: PortId) -> String {
        (self.asked.names)(port)
    }
}

impl Vpc {
    /// What would become of `frame` if it came in by `port` at `now`, nanoseconds on the clock of
    /// [`forward`](Self::forward), as the first packet of a batch. It goes through the code of `forward` on a copy of
    /// what that would change: no flow is kept, no connection begins or goes on, nothing is counted.
    pub fn explain(&self, now: u64, port: PortId, frame: &[u8], asked: Asked<'_>) -> Explanation {
        let head = Head::of(frame);
        let tail = (frame.len() - head.len()) as u32;
        let packet = Packet { head, tail, checksum: Checksum::Complete, segmentation: None, port };
        self.explain_packet(now, packet, frame, asked)
    }

    /// Does the same for a packet with the whole frame `frame`.
    pub fn explain_packet(&self, now: u64, mut packet: Packet, frame: &[u8], asked: Asked<'_>) -> Explanation {
        let as_it_came = packet.clone();
        let mut copy = self.rehearsal(&packet);
        let is_flow = copy.flows() > 0;
        let mut scribe = Scribe { asked, begun: (asked.clock)(), steps: Vec::new() };
        let mut verdicts = Vec::with_capacity(1);
        copy.run(now, std::slice::from_mut(&mut packet), &mut verdicts, &mut TraceTo::<true>(&mut scribe));
        let mut verdict = verdicts.first().copied().unwrap_or(Verdict::Consumed);
        let mut replies = Vec::new();
        if verdict == Verdict::Software {
            verdict = software::serve(&copy.tables, &as_it_came, frame, copy.id.wrapping_add(1), &mut replies);
            let steps = narrate::served(&copy.tables, &verdict, &replies, asked.names);
            steps.into_iter().for_each(|step| scribe.write(step));
        }
        let mut leaves = packet.head.bytes().to_vec();
        leaves.extend(frame.get(as_it_came.head.len()..).unwrap_or_default().iter().take(packet.tail as usize));
        Explanation { steps: scribe.steps, verdict, frame: leaves, replies, is_flow }
    }

    /// A copy of all that a packet's way could change, without other packets' flows. Connections are the node's: the
    /// copy only looks at them.
    fn rehearsal(&self, packet: &Packet) -> Vpc {
        Vpc {
            tables: Arc::clone(&self.tables),
            services: self.services.clone(),
            stats: Stats::default(),
            flows: self.flows.sample(self.key_of(packet).as_ref()),
            meters: self.meters.to_rehearse(),
            heavy: Heavy::new(),
            batch: Batch::default(),
            id: self.id,
            shard: self.shard,
        }
    }
}
