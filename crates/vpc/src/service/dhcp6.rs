//! DHCP for IPv6 (RFC 8415): a server with one address to give, the one that the control plane gave the endpoint, and
//! no leases to keep, as [`dhcp4`](super::dhcp4).

use std::net::{IpAddr, Ipv6Addr};

use super::build::{HOP_LIMIT, V6, udp_payload};
use super::{Answer, ServiceContext};
use crate::packet::Parsed;
use crate::verdict::DropReason;

/// Where servers listen (RFC 8415 §7.2).
pub const SERVER_PORT: u16 = 547;
/// Where clients listen (RFC 8415 §7.2).
pub const CLIENT_PORT: u16 = 546;

/// Message types (RFC 8415 §7.3).
mod message {
    pub const SOLICIT: u8 = 1;
    pub const ADVERTISE: u8 = 2;
    pub const REQUEST: u8 = 3;
    pub const CONFIRM: u8 = 4;
    pub const RENEW: u8 = 5;
    pub const REBIND: u8 = 6;
    pub const REPLY: u8 = 7;
    pub const RELEASE: u8 = 8;
    pub const DECLINE: u8 = 9;
    pub const INFORMATION_REQUEST: u8 = 11;
}

/// Options (RFC 8415 §21).
mod option {
    /// §21.2
    pub const CLIENT_IDENTIFIER: u16 = 1;
    /// §21.3
    pub const SERVER_IDENTIFIER: u16 = 2;
    /// §21.4
    pub const IA_NA: u16 = 3;
    /// §21.6
    pub const IA_ADDRESS: u16 = 5;
    /// §21.13
    pub const STATUS: u16 = 13;
    /// §21.14
    pub const RAPID_COMMIT: u16 = 14;
    /// RFC 3646 §3
    pub const DNS_SERVERS: u16 = 23;
}

/// Status codes (RFC 8415 §21.13).
mod status {
    pub const SUCCESS: u16 = 0;
    pub const NO_ADDRESSES: u16 = 2;
    pub const NOT_ON_LINK: u16 = 4;
}

/// Bytes of an identity association before its options: identifier, T1, T2 (RFC 8415 §21.4).
const IA_FIXED: usize = 12;
/// Most bytes of a DUID (RFC 8415 §11.1).
const MOST_DUID: usize = 130;
/// Most identity associations, and addresses in each, that are answered.
const MOST: usize = 4;
/// Most name servers that are told.
const MOST_SERVERS: usize = 16;

/// The options of a field, each with its code; ends before one that is longer than the field.
fn options(mut field: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (head, rest) = field.split_first_chunk::<4>()?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_be_bytes([head[2], head[3]])))?;
        field = rest;
        Some((u16::from_be_bytes([head[0], head[1]]), value))
    })
}

/// The addresses in an identity association.
fn addresses(association: &[u8]) -> impl Iterator<Item = Ipv6Addr> {
    let all = options(association.get(IA_FIXED..).unwrap_or(&[])).filter(|(code, _)| *code == option::IA_ADDRESS);
    all.filter_map(|(_, value)| value.first_chunk::<16>().map(|octets| Ipv6Addr::from(*octets)))
}

fn put(message: &mut Vec<u8>, code: u16, value: &[u8]) {
    message.extend_from_slice(&code.to_be_bytes());
    message.extend_from_slice(&(value.len() as u16).to_be_bytes());
    message.extend_from_slice(value);
}

fn put_status(message: &mut Vec<u8>, status: u16) {
    put(message, option::STATUS, &status.to_be_bytes());
}

/// The server's DUID-LL, Ethernet (RFC 8415 §11.4): the gateway's MAC address is the same on every node.
fn server_duid(context: &ServiceContext<'_>) -> [u8; 10] {
    let [a, b, c, d, e, f] = context.gateway_mac.0;
    [0, 3, 0, 1, a, b, c, d, e, f]
}

