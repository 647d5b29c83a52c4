//! Floods, and what two other guests on the same core lose to them.
//!
//! The pair is paced at an eighth of what it reaches alone: a guest that asks for less than its share is to get what it
//! asks for, whatever others do. One core serves all and takes at most as many frames from one queue as from any
//! other before it looks at the next, so a pair that wants more than that would rightly get less beside a flood. The
//! flood is switched on and off in turn within one run, and what is delivered of the frames that fell due is compared:
//! the machine is the same in both. Guests have CPUs of their own, and here they share what the core leaves: the pair's
//! thread goes before others, the flooding one behind them, so that what is measured is the core.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use softdpu_device::net::abi::header::{F_NEEDS_CSUM, GSO_TCPV4, SIZE as HEADER};
use softdpu_ring::driver::Piece;
use softdpu_tests::{Context, Failure, Interval, wait_until};

use crate::SOON;
use crate::nic::{Nic, OFFLOADS, Settings, Side};
use crate::packets::*;
use crate::pair::{Pair, run_as_guest};
use crate::scene::Scene;

/// Of the frames that the pair gets without a flood, those that it has to get with it.
const LEAST_RATIO: f64 = 0.9;
/// Of what it reaches alone, what the pair asks for.
const SHARE: u64 = 8;
/// Frames a second that a pair needs to make: less would say nothing.
const LEAST_PACE: u64 = 1_000;
/// Pairs of a period without the flood and one with it.
const PERIODS: usize = 15;
const PERIOD: Duration = Duration::from_millis(80);
/// Frames of a flood that are on their way at once.
const CHAINS: u16 = 1000;
/// With room for them.
const WIDE: Settings = Settings { size: 1024, ..Settings::PLAIN };
/// Nice value of the flooding thread.
const NICE: i32 = 10;
/// Frames that a flood has to bring about to be one.
const LEAST_FRAMES: u64 = 1_000;
/// Kicks that a flood of nothing else has to have, some hundred a millisecond. A kick is a system call, of which one
/// CPU makes some thousands a millisecond.
const LEAST_KICKS: u64 = 100_000;

pub struct Flood {
    pub name: &'static str,
    settings: Settings,
    /// Headers and frames that are sent in turn; none: nothing but kicks.
    frames: fn() -> Vec<Vec<u8>>,
    /// The reason under which some are dropped, if there has to be one.
    reason: Option<&'static str>,
    /// By how much less the pair asks for beside it.
    less: u64,
}

/// A driver that breaks its interface, goes and comes again, as fast as it can.
struct Storm {
    name: &'static str,
    act: fn(&mut Nic) -> Result<(), Failure>,
    /// What `status` says of the queue then.
    words: &'static str,
}

/// Times that a storm has to have broken the interface to be one.
const LEAST_BREAKS: u64 = 20;

