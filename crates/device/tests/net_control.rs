//! virtio-net as the control side and the transport see it: features, configuration space, saved state.

use softdpu_device::RestoreError;
use softdpu_device::net::abi::feature;
use softdpu_device::net::{ConfigSpaceError, Mac, MtuError, Net, NetConfig, NetConfigError, NetState, QueueRole};

/// What is made of a configuration.
type Change = fn(&mut NetConfig);

const MAC: [u8; 6] = [0x02, 0x5d, 0, 0, 0, 2];

fn net(change: impl FnOnce(&mut NetConfig)) -> Net {
    let mut config = NetConfig::new(MAC);
    change(&mut config);
    Net::new(config).unwrap()
}

/// What QEMU's vhost-user netdev masks with the back end's bits (hw/net/vhost_net.c, `user_feature_bits`) and this
/// device wants its driver to have. QEMU 7.2 knows neither segmentation of UDP nor IN_ORDER.
const SEEN_THROUGH_QEMU: [u32; 16] = [0, 1, 3, 7, 8, 9, 11, 12, 13, 15, 21, 22, 28, 29, 32, 34];
const SEEN_THROUGH_LATER_QEMU: [u32; 4] = [35, 54, 55, 56];
/// MAC, STATUS, CTRL_VQ and what depends on it: the front end's own.
const OF_THE_FRONT_END: [u32; 8] = [5, 16, 17, 18, 19, 20, 23, 2];

fn bits(numbers: &[u32]) -> u64 {
    numbers.iter().map(|bit| 1u64 << bit).sum()
}

#[test]
fn a_back_end_offers_what_a_front_end_masks_and_not_what_it_owns() {
    let features = net(|c| c.queue_pairs = 2).features();
    assert_eq!(features, bits(&SEEN_THROUGH_QEMU) | bits(&SEEN_THROUGH_LATER_QEMU));
    assert_eq!(features & bits(&OF_THE_FRONT_END), 0);
}

#[test]
fn features_follow_the_configuration() {
    let least = |c: &mut NetConfig| {
        (c.packed, c.checksum_offload, c.segmentation_offload) = (false, false, false);
    };
    let always = bits(&[3, 15, 21, 28, 29, 32, 35]);
    assert_eq!(net(least).features(), always);
    for (name, more, change) in [
        ("packed", bits(&[34]), (|c| c.packed = true) as Change),
        ("two pairs", bits(&[22]), |c| c.queue_pairs = 2),
        ("checksums", bits(&[0, 1]), |c| c.checksum_offload = true),
        ("segmentation", bits(&[0, 1, 7, 8, 9, 11, 12, 13, 54, 55, 56]), |c| {
            (c.checksum_offload, c.segmentation_offload) = (true, true);
        }),
    ] {
        let with = net(|c| {
            least(c);
            change(c);
        });
        assert_eq!(with.features(), always | more, "{name}");
    }
}

#[test]
fn a_feature_without_one_it_needs_is_refused() {
    let device = net(|_| {});
    assert_eq!(device.check_features(device.features()), Ok(()));
    assert_eq!(device.check_features(feature::VERSION_1), Ok(()));
    let cases: [(u64, &str); 10] = [
        (feature::GUEST_TSO4 | feature::CSUM, "GUEST_TSO4 needs GUEST_CSUM"),
        (feature::GUEST_TSO6, "GUEST_TSO6 needs GUEST_CSUM"),
        (feature::GUEST_USO4, "GUEST_USO4 needs GUEST_CSUM"),
        (feature::GUEST_USO6, "GUEST_USO6 needs GUEST_CSUM"),
        (feature::GUEST_ECN | feature::GUEST_CSUM | feature::GUEST_USO4, "GUEST_ECN needs GUEST_TSO4 or GUEST_TSO6"),
        (feature::HOST_TSO4 | feature::GUEST_CSUM, "HOST_TSO4 needs CSUM"),
        (feature::HOST_TSO6, "HOST_TSO6 needs CSUM"),
        (feature::HOST_USO, "HOST_USO needs CSUM"),
        (feature::HOST_ECN | feature::CSUM | feature::HOST_USO, "HOST_ECN needs HOST_TSO4 or HOST_TSO6"),
        (feature::CSUM | feature::MRG_RXBUF, "this device needs VERSION_1"),
    ];
    for (accepted, text) in cases {
        let version = if text.ends_with("VERSION_1") { 0 } else { feature::VERSION_1 };
        let error = device.check_features(accepted | version).unwrap_err();
        assert!(error.to_string().starts_with(text), "{error}");
    }
    // MQ and GUEST_ANNOUNCE need CTRL_VQ, which a back end never sees.
    let without = feature::VERSION_1 | feature::MQ | feature::GUEST_ANNOUNCE;
    assert_eq!(device.check_features(without), Ok(()));
}

