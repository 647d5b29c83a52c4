//! What no flow decides: first packets of flows, packets of stale flows, and those of shapes that flows are not made
//! of. They go through the switch tier in passes, so that what one waits for is fetched while others are worked on.

use super::leases::CoreMeters;
use super::meters::admit;
use super::{FlowLookup, Stage, Vpc};
use crate::nat::Binding;
use crate::packet::Packet;
use crate::paths::Datapath;
use crate::policy::connections::Passage;
use crate::policy::meter::Colours;
use crate::software;
use crate::software::nat::Translation;
use crate::switch::{Ask, Frame, Metadata, Stop, after, before};
use crate::tables::Tables;
use crate::trace::{Tracer, narrate};
use crate::verdict::{DropReason, Verdict};

impl Vpc {
    /// Decides what no flow has decided: through the switch tier, or for the software tier.
    pub(super) fn decide<W: Tracer>(
        &mut self,
        now: u64,
        packets: &mut [Packet],
        verdicts: &mut [Verdict],
        tracer: &mut W,
    ) {
        self.classify(packets, tracer);
        self.find(packets, tracer);
        let mut stages = std::mem::take(&mut self.batch.stages);
        for (at, stage) in &mut stages {
            let at = *at as usize;
            let packet = &mut packets[at];
            let decided = match stage {
                Stage::Found(frame, metadata) => self.ask_and_leave((at, packet), frame, metadata, now, tracer),
                Stage::Stopped(stop) => Err(*stop),
                Stage::Classified(_) => Err(DropReason::Unresolved.into()),
            };
            verdicts[at] = match decided {
                Ok(verdict) => verdict,
                Err(stop) => self.stop((at, packet), stop, now, tracer),
            };
        }
        self.batch.stages = stages;
    }

    /// The first pass: parses and classifies packets. Their look-ups are on their way into the cache.
    fn classify<W: Tracer>(&mut self, packets: &[Packet], tracer: &mut W) {
        let tables = &*self.tables;
        for (at, stage) in &mut self.batch.stages {
            let at = *at as usize;
            let packet = &packets[at];
            let classified = before::classify(tables, packet);
            tracer.record(at, |names| {
                let result = classified.as_ref().map(|(frame, metadata, _)| (frame, metadata));
                narrate::classified(tables, packet, result, names)
            });
            *stage = match classified {
                Ok(classified) => Stage::Classified(classified),
                Err(stop) => Stage::Stopped(stop),
            };
        }
    }

