//! The load over a wire instead of a server: the device's side of both queues, in this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use softdpu_device::net::abi::{feature, header};
use softdpu_memory::GuestBuffer;
use softdpu_ring::{Chain, Format, Position, Queue, QueueConfig, RingAddresses};
use softdpu_transport::vhost_user::ProtocolFeatures;

use super::LoadError;
use super::Waiting;
use super::frames::{FrameLoad, FrameOutcome, run};
use crate::net::CorruptFrame;
use crate::{Frames, GuestMemory, NegotiatedFeatures, NetFrontEnd, NetOptions, Station};

const SIZE: u16 = 64;

/// What happens to a frame on its way.
#[derive(Clone, Copy, PartialEq)]
enum Fate {
    Arrives,
    IsLost,
    ArrivesTwice,
    LosesAByte,
    LosesItsContents,
}

/// The device's side of two ports.
struct Wire {
    transmit: Queue,
    receive: Queue,
    chains: Vec<Chain>,
    buffers: Vec<Chain>,
    fate: fn(u64) -> Fate,
    carried: u64,
}

fn load(frames: Frames, waiting: Waiting) -> FrameLoad {
    let duration = Duration::from_millis(30);
    let warm_up = Duration::from_millis(5);
    FrameLoad {
        frames,
        flows: 4,
        from: Station::A,
        to: Station::B,
        queue_size: SIZE,
        waiting,
        warm_up,
        duration,
        profile: false,
    }
}

fn queue(memory: &GuestMemory, addresses: RingAddresses, format: Format) -> Queue {
    let config = QueueConfig {
        size: SIZE,
        format,
        event_idx: true,
        indirect: false,
        max_pieces: 8,
        log_used: None,
        resumed: false,
    };
    Queue::new(memory.view(), config, addresses, Position::start(format), None).unwrap()
}

impl Wire {
    /// Carries what is there; true where it did.
    fn carry(&mut self) -> bool {
        self.transmit.pop(&mut self.chains, usize::from(SIZE)).unwrap();
        let any = !self.chains.is_empty();
        for chain in std::mem::take(&mut self.chains) {
            let fate = (self.fate)(self.carried);
            self.carried += 1;
            let copies = match fate {
                Fate::IsLost => 0,
                Fate::ArrivesTwice => 2,
                _ => 1,
            };
            for _ in 0..copies {
                self.deliver(&chain.buffer, fate);
            }
            self.transmit.complete(&[chain.used(0)]).unwrap();
        }
        any
    }

    fn deliver(&mut self, frame: &GuestBuffer, fate: Fate) {
        let len = frame.len() - u64::from(fate == Fate::LosesAByte);
        let mut bytes = vec![0; len as usize];
        frame.read_at(0, &mut bytes).unwrap();
        if fate == Fate::LosesItsContents {
            bytes[header::SIZE..].fill(0);
        }
        let mut used = Vec::new();
        let mut done = 0;
        while done < bytes.len() {
            if self.buffers.is_empty() && self.receive.pop(&mut self.buffers, 1).unwrap() == 0 {
                break;
            }
            let buffer = self.buffers.remove(0);
            let part = (bytes.len() - done).min(buffer.buffer.len() as usize);
            used.push((buffer, done, part));
            done += part;
        }
        let count = (used.len() as u16).to_le_bytes();
        bytes[header::NUM_BUFFERS..][..2].copy_from_slice(&count);
        let mut completions = Vec::new();
        for (buffer, start, part) in &used {
            buffer.buffer.write_at(0, &bytes[*start..*start + *part]).unwrap();
            completions.push(buffer.used(*part as u32));
        }
        assert_eq!(done, bytes.len(), "the load leaves room in the receive queue for all it sends");
        self.receive.complete(&completions).unwrap();
    }
}

