//! AF_XDP on veth pairs, in copy mode as veth has no zero-copy.

use std::net::UdpSocket;
use std::time::Duration;

use softdpu_sys::AlignedBuffer;
use softdpu_sys::port::link::Links;
use softdpu_sys::port::xdp::{BusyPoll, CopyMode, MAX_LEN, Selection, XdpMode, XdpOptions, XdpProgram, XdpSocket};
use softdpu_sys::port::{InterfaceName, Outgoing, PortError, VnetHeader};

use crate::lab::{Lab, PATIENCE, number, numbered, readable, skip, until};

const SMALL: XdpOptions = XdpOptions { copy: CopyMode::Auto, frames: 256, busy_poll: None };

/// Two namespaces, or none where the kernel has no AF_XDP.
fn lab(test: &str) -> Option<Lab> {
    let protocols = std::fs::read_to_string("/proc/net/protocols").unwrap_or_default();
    if !protocols.lines().any(|line| line.starts_with("XDP ")) {
        skip(test, "the kernel has no AF_XDP (CONFIG_XDP_SOCKETS)");
        return None;
    }
    Lab::new(test, 2)
}

fn attach(lab: &Lab, index: usize, name: &str, selection: Selection) -> XdpProgram {
    lab.within(index, || XdpProgram::attach(name, 1, selection, None).unwrap().0)
}

fn open(lab: &Lab, index: usize, program: &XdpProgram, options: &XdpOptions) -> XdpSocket {
    lab.within(index, || XdpSocket::open(program, 0, options).unwrap())
}

/// So many numbered frames each way, in order and whole.
fn exchange(ends: &mut [XdpSocket; 2], count: u32) {
    let (mut sent, mut received) = ([0; 2], [0; 2]);
    until("the frames each way", || {
        for here in 0..2 {
            let end = &mut ends[here];
            // veth drops silently beyond the 256 frames of its ring.
            while sent[here] < count && sent[here] < received[1 - here] + 64 {
                let len = 60 + sent[here] as usize % 1440;
                let Some(space) = end.reserve(len) else { break };
                numbered(sent[here], space);
                assert!(end.commit(VnetHeader::default(), len));
                sent[here] += 1;
            }
            end.flush().unwrap();
            // In small batches, so that a chunk lost in each would be missed.
            end.receive(4, |frames| {
                for number in frames.iter().filter_map(|frame| Some((number(frame.bytes)?, frame.bytes.len()))) {
                    assert_eq!(number, (received[here], 60 + received[here] as usize % 1440));
                    received[here] += 1;
                }
            })
            .unwrap();
        }
        received == [count; 2]
    });
}

#[test]
fn ten_thousand_frames_arrive_in_order_both_ways() {
    let Some(lab) = lab("AF_XDP, 10,000 frames") else { return };
    lab.veth((0, "veth0"), (1, "veth1"));
    let programs = [attach(&lab, 0, "veth0", Selection::All), attach(&lab, 1, "veth1", Selection::All)];
    // Fewer chunks than frames: each is used many times.
    let mut ends = [open(&lab, 0, &programs[0], &SMALL), open(&lab, 1, &programs[1], &SMALL)];
    assert!(!ends[0].zero_copy());
    exchange(&mut ends, 10_000);
    until("all chunks are back", || ends.iter_mut().all(|end| end.flush().is_ok() && end.counters().sent == 10_000));
    assert_eq!(ends[0].statistics().dropped, 0);
}

#[test]
fn the_generic_mode_and_busy_polling_carry_frames_too() {
    let Some(lab) = lab("AF_XDP in generic mode") else { return };
    lab.veth((0, "veth0"), (1, "veth1"));
    let generic = lab.within(0, || XdpProgram::attach("veth0", 1, Selection::All, Some(XdpMode::Generic)).unwrap());
    assert_eq!(generic.1, XdpMode::Generic);
    let driver = attach(&lab, 1, "veth1", Selection::All);
    let busy = XdpOptions { busy_poll: Some(BusyPoll { micros: 20, budget: 64 }), ..SMALL };
    let mut ends = [open(&lab, 0, &generic.0, &SMALL), open(&lab, 1, &driver, &busy)];
    exchange(&mut ends, 1000);
}

#[test]
fn the_filter_leaves_the_host_its_traffic() {
    let Some(lab) = lab("AF_XDP's filter") else { return };
    lab.veth((0, "veth0"), (1, "veth1"));
    for (index, last) in [(0, 1), (1, 2)] {
        lab.ip(index, &format!("address add 10.9.0.{last}/24 dev veth{index}"));
        lab.ip(index, &format!("address add fd00::{last}/64 dev veth{index} nodad"));
    }
    let program = attach(&lab, 1, "veth1", Selection::UdpPort(4789));
    let mut port = open(&lab, 1, &program, &SMALL);
    for (from, to) in [("10.9.0.1:0", "10.9.0.2"), ("[fd00::1]:0", "fd00::2")] {
        let hosts = [4788, 4789].map(|udp_port| {
            let socket = lab.within(1, || UdpSocket::bind((to, udp_port)).unwrap());
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            socket
        });
        let socket = lab.within(0, || UdpSocket::bind(from).unwrap());
        socket.send_to(b"ours", (to, 4789)).unwrap();
        socket.send_to(b"the host's", (to, 4788)).unwrap();
        let mut bytes = [0; 100];
        let (len, _) = hosts[0].recv_from(&mut bytes).unwrap();
        assert_eq!(bytes[..len], *b"the host's");
        assert!(readable(port.fd()));
        let check = |frames: &mut [softdpu_sys::port::Frame<'_>]| {
            assert_eq!(frames.len(), 1);
            assert!(frames[0].bytes.ends_with(b"ours"));
        };
        assert_eq!(port.receive(64, check).unwrap(), 1);
        // A fragmented datagram is the host's, whatever its port.
        socket.send_to(&[7; 4000], (to, 4789)).unwrap();
        let mut large = [0; 5000];
        assert_eq!(hosts[1].recv_from(&mut large).unwrap().0, 4000);
    }
    assert_eq!(port.receive(64, |_| panic!("all else is the host's")).unwrap(), 0);

    // Without a socket the port's traffic is the host's again.
    drop(port);
    let host = lab.within(1, || UdpSocket::bind("10.9.0.2:4789").unwrap());
    host.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    let socket = lab.within(0, || UdpSocket::bind("10.9.0.1:0").unwrap());
    until("the host has it", || {
        socket.send_to(b"x", "10.9.0.2:4789").unwrap();
        host.recv_from(&mut [0; 10]).is_ok()
    });
}

