//! A core's flows: two in each line, the older of them makes room.

use std::hash::{BuildHasher, Hasher, RandomState};

use softdpu_sys::prefetch;

use super::key::Key;
use crate::PortId;

/// Lines of a core's flows; a power of two.
const LINES: usize = 2048;

/// What is done to a flow's packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Action {
    /// Destination and source MAC addresses, as they leave.
    pub macs: [u8; 12],
    /// Largest IP packet.
    pub mtu: u16,
    /// A router takes one off the hop limit.
    pub is_routed: bool,
    pub to: To,
    /// Of the 5-tuple.
    pub hash: u32,
}

/// Where a flow's packets go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum To {
    Port(PortId),
    Tunnel { number: u32, vni: u32 },
}

#[derive(Clone, Copy, Debug)]
struct Flow {
    key: Key,
    /// Of the tables it was made from.
    generation: u32,
    action: Action,
}

/// The line that a key belongs to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line(usize);

/// The flows that a core knows. It forgets some where there are too many: those are then decided as a first packet is.
#[derive(Debug)]
pub(crate) struct Flows {
    lines: Box<[[Flow; 2]]>,
    seed: u64,
    generation: u32,
}

impl Flows {
    pub fn new() -> Flows {
        let mut flows =
            Flows { lines: Box::default(), seed: RandomState::new().build_hasher().finish(), generation: 1 };
        flows.clear();
        flows
    }

    fn clear(&mut self) {
        let action = Action { macs: [0; 12], mtu: 0, is_routed: false, to: To::Port(PortId(0)), hash: 0 };
        self.lines = vec![[Flow { key: Key::default(), generation: 0, action }; 2]; LINES].into();
        self.generation = 1;
    }

    /// Forgets all flows: the tables are others now.
    pub fn forget(&mut self) {
        match self.generation.checked_add(1) {
            Some(next) => self.generation = next,
            None => self.clear(),
        }
    }

    /// The line of `key`, on its way into the cache.
    #[inline]
    pub fn line(&self, key: &Key) -> Line {
        let line = key.mixed(self.seed) as usize % LINES;
        prefetch::read(&raw const self.lines[line]);
        Line(line)
    }

    /// What is done to packets of `key`, which belongs to `line`.
    #[inline]
    pub fn get(&self, Line(line): Line, key: &Key) -> Option<&Action> {
        self.lines[line % LINES]
            .iter()
            .find(|flow| flow.generation == self.generation && flow.key.is(key))
            .map(|flow| &flow.action)
    }

    /// Remembers a flow.
    pub fn install(&mut self, Line(line): Line, key: Key, action: Action) {
        let line = &mut self.lines[line % LINES];
        line[1] = line[0];
        line[0] = Flow { key, generation: self.generation, action };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn action(port: u32) -> Action {
        Action { macs: [7; 12], mtu: 1500, is_routed: false, to: To::Port(PortId(port)), hash: port }
    }

    fn key(number: u32) -> Key {
        let mut packet = crate::packet::Packet {
            head: crate::Head::of(&[0; 60]),
            tail: 0,
            checksum: crate::Checksum::Complete,
            segmentation: None,
            port: PortId(number),
        };
        let frame = packet.head.bytes_mut();
        frame[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, 46]);
        frame[23] = 17;
        frame[39] = 8;
        super::super::see(&packet).expect("a plain UDP packet").key
    }

    #[test]
    fn it_knows_what_was_installed_until_the_tables_change() {
        let mut flows = Flows::new();
        let line = flows.line(&key(1));
        assert!(flows.get(line, &key(1)).is_none());
        flows.install(line, key(1), action(3));
        assert_eq!(flows.get(line, &key(1)).map(|action| action.hash), Some(3));
        assert!(flows.get(line, &key(2)).is_none());
        flows.forget();
        assert!(flows.get(line, &key(1)).is_none());
    }

    #[test]
    fn the_older_of_a_line_makes_room() {
        let mut flows = Flows::new();
        for number in 1..4 {
            flows.install(Line(5), key(number), action(number));
        }
        let known: Vec<u32> = (1..4).filter(|number| flows.get(Line(5), &key(*number)).is_some()).collect();
        assert_eq!(known, [2, 3]);
    }

    #[test]
    fn no_generation_comes_twice() {
        let mut flows = Flows::new();
        flows.install(Line(0), key(1), action(1));
        flows.generation = u32::MAX;
        flows.install(Line(1), key(2), action(2));
        flows.forget();
        assert!(flows.get(Line(0), &key(1)).is_none() && flows.get(Line(1), &key(2)).is_none());
    }
}
