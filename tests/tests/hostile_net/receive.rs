//! Receive buffers that are none. The answer to a question of the driver's own is what is to be put there.

use softdpu_frontend::Format;
use softdpu_memory::GuestAddress;
use softdpu_ring::driver::Piece;
use softdpu_tests::Failure;
use softdpu_tests::descriptor::{Descriptor, NEXT, WRITE};

use crate::nic::{Nic, SIZE, Settings, Side};
use crate::scene::Abuse;
use crate::scene::Expect::{self, Breaks, Harmless, Survives};

const RX: Side = Side::Receive;
/// Without buffers.
const BARE: Settings = Settings { receives: false, ..Settings::PLAIN };

/// Makes these buffers available one by one and asks.
fn buffers(
    name: &'static str,
    format: Format,
    expect: Expect,
    pieces: impl Fn(GuestAddress) -> Vec<Vec<Piece>> + 'static,
) -> Abuse {
    Abuse::new(name, Settings { format, ..BARE }, expect, move |nic| {
        let at = nic.room(1 << 20);
        for chain in pieces(at) {
            nic.port.receive.driver.add(&chain).ok_or_else(|| Failure::new("no room for a buffer"))?;
        }
        nic.port.receive.publish();
        ask(nic)
    })
}

/// Asks often enough to use up a ring of tiny buffers.
fn ask(nic: &mut Nic) -> Result<u64, Failure> {
    for _ in 0..8 {
        nic.ask()?;
    }
    Ok(0)
}

/// Writes a receive ring by hand and asks.
fn ring(
    name: &'static str,
    expect: Expect,
    descriptors: impl Fn(GuestAddress) -> Vec<Descriptor> + 'static,
    heads: &'static [u16],
    index: u16,
) -> Abuse {
    Abuse::new(name, BARE, expect, move |nic| {
        let at = nic.room(4096);
        nic.describe(nic.descriptors(RX), &descriptors(at))?;
        nic.offer(RX, heads, index)?;
        ask(nic)
    })
}

pub fn abuses() -> Vec<Abuse> {
    let raw = |at: GuestAddress, flags, last| Descriptor { addr: at.0, len: 2048, flags, last };
    let (split, packed) = (Format::Split, Format::Packed);
    vec![
        buffers("a readable receive buffer", split, Breaks("device-readable"), |at| {
            vec![vec![Piece::readable(at, 2048)]]
        }),
        buffers("a readable packed receive buffer", packed, Breaks("device-readable"), |at| {
            vec![vec![Piece::readable(at, 2048)]]
        }),
        buffers("a receive buffer with a readable head", split, Breaks("device-readable"), |at| {
            vec![vec![Piece::readable(at, 12), Piece::writable(at, 2048)]]
        }),
        buffers("receive buffers of a byte", split, Breaks("no room for the header"), |at| {
            vec![vec![Piece::writable(at, 1)]; 64]
        }),
        buffers("packed receive buffers of 11 bytes", packed, Breaks("no room for the header"), |at| {
            vec![vec![Piece::writable(at, 11)]; 64]
        }),
        buffers("receive buffers of a header each", split, Harmless, |at| vec![vec![Piece::writable(at, 12)]; 200]),
        buffers("receive buffers of a header and a byte each", packed, Harmless, |at| {
            vec![vec![Piece::writable(at, 13)]; 200]
        }),
        buffers("a good receive buffer before one of a byte", split, Breaks("no room for the header"), |at| {
            vec![vec![Piece::writable(at, 20)], vec![Piece::writable(at, 1)]]
        }),
        buffers("a receive buffer in 200 pieces", split, Harmless, |at| {
            vec![(0..200).map(|index| Piece::writable(GuestAddress(at.0 + index), 1)).collect()]
        }),
        buffers("a receive buffer of no bytes", split, Breaks("has no bytes"), |at| vec![vec![Piece::writable(at, 0)]]),
        buffers("a receive buffer outside the memory", split, Breaks("not inside the memory"), |_| {
            vec![vec![Piece::writable(GuestAddress(0x7000_0000_0000), 2048)]]
        }),
        buffers("the same receive buffer again and again", split, Harmless, |at| {
            vec![vec![Piece::writable(at, 2048)]; 100]
        }),
        ring("a receive ring that loops", Breaks("it loops"), move |at| vec![raw(at, NEXT | WRITE, 0)], &[0], 1),
        ring(
            "a receive head beyond the table",
            Breaks("names descriptor"),
            move |at| vec![raw(at, WRITE, 0)],
            &[SIZE],
            1,
        ),
        ring(
            "a receive index that jumps",
            Breaks("available index jumped"),
            move |at| vec![raw(at, WRITE, 0)],
            &[0],
            999,
        ),
        ring("a receive head twice", Breaks("before it was used"), move |at| vec![raw(at, WRITE, 0)], &[0, 0], 2),
        Abuse::new("the transmit ring as a receive buffer", BARE, Survives, |nic| {
            let at = nic.descriptors(Side::Transmit);
            for _ in 0..64 {
                nic.port.receive.driver.add(&[Piece::writable(at, 4096)]);
            }
            nic.port.receive.publish();
            // What is in the ring afterwards is the answer.
            let _ = ask(nic);
            nic.kick(Side::Transmit);
            Ok(0)
        }),
        Abuse::new("the receive ring as a receive buffer", BARE, Survives, |nic| {
            let at = nic.descriptors(RX);
            for _ in 0..64 {
                nic.port.receive.driver.add(&[Piece::writable(at, 4096)]);
            }
            nic.port.receive.publish();
            ask(nic)
        }),
        Abuse::new("no receive buffer at all", BARE, Harmless, ask),
    ]
}