pub struct Seen {
    /// The part that the pair gets beside the flood over the part without: of pairs of periods.
    ratio: Interval,
    /// Frames that the flood got rid of, or kicks.
    sent: u64,
    /// Kicks a millisecond, of a flood of nothing else.
    kicks: Option<u64>,
    dropped: Option<(&'static str, u64)>,
    /// Core time of the flood.
    core: Duration,
}

impl Seen {
    /// Whether the pair gets what it has to, by the whole interval.
    pub fn is_enough(&self) -> bool {
        self.ratio.least() >= LEAST_RATIO
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Seen { ratio, sent, kicks, dropped, core } = self;
        write!(f, "{ratio} of its frames beside {sent}")?;
        write!(f, " that took {:.0} ms", core.as_secs_f64() * 1e3)?;
        if let Some(kicks) = kicks {
            write!(f, ", {kicks} kicks/ms")?;
        }
        dropped.map_or(Ok(()), |(reason, count)| write!(f, ", {count} dropped as {reason}"))
    }
}

/// What the pair is to be paced at: a share of what it reaches alone.
pub fn find_pace(pair: &Pair) -> Result<u64, Failure> {
    let mut rates = Vec::new();
    for _ in 0..5 {
        rates.push(pair.rate(PERIOD)?);
    }
    let pace = median(&mut rates) as u64 / SHARE;
    if pace < LEAST_PACE {
        return Err(Failure::new(format!("the pair alone reaches {rates:?} frames/s: nothing can be measured")));
    }
    pair.set_pace(pace);
    Ok(pace)
}

/// Plays a flood and measures.
pub fn play(scene: &Scene, pair: &Pair, pace: u64, flood: &Flood) -> Result<Seen, Failure> {
    pair.set_pace(pace / flood.less);
    let mut nic = scene.connect(flood.settings)?;
    // A guest to send to, which gives no buffers.
    let _sink = Nic::connect(&scene.socket("sink"), Settings { receives: false, ..Settings::PLAIN })?;
    let (before, core) = (scene.counts()?, scene.core_time()?);
    let (on, over) = (AtomicBool::new(false), AtomicBool::new(false));
    let (sent, left) = (AtomicU64::new(0), AtomicUsize::new(0));
    let ratio = std::thread::scope(|scope| {
        let flooder = scope
            .spawn(|| pour(&mut nic, &(flood.frames)(), &Valve { on: &on, over: &over, sent: &sent, left: &left }));
        let measured = in_turn(pair, pace / flood.less, &on, || {
            wait_until("what is left of the flood to be worked off", SOON, || {
                Ok((left.load(Relaxed) == 0).then_some(()))
            })
        });
        over.store(true, Relaxed);
        flooder.join().map_err(|_| Failure::new("the flooder panicked"))??;
        measured
    })?;
    let (sent, counts) = (sent.load(Relaxed), scene.counts()?);
    if sent < if flood.is_kicks() { LEAST_KICKS } else { LEAST_FRAMES } {
        return Err(Failure::new(format!("{}: {sent} are no flood", flood.name)));
    }
    let dropped = flood.reason.map(|reason| (reason, counts.dropped_in(reason) - before.dropped_in(reason)));
    if dropped.is_some_and(|(_, count)| count == 0) {
        return Err(Failure::new(format!("{}: nothing was dropped as {dropped:?}: {counts}", flood.name)));
    }
    let core = scene.core_time()? - core;
    nic.probe().context(flood.name)?;
    let kicks = flood.is_kicks().then(|| sent / (PERIODS as u64 * (PERIOD + PERIOD / 10).as_millis() as u64));
    Ok(Seen { ratio, sent, kicks, dropped, core })
}

impl Flood {
    fn is_kicks(&self) -> bool {
        (self.frames)().is_empty()
    }
}

/// Plays the storms and measures each.
pub fn play_storms(scene: &Scene, pair: &Pair, pace: u64) -> Result<Vec<(&'static str, Seen)>, Failure> {
    let play = |storm: Storm| Ok((storm.name, play_storm(scene, pair, pace, &storm)?));
    storms().into_iter().map(play).collect()
}

fn play_storm(scene: &Scene, pair: &Pair, pace: u64, storm: &Storm) -> Result<Seen, Failure> {
    pair.set_pace(pace);
    let core = scene.core_time()?;
    let (on, over, sent) = (AtomicBool::new(false), AtomicBool::new(false), AtomicU64::new(0));
    let ratio = std::thread::scope(|scope| {
        let breaker = scope.spawn(|| {
            run_as_guest(NICE)?;
            while !over.load(Relaxed) {
                if !on.load(Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                    continue;
                }
                let mut nic = scene.connect(Settings { receives: false, ..Settings::PLAIN })?;
                (storm.act)(&mut nic)?;
                wait_until("a queue to break", SOON, || Ok(nic.error_signalled().then_some(())))?;
                sent.fetch_add(1, Relaxed);
            }
            Ok::<_, Failure>(())
        });
        let measured = in_turn(pair, pace, &on, || Ok(()));
        over.store(true, Relaxed);
        breaker.join().map_err(|_| Failure::new("the breaker panicked"))??;
        measured
    })?;
    let sent = sent.load(Relaxed);
    if sent < LEAST_BREAKS {
        return Err(Failure::new(format!("{}: {sent} times are no storm", storm.name)));
    }
    // For the reason that was meant.
    let mut nic = scene.connect(Settings { receives: false, ..Settings::PLAIN })?;
    (storm.act)(&mut nic)?;
    scene.broken(storm.words)?;
    drop(nic);
    scene.connect(Settings::PLAIN)?.probe().context(storm.name)?;
    let core = scene.core_time()? - core;
    Ok(Seen { ratio, sent, kicks: None, dropped: None, core })
}

fn storms() -> Vec<Storm> {
    vec![
        Storm {
            name: "a transmit queue broken, again and again",
            act: |nic| {
                let at = nic.place(&[0; 100])?;
                nic.offer_chain(&[Piece::writable(at, 100)])
            },
            words: "device-writable",
        },
        Storm {
            name: "a readable receive buffer, again and again",
            act: |nic| {
                let at = nic.place(&[0; 100])?;
                let added = nic.port.receive.driver.add(&[Piece::readable(at, 100)]);
                added.ok_or_else(|| Failure::new("no room for a buffer"))?;
                nic.port.receive.publish();
                nic.ask()
            },
            words: "device-readable",
        },
    ]
}

/// What the pair gets of what it asks for while `on` is on, over the same while it is off, in turn. Off begins when all
/// is `settled`.
fn in_turn(
    pair: &Pair,
    pace: u64,
    on: &AtomicBool,
    settled: impl Fn() -> Result<(), Failure>,
) -> Result<Interval, Failure> {
    let frames = (pace as f64 * PERIOD.as_secs_f64()) as u64;
    let mut ratios = Vec::new();
    for _ in 0..PERIODS {
        on.store(false, Relaxed);
        settled()?;
        std::thread::sleep(PERIOD / 10);
        let quiet = pair.served(frames)?;
        on.store(true, Relaxed);
        std::thread::sleep(PERIOD / 10);
        ratios.push(pair.served(frames)? / quiet.max(f64::MIN_POSITIVE));
    }
    Interval::new(ratios)
}

/// What opens and closes a flood, and what is seen of it.
struct Valve<'a> {
    on: &'a AtomicBool,
    over: &'a AtomicBool,
    /// Frames that were got rid of.
    sent: &'a AtomicU64,
    /// Frames that are on their way.
    left: &'a AtomicUsize,
}

