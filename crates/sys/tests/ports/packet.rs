//! AF_PACKET on veth pairs.

use std::net::UdpSocket;

use softdpu_sys::AlignedBuffer;
use softdpu_sys::port::packet::{Fanout, FanoutMode, PacketOptions, PacketSocket, PortSink};
use softdpu_sys::port::{Outgoing, PortError, VnetHeader};
use softdpu_virtio::net_header::GSO_TCPV4;

use crate::lab::{Lab, number, numbered, readable, transfer, until};

fn open(lab: &Lab, index: usize, name: &str, options: PacketOptions) -> PacketSocket {
    lab.within(index, || PacketSocket::open(name, &options).unwrap())
}

#[test]
fn ten_thousand_frames_arrive_in_order_both_ways() {
    const COUNT: u32 = 10_000;
    let Some(lab) = Lab::new("AF_PACKET, 10,000 frames", 2) else { return };
    lab.veth((0, "veth0"), (1, "veth1"));
    let mut ends = [open(&lab, 0, "veth0", PacketOptions::default()), open(&lab, 1, "veth1", PacketOptions::default())];
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    until("10,000 frames each way", || {
        for here in 0..2 {
            let end = &mut ends[here];
            for _ in 0..32 {
                // Of several sizes, some beyond the ring's slots.
                let len = 60 + sent[here] as usize % 1440;
                if let (true, Some(space)) = (sent[here] < COUNT, end.reserve(len)) {
                    numbered(sent[here], space);
                    assert!(end.commit(VnetHeader::default(), len));
                    sent[here] += 1;
                }
            }
            end.flush().unwrap();
            end.receive(64, |frames| {
                for frame in frames {
                    if let Some(number) = number(frame.bytes) {
                        assert_eq!(number, received[here]);
                        assert_eq!(frame.bytes.len(), 60 + number as usize % 1440);
                        received[here] += 1;
                    }
                }
            })
            .unwrap();
        }
        received == [COUNT; 2]
    });
    for end in &mut ends {
        assert_eq!((end.counters().sent, end.counters().refused, end.kernel_drops()), (COUNT.into(), 0, 0));
    }
}

/// What a forwarder saw in one direction.
#[derive(Debug, Default)]
struct Seen {
    longest: usize,
    unfinished: u64,
    without_place: u64,
}

fn forward(from: &mut PacketSocket, to: &mut PacketSocket, seen: &mut Seen) {
    from.receive(64, |frames| {
        for frame in frames {
            seen.unfinished += u64::from(frame.header.needs_csum());
            if frame.header.gso_type & !VnetHeader::GSO_ECN == GSO_TCPV4 {
                seen.longest = seen.longest.max(frame.bytes.len());
            }
            match to.reserve(frame.bytes.len()) {
                Some(space) => {
                    space.copy_from_slice(frame.bytes);
                    to.commit(frame.header, frame.bytes.len());
                }
                None => seen.without_place += 1,
            }
        }
    })
    .unwrap();
    to.flush().unwrap();
}

#[test]
fn large_segments_and_unfinished_checksums_pass_between_two_stacks() {
    let Some(lab) = Lab::new("AF_PACKET with offloads", 3) else { return };
    lab.veth((0, "veth0"), (1, "left"));
    lab.veth((2, "veth0"), (1, "right"));
    lab.ip(0, "address add 10.9.0.1/24 dev veth0");
    lab.ip(2, "address add 10.9.0.2/24 dev veth0");
    let mut left = open(&lab, 1, "left", PacketOptions::default());
    let mut right = open(&lab, 1, "right", PacketOptions::default());
    let transfer = transfer(&lab, 0, 2, "10.9.0.2");
    let (mut there, mut back) = (Seen::default(), Seen::default());
    until("8 MiB both ways", || {
        forward(&mut left, &mut right, &mut there);
        forward(&mut right, &mut left, &mut back);
        transfer.is_finished()
    });
    transfer.join().unwrap();
    for seen in [there, back] {
        assert!(seen.longest > 60_000 && seen.unfinished > 0, "{seen:?}");
    }
    for end in [left, right] {
        assert_eq!((end.counters().truncated, end.counters().refused), (0, 0));
    }
}

#[test]
fn the_filter_takes_one_udp_port_of_both_ip_versions() {
    let Some(lab) = Lab::new("AF_PACKET's filter", 2) else { return };
    lab.veth((0, "veth0"), (1, "veth1"));
    for (index, last) in [(0, 1), (1, 2)] {
        lab.ip(index, &format!("address add 10.9.0.{last}/24 dev veth{index}"));
        lab.ip(index, &format!("address add fd00::{last}/64 dev veth{index} nodad"));
    }
    let mut port = open(&lab, 1, "veth1", PacketOptions { udp_port: Some(4789), ..PacketOptions::default() });
    for (from, to) in [("10.9.0.1:0", "10.9.0.2"), ("[fd00::1]:0", "fd00::2")] {
        let socket = lab.within(0, || UdpSocket::bind(from).unwrap());
        for udp_port in [4788, 4789, 4790] {
            let text = format!("to {to} {udp_port}");
            socket.send_to(text.as_bytes(), (to, udp_port)).unwrap();
        }
        // A fragmented datagram is the kernel's.
        socket.send_to(&[0; 4000], (to, 4789)).unwrap();
        assert!(readable(port.fd()));
        until("the datagram", || {
            let check = |frames: &mut [softdpu_sys::port::Frame<'_>]| {
                assert_eq!(frames.len(), 1);
                assert!(frames[0].bytes.ends_with(format!("to {to} 4789").as_bytes()));
            };
            port.receive(64, check).unwrap() == 1
        });
    }
    assert_eq!(port.counters().received, 2);
}

