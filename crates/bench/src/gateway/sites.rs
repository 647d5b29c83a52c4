//! Ends that are guests of two sites, each behind a host of its own, and softdpu is the gateway between these: what one
//! site sends the other comes to it and leaves it by VXLAN, over a veth pair in a network namespace. The other end of
//! that pair is both sites' hosts.

use softdpu_device::net::abi::{ETHERNET, header};
use softdpu_frontend::net::frames::{checksum, put};
use softdpu_frontend::{Frames, Station};
use softdpu_sys::port::packet::{PacketOptions, PacketSocket};
use softdpu_sys::port::{MAX_BATCH, VnetHeader};

use super::GatewayError;
use super::ends::Ends;
use crate::net::wire::{FAR, FAR_ADDRESS, FAR_MAC, NEAR_ADDRESS, NEAR_MAC, OTHER_ADDRESS, Wire};

/// What is sent: frames that tax the gateway and not the memory.
const FRAMES: Frames = Frames::Smallest;
/// Bytes of a frame, and of what VXLAN over IPv4 has before it: Ethernet, IPv4, UDP, VXLAN (RFC 7348 §5).
const INNER: usize = 60;
const OUTER: usize = ETHERNET + 20 + 8 + 8;
/// Offsets of the outer IPv4 addresses, and of both in a frame by itself.
const SOURCE: usize = ETHERNET + 12;
const DESTINATION: usize = ETHERNET + 16;
const VXLAN: u16 = 4789;
/// The network's number.
pub(super) const VNI: u32 = 5001;
/// Slots of the hosts' ring: more than can be on their way.
const SLOTS: usize = 1 << 14;

type Bytes = [u8; OUTER + INNER];

/// The hosts of both sites.
pub(super) struct Sites {
    socket: PacketSocket,
    /// A frame of each flow, from the first site to the second.
    frames: Vec<Bytes>,
    /// What is before a frame that the second site sends.
    back: [u8; OUTER],
    /// Frames that have come to the second site, and numbers of those that have come to the first.
    asked: Vec<Bytes>,
    answers: Vec<Option<u64>>,
}

impl Sites {
    /// At the far end of `wire`, with so many flows.
    pub(super) fn new(wire: &Wire, flows: u16) -> Result<Sites, GatewayError> {
        let failed = |error: String| GatewayError::Setup(format!("the far end of the wire: {error}"));
        let options = PacketOptions { ring_frames: SLOTS, udp_port: Some(VXLAN), ..PacketOptions::default() };
        let open = || PacketSocket::open(FAR, &options).map_err(|error| error.to_string());
        let socket = wire.within(open).map_err(|error| failed(error.to_string()))?.map_err(failed)?;
        let there = outer(FAR_ADDRESS)?;
        let frame = |index| {
            let slot = FRAMES.build(index, flows, Station::A, Station::B);
            let mut bytes = [0; OUTER + INNER];
            bytes[..OUTER].copy_from_slice(&there);
            bytes[OUTER..].copy_from_slice(&slot[header::SIZE..]);
            bytes
        };
        let frames = (0..flows.into()).map(frame).collect();
        Ok(Sites { socket, frames, back: outer(OTHER_ADDRESS)?, asked: Vec::new(), answers: Vec::new() })
    }

    /// Looks through what has come.
    fn receive(&mut self, most: usize) {
        let Sites { socket, back: second, asked, answers, .. } = self;
        // It has no errors: an interface that is gone brings no frames, which are lost then.
        let _ = socket.receive(most.min(MAX_BATCH), |frames| {
            for frame in frames {
                let Ok(bytes) = <&Bytes>::try_from(&*frame.bytes) else {
                    answers.push(None);
                    continue;
                };
                if bytes[DESTINATION..DESTINATION + 4] == second[SOURCE..SOURCE + 4] {
                    asked.push(*bytes);
                } else {
                    answers.push(FRAMES.sequence_in(&bytes[OUTER..]));
                }
            }
        });
    }

    fn queue(socket: &mut PacketSocket, bytes: &Bytes) -> bool {
        let Some(room) = socket.reserve(bytes.len()) else { return false };
        room[..bytes.len()].copy_from_slice(bytes);
        socket.commit(VnetHeader::default(), bytes.len())
    }

    fn flush(&mut self) -> Result<(), GatewayError> {
        self.socket.flush().map_err(|error| GatewayError::Setup(error.to_string()))?;
        Ok(())
    }
}

