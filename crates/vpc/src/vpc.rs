//! One core's VPC: the tiers over a batch of frames.

use std::sync::Arc;

use crate::flow::{self, Flows, Line, Seen};
use crate::packet::{Checksum, Head, Packet, Segmentation};
use crate::software;
use crate::software::limit::{Bucket, Limit};
use crate::software::schedule::Schedule;
use crate::stats::Stats;
use crate::switch::{Ask, Metadata, Next, Origin, Stop, after, before};
use crate::tables::Tables;
use crate::verdict::{DropReason, PortId, Reply, Verdict};

/// One core's VPC. Tables are shared and only read; everything else is the core's own.
#[derive(Debug)]
pub struct Vpc {
    tables: Arc<Tables>,
    limit: Limit,
    /// By port number.
    buckets: Vec<Bucket>,
    /// By port number.
    schedules: Vec<Schedule>,
    /// When they are looked at again, nanoseconds.
    look: u64,
    stats: Stats,
    flows: Flows,
    /// Between the passes over a batch; empty between batches, kept for their room. By packet: what its flow is known by.
    seen: Vec<Option<(Seen, Line)>>,
    /// Of the packets that no flow decides.
    stages: Vec<(u32, Stage)>,
    /// Identification of the next outer IPv4 packet.
    id: u16,
}

/// How often it is asked which ports are to be told of their router, nanoseconds.
const LOOK: u64 = 1_000_000_000;

/// How far a frame of a batch has come.
#[derive(Debug)]
enum Stage {
    /// Classified; its look-ups are on their way into the cache.
    Classified(Metadata),
    /// Its next hop's number is known.
    Found(Metadata, Next),
    Stopped(Stop),
}

impl Vpc {
    /// A core's VPC over `tables`.
    pub fn new(tables: Arc<Tables>) -> Vpc {
        let services = tables.services();
        Vpc {
            limit: Limit::new(services.rate, services.burst),
            buckets: vec![Bucket::default(); tables.ports()],
            schedules: vec![Schedule::default(); tables.ports()],
            look: 0,
            tables,
            stats: Stats::default(),
            flows: Flows::new(),
            seen: Vec::new(),
            stages: Vec::new(),
            id: 0,
        }
    }

    /// Goes on with other tables. Counts, and what services have spent, stay.
    pub fn replace(&mut self, tables: Arc<Tables>) {
        let services = tables.services();
        self.limit = Limit::new(services.rate, services.burst);
        self.buckets.resize(tables.ports(), Bucket::default());
        self.schedules.resize(tables.ports(), Schedule::default());
        self.tables = tables;
        self.flows.forget();
    }

    /// The tables it forwards by.
    pub fn tables(&self) -> &Arc<Tables> {
        &self.tables
    }

    /// What it has counted.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Decides what becomes of `packets`, makes their heads what leaves, and appends a verdict for each to `verdicts`. The
    /// time is `now`, nanoseconds on any clock that does not go backwards.
    ///
    /// In passes, so that what one packet waits for is fetched while others are worked on.
    pub fn forward(&mut self, now: u64, packets: &mut [Packet], verdicts: &mut Vec<Verdict>) {
        self.seen.clear();
        let flows = &self.flows;
        self.seen.extend(packets.iter().map(|packet| {
            let seen = flow::see(packet)?;
            let line = flows.line(&seen.key);
            Some((seen, line))
        }));
        self.stages.clear();
        let first = verdicts.len();
        verdicts.reserve(packets.len());
        let mut local = 0;
        for (at, (packet, seen)) in packets.iter_mut().zip(&self.seen).enumerate() {
            if let Some((seen, line)) = seen
                && let Some(action) = self.flows.get(*line, &seen.key)
                && let Some(verdict) = after::follow(&self.tables, packet, seen, action, &mut self.id)
            {
                match verdict {
                    Verdict::Local { .. } => local += 1,
                    other => {
                        self.stats.flow += 1;
                        self.stats.cached += 1;
                        self.stats.count(&other);
                    }
                }
                verdicts.push(verdict);
                continue;
            }
            self.stages.push((at as u32, Stage::Stopped(Stop::Drop(DropReason::Unresolved))));
            verdicts.push(Verdict::Drop(DropReason::Unresolved));
        }
        self.stats.count_local(local);
        if !self.stages.is_empty() {
            self.decide(now, packets, &mut verdicts[first..]);
        }
    }

