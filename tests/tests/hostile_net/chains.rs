//! Transmit chains that are no frames, and transmit rings that are no rings.

use std::time::{Duration, Instant};

use softdpu_device::net::abi::MAX_FRAME;
use softdpu_device::net::abi::header::SIZE as HEADER;
use softdpu_frontend::Format;
use softdpu_memory::GuestAddress;
use softdpu_ring::driver::Piece;

use softdpu_tests::descriptor::{AVAIL, Descriptor, INDIRECT, NEXT, WRITE};

use crate::nic::{INDIRECTION, Nic, SIZE, Settings, Side};
use crate::packets::{B, SINK, udp_to, uncut};
use crate::scene::Abuse;
use crate::scene::Expect::{self, Breaks, Drops, Harmless, Survives};

const TX: Side = Side::Transmit;
/// With rings at their start: nothing is asked, so no answers are waited for.
const FRESH: Settings = Settings { receives: false, ..Settings::PLAIN };
const TABLES: Settings = Settings { features: INDIRECTION, ..FRESH };
const PACKED: Settings = Settings { format: Format::Packed, ..FRESH };
const NOWHERE: u64 = 0x7000_0000_0000;

fn plain(
    name: &'static str,
    expect: Expect,
    act: impl Fn(&mut Nic) -> Result<u64, softdpu_tests::Failure> + 'static,
) -> Abuse {
    Abuse::new(name, Settings::PLAIN, expect, act)
}

fn fresh(
    name: &'static str,
    expect: Expect,
    act: impl Fn(&mut Nic) -> Result<u64, softdpu_tests::Failure> + 'static,
) -> Abuse {
    Abuse::new(name, FRESH, expect, act)
}

/// A header of zeroes and a frame, somewhere.
fn frame(nic: &mut Nic) -> Result<GuestAddress, softdpu_tests::Failure> {
    nic.place(&[&[0; HEADER][..], &udp_to(SINK, &[0; 64])].concat())
}

/// A chain at descriptor 0 of a fresh split ring.
fn chain(nic: &mut Nic, descriptors: &[Descriptor]) -> Result<u64, softdpu_tests::Failure> {
    nic.describe(nic.descriptors(TX), descriptors)?;
    nic.offer(TX, &[0], 1)?;
    Ok(0)
}

fn raw(addr: GuestAddress, len: u32, flags: u16, last: u16) -> Descriptor {
    Descriptor { addr: addr.0, len, flags, last }
}

pub fn abuses() -> Vec<Abuse> {
    [lengths(), directions(), loops(), tables(), packed()].into_iter().flatten().collect()
}

fn lengths() -> Vec<Abuse> {
    vec![
        plain("a chain too short for a header", Drops("truncated"), |nic| {
            for len in 1..HEADER as u32 {
                let at = frame(nic)?;
                nic.send_chain(&[Piece::readable(at, len)])?;
            }
            Ok(HEADER as u64 - 1)
        }),
        plain("a frame of no bytes", Drops("truncated"), |nic| nic.send_all(&[Vec::new()])),
        plain("a frame too short for Ethernet", Drops("truncated"), |nic| {
            nic.send_all(&(1..14).map(|len| udp_to(B, &[])[..len].to_vec()).collect::<Vec<_>>())
        }),
        plain("a frame cut off anywhere", Drops("truncated"), |nic| {
            let whole = udp_to(B, &[]);
            nic.send_all(&(14..whole.len()).map(|len| whole[..len].to_vec()).collect::<Vec<_>>())
        }),
        plain("a frame longer than any", Drops("too-long"), |nic| {
            let mut frame = udp_to(B, &[]);
            let lengths = [MAX_FRAME + 1, MAX_FRAME + 1000, 1 << 20];
            for len in lengths {
                frame.resize(len, 0);
                nic.send([0; HEADER], &frame)?;
            }
            Ok(lengths.len() as u64)
        }),
        plain("the longest frame, which no path takes", Drops("path-mtu"), |nic| {
            let frame = uncut(udp_to(B, &vec![0; 65_535 - 28]));
            nic.send_all(&[frame.clone(), [frame, vec![0]].concat()])
        }),
        plain("padding to the longest frame", Harmless, |nic| {
            let mut frame = udp_to(SINK, &[0; 64]);
            frame.resize(MAX_FRAME, 0xee);
            nic.send_all(&[frame])
        }),
        plain("a descriptor a byte", Harmless, |nic| {
            let bytes = [&[0; HEADER][..], &udp_to(SINK, &[0; 100])].concat();
            let at = nic.place(&bytes)?;
            let pieces: Vec<_> =
                (0..bytes.len() as u64).map(|index| Piece::readable(GuestAddress(at.0 + index), 1)).collect();
            nic.send_chain(&pieces)?;
            Ok(1)
        }),
        plain("descriptors of no bytes between others", Harmless, |nic| {
            let bytes = [&[0; HEADER][..], &udp_to(SINK, &[0; 100])].concat();
            let at = nic.place(&bytes)?;
            let nothing = Piece::readable(at, 0);
            let rest = Piece::readable(GuestAddress(at.0 + 5), bytes.len() as u32 - 5);
            nic.send_chain(&[nothing, Piece::readable(at, 5), nothing, nothing, rest, nothing])?;
            Ok(1)
        }),
        plain("a chain of descriptors of no bytes", Breaks("has no bytes"), |nic| {
            let at = frame(nic)?;
            nic.offer_chain(&[Piece::readable(at, 0); 4])?;
            Ok(0)
        }),
        plain("4 GiB less a byte", Breaks("not inside the memory"), |nic| {
            let at = frame(nic)?;
            nic.offer_chain(&[Piece::readable(at, u32::MAX)])?;
            Ok(0)
        }),
        plain("the same megabyte 250 times", Drops("too-long"), |nic| {
            let at = nic.place(&[0; 1 << 20])?;
            nic.send_chain(&[Piece::readable(at, 1 << 20); 250])?;
            Ok(1)
        }),
    ]
}

