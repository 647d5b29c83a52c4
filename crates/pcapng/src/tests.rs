use proptest::prelude::*;

use super::*;

/// Everything that a reader gives, of bytes that arrive `step` at a time.
fn read(bytes: &[u8], step: usize) -> Result<Vec<Block<'static>>, ReadError> {
    let mut reader = Reader::new();
    let mut found = Vec::new();
    for piece in bytes.chunks(step.max(1)) {
        reader.push(piece);
        while let Some((_, block)) = reader.next_block()? {
            found.push(owned(block));
        }
    }
    assert!(reader.is_between_blocks());
    Ok(found)
}

fn owned(block: Block<'_>) -> Block<'static> {
    let text = |text: Option<Cow<'_, str>>| text.map(|text| Cow::Owned(text.into_owned()));
    match block {
        Block::Section { application } => Block::Section { application: text(application) },
        Block::Interface(Interface { name, description, filter, link_type, snaplen }) => {
            let (name, description, filter) = (text(name), text(description), text(filter));
            Block::Interface(Interface { name, description, filter, link_type, snaplen })
        }
        Block::Packet(EnhancedPacket { bytes, comments, interface, time, original, direction, lost }) => {
            let bytes = Cow::Owned(bytes.into_owned());
            let comments = comments.into_iter().map(|comment| Cow::Owned(comment.into_owned())).collect();
            Block::Packet(EnhancedPacket { bytes, comments, interface, time, original, direction, lost })
        }
        Block::Statistics(statistics) => Block::Statistics(statistics),
        Block::Other { kind } => Block::Other { kind },
    }
}

fn written(blocks: &[Block<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for block in blocks {
        match block {
            Block::Section { application } => write::section_header(&mut bytes, application.as_deref().unwrap_or("")),
            Block::Interface(interface) => write::interface_description(&mut bytes, interface),
            Block::Packet(packet) => write::enhanced_packet(&mut bytes, packet),
            Block::Statistics(statistics) => write::interface_statistics(&mut bytes, 0, statistics),
            Block::Other { .. } => {}
        }
    }
    bytes
}

fn any_text() -> impl Strategy<Value = Cow<'static, str>> {
    "[a-z é/]{0,9}".prop_map(Cow::Owned)
}

fn any_packet() -> impl Strategy<Value = EnhancedPacket<'static>> {
    let direction = prop::sample::select(vec![None, Some(Direction::In), Some(Direction::Out)]);
    let bytes = prop::collection::vec(any::<u8>(), 0..70);
    let more = (direction, any::<Option<u64>>(), prop::collection::vec(any_text(), 0..3));
    (0..2u32, any::<u64>(), any::<u32>(), bytes, more).prop_map(
        |(interface, time, original, bytes, (direction, lost, comments))| {
            let (time, bytes) = (Some(time), Cow::Owned(bytes));
            EnhancedPacket { interface, time, original, bytes, direction, lost, comments }
        },
    )
}

fn any_interface() -> impl Strategy<Value = Block<'static>> {
    let interface = (prop::option::of(any_text()), prop::option::of(any_text()), any::<u16>(), any::<u32>());
    interface.prop_map(|(name, filter, link_type, snaplen)| {
        Block::Interface(Interface { description: filter.clone(), name, filter, link_type, snaplen })
    })
}

fn any_blocks() -> impl Strategy<Value = Vec<Block<'static>>> {
    let statistics = (any::<u32>(), any::<Option<u64>>(), any::<Option<u64>>()).prop_map(|(interface, one, other)| {
        Block::Statistics(Statistics { interface, received: one, accepted: other, lost: one, delivered: other })
    });
    let block = prop_oneof![any_packet().prop_map(Block::Packet), statistics];
    (any_text(), [any_interface(), any_interface()], prop::collection::vec(block, 0..8)).prop_map(
        |(application, interfaces, blocks)| {
            let head = [Block::Section { application: Some(application) }];
            head.into_iter().chain(interfaces).chain(blocks).collect()
        },
    )
}

proptest! {
    #[test]
    fn what_is_written_is_read_however_it_arrives(blocks in any_blocks(), again in any_blocks(), step in 1..64usize) {
        // Two sections in one file: the second numbers its interfaces anew.
        let blocks = [blocks, again].concat();
        prop_assert_eq!(read(&written(&blocks), step).unwrap(), blocks);
    }

    #[test]
    fn any_bytes_are_blocks_an_error_or_not_enough(
        blocks in any_blocks(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        order in any::<bool>(),
    ) {
        let mut bytes = written(&blocks);
        if order {
            swap_header(&mut bytes);
        }
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(bytes.len() + 1));
        let mut reader = Reader::new();
        reader.push(&bytes);
        while let Ok(Some((raw, _))) = reader.next_block() {
            prop_assert!(raw.len() >= FRAME);
        }
    }
}