/// A client's message: transaction, type, options.
struct Query<'a> {
    kind: u8,
    transaction: &'a [u8],
    options: &'a [u8],
}

impl<'a> Query<'a> {
    fn first(&self, code: u16) -> Option<&'a [u8]> {
        options(self.options).find(|(found, _)| *found == code).map(|(_, value)| value)
    }

    fn associations(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        options(self.options).filter(|(code, ia)| *code == option::IA_NA && ia.len() >= IA_FIXED).map(|(_, ia)| ia)
    }

    /// Whether the message has the identifiers that its type asks for (RFC 8415 §16).
    fn is_for(&self, server: &[u8]) -> bool {
        let client = self.first(option::CLIENT_IDENTIFIER).map(|duid| (1..=MOST_DUID).contains(&duid.len()));
        let named = self.first(option::SERVER_IDENTIFIER);
        match self.kind {
            message::SOLICIT | message::CONFIRM | message::REBIND => client == Some(true) && named.is_none(),
            message::REQUEST | message::RENEW | message::RELEASE | message::DECLINE => {
                client == Some(true) && named == Some(server)
            }
            message::INFORMATION_REQUEST => {
                client != Some(false)
                    && named.is_none_or(|named| named == server)
                    && self.associations().next().is_none()
            }
            _ => false,
        }
    }
}

/// Answers a client's message with the endpoint's address and what else the network has to tell.
///
/// # Errors
/// [`DropReason::Service`] for what is not a client's message or not for this server.
pub fn answer(context: &ServiceContext<'_>, parsed: &Parsed, frame: &[u8]) -> Answer {
    let datagram = udp_payload(parsed, frame, SERVER_PORT).ok_or(DropReason::Service)?;
    let (head, options) = datagram.split_at_checked(4).ok_or(DropReason::Service)?;
    let query = Query { kind: head[0], transaction: &head[1..], options };
    let Some(IpAddr::V6(to)) = parsed.ip().map(|ip| ip.source) else { return Err(DropReason::Service) };
    let server = server_duid(context);
    if !query.is_for(&server) || to.is_unspecified() || to.is_multicast() || !parsed.source.is_station() {
        return Err(DropReason::Service);
    }
    let rapid = query.kind == message::SOLICIT && query.first(option::RAPID_COMMIT).is_some();
    let kind = if query.kind == message::SOLICIT && !rapid { message::ADVERTISE } else { message::REPLY };
    let mut reply = vec![kind];
    reply.extend_from_slice(query.transaction);
    put(&mut reply, option::SERVER_IDENTIFIER, &server);
    if let Some(client) = query.first(option::CLIENT_IDENTIFIER) {
        put(&mut reply, option::CLIENT_IDENTIFIER, client);
    }
    if rapid {
        put(&mut reply, option::RAPID_COMMIT, &[]);
    }
    match query.kind {
        message::CONFIRM => match on_link(context, &query) {
            Some(status) => put_status(&mut reply, status),
            None => return Ok(None),
        },
        // There is nothing to give back: the address stays the port's.
        message::RELEASE | message::DECLINE => put_status(&mut reply, status::SUCCESS),
        _ => associations(context, &query, &mut reply),
    }
    let servers: Vec<[u8; 16]> = super::dns6(context).take(MOST_SERVERS).map(|server| server.octets()).collect();
    if !servers.is_empty() {
        put(&mut reply, option::DNS_SERVERS, servers.as_flattened());
    }
    let (from_mac, from) = (context.gateway_mac, context.link_local());
    let way = V6 { to_mac: parsed.source, from_mac, from, to, hop_limit: HOP_LIMIT };
    Ok(Some(way.udp(parsed, (SERVER_PORT, CLIENT_PORT), &reply)))
}

