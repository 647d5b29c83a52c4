//! A vhost-user-net front end: what a VMM and its guest's virtio-net driver are to a server, with one queue pair.
//!
//! The configuration space and the control queue of a NIC belong to its front end: nothing is read from the server but
//! feature bits.

use std::path::Path;
use std::time::Duration;

use softdpu_device::net::abi::feature;
use softdpu_ring::Format;
use softdpu_transport::vhost_user::{Message, ProtocolFeatures};

use crate::handshake::{NegotiatedFeatures, WantedFeatures, negotiate, start};
use crate::wait::retry_until_listening;
use crate::{Connection, FrontEndError, GuestMemory, Virtqueue};

/// Index of receiveq1 (virtio 1.3 §5.1.2).
const RECEIVE: u16 = 0;
/// Index of transmitq1.
const TRANSMIT: u16 = 1;

/// What a network front end negotiates and allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetOptions {
    /// Descriptors of a queue; a power of two for split rings.
    pub queue_size: u16,
    /// Ring layout; packed has to be offered.
    pub format: Format,
    /// Feature bits that have to be offered, with their names.
    pub required: Vec<(u64, &'static str)>,
    /// Guest memory for buffers, bytes.
    pub memory: u64,
    /// The longest a message waits for its answer.
    pub timeout: Duration,
    /// Negotiates the device status (VHOST_USER_PROTOCOL_F_STATUS) where it is offered. A server may then wait for
    /// DRIVER_OK before it runs queues, as DPDK's does. This front end never sets it.
    pub status: bool,
}

/// A connected front end of a virtio-net device, with one queue pair started.
pub struct NetFrontEnd {
    /// receiveq1: frames to the guest.
    pub receive: Virtqueue,
    /// transmitq1: frames from the guest.
    pub transmit: Virtqueue,
    /// The memory shared with the server.
    pub memory: GuestMemory,
    negotiated: NegotiatedFeatures,
    // The server stops the queues when it closes.
    connection: Option<Connection>,
}

impl NetFrontEnd {
    /// The connection; none of a front end without a server.
    pub fn connection(&mut self) -> Option<&mut Connection> {
        self.connection.as_mut()
    }

    /// Connects, negotiates, shares memory, starts both queues.
    ///
    /// # Errors
    /// [`FrontEndError`], also where the server lacks a feature that `options` demand.
    pub fn connect(path: &Path, options: &NetOptions) -> Result<NetFrontEnd, FrontEndError> {
        let mut connection = Connection::connect(path, options.timeout)?;
        let mut required = options.required.clone();
        if options.format == Format::Packed {
            required.push((feature::RING_PACKED, "VIRTIO_F_RING_PACKED"));
        }
        // Logging begins when a log is there.
        let protocol = ProtocolFeatures::MQ.with(ProtocolFeatures::LOG_SHMFD);
        let negotiated = negotiate(
            &mut connection,
            &WantedFeatures {
                required: &required,
                wanted: feature::RING_EVENT_IDX | feature::MRG_RXBUF,
                protocol: ProtocolFeatures::NONE,
                wanted_protocol: if options.status { protocol.with(ProtocolFeatures::STATUS) } else { protocol },
            },
        )?;
        connection.call(&Message::SetFeatures(negotiated.features), &[])?;
        let mut front_end = NetFrontEnd::over_memory(options, negotiated)?;
        connection.call(&Message::SetMemTable(vec![front_end.memory.region()]), &[front_end.memory.file()])?;
        for (index, queue) in [(RECEIVE, &front_end.receive), (TRANSMIT, &front_end.transmit)] {
            start(&mut connection, &queue.vring(index, queue.first_position()))?;
        }
        front_end.connection = Some(connection);
        Ok(front_end)
    }

    /// As [`connect`](Self::connect), to a server that may have bound its socket and not listened yet.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_when_listening(path: &Path, options: &NetOptions) -> Result<NetFrontEnd, FrontEndError> {
        retry_until_listening(|| NetFrontEnd::connect(path, options))
    }

    /// Both queues in memory, without a server.
    pub(crate) fn over_memory(
        options: &NetOptions,
        negotiated: NegotiatedFeatures,
    ) -> Result<NetFrontEnd, FrontEndError> {
        let NetOptions { format, queue_size, .. } = *options;
        let rings = 2 * (Virtqueue::bytes(format, queue_size) + 4096);
        let mut memory = GuestMemory::new(rings + options.memory + 4096)?;
        let event_idx = negotiated.features & feature::RING_EVENT_IDX != 0;
        let mut queue = || Virtqueue::new(format, queue_size, event_idx, &mut memory);
        Ok(NetFrontEnd { receive: queue()?, transmit: queue()?, memory, negotiated, connection: None })
    }

    /// The outcome of feature negotiation.
    pub fn negotiated(&self) -> NegotiatedFeatures {
        self.negotiated
    }
}