/// Runs `load` over a wire.
fn over_wire(load: &FrameLoad, format: Format, fate: fn(u64) -> Fate) -> Result<FrameOutcome, LoadError> {
    let features = feature::RING_EVENT_IDX | feature::MRG_RXBUF;
    let negotiated = NegotiatedFeatures { features, offered: features, protocol: ProtocolFeatures::NONE };
    let port = |memory| {
        let timeout = Duration::from_secs(1);
        let options = NetOptions { queue_size: SIZE, format, required: Vec::new(), memory, timeout, status: false };
        NetFrontEnd::over_memory(&options, negotiated).unwrap()
    };
    let (mut a, mut b) = (port(load.sender_memory()), port(load.receiver_memory()));
    let mut wire = Wire {
        transmit: queue(&a.memory, a.transmit.addresses(), format),
        receive: queue(&b.memory, b.receive.addresses(), format),
        chains: Vec::new(),
        buffers: Vec::new(),
        fate,
        carried: 0,
    };
    let bell = Arc::new(b.receive.call_fd().try_clone_to_owned().unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Relaxed) {
                if wire.carry() {
                    // Wanted or not: a load that sleeps must wake up, one that polls does not care.
                    let _ = rustix::io::write(&*bell, &1u64.to_ne_bytes());
                } else {
                    std::thread::yield_now();
                }
            }
        });
        let outcome = run(&mut a, &mut b, load);
        over.store(true, Relaxed);
        outcome
    })
}

/// The same until at least so many frames have arrived: thirty milliseconds may be none on a busy machine.
fn enough_over_wire(load: &FrameLoad, format: Format, fate: fn(u64) -> Fate, least: u64) -> FrameOutcome {
    let found =
        (0..50).map(|_| over_wire(load, format, fate).unwrap()).find(|outcome| outcome.received.requests > least);
    found.unwrap_or_else(|| panic!("never more than {least} frames"))
}

fn corrupt(frames: Frames, fate: fn(u64) -> Fate) -> CorruptFrame {
    match over_wire(&load(frames, Waiting::Polling), Format::Split, fate) {
        Err(LoadError::Corrupt { source, .. }) => source,
        other => panic!("expected a corrupt frame, found {other:?}"),
    }
}

#[test]
fn every_frame_that_is_sent_is_counted_once_whatever_the_ring_and_the_waiting() {
    for format in [Format::Split, Format::Packed] {
        for waiting in [Waiting::Polling, Waiting::Blocking] {
            // Of a mix enough for its mean to be one.
            for (frames, least) in [(Frames::Smallest, 0), (Frames::Imix, 50), (Frames::Mtu, 0), (Frames::Tso, 0)] {
                let outcome = enough_over_wire(&load(frames, waiting), format, |_| Fate::Arrives, least);
                assert_eq!(outcome.lost, 0, "{frames} {format:?} {waiting}");
                let mean = outcome.bytes as f64 / outcome.received.requests as f64;
                // A measurement may end within a round of the mix.
                assert!((mean / frames.mean() - 1.0).abs() < 0.2, "{frames}: {mean} bytes a frame");
            }
        }
    }
}

#[test]
fn lost_frames_are_counted_and_do_not_stop_the_load() {
    let every_fourth = |number| if number % 4 == 0 { Fate::IsLost } else { Fate::Arrives };
    let outcome = enough_over_wire(&load(Frames::Smallest, Waiting::Polling), Format::Split, every_fourth, 100);
    let share = outcome.lost as f64 / outcome.sent as f64;
    assert!((0.2..0.3).contains(&share), "{outcome:?}");
}

#[test]
fn a_load_goes_on_after_all_its_frames_were_lost() {
    // More than fit on their way at once.
    let outage = |number| if (200..400).contains(&number) { Fate::IsLost } else { Fate::Arrives };
    let mut load = load(Frames::Smallest, Waiting::Polling);
    (load.warm_up, load.duration) = (Duration::ZERO, Duration::from_millis(300));
    let outcome = over_wire(&load, Format::Split, outage).unwrap();
    assert!(outcome.lost == 200 && outcome.received.requests > 200, "{outcome:?}");
}

#[test]
fn a_frame_that_changed_on_its_way_ends_the_load() {
    let short = corrupt(Frames::Mtu, |number| if number == 70 { Fate::LosesAByte } else { Fate::Arrives });
    assert_eq!(short, CorruptFrame::Length { len: 1513, expected: Frames::Mtu.lengths() });
    assert_eq!(corrupt(Frames::Imix, |_| Fate::LosesItsContents), CorruptFrame::Contents);
}

#[test]
fn a_frame_that_comes_twice_ends_the_load() {
    let twice = |number| if number == 70 { Fate::ArrivesTwice } else { Fate::Arrives };
    let found = corrupt(Frames::Smallest, twice);
    // As the last of a batch or within one.
    assert!(matches!(found, CorruptFrame::Order { .. } | CorruptFrame::Twice { .. }), "{found:?}");
}
