//! Tenants that hand operations over to one engine on one core, policy by policy: the first floods it with large
//! requests, the others have small ones, a few at a time.
//!
//! Who hands over and the engine take turns on that core: whatever has ended is handed over again before the engine has
//! its next slice. All of them encrypt, AES-256-XTS over sectors of 4096 bytes.

use std::fmt::Write as _;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hdrhistogram::Histogram;
use softdpu_accel::{Done, Kind, Operation, Request, Service, Xts};
use softdpu_sched::{Nanos, Policy, Scheduler, Share, TenantId};
use softdpu_sys::clock;

use crate::side_by_side::{Figure, on_cpu, spread};

/// Bytes of a request of the first tenant.
const LARGE: usize = 64 << 10;
/// Its requests that are handed over and have not ended.
const FLOOD: usize = 64;
/// Bytes of a request of the others.
const SMALL: usize = 4 << 10;
/// What the engine runs for before those who hand over are looked at, nanoseconds.
const SLICE: Nanos = Nanos(8_000);
/// Longest wait told apart, nanoseconds.
const LONGEST: u64 = 60_000_000_000;

/// What to measure, how often and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many tenants, two at least.
    pub tenants: u16,
    /// Requests that each but the first has handed over at a time.
    pub depth: usize,
    /// Rounds, in each of which every policy is measured once.
    pub rounds: usize,
    /// Length of one measurement.
    pub length: Duration,
    /// The core.
    pub cpu: usize,
}

/// What a tenant had of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Had {
    /// Bytes a second.
    pub rate: f64,
    /// Its part of the time that the engine worked.
    pub share: f64,
    /// What its requests waited until the engine began with them, 99th percentile, nanoseconds.
    pub wait: f64,
}

/// One tenant with one policy.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The policy's name.
    pub policy: &'static str,
    /// The tenant's number, and what it asks for.
    pub tenant: String,
    /// One for each round.
    pub rounds: Vec<Had>,
}

/// Everything that was measured: policy by policy, tenants in order.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In that order.
    pub measurements: Vec<Measurement>,
}

/// What a tenant has on its way, and what came of it.
struct Client {
    len: usize,
    /// When each request was handed over, by its token; what is free again.
    since: Vec<u64>,
    idle: Vec<Request>,
    bytes: u64,
    time: u64,
    waits: Histogram<u64>,
}

impl Client {
    fn new(tenant: TenantId, len: usize, depth: usize, key: &Arc<Xts>) -> Result<Client, String> {
        let operation = Operation::Encrypt { key: Arc::clone(key), offset: 0 };
        let request = |token| Request { tenant, token, operation: operation.clone(), data: vec![tenant.0 as u8; len] };
        let waits = Histogram::new_with_bounds(1, LONGEST, 3).map_err(|error| error.to_string())?;
        let idle = (0..depth as u64).map(request).collect();
        Ok(Client { len, since: vec![0; depth], idle, bytes: 0, time: 0, waits })
    }

    fn forget(&mut self) {
        (self.bytes, self.time) = (0, 0);
        self.waits.reset();
    }
}

/// Tenants, and the engine that they share.
struct Shared {
    service: Service<Scheduler>,
    clients: Vec<Client>,
    operation: Operation,
    done: Vec<Done>,
}

impl Shared {
    fn new(policy: &Policy, plan: &Plan) -> Result<Shared, String> {
        let key = Xts::new(&(1..=64).collect::<Vec<u8>>(), 4096).map(Arc::new).map_err(|error| error.to_string())?;
        let mut service = Service::new(Kind::Crypto, policy.build());
        let mut clients = Vec::new();
        for number in 0..plan.tenants {
            service.configure(TenantId(number), Share::default());
            let (len, depth) = if number == 0 { (LARGE, FLOOD) } else { (SMALL, plan.depth) };
            clients.push(Client::new(TenantId(number), len, depth, &key)?);
        }
        let operation = Operation::Encrypt { key, offset: 0 };
        Ok(Shared { service, clients, operation, done: Vec::new() })
    }

    /// Hands over and works for so long. What was counted before is forgotten. How long it was, seconds.
    fn run(&mut self, length: Duration) -> Result<f64, String> {
        self.clients.iter_mut().for_each(Client::forget);
        let began = clock::now();
        let until = began.saturating_add(length.as_nanos() as u64);
        loop {
            let now = clock::now();
            if now >= until {
                return Ok((now - began) as f64 / 1e9);
            }
            for client in &mut self.clients {
                while let Some(request) = client.idle.pop() {
                    client.since[request.token as usize] = now;
                    self.service.submit(Nanos(now), request).map_err(|refused| refused.to_string())?;
                }
            }
            self.work(now)?;
        }
    }

    fn work(&mut self, now: u64) -> Result<(), String> {
        let Shared { service, clients, operation, done } = self;
        let mut began = None;
        let clock = || {
            let now = clock::now();
            began.get_or_insert(now);
            Nanos(now)
        };
        let _ = service.run(SLICE, clock, done);
        let mut before = began.unwrap_or(now);
        // One after the other, without a pause: each began when the one before it ended.
        for Done { tenant, token, result, data, took } in done.drain(..) {
            result.map_err(|failure| failure.to_string())?;
            let client = &mut clients[usize::from(tenant.0)];
            client.bytes += client.len as u64;
            client.time += took.0;
            let wait = before.saturating_sub(client.since[token as usize]);
            client.waits.saturating_record(wait.max(1));
            before += took.0;
            client.idle.push(Request { tenant, token, operation: operation.clone(), data });
        }
        Ok(())
    }
}

