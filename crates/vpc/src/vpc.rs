//! One core's VPC: the tiers over a batch of frames.

mod arrivals;
mod decide;
mod explain;
mod follow;
mod hits;
mod leases;
mod meters;
mod services;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrivals::Arrival;
pub use explain::{Asked, Explanation};
use follow::Follower;
pub use hits::Part;
use leases::CoreMeters;
use meters::{MeteredRun, admit};
use services::PortServices;

use crate::flow::{self, Candidate, FlowCounters, FlowIndex, Flows, Found, Heavy, HeavyFlow, Home, Seen};
use crate::id::PortId;
use crate::ingress::{self, IngressOwner};
use crate::packet::{Checksum, Head, Packet, Segmentation};
use crate::policy::meter::Colours;
use crate::software;
use crate::stats::Stats;
use crate::steer::{self, SteeringKey};
use crate::switch::{Ask, Frame, Last, Metadata, Stop, before};
use crate::tables::Tables;
use crate::trace::{TraceTo, Tracer, Untraced, Watch, narrate};
use crate::verdict::{DropReason, Reply, Verdict};

/// One core's VPC. Tables are shared and only read; everything else is the core's own.
#[derive(Debug)]
pub struct Vpc {
    tables: Arc<Tables>,
    services: PortServices,
    stats: Stats,
    flows: Flows,
    meters: CoreMeters,
    heavy: Heavy,
    batch: Batch,
    /// Identification of the next outer IPv4 packet.
    id: u16,
    /// Where it counts what all cores count together.
    shard: usize,
}

/// What the passes over a batch leave to each other. Empty between batches, and kept for its capacity.
#[derive(Debug, Default)]
struct Batch {
    /// By packet: the look-up of its flow, where it is of a shape that flows are made of.
    lookups: Vec<Option<FlowLookup>>,
    /// By packet: the outer headers and the flow of one that came by a tunnel.
    arrivals: Vec<Option<Arrival>>,
    /// Packets in a row that were put to their meters together.
    meters: MeteredRun,
    /// Of the packets that no flow decides, in their order.
    stages: Vec<(u32, Stage)>,
    /// The stale flows of these packets, each once.
    stale: Vec<FlowIndex>,
}

/// Cores are numbered through.
static CORES: AtomicUsize = AtomicUsize::new(0);

/// Flows that a core can keep unless another number is given. They take memory as they come, 130 bytes each, where
/// there are huge pages in pieces of 2 MiB.
pub const FLOWS: usize = 1 << 16;

/// The look-up of a packet's flow.
#[derive(Clone, Copy, Debug)]
struct FlowLookup {
    seen: Seen,
    home: Home,
    /// The entry that it probably is.
    candidate: Candidate,
}

impl FlowLookup {
    /// Of a packet of which so much is seen: its line of the index is on its way into the cache.
    #[inline(always)]
    fn new(flows: &Flows, seen: Seen) -> FlowLookup {
        FlowLookup { seen, home: flows.home(&seen.key), candidate: Candidate::NONE }
    }
}

/// How far a frame of a batch has come.
#[derive(Debug)]
enum Stage {
    /// Classified; its look-ups are on their way into the cache.
    Classified(before::Classified),
    /// Its next hop's number is known.
    Found(Frame, Metadata),
    Stopped(Stop),
}

const UNDECIDED: Stage = Stage::Stopped(Stop::Drop(DropReason::Unresolved));

impl Vpc {
    /// A core's VPC over `tables`, which keeps at most [`FLOWS`] flows.
    pub fn new(tables: Arc<Tables>) -> Vpc {
        Vpc::with_flows(tables, FLOWS)
    }

