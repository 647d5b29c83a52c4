use super::{Description, Filter, Subject};

const GUEST: [u8; 6] = [2, 0x5d, 0, 0, 0, 1];
const OTHER: [u8; 6] = [2, 0x5d, 0, 0, 0, 2];

/// An IPv4 packet from 10.0.0.2 to 10.0.1.3 in a frame.
fn ipv4(protocol: u8, rest: &[u8]) -> Vec<u8> {
    let total = (20 + rest.len() as u16).to_be_bytes();
    let header = [0x45, 0, total[0], total[1], 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 2, 10, 0, 1, 3];
    [&OTHER[..], &GUEST, &[8, 0], &header, rest].concat()
}

fn tcp(flags: u8) -> Vec<u8> {
    let [s, d] = [40_000u16.to_be_bytes(), 80u16.to_be_bytes()];
    ipv4(6, &[s[0], s[1], d[0], d[1], 0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, 1, 0, 0, 0, 0, 0, 1, 2, 3])
}

fn ping() -> Vec<u8> {
    ipv4(1, &[8, 0, 0, 0, 0, 0, 0, 0])
}

fn arp() -> Vec<u8> {
    let message = [0, 1, 8, 0, 6, 4, 0, 1];
    [&[0xff; 6][..], &GUEST, &[8, 6], &message, &GUEST, &[10, 0, 0, 2], &[0; 6], &[10, 0, 1, 3]].concat()
}

/// The frame in VXLAN 5001 from 192.0.2.1 to 192.0.2.2.
fn tunnelled(inner: &[u8]) -> Vec<u8> {
    let len = (16 + inner.len() as u16).to_be_bytes();
    let udp = [&[0xc0, 1, 0x12, 0xb5, len[0], len[1], 0, 0, 8, 0, 0, 0, 0, 0x13, 0x89, 0][..], inner].concat();
    let mut frame = ipv4(17, &udp);
    frame[26..34].copy_from_slice(&[192, 0, 2, 1, 192, 0, 2, 2]);
    frame
}

fn subject(frame: &[u8]) -> Subject {
    Subject::on_wire(frame, frame.len(), 4789)
}

/// Which of the frames a filter takes.
fn taken(filter: &str) -> String {
    let filter: Filter = filter.parse().unwrap();
    let frames =
        [('s', tcp(2)), ('a', tcp(0x12)), ('p', ping()), ('w', arp()), ('t', tunnelled(&ping())), ('x', vec![1; 9])];
    frames.iter().filter(|(_, frame)| filter.matches(&subject(frame))).map(|(name, _)| *name).collect()
}

#[test]
fn every_word_takes_what_it_says() {
    for (filter, wanted) in [
        ("host 10.0.0.2", "sapwt"),
        ("src host 10.0.1.3", ""),
        ("dst net 10.0.1.0/24", "sapwt"),
        ("icmp", "pt"),
        ("arp", "w"),
        ("ip", "sapt"),
        ("ip6 or icmp6", ""),
        ("tcp", "sa"),
        ("tcp port 80", "sa"),
        ("udp port 80", ""),
        ("dst port 80 && src portrange 40000-40001", "sa"),
        ("tcp-syn and not tcp-ack", "s"),
        ("tcp-syn", "sa"),
        ("proto 1", "pt"),
        ("ether src 02:5d:00:00:00:01", "sapwt"),
        ("ether host 02:5d:00:00:00:02", "sapt"),
        ("broadcast", "w"),
        ("multicast", "w"),
        ("vlan or vlan 7 or fragment", ""),
        ("less 42", "pwx"),
        ("greater 43", "sat"),
        ("vni 5001", "t"),
        ("vni 5002", ""),
        ("outer host 192.0.2.2", "t"),
        ("host 192.0.2.2", ""),
        ("outer udp port 4789 and icmp", "t"),
        ("!(icmp or arp)", "sax"),
        ("not outer ip", "sapwx"),
    ] {
        assert_eq!(taken(filter), wanted, "{filter}");
    }
}

#[test]
fn a_frame_is_described_in_a_line() {
    let line = |frame: &[u8]| Description(subject(frame)).to_string();
    assert_eq!(line(&tcp(0x12)), "10.0.0.2.40000 > 10.0.1.3.80: TCP [S.], data 3");
    assert_eq!(line(&ping()), "10.0.0.2 > 10.0.1.3: ICMP echo request");
    assert_eq!(line(&arp()), "ARP who has 10.0.1.3? tell 10.0.0.2");
    assert_eq!(line(&tunnelled(&ping())), "192.0.2.1 > 192.0.2.2 VXLAN 5001: 10.0.0.2 > 10.0.1.3: ICMP echo request");
    assert_eq!(line(&[0; 9]), "headers that cannot be read");
    let lldp = [&[1, 0x80, 0xc2, 0, 0, 14][..], &GUEST, &[0x88, 0xcc], &[0; 40]].concat();
    assert_eq!(line(&lldp), "02:5d:00:00:00:01 > 01:80:c2:00:00:0e EtherType 0x88cc");
}
