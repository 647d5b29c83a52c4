//! DHCP for IPv4 (RFC 2131): a server with one address to give, the one that the control plane gave the endpoint. It
//! keeps no leases: a port has its address for as long as it is configured.

use std::net::{IpAddr, Ipv4Addr};

use super::build::{V4, udp_payload};
use super::{Answer, ServiceContext};
use crate::packet::{Mac, Parsed};
use crate::verdict::DropReason;

/// Where servers listen (RFC 2131 §4.1).
pub const SERVER_PORT: u16 = 67;
/// Where clients listen (RFC 2131 §4.1).
pub const CLIENT_PORT: u16 = 68;

/// Message types (RFC 2132 §9.6).
mod message {
    pub const DISCOVER: u8 = 1;
    pub const OFFER: u8 = 2;
    pub const REQUEST: u8 = 3;
    pub const DECLINE: u8 = 4;
    pub const ACK: u8 = 5;
    pub const NAK: u8 = 6;
    pub const RELEASE: u8 = 7;
    pub const INFORM: u8 = 8;
}

/// Options (RFC 2132).
mod option {
    /// §3.1
    pub const PAD: u8 = 0;
    /// §3.3
    pub const SUBNET_MASK: u8 = 1;
    /// §3.5
    pub const ROUTER: u8 = 3;
    /// §3.8
    pub const DOMAIN_NAME_SERVER: u8 = 6;
    /// §5.1
    pub const INTERFACE_MTU: u8 = 26;
    /// §9.1
    pub const REQUESTED_ADDRESS: u8 = 50;
    /// §9.2
    pub const LEASE_TIME: u8 = 51;
    /// §9.3
    pub const OVERLOAD: u8 = 52;
    /// §9.6
    pub const MESSAGE_TYPE: u8 = 53;
    /// §9.7
    pub const SERVER_IDENTIFIER: u8 = 54;
    /// §9.10
    pub const MAX_MESSAGE_SIZE: u8 = 57;
    /// §9.11
    pub const RENEWAL_TIME: u8 = 58;
    /// §9.12
    pub const REBINDING_TIME: u8 = 59;
    /// §9.14
    pub const CLIENT_IDENTIFIER: u8 = 61;
    /// §3.2
    pub const END: u8 = 255;
}

/// What options begin with (RFC 2131 §3).
const MAGIC_COOKIE: [u8; 4] = [99, 130, 83, 99];
/// Bytes of a message before the cookie (RFC 2131 §2).
const FIXED: usize = 236;
/// Least bytes of a message: what BOOTP had (RFC 951 §3), which relays and clients still count on (RFC 1542 §2.1).
const LEAST: usize = 300;
/// Bytes of IP packet that any client takes (RFC 2131 §2), and the most that are used of more.
const MAX_MESSAGE: std::ops::RangeInclusive<u16> = 576..=1400;
/// Bytes of IP and UDP header, which the maximum message size includes.
const IP_UDP: usize = 28;
/// The client cannot be reached by unicast yet (RFC 2131 §2, figure 2).
const BROADCAST_FLAG: u8 = 0x80;

/// A client's message: the fixed part, and those options that are looked at.
struct Query<'a> {
    fixed: &'a [u8],
    kind: u8,
    requested: Option<Ipv4Addr>,
    server: Option<Ipv4Addr>,
    max_message: u16,
    client: Option<&'a [u8]>,
}