    /// Decides what no flow has decided: through the switch tier, or for the software tier.
    fn decide(&mut self, now: u64, packets: &mut [Packet], verdicts: &mut [Verdict]) {
        let tables = &*self.tables;
        for (at, stage) in &mut self.stages {
            *stage = match before::classify(tables, &packets[*at as usize]) {
                Ok(metadata) => Stage::Classified(metadata),
                Err(stop) => Stage::Stopped(stop),
            };
        }
        for (_, stage) in &mut self.stages {
            if let Stage::Classified(metadata) = stage {
                self.stats.flow += 1;
                *stage = match before::find(tables, metadata) {
                    Ok(next) => {
                        tables.prefetch_hop(next.hop);
                        Stage::Found(*metadata, next)
                    }
                    Err(stop) => Stage::Stopped(stop),
                };
            }
        }
        for (at, stage) in &self.stages {
            let at = *at as usize;
            let packet = &mut packets[at];
            let stop = match stage {
                Stage::Found(metadata, next) => match after::check(tables, packet, metadata, next) {
                    Ok(departure) => {
                        if let (Some((seen, line)), Origin::Endpoint { .. }) = (&self.seen[at], metadata.from) {
                            self.flows.install(*line, seen.key, departure.action(metadata));
                        }
                        self.id = self.id.wrapping_add(1);
                        let verdict = after::send(packet, metadata, &departure, self.id);
                        self.stats.count(&verdict);
                        verdicts[at] = verdict;
                        continue;
                    }
                    Err(stop) => stop,
                },
                Stage::Stopped(stop) => *stop,
                Stage::Classified(_) => Stop::Drop(DropReason::Unresolved),
            };
            let verdict = match stop {
                Stop::Drop(reason) => Verdict::Drop(reason),
                // No service: a router's work, which its sender waits for.
                Stop::Ask(Ask::Fragment(_)) => Verdict::Software,
                Stop::Ask(_) => {
                    let bucket = self.buckets.get_mut(packet.port.0 as usize);
                    let served = bucket.is_some_and(|bucket| bucket.take(now, self.limit));
                    if served { Verdict::Software } else { Verdict::Drop(DropReason::RateLimited) }
                }
            };
            self.stats.count(&verdict);
            verdicts[at] = verdict;
        }
    }

    /// Somebody else is behind a port from now on: what it is told of its router begins anew.
    pub fn begin_anew(&mut self, PortId(number): PortId) {
        if let Some(schedule) = self.schedules.get_mut(number as usize) {
            *schedule = Schedule::default();
        }
    }

    /// Appends the router advertisements that are due at `now`, nanoseconds on the clock of [`forward`](Self::forward), to
    /// `out`. `is_up` tells which ports have somebody listening and are this core's to advertise to. To be called at least
    /// every few seconds; more often costs next to nothing.
    pub fn advertise(&mut self, now: u64, mut is_up: impl FnMut(PortId) -> bool, out: &mut Vec<Reply>) {
        if now < self.look {
            return;
        }
        self.look = now.saturating_add(LOOK);
        for (number, schedule) in self.schedules.iter_mut().enumerate() {
            let port = PortId(number as u32);
            if !is_up(port) {
                *schedule = Schedule::default();
            } else if schedule.is_due(now, number as u64) {
                out.extend(software::advertisement(&self.tables, port));
            }
        }
    }

    /// Deals with a whole frame that [`forward`](Self::forward) handed to the software tier; appends what is to be sent to
    /// `out`. The verdict is [`Consumed`](Verdict::Consumed), or why the frame was dropped, of which its sender may have been
    /// told.
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
