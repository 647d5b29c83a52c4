//! One core's VPC: the tiers over a batch of frames.

mod arrivals;
mod explain;
mod follow;
mod hits;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrivals::Arrival;
pub use explain::{Asked, Explanation};
use follow::{Follower, Marks, admit};
pub use hits::Part;

use crate::flow::{self, Candidate, FlowCounters, FlowIndex, Flows, Found, Heavy, HeavyFlow, Home, Seen};
use crate::id::PortId;
use crate::packet::{Checksum, Head, Packet, Segmentation};
use crate::paths::Datapath;
use crate::policy::connections::Passage;
use crate::policy::meter::Colours;
use crate::software;
use crate::software::limit::{Bucket, Limit};
use crate::software::schedule::Schedule;
use crate::stats::Stats;
use crate::steer::{self, Sight};
use crate::switch::{Ask, Frame, Last, Metadata, Stop, after, before};
use crate::tables::{Attachment, Tables};
use crate::trace::{Nobody, Watch, Watcher, Witness, narrate};
use crate::verdict::{DropReason, Reply, Verdict};

/// One core's VPC. Tables are shared and only read; everything else is the core's own.
#[derive(Debug)]
pub struct Vpc {
    tables: Arc<Tables>,
    limit: Limit,
    /// By port number.
    buckets: Vec<Bucket>,
    /// By port number: announcements.
    announced: Vec<Bucket>,
    /// By port number.
    schedules: Vec<Schedule>,
    /// When they are looked at again, nanoseconds.
    look: u64,
    stats: Stats,
    flows: Flows,
    heavy: Heavy,
    /// Between the passes over a batch; empty between batches, kept for their room. By packet: what its flow is known
    /// by, where it is of a shape that flows are made of.
    seen: Vec<Option<Sought>>,
    /// By packet: what came by tunnels, of these.
    arrivals: Vec<Option<Arrival>>,
    /// Which packets of the batch pass their meters, where several were asked about at once.
    marks: Marks,
    /// Of the packets that no flow decides.
    stages: Vec<(u32, Stage)>,
    /// The stale flows of these packets, each once.
    stale: Vec<FlowIndex>,
    /// Identification of the next outer IPv4 packet.
    id: u16,
    /// Where it counts what all cores count together.
    shard: usize,
}

/// Cores are numbered through.
static CORES: AtomicUsize = AtomicUsize::new(0);

/// How often it is asked which ports are to be told of their router, nanoseconds.
const LOOK: u64 = 1_000_000_000;

/// What a guest says of where it is goes to a whole network: once a second.
const ANNOUNCEMENTS: Limit = Limit::new(1, 1);

/// Flows that a core can keep unless it is told otherwise. They take memory as they come, 130 bytes each, where there
/// are huge pages in pieces of 2 MiB.
pub const FLOWS: usize = 1 << 16;

