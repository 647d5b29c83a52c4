//! Losses and round trips through softdpu as a gateway (Zephyrus §5.1, figure 7): an open loop at a rate, a far end
//! that swaps the five-tuple, with the flow tier and without it.
//!
//! ```text
//!  Near ── numbered frames, at a rate ──▶ ┌─────────┐ ──▶ Far
//!     ◀── round trips, by number ──────── │ softdpu │ ◀── five-tuple swapped
//!                                         └─────────┘
//! ```
//!
//! Both ends are on one CPU: guests' drivers over vhost-user, or the hosts of two sites whose frames come and go by
//! VXLAN, in a network namespace. A frame that finds the sender's queue full is lost, as is one whose answer does not
//! come. A sender that was itself held up, by another process on its CPU, does not catch up: it would measure the
//! burst.

mod ends;
mod guests;
mod report;
mod search;
mod sites;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use hdrhistogram::Histogram;
use softdpu_frontend::{Format, FrontEndError, NetFrontEnd, NetOptions, Station};
use softdpu_sys::clock;
use thiserror::Error;

use self::ends::Ends;
use self::guests::Guests;
use self::search::{FIRST, Trial, bracket, sustain};
use self::sites::Sites;
use crate::SetupError;
use crate::net::wire::{FAR_ADDRESS, NEAR, NEAR_ADDRESS, OTHER_ADDRESS, Wire};
use crate::process::Server;
use crate::scratch::Folder;
use crate::side_by_side::on_cpu;
use crate::subject::quoted;

pub use report::{GatewayReport, Measured};
pub use search::NoDropRate;

/// Descriptors of a queue: the most there are by default.
const QUEUE: u16 = 1024;
/// Frames handled before the other end gets its turn.
const BATCH: usize = 32;
/// Frames that a sender catches up at the most.
const BEHIND: u64 = 64;
/// How long an answer may take.
const SILENCE: u64 = 200_000_000;
/// Longest round trip told apart, nanoseconds.
const LONGEST: u64 = 1_000_000_000;
/// How long a step of the search for a rate takes at the most, seconds.
const LONGEST_STEP: f64 = 10.0;
/// For how long a rate has to be without losses in the end, seconds: queues on the way take what is too much for
/// shorter. RFC 2544 §24 wants a minute.
const SUSTAINED: f64 = 60.0;
/// The share of the highest rate without losses at which is measured.
const SHARE: f64 = 0.8;
/// Numbers of frames whose times are known: more than can be on their way.
const TIMES: usize = 1 << 16;

/// How often a first frame is sent before none is expected to be answered, [`SILENCE`] apart.
const KNOCKS: u32 = 50;

/// What both ends are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// Two guests of the host.
    Guests,
    /// Two sites, and the host has no guests: a veth pair in a network namespace, which takes root.
    Sites,
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// softdpu.
    pub program: PathBuf,
    /// What the frames go between.
    pub between: Between,
    /// Frames of a measurement.
    pub packets: u64,
    /// Flows they belong to.
    pub flows: u16,
    /// Frames of a step of the search for a rate.
    pub probe: u64,
    /// CPU of both ends.
    pub client_cpu: usize,
    /// CPU of the server.
    pub server_cpu: usize,
}

impl Plan {
    /// What comes next, and how long it takes: a machine that does few frames a second takes long for many.
    fn announce(&self, how: &str, rate: f64) -> String {
        let (packets, seconds) = (self.packets, self.packets as f64 / rate);
        format!("losses {how} the flow tier: {packets} frames at {rate:.0} a second, {seconds:.0} s")
    }
}

/// What came of frames at a rate.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The rate at which frames were to be sent, frames a second.
    pub rate: f64,
    /// Frames that were.
    pub sent: u64,
    /// Those without an answer.
    pub lost: u64,
    /// Of these, the ones that found the sender's queue full: softdpu did not get to them in time, and lost none.
    pub refused: u64,
    /// Steal time of the server's CPU meanwhile (`/proc/stat`, in ticks of 10 ms).
    pub stolen: Duration,
    /// Round trips, nanoseconds.
    pub round_trips: Histogram<u64>,
    /// How often the sender was held up.
    pub held_up: u64,
}

