//! Which service does what the software tier is asked for.

use crate::packet::Parsed;
use crate::service::{Answer, ServiceContext, arp, dhcp4, dhcp6, icmp, nd, ra};
use crate::switch::Ask;
use crate::verdict::DropReason;

/// The service's answer.
pub(super) fn answer(ask: Ask, context: &ServiceContext<'_>, parsed: &Parsed, frame: &[u8]) -> Answer {
    match ask {
        Ask::Arp => arp::answer(context, parsed, frame),
        Ask::Neighbor => nd::answer(context, parsed, frame),
        Ask::Router => ra::answer(context, parsed, frame),
        Ask::Dhcp4 => dhcp4::answer(context, parsed, frame),
        Ask::Dhcp6 => dhcp6::answer(context, parsed, frame),
        Ask::Echo => icmp::echo(context, parsed, frame),
        Ask::NoPort => icmp::unreachable(context, parsed, frame, icmp::Unreachable::Port),
        Ask::NoRoute => icmp::unreachable(context, parsed, frame, icmp::Unreachable::Network),
        Ask::HopLimit => icmp::time_exceeded(context, parsed, frame),
        Ask::PathMtu(mtu) => icmp::too_big(context, parsed, frame, mtu),
        // There is no sender to be told.
        Ask::Fragment(_) | Ask::Announce => Ok(None),
    }
}

/// Why the frame is dropped, whatever its sender is told; None: it was for the service.
pub(super) fn reason(ask: Ask) -> Option<DropReason> {
    match ask {
        Ask::Arp | Ask::Announce | Ask::Neighbor | Ask::Router => None,
        Ask::Dhcp4 | Ask::Dhcp6 | Ask::Echo | Ask::NoPort => None,
        Ask::NoRoute => Some(DropReason::NoRoute),
        Ask::HopLimit => Some(DropReason::HopLimit),
        Ask::PathMtu(_) | Ask::Fragment(_) => Some(DropReason::PathMtu),
    }
}