#[test]
fn a_program_outlives_its_process_in_its_descriptors() {
    let Some(lab) = lab("adopting an XDP program") else { return };
    lab.veth((0, "veth0"), (1, "veth1"));
    let programs = [attach(&lab, 0, "veth0", Selection::All), attach(&lab, 1, "veth1", Selection::All)];
    let adopted = programs.map(|program| {
        let [map, link] = [program.map(), program.link()].map(|fd| fd.try_clone_to_owned().unwrap());
        let name = program.name().to_owned();
        drop(program);
        XdpProgram::adopt(&name, map, link).unwrap()
    });
    for _ in 0..2 {
        exchange(&mut [open(&lab, 0, &adopted[0], &SMALL), open(&lab, 1, &adopted[1], &SMALL)], 100);
    }
    let [map, link] = [(); 2].map(|()| tempfile::tempfile().unwrap().into());
    assert!(matches!(XdpProgram::adopt("veth0", map, link), Err(PortError::WrongDescriptor { .. })));
}

#[test]
fn what_cannot_be_sent_is_refused_and_counted() {
    let Some(lab) = lab("AF_XDP refusals") else { return };
    lab.veth((0, "veth0"), (1, "veth1"));
    let programs = [attach(&lab, 0, "veth0", Selection::All), attach(&lab, 1, "veth1", Selection::All)];
    let [mut from, mut to] = [open(&lab, 0, &programs[0], &SMALL), open(&lab, 1, &programs[1], &SMALL)];
    assert!(from.reserve(MAX_LEN + 1).is_none());
    let mut head = [0; 18];
    numbered(7, &mut head);
    let mut memory = AlignedBuffer::new(4096);
    memory.write_at(50, b"payload that lies elsewhere");
    let header = VnetHeader::default();
    let unfinished = VnetHeader { flags: VnetHeader::NEEDS_CSUM, ..header };
    let frames = [
        Outgoing { header, head: &head, body: Some((&memory, 4000, 97)) },
        Outgoing { header, head: &head, body: Some((&memory, 0, MAX_LEN)) },
        Outgoing { header, head: &head, body: Some((&memory, 50, 27)) },
        Outgoing { header: unfinished, head: &head, body: None },
    ];
    assert_eq!(from.send(&frames).unwrap(), 4);
    assert_eq!(from.counters().refused, 3);
    assert!(readable(to.fd()));
    to.receive(64, |frames| assert!(frames.len() == 1 && frames[0].bytes[18..] == *b"payload that lies elsewhere"))
        .unwrap();
    // All chunks can be filled, and none is lost by a reservation that was not committed.
    let count = std::iter::from_fn(|| {
        from.reserve(60)?.fill(0xff);
        from.reserve(60)?.fill(0xff);
        from.commit(header, 60).then_some(())
    })
    .count();
    assert_eq!((count, from.waiting()), (256, 256));
    lab.ip(0, "link set veth0 down");
    assert!(matches!(from.flush(), Err(PortError::Down { .. })));
}

#[test]
fn errors_say_what_to_do() {
    let Some(lab) = lab("AF_XDP errors") else { return };
    lab.veth((0, "veth0"), (1, "veth1"));
    let program = attach(&lab, 0, "veth0", Selection::All);
    let _first = open(&lab, 0, &program, &SMALL);
    let error = |queue, options: XdpOptions| {
        lab.within(0, || XdpSocket::open(&program, queue, &options)).err().unwrap().to_string()
    };
    assert!(error(0, SMALL).contains("`ss --xdp -p`"), "{}", error(0, SMALL));
    assert!(error(5, SMALL).contains("no queue 5"), "{}", error(5, SMALL));
    let zero_copy = XdpOptions { copy: CopyMode::ZeroCopy, ..SMALL };
    assert!(error(1, zero_copy).starts_with("veth0: "));
    assert!(error(0, XdpOptions { frames: 100, ..SMALL }).contains("power of two"));
    let second = lab.within(0, || XdpProgram::attach("veth0", 1, Selection::All, None)).unwrap_err();
    assert!(matches!(second, PortError::Busy { .. }), "{second}");
    let nowhere = lab.within(0, || XdpProgram::attach("veth7", 1, Selection::All, None)).unwrap_err();
    assert!(matches!(nowhere, PortError::NoInterface { .. }), "{nowhere}");
    let veth0 = InterfaceName::new("veth0").unwrap();
    assert_eq!(lab.within(0, || Links::new().unwrap().rx_queues(&veth0).unwrap()), 1);
    drop(program);
}
