//! The meters of a batch: several packets of one endpoint are put to them at once.

use super::FlowLookup;
use super::follow::connection_continues;
use super::leases::{AT_ONCE, CoreMeters};
use crate::flow::{Candidate, Flows};
use crate::id::EndpointId;
use crate::packet::Packet;
use crate::policy::meter::MeterIds;
use crate::policy::meter::{Colours, MeterCount};
use crate::switch::after;
use crate::tables::{MeteredPort, Tables};
use crate::trace::Tracer;

/// Whether a packet of `bytes` bytes passes the meters of the endpoint `metered`; its colours behind each of them go
/// into `colours`.
#[inline(always)]
pub(super) fn admit<W: Tracer>(
    (tables, meters): (&Tables, &mut CoreMeters),
    metered: Option<EndpointId>,
    now: u64,
    bytes: u32,
    colours: &mut Colours,
) -> bool {
    match metered {
        None => true,
        Some(endpoint) if W::REHEARSES => meters.admit::<true>(tables, tables.meters_of(endpoint), now, bytes, colours),
        Some(endpoint) => meters.admit::<false>(tables, tables.meters_of(endpoint), now, bytes, colours),
    }
}

/// Packets in a row that were put to the meters of one endpoint together, and which of them pass.
///
/// Nearly always all of them do. So the most that they could use is taken from the core's leases at once, and what they
/// did not use is given back when it is known. Only where there is no lease of so much, each packet is put to the
/// node's meters, after it is known that its flow decides it.
#[derive(Debug, Default)]
pub(super) struct MeteredRun {
    /// The first packet's place in the batch, and how many there are.
    first: usize,
    count: usize,
    /// A bit for each packet; where all was taken at once, all ones.
    pass: u64,
    /// The endpoint at the meters, and these.
    metered: EndpointId,
    meters: MeterIds,
    /// There was no lease for packets of this batch.
    is_short: bool,
    /// What was taken at once.
    taken: Option<MeterCount>,
    /// The endpoint at the meters of the packet behind the last that was decided, where that is in no run yet.
    pub wanted: Option<EndpointId>,
}

impl MeteredRun {
    /// Whether the packet at `at` passes the meters of the endpoint `metered`; None where it is not in the run.
    #[inline(always)]
    pub fn passes(&self, at: usize, metered: EndpointId) -> Option<bool> {
        let place = at.wrapping_sub(self.first);
        (place < self.count && self.metered == metered).then_some(self.pass >> (place % AT_ONCE) & 1 == 1)
    }

    /// Gives back what of the amount that was taken at once is above `used`.
    #[inline(always)]
    pub fn settle(&mut self, meters: &mut CoreMeters, used: MeterCount) {
        if let Some(taken) = self.taken.take() {
            meters.settle(self.meters, taken, used);
            self.count = 0;
        }
    }

    /// Takes from the meters of `sender`, which sends the first packet, before anything is decided: nearly always the
    /// first packet's flow is known, and passes these. Entries come into the cache meanwhile.
    #[inline(always)]
    pub fn take_first(
        &mut self,
        shared: (&Tables, &mut CoreMeters),
        sender: MeteredPort,
        now: u64,
        lookups: &[Option<FlowLookup>],
    ) {
        let is_known = |first: &FlowLookup| first.candidate != Candidate::NONE;
        if lookups.first().is_some_and(|first| first.as_ref().is_some_and(is_known)) {
            self.take(shared, sender, now, lookups, 0);
        }
    }

    /// Takes from the leases of the meters of `sender` what the packets from `at` on use if all of those that came by
    /// the same port are decided by flows. Whether there was so much.
    fn take(
        &mut self,
        (tables, meters): (&Tables, &mut CoreMeters),
        sender: MeteredPort,
        now: u64,
        lookups: &[Option<FlowLookup>],
        at: usize,
    ) -> bool {
        let mut most = MeterCount::default();
        let mut port = None;
        for lookup in lookups.iter().skip(at).take(AT_ONCE) {
            let Some(FlowLookup { seen, .. }) = lookup else { break };
            if *port.get_or_insert(seen.key.port()) != seen.key.port() {
                break;
            }
            most.add(seen.end.get().into());
        }
        let MeteredPort { endpoint: metered, meters: ids } = sender;
        if self.is_short || !meters.take(tables, ids, now, most) {
            self.is_short = true;
            return false;
        }
        let count = most.packets as usize;
        let (taken, pass) = (Some(most), u64::MAX);
        *self = MeteredRun { first: at, count, pass, metered, meters: ids, is_short: false, taken, wanted: None };
        true
    }

    /// Puts the packets from `at` on that are of flows of one endpoint to its meters, where they are wanted. Whether
    /// there is a new run.
    #[inline(never)]
    pub fn ask(
        &mut self,
        (tables, meters): (&Tables, &mut CoreMeters),
        flows: &Flows,
        now: u64,
        (packets, lookups): (&[Packet], &[Option<FlowLookup>]),
        at: usize,
    ) -> bool {
        let Some(endpoint) = self.wanted.take() else { return false };
        let sender = MeteredPort { endpoint, meters: tables.meters_of(endpoint) };
        if self.take((tables, meters), sender, now, lookups, at) {
            return true;
        }
        let (mut bytes, mut count, mut metered) = ([0; AT_ONCE], 0, None);
        let run = packets.iter().zip(lookups).skip(at);
        for ((packet, lookup), bytes) in run.zip(&mut bytes) {
            let Some(FlowLookup { seen, candidate, .. }) = lookup else { break };
            let Some(hit) = flows.hit(*candidate, &seen.key) else { break };
            let action = hit.action();
            // A packet that its flow does not decide is metered where it is decided.
            let is_decided = !action.is_translated
                && after::may_follow(tables, seen, &action)
                && action.connection.is_none_or(|slot| {
                    connection_continues::<true>(tables, flows, packet, (seen, 0), (candidate.entry(), slot), now)
                });
            let endpoint = action.origin.metered();
            if !is_decided || endpoint.is_none() || (count > 0 && endpoint != metered) {
                break;
            }
            (*bytes, metered) = (seen.end.get().into(), endpoint);
            count += 1;
        }
        let Some(metered) = metered else { return false };
        let ids = tables.meters_of(metered);
        let pass = meters.mark_all(tables, ids, now, &bytes[..count]);
        *self = MeteredRun { first: at, count, pass, metered, meters: ids, is_short: true, taken: None, wanted: None };
        true
    }
}
