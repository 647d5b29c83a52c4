use softdpu_sched::threads::{Sequence, SloClass, ThreadEvent, ThreadId, ThreadMessage};

use super::*;
use crate::{Consumer, Producer};

fn spec(cores: &[u32]) -> AgentSpec {
    let cores = cores.iter().map(|core| CoreId(*core)).collect();
    AgentSpec { name: "threads".into(), cores, watchdog: Watchdog::THREADS }
}

fn message(number: u64) -> ThreadMessage {
    let (event, core) = (ThreadEvent::Wakeup, CoreId(0));
    ThreadMessage { thread: ThreadId(1), sequence: Sequence(number), event, core, class: SloClass(0) }
}

#[test]
fn a_core_has_one_agent_at_a_time() {
    let mut offload = Offload::new(Backing::Shared);
    let first = offload.start_agent(spec(&[0, 1])).unwrap();
    let taken = OffloadError::CoreTaken { core: CoreId(1), agent: first };
    assert_eq!(offload.start_agent(spec(&[1, 2])), Err(taken.clone()));
    assert!(taken.to_string().contains("core 1 is in the partition of agent 1"));
    offload.kill_agent(first, AgentEnded::Killed).unwrap();
    let second = offload.start_agent(spec(&[1, 2])).unwrap();
    assert_ne!(first, second);
    assert_eq!(offload.state(first), Some(AgentState::Ended(AgentEnded::Killed)));
    assert_eq!(offload.kill_agent(first, AgentEnded::Killed), Err(OffloadError::NoAgent(first)));
    assert_eq!(offload.start_agent(spec(&[])), Err(OffloadError::EmptySpec("threads".into())));
}

#[test]
fn an_agent_sees_only_its_own_queues_and_its_own_cores() {
    let mut offload = Offload::new(Backing::Shared);
    let (first, second) = (offload.start_agent(spec(&[0])).unwrap(), offload.start_agent(spec(&[1])).unwrap());
    let queue = offload.create_queue(first, QueueDirection::ToAgent, 8).unwrap();
    assert_eq!(offload.open_agent_end(second, queue).err(), Some(OffloadError::NoQueue(queue)));
    let other = OffloadError::CoreNotOwned { core: CoreId(1), agent: first };
    assert_eq!(offload.associate_queue(queue, CoreId(1)), Err(other));
    offload.associate_queue(queue, CoreId(0)).unwrap();
    assert_eq!(offload.associated_core(queue), Some(CoreId(0)));
    offload.kill_agent(first, AgentEnded::Killed).unwrap();
    assert_eq!(offload.open_host_end(queue).err(), Some(OffloadError::NoQueue(queue)), "gone with its agent");
}

#[test]
fn a_queue_is_typed_before_it_is_used_and_each_end_is_opened_once() {
    let mut offload = Offload::new(Backing::Shared);
    let agent = offload.start_agent(spec(&[0])).unwrap();
    assert_eq!(offload.create_queue(agent, QueueDirection::ToHost, 0), Err(OffloadError::Capacity(0)));
    let queue = offload.create_queue(agent, QueueDirection::ToHost, 8).unwrap();
    offload.set_queue_type(queue, QueueType::DmaSync).unwrap();
    offload.open_host_end(queue).unwrap();
    assert_eq!(offload.open_host_end(queue).err(), Some(OffloadError::InUse(queue)));
    assert_eq!(offload.set_queue_type(queue, QueueType::Mmio), Err(OffloadError::InUse(queue)));
    offload.destroy_queue(queue).unwrap();
    assert_eq!(offload.destroy_queue(queue), Err(OffloadError::NoQueue(queue)));
}

#[test]
fn queues_of_every_type_and_backing_carry_both_ways() {
    let link = |step| {
        let (host, dpu) = (Ledger::default(), Ledger::default());
        Backing::Link { costs: LinkCosts::WAVE, step, host, dpu }
    };
    let mut backings = vec![Backing::Shared];
    backings.extend(LinkStep::ALL.map(link));
    for backing in backings {
        let mut offload = Offload::new(backing.clone());
        let agent = offload.start_agent(spec(&[0])).unwrap();
        for kind in [QueueType::Mmio, QueueType::DmaSync, QueueType::DmaAsync] {
            for direction in [QueueDirection::ToAgent, QueueDirection::ToHost] {
                let queue = offload.create_queue(agent, direction, 4).unwrap();
                offload.set_queue_type(queue, kind).unwrap();
                let (host, capacity) = offload.open_host_end(queue).unwrap();
                let (other, _) = offload.open_agent_end(agent, queue).unwrap();
                let (producing, consuming) =
                    if direction == QueueDirection::ToAgent { (host, other) } else { (other, host) };
                let mut producer = Producer::new(producing, capacity).unwrap();
                let mut consumer = Consumer::<ThreadMessage, _>::new(consuming, capacity).unwrap();
                let mut found = Vec::new();
                for number in 0..20 {
                    assert_eq!(producer.send(&[message(number)]), Ok(1), "{backing:?} {kind:?} {direction:?}");
                    if let Backing::Link { host, dpu, .. } = &backing {
                        host.spend(10_000);
                        dpu.spend(10_000);
                    }
                    consumer.poll(&mut found, 9).unwrap();
                }
                let numbers: Vec<u64> = found.iter().map(|message| message.sequence.0).collect();
                assert_eq!(numbers, (0..20).collect::<Vec<_>>(), "{backing:?} {kind:?} {direction:?}");
            }
        }
    }
}

#[test]
fn the_watchdog_ends_an_agent_that_leaves_work_undecided_and_frees_its_cores() {
    let mut offload = Offload::new(Backing::Shared);
    let agent = offload.start_agent(spec(&[0])).unwrap();
    for ms in 0..1_000 {
        offload.watch(agent, Nanos(ms * 1_000_000), 0, false).unwrap();
    }
    offload.watch(agent, Nanos(2_000_000_000), 1, false).unwrap();
    offload.watch(agent, Nanos(2_021_000_000), 1, false).unwrap();
    let ended = AgentState::Ended(AgentEnded::Undecided(Nanos(21_000_000)));
    assert_eq!(offload.state(agent), Some(ended));
    assert_eq!(offload.watch(agent, Nanos(0), 1, false), Err(OffloadError::NoAgent(agent)));
    offload.start_agent(spec(&[0])).unwrap();
}