/// Whether the addresses a client has are of its network (RFC 8415 §18.3.3); None where it names none.
fn on_link(context: &ServiceContext<'_>, query: &Query<'_>) -> Option<u16> {
    let mut all = query.associations().flat_map(addresses).peekable();
    all.peek()?;
    let known = |address: Ipv6Addr| context.subnets.iter().any(|subnet| subnet.prefix.contains(address.into()));
    Some(if all.all(known) { status::SUCCESS } else { status::NOT_ON_LINK })
}

/// Gives the first association the endpoint's address, others none; what else a client has of addresses ends now
/// (RFC 8415 §18.3.4).
fn associations(context: &ServiceContext<'_>, query: &Query<'_>, reply: &mut Vec<u8>) {
    let own = |address: &IpAddr| if let IpAddr::V6(address) = address { Some(*address) } else { None };
    let mut address = context.addresses.iter().find_map(own);
    // All ones is infinity (§7.7); half and four fifths of the time (§21.4).
    let (t1, t2) = match context.lease {
        u32::MAX => (u32::MAX, u32::MAX),
        lease => (lease / 2, lease - lease / 5),
    };
    for association in query.associations().take(MOST) {
        let given = address.take();
        let mut value = association[..4].to_vec();
        value.extend_from_slice(&t1.to_be_bytes());
        value.extend_from_slice(&t2.to_be_bytes());
        let mut put_address = |address: Ipv6Addr, lifetime: u32| {
            let lifetime = lifetime.to_be_bytes();
            put(&mut value, option::IA_ADDRESS, &[&address.octets()[..], &lifetime, &lifetime].concat());
        };
        if let Some(address) = given {
            put_address(address, context.lease);
        }
        if matches!(query.kind, message::RENEW | message::REBIND) {
            addresses(association).filter(|old| Some(*old) != given).take(MOST).for_each(|old| put_address(old, 0));
        }
        if given.is_none() {
            put_status(&mut value, status::NO_ADDRESSES);
        }
        put(reply, option::IA_NA, &value);
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};

    use super::super::testing::*;
    use super::*;

    const CLIENT: &[u8] = &[0, 1, 0, 4, 0, 3, 0, 1];
    const SERVER: &[u8] = &[0, 2, 0, 10, 0, 3, 0, 1, 2, 0x5d, 0, 0, 0, 1];
    const EMPTY_IA: &[u8] = &[0, 3, 0, 12, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0];

    fn client(kind: u8, options: &[&[u8]]) -> Vec<u8> {
        let message = [&[kind, 1, 2, 3][..], &options.concat()].concat();
        let link = PacketBuilder::ethernet2(GUEST_MAC.0, [0x33, 0x33, 0, 1, 0, 2]);
        let to = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
        let step = link.ipv6(GUEST_MAC.link_local().octets(), to.octets(), 1).udp(CLIENT_PORT, SERVER_PORT);
        let mut frame = Vec::new();
        step.write(&mut frame, &message).unwrap();
        frame
    }

    fn ia_with(address: Ipv6Addr) -> Vec<u8> {
        [&[0, 3, 0, 40, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5, 0, 24][..], &address.octets(), &[0; 8]].concat()
    }

    /// Type and options of the answer.
    fn answered(frame: &[u8]) -> (u8, Vec<(u16, Vec<u8>)>) {
        let reply = ask(answer, frame).unwrap().unwrap();
        let sliced = SlicedPacket::from_ethernet(&reply).unwrap();
        let Some(NetSlice::Ipv6(ip)) = sliced.net else { panic!() };
        let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!() };
        let (ip, header) = (ip.header().to_header(), udp.to_header());
        assert_eq!(header.checksum, header.calc_checksum_ipv6_raw(ip.source, ip.destination, udp.payload()).unwrap());
        assert_eq!((header.source_port, header.destination_port), (SERVER_PORT, CLIENT_PORT));
        assert_eq!((ip.source, ip.destination), (GATEWAY_MAC.link_local().octets(), GUEST_MAC.link_local().octets()));
        assert_eq!(udp.payload()[1..4], [1, 2, 3]);
        let all: Vec<(u16, Vec<u8>)> = options(&udp.payload()[4..]).map(|(code, v)| (code, v.to_vec())).collect();
        assert_eq!(all[0], (2, SERVER[4..].to_vec()));
        (udp.payload()[0], all[1..].to_vec())
    }

    fn granted() -> Vec<u8> {
        let times = [0, 0, 0, 7, 0, 0, 0x07, 0x08, 0, 0, 0x0b, 0x40, 0, 5, 0, 24];
        [&times[..], &GUEST6.octets(), &[0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10]].concat()
    }

    fn dns() -> (u16, Vec<u8>) {
        (23, Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x53).octets().to_vec())
    }

    #[test]
    fn the_configured_address_is_advertised_and_granted() {
        let expected = vec![(1, CLIENT[4..].to_vec()), (3, granted()), dns()];
        assert_eq!(answered(&client(1, &[CLIENT, EMPTY_IA])), (message::ADVERTISE, expected.clone()));
        for (kind, options) in
            [(3, &[CLIENT, SERVER, EMPTY_IA][..]), (5, &[CLIENT, SERVER, EMPTY_IA]), (6, &[CLIENT, EMPTY_IA])]
        {
            assert_eq!(answered(&client(kind, options)), (message::REPLY, expected.clone()));
        }
        let (kind, options) = answered(&client(1, &[CLIENT, EMPTY_IA, &[0, 14, 0, 0]]));
        assert_eq!((kind, &options[1]), (message::REPLY, &(14, vec![])), "rapid commit");
    }

    #[test]
    fn a_second_association_and_an_old_address_get_nothing() {
        let (_, options) = answered(&client(1, &[CLIENT, EMPTY_IA, EMPTY_IA]));
        assert_eq!(options[2].1[12..], [0, 13, 0, 2, 0, 2]);
        let (_, options) = answered(&client(5, &[CLIENT, SERVER, &ia_with(OTHER6)]));
        let ended = [&[0, 5, 0, 24][..], &OTHER6.octets(), &[0; 8]].concat();
        assert_eq!(options[1].1, [granted(), ended].concat());
    }

    #[test]
    fn addresses_are_confirmed_where_they_belong_here() {
        let status = |address| answered(&client(4, &[CLIENT, &ia_with(address)])).1[1].1.clone();
        assert_eq!(status(GUEST6), [0, 0]);
        assert_eq!(status(Ipv6Addr::LOCALHOST), [0, 4]);
        assert_eq!(ask(answer, &client(4, &[CLIENT, EMPTY_IA])), Ok(None));
        assert_eq!(answered(&client(8, &[CLIENT, SERVER, EMPTY_IA])).1[1], (13, vec![0, 0]));
        assert_eq!(answered(&client(11, &[])), (message::REPLY, vec![dns()]));
    }

    #[test]
    fn messages_without_the_right_identifiers_are_dropped() {
        let other: &[u8] = &[0, 2, 0, 2, 9, 9];
        let wrong: [(u8, &[&[u8]]); 8] = [
            (1, &[EMPTY_IA]),
            (1, &[CLIENT, SERVER, EMPTY_IA]),
            (3, &[CLIENT, EMPTY_IA]),
            (3, &[CLIENT, other, EMPTY_IA]),
            (6, &[CLIENT, SERVER, EMPTY_IA]),
            (11, &[EMPTY_IA]),
            (11, &[other]),
            (7, &[CLIENT, SERVER]),
        ];
        for (kind, options) in wrong {
            assert_eq!(ask(answer, &client(kind, options)), Err(DropReason::Service), "{kind}");
        }
    }

    #[test]
    fn nothing_hostile_panics() {
        let frames = [client(1, &[CLIENT, EMPTY_IA]), client(5, &[CLIENT, SERVER, &ia_with(OTHER6)]), client(11, &[])];
        with_context(|context| hostile(answer, context, &frames));
    }
}