impl<'a> Query<'a> {
    /// None where it is not a message of a client (RFC 2131 §2) on this segment.
    fn parse(message: &'a [u8]) -> Option<Query<'a>> {
        let fixed = message.get(..FIXED)?;
        let options = message[FIXED..].strip_prefix(&MAGIC_COOKIE)?;
        // BOOTREQUEST, Ethernet, addresses of 6 bytes, no relay.
        if fixed[..3] != [1, 1, 6] || fixed[24..28] != [0; 4] {
            return None;
        }
        let mut query =
            Query { fixed, kind: 0, requested: None, server: None, max_message: *MAX_MESSAGE.start(), client: None };
        let overload = query.options(options)?;
        // The boot file name comes before the server name (RFC 2131 §4.1). An overload in them means nothing.
        if overload & 1 != 0 {
            query.options(&fixed[108..236])?;
        }
        if overload & 2 != 0 {
            query.options(&fixed[44..108])?;
        }
        Some(query)
    }

    /// Takes one field of options; which fields more there are (RFC 2132 §9.3). The first of several counts.
    fn options(&mut self, mut field: &'a [u8]) -> Option<u8> {
        let mut overload = 0;
        while let [code, rest @ ..] = field {
            if *code == option::PAD {
                field = rest;
                continue;
            }
            if *code == option::END {
                break;
            }
            let (&len, rest) = rest.split_first()?;
            let (value, rest) = rest.split_at_checked(usize::from(len))?;
            let address = || <[u8; 4]>::try_from(value).ok().map(Ipv4Addr::from);
            match (*code, value) {
                (option::MESSAGE_TYPE, [kind]) if self.kind == 0 => self.kind = *kind,
                (option::OVERLOAD, [fields]) => overload = *fields,
                (option::REQUESTED_ADDRESS, _) => self.requested = self.requested.or_else(address),
                (option::SERVER_IDENTIFIER, _) => self.server = self.server.or_else(address),
                (option::MAX_MESSAGE_SIZE, [high, low]) => {
                    self.max_message =
                        u16::from_be_bytes([*high, *low]).clamp(*MAX_MESSAGE.start(), *MAX_MESSAGE.end());
                }
                (option::CLIENT_IDENTIFIER, _) => self.client = self.client.or(Some(value)),
                _ => {}
            }
            field = rest;
        }
        Some(overload)
    }

    /// The address the client says it has.
    fn ciaddr(&self) -> Ipv4Addr {
        Ipv4Addr::new(self.fixed[12], self.fixed[13], self.fixed[14], self.fixed[15])
    }

    fn chaddr(&self) -> &[u8] {
        &self.fixed[28..34]
    }
}

/// Answers a client's message with the endpoint's address and what else the network has to tell.
///
/// # Errors
/// [`DropReason::Service`] for what is not a client's message, for another client than the endpoint, for relayed
/// messages and where the endpoint has no IPv4 address.
pub fn answer(context: &ServiceContext<'_>, parsed: &Parsed, frame: &[u8]) -> Answer {
    let query = udp_payload(parsed, frame, SERVER_PORT).and_then(Query::parse).ok_or(DropReason::Service)?;
    let own = |address: &IpAddr| if let IpAddr::V4(address) = address { Some(*address) } else { None };
    let address = context.addresses.iter().find_map(own).ok_or(DropReason::Service)?;
    let subnet = context.subnets.iter().find(|subnet| subnet.prefix.contains(address.into()));
    let subnet = subnet.ok_or(DropReason::Service)?;
    let IpAddr::V4(server) = subnet.gateway else { return Err(DropReason::Service) };
    if query.chaddr() != context.mac.0 {
        return Err(DropReason::Service);
    }
    let kind = match query.kind {
        message::DISCOVER => message::OFFER,
        message::REQUEST => match request(&query, address, server) {
            Some(kind) => kind,
            None => return Ok(None),
        },
        message::INFORM if query.ciaddr() == address => message::ACK,
        // There is nothing to give back: the address stays the port's.
        message::RELEASE | message::DECLINE => return Ok(None),
        _ => return Err(DropReason::Service),
    };
    let reply = Reply { context, query: &query, kind, address, server, mask: netmask(subnet.prefix.length()) };
    let (to_mac, to) = reply.destination(context.mac);
    let way = V4 { to_mac, from_mac: context.gateway_mac, from: server, to };
    Ok(Some(way.udp(parsed, (SERVER_PORT, CLIENT_PORT), &reply.message())))
}

/// What becomes of a request (RFC 2131 §4.3.2); None where it is for another server.
fn request(query: &Query<'_>, address: Ipv4Addr, server: Ipv4Addr) -> Option<u8> {
    let wanted = match (query.server, query.requested) {
        // SELECTING: another server was chosen, or this one.
        (Some(chosen), _) if chosen != server => return None,
        (_, Some(requested)) => requested,
        // RENEWING, REBINDING.
        (_, None) => query.ciaddr(),
    };
    Some(if wanted == address { message::ACK } else { message::NAK })
}

fn netmask(length: u8) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::MAX.checked_shl(32 - u32::from(length.min(32))).unwrap_or(0))
}

/// A server's message.
struct Reply<'a> {
    context: &'a ServiceContext<'a>,
    query: &'a Query<'a>,
    kind: u8,
    address: Ipv4Addr,
    server: Ipv4Addr,
    mask: Ipv4Addr,
}

