//! VXLAN headers (RFC 7348 §5).

use super::parse::{ETHERNET, IPV6, UDP};
use crate::id::Vni;

/// Bytes of a VXLAN header.
pub const VXLAN: usize = 8;
/// The flag of a valid VNI, in the first byte.
pub const VALID_VNI: u8 = 0x08;
/// Bytes of Ethernet, IPv6, UDP and VXLAN headers before an inner frame.
pub const OVERHEAD_V6: usize = ETHERNET + IPV6 + UDP + VXLAN;

/// The network identifier of a header.
#[inline]
pub(crate) fn vni(header: &[u8; VXLAN]) -> Vni {
    Vni::from_bytes([header[4], header[5], header[6]])
}