#[test]
fn the_configuration_space_is_laid_out_as_in_the_specification() {
    let device = net(|c| (c.queue_pairs, c.mtu) = (3, 0x2328));
    let mut space = [0xaa; 12];
    device.read_config(0, &mut space).unwrap();
    // mac, status: link up, max_virtqueue_pairs, mtu.
    assert_eq!(space, [0x02, 0x5d, 0, 0, 0, 2, 1, 0, 3, 0, 0x28, 0x23]);
    for offset in 0..=12 {
        for len in 0..=12 - offset {
            let mut part = vec![0; len];
            device.read_config(offset as u32, &mut part).unwrap();
            assert_eq!(part, space[offset..offset + len]);
        }
    }
    for (offset, len) in [(0, 13), (12, 1), (13, 0), (u32::MAX, 1)] {
        assert_eq!(device.read_config(offset, &mut vec![0; len]), Err(ConfigSpaceError { offset, len }));
    }
}

#[test]
fn configurations_that_make_no_sense_are_refused() {
    let cases: [(NetConfigError, Change); 9] = [
        (NetConfigError::Mac(Mac([0; 6])), |c| c.mac = [0; 6]),
        (NetConfigError::Mac(Mac([1, 0, 0x5e, 0, 0, 1])), |c| c.mac = [1, 0, 0x5e, 0, 0, 1]),
        (NetConfigError::Mtu(67), |c| c.mtu = 67),
        (NetConfigError::QueuePairs(0), |c| c.queue_pairs = 0),
        (NetConfigError::QueuePairs(129), |c| c.queue_pairs = 129),
        (NetConfigError::QueueSize(2), |c| c.queue_size = 2),
        (NetConfigError::QueueSize(255), |c| c.queue_size = 255),
        (NetConfigError::QueueSize(0), |c| c.queue_size = 0),
        (NetConfigError::SegmentationWithoutChecksum, |c| c.checksum_offload = false),
    ];
    for (expected, change) in cases {
        let mut config = NetConfig::new(MAC);
        change(&mut config);
        assert_eq!(Net::new(config).unwrap_err(), expected);
    }
    let text = NetConfigError::Mac(Mac([1, 0, 0x5e, 0, 0, 0xa1])).to_string();
    assert!(text.contains("01:00:5e:00:00:a1"), "{text}");
}

#[test]
fn an_mtu_is_taken_up_to_the_configured_one() {
    let device = net(|c| c.mtu = 9000);
    for mtu in [68, 1500, 9000] {
        assert_eq!(device.check_mtu(mtu), Ok(()));
    }
    for mtu in [0, 67, 9001, 1 << 16 | 1500, u64::MAX] {
        assert_eq!(device.check_mtu(mtu), Err(MtuError { mtu, most: 9000 }));
    }
}

#[test]
fn queues_take_turns_in_receiving_and_transmitting() {
    assert_eq!(net(|c| c.queue_pairs = 5).queues(), 10);
    let roles: Vec<QueueRole> = (0..4).map(QueueRole::of).collect();
    use QueueRole::{Receive, Transmit};
    assert_eq!(roles, [Receive { pair: 0 }, Transmit { pair: 0 }, Receive { pair: 1 }, Transmit { pair: 1 }]);
}

fn saved() -> Net {
    net(|c| (c.queue_pairs, c.queue_size, c.mtu) = (4, 1024, 8950))
}

#[test]
fn the_saved_form_is_that_of_the_golden_file() {
    let golden: NetState = serde_json::from_str(include_str!("golden/net-state-v1.json")).unwrap();
    assert_eq!(saved().save(), golden);
    assert_eq!(saved().restore(&golden), Ok(()));
    let text = serde_json::to_string_pretty(&golden).unwrap();
    assert_eq!(text, include_str!("golden/net-state-v1.json").trim_end());
    let newer =
        include_str!("golden/net-state-v1.json").replace("\"version\": 1", "\"version\": 2, \"colour\": \"red\"");
    let newer: NetState = serde_json::from_str(&newer).unwrap();
    assert_eq!(saved().restore(&newer), Ok(()), "the release after ours");
}

#[test]
fn a_device_that_cannot_keep_a_promise_does_not_take_over() {
    let state = saved().save();
    for version in [0, 3] {
        assert_eq!(
            saved().restore(&NetState { version, ..state.clone() }),
            Err(RestoreError::Version { found: version, newest: 2 })
        );
    }
    let like_before = |change: Change| {
        net(|c| {
            (c.queue_pairs, c.queue_size, c.mtu) = (4, 1024, 8950);
            change(c);
        })
    };
    assert_eq!(like_before(|c| c.packed = false).restore(&state), Err(RestoreError::Features(feature::RING_PACKED)));
    let cases: [(&str, u16, u16, Change); 3] = [
        ("queue_pairs", 4, 3, |c| c.queue_pairs = 3),
        ("queue_size", 1024, 512, |c| c.queue_size = 512),
        ("mtu", 8950, 1500, |c| c.mtu = 1500),
    ];
    for (field, saved, configured, change) in cases {
        let error = RestoreError::Promise { field, saved: saved.into(), configured: configured.into() };
        assert_eq!(like_before(change).restore(&state), Err(error));
    }
    assert_eq!(like_before(|c| (c.queue_pairs, c.mtu) = (8, 9000)).restore(&state), Ok(()), "more is no harm");
}