impl Reply<'_> {
    /// Where it goes (RFC 2131 §4.1).
    fn destination(&self, mac: Mac) -> (Mac, Ipv4Addr) {
        let ciaddr = self.query.ciaddr();
        if self.kind == message::NAK {
            (Mac::BROADCAST, Ipv4Addr::BROADCAST)
        } else if !ciaddr.is_unspecified() {
            // It has an address that answers ARP: its own, or it would not have got this answer.
            (mac, self.address)
        } else if self.query.fixed[10] & BROADCAST_FLAG != 0 {
            (Mac::BROADCAST, Ipv4Addr::BROADCAST)
        } else {
            (mac, self.address)
        }
    }

    /// RFC 2131 §4.3.1, table 3.
    fn message(&self) -> Vec<u8> {
        let query = self.query.fixed;
        let mut message = vec![0; FIXED];
        // BOOTREPLY, Ethernet, addresses of 6 bytes.
        message[..3].copy_from_slice(&[2, 1, 6]);
        message[4..8].copy_from_slice(&query[4..8]);
        message[10..12].copy_from_slice(&query[10..12]);
        let inform = self.query.kind == message::INFORM;
        if self.kind == message::ACK {
            message[12..16].copy_from_slice(&query[12..16]);
        }
        if self.kind != message::NAK && !inform {
            message[16..20].copy_from_slice(&self.address.octets());
        }
        message[28..44].copy_from_slice(&query[28..44]);
        message.extend_from_slice(&MAGIC_COOKIE);
        put(&mut message, option::MESSAGE_TYPE, &[self.kind]);
        put(&mut message, option::SERVER_IDENTIFIER, &self.server.octets());
        // RFC 6842 §3: also in a DHCPNAK.
        if let Some(client) = self.query.client {
            put(&mut message, option::CLIENT_IDENTIFIER, client);
        }
        if self.kind != message::NAK {
            if !inform {
                self.times(&mut message);
            }
            self.network(&mut message);
        }
        message.push(option::END);
        message.resize(message.len().max(LEAST), option::PAD);
        message
    }

    /// The lease and when to renew it: after half and seven eighths of it (RFC 2131 §4.4.5).
    fn times(&self, message: &mut Vec<u8>) {
        let lease = self.context.lease;
        put(message, option::LEASE_TIME, &lease.to_be_bytes());
        // All ones is a lease without end (RFC 2131 §3.3).
        if lease != u32::MAX {
            put(message, option::RENEWAL_TIME, &(lease / 2).to_be_bytes());
            put(message, option::REBINDING_TIME, &(lease - lease / 8).to_be_bytes());
        }
    }

    /// What there is to know about the network; as many name servers as the message has room for.
    fn network(&self, message: &mut Vec<u8>) {
        put(message, option::SUBNET_MASK, &self.mask.octets());
        put(message, option::ROUTER, &self.server.octets());
        put(message, option::INTERFACE_MTU, &self.context.mtu.to_be_bytes());
        let room = usize::from(self.query.max_message) - IP_UDP - message.len();
        let servers = self.context.dns.iter().filter_map(|server| match server {
            IpAddr::V4(server) => Some(server.octets()),
            IpAddr::V6(_) => None,
        });
        // The option's two bytes, and the end of the options.
        let servers: Vec<u8> = servers.take((room.saturating_sub(3) / 4).min(255 / 4)).flatten().collect();
        if !servers.is_empty() {
            put(message, option::DOMAIN_NAME_SERVER, &servers);
        }
    }
}

