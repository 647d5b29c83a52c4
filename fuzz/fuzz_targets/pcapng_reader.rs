//! A capture file: any bytes, in pieces of any size. What is read must not depend on the pieces, must be all that was
//! given, and must be the same when it is written and read again.
#![no_main]

use softdpu_pcapng::{Block, ETHERNET, EnhancedPacket, Interface, ReadError, Reader, write};

/// What a reader made of a file: its blocks in words, the bytes that they were, and how it ended.
#[derive(Debug, Default, PartialEq)]
struct Read {
    blocks: Vec<String>,
    bytes: Vec<u8>,
    error: Option<ReadError>,
}

fn read(file: &[u8], piece: usize) -> Read {
    let (mut reader, mut read) = (Reader::new(), Read::default());
    for piece in file.chunks(piece.max(1)) {
        reader.push(piece);
        loop {
            match reader.next_block() {
                Ok(Some((bytes, block))) => {
                    read.bytes.extend_from_slice(bytes);
                    read.blocks.push(format!("{block:?}"));
                    if let Block::Packet(packet) = &block {
                        goes_round(packet);
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    read.error = Some(error);
                    return read;
                }
            }
        }
    }
    assert_eq!(reader.is_between_blocks(), read.bytes.len() == file.len());
    read
}

/// Writes a packet and reads it again.
fn goes_round(packet: &EnhancedPacket<'_>) {
    let packet = EnhancedPacket { interface: 0, time: Some(packet.time.unwrap_or(0)), ..packet.clone() };
    let interface = Interface { name: None, description: None, filter: None, link_type: ETHERNET, snaplen: 0 };
    let mut file = Vec::new();
    write::section_header(&mut file, "fuzz");
    write::interface_description(&mut file, &interface);
    write::enhanced_packet(&mut file, &packet);
    let mut reader = Reader::new();
    reader.push(&file);
    let mut last = None;
    while let Some((_, block)) = reader.next_block().expect("what was written can be read") {
        last = Some(format!("{block:?}"));
    }
    assert_eq!(last, Some(format!("{:?}", Block::Packet(packet))));
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((&piece, file)) = data.split_first() else { return };
    let whole = read(file, file.len());
    assert!(file.starts_with(&whole.bytes), "blocks are not what was given");
    assert_eq!(read(file, piece.into()), whole);
});
