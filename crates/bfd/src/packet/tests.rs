use proptest::prelude::*;

use super::*;

/// What FRR's bfdd sends first: down, one second, three times.
const FIRST: [u8; 24] =
    [0x20, 0x40, 3, 24, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0x0f, 0x42, 0x40, 0, 0x01, 0x86, 0xa0, 0, 0, 0, 0];

#[test]
fn a_packet_of_another_implementation_is_read() {
    let packet = ControlPacket::parse(&FIRST).unwrap();
    assert_eq!(packet.state, State::Down);
    assert_eq!(packet.diagnostic, Diagnostic::None);
    assert_eq!((packet.detect_multiplier, packet.my_discriminator.get(), packet.your_discriminator), (3, 7, None));
    assert_eq!((packet.desired_min_tx, packet.required_min_rx), (1_000_000, 100_000));
    assert!(!packet.poll && !packet.is_final && !packet.demand && !packet.control_plane_independent);
    assert_eq!(packet.to_bytes(), FIRST);
}

#[test]
fn each_rule_for_the_form_of_a_packet_is_held() {
    let with = |at: usize, value: u8| {
        let mut bytes = FIRST;
        bytes[at] = value;
        ControlPacket::parse(&bytes).unwrap_err()
    };
    assert_eq!(ControlPacket::parse(&FIRST[..23]), Err(PacketError::Short { found: 23, expected: 24 }));
    assert_eq!(ControlPacket::parse(&[]), Err(PacketError::Short { found: 0, expected: 24 }));
    assert_eq!(with(0, 0x40), PacketError::Version(2));
    assert_eq!(with(2, 0), PacketError::Multiplier);
    assert_eq!(with(3, 23), PacketError::Length(23));
    assert_eq!(with(3, 25), PacketError::Short { found: 24, expected: 25 });
    assert_eq!(with(1, 0x41), PacketError::Multipoint);
    assert_eq!(with(1, 0x44), PacketError::Authenticated);
    assert_eq!(with(7, 0), PacketError::Discriminator);
    assert_eq!(with(1, 0xc0), PacketError::Unaddressed, "up, and no discriminator");
    assert_eq!(with(1, 0x80), PacketError::Unaddressed, "init, and no discriminator");
    assert_eq!(ControlPacket::parse(&[&FIRST[..], &[9; 40]].concat()).unwrap().to_bytes(), FIRST, "bytes behind it");
}

proptest! {
    #[test]
    fn nothing_from_the_network_panics_and_what_is_read_is_written_again(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(packet) = ControlPacket::parse(&bytes) {
            let again = ControlPacket::parse(&packet.to_bytes()).unwrap();
            prop_assert_eq!(again, packet);
        }
    }

    /// Mostly valid packets, so that the rest of the rules is reached.
    #[test]
    fn nearly_valid_packets_do_not_panic(at in 0..24usize, value in any::<u8>()) {
        let mut bytes = FIRST;
        bytes[at] = value;
        if let Ok(packet) = ControlPacket::parse(&bytes) {
            prop_assert_eq!(ControlPacket::parse(&packet.to_bytes()), Ok(packet));
        }
    }
}