/// Measures what `plan` says with `fcfs` and `weighted`, taking turns; `progress` is told the name of each before it
/// runs for the first time.
///
/// # Errors
/// A sentence for the user: a plan that makes no sense, a CPU that can't be used.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str) + Send) -> Result<Report, String> {
    if plan.tenants < 2 {
        return Err(format!("--tenants {}: one floods and others have a few requests, so at least 2", plan.tenants));
    }
    if !(1..=softdpu_accel::CHANNEL).contains(&plan.depth) {
        return Err(format!("--depth {}: expected 1 to {}", plan.depth, softdpu_accel::CHANNEL));
    }
    let policies = [Policy::Fcfs, Policy::default()];
    let measure = || {
        let mut report = Report::default();
        for policy in &policies {
            for number in 0..plan.tenants {
                let (size, depth) = if number == 0 { (LARGE, FLOOD) } else { (SMALL, plan.depth) };
                let tenant = format!("t{number}, {depth} of {}k", size >> 10);
                report.measurements.push(Measurement { policy: policy.name(), tenant, rounds: Vec::new() });
            }
        }
        for round in 0..plan.rounds.max(1) {
            for (policy, measurements) in policies.iter().zip(report.measurements.chunks_mut(plan.tenants.into())) {
                if round == 0 {
                    progress(policy.name());
                }
                let mut shared = Shared::new(policy, plan)?;
                shared.run(plan.length / 10)?;
                let seconds = shared.run(plan.length)?;
                let worked: u64 = shared.clients.iter().map(|client| client.time).sum();
                for (client, measurement) in shared.clients.iter().zip(measurements) {
                    measurement.rounds.push(Had {
                        rate: client.bytes as f64 / seconds,
                        share: client.time as f64 / worked.max(1) as f64,
                        wait: client.waits.value_at_quantile(0.99) as f64,
                    });
                }
            }
        }
        Ok(report)
    };
    on_cpu(plan.cpu, |wrong| wrong, measure)
}

impl Measurement {
    /// Median, least and most of one of its figures.
    fn spread(&self, of: impl Fn(&Had) -> f64) -> (f64, f64, f64) {
        spread(&self.rounds.iter().map(of).collect::<Vec<_>>())
    }
}

impl Report {
    /// For people.
    pub fn table(&self) -> String {
        let mut table = format!(
            "{:<10} {:<16} {:>8} {:>7} {:>9} {:>19}\n",
            "POLICY", "TENANT", "MB/s", "SHARE", "P99 us", "min - max"
        );
        for measurement in &self.measurements {
            let Measurement { policy, tenant, .. } = measurement;
            let [rate, share] = [measurement.spread(|had| had.rate).0 / 1e6, measurement.spread(|had| had.share).0];
            let (wait, least, most) = measurement.spread(|had| had.wait / 1e3);
            let range = format!("{least:.1} - {most:.1}");
            // Writing to a String cannot fail.
            let _ = writeln!(table, "{policy:<10} {tenant:<16} {rate:>8.1} {share:>7.3} {wait:>9.1} {range:>19}");
        }
        table
    }

    /// For programs: a JSON object a line.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        for measurement in &self.measurements {
            let mut line = |metric, unit, value| {
                let (subject, case) = (measurement.policy, &*measurement.tenant);
                Figure { bench: "accel-tenants", subject, case, metric, unit, value }.write(to)
            };
            line("rate", "B/s", measurement.spread(|had| had.rate).0)?;
            line("share", "1", measurement.spread(|had| had.share).0)?;
            let (median, least, most) = measurement.spread(|had| had.wait);
            for (metric, value) in [("wait-p99", median), ("wait-p99-min", least), ("wait-p99-max", most)] {
                line(metric, "ns", value)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAN: Plan = Plan { tenants: 3, depth: 1, rounds: 2, length: Duration::from_millis(40), cpu: 0 };

    #[test]
    fn every_tenant_is_told_of_with_each_policy() {
        let mut told = Vec::new();
        let report = run(&PLAN, |name| told.push(name.to_owned())).unwrap();
        assert_eq!((report.measurements.len(), told), (6, vec!["fcfs".to_owned(), "weighted".to_owned()]));
        for of_one in report.measurements.chunks(3) {
            for round in 0..2 {
                let had: Vec<Had> = of_one.iter().map(|measurement| measurement.rounds[round]).collect();
                assert!((had.iter().map(|had| had.share).sum::<f64>() - 1.0).abs() < 1e-9, "{had:?}");
                assert!(had.iter().all(|had| had.rate > 0.0 && had.wait > 0.0), "{had:?}");
            }
        }
        assert!(report.table().contains("t1, 1 of 4k"));
        let mut json = Vec::new();
        report.write_json(&mut json).unwrap();
        assert_eq!(String::from_utf8(json).unwrap().lines().count(), 6 * 5);
    }

    #[test]
    fn small_requests_wait_less_by_weight_than_first_come_first_served() {
        let report = run(&PLAN, |_| ()).unwrap();
        // The best of the rounds: the machine may do other things.
        let wait = |at: usize| report.measurements[at].spread(|had| had.wait).1;
        assert!(wait(4) < 0.7 * wait(1), "{} of {} ns", wait(4), wait(1));
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for plan in [Plan { tenants: 1, ..PLAN }, Plan { depth: 0, ..PLAN }, Plan { depth: 257, ..PLAN }] {
            assert!(run(&plan, |_| ()).is_err());
        }
    }
}
