//! How long a connection is kept without a packet.

const SECOND: u64 = 1_000_000_000;

/// Nanoseconds without a packet after which a connection in a state is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// TCP: a SYN was sent, or a connection was picked up, and there was no answer.
    pub syn_sent: u64,
    /// TCP: the SYN was answered, the answer not yet.
    pub syn_received: u64,
    /// TCP: open. At least 2 h 4 min (RFC 5382 REQ-5).
    pub established: u64,
    /// TCP: one side has sent its FIN.
    pub fin_wait: u64,
    /// TCP: both have, and not all is acknowledged.
    pub last_ack: u64,
    /// TCP: closed in order.
    pub time_wait: u64,
    /// TCP: reset.
    pub closed: u64,
    /// UDP without an answer yet.
    pub udp: u64,
    /// UDP that was answered. At least 2 min (RFC 4787 REQ-5).
    pub udp_answered: u64,
    /// Echo. At least 60 s (RFC 5508 REQ-2).
    pub icmp: u64,
    /// Other protocols.
    pub other: u64,
}

impl Default for Timeouts {
    /// What the RFCs ask for at least; where they say nothing, what Linux has.
    fn default() -> Timeouts {
        Timeouts {
            syn_sent: 120 * SECOND,
            syn_received: 60 * SECOND,
            established: 7440 * SECOND,
            fin_wait: 120 * SECOND,
            last_ack: 30 * SECOND,
            time_wait: 120 * SECOND,
            closed: 10 * SECOND,
            udp: 30 * SECOND,
            udp_answered: 120 * SECOND,
            icmp: 60 * SECOND,
            other: 600 * SECOND,
        }
    }
}
