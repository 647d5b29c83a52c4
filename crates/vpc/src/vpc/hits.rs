//! The first passes over a batch: each packet's key, its line of the index, its flow, and what that decides. Loops without a call
//! for what nearly all packets are; what is not so is left to those who look closer.

use super::{Sought, Vpc, admit, goes_on};
use crate::flow::{self, Candidate, Flows, Seen};
use crate::packet::Packet;
use crate::switch::after;
use crate::trace::Nobody;
use crate::verdict::Verdict;

/// What the packets' flows are known by, and where they probably are, on their way into the cache.
pub(super) fn look(flows: &Flows, packets: &[Packet], all: &mut Vec<Option<Sought>>) {
    all.resize(packets.len(), None);
    read_keys(flows, packets, all);
    approach(flows, all);
}

#[inline(never)]
fn read_keys(flows: &Flows, packets: &[Packet], all: &mut [Option<Sought>]) {
    for (packet, sought) in packets.iter().zip(all) {
        match flow::see_ipv4(packet) {
            Some(seen) => *sought = Some(seek(flows, seen)),
            None => read_other_key(flows, packet, sought),
        }
    }
}

#[inline(always)]
pub(super) fn seek(flows: &Flows, seen: Seen) -> Sought {
    Sought { seen, home: flows.home(&seen.key), candidate: Candidate::NONE }
}

/// Of a packet that is not of the shape that IPv4 has in flows.
#[inline(never)]
fn read_other_key(flows: &Flows, packet: &Packet, sought: &mut Option<Sought>) {
    *sought = flow::see_ipv6(packet).map(|seen| seek(flows, seen));
}

#[inline(never)]
fn approach(flows: &Flows, all: &mut [Option<Sought>]) {
    for sought in all.iter_mut().flatten() {
        sought.candidate = flows.approach(sought.home);
    }
}

impl Vpc {
    /// Does what their flows decide to packets from the first on, for as long as those are found where they were looked for.
    /// Returns how many; somebody else is to see to the one behind them.
    #[inline(never)]
    pub(super) fn follow_known(
        &mut self,
        now: u64,
        packets: &mut [Packet],
        all: &[Option<Sought>],
        decided: &mut [Verdict],
    ) -> usize {
        let Vpc { tables, flows, id, stats, shard, .. } = self;
        let tables = &**tables;
        let (mut done, mut local) = (0, 0);
        for ((packet, sought), decided) in packets.iter_mut().zip(all).zip(decided) {
            let Some(sought) = sought else { break };
            let Some(hit) = flows.hit(sought.candidate, &sought.seen.key) else { break };
            let action = hit.action();
            if action.connection != flow::NONE
                && !goes_on::<false>(tables, flows, packet, (sought, 0), sought.candidate.entry(), now)
            {
                break;
            }
            let admit = |meter, bytes| admit::<Nobody>(tables, meter, now, bytes);
            if !after::follow(tables, packet, &sought.seen, &action, id, admit, decided) {
                break;
            }
            flows.count(sought.candidate.entry(), sought.seen.len() as u64);
            if action.is_member && !matches!(decided, Verdict::Drop(_)) {
                let sources = || flows.sources(sought.candidate.entry());
                tables.count_member(action.hop, sources, *shard, sought.seen.len() as u64);
            }
            match decided {
                Verdict::Local { .. } => local += 1,
                _ => stats.count_followed(decided, true),
            }
            done += 1;
        }
        stats.count_local(local);
        done
    }
}
