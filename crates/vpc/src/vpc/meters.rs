//! The meters of a batch: several packets of one endpoint are put to them at once.

use super::FlowLookup;
use super::follow::connection_continues;
use crate::flow::{Candidate, Flows};
use crate::id::EndpointId;
use crate::packet::Packet;
use crate::policy::meter::{AT_ONCE, Colours, MeterCount};
use crate::switch::after;
use crate::tables::Tables;
use crate::trace::Tracer;

/// Whether a packet of `bytes` bytes passes the meters of the endpoint `metered`; its colours behind each of them go
/// into `colours`.
#[inline(always)]
pub(super) fn admit<W: Tracer>(
    tables: &Tables,
    metered: Option<EndpointId>,
    now: u64,
    bytes: u32,
    colours: &mut Colours,
) -> bool {
    match metered {
        None => true,
        Some(endpoint) if W::REHEARSES => tables.admit::<true>(endpoint, now, bytes, colours),
        Some(endpoint) => tables.admit::<false>(endpoint, now, bytes, colours),
    }
}

/// Packets in a row that were put to the meters of one endpoint together, and which of them pass.
///
/// Nearly always all of them do. So the most that they could use is taken from the meters at once, and what they did
/// not use is given back when it is known. Only where the meters have less than that left, each packet is put to them,
/// after it is known that its flow decides it.
#[derive(Debug, Default)]
pub(super) struct MeteredRun {
    /// The first packet's place in the batch, and how many there are.
    first: usize,
    count: usize,
    /// A bit for each packet; where all was taken at once, all ones.
    pass: u64,
    /// The endpoint at the meters.
    metered: EndpointId,
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

    /// Gives back to the meters what of the amount that was taken at once is above `used`.
    #[inline(always)]
    pub fn settle(&mut self, tables: &Tables, used: MeterCount) {
        if let Some(taken) = self.taken.take() {
            tables.settle(self.metered, taken, used);
            self.count = 0;
        }
    }

    /// Takes from the meters of `endpoint`, which sends the first packet, before anything is decided: nearly always the
    /// first packet's flow is known, and passes these. Entries come into the cache meanwhile.
    #[inline(always)]
    pub fn take_first(&mut self, tables: &Tables, endpoint: EndpointId, now: u64, lookups: &[Option<FlowLookup>]) {
        let is_known = |first: &FlowLookup| first.candidate != Candidate::NONE;
        if lookups.first().is_some_and(|first| first.as_ref().is_some_and(is_known)) {
            self.take(tables, endpoint, now, lookups, 0);
        }
    }

    /// Takes from the meters of `endpoint` what the packets from `at` on use if all of those that came by the same port
    /// are decided by flows. Whether the meters had so much.
    fn take(
        &mut self,
        tables: &Tables,
        endpoint: EndpointId,
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
        let is_taken = tables.take(endpoint, now, most);
        if is_taken {
            let count = most.packets as usize;
            *self = MeteredRun { first: at, count, pass: u64::MAX, metered: endpoint, taken: Some(most), wanted: None };
        }
        is_taken
    }

    /// Puts the packets from `at` on that are of flows of one endpoint to its meters, where they are wanted. Whether
    /// there is a new run.
    #[inline(never)]
    pub fn ask(
        &mut self,
        tables: &Tables,
        flows: &Flows,
        now: u64,
        (packets, lookups): (&[Packet], &[Option<FlowLookup>]),
        at: usize,
    ) -> bool {
        let Some(endpoint) = self.wanted.take() else { return false };
        if self.take(tables, endpoint, now, lookups, at) {
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
        let pass = tables.admit_all(metered, now, &bytes[..count]);
        *self = MeteredRun { first: at, count, pass, metered, taken: None, wanted: None };
        true
    }
}