/// Sends frames, or kicks, as fast as they go, while the valve is open.
fn pour(nic: &mut Nic, frames: &[Vec<u8>], valve: &Valve<'_>) -> Result<(), Failure> {
    run_as_guest(NICE)?;
    let placed = frames.iter().map(|frame| Ok(Piece::readable(nic.place(frame)?, frame.len() as u32)));
    let placed = placed.collect::<Result<Vec<_>, Failure>>()?;
    let chains = if frames.is_empty() { 0 } else { usize::from(CHAINS) };
    let mut idle = Vec::new();
    for piece in placed.iter().cycle().take(chains) {
        let id = nic.port.transmit.driver.prepare(&[*piece]);
        idle.push(id.ok_or_else(|| Failure::new("no room for a flood"))?);
    }
    while !valve.over.load(Relaxed) {
        let on = valve.on.load(Relaxed);
        if on && frames.is_empty() {
            (0..1000).for_each(|_| nic.kick(Side::Transmit));
            valve.sent.fetch_add(1000, Relaxed);
            continue;
        }
        let driver = &mut nic.port.transmit.driver;
        while let Some(done) = driver.take() {
            idle.push(done.id);
            valve.sent.fetch_add(1, Relaxed);
        }
        if on {
            idle.drain(..).for_each(|id| _ = driver.repeat(id));
            nic.port.transmit.publish();
        } else {
            std::thread::sleep(Duration::from_millis(1));
        }
        valve.left.store(chains - idle.len(), Relaxed);
        // Answers are taken, so that their buffers do not run out.
        while nic.received()?.is_some() {}
    }
    // The probe wants to find the ring empty.
    nic.sent(chains - idle.len())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Frames behind headers that claim nothing.
fn plain(frames: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    frames.into_iter().map(|frame| [&[0; HEADER][..], &frame].concat()).collect()
}

pub fn floods() -> Vec<Flood> {
    let flood = |name, reason, frames| Flood { name, settings: WIDE, frames, reason, less: 1 };
    vec![
        flood("kicks without frames", None, Vec::new),
        flood("chains too short for a header", Some("truncated"), || vec![vec![0; 5]]),
        flood("frames of no bytes", Some("truncated"), || plain(vec![Vec::new()])),
        flood("bad offload", Some("bad-offload"), || {
            let frame = udp_to(B, &[0; 64]);
            vec![[&[F_NEEDS_CSUM, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0][..], &frame].concat()]
        }),
        flood("forged MAC addresses", Some("spoofed-mac"), || plain(vec![with(udp_to(B, &[0; 64]), 6, &A.mac)])),
        flood("forged IP addresses", Some("spoofed-address"), || {
            plain(vec![ether(B.mac, IPV4, &ipv4(A.address, B.address, UDP, &udp(9, 9, &[0; 64])))])
        }),
        flood("ARP questions", Some("rate-limited"), || plain(vec![arp(1, MALLORY.mac, MALLORY.address, GATEWAY)])),
        flood("forged ARP answers", Some("spoofed-neighbor"), || {
            plain(vec![arp(2, MALLORY.mac, A.address, B.address)])
        }),
        flood("DHCP", Some("rate-limited"), || {
            let discover =
                udp(68, 67, &[&[1, 1, 6, 0][..], &[0; 232], &[0x63, 0x82, 0x53, 0x63, 53, 1, 1, 255]].concat());
            plain(vec![ether(BROADCAST, IPV4, &ipv4(Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, UDP, &discover))])
        }),
        flood("router and neighbour solicitations", Some("rate-limited"), || {
            let routers = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);
            let solicited = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00, 0xb);
            plain(vec![
                icmp6(six(0x66), routers, 133, &[0; 4]),
                icmp6(six(0x66), solicited, 135, &[&[0; 4][..], &six(0xb).octets()].concat()),
            ])
        }),
        flood("packets to no guest", Some("rate-limited"), || {
            plain(vec![ether(B.mac, IPV4, &ipv4(MALLORY.address, NOBODY, UDP, &udp(9, 9, &[0; 64])))])
        }),
        flood("extension headers without end", Some("malformed"), || {
            let mut payload: Vec<u8> = (0..20).flat_map(|_| [DESTINATION, 0, 1, 4, 0, 0, 0, 0]).collect();
            payload.extend(udp(9, 9, &[]));
            plain(vec![ether(B.mac, IPV6, &ipv6(six(0x66), six(0xb), DESTINATION, &payload))])
        }),
        flood("fragments", None, || plain(vec![with(udp_to(SINK, &[0; 64]), AT_IP + 6, &[0x20, 0])])),
        flood("frames of 64 KiB", Some("too-long"), || plain(vec![vec![0xaa; 66_000]])),
        flood("frames of 64 KiB that want an answer", Some("path-mtu"), || plain(vec![uncut(udp_to(B, &[0; 65_000]))])),
        // Its driver takes no large frames: the core cuts each into more than forty and sums them. One such frame is a
        // turn, and takes as long as a thousand small ones; the pair has its 64 frames between two of them.
        Flood {
            name: "frames of 64 KiB to be cut up",
            settings: Settings { features: OFFLOADS, ..WIDE },
            frames: || {
                // 1,448 bytes of payload each.
                let header = [F_NEEDS_CSUM, GSO_TCPV4, 54, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0];
                vec![[&header[..], &tcp_to(SINK, &[0; 64_000])].concat()]
            },
            reason: None,
            less: 4,
        },
    ]
}