/// A packet's flow, as it is looked for.
#[derive(Clone, Copy, Debug)]
struct Sought {
    seen: Seen,
    home: Home,
    /// The entry that it probably is.
    candidate: Candidate,
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
        let services = tables.services();
        Vpc {
            limit: Limit::new(services.rate, services.burst),
            buckets: vec![Bucket::default(); tables.ports()],
            announced: vec![Bucket::default(); tables.ports()],
            schedules: vec![Schedule::default(); tables.ports()],
            look: 0,
            tables,
            stats: Stats::default(),
            flows: Flows::new(flows),
            heavy: Heavy::new(),
            seen: Vec::new(),
            arrivals: Vec::new(),
            marks: Marks::default(),
            stages: Vec::new(),
            stale: Vec::new(),
            id: 0,
            shard: CORES.fetch_add(1, Ordering::Relaxed),
        }
    }

    /// Goes on with other tables. Counts, and what services have spent, stay; so do flows that were computed from
    /// nothing that differs, where `tables` were [rebuilt](Tables::rebuild) from those before. No packet is forwarded
    /// by the old ones from here on.
    pub fn replace(&mut self, tables: Arc<Tables>) {
        let services = tables.services();
        self.limit = Limit::new(services.rate, services.burst);
        self.buckets.resize(tables.ports(), Bucket::default());
        self.announced.resize(tables.ports(), Bucket::default());
        self.schedules.resize(tables.ports(), Schedule::default());
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
        self.heavy.told()
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

    /// What there is to see of `packets` that came by the underlay's port, as they came, for who [steers](crate::steer)
    /// them: appended to `seen`, one for each; None for those that stay where they were read in any case.
    pub fn look_inside(&self, packets: &[Packet], seen: &mut Vec<Option<Sight>>) {
        steer::look(&self.tables, packets, seen);
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
        self.run(now, packets, verdicts, &mut Nobody);
    }

    /// Does the same, and tells `watch` of the steps of those packets that have an identifier.
    pub fn forward_watched(
        &mut self,
        now: u64,
        packets: &mut [Packet],
        verdicts: &mut Vec<Verdict>,
        watch: &mut dyn Watch,
    ) {
        self.run(now, packets, verdicts, &mut Watcher::<false>(watch));
    }

    #[inline(always)]
    fn run<W: Witness>(&mut self, now: u64, packets: &mut [Packet], verdicts: &mut Vec<Verdict>, witness: &mut W) {
        if !W::REHEARSES {
            self.flows.turn(now);
        }
        self.stages.clear();
        self.stale.clear();
        self.marks = Marks::default();
        let mut all = std::mem::take(&mut self.seen);
        let is_kept = self.tables.keeps_flows();
        // A burst comes from one port; what came by a tunnel in the middle of others is decided without flows.
        let is_from_tunnels = is_kept
            && packets.first().is_some_and(|first| self.tables.underlay().is_some_and(|of| of.port == first.port));
        let mut metered = None;
        if is_from_tunnels {
            arrivals::look(&self.tables, &self.flows, packets, &mut all, &mut self.arrivals);
        } else if is_kept {
            metered = hits::look(&self.tables, &self.flows, packets, &mut all);
        } else {
            all.clear();
            all.resize(packets.len(), None);
        }
        let sample = if W::REHEARSES { None } else { self.heavy.next(packets.len()) };
        let sample = sample.and_then(|at| Some((at, packets.get(at)?.len())));
        let first = verdicts.len();
        verdicts.resize(first + packets.len(), Verdict::Drop(DropReason::Unresolved));
        let decided = &mut verdicts[first..];
        if !W::LOOKS
            && let Some(endpoint) = metered
        {
            self.take_first(endpoint, now, &all);
        }
        let mut at = 0;
        while at < packets.len() {
            if !W::LOOKS {
                at += self.follow_known(now, &mut packets[at..], &all[at..], &mut decided[at..], at);
                if self.mark(now, packets, &all, at) {
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
            if let (Some(packet), Some(sought)) = (packets.get_mut(at), all.get(at)) {
                self.look_closer(now, (at, packet), sought.as_ref(), &mut decided[at], witness);
                at += 1;
            }
        }
        if let Some((at, bytes)) = sample {
            // Its flow is in the cache now.
            self.weigh(now, all[at].as_ref(), at, bytes);
        }
        self.seen = all;
        if !self.stages.is_empty() {
            self.decide(now, packets, decided, witness);
        }
        if !self.stale.is_empty() {
            self.remove_stale();
        }
    }

    /// Looks at the packet at `at`, which came with so many bytes, and whether its flow is heavy.
    #[cold]
    fn weigh(&mut self, now: u64, sought: Option<&Sought>, at: usize, bytes: usize) {
        self.heavy.turn(&self.tables, &self.flows, now);
        let found = sought.and_then(|sought| {
            let candidate = self.arrival(at, &sought.seen).map_or(sought.candidate, |arrival| arrival.candidate);
            self.flows.hit(candidate, &sought.seen.key).map(|_| (candidate.entry(), &sought.seen.key))
        });
        self.heavy.look(&self.flows, found, bytes as u64);
    }

    /// What is known of the packet at `at`, which is of a flow, where it came by a tunnel.
    fn arrival(&self, at: usize, seen: &flow::Seen) -> Option<Arrival> {
        seen.key.tunnelled().and_then(|_| *self.arrivals.get(at)?)
    }

    /// What becomes of the packet at `at` whose flow was not found at first sight, or does not decide it.
    fn look_closer<W: Witness>(
        &mut self,
        now: u64,
        (at, packet): (usize, &mut Packet),
        sought: Option<&Sought>,
        decided: &mut Verdict,
        witness: &mut W,
    ) {
        let tables = &*self.tables;
        witness.see(at, |names| [narrate::ingress(tables, packet, names)]);
        if let Some(sought) = sought {
            let came = self.arrival(at, &sought.seen).map(|arrival| arrival.outer);
            let outer = came.map_or(0, |outer| outer.len);
            let revalidated = self.stats.revalidated;
            let found = self.flows.find(sought.home, &sought.seen.key, tables, &mut self.stats.revalidated);
            let is_compared = self.stats.revalidated != revalidated;
            witness.see(at, |names| [self.tell_flow(packet, &sought.seen, found, is_compared, names)]);
            match found {
                Found::Fresh(entry) => {
                    let action = self.flows.action(entry);
                    let mut colours = Colours::default();
                    let admit = |metered, bytes| admit::<W>(tables, metered, now, bytes, &mut colours);
                    let before = W::LOOKS.then(|| packet.clone());
                    let (flows, id) = (&mut self.flows, &mut self.id);
                    let mut follower = Follower { tables, flows, id, shard: self.shard, now };
                    let flow = (entry, &action);
                    let is_decided = if W::REHEARSES {
                        follower.follow::<true>(packet, &sought.seen, came.as_ref(), flow, admit, decided)
                    } else {
                        follower.follow::<false>(packet, &sought.seen, came.as_ref(), flow, admit, decided)
                    };
                    if is_decided {
                        witness.see(at, |names| {
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
                    witness.see(at, |_| [narrate::not_by_flow()]);
                }
                Found::Stale(entry) => {
                    if !self.stale.contains(&entry) {
                        self.stale.push(entry);
                        self.stats.recomputed += 1;
                    }
                }
                Found::None => {}
            }
        } else {
            witness.see(at, |names| [narrate::no_flow(tables, packet, None, names)]);
        }
        self.stages.push((at as u32, UNDECIDED));
    }

    /// Removes those of the batch's stale flows for which no new action was kept.
    #[cold]
    fn remove_stale(&mut self) {
        for entry in self.stale.drain(..) {
            if self.flows.is_stale(entry) {
                self.flows.remove(entry);
            }
        }
    }

    /// Decides what no flow has decided: through the switch tier, or for the software tier.
    fn decide<W: Witness>(&mut self, now: u64, packets: &mut [Packet], verdicts: &mut [Verdict], witness: &mut W) {
        let tables = Arc::clone(&self.tables);
        let tables = &*tables;
        let has_policies = tables.has_policies();
        for (at, stage) in &mut self.stages {
            let at = *at as usize;
            let packet = &packets[at];
            let classified = before::classify(tables, packet);
            witness.see(at, |names| {
                let result = classified.as_ref().map(|(frame, metadata, _)| (frame, metadata));
                narrate::classified(tables, packet, result, names)
            });
            *stage = match classified {
                Ok(classified) => Stage::Classified(classified),
                Err(stop) => Stage::Stopped(stop),
            };
        }
        for (at, stage) in &mut self.stages {
            if let Stage::Classified((frame, mut metadata, destination)) = *stage {
                self.stats.flow += 1;
                let found = before::find(tables, &frame, &mut metadata, &destination);
                witness.see(*at as usize, |_| narrate::found(tables, &frame, &metadata, found.as_ref()));
                *stage = match found {
                    Ok(()) => {
                        if let Some(hop) = metadata.hop {
                            tables.prefetch_hop(hop);
                        }
                        Stage::Found(frame, metadata)
                    }
                    Err(stop) => Stage::Stopped(stop),
                };
            }
        }
        let mut stages = std::mem::take(&mut self.stages);
        for (at, stage) in &mut stages {
            let at = *at as usize;
            let packet = &mut packets[at];
            let stopped = match stage {
                Stage::Found(frame, metadata) => {
                    let asked = if has_policies {
                        self.ask((at, packet), frame, metadata, now, witness)
                    } else {
                        Ok(Passage::Free)
                    };
                    match asked {
                        Ok(passage) => match self.leave((at, packet), frame, metadata, passage, now, witness) {
                            Ok(verdict) => {
                                let is_asked = passage != Passage::Free;
                                let by = if is_asked { Datapath::Software } else { Datapath::Switch };
                                self.stats.count_decided(&verdict, metadata.endpoint().is_some(), by);
                                verdicts[at] = verdict;
                                continue;
                            }
                            Err(stop) => stop,
                        },
                        Err(reason) => Stop::Drop(reason),
                    }
                }
                Stage::Stopped(stop) => *stop,
                Stage::Classified(_) => Stop::Drop(DropReason::Unresolved),
            };
            let verdict = match stopped {
                Stop::Drop(reason) => Verdict::Drop(reason),
                // No service: a router's work, which its sender waits for.
                Stop::Ask(Ask::Fragment(_)) => Verdict::Software,
                Stop::Ask(ask) => {
                    let (buckets, limit) = match ask {
                        Ask::Announce => (&mut self.announced, ANNOUNCEMENTS),
                        _ => (&mut self.buckets, self.limit),
                    };
                    let bucket = buckets.get_mut(packet.port.0 as usize);
                    let served = bucket.is_some_and(|bucket| bucket.take(now, limit));
                    if !served {
                        witness.see(at, |names| [narrate::limited(packet, names)]);
                    }
                    if served { Verdict::Software } else { Verdict::Drop(DropReason::RateLimited) }
                }
            };
            self.stats.count(&verdict);
            verdicts[at] = verdict;
        }
        self.stages = stages;
    }

    /// Puts a packet to the policies of its ends.
    fn ask<W: Witness>(
        &mut self,
        (at, packet): (usize, &Packet),
        frame: &Frame,
        metadata: &Metadata,
        now: u64,
        witness: &mut W,
    ) -> Result<Passage, DropReason> {
        let tables = &*self.tables;
        let found = |found| witness.see(at, |_| [narrate::policy(tables, &found)]);
        let passage = if W::REHEARSES {
            software::policy::ask::<true>(tables, packet, (frame, metadata), now, found)
        } else {
            software::policy::ask::<false>(tables, packet, (frame, metadata), now, found)
        };
        self.stats.policy += u64::from(passage != Ok(Passage::Free));
        witness.see(at, |_| narrate::asked_policies(passage.as_ref()));
        passage
    }

    /// Keeps the flow of a packet that may go, and lets it leave.
    #[inline]
    fn leave<W: Witness>(
        &mut self,
        (at, packet): (usize, &mut Packet),
        frame: &Frame,
        metadata: &mut Metadata,
        passage: Passage,
        now: u64,
        witness: &mut W,
    ) -> Result<Verdict, Stop> {
        let tables = &*self.tables;
        let checked = after::check(tables, packet, frame, metadata);
        witness.see(at, |names| narrate::hop(tables, metadata.hop, checked.as_ref().map(|_| ()), names));
        let is_metered = |id| tables.endpoint(id).is_some_and(|endpoint| !endpoint.meters.is_empty());
        metadata.metered = metadata.endpoint().filter(|id| is_metered(*id));
        let departure = match checked {
            Ok(departure) => departure,
            Err(stop @ Stop::Ask(Ask::Fragment(_))) => {
                // It leaves in pieces, and counts as it came.
                let bytes = frame.parsed.ip().map_or(0, |ip| ip.end);
                let passes = metadata.endpoint().is_none() || self.passes(at, metadata, now, bytes, witness);
                return if passes { Err(stop) } else { Ok(Verdict::Drop(DropReason::Metered)) };
            }
            Err(stop) => return Err(stop),
        };
        if let Some(Sought { seen, home, .. }) = &self.seen[at]
            && passage.keeps_flow()
            && !metadata.is_uncacheable
            && metadata.tunnel().is_some() == seen.key.tunnelled().is_some()
        {
            metadata.connection = passage.connection();
            let action = departure.action(metadata);
            let connection = (metadata.connection, tables.connections());
            let kept = self.flows.install(*home, &seen.key, &action, &metadata.sources, connection);
            self.stats.unkept += u64::from(kept.is_err());
            witness.see(at, |_| [narrate::kept(tables, metadata, kept.is_ok())]);
        }
        if !self.passes(at, metadata, now, departure.len(), witness) {
            return Ok(Verdict::Drop(DropReason::Metered));
        }
        self.id = self.id.wrapping_add(1);
        let before = W::LOOKS.then(|| packet.clone());
        let verdict = after::send(packet, frame, metadata, &departure, self.id);
        witness.see(at, |names| {
            let before = before.as_ref().unwrap_or(packet);
            [narrate::leaves(before, frame.outer.into(), packet, &verdict, names)]
        });
        Ok(verdict)
    }

    /// Whether a packet of so many bytes passes the meters of its sender; it is counted for the member of an ECMP group
    /// that it goes to.
    fn passes<W: Witness>(&self, at: usize, metadata: &Metadata, now: u64, bytes: u32, witness: &mut W) -> bool {
        let tables = &*self.tables;
        let mut colours = Colours::default();
        let passes = admit::<W>(tables, metadata.metered, now, bytes, &mut colours);
        witness.see(at, |_| narrate::metered(tables, metadata.metered, &colours));
        if !passes {
            return false;
        }
        if let Some(hop) = metadata.hop.filter(|_| metadata.is_ecmp_member && !W::REHEARSES) {
            tables.count_member(hop, || metadata.sources, self.shard, bytes.into());
        }
        true
    }

    /// What the flow tier found.
    fn tell_flow(
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

    /// Somebody else is behind a port from now on: what it is told of its router begins anew.
    pub fn begin_anew(&mut self, PortId(number): PortId) {
        if let Some(schedule) = self.schedules.get_mut(number as usize) {
            *schedule = Schedule::default();
        }
    }

    /// Appends the router advertisements that are due at `now`, nanoseconds on the clock of [`forward`](Self::forward),
    /// to `out`. `is_up` tells which ports have somebody listening and are this core's to advertise to. To be called at
    /// least every few seconds; more often costs next to nothing.
    pub fn advertise(&mut self, now: u64, mut is_up: impl FnMut(PortId) -> bool, out: &mut Vec<Reply>) {
        if now < self.look {
            return;
        }
        self.look = now.saturating_add(LOOK);
        if let Some(connections) = self.tables.connections() {
            connections.age(now);
        }
        for (number, schedule) in self.schedules.iter_mut().enumerate() {
            let port = PortId(number as u32);
            if !is_up(port) {
                *schedule = Schedule::default();
            } else if schedule.is_due(now, number as u64) {
                out.extend(software::advertisement(&self.tables, port));
            }
        }
    }

    /// Appends to `out` what tells everybody in its network who learns it that the endpoint at `port` is here, where
    /// that was not told in the second before `now`, nanoseconds on the clock of [`forward`](Self::forward).
    pub fn announce(&mut self, now: u64, port: PortId, out: &mut Vec<Reply>) {
        if self.announced.get_mut(port.0 as usize).is_some_and(|bucket| bucket.take(now, ANNOUNCEMENTS)) {
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