/// Appends an option of at most 255 bytes.
fn put(message: &mut Vec<u8>, code: u8, value: &[u8]) {
    message.extend_from_slice(&[code, value.len() as u8]);
    message.extend_from_slice(value);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};

    use super::super::testing::*;
    use super::*;

    /// A client's message with these options, from 0.0.0.0 to the broadcast address.
    fn client(options: &[&[u8]], change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut message = vec![0; FIXED];
        message[..8].copy_from_slice(&[1, 1, 6, 0, 0xca, 0xfe, 0xba, 0xbe]);
        message[28..34].copy_from_slice(&GUEST_MAC.0);
        message.extend_from_slice(&MAGIC_COOKIE);
        message.extend_from_slice(&options.concat());
        message.push(option::END);
        change(&mut message);
        let mut frame = Vec::new();
        let link = PacketBuilder::ethernet2(GUEST_MAC.0, [0xff; 6]);
        link.ipv4([0; 4], [255; 4], 64).udp(CLIENT_PORT, SERVER_PORT).write(&mut frame, &message).unwrap();
        frame
    }

    fn asking(options: &[&[u8]]) -> Vec<u8> {
        client(options, |_| ())
    }

    /// A server's message as it was received.
    struct Received {
        to_mac: [u8; 6],
        to: Ipv4Addr,
        message: Vec<u8>,
        options: BTreeMap<u8, Vec<u8>>,
    }

    fn receive(frame: &[u8]) -> Received {
        let sliced = SlicedPacket::from_ethernet(frame).unwrap();
        let Some(NetSlice::Ipv4(ip)) = sliced.net else { panic!() };
        let Some(TransportSlice::Udp(udp)) = sliced.transport else { panic!() };
        let (ip, header) = (ip.header().to_header(), udp.to_header());
        assert_eq!(ip.header_checksum, ip.calc_header_checksum());
        assert_eq!(header.checksum, header.calc_checksum_ipv4_raw(ip.source, ip.destination, udp.payload()).unwrap());
        assert_eq!((header.source_port, header.destination_port), (SERVER_PORT, CLIENT_PORT));
        assert_eq!(Ipv4Addr::from(ip.source), GATEWAY);
        assert_eq!(frame[6..12], GATEWAY_MAC.0);
        let message = udp.payload().to_vec();
        assert!(message.len() >= LEAST);
        assert_eq!(message[..8], [2, 1, 6, 0, 0xca, 0xfe, 0xba, 0xbe]);
        assert_eq!(message[28..34], GUEST_MAC.0);
        assert_eq!(message[236..240], MAGIC_COOKIE);
        let (mut options, mut at) = (BTreeMap::new(), 240);
        while message[at] != option::END {
            let len = usize::from(message[at + 1]);
            assert!(options.insert(message[at], message[at + 2..at + 2 + len].to_vec()).is_none());
            at += 2 + len;
        }
        Received { to_mac: frame[..6].try_into().unwrap(), to: ip.destination.into(), message, options }
    }

    fn answered(frame: &[u8]) -> Received {
        receive(&ask(answer, frame).unwrap().unwrap())
    }

    const DISCOVER: &[u8] = &[53, 1, 1];
    const REQUEST: &[u8] = &[53, 1, 3];
    const SERVER: &[u8] = &[54, 4, 10, 0, 0, 1];
    const OWN: &[u8] = &[50, 4, 10, 0, 0, 2];
    const WRONG: &[u8] = &[50, 4, 10, 0, 0, 9];

    #[test]
    fn a_discover_is_offered_the_configured_address() {
        let offer = answered(&asking(&[DISCOVER, WRONG, &[61, 3, 0, 7, 7]]));
        assert_eq!((offer.to_mac, offer.to), (GUEST_MAC.0, GUEST));
        assert_eq!(offer.message[12..20], [0, 0, 0, 0, 10, 0, 0, 2]);
        let expected: [(u8, &[u8]); 10] = [
            (1, &[255, 255, 0, 0]),
            (3, &[10, 0, 0, 1]),
            (6, &[10, 0, 0, 53, 10, 0, 1, 53]),
            (26, &[0x05, 0xaa]),
            (51, &[0, 0, 0x0e, 0x10]),
            (53, &[2]),
            (54, &[10, 0, 0, 1]),
            (58, &[0, 0, 0x07, 0x08]),
            (59, &[0, 0, 0x0c, 0x4e]),
            (61, &[0, 7, 7]),
        ];
        assert_eq!(offer.options, expected.map(|(code, value)| (code, value.to_vec())).into());
    }

    #[test]
    fn the_broadcast_flag_is_heeded_and_returned() {
        let offer = answered(&client(&[DISCOVER], |message| message[10] = 0x80));
        assert_eq!((offer.to_mac, offer.to), ([0xff; 6], Ipv4Addr::BROADCAST));
        assert_eq!(offer.message[10..12], [0x80, 0]);
    }

    #[test]
    fn a_request_in_each_state_is_granted_or_refused() {
        let has = |address: [u8; 4]| move |message: &mut Vec<u8>| message[12..16].copy_from_slice(&address);
        let kind = |frame: &[u8]| answered(frame).options[&53][0];
        assert_eq!(kind(&asking(&[REQUEST, SERVER, OWN])), message::ACK, "SELECTING");
        assert_eq!(kind(&asking(&[REQUEST, SERVER, WRONG])), message::NAK, "SELECTING");
        assert_eq!(kind(&asking(&[REQUEST, OWN])), message::ACK, "INIT-REBOOT");
        assert_eq!(kind(&asking(&[REQUEST, WRONG])), message::NAK, "INIT-REBOOT");
        assert_eq!(kind(&client(&[REQUEST], has([10, 0, 0, 2]))), message::ACK, "RENEWING");
        assert_eq!(kind(&client(&[REQUEST], has([10, 0, 0, 9]))), message::NAK, "REBINDING");
        assert_eq!(kind(&asking(&[REQUEST])), message::NAK, "no address at all");
        let elsewhere = asking(&[REQUEST, &[54, 4, 10, 0, 0, 77], OWN]);
        assert_eq!(ask(answer, &elsewhere), Ok(None), "another server was chosen");
    }

    #[test]
    fn a_refusal_goes_to_everybody_and_says_nothing_else() {
        let nak = answered(&asking(&[REQUEST, WRONG, &[61, 2, 1, 2]]));
        assert_eq!((nak.to_mac, nak.to), ([0xff; 6], Ipv4Addr::BROADCAST));
        assert_eq!(nak.message[12..20], [0; 8]);
        assert_eq!(nak.options.into_keys().collect::<Vec<u8>>(), [53, 54, 61]);
    }

    #[test]
    fn who_has_an_address_is_told_the_rest() {
        let ack = answered(&client(&[&[53, 1, 8]], |message| message[12..16].copy_from_slice(&[10, 0, 0, 2])));
        assert_eq!(ack.to, GUEST);
        assert_eq!(ack.message[12..20], [10, 0, 0, 2, 0, 0, 0, 0]);
        assert_eq!(ack.options.into_keys().collect::<Vec<u8>>(), [1, 3, 6, 26, 53, 54]);
    }

    #[test]
    fn releasing_and_declining_is_not_answered() {
        for kind in [message::RELEASE, message::DECLINE] {
            assert_eq!(ask(answer, &asking(&[&[53, 1, kind], SERVER, OWN])), Ok(None));
        }
    }

    #[test]
    fn options_overflow_into_the_names() {
        // File (108) holds the type, server name (44) the address.
        let frame = client(&[&[52, 1, 3]], |message| {
            message[108..112].copy_from_slice(&[53, 1, 3, 255]);
            message[44..51].copy_from_slice(&[50, 4, 10, 0, 0, 2, 255]);
        });
        assert_eq!(answered(&frame).options[&53], [message::ACK]);
        let frame = client(&[&[52, 1, 1]], |message| message[44..48].copy_from_slice(&[53, 1, 1, 255]));
        assert_eq!(ask(answer, &frame), Err(DropReason::Service), "only the file field was announced");
    }

    #[test]
    fn name_servers_are_left_out_where_there_is_no_room() {
        let identifier = [&[61, 255][..], &[7; 255]].concat();
        let many: Vec<IpAddr> = (0..200).map(|last| Ipv4Addr::new(10, 0, 9, last).into()).collect();
        let sizes = [(None, 576), (Some([57, 2, 0, 1]), 576), (Some([57, 2, 0xff, 0xff]), 1400)];
        for (size, most) in sizes {
            let frame = asking(&[DISCOVER, &identifier, size.as_ref().map_or(&[], |size| &size[..])]);
            let reply = with_context(|context| {
                let context = ServiceContext { dns: &many, ..*context };
                answer(&context, &crate::packet::parse(&frame, frame.len()).unwrap(), &frame).unwrap().unwrap()
            });
            assert!(reply.len() - 14 <= most, "{}", reply.len());
            assert_eq!(receive(&reply).options[&6].len(), if most == 576 { 4 } else { 252 });
        }
    }

    #[test]
    fn what_is_not_the_endpoints_question_is_dropped() {
        let dropped = |change: fn(&mut Vec<u8>)| ask(answer, &client(&[DISCOVER], change)) == Err(DropReason::Service);
        assert!(!dropped(|_| ()));
        assert!(dropped(|message| message[0] = 2), "a reply");
        assert!(dropped(|message| message[2] = 16), "not Ethernet");
        assert!(dropped(|message| message[33] ^= 1), "another client");
        assert!(dropped(|message| message[27] = 1), "relayed");
        assert!(dropped(|message| message[239] = 0), "BOOTP");
        assert!(dropped(|message| message[242] = 2), "an offer");
        assert!(dropped(|message| message[241] = 9), "an option longer than the message");
        assert!(dropped(|message| message.truncate(239)), "no options");
    }

    #[test]
    fn nothing_hostile_panics() {
        let frames = [
            asking(&[DISCOVER, OWN, &[57, 2, 5, 0], &[61, 3, 0, 7, 7]]),
            asking(&[REQUEST, SERVER, OWN]),
            client(&[&[52, 1, 3]], |message| message[108..112].copy_from_slice(&[53, 1, 3, 255])),
            client(&[&[53, 1, 8]], |message| message[12..16].copy_from_slice(&[10, 0, 0, 2])),
        ];
        with_context(|context| hostile(answer, context, &frames));
    }
}
