//! Frames from and to a virtio-net driver, hostile ones included.

use std::sync::Arc;

use proptest::prelude::*;
use softdpu_device::net::abi::{MAX_FRAME, feature};
use softdpu_device::net::{
    Checksum, Fit, Lacking, Misfit, Net, NetConfig, Part, RxError, RxHeader, Segmentation, SegmentationKind, TxDrop,
    TxError, TxFrame, TxHeader,
};
use softdpu_memory::{GuestAddress, GuestBuffer, Mapping, Region, UserAddress, View};

const MEMORY: u64 = 0x4_0000;

fn net() -> Net {
    Net::new(NetConfig::new([2, 0, 0, 0, 0, 1])).unwrap()
}

fn memory() -> Arc<View> {
    let region = Region::new(GuestAddress(0), UserAddress(0), MEMORY, Mapping::heap(MEMORY as usize), 0);
    View::new(vec![region]).unwrap()
}

/// A buffer of pieces with these lengths, with gaps in between.
fn buffer(view: &Arc<View>, mut at: u64, lens: &[u64]) -> GuestBuffer {
    let mut buffer = GuestBuffer::new(view);
    for len in lens {
        buffer.append(GuestAddress(at), *len).unwrap();
        at += len + 3;
    }
    buffer
}

fn frame(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// flags, gso_type, hdr_len, gso_size, csum_start, csum_offset, num_buffers.
fn header(flags: u8, gso: u8, size: u16, start: u16, offset: u16) -> [u8; 12] {
    let mut bytes = [flags, gso, 0xaa, 0xaa, 0, 0, 0, 0, 0, 0, 0xaa, 0xaa];
    bytes[4..6].copy_from_slice(&size.to_le_bytes());
    bytes[6..8].copy_from_slice(&start.to_le_bytes());
    bytes[8..10].copy_from_slice(&offset.to_le_bytes());
    bytes
}

fn sent_by(negotiated: u64, header: [u8; 12], len: usize) -> Result<TxFrame, TxError> {
    let view = memory();
    let chain = buffer(&view, 0x100, &[12, len as u64]);
    chain.write_at(0, &header).unwrap();
    net().transmit(negotiated).parse(&chain, chain.pieces())
}

fn sent(header: [u8; 12], len: usize) -> Result<TxFrame, TxError> {
    sent_by(u64::MAX, header, len)
}

const PARTIAL: Checksum = Checksum::Partial { start: 34, offset: 16 };

#[test]
fn an_ordinary_frame_is_found_however_its_driver_cut_it() {
    let view = memory();
    let data = frame(300);
    for lens in [vec![312], vec![12, 300], vec![10, 302], vec![1, 11, 1, 299], vec![13, 299]] {
        let chain = buffer(&view, 0x100, &lens);
        chain.write_at(0, &header(0, 0, 0, 0xffff, 0xffff)).unwrap();
        chain.write_at(12, &data).unwrap();
        let found = net().transmit(u64::MAX).parse(&chain, chain.pieces()).unwrap();
        // Without NEEDS_CSUM `csum_start` and `csum_offset` are ignored.
        let plain = TxHeader { checksum: Checksum::Complete, segmentation: None };
        assert_eq!(found, TxFrame { header: plain, len: 300 });
        let mut head = [0; 192];
        assert_eq!(found.copy_head(&chain, &mut head).unwrap(), 192);
        assert_eq!(head[..], data[..192]);
        let mut tail = [0; 108];
        found.read(&chain, 192, &mut tail).unwrap();
        assert_eq!(tail[..], data[192..]);
        assert!(found.read(&chain, 193, &mut tail).is_err(), "beyond the frame");
        let mut all = [0; 400];
        assert_eq!(found.copy_head(&chain, &mut all).unwrap(), 300);
        assert_eq!(all[..300], data);
    }
}

#[test]
fn chains_too_short_for_a_header_or_a_frame_are_dropped() {
    let view = memory();
    for len in 1..12 {
        let chain = buffer(&view, 0, &[len]);
        let error = net().transmit(u64::MAX).parse(&chain, chain.pieces());
        assert_eq!(error, Err(TxError::Drop(TxDrop::Header(len as u32))));
    }
    assert_eq!(sent(header(0, 0, 0, 0, 0), 13), Err(TxDrop::Short(13).into()));
    assert!(sent(header(0, 0, 0, 0, 0), 14).is_ok());
    assert!(sent(header(0, 0, 0, 0, 0), MAX_FRAME).is_ok());
    assert_eq!(sent(header(0, 0, 0, 0, 0), MAX_FRAME + 1), Err(TxDrop::Long(MAX_FRAME as u32 + 1).into()));
    let none = GuestBuffer::new(&view);
    assert_eq!(net().transmit(u64::MAX).parse(&none, 0), Err(TxDrop::Header(0).into()));
}

#[test]
fn a_transmit_chain_with_writable_bytes_breaks_the_queue() {
    let view = memory();
    let chain = buffer(&view, 0, &[12, 60, 4]);
    assert_eq!(net().transmit(u64::MAX).parse(&chain, 2), Err(TxError::Writable(4)));
    assert_eq!(net().transmit(u64::MAX).parse(&chain, 0), Err(TxError::Writable(76)));
    assert!(net().transmit(u64::MAX).parse(&chain, 3).is_ok());
}

#[test]
fn a_partial_checksum_lies_within_its_frame() {
    assert_eq!(sent(header(1, 0, 0, 34, 16), 54).unwrap().header.checksum, PARTIAL);
    assert_eq!(sent(header(1, 0, 0, 34, 16), 52).unwrap().header.checksum, PARTIAL, "its last byte is the frame's");
    for (start, offset, len) in [(34, 16, 51), (u16::MAX, u16::MAX, 60), (0, 59, 60), (60, 0, 60)] {
        let outside = TxDrop::ChecksumOutside { start, offset, len };
        assert_eq!(sent(header(1, 0, 0, start, offset), len as usize), Err(outside.into()));
    }
    let without = sent_by(!feature::CSUM, header(1, 0, 0, 34, 16), 60);
    assert_eq!(without, Err(TxDrop::ChecksumNotNegotiated.into()));
}

#[test]
fn unknown_flags_are_ignored() {
    // DATA_VALID, which is the device's to say, among them.
    for flags in (0..=u8::MAX).filter(|flags| flags & 1 == 0) {
        assert_eq!(sent(header(flags, 0, 0, 34, 16), 60).unwrap().header.checksum, Checksum::Complete);
        assert_eq!(sent(header(flags | 1, 0, 0, 34, 16), 60).unwrap().header.checksum, PARTIAL);
    }
}

#[test]
fn a_frame_to_be_cut_up_is_of_a_negotiated_kind() {
    use SegmentationKind::{TcpV4, TcpV6, Udp};
    let cases = [
        (1, TcpV4, false, feature::HOST_TSO4),
        (4, TcpV6, false, feature::HOST_TSO6),
        (5, Udp, false, feature::HOST_USO),
        (0x81, TcpV4, true, feature::HOST_TSO4 | feature::HOST_ECN),
        (0x84, TcpV6, true, feature::HOST_TSO6 | feature::HOST_ECN),
    ];
    for (gso, kind, ecn, needs) in cases {
        let frame = sent_by(needs | feature::CSUM, header(1, gso, 1448, 34, 16), 4000).unwrap();
        assert_eq!(frame.header.segmentation, Some(Segmentation { kind, size: 1448, ecn }));
        assert_eq!(frame.header.checksum, PARTIAL);
        for bit in (0..64).map(|bit| 1 << bit).filter(|bit| needs & bit != 0) {
            let refused = sent_by(!bit, header(1, gso, 1448, 34, 16), 4000);
            assert_eq!(refused, Err(TxDrop::SegmentationNotNegotiated(gso).into()));
        }
        assert_eq!(sent(header(1, gso, 0, 34, 16), 4000), Err(TxDrop::SegmentSize.into()));
        assert_eq!(sent(header(0, gso, 1448, 34, 16), 4000), Err(TxDrop::SegmentationWithoutChecksum.into()));
    }
    for gso in (0..=u8::MAX).filter(|gso| ![0, 1, 4, 5, 0x81, 0x84].contains(gso)) {
        let refused = sent(header(1, gso, 1448, 34, 16), 4000);
        assert_eq!(refused, Err(TxDrop::SegmentationNotNegotiated(gso).into()), "{gso:#x}");
    }
}

fn segmented(kind: SegmentationKind, ecn: bool) -> RxHeader {
    RxHeader {
        checksum: PARTIAL,
        segmentation: Some(Segmentation { kind, size: 1448, ecn }),
        headers: 54,
        ipv6: kind == SegmentationKind::TcpV6,
    }
}

#[test]
fn a_driver_is_told_no_more_than_it_accepted() {
    let built = |header: RxHeader, negotiated| header.build(negotiated);
    let plain = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    assert_eq!(built(RxHeader::default(), 0), Ok(plain));
    let valid = RxHeader { checksum: Checksum::Valid, ..RxHeader::default() };
    assert_eq!(built(valid, 0), Ok(plain));
    assert_eq!(built(valid, feature::GUEST_CSUM), Ok([2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]));
    let partial = RxHeader { checksum: PARTIAL, ..RxHeader::default() };
    assert_eq!(built(partial, !feature::GUEST_CSUM), Err(Lacking::Checksum));
    assert_eq!(built(partial, feature::GUEST_CSUM), Ok([1, 0, 0, 0, 0, 0, 34, 0, 16, 0, 1, 0]));

    use SegmentationKind::{TcpV4, TcpV6, Udp};
    let udp6 = RxHeader { ipv6: true, ..segmented(Udp, false) };
    for (header, gso, needs) in [
        (segmented(TcpV4, false), 1, feature::GUEST_TSO4),
        (segmented(TcpV6, false), 4, feature::GUEST_TSO6),
        (segmented(TcpV4, true), 0x81, feature::GUEST_TSO4 | feature::GUEST_ECN),
        (segmented(TcpV6, true), 0x84, feature::GUEST_TSO6 | feature::GUEST_ECN),
        (segmented(Udp, false), 5, feature::GUEST_USO4),
        (udp6, 5, feature::GUEST_USO6),
    ] {
        let bytes = [1, gso, 54, 0, 0xa8, 0x05, 34, 0, 16, 0, 1, 0];
        assert_eq!(built(header, needs | feature::GUEST_CSUM), Ok(bytes));
        for bit in (0..64).map(|bit| 1 << bit).filter(|bit| needs & bit != 0) {
            assert_eq!(built(header, !bit), Err(Lacking::Segmentation), "{header:?}");
        }
        assert_eq!(built(header, !feature::GUEST_CSUM), Err(Lacking::Checksum));
        let complete = RxHeader { checksum: Checksum::Valid, ..header };
        assert_eq!(built(complete, u64::MAX), Err(Lacking::Segmentation), "its segments would have no checksum");
    }
}

#[test]
fn a_receive_chain_is_writable_and_has_room_for_the_header() {
    let view = memory();
    let receive = net().receive(u64::MAX);
    let chain = buffer(&view, 0, &[5, 6, 1]);
    assert_eq!(receive.offer(&chain, 0), Ok(12));
    assert_eq!(receive.offer(&chain, 1), Err(RxError::Readable(5)));
    assert_eq!(receive.offer(&chain, 3), Err(RxError::Readable(12)));
    assert_eq!(receive.offer(&buffer(&view, 0, &[5, 6]), 0), Err(RxError::Header(11)));
    assert_eq!(receive.offer(&GuestBuffer::new(&view), 0), Err(RxError::Header(0)));
}

#[test]
fn a_frame_takes_as_many_buffers_as_it_needs_or_one() {
    let merged = net().receive(feature::MRG_RXBUF);
    assert_eq!(merged.fit(88, [100, 100]), Fit::Buffers(1));
    assert_eq!(merged.fit(89, [100, 100]), Fit::Buffers(2));
    assert_eq!(merged.fit(188, [100, 100]), Fit::Buffers(2));
    assert_eq!(merged.fit(189, [100, 100]), Fit::More);
    assert_eq!(merged.fit(14, []), Fit::More);
    let single = net().receive(0);
    assert_eq!(single.fit(88, [100, 100]), Fit::Buffers(1));
    assert_eq!(single.fit(89, [100, 100]), Fit::Never);
    assert_eq!(single.fit(14, []), Fit::More);
}

#[test]
fn a_misfit_is_told_and_not_delivered() {
    let view = memory();
    let receive = net().receive(u64::MAX);
    let small = [buffer(&view, 0, &[20])];
    let data = frame(60);
    let header = RxHeader::default().build(0).unwrap();
    assert_eq!(receive.deliver(header, &[Part::Bytes(&data)], &small, 1, |_| {}), Err(Misfit));
    let roomy = [buffer(&view, 0, &[100])];
    let guest = Part::Guest { buffer: &small[0], offset: 10, len: 11 };
    assert_eq!(receive.deliver(header, &[guest], &roomy, 1, |_| {}), Err(Misfit), "a part that is not there");
    assert_eq!(receive.deliver(header, &[Part::Bytes(&data)], &[], 1, |_| {}), Err(Misfit));
    let tiny = [buffer(&view, 0, &[11])];
    assert_eq!(receive.deliver(header, &[], &tiny, 1, |_| {}), Err(Misfit));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_delivered_frame_is_in_its_buffers_each_filled_before_the_next(
        heads in 0..200usize,
        tail in 0..3000usize,
        from_guest: bool,
        offers in prop::collection::vec(prop::collection::vec(1..600u64, 1..4), 1..12),
    ) {
        let view = memory();
        let receive = net().receive(feature::MRG_RXBUF);
        let mut at = 0x2_0000;
        let buffers: Vec<GuestBuffer> = offers
            .iter()
            .map(|lens| {
                at += 0x1000;
                let mut lens = lens.clone();
                lens[0] += 12;
                let buffer = buffer(&view, at, &lens);
                buffer.fill(0, buffer.len(), 0xee).unwrap();
                buffer
            })
            .collect();
        let data = frame(heads + tail);
        let source = buffer(&view, 0x100, &[12 + 100, 5, 3000]);
        source.write_at(12, &data[heads..]).unwrap();
        let rest = if from_guest {
            Part::Guest { buffer: &source, offset: 12, len: tail }
        } else {
            Part::Bytes(&data[heads..])
        };
        let rooms: Vec<u32> = buffers.iter().map(|buffer| receive.offer(buffer, 0).unwrap()).collect();
        let Fit::Buffers(count) = receive.fit(data.len(), rooms.iter().copied()) else {
            prop_assert!(rooms.iter().sum::<u32>() < data.len() as u32 + 12);
            return Ok(());
        };
        let mut used = Vec::new();
        let header = RxHeader::default().build(0).unwrap();
        let parts = [Part::Bytes(&data[..heads]), rest];
        receive.deliver(header, &parts, &buffers, count, |bytes| used.push(bytes)).unwrap();

        prop_assert_eq!(used.len(), usize::from(count));
        let mut seen = Vec::new();
        for (index, (buffer, used)) in buffers.iter().zip(&used).enumerate() {
            let mut bytes = vec![0; *used as usize];
            buffer.read_at(0, &mut bytes).unwrap();
            seen.extend(bytes);
            prop_assert!(*used == rooms[index] || index + 1 == usize::from(count), "full, or the last");
            let mut behind = vec![0; buffer.len() as usize - *used as usize];
            buffer.read_at(u64::from(*used), &mut behind).unwrap();
            prop_assert!(behind.iter().all(|byte| *byte == 0xee), "nothing behind what is used");
        }
        prop_assert_eq!(&seen[..10], &[0; 10]);
        prop_assert_eq!(u16::from_le_bytes([seen[10], seen[11]]), count);
        prop_assert_eq!(&seen[12..], &data[..]);
    }

    /// Whatever a driver writes: what is taken is within the frame and was negotiated.
    #[test]
    fn an_arbitrary_header_gives_nothing_that_was_not_negotiated(
        mut bytes: [u8; 12], len in 0..70_000u32, negotiated: u64, small: bool,
    ) {
        if small {
            bytes[1] &= 0x87;
            (bytes[7], bytes[9]) = (0, 0);
        }
        let Ok(header) = TxHeader::parse(&bytes, len, negotiated) else { return Ok(()) };
        prop_assert!((14..=MAX_FRAME as u32).contains(&len));
        if let Checksum::Partial { start, offset } = header.checksum {
            prop_assert!(negotiated & feature::CSUM != 0);
            prop_assert!(u32::from(start) + u32::from(offset) + 2 <= len);
        }
        if let Some(segmentation) = header.segmentation {
            prop_assert!(header.checksum != Checksum::Complete);
            prop_assert!(segmentation.size > 0);
            prop_assert!(!segmentation.ecn || negotiated & feature::HOST_ECN != 0);
        }
    }
}
