//! What a decision costs: nanoseconds for [`decide`](TenantScheduler::decide), and for a whole turn (decide, charge, ready), with 1, 4
//! and 1,024 tenants that always have work, beside `fcfs`.
//!
//! `cargo run --release -p softdpu-sched --example decision_cost`

use std::hint::black_box;
use std::time::{Duration, Instant};

use softdpu_sched::{Cost, Decision, Fcfs, Nanos, QueueId, Share, TenantId, TenantScheduler, Weighted, Work};

const TURNS: u32 = 200_000;
const PARTS: u32 = 11;

fn main() {
    println!("{:<10} {:>8} {:>12} {:>14}", "policy", "tenants", "decide, ns", "whole turn, ns");
    for tenants in [1, 4, 1_024] {
        show("fcfs", tenants, Fcfs::new);
        show("weighted", tenants, Weighted::default);
    }
}

fn show<S: TenantScheduler>(name: &str, tenants: u16, policy: impl Fn() -> S) {
    // The median part: other processes disturb some.
    let mut parts: Vec<(f64, f64)> = (0..PARTS).map(|_| measure(policy(), tenants)).collect();
    let mut median = |of: fn(&(f64, f64)) -> f64| {
        parts.sort_by(|a, b| of(a).total_cmp(&of(b)));
        of(&parts[parts.len() / 2])
    };
    println!("{name:<10} {tenants:>8} {:>12.1} {:>14.1}", median(|part| part.0), median(|part| part.1));
}

/// Nanoseconds of a decision and of a turn.
fn measure<S: TenantScheduler>(mut policy: S, tenants: u16) -> (f64, f64) {
    let queue = |tenant: u16| QueueId { tenant: TenantId(tenant), index: tenant.into() };
    let work = Work { units: 64, bytes: 64 * 4_096 };
    for tenant in 0..tenants {
        policy.configure(TenantId(tenant), Share { weight: 1 + u32::from(tenant % 7), ..Share::default() });
        policy.ready(Nanos(0), queue(tenant), work);
        policy.ready(Nanos(0), queue(tenant), work);
    }
    let mut now = 0;
    let mut turn = |decide: &mut Duration, is_timed: bool| {
        let started = is_timed.then(Instant::now);
        let Decision::Run(grant) = black_box(policy.decide(Nanos(now))) else { panic!("there is always work") };
        if let Some(started) = started {
            *decide += started.elapsed();
        }
        let time = Nanos(u64::from(grant.units) * 400);
        now += time.0;
        let bytes = u64::from(grant.units) * 4_096;
        policy.charge(Nanos(now), grant, Cost { units: grant.units, time, bytes, pending: 0 });
        policy.ready(Nanos(now), grant.queue, Work { units: grant.units, bytes });
    };
    let mut none = Duration::ZERO;
    (0..TURNS / 10).for_each(|_| turn(&mut none, false));
    let started = Instant::now();
    (0..TURNS).for_each(|_| turn(&mut none, false));
    let whole = started.elapsed();
    let mut decide = Duration::ZERO;
    (0..TURNS).for_each(|_| turn(&mut decide, true));
    let mut clock = Duration::ZERO;
    for _ in 0..TURNS {
        let started = Instant::now();
        clock += black_box(started).elapsed();
    }
    let each = |time: Duration| time.as_nanos() as f64 / f64::from(TURNS);
    (each(decide.saturating_sub(clock)), each(whole))
}