fn directions() -> Vec<Abuse> {
    vec![
        plain("a writable frame", Breaks("device-writable"), |nic| {
            let at = frame(nic)?;
            nic.offer_chain(&[Piece::writable(at, 100)])?;
            Ok(0)
        }),
        plain("a writable piece behind a frame", Breaks("device-writable"), |nic| {
            let at = frame(nic)?;
            nic.offer_chain(&[Piece::readable(at, 100), Piece::writable(at, 1)])?;
            Ok(0)
        }),
        plain("a writable header", Breaks("after a device-writable"), |nic| {
            let at = frame(nic)?;
            nic.offer_chain(&[Piece::writable(at, 12), Piece::readable(at, 100)])?;
            Ok(0)
        }),
        plain("a writable piece among good frames", Breaks("device-writable"), |nic| {
            let good = nic.place(&[&[0; HEADER][..], &udp_to(SINK, &[0; 64])].concat())?;
            for bad in [false, false, true, false] {
                let len = 12 + 14 + 28 + 64;
                let piece = Piece { address: good, len, writable: bad };
                nic.port.transmit.driver.add(&[piece]);
            }
            nic.port.transmit.publish();
            Ok(0)
        }),
        plain("a frame outside the memory", Breaks("not inside the memory"), |nic| {
            nic.offer_chain(&[Piece::readable(GuestAddress(NOWHERE), 100)])?;
            Ok(0)
        }),
        plain("a frame at address 0", Breaks("not inside the memory"), |nic| {
            nic.offer_chain(&[Piece::readable(GuestAddress(0), 100)])?;
            Ok(0)
        }),
        plain("a frame whose end wraps", Breaks("not inside the memory"), |nic| {
            nic.offer_chain(&[Piece::readable(GuestAddress(u64::MAX - 50), 100)])?;
            Ok(0)
        }),
        plain("the ring as a frame", Drops("spoofed-mac"), |nic| {
            // Descriptors that were never used: zeroes.
            let rest = GuestAddress(nic.descriptors(TX).0 + 16 * u64::from(SIZE) / 2);
            nic.send_chain(&[Piece::readable(rest, 1024)])?;
            Ok(1)
        }),
    ]
}

fn loops() -> Vec<Abuse> {
    vec![
        fresh("two descriptors that follow each other", Breaks("it loops"), |nic| {
            let at = frame(nic)?;
            chain(nic, &[raw(at, 100, NEXT, 1), raw(at, 100, NEXT, 0)])
        }),
        fresh("a descriptor that follows itself", Breaks("it loops"), |nic| {
            let at = frame(nic)?;
            chain(nic, &[raw(at, 1, NEXT, 0)])
        }),
        fresh("next beyond the table", Breaks("goes on at descriptor"), |nic| {
            let at = frame(nic)?;
            chain(nic, &[raw(at, 100, NEXT, SIZE)])
        }),
        fresh("a head beyond the table", Breaks("names descriptor 65535"), |nic| {
            nic.offer(TX, &[0xffff], 1)?;
            Ok(0)
        }),
        fresh("an index that jumps", Breaks("available index jumped"), |nic| {
            nic.offer(TX, &[0], 1000)?;
            Ok(0)
        }),
        fresh("a head twice", Breaks("before it was used"), |nic| {
            let at = frame(nic)?;
            nic.describe(nic.descriptors(TX), &[raw(at, 118, 0, 0)])?;
            nic.offer(TX, &[0, 0], 2)?;
            Ok(0)
        }),
        fresh("descriptors that change while they are read", Survives, |nic| {
            let at = frame(nic)?;
            let start = Instant::now();
            let mut index = 0u16;
            while start.elapsed() < Duration::from_millis(60) {
                index = index.wrapping_add(1);
                nic.describe(nic.descriptors(TX), &[raw(at, 118, 0, 0)])?;
                nic.offer(TX, &[0; 16], index)?;
                for (len, flags) in [(u32::MAX, 0), (118, WRITE), (1, NEXT), (0, INDIRECT)] {
                    nic.describe(nic.descriptors(TX), &[raw(at, len, flags, 0)])?;
                }
            }
            Ok(0)
        }),
        fresh("a frame that changes while it is read", Survives, |nic| {
            let good = [&[0; HEADER][..], &udp_to(SINK, &[0; 64])].concat();
            let bad = [&[0xff; HEADER][..], &udp_to(B, &[0; 400])].concat();
            let at = nic.place(&bad)?;
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(60) {
                nic.write(at, &good)?;
                nic.offer_chain(&[Piece::readable(at, good.len() as u32)])?;
                for _ in 0..20 {
                    // The header and the MAC address, never the address it is for.
                    nic.write(at, &bad[..HEADER])?;
                    nic.write(at, &good[..HEADER])?;
                }
                nic.sent(1)?;
            }
            Ok(0)
        }),
    ]
}

