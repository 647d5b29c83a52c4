//! What a flow decides of one packet, wherever that came from; and the meters of many, asked at once.

use super::{Sought, Vpc};
use crate::flow::{self, Action, Candidate, FlowIndex, Flows, Seen};
use crate::id::EndpointId;
use crate::packet::Packet;
use crate::policy::conntrack::ConnectionSlot;
use crate::policy::meter::{AT_ONCE, Colours, MeterCount};
use crate::switch::{Outer, after};
use crate::tables::Tables;
use crate::trace::Witness;
use crate::verdict::Verdict;

/// Whether a packet of `bytes` bytes passes the meters of the endpoint `metered`; its colours behind each of them go
/// into `colours`.
#[inline(always)]
pub(super) fn admit<W: Witness>(
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

/// Whether a flow of a connection decides this packet of it, and nobody else is asked. What may end the connection
/// closes the gate for both directions, before anything behind it is decided. The packet begins with `outer` bytes of
/// outer headers. With `REHEARSES` nothing is closed.
#[inline(never)]
fn goes_on<const REHEARSES: bool>(
    tables: &Tables,
    flows: &Flows,
    packet: &Packet,
    (seen, outer): (&Seen, u16),
    (entry, slot): (FlowIndex, ConnectionSlot),
    now: u64,
) -> bool {
    let Some(connections) = tables.connections() else { return false };
    if flow::may_end(packet, seen, outer.into()) {
        if !REHEARSES {
            connections.close(slot);
        }
        return false;
    }
    connections.is_open(flows.connection(entry, slot), now)
}

/// What packets of flows are decided with.
pub(super) struct Follower<'a> {
    pub tables: &'a Tables,
    pub flows: &'a mut Flows,
    pub id: &'a mut u16,
    pub shard: usize,
    pub now: u64,
}

impl Follower<'_> {
    /// Does to a packet what its flow, in `entry`, decides, if `admit` lets it pass; `came` is what its outer headers
    /// say, where it came by a tunnel. False, and nothing has happened to it, where it needs a decision of its own.
    /// With `REHEARSES` nobody else hears of it.
    #[inline(always)]
    pub fn follow<const REHEARSES: bool>(
        &mut self,
        packet: &mut Packet,
        seen: &Seen,
        came: Option<&Outer>,
        (entry, action): (FlowIndex, &Action),
        admit: impl FnOnce(Option<EndpointId>, u32) -> bool,
        decided: &mut Verdict,
    ) -> bool {
        let Follower { tables, flows, id, shard, now } = self;
        let outer = came.map_or(0, |came| came.len);
        if let Some(slot) = action.connection
            && !goes_on::<REHEARSES>(tables, flows, packet, (seen, outer), (entry, slot), *now)
        {
            return false;
        }
        let is_decided = match came {
            Some(came) => after::follow_tunnelled(tables, packet, seen, came, action, id, decided),
            None => after::follow(tables, packet, seen, action, id, admit, decided),
        };
        if !is_decided {
            return false;
        }
        flows.count(entry, seen.len() as u64);
        if action.is_ecmp_member && !REHEARSES && !matches!(decided, Verdict::Drop(_)) {
            tables.count_member(action.hop, || flows.sources(entry), *shard, seen.len() as u64);
        }
        true
    }
}

/// Which packets of a batch pass their meters: of some in a row.
///
/// Nearly always all of them do. So what they could use at the most is taken from the meters at once, and what they did
/// not use is given back when it is known; only where there is not so much left is it asked of each of them first
/// whether its flow decides it.
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// The first packet's place in the batch, and how many there are.
    first: usize,
    count: usize,
    /// A bit for each; of what was taken at once all.
    pass: u64,
    /// The endpoint whose meters were asked.
    metered: EndpointId,
    /// What was taken at once.
    taken: Option<MeterCount>,
    /// The endpoint whose meters are to be asked about the packet behind the last that was decided.
    pub wanted: Option<EndpointId>,
}

impl Marks {
    /// Whether the packet at `at` passes the meters of the endpoint `metered`; None where they were not asked.
    #[inline(always)]
    pub fn of(&self, at: usize, metered: EndpointId) -> Option<bool> {
        let place = at.wrapping_sub(self.first);
        (place < self.count && self.metered == metered).then_some(self.pass >> (place % AT_ONCE) & 1 == 1)
    }

    /// Of what was taken at once, `used` was.
    #[inline(always)]
    pub fn settle(&mut self, tables: &Tables, used: MeterCount) {
        if let Some(taken) = self.taken.take() {
            tables.settle(self.metered, taken, used);
            self.count = 0;
        }
    }
}

impl Vpc {
    /// Asks the meters about the packets from `at` on that are of flows of one endpoint, if they are to be asked.
    /// Whether they were.
    #[inline(always)]
    pub(super) fn mark(&mut self, now: u64, packets: &[Packet], all: &[Option<Sought>], at: usize) -> bool {
        match self.marks.wanted.take() {
            Some(endpoint) => self.take(endpoint, now, all, at) || self.mark_all(now, packets, all, at),
            None => false,
        }
    }

    /// Takes from the meters of `endpoint`, which sends the first packet, before anything is decided: nearly always the
    /// first packet's flow is known, and passes these. While they are asked, entries come into the cache.
    #[inline(always)]
    pub(super) fn take_first(&mut self, endpoint: EndpointId, now: u64, all: &[Option<Sought>]) {
        if all.first().is_some_and(|first| first.as_ref().is_some_and(|first| first.candidate != Candidate::NONE)) {
            self.take(endpoint, now, all, 0);
        }
    }

    /// Takes from the meters of `endpoint` what the packets from `at` on use if all of those that came by the same port
    /// are decided by flows. Whether there was so much.
    fn take(&mut self, endpoint: EndpointId, now: u64, all: &[Option<Sought>], at: usize) -> bool {
        let mut most = MeterCount::default();
        let mut port = None;
        for sought in all.iter().skip(at).take(AT_ONCE) {
            let Some(Sought { seen, .. }) = sought else { break };
            if *port.get_or_insert(seen.key.port()) != seen.key.port() {
                break;
            }
            most.add(seen.end.get().into());
        }
        let is_taken = self.tables.take(endpoint, now, most);
        if is_taken {
            let count = most.packets as usize;
            self.marks = Marks { first: at, count, pass: u64::MAX, metered: endpoint, taken: Some(most), wanted: None };
        }
        is_taken
    }

    #[inline(never)]
    fn mark_all(&mut self, now: u64, packets: &[Packet], all: &[Option<Sought>], at: usize) -> bool {
        let Vpc { tables, flows, marks, .. } = self;
        let (mut bytes, mut count, mut metered) = ([0; AT_ONCE], 0, None);
        let row = packets.iter().zip(all).skip(at);
        for ((packet, sought), bytes) in row.zip(&mut bytes) {
            let Some(Sought { seen, candidate, .. }) = sought else { break };
            let Some(hit) = flows.hit(*candidate, &seen.key) else { break };
            let action = hit.action();
            // What a flow does not decide is metered by who decides it.
            let is_decided = after::may_follow(tables, seen, &action)
                && action.connection.is_none_or(|slot| {
                    goes_on::<true>(tables, flows, packet, (seen, 0), (candidate.entry(), slot), now)
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
        *marks = Marks { first: at, count, pass, metered, taken: None, wanted: None };
        true
    }
}
