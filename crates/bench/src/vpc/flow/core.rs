//! A core with flows, the packets that come to it, and what their time in the tiers is.

use std::hint::black_box;
use std::sync::Arc;

use softdpu_sys::clock;
use softdpu_vpc::trace::Watch;
use softdpu_vpc::{Checksum, Head, Packet, Part, PortId, Tables, Verdict, Vpc};

use super::traffic::{FEW, FRAME, Frames, ORDER, OUTER, SENDERS, Site, UNDERLAY};

/// A burst, as of the engine.
pub(super) const BURST: usize = 32;
/// Packets that are timed as one.
const CHUNK: u64 = 4096;
/// Chunks in which the bare loop is measured.
const BARE_CHUNKS: u64 = 64;
/// How fast time goes on: as at 25 million packets a second.
const PACE: u64 = 1_280;

/// Nanoseconds a packet, chunk by chunk: short enough that few of them have lost their processor.
#[derive(Default)]
pub(super) struct Chunks {
    pub packets: u64,
    since: u64,
    nanos: Vec<f32>,
}

impl Chunks {
    /// Does `work` on a burst.
    #[inline(always)]
    pub fn time<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let start = clock::now();
        let done = work();
        self.since += clock::now() - start;
        self.packets += BURST as u64;
        if self.packets.is_multiple_of(CHUNK) {
            self.nanos.push((self.since as f64 / CHUNK as f64) as f32);
            self.since = 0;
        }
        done
    }

    /// What bursts take, of so many as [`BARE_CHUNKS`] have: the median.
    pub fn of(mut burst: impl FnMut(&mut Chunks)) -> f64 {
        let mut chunks = Chunks::default();
        while chunks.packets < BARE_CHUNKS * CHUNK {
            burst(&mut chunks);
        }
        chunks.median()
    }

    /// The median of all chunks.
    pub fn median(&self) -> f64 {
        let mut nanos = self.nanos.clone();
        nanos.sort_unstable_by(f32::total_cmp);
        nanos.get(nanos.len() / 2).copied().unwrap_or(f32::NAN).into()
    }
}

pub(super) struct Core {
    pub vpc: Vpc,
    pub site: Site,
    pub packets: Vec<Packet>,
    pub verdicts: Vec<Verdict>,
    /// Of packets in the tiers.
    pub chunks: Chunks,
    frames: Frames,
    now: u64,
    /// Nanoseconds from burst to burst, on the clock that packets are forwarded by.
    pub pace: u64,
    order: Vec<u32>,
    pub at: usize,
    /// What traces packets through the tiers: none here, which is looked at for every burst, as the engine does.
    watch: Option<Box<dyn Watch>>,
}

impl Core {
    pub fn new(site: Site, order: Vec<u32>) -> Result<Core, String> {
        let tables = Tables::build(&site.spec()?, None).map_err(|error| error.to_string())?;
        let packet = Packet {
            head: Head::with_len(FRAME),
            tail: 0,
            checksum: Checksum::Complete,
            segmentation: None,
            port: PortId(0),
        };
        Ok(Core {
            vpc: Vpc::with_flows(Arc::new(tables), site.flows as usize),
            site,
            packets: vec![packet; BURST],
            verdicts: Vec::with_capacity(BURST),
            chunks: Chunks::default(),
            frames: Frames::new(),
            now: 1,
            pace: PACE,
            order,
            at: 0,
            watch: None,
        })
    }

    /// Makes the packets those of `flows`, in their order.
    #[inline]
    pub fn fill(&mut self, flows: impl Fn(usize) -> u32) {
        let first = flows(0) % SENDERS;
        for (at, packet) in self.packets.iter_mut().enumerate() {
            let flow = flows(at);
            let flow = if self.site.has_meters { flow - flow % SENDERS + first } else { flow };
            packet.head.reset(FRAME);
            let bytes = packet.head.bytes_mut().first_chunk_mut().expect("its length");
            packet.port = PortId(self.frames.write(bytes, flow));
            if self.site.tunnels.decapsulates() {
                packet.port = UNDERLAY;
                if let Some(headers) = packet.head.prepend(OUTER) {
                    headers.copy_from_slice(self.frames.outer());
                }
            }
        }
    }

    /// A burst of the packets that come next.
    pub fn burst(&mut self) {
        self.fill_next();
        self.forward();
    }

    /// Bursts until all packets of the order have come.
    pub fn lap(&mut self) {
        for _ in 0..ORDER / BURST {
            self.burst();
        }
    }

    fn fill_next(&mut self) {
        let order = std::mem::take(&mut self.order);
        let at = self.at;
        self.fill(|next| order[(at + next) % ORDER]);
        self.order = order;
        self.at = (self.at + BURST) % ORDER;
    }

    pub fn forward(&mut self) {
        self.verdicts.clear();
        self.now += self.pace;
        let Core { vpc, packets, verdicts, chunks, now, watch, .. } = self;
        chunks.time(|| match black_box(watch) {
            Some(watch) => vpc.forward_watched(*now, packets, verdicts, &mut **watch),
            None => vpc.forward(*now, packets, verdicts),
        });
    }

    /// Other packets come from here on.
    pub fn set_order(&mut self, order: Vec<u32>) {
        self.order = order;
    }

    /// Makes all flows known, if any are kept.
    pub fn learn(&mut self) -> Result<(), String> {
        if self.site.flows == 0 {
            self.site.flows = FEW;
            return Ok(());
        }
        let flows = self.site.flows;
        for flow in (0..flows).step_by(BURST) {
            // Bursts of one sender, if that is to be.
            let (group, rest) = (flow / SENDERS / BURST as u32, flow % (SENDERS * BURST as u32) / BURST as u32);
            let of_one = |at: usize| (group * BURST as u32 + at as u32) * SENDERS + rest;
            let has_meters = self.site.has_meters;
            self.fill(|at| (if has_meters { of_one(at) } else { flow + at as u32 }) % flows);
            self.forward();
        }
        let known = self.vpc.flows() as f64 / f64::from(flows);
        if known < 0.999 {
            return Err(format!("only {:.2}% of the flows are known", known * 100.0));
        }
        self.chunks = Chunks::default();
        Ok(())
    }

    /// Nanoseconds a packet as far as `part`.
    pub fn part(&mut self, part: Part) -> f64 {
        Chunks::of(|chunks| {
            self.fill_next();
            chunks.time(|| black_box(self.vpc.look_up(&self.packets, part)));
        })
    }
}