/// Why a measurement ended early.
#[derive(Debug, Error)]
pub enum GatewayError {
    /// A front end.
    #[error(transparent)]
    FrontEnd(#[from] FrontEndError),
    /// Something else arrived.
    #[error("a frame arrived that is no answer to one that was sent")]
    Strange,
    /// No rate does without losses.
    #[error("frames are lost at every rate that was tried")]
    Lossy,
    /// Not possible here.
    #[error("{0}")]
    Setup(String),
}

/// softdpu, and both ends.
struct Bench {
    ends: Box<dyn Ends>,
    sequence: u64,
    times: Vec<u64>,
    server_cpu: usize,
    _server: Server,
    _wire: Option<Wire>,
    _folder: Folder,
}

/// Searches the highest rate without losses with the flow tier, and sends at a share of it with it and without.
///
/// # Errors
/// [`SetupError`].
pub fn run(plan: &Plan, mut progress: impl FnMut(&str) + Send) -> Result<GatewayReport, SetupError> {
    let failed = |case: &'static str| {
        move |source: GatewayError| SetupError::Load {
            subject: "softdpu".into(),
            case: case.into(),
            source: Box::new(source),
        }
    };
    let mut with = Bench::start(plan, true)?;
    progress("the highest rate without losses, with the flow tier");
    let highest =
        on_cpu(plan.client_cpu, GatewayError::Setup, || with.highest(plan, &mut progress)).map_err(failed("search"))?;
    let rate = highest.rate() * SHARE;
    progress(&plan.announce("with", rate));
    let cached = on_cpu(plan.client_cpu, GatewayError::Setup, || with.trial(rate, plan.packets));
    let cached = cached.map_err(failed("with the flow tier"))?;
    drop(with);
    let mut without = Bench::start(plan, false)?;
    progress("the highest rate without losses, without the flow tier");
    let other = on_cpu(plan.client_cpu, GatewayError::Setup, || without.highest(plan, &mut progress))
        .map_err(failed("search"))?;
    progress(&plan.announce("without", rate));
    let decided = on_cpu(plan.client_cpu, GatewayError::Setup, || without.trial(rate, plan.packets));
    let decided = decided.map_err(failed("without the flow tier"))?;
    Ok(GatewayReport {
        between: plan.between,
        flows: plan.flows,
        with: Measured { no_drop: highest, outcome: cached },
        without: Measured { no_drop: other, outcome: decided },
    })
}

impl Bench {
    fn start(plan: &Plan, flow_tier: bool) -> Result<Bench, SetupError> {
        let folder = Folder::new().map_err(|error| SetupError::Folder(error.to_string()))?;
        let sockets = ["a.sock", "b.sock"].map(|name| folder.path().join(name));
        let (site, text) = (folder.path().join("site.toml"), self::site(plan, flow_tier, &sockets));
        std::fs::write(&site, text).map_err(|error| SetupError::Folder(format!("{}: {error}", site.display())))?;
        let failed = |source: Box<dyn std::error::Error + Send + Sync>| SetupError::Load {
            subject: "softdpu".into(),
            case: "setting up".into(),
            source,
        };
        let arguments = ["run", "site.toml"].map(str::to_owned);
        let (ends, server, wire): (Box<dyn Ends>, _, _) = match plan.between {
            Between::Guests => {
                let mut server = Server::start("softdpu", &plan.program, &arguments, folder.path(), None)?;
                server.until("its sockets", || sockets.iter().all(|socket| socket.exists()).then_some(()))?;
                let guests = Bench::guests(&sockets, plan.flows).map_err(|error| failed(error.into()))?;
                (Box::new(guests), server, None)
            }
            Between::Sites => {
                let wire = Wire::new()?;
                let (program, arguments) = wire.enter(&plan.program, &arguments, folder.path());
                let server = Server::start("softdpu", &program, arguments, folder.path(), None)?;
                let sites = Sites::new(&wire, plan.flows).map_err(|error| failed(error.into()))?;
                (Box::new(sites), server, Some(wire))
            }
        };
        let times = vec![0; TIMES];
        let mut bench = Bench {
            ends,
            sequence: 0,
            times,
            server_cpu: plan.server_cpu,
            _server: server,
            _wire: wire,
            _folder: folder,
        };
        bench.knock().map_err(|error| failed(error.into()))?;
        Ok(bench)
    }

    fn guests(sockets: &[PathBuf; 2], flows: u16) -> Result<Guests, FrontEndError> {
        let options = NetOptions {
            queue_size: QUEUE,
            format: Format::Split,
            required: Vec::new(),
            memory: guests::memory(QUEUE),
            timeout: Duration::from_secs(5),
            status: false,
        };
        let connect = |at: usize| NetFrontEnd::connect_when_listening(&sockets[at], &options);
        Guests::new(connect(0)?, connect(1)?, QUEUE, flows)
    }

    /// Sends a frame again and again until one is answered.
    fn knock(&mut self) -> Result<(), GatewayError> {
        for _ in 0..KNOCKS {
            if self.trial(FIRST, 1)?.lost == 0 {
                return Ok(());
            }
        }
        Err(GatewayError::Setup(format!("none of {KNOCKS} frames that were sent one by one came back")))
    }

    /// The highest rate at which all frames of a [measurement](Plan::packets) were answered, or those of [`SUSTAINED`].
    fn highest(&mut self, plan: &Plan, progress: &mut impl FnMut(&str)) -> Result<NoDropRate, GatewayError> {
        // Flows are learned.
        self.trial(FIRST, plan.probe.min(10_000))?;
        let step = |rate: f64| {
            let packets = plan.probe.min((rate * LONGEST_STEP) as u64);
            let outcome = self.trial(rate, packets)?;
            Ok::<_, GatewayError>(match outcome.lost {
                0 if outcome.held_up * BEHIND > outcome.sent / 20 => Trial::SenderIsSlow,
                0 => Trial::Passed,
                _ => Trial::Lost,
            })
        };
        let first = bracket(step)?.ok_or(GatewayError::Lossy)?;
        sustain(first, |rate| {
            let packets = plan.packets.min((rate * SUSTAINED) as u64);
            progress(&format!("whether {rate:.0} a second hold, {:.0} s", packets as f64 / rate));
            Ok(self.trial(rate, packets)?.lost == 0)
        })
    }