    /// The second pass: finds next hops, which are on their way into the cache.
    fn find<W: Tracer>(&mut self, packets: &[Packet], tracer: &mut W) {
        let tables = &*self.tables;
        for (at, stage) in &mut self.batch.stages {
            if let Stage::Classified((mut frame, mut metadata, destination)) = *stage {
                self.stats.flow += 1;
                let found = before::find(tables, &mut frame, &packets[*at as usize], &mut metadata, &destination);
                tracer.record(*at as usize, |_| narrate::found(tables, &frame, &metadata, found.as_ref()));
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
    }

    /// The third pass, for a packet with a next hop: policies, the flow, and what leaves.
    #[inline]
    fn ask_and_leave<W: Tracer>(
        &mut self,
        (at, packet): (usize, &mut Packet),
        frame: &Frame,
        metadata: &mut Metadata,
        now: u64,
        tracer: &mut W,
    ) -> Result<Verdict, Stop> {
        let passage = match self.tables.has_policies() {
            true => self.ask((at, packet), frame, metadata, now, tracer)?,
            false => Passage::Free,
        };
        let translation = match metadata.crossing {
            None => None,
            Some(crossing) => {
                let binding = if W::REHEARSES { Binding::Peek } else { Binding::Make };
                let of = (frame, &*metadata);
                let translation = software::nat::translate(&self.tables, packet, of, crossing, now, binding);
                let tables = &*self.tables;
                let rewrite = translation.as_ref().map(Translation::rewrite);
                tracer.record(at, |_| [narrate::translated(tables, crossing, rewrite)]);
                Some(translation?)
            }
        };
        let verdict = self.leave((at, packet), frame, metadata, (passage, translation), now, tracer)?;
        let by = if passage == Passage::Free { Datapath::Switch } else { Datapath::Software };
        self.stats.count_decided(&verdict, metadata.endpoint().is_some(), by);
        Ok(verdict)
    }

    /// The third pass, for a packet that goes no further here: it is dropped, or the software tier deals with it.
    fn stop<W: Tracer>(&mut self, (at, packet): (usize, &Packet), stop: Stop, now: u64, tracer: &mut W) -> Verdict {
        let verdict = match stop {
            Stop::Drop(reason) => Verdict::Drop(reason),
            // No service: a router's work, which its sender waits for.
            Stop::Ask(Ask::Fragment(_)) => Verdict::Software,
            Stop::Ask(ask) if self.services.admits(ask, packet.port, now) => Verdict::Software,
            Stop::Ask(_) => {
                tracer.record(at, |names| [narrate::limited(packet, names)]);
                Verdict::Drop(DropReason::RateLimited)
            }
        };
        self.stats.count(&verdict);
        verdict
    }

    /// Puts a packet to the policies of its ends.
    fn ask<W: Tracer>(
        &mut self,
        (at, packet): (usize, &Packet),
        frame: &Frame,
        metadata: &Metadata,
        now: u64,
        tracer: &mut W,
    ) -> Result<Passage, DropReason> {
        let tables = &*self.tables;
        let found = |found| tracer.record(at, |_| [narrate::policy(tables, &found)]);
        let passage = if W::REHEARSES {
            software::policy::ask::<true>(tables, packet, (frame, metadata), now, found)
        } else {
            software::policy::ask::<false>(tables, packet, (frame, metadata), now, found)
        };
        self.stats.policy += u64::from(passage != Ok(Passage::Free));
        tracer.record(at, |_| narrate::asked_policies(passage.as_ref()));
        passage
    }

    /// Keeps the flow of a packet that may go, and lets it leave.
    #[inline]
    fn leave<W: Tracer>(
        &mut self,
        (at, packet): (usize, &mut Packet),
        frame: &Frame,
        metadata: &mut Metadata,
        (passage, translation): (Passage, Option<Translation>),
        now: u64,
        tracer: &mut W,
    ) -> Result<Verdict, Stop> {
        let tables = &*self.tables;
        let checked = after::check(tables, packet, frame, metadata);
        tracer.record(at, |names| narrate::hop(tables, metadata.hop, checked.as_ref().map(|_| ()), names));
        metadata.metered = metadata.endpoint().filter(|id| !tables.meters_of(*id).is_empty());
        let departure = match checked {
            Ok(departure) => departure,
            Err(stop @ Stop::Ask(Ask::Fragment(_))) => {
                // It leaves in pieces, and counts as it came.
                let bytes = frame.parsed.ip().map_or(0, |ip| ip.end);
                let metering = Metering { tables, meters: &mut self.meters, shard: self.shard, now };
                let passes = metadata.endpoint().is_none() || metering.passes(at, metadata, bytes, tracer);
                return if passes { Err(stop) } else { Ok(Verdict::Drop(DropReason::Metered)) };
            }
            Err(stop) => return Err(stop),
        };
        if let Some(FlowLookup { seen, home, .. }) = &self.batch.lookups[at]
            && passage.keeps_flow()
            && !metadata.is_uncacheable
            && metadata.tunnel().is_some() == seen.key.tunnelled().is_some()
            // A flow over IPv6 has no room for other addresses, one without a connection no end.
            && translation.is_none_or(|_| !seen.key.is_ipv6() && passage.connection().is_some())
        {
            metadata.connection = passage.connection();
            let action = departure.action(metadata);
            let connection = (metadata.connection, tables.connections());
            let kept = self.flows.install(*home, &seen.key, &action, &metadata.sources, connection);
            self.stats.unkept += u64::from(kept.is_err());
            if let (Ok(entry), Some(translation)) = (kept, &translation) {
                self.flows.set_rewrite(entry, translation.rewrite());
            }
            tracer.record(at, |_| [narrate::kept(tables, metadata, kept.is_ok())]);
        }
        let metering = Metering { tables, meters: &mut self.meters, shard: self.shard, now };
        if !metering.passes(at, metadata, departure.len(), tracer) {
            return Ok(Verdict::Drop(DropReason::Metered));
        }
        self.id = self.id.wrapping_add(1);
        let before = W::TRACES.then(|| packet.clone());
        let mut verdict = after::send(packet, frame, metadata, &departure, self.id);
        if let Some(translation) = translation {
            after::rewrite_sent(packet, &mut verdict, |frame, sum| translation.apply(frame, sum));
        }
        tracer.record(at, |names| {
            let before = before.as_ref().unwrap_or(packet);
            [narrate::leaves(before, frame.outer.into(), packet, &verdict, names)]
        });
        Ok(verdict)
    }
}

/// A core's part in metering.
struct Metering<'a> {
    tables: &'a Tables,
    meters: &'a mut CoreMeters,
    shard: usize,
    now: u64,
}

impl Metering<'_> {
    /// Whether a packet of so many bytes passes the meters of its sender; it is counted for the member of an ECMP group
    /// that it goes to.
    fn passes<W: Tracer>(self, at: usize, metadata: &Metadata, bytes: u32, tracer: &mut W) -> bool {
        let Metering { tables, meters, shard, now } = self;
        let mut colours = Colours::default();
        let passes = admit::<W>((tables, meters), metadata.metered, now, bytes, &mut colours);
        tracer.record(at, |_| narrate::metered(tables, metadata.metered, &colours));
        if !passes {
            return false;
        }
        if let Some(hop) = metadata.hop.filter(|_| metadata.is_ecmp_member && !W::REHEARSES) {
            tables.count_member(hop, || metadata.sources, shard, bytes.into());
        }
        true
    }
}
