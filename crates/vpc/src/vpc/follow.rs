//! What a flow decides of one packet, from a port or from a tunnel.

use crate::flow::{self, Action, FlowIndex, Flows, Seen};
use crate::id::EndpointId;
use crate::nat::Layout;
use crate::packet::Packet;
use crate::policy::conntrack::ConnectionSlot;
use crate::switch::{Outer, after};
use crate::tables::Tables;
use crate::verdict::Verdict;

/// Whether a flow of a connection decides this packet, and connection tracking is not asked. A packet that may end the
/// connection closes the gate for both directions, before any packet behind it is decided. The packet begins with
/// `outer` bytes of outer headers. With `REHEARSES` nothing is closed.
#[inline(never)]
pub(super) fn connection_continues<const REHEARSES: bool>(
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
    /// As [`follow_any`](Self::follow_any), for flows that are not translated.
    #[inline(always)]
    pub fn follow<const REHEARSES: bool>(
        &mut self,
        packet: &mut Packet,
        seen: &Seen,
        came: Option<&Outer>,
        flow: (FlowIndex, &Action),
        admit: impl FnOnce(Option<EndpointId>, u32) -> bool,
        decided: &mut Verdict,
    ) -> bool {
        self.follow_any::<REHEARSES, false>(packet, seen, came, flow, admit, decided)
    }

    /// As [`follow_any`](Self::follow_any), for flows that may be translated.
    #[inline(never)]
    pub fn follow_translated<const REHEARSES: bool>(
        &mut self,
        packet: &mut Packet,
        seen: &Seen,
        came: Option<&Outer>,
        flow: (FlowIndex, &Action),
        admit: impl FnOnce(Option<EndpointId>, u32) -> bool,
        decided: &mut Verdict,
    ) -> bool {
        let is_decided = self.follow_any::<REHEARSES, true>(packet, seen, came, flow, admit, decided);
        if is_decided && flow.1.is_translated {
            let rewrite = self.flows.rewrite(flow.0);
            after::rewrite_sent(packet, decided, |frame, sum| {
                rewrite.apply(frame, &Layout::plain(frame, seen.key.is_ipv6())?, sum)
            });
        }
        is_decided
    }

    /// Does to a packet what its flow, in `entry`, decides, if `admit` lets it pass; `came` is what its outer headers
    /// say, where it came by a tunnel. False, and nothing has happened to it, where it needs a decision of its own.
    /// With `REHEARSES` nothing is counted for others.
    #[inline(always)]
    fn follow_any<const REHEARSES: bool, const TRANSLATES: bool>(
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
        // What is translated is left to `follow_translated`.
        if let Some(slot) = action.connection
            && (action.is_translated && !TRANSLATES
                || !connection_continues::<REHEARSES>(tables, flows, packet, (seen, outer), (entry, slot), *now))
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