    /// Sends `packets` frames, `rate` a second, and waits for their answers.
    fn trial(&mut self, rate: f64, packets: u64) -> Result<Outcome, GatewayError> {
        let histogram = Histogram::new_with_bounds(1, LONGEST, 3);
        let mut round_trips = histogram.map_err(|error| GatewayError::Setup(error.to_string()))?;
        let (first, gap) = (self.sequence, 1e9 / rate);
        let before = stolen(self.server_cpu);
        let (mut due, mut answered, mut refused, mut held_up) = (0, 0, 0, 0);
        let mut start = clock::now() as f64;
        let mut last = clock::now();
        let mut strange = false;
        loop {
            let now = clock::now();
            let mut late = (((now as f64 - start) / gap) as u64).min(packets).saturating_sub(due);
            if late > BEHIND {
                start += (late - BEHIND) as f64 * gap;
                (late, held_up) = (BEHIND, held_up + 1);
            }
            for _ in 0..late {
                self.times[self.sequence as usize % TIMES] = now;
                if self.ends.send(self.sequence) {
                    self.sequence += 1;
                } else {
                    refused += 1;
                }
                due += 1;
            }
            if late > 0 {
                self.ends.publish()?;
                last = now;
            }
            self.ends.answer(BATCH)?;
            let (times, next) = (&self.times, self.sequence);
            let taken = self.ends.take(BATCH, &mut |sequence| match sequence {
                Some(sequence) if (first..next).contains(&sequence) => {
                    round_trips.saturating_record(now.saturating_sub(times[sequence as usize % TIMES]).max(1));
                    answered += 1;
                }
                // An answer to a trial before this one, which has counted it as lost.
                Some(sequence) if sequence < first => {}
                _ => strange = true,
            });
            if strange {
                return Err(GatewayError::Strange);
            }
            if taken > 0 {
                last = now;
            }
            if due == packets && (answered + refused == packets || now.saturating_sub(last) > SILENCE) {
                let lost = packets.saturating_sub(answered);
                let stolen = stolen(self.server_cpu).saturating_sub(before);
                return Ok(Outcome { rate, sent: packets, lost, refused, stolen, round_trips, held_up });
            }
        }
    }
}

/// Steal time of `cpu` since the machine started, where the kernel counts it.
fn stolen(cpu: usize) -> Duration {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    Duration::from_millis(10 * stolen_ticks(&stat, cpu).unwrap_or_default())
}

/// The eighth figure of a CPU's line (proc_stat(5)).
fn stolen_ticks(stat: &str, cpu: usize) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu")?.strip_prefix(&format!("{cpu} ")))?;
    line.split_whitespace().nth(7)?.parse().ok()
}

fn site(plan: &Plan, flow_tier: bool, sockets: &[PathBuf]) -> String {
    // Writing to a String cannot fail.
    let mut site = format!("[node]\ndataplane = {{ cores = [{}] }}\nrun-directory = \"run\"\n", plan.server_cpu);
    let _ = writeln!(site, "flow-tier = {flow_tier}\nlog = {{ level = \"warn\" }}");
    if plan.between == Between::Sites {
        let _ = writeln!(site, "underlay = {{ interface = \"{NEAR}\", address = \"{NEAR_ADDRESS}\" }}");
    }
    let vni = sites::VNI;
    let _ = write!(site, "\n[[network]]\nname = \"bench\"\nvni = {vni}\ncidr = \"10.0.0.0/24\"\n");
    if plan.between == Between::Sites {
        site.push_str("transit = true\n");
        for (station, host) in [(Station::A, FAR_ADDRESS), (Station::B, OTHER_ADDRESS)] {
            let (address, mac) = (station.address, station.mac_text());
            let _ =
                write!(site, "\n[[network.endpoint]]\naddress = \"{address}\"\nmac = \"{mac}\"\nhost = \"{host}\"\n");
        }
        return site;
    }
    for ((name, station), socket) in [("a", Station::A), ("b", Station::B)].iter().zip(sockets) {
        let (address, mac, socket) = (station.address, station.mac_text(), quoted(socket));
        let _ = write!(
            site,
            "\n[[device]]\nname = \"{name}\"\ndomain = \"guest-{name}\"\nvirtio-net = {{ network = \"bench\", address = \
             \"{address}\", mac = \"{mac}\", queue-size = {QUEUE}, socket = {socket} }}\n",
        );
    }
    site
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_time_is_read_of_the_right_cpu() {
        let stat = "cpu  1 2 3 4 5 6 7 80 9 0\ncpu1 10 2 3 4 5 6 7 8 9 0\ncpu10 1 2 3 4 5 6 7 70 9 0\nintr 5\n";
        assert_eq!((stolen_ticks(stat, 1), stolen_ticks(stat, 10), stolen_ticks(stat, 0)), (Some(8), Some(70), None));
    }
}
