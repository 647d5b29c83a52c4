//! Software tier: whole frames, everything that the other tiers do not do.

pub(crate) mod limit;

use crate::switch::Ask;
use crate::verdict::{DropReason, Verdict};

pub(crate) fn refuse(ask: Ask) -> Verdict {
    Verdict::Drop(match ask {
        Ask::Arp | Ask::Neighbor | Ask::Router | Ask::Dhcp4 | Ask::Dhcp6 | Ask::Echo | Ask::NoPort => {
            DropReason::Service
        }
        Ask::NoRoute => DropReason::NoRoute,
        Ask::HopLimit => DropReason::HopLimit,
        Ask::PathMtu(_) => DropReason::PathMtu,
    })
}