/// Makes the first section one of the other byte order, in its header alone.
fn swap_header(bytes: &mut [u8]) {
    for word in [4, 8] {
        bytes[word..word + 4].reverse();
    }
    let end = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]) as usize;
    bytes[12..14].reverse();
    bytes[end - 4..end].reverse();
}

/// A file of another program, big-endian, in microseconds, with a block of an unknown type and a Simple Packet.
fn foreign() -> Vec<u8> {
    let block = |kind: u32, body: &[u8]| {
        let len = ((body.len() + FRAME) as u32).to_be_bytes();
        [&kind.to_be_bytes(), &len, body, &len].concat()
    };
    let word = |word: u32| word.to_be_bytes();
    let section = [&word(BYTE_ORDER)[..], &[0, 1, 0, 0], &[0xff; 8]].concat();
    let interface = [&[0, 1, 0, 0][..], &word(4)].concat();
    // if_tsresol 2^-10 s, if_tsoffset 5 s; the list ends without its end.
    let binary =
        [&[0, 1, 0, 0][..], &word(0), &[0, 9, 0, 1, 0x8a, 0, 0, 0], &[0, 14, 0, 8], &5u64.to_be_bytes()].concat();
    let packet = |interface: u32, ticks: u32| {
        let fields = [word(interface), word(0), word(ticks), word(3), word(60)].concat();
        [&fields[..], &[7, 8, 9, 0], &[0, 2, 0, 4], &word(2)].concat()
    };
    [
        block(kind::SECTION, &section),
        block(kind::INTERFACE, &interface),
        block(kind::INTERFACE, &binary),
        block(0x0bad, &[1; 8]),
        block(kind::ENHANCED_PACKET, &packet(0, 7)),
        block(kind::ENHANCED_PACKET, &packet(1, 512)),
        block(kind::SIMPLE_PACKET, &[&word(60)[..], &[1, 2, 3, 4]].concat()),
    ]
    .concat()
}

#[test]
fn files_of_the_other_byte_order_are_read() {
    let blocks = read(&foreign(), 7).unwrap();
    let packets: Vec<_> = blocks
        .iter()
        .filter_map(|block| match block {
            Block::Packet(packet) => Some((packet.interface, packet.time, packet.bytes.to_vec(), packet.direction)),
            _ => None,
        })
        .collect();
    let out = Some(Direction::Out);
    assert_eq!(
        packets,
        [
            (0, Some(7_000), vec![7, 8, 9], out),
            (1, Some(5_500_000_000), vec![7, 8, 9], out),
            (0, None, vec![1, 2, 3, 4], None)
        ]
    );
    assert!(blocks.contains(&Block::Other { kind: 0x0bad }));
}

#[test]
fn errors_say_what_is_wrong_and_where() {
    let error = |bytes: &[u8]| read(bytes, bytes.len()).unwrap_err().to_string();
    let [mut long, mut torn, mut version] = [foreign(), foreign(), foreign()];
    assert!(error(&[0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0]).contains("editcap -F pcapng"));
    assert!(error(b"PK\x03\x04........").contains("no pcapng file"));
    long[32..36].copy_from_slice(&[0xff; 4]);
    assert!(error(&long).starts_with("byte 28: a block of 4294967295 bytes"), "{}", error(&long));
    torn[24] = 1;
    assert!(error(&torn).starts_with("byte 0: a block of type 0xa0d0d0a contradicts itself"), "{}", error(&torn));
    version[13] = 2;
    assert_eq!(error(&version), "byte 0: version 2 of pcapng is not known, only version 1");
    let mut nobody = Vec::new();
    write::section_header(&mut nobody, "test");
    let packet = EnhancedPacket {
        interface: 3,
        time: Some(0),
        original: 0,
        bytes: Cow::Borrowed(&[]),
        direction: None,
        lost: None,
        comments: Vec::new(),
    };
    write::enhanced_packet(&mut nobody, &packet);
    assert!(error(&nobody).ends_with("a packet of interface 3, which the section does not describe"));
}

#[test]
fn a_file_that_is_cut_off_gives_what_it_has() {
    let bytes = foreign();
    let mut reader = Reader::new();
    reader.push(&bytes[..bytes.len() - 1]);
    let mut count = 0;
    while reader.next_block().unwrap().is_some() {
        count += 1;
    }
    assert_eq!(count, 6);
    assert!(!reader.is_between_blocks());
}
