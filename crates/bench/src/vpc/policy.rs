//! Meters and ECMP groups: the small decisions.

use std::hint::black_box;

use softdpu_sched::{Colour, Measure, Meter, Nanos, Rate};
use softdpu_vpc::policy::ecmp::{Ecmp, Member};

use super::{Case, Load};

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    vec![
        Box::new(Simple { name: "policy: meter of RFC 2698", load: || meter(Meter::rfc2698) }),
        Box::new(Simple { name: "policy: meter of RFC 4115", load: || meter(Meter::rfc4115) }),
        Box::new(Simple { name: "policy: ECMP, one of 16", load: select }),
        Box::new(Simple { name: "policy: ECMP, build 16", load: build }),
    ]
}

type MakeLoad = fn() -> Result<Box<dyn Load>, String>;

struct Simple {
    name: &'static str,
    load: MakeLoad,
}

impl Case for Simple {
    fn name(&self) -> String {
        self.name.into()
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        (self.load)()
    }
}

struct Repeat<F>(F, u64);

impl<F: FnMut(u64)> Load for Repeat<F> {
    fn run(&mut self, operations: u64) -> u64 {
        for _ in 0..operations {
            self.1 += 1;
            (self.0)(self.1);
        }
        operations
    }
}

fn meter(new: fn(Rate, Rate, Measure, Nanos) -> Meter) -> Result<Box<dyn Load>, String> {
    let rate = |rate| Rate { rate, burst: 1 << 20 };
    let mut meter = new(rate(1_000_000_000), rate(2_000_000_000), Measure::Bytes, Nanos(0));
    // 1500 bytes every µs: all colours come up.
    let mark = move |at: u64| {
        black_box(meter.mark(Nanos(at * 1_000), 1_500, Colour::Green));
    };
    Ok(Box::new(Repeat(mark, 0)))
}

fn members() -> Vec<Member> {
    (0..16).map(|id| Member { id, weight: 1 + id as u16 % 3, zone: 0, is_healthy: true }).collect()
}

fn select() -> Result<Box<dyn Load>, String> {
    let group = Ecmp::build(&members(), None, 1).map_err(|wrong| wrong.to_string())?;
    let select = move |at: u64| {
        black_box(group.select((at as u32).wrapping_mul(0x9e37_79b1)));
    };
    Ok(Box::new(Repeat(select, 0)))
}

fn build() -> Result<Box<dyn Load>, String> {
    let members = members();
    let build = move |seed| {
        black_box(Ecmp::build(&members, None, seed).is_ok());
    };
    Ok(Box::new(Repeat(build, 0)))
}
