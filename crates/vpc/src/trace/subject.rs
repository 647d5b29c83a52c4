//! What a filter looks at: a frame's headers, below the tunnel's where there is one.

use crate::id::{PortId, Vni};
use crate::packet::parse::UDP;
use crate::packet::vxlan::{VALID_VNI, VXLAN, vni};
use crate::packet::{Layer4, Parsed, parse};
use crate::tables::{Attachment, Tables};

/// A frame as a [`Filter`](super::Filter) sees it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Subject {
    /// Bytes of the frame as it passes the port.
    pub len: usize,
    /// Its headers; of a frame in a tunnel, those of the inner frame. None: they cannot be read.
    pub packet: Option<Parsed>,
    /// The headers of the tunnel, of a frame that is in one.
    pub outer: Option<Parsed>,
    /// Of the network that it belongs to.
    pub vni: Option<Vni>,
}

impl Subject {
    /// A frame of `len` bytes that passes `port` and begins with `head`.
    pub fn at(tables: &Tables, port: PortId, head: &[u8], len: usize) -> Subject {
        match tables.attachment(port) {
            Attachment::Underlay => {
                Subject::on_wire(head, len, tables.underlay().map_or(0, |underlay| underlay.udp_port))
            }
            Attachment::Endpoint(id) => {
                let network = tables.endpoint(id).and_then(|endpoint| tables.network(endpoint.network));
                let packet = parse(head, len).ok();
                Subject { len, packet, outer: None, vni: network.map(|network| network.vni) }
            }
            Attachment::Nothing => Subject { len, packet: parse(head, len).ok(), outer: None, vni: None },
        }
    }

    /// A frame between hosts, where VXLAN is on UDP port `vxlan`.
    pub fn on_wire(head: &[u8], len: usize, vxlan: u16) -> Subject {
        let whole = parse(head, len).ok();
        let tunnelled = whole.and_then(|outer| {
            let (vni, start, end) = tunnel(&outer, head, vxlan)?;
            let inner = head.get(start..)?;
            let packet = parse(&inner[..inner.len().min(end - start)], end - start).ok();
            Some(Subject { len, packet, outer: Some(outer), vni: Some(vni) })
        });
        tunnelled.unwrap_or(Subject { len, packet: whole, outer: None, vni: None })
    }
}

/// The VNI, and where the inner frame begins and ends (RFC 7348 §5).
fn tunnel(outer: &Parsed, head: &[u8], vxlan: u16) -> Option<(Vni, usize, usize)> {
    let ip = outer.ip().filter(|ip| ip.fragment.is_none())?;
    let Layer4::Udp { destination, .. } = ip.layer4 else { return None };
    let at = usize::from(ip.transport) + UDP;
    let (start, end) = (at + VXLAN, ip.end as usize);
    let header: [u8; VXLAN] = head.get(at..start)?.try_into().ok()?;
    let is_vxlan = destination == vxlan && header[0] & VALID_VNI != 0 && start <= end;
    is_vxlan.then_some((vni(&header), start, end))
}
