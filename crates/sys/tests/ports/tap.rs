//! TAP: the host's stack at the other end.

use std::net::UdpSocket;

use softdpu_sys::AlignedBuffer;
use softdpu_sys::port::link::Links;
use softdpu_sys::port::tap::{Offloads, Tap, TapOptions};
use softdpu_sys::port::{InterfaceName, Outgoing, PortError, VnetHeader};
use softdpu_virtio::net_header::GSO_TCPV4;

use crate::lab::{Lab, readable, skip, transfer, until};

const HOST: [u8; 6] = [2, 0, 0, 0, 0, 1];
const US: [u8; 6] = [2, 0, 0, 0, 0, 2];

/// Namespaces, or none where the kernel or the container has no TAP.
fn lab(test: &str, count: usize) -> Option<Lab> {
    if !std::path::Path::new("/dev/net/tun").exists() {
        skip(test, "there is no /dev/net/tun (`modprobe tun`)");
        return None;
    }
    Lab::new(test, count)
}

/// A TAP in namespace `index`, up.
fn tap(lab: &Lab, index: usize, mac: [u8; 6]) -> Tap {
    lab.within(index, || {
        let tap = Tap::open("tap0", &TapOptions::default()).unwrap();
        let (links, name) = (Links::new().unwrap(), InterfaceName::new("tap0").unwrap());
        links.set_mac(&name, mac).unwrap();
        links.set_mtu(&name, 1400).unwrap();
        std::fs::write("/proc/sys/net/ipv6/conf/tap0/disable_ipv6", "1").unwrap();
        links.set_up(&name, true).unwrap();
        tap
    })
}

fn arp_reply(request: &[u8]) -> Vec<u8> {
    let mut reply = request.to_vec();
    reply[..6].copy_from_slice(&request[6..12]);
    reply[6..12].copy_from_slice(&US);
    reply[21] = 2;
    reply[32..42].copy_from_slice(&request[22..32]);
    reply[22..28].copy_from_slice(&US);
    reply[28..32].copy_from_slice(&request[38..42]);
    reply
}

fn checksum(bytes: &[u8]) -> [u8; 2] {
    let sum: u32 = bytes.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    (!((folded & 0xffff) + (folded >> 16)) as u16).to_be_bytes()
}

fn echo_request() -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0, 0x12, 0x34, 0, 1];
    icmp.extend(b"are you there");
    let sum = checksum(&icmp);
    icmp[2..4].copy_from_slice(&sum);
    let mut ip = vec![0x45, 0, 0, 20 + icmp.len() as u8, 0, 0, 0, 0, 64, 1, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1];
    let sum = checksum(&ip);
    ip[10..12].copy_from_slice(&sum);
    [&HOST[..], &US, &[8, 0], &ip, &icmp].concat()
}

#[test]
fn the_kernel_is_heard_and_answers() {
    let Some(lab) = lab("TAP with the kernel", 1) else { return };
    let mut tap = tap(&lab, 0, HOST);
    lab.ip(0, "address add 10.9.0.1/24 dev tap0");
    let socket = lab.within(0, || UdpSocket::bind("10.9.0.1:0").unwrap());
    socket.send_to(b"hello", "10.9.0.2:4000").unwrap();

    // The kernel asks for our address; the answer goes out by reserve and commit.
    assert!(readable(tap.fd()));
    let mut request = Vec::new();
    assert_eq!(tap.receive(64, |frames| request = frames[0].bytes.to_vec()).unwrap(), 1);
    assert_eq!(request[12..14], [8, 6], "ARP");
    let reply = arp_reply(&request);
    tap.reserve(reply.len()).unwrap().copy_from_slice(&reply);
    assert!(tap.commit(VnetHeader::default(), reply.len()));
    assert_eq!((tap.flush().unwrap(), tap.waiting()), (1, 0));

    // Now its datagram comes, the checksum left to us.
    assert!(readable(tap.fd()));
    tap.receive(64, |frames| {
        assert_eq!(frames.len(), 1);
        assert!(frames[0].bytes.ends_with(b"hello"));
        assert!(frames[0].header.needs_csum(), "{:?}", frames[0].header);
        assert_eq!((frames[0].header.csum_start, frames[0].header.csum_offset), (34, 6));
    })
    .unwrap();

    // It answers an echo request, which is sent from memory in two places.
    let echo = echo_request();
    let mut body = AlignedBuffer::new(4096);
    body.write_at(100, &echo[14..]);
    let frame =
        Outgoing { header: VnetHeader::default(), head: &echo[..14], body: Some((&body, 100, echo.len() - 14)) };
    assert_eq!(tap.send(&[frame]).unwrap(), 1);
    assert!(readable(tap.fd()));
    tap.receive(64, |frames| {
        assert_eq!(frames[0].bytes[34..36], [0, 0], "echo reply");
        assert!(frames[0].bytes.ends_with(b"are you there"));
    })
    .unwrap();
    assert_eq!(tap.receive(64, |_| panic!("nothing is left")).unwrap(), 0);
    assert_eq!((tap.counters().received, tap.counters().sent), (3, 2));
}

