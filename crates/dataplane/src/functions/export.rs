//! A monitor's way to its collector: IPFIX over UDP.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{SystemTime, UNIX_EPOCH};

use softdpu_functions::ipfix::{Exporter, Instant};
use softdpu_functions::monitor::FlowRecord;
use softdpu_sys::clock;

/// Where records are sent, and as what.
pub(super) struct Export {
    pub(super) collector: SocketAddr,
    domain: Option<u32>,
    exporter: Exporter,
    socket: Option<UdpSocket>,
}

/// What became of records.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) exported: u64,
    pub(super) messages: u64,
    pub(super) dropped: u64,
    pub(super) error: Option<String>,
}

impl Export {
    pub(super) fn new(collector: SocketAddr, domain: Option<u32>) -> Export {
        Export { collector, domain, exporter: Exporter::new(domain), socket: None }
    }

    /// Whether the collector would not know the one from the other.
    pub(super) fn is_same(&self, other: &Export) -> bool {
        (self.collector, self.domain) == (other.collector, other.domain)
    }

    /// Sends records. What the kernel does not take at once is dropped, and counted: the collector sees it by the
    /// sequence.
    pub(super) fn send(&mut self, records: &[FlowRecord], sent: &mut Sent) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Instant { clock: clock::now(), unix_ms: unix.as_millis() as u64 };
        for message in self.exporter.encode(now, records) {
            match self.send_message(&message.bytes) {
                Ok(()) => {
                    sent.exported += u64::from(message.records);
                    sent.messages += 1;
                }
                Err(error) => {
                    self.exporter.was_lost(&message);
                    sent.dropped += u64::from(message.records);
                    sent.error = Some(error.to_string());
                }
            }
        }
    }

    fn send_message(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => {
                let any: SocketAddr = if self.collector.is_ipv4() {
                    (Ipv4Addr::UNSPECIFIED, 0).into()
                } else {
                    (Ipv6Addr::UNSPECIFIED, 0).into()
                };
                let socket = UdpSocket::bind(any)?;
                socket.set_nonblocking(true)?;
                socket
            }
        };
        let sent = socket.send_to(bytes, self.collector);
        self.socket = Some(socket);
        sent.map(drop)
    }
}