impl Ends for Sites {
    fn send(&mut self, sequence: u64) -> bool {
        let count = self.frames.len() as u64;
        let frame = &mut self.frames[(sequence % count) as usize];
        FRAMES.number_in(&mut frame[OUTER..], sequence);
        Self::queue(&mut self.socket, frame)
    }

    fn publish(&mut self) -> Result<(), GatewayError> {
        self.flush()
    }

    fn answer(&mut self, most: usize) -> Result<(), GatewayError> {
        self.receive(most);
        if self.asked.is_empty() {
            return Ok(());
        }
        let mut asked = std::mem::take(&mut self.asked);
        for bytes in &mut asked {
            let (outer, inner) = bytes.split_at_mut(OUTER);
            outer.copy_from_slice(&self.back);
            swap(inner);
            // Without room the answer is lost, and the asking end counts it as that.
            Self::queue(&mut self.socket, bytes);
        }
        asked.clear();
        self.asked = asked;
        self.flush()
    }

    fn take(&mut self, _most: usize, see: &mut dyn FnMut(Option<u64>)) -> usize {
        let count = self.answers.len();
        self.answers.drain(..).for_each(see);
        count
    }
}

/// Exchanges what says where a frame is from with what says where it goes: IP addresses, ports, and MAC addresses, of
/// which the gateway has put its own in the place of the sender's.
fn swap(frame: &mut [u8]) {
    frame[..6].copy_from_slice(&Station::A.mac);
    frame[6..12].copy_from_slice(&Station::B.mac);
    let mut exchange = |at: usize, len: usize| {
        let (first, second) = frame[at..at + 2 * len].split_at_mut(len);
        first.swap_with_slice(second);
    };
    exchange(SOURCE, 4);
    exchange(ETHERNET + 20, 2);
}

/// What is before a frame that the host with this address sends the gateway.
fn outer(host: &str) -> Result<[u8; OUTER], GatewayError> {
    let address = |text: &str| match text.parse::<std::net::Ipv4Addr>() {
        Ok(address) => Ok(address.octets()),
        Err(error) => Err(GatewayError::Setup(format!("{text}: {error}"))),
    };
    let mut outer = [0; OUTER];
    outer[..6].copy_from_slice(&NEAR_MAC);
    outer[6..12].copy_from_slice(&FAR_MAC);
    outer[12..16].copy_from_slice(&[8, 0, 0x45, 0]);
    put(&mut outer, ETHERNET + 2, (OUTER + INNER - ETHERNET) as u16);
    outer[ETHERNET + 8..ETHERNET + 10].copy_from_slice(&[64, 17]); // time to live, UDP
    outer[SOURCE..SOURCE + 4].copy_from_slice(&address(host)?);
    outer[DESTINATION..DESTINATION + 4].copy_from_slice(&address(NEAR_ADDRESS)?);
    let sum = checksum(&outer[ETHERNET..ETHERNET + 20]);
    put(&mut outer, ETHERNET + 10, sum);
    let udp = ETHERNET + 20;
    put(&mut outer, udp, 0xc000);
    put(&mut outer, udp + 2, VXLAN);
    put(&mut outer, udp + 4, (8 + 8 + INNER) as u16);
    outer[udp + 8] = 8; // the network's number is there
    outer[udp + 12..udp + 15].copy_from_slice(&VNI.to_be_bytes()[1..]);
    Ok(outer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_back_to_the_asking_station_and_has_its_number() {
        let mut frame = FRAMES.build(3, 8, Station::A, Station::B)[header::SIZE..].to_vec();
        FRAMES.number_in(&mut frame, 77);
        let asked = frame.clone();
        swap(&mut frame);
        assert_eq!((&frame[..6], &frame[6..12]), (&Station::A.mac[..], &Station::B.mac[..]));
        assert_eq!(frame[SOURCE..SOURCE + 4], Station::B.address.octets());
        assert_eq!(frame[DESTINATION..DESTINATION + 4], Station::A.address.octets());
        assert_eq!((&frame[34..36], &frame[36..38]), (&asked[36..38], &asked[34..36]));
        assert_eq!(FRAMES.sequence_in(&frame), Some(77));
        assert_eq!(
            checksum(&outer(FAR_ADDRESS).unwrap()[ETHERNET..ETHERNET + 20]),
            0,
            "with its checksum it sums to all ones"
        );
    }
}