/// Everything that came in at `from` goes out at `to`. The longest TCP segment's frame.
fn forward(from: &mut Tap, to: &mut Tap) -> usize {
    let mut longest = 0;
    from.receive(64, |frames| {
        for frame in frames {
            if frame.header.gso_type & !VnetHeader::GSO_ECN == GSO_TCPV4 {
                assert!(frame.header.needs_csum() && frame.header.gso_size > 1000, "{:?}", frame.header);
                longest = longest.max(frame.bytes.len());
            }
            if let Some(space) = to.reserve(frame.bytes.len()) {
                space.copy_from_slice(frame.bytes);
                to.commit(frame.header, frame.bytes.len());
            }
        }
    })
    .unwrap();
    to.flush().unwrap();
    longest
}

#[test]
fn large_segments_pass_whole_between_two_stacks() {
    let Some(lab) = lab("TAP with segmentation offload", 2) else { return };
    let mut taps = [tap(&lab, 0, HOST), tap(&lab, 1, US)];
    assert!(taps[0].offloads().tso4 && taps[0].offloads().csum);
    lab.ip(0, "address add 10.9.0.1/24 dev tap0");
    lab.ip(1, "address add 10.9.0.2/24 dev tap0");
    let transfer = transfer(&lab, 0, 1, "10.9.0.2");
    let mut longest = [0; 2];
    until("8 MiB both ways", || {
        let [a, b] = &mut taps;
        longest = [longest[0].max(forward(a, b)), longest[1].max(forward(b, a))];
        transfer.is_finished()
    });
    transfer.join().unwrap();
    assert!(longest.iter().all(|&len| len > 30_000), "longest segments: {longest:?}, the MTU is 1400");
}

fn forward_plain(from: &mut Tap, to: &mut Tap) {
    from.receive(64, |frames| {
        for frame in frames {
            assert!(frame.header.is_plain() && frame.bytes.len() <= 1414, "{:?}", frame.header);
            to.reserve(frame.bytes.len()).unwrap().copy_from_slice(frame.bytes);
            to.commit(frame.header, frame.bytes.len());
        }
    })
    .unwrap();
    to.flush().unwrap();
}

#[test]
fn without_offloads_every_frame_is_finished_and_fits_the_mtu() {
    let Some(lab) = lab("TAP without offloads", 2) else { return };
    let mut taps = [tap(&lab, 0, HOST), tap(&lab, 1, US)];
    for tap in &mut taps {
        assert_eq!(tap.set_offloads(Offloads::default()).unwrap(), Offloads::default());
    }
    lab.ip(0, "address add 10.9.0.1/24 dev tap0");
    lab.ip(1, "address add 10.9.0.2/24 dev tap0");
    let transfer = transfer(&lab, 0, 1, "10.9.0.2");
    until("8 MiB both ways", || {
        let [a, b] = &mut taps;
        forward_plain(a, b);
        forward_plain(b, a);
        transfer.is_finished()
    });
    transfer.join().unwrap();
}

#[test]
fn a_descriptor_is_adopted_with_its_settings() {
    let Some(lab) = lab("adopting a TAP", 1) else { return };
    let options = TapOptions { multi_queue: true, persistent: true, ..TapOptions::default() };
    let queues = lab.within(0, || [(); 2].map(|()| Tap::open("tap0", &options).unwrap()));
    let fd = queues[1].fd().try_clone_to_owned().unwrap();
    drop(queues);
    let adopted = Tap::adopt(fd, Offloads::ALL).unwrap();
    assert_eq!((adopted.name(), adopted.offloads().tso6), ("tap0", true));
    drop(adopted);
    lab.ip(0, "link show tap0");
    lab.within(0, || Tap::open("tap0", &options).unwrap().set_persistent(false).unwrap());
    let gone = lab.within(0, || Links::new().unwrap().index(&InterfaceName::new("tap0").unwrap()));
    assert!(matches!(gone, Err(PortError::NoInterface { .. })));
}

#[test]
fn what_is_no_tap_is_refused() {
    let file = tempfile::tempfile().unwrap();
    let error = Tap::adopt(file.into(), Offloads::ALL).err().unwrap();
    assert!(matches!(error, PortError::WrongDescriptor { .. }), "{error}");
    let Some(lab) = lab("TAP errors", 2) else { return };
    lab.veth((0, "veth0"), (1, "veth1"));
    let error = lab.within(0, || Tap::open("veth0", &TapOptions::default())).err().unwrap();
    assert!(matches!(error, PortError::Setting { .. }), "{error}");
    let mut down = lab.within(0, || Tap::open("tap0", &TapOptions::default()).unwrap());
    down.reserve(60).unwrap().fill(0);
    down.commit(VnetHeader::default(), 60);
    let error = down.flush().unwrap_err().to_string();
    assert_eq!(error, "tap0: the interface is down; `ip link set tap0 up` starts it");
    assert_eq!(down.waiting(), 0);
}