fn tables() -> Vec<Abuse> {
    let indirect = |name, settings, expect, entries: fn(&mut Nic, GuestAddress) -> Vec<Descriptor>| {
        Abuse::new(name, settings, expect, move |nic: &mut Nic| {
            let table = nic.room(16 * 1024);
            let entries = entries(nic, table);
            nic.describe(table, &entries)?;
            chain(nic, &[raw(table, 16 * entries.len() as u32, INDIRECT, 0)])
        })
    };
    let one = |nic: &mut Nic, _table| vec![raw(nic.room(128), 118, 0, 0)];
    vec![
        indirect("a table that was not negotiated", FRESH, Breaks("was not negotiated"), one),
        indirect("a table in a table", TABLES, Breaks("is itself indirect"), |_, table| {
            vec![raw(table, 16, INDIRECT, 0)]
        }),
        indirect("a table that loops", TABLES, Breaks("loops"), |nic, _| {
            let at = nic.room(128);
            vec![raw(at, 118, NEXT, 1), raw(at, 118, NEXT, 0)]
        }),
        indirect("a table that goes on outside", TABLES, Breaks("goes on at descriptor"), |nic, _| {
            let at = nic.room(128);
            vec![raw(at, 118, NEXT, 9), raw(at, 118, 0, 0)]
        }),
        Abuse::new("a table of half a descriptor", TABLES, Breaks("table"), |nic| {
            let table = nic.room(64);
            chain(nic, &[raw(table, 24, INDIRECT, 0)])
        }),
        Abuse::new("a table outside the memory", TABLES, Breaks("not inside the memory"), |nic| {
            chain(nic, &[raw(GuestAddress(NOWHERE), 32, INDIRECT, 0)])
        }),
    ]
}

fn packed() -> Vec<Abuse> {
    vec![
        Abuse::new("a packed ring that is one chain", PACKED, Breaks("needs more than the 256 slots"), |nic| {
            let at = frame(nic)?;
            let all: Vec<_> = (0..SIZE).map(|_| raw(at, 1, NEXT | AVAIL, 0)).collect();
            nic.describe(nic.descriptors(TX), &all)?;
            nic.kick(TX);
            Ok(0)
        }),
        Abuse::new("a packed buffer id beyond the ring", PACKED, Breaks("carries buffer id"), |nic| {
            let at = frame(nic)?;
            nic.describe(nic.descriptors(TX), &[raw(at, 118, AVAIL, SIZE)])?;
            nic.kick(TX);
            Ok(0)
        }),
        Abuse::new("a packed buffer id twice", PACKED, Breaks("before it was used"), |nic| {
            let at = frame(nic)?;
            nic.describe(nic.descriptors(TX), &[raw(at, 118, AVAIL, 3); 2])?;
            nic.kick(TX);
            Ok(0)
        }),
        Abuse::new("a packed writable frame", PACKED, Breaks("device-writable"), |nic| {
            let at = frame(nic)?;
            nic.describe(nic.descriptors(TX), &[raw(at, 118, AVAIL | WRITE, 0)])?;
            nic.kick(TX);
            Ok(0)
        }),
        Abuse::new("a packed table that was not negotiated", PACKED, Breaks("was not negotiated"), |nic| {
            let at = frame(nic)?;
            nic.describe(nic.descriptors(TX), &[raw(at, 16, AVAIL | INDIRECT, 0)])?;
            nic.kick(TX);
            Ok(0)
        }),
    ]
}
