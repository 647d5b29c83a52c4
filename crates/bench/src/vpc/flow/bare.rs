//! A bare loop over the same packets: what this machine can do at the moment with a look-up of the same size, and
//! nothing else.
//!
//! Bursts of 32 frames have their addresses, ports, port and MAC address read and hashed, are looked up in an index and
//! an array of entries in three passes that fetch ahead, the version is compared with one number, packets and bytes are
//! counted, both MAC addresses written and the hop limit is taken down with its checksum. There are no options,
//! fragments, tunnels, meters, next hops, tables that change, nor anything that is not found. It is not something to
//! run: it is what cycles are compared with.

use softdpu_sys::lines::{Halves, Lines, Words};
use softdpu_sys::prefetch;

use super::core::{BURST, Chunks};
use super::traffic::{FRAME, Frames, ORDER};

const SEED: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xa076_1d64_78bd_642f];
const VERSION: u64 = 1;
/// What is written over the first bytes of each frame.
const MACS: [u8; 12] = [2, 0x5d, 0, 0, 0, 1, 2, 0xff, 0, 0, 0, 1];

/// What a frame is known by.
type Key = [u64; 3];

fn word(frame: &[u8; FRAME], at: usize) -> u64 {
    u64::from(half(frame, at)) | u64::from(half(frame, at + 4)) << 32
}

fn half(frame: &[u8; FRAME], at: usize) -> u32 {
    u32::from_le_bytes([frame[at], frame[at + 1], frame[at + 2], frame[at + 3]])
}

fn hash(key: &Key) -> u64 {
    let fold = |a: u64, b: u64| (u128::from(a) * u128::from(b)) as u64 ^ ((u128::from(a) * u128::from(b)) >> 64) as u64;
    fold(fold(key[0] ^ SEED[0], key[1] ^ SEED[1]) ^ key[2], SEED[1])
}

struct Bare {
    index: Lines<Halves>,
    /// Key, version, packets, bytes.
    entries: Lines<Words>,
    /// Bits of a slot of the index that are part of a hash; the others are an entry's number.
    tag: u32,
    frames: [[u8; FRAME]; BURST],
    ports: [u32; BURST],
    /// By frame: its key, its line of the index and its tag there, its entry.
    keys: [Key; BURST],
    homes: [(usize, u32); BURST],
    numbers: [u32; BURST],
}

impl Bare {
    fn new(flows: u32, make: &Frames) -> Result<Bare, String> {
        let room = |error| format!("memory for {flows} flows of the bare loop: {error}");
        let mut bare = Bare {
            index: Lines::zeroed((flows as usize / 8).next_power_of_two()).map_err(room)?,
            entries: Lines::zeroed(flows as usize).map_err(room)?,
            tag: !(flows.next_power_of_two() - 1),
            frames: [[0; FRAME]; BURST],
            ports: [0; BURST],
            keys: [[0; 3]; BURST],
            homes: [(0, 0); BURST],
            numbers: [0; BURST],
        };
        for flow in 0..flows {
            bare.ports[0] = make.write(&mut bare.frames[0], flow);
            let key = bare.key(0);
            let (line, tag) = bare.home(&key);
            // The few that find their line full are passed over.
            let empty = bare.index[line].find(!0, 0);
            if empty != 0 {
                bare.index[line].0[empty.trailing_zeros() as usize] = tag | flow;
                bare.entries[flow as usize].0[..4].copy_from_slice(&[key[0], key[1], key[2], VERSION]);
            }
        }
        Ok(bare)
    }

    #[inline(always)]
    fn key(&self, at: usize) -> Key {
        let frame = &self.frames[at];
        // Ethernet's type, version and length, no fragment, UDP; other frames are of no flow.
        let is_plain = half(frame, 12) & 0x00ff_ffff == 0x0045_0008 && half(frame, 20) & 0xff00_ff3f == 0x1100_0000;
        let sender = word(frame, 6) & 0xffff_ffff_ffff | u64::from(!is_plain) << 48;
        [word(frame, 26), u64::from(half(frame, 34)) | u64::from(self.ports[at]) << 32, sender]
    }

    #[inline(always)]
    fn home(&self, key: &Key) -> (usize, u32) {
        let hash = hash(key);
        // An empty slot is 0.
        let tag = (hash >> 32) as u32 & self.tag;
        let tag = if tag == 0 { self.tag & self.tag.wrapping_neg() } else { tag };
        (hash as usize & (self.index.len() - 1), tag)
    }

    /// The entry of `key` where it is not the first that has its tag in the line: at 16 M flows a tag has 8 bits, and
    /// of every hundred keys one or two have another before them.
    #[cold]
    fn behind(entries: &[Words], line: &Halves, (key, tag, mask): (&Key, u32, u32)) -> Option<usize> {
        let mut found = line.find(mask, tag);
        while found != 0 {
            let number = (line.0[found.trailing_zeros() as usize] & !mask) as usize;
            if entries[number].0[..3] == key[..] {
                return Some(number);
            }
            found &= found - 1;
        }
        None
    }

    /// Does what it is for; how many frames were of a flow.
    #[inline(never)]
    fn burst(&mut self) -> usize {
        for at in 0..BURST {
            let key = self.key(at);
            let home = self.home(&key);
            prefetch::read(self.index.as_ptr().wrapping_add(home.0));
            (self.keys[at], self.homes[at]) = (key, home);
        }
        for (number, (line, tag)) in self.numbers.iter_mut().zip(self.homes) {
            let line = &self.index[line];
            let found = line.find(self.tag, tag);
            *number = line.0[found.trailing_zeros() as usize % 16] & !self.tag;
            prefetch::write(self.entries.as_ptr().wrapping_add(*number as usize));
        }
        let mut done = 0;
        let rest = self.keys.iter().zip(&self.homes).zip(self.numbers);
        for (frame, ((key, &(line, tag)), number)) in self.frames.iter_mut().zip(rest) {
            let mut entry = &mut self.entries[number as usize].0;
            if (entry[0] ^ key[0]) | (entry[1] ^ key[1]) | (entry[2] ^ key[2]) | (entry[3] ^ VERSION) != 0 {
                let behind = Bare::behind(&self.entries, &self.index[line], (key, tag, self.tag));
                let Some(number) = behind else { continue };
                entry = &mut self.entries[number].0;
            }
            entry[4] += 1;
            entry[5] += FRAME as u64;
            if let Some(addresses) = frame.first_chunk_mut() {
                *addresses = MACS;
            }
            frame[22] -= 1;
            let sum = u32::from(u16::from_be_bytes([frame[24], frame[25]])) + 0x100;
            [frame[24], frame[25]] = ((sum + (sum >> 16)) as u16).to_be_bytes();
            done += 1;
        }
        done
    }
}

/// Nanoseconds that it takes for a packet of so many flows, which come in `order`.
pub(super) fn nanos(flows: u32, order: &[u32]) -> Result<f64, String> {
    let frames = Frames::new();
    let mut bare = Bare::new(flows, &frames)?;
    let (mut next, mut bursts, mut done) = (0, 0, 0);
    let nanos = Chunks::of(|chunks| {
        for at in 0..BURST {
            bare.ports[at] = frames.write(&mut bare.frames[at], order[(next + at) % ORDER]);
        }
        next = (next + BURST) % ORDER;
        bursts += 1;
        done += chunks.time(|| bare.burst());
    });
    let share = done as f64 / (bursts * BURST) as f64;
    if share < 0.98 { Err(format!("the bare loop found {share:.3} of its packets")) } else { Ok(nanos) }
}