#[test]
fn a_sink_keeps_the_host_from_complaining() {
    let Some(lab) = Lab::new("AF_PACKET's port sink", 2) else { return };
    lab.veth((0, "veth0"), (1, "veth1"));
    lab.ip(0, "address add 10.9.0.1/24 dev veth0");
    lab.ip(1, "address add 10.9.0.2/24 dev veth1");
    let socket = lab.within(0, || {
        let socket = UdpSocket::bind("10.9.0.1:0").unwrap();
        socket.connect("10.9.0.2:4789").unwrap();
        socket
    });
    let sink = lab.within(1, || PortSink::new(4789).unwrap());
    let refused = |wait: u64| {
        socket.send(b"x").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(wait));
        socket.take_error().unwrap().is_some()
    };
    assert!(!refused(200), "the port was refused");
    drop(sink);
    until("without the sink the host complains", || refused(20));
}

#[test]
fn frames_of_guests_memory_are_sent_and_impossible_ones_counted() {
    let Some(lab) = Lab::new("AF_PACKET from pieces", 2) else { return };
    lab.veth((0, "veth0"), (1, "veth1"));
    let mut from = open(&lab, 0, "veth0", PacketOptions::default());
    let mut to = open(&lab, 1, "veth1", PacketOptions::default());
    let mut head = [0; 18];
    numbered(7, &mut head);
    let mut memory = AlignedBuffer::new(4096);
    memory.write_at(50, b"payload that lies elsewhere");
    let header = VnetHeader::default();
    let malformed = VnetHeader { flags: VnetHeader::NEEDS_CSUM, csum_start: 9000, ..header };
    let frames = [
        Outgoing { header, head: &head, body: Some((&memory, 4000, 97)) },
        Outgoing { header, head: &head, body: Some((&memory, 50, 27)) },
        Outgoing { header: malformed, head: &head, body: None },
        Outgoing { header, head: &head, body: Some((&memory, 58, 10)) },
    ];
    assert_eq!(from.send(&frames).unwrap(), 4);
    assert_eq!((from.counters().sent, from.counters().refused), (2, 2));
    let mut bodies = Vec::new();
    until("two frames", || {
        to.receive(64, |frames| {
            bodies.extend(
                frames.iter().filter(|frame| number(frame.bytes).is_some()).map(|frame| frame.bytes[18..].to_vec()),
            )
        })
        .unwrap();
        bodies.len() == 2
    });
    assert_eq!(bodies, [&b"payload that lies elsewhere"[..], b"that lies "]);
}

#[test]
fn a_group_shares_the_frames() {
    let Some(lab) = Lab::new("AF_PACKET's fanout", 2) else { return };
    lab.veth((0, "veth0"), (1, "veth1"));
    let fanout = Some(Fanout { group: 1, mode: FanoutMode::RoundRobin });
    let mut group = [(); 2].map(|()| open(&lab, 1, "veth1", PacketOptions { fanout, ..PacketOptions::default() }));
    let mut from = open(&lab, 0, "veth0", PacketOptions::default());
    for number in 0..100 {
        numbered(number, from.reserve(60).unwrap());
        from.commit(VnetHeader::default(), 60);
    }
    from.flush().unwrap();
    let mut received = [0; 2];
    until("100 frames", || {
        for (member, received) in group.iter_mut().zip(&mut received) {
            *received += member.receive(64, |_| ()).unwrap();
        }
        received.iter().sum::<usize>() >= 100
    });
    assert!(received.iter().all(|&count| count >= 40), "{received:?}");
}

#[test]
fn an_adopted_socket_goes_on_and_says_when_its_interface_stops() {
    let Some(lab) = Lab::new("adopting a packet socket", 2) else { return };
    lab.veth((0, "veth0"), (1, "veth1"));
    let first = open(&lab, 1, "veth1", PacketOptions::default());
    let held = first.fd().try_clone_to_owned().unwrap();
    drop(first);
    let mut port = PacketSocket::adopt(held, "veth1", &PacketOptions::default()).unwrap();
    let mut from = open(&lab, 0, "veth0", PacketOptions::default());
    numbered(3, from.reserve(60).unwrap());
    from.commit(VnetHeader::default(), 60);
    from.flush().unwrap();
    until("the frame", || {
        let mut numbers = Vec::new();
        port.receive(64, |frames| numbers.extend(frames.iter().filter_map(|frame| number(frame.bytes)))).unwrap();
        numbers == [3]
    });
    port.check().unwrap();
    lab.ip(1, "link set veth1 down");
    assert!(matches!(port.check(), Err(PortError::Down { .. })));
    port.reserve(60).unwrap();
    port.commit(VnetHeader::default(), 60);
    assert!(matches!(port.flush(), Err(PortError::Down { .. })));
    let error = lab.within(1, || PacketSocket::open("veth7", &PacketOptions::default())).err().unwrap();
    assert_eq!(error.to_string(), "veth7: no such network interface; `ip link` lists them");
}