    /// A core's VPC over `tables`, which keeps at most `flows` flows, and never more than 16,777,216. Address space is
    /// reserved for all of them, 136 bytes each; memory is taken as they come.
    pub fn with_flows(tables: Arc<Tables>, flows: usize) -> Vpc {
        let mut meters = CoreMeters::default();
        meters.configure(None, &tables);
        Vpc {
            services: PortServices::new(&tables),
            tables,
            stats: Stats::default(),
            flows: Flows::new(flows),
            meters,
            heavy: Heavy::new(),
            batch: Batch::default(),
            id: 0,
            shard: CORES.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Goes on with other tables. Counts, and what services have spent, stay; so do flows that were computed from
    /// nothing that differs, where `tables` were [rebuilt](Tables::rebuild) from those before. No packet is forwarded
    /// by the old ones from here on.
    pub fn replace(&mut self, tables: Arc<Tables>) {
        self.services.configure(&tables);
        self.meters.configure(Some(&self.tables), &tables);
        self.tables = tables;
        self.flows.tables_changed();
    }

    /// The tables it forwards by.
    pub fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    /// How many flows it knows.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Bytes that are reserved for flows' entries, and for their index; of them those are taken that are used.
    pub fn flow_bytes(&self) -> (usize, usize) {
        self.flows.reserved()
    }

    /// How many flows it has room for.
    pub fn flow_capacity(&self) -> usize {
        self.flows.capacity()
    }

    /// The flows that carried most in the last second that has ended by `now`, nanoseconds, the heaviest first; and how
    /// many such seconds there were, by which it is known whether this is news.
    pub fn heavy_flows(&mut self, now: u64) -> (u64, &[HeavyFlow]) {
        self.heavy.turn(&self.tables, &self.flows, now);
        self.heavy.report()
    }

    /// What the flow counted to which `packet`, as it came in, belongs.
    pub fn flow_counters(&self, packet: &Packet) -> Option<FlowCounters> {
        self.flows.counters(&self.key_of(packet)?)
    }

    /// What a packet's flow is known by, where it is of a shape that flows are made of.
    fn key_of(&self, packet: &Packet) -> Option<flow::Key> {
        match self.tables.underlay().filter(|underlay| underlay.port == packet.port) {
            Some(underlay) => Some(arrivals::see(&self.tables, underlay, packet, &mut Last::default())?.1.key),
            None => Some(flow::see(packet)?.key),
        }
    }

    #[cfg(test)]
    pub(crate) fn check_versions(&mut self, checks: bool) {
        self.flows.check_versions(checks);
    }

    /// The keys by which `packets` that came by the underlay's port, as they came, are [steered](crate::steer):
    /// appended to `seen`, one for each; None for those that stay where they were read in any case.
    pub fn steering_keys(&self, packets: &[Packet], seen: &mut Vec<Option<SteeringKey>>) {
        steer::keys(&self.tables, packets, seen);
    }

    /// The owners of `packets` that came by the underlay's port, as they came: appended to `owners`, one for each.
    pub fn ingress_owners(&self, packets: &[Packet], owners: &mut Vec<IngressOwner>) {
        ingress::owners(&self.tables, packets, owners);
    }

    /// What it has counted.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Decides what becomes of `packets`, makes their heads what leaves, and appends a verdict for each to `verdicts`.
    /// The time is `now`, nanoseconds on any clock that does not go backwards.
    ///
    /// In passes, so that what one packet waits for is fetched while others are worked on.
    pub fn forward(&mut self, now: u64, packets: &mut [Packet], verdicts: &mut Vec<Verdict>) {
        self.run(now, packets, verdicts, &mut Untraced);
    }

    /// Does the same, and tells `watch` of the steps of those packets that have an identifier.
    pub fn forward_watched(
        &mut self,
        now: u64,
        packets: &mut [Packet],
        verdicts: &mut Vec<Verdict>,
        watch: &mut dyn Watch,
    ) {
        self.run(now, packets, verdicts, &mut TraceTo::<false>(watch));
    }

    #[inline(always)]
    fn run<W: Tracer>(&mut self, now: u64, packets: &mut [Packet], verdicts: &mut Vec<Verdict>, tracer: &mut W) {
        if !W::REHEARSES {
            self.flows.turn(now);
            self.meters.turn(&self.tables, now);
        }
        self.batch.stages.clear();
        self.batch.stale.clear();
        self.batch.meters = MeteredRun::default();
        let mut all = std::mem::take(&mut self.batch.lookups);
        let is_kept = self.tables.keeps_flows();
        // A burst comes from one port; what came by a tunnel in the middle of others is decided without flows.
        let is_from_tunnels = is_kept
            && packets.first().is_some_and(|first| self.tables.underlay().is_some_and(|of| of.port == first.port));
        let mut metered = None;
        if is_from_tunnels {
            arrivals::look(&self.tables, &self.flows, packets, &mut all, &mut self.batch.arrivals);
        } else if is_kept {
            metered = hits::look(&self.tables, &self.meters, &self.flows, packets, &mut all);
        } else {
            all.clear();
            all.resize(packets.len(), None);
        }
        let sample = if W::REHEARSES { None } else { self.heavy.next(packets.len()) };
        let sample = sample.and_then(|at| Some((at, packets.get(at)?.len())));
        let first = verdicts.len();
        verdicts.resize(first + packets.len(), Verdict::Drop(DropReason::Unresolved));
        let decided = &mut verdicts[first..];
        if !W::TRACES
            && let Some(sender) = metered
        {
            self.batch.meters.take_first((&self.tables, &mut self.meters), sender, now, &all);
        }
        let mut at = 0;
        while at < packets.len() {
            if !W::TRACES {
                at += self.follow_known(now, &mut packets[at..], &all[at..], &mut decided[at..], at);
                let meters = &mut self.batch.meters;
                let shared = (&*self.tables, &mut self.meters);
                if meters.wanted.is_some() && meters.ask(shared, &self.flows, now, (&*packets, &all), at) {
                    continue;
                }
                if is_from_tunnels {
                    let done = self.follow_arrived(now, &mut packets[at..], &all[at..], &mut decided[at..], at);
                    if done > 0 {
                        at += done;
                        continue;
                    }
                }
            }
            if let (Some(packet), Some(lookup)) = (packets.get_mut(at), all.get(at)) {
                self.look_closer(now, (at, packet), lookup.as_ref(), &mut decided[at], tracer);
                at += 1;
            }
        }
        if let Some((at, bytes)) = sample {
            // Its flow is in the cache now.
            self.weigh(now, all[at].as_ref(), at, bytes);
        }
        self.batch.lookups = all;
        if !self.batch.stages.is_empty() {
            self.decide(now, packets, decided, tracer);
        }
        if !self.batch.stale.is_empty() {
            self.remove_stale();
        }
    }

    /// Looks at the packet at `at`, which came with so many bytes, and whether its flow is heavy.
    #[cold]
    fn weigh(&mut self, now: u64, lookup: Option<&FlowLookup>, at: usize, bytes: usize) {
        self.heavy.turn(&self.tables, &self.flows, now);
        let found = lookup.and_then(|lookup| {
            let candidate = self.arrival(at, &lookup.seen).map_or(lookup.candidate, |arrival| arrival.candidate);
            self.flows.hit(candidate, &lookup.seen.key).map(|_| (candidate.entry(), &lookup.seen.key))
        });
        self.heavy.look(&self.flows, found, bytes as u64);
    }

    /// What is known of the packet at `at`, which is of a flow, where it came by a tunnel.
    fn arrival(&self, at: usize, seen: &flow::Seen) -> Option<Arrival> {
        seen.key.tunnelled().and_then(|_| *self.batch.arrivals.get(at)?)
    }

    /// What becomes of the packet at `at`, of which the flow was not found at first sight, or does not decide it.
    fn look_closer<W: Tracer>(
        &mut self,
        now: u64,
        (at, packet): (usize, &mut Packet),
        lookup: Option<&FlowLookup>,
        decided: &mut Verdict,
        tracer: &mut W,
    ) {
        let tables = &*self.tables;
        tracer.record(at, |names| [narrate::ingress(tables, packet, names)]);
        if let Some(lookup) = lookup {
            let came = self.arrival(at, &lookup.seen).map(|arrival| arrival.outer);
            let outer = came.map_or(0, |outer| outer.len);
            let revalidated = self.stats.revalidated;
            let found = self.flows.find(lookup.home, &lookup.seen.key, tables, &mut self.stats.revalidated);
            let is_compared = self.stats.revalidated != revalidated;
            tracer.record(at, |names| [self.flow_step(packet, &lookup.seen, found, is_compared, names)]);
            match found {
                Found::Fresh(entry) => {
                    let action = self.flows.action(entry);
                    let (mut colours, meters) = (Colours::default(), &mut self.meters);
                    let admit = |metered, bytes| admit::<W>((tables, meters), metered, now, bytes, &mut colours);
                    let before = W::TRACES.then(|| packet.clone());
                    let (flows, id) = (&mut self.flows, &mut self.id);
                    let mut follower = Follower { tables, flows, id, shard: self.shard, now };
                    let flow = (entry, &action);
                    let is_decided = if W::REHEARSES {
                        follower.follow_translated::<true>(packet, &lookup.seen, came.as_ref(), flow, admit, decided)
                    } else {
                        follower.follow_translated::<false>(packet, &lookup.seen, came.as_ref(), flow, admit, decided)
                    };
                    if is_decided {
                        tracer.record(at, |names| {
                            let mut steps = narrate::hop(tables, Some(action.hop), Ok(()), names);
                            let before = before.as_ref().unwrap_or(packet);
                            steps.extend(narrate::metered(tables, action.origin.metered(), &colours));
                            if *decided != Verdict::Drop(DropReason::Metered) {
                                steps.push(narrate::leaves(before, outer.into(), packet, decided, names));
                            }
                            steps
                        });
                        self.stats.count_followed(decided, came.is_none());
                        return;
                    }
                    tracer.record(at, |_| [narrate::not_by_flow()]);
                }
                Found::Stale(entry) => {
                    if !self.batch.stale.contains(&entry) {
                        self.batch.stale.push(entry);
                        self.stats.recomputed += 1;
                    }
                }
                Found::None => {}
            }
        } else {
            tracer.record(at, |names| [narrate::no_flow(tables, packet, None, names)]);
        }
        self.batch.stages.push((at as u32, UNDECIDED));
    }

    /// Removes those of the batch's stale flows for which no new action was kept.
    #[cold]
    fn remove_stale(&mut self) {
        for entry in self.batch.stale.drain(..) {
            if self.flows.is_stale(entry) {
                self.flows.remove(entry);
            }
        }
    }

    /// The step of the flow tier's look-up.
    fn flow_step(
        &self,
        packet: &Packet,
        seen: &flow::Seen,
        found: Found,
        is_compared: bool,
        names: crate::trace::Names<'_>,
    ) -> crate::trace::Step {
        let (entry, is_stale) = match found {
            Found::Fresh(entry) => (entry, false),
            Found::Stale(entry) => (entry, true),
            Found::None => return narrate::no_flow(&self.tables, packet, Some(seen), names),
        };
        let (sources, hop) = (self.flows.sources(entry), self.flows.action(entry).hop);
        narrate::flow(&self.tables, packet, &narrate::KnownFlow { sources, hop, is_stale, is_compared }, names)
    }

    /// Another guest is behind a port from now on: its router advertisements begin anew.
    pub fn begin_anew(&mut self, port: PortId) {
        self.services.begin_anew(port);
    }

    /// Appends the router advertisements that are due at `now`, nanoseconds on the clock of [`forward`](Self::forward),
    /// to `out`. `is_up` tells which ports have a listener and are this core's to advertise to. To be called at least
    /// every few seconds; more often costs next to nothing.
    pub fn advertise(&mut self, now: u64, is_up: impl FnMut(PortId) -> bool, out: &mut Vec<Reply>) {
        self.meters.turn(&self.tables, now);
        if !self.services.is_due(now) {
            return;
        }
        if let Some(connections) = self.tables.connections() {
            connections.age(now);
        }
        let due = self.services.advertisements(now, is_up);
        out.extend(due.filter_map(|port| software::advertisement(&self.tables, port)));
    }

    /// The core has nothing to do: what it has of the node's meters is there for other cores.
    pub fn rest(&mut self) {
        self.meters.rest(&self.tables);
    }

    /// Appends to `out` the frames that announce the endpoint at `port` to the switches and tunnel end points of its
    /// network, unless there was an announcement in the second before `now`, nanoseconds on the clock of
    /// [`forward`](Self::forward).
    pub fn announce(&mut self, now: u64, port: PortId, out: &mut Vec<Reply>) {
        if self.services.admits(Ask::Announce, port, now) {
            let before = out.len();
            software::announce(&self.tables, port, self.id.wrapping_add(1), out);
            self.id = self.id.wrapping_add((out.len() - before) as u16);
            self.stats.replies += (out.len() - before) as u64;
        }
    }

    /// Deals with a whole frame that [`forward`](Self::forward) handed to the software tier; appends what is to be sent
    /// to `out`. The verdict is [`Consumed`](Verdict::Consumed), or why the frame was dropped, of which its sender may
    /// have been told.
    pub fn software(
        &mut self,
        port: PortId,
        frame: &[u8],
        checksum: Checksum,
        segmentation: Option<Segmentation>,
        out: &mut Vec<Reply>,
    ) -> Verdict {
        let head = Head::of(frame);
        let tail = (frame.len() - head.len()) as u32;
        let packet = Packet { head, tail, checksum, segmentation, port };
        let before = out.len();
        self.id = self.id.wrapping_add(1);
        let verdict = software::serve(&self.tables, &packet, frame, self.id, out);
        self.id = self.id.wrapping_add((out.len() - before) as u16);
        self.stats.replies += (out.len() - before) as u64;
        self.stats.count_software(&verdict);
        verdict
    }
}

impl Drop for Vpc {
    fn drop(&mut self) {
        self.rest();
    }
}
