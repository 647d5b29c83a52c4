//! Which service does what the software tier is asked for.

use crate::packet::Parsed;
use crate::service::{Answer, ServiceContext};
use crate::switch::Ask;
use crate::verdict::DropReason;

/// The service's answer.
pub(super) fn answer(_ask: Ask, _context: &ServiceContext<'_>, _parsed: &Parsed, _frame: &[u8]) -> Answer {
    Err(DropReason::Service)
}

/// Why the frame is dropped, whatever its sender is told; None: it was for the service.
pub(super) fn reason(ask: Ask) -> Option<DropReason> {
    match ask {
        Ask::Arp | Ask::Neighbor | Ask::Router | Ask::Dhcp4 | Ask::Dhcp6 | Ask::Echo | Ask::NoPort => None,
        Ask::NoRoute => Some(DropReason::NoRoute),
        Ask::HopLimit => Some(DropReason::HopLimit),
        Ask::PathMtu(_) => Some(DropReason::PathMtu),
    }
}
