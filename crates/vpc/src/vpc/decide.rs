//! What no flow decides: first packets of flows, packets of stale flows, and those of shapes that flows are not made of.
//! They go through the switch tier in passes, so that what one waits for is fetched while others are worked on.

use std::sync::Arc;

use super::meters::admit;
use super::{FlowLookup, Stage, Vpc};
use crate::packet::Packet;
use crate::paths::Datapath;
use crate::policy::connections::Passage;
use crate::policy::meter::Colours;
use crate::software;
use crate::switch::{Ask, Frame, Metadata, Stop, after, before};
use crate::trace::{Witness, narrate};
use crate::verdict::{DropReason, Verdict};

impl Vpc {
    /// Decides what no flow has decided: through the switch tier, or for the software tier.
    pub(super) fn decide<W: Witness>(
        &mut self,
        now: u64,
        packets: &mut [Packet],
        verdicts: &mut [Verdict],
        witness: &mut W,
    ) {
        let tables = Arc::clone(&self.tables);
        let tables = &*tables;
        let has_policies = tables.has_policies();
        for (at, stage) in &mut self.batch.stages {
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
        for (at, stage) in &mut self.batch.stages {
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
        let mut stages = std::mem::take(&mut self.batch.stages);
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
                    if self.services.admits(ask, packet.port, now) {
                        Verdict::Software
                    } else {
                        witness.see(at, |names| [narrate::limited(packet, names)]);
                        Verdict::Drop(DropReason::RateLimited)
                    }
                }
            };
            self.stats.count(&verdict);
            verdicts[at] = verdict;
        }
        self.batch.stages = stages;
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
        if let Some(FlowLookup { seen, home, .. }) = &self.batch.lookups[at]
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
}
