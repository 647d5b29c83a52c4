//! Where softdpu means to judge otherwise than Linux: docs/policy.md, "Beside Linux". Each case is as narrow as
//! possible.

use softdpu_vpc::policy::conntrack::{Refused, TcpState};

use crate::streams::{ACK, FIN, Packet, RST, SYN};

const END: u8 = FIN | ACK;

/// What softdpu says about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ours {
    Passes,
    Refused(Refused),
    /// It is of no connection, and the rules do not allow it.
    Denied,
}

/// What is known of a stream so far.
#[derive(Default)]
pub struct Stream {
    /// Outside has sent something that passed, other than a reset.
    answered: bool,
    /// FINs that passed, of inside and outside.
    fins: [u32; 2],
    /// A reset has passed, and left the connection here as it was.
    reset: bool,
    /// One has before anything was answered.
    refused: bool,
    /// Both sides have sent a SYN.
    crossed: bool,
    /// The side that connected has sent a SYN in the open connection.
    again: bool,
    /// And the other side has answered it.
    anew: bool,
}

/// A difference that is meant, or one that is about to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Intended {
    /// A reset outside of the window.
    Reset,
    /// A segment that contradicts the handshake.
    Handshake,
    /// A SYN of the side that was connected to, or a SYN-ACK of the side that connected, in an open connection.
    AskedBack,
    /// A segment of a connection that was refused, but a SYN.
    RefusedConnection,
    /// A reset behind another one.
    ResetBehindReset,
    /// A SYN behind a reset.
    SynBehindReset,
    /// A SYN behind FINs of which not all are acknowledged.
    SynBehindFins,
    /// A SYN or a reset behind a SYN in the open connection that was answered.
    BehindAnotherSyn,
    /// A FIN of the side that was connected to, where SYNs have crossed.
    FinBehindCrossedSyns,
    /// An acknowledgement of the side that connected, where SYNs have crossed and neither was answered by a SYN-ACK.
    AckBehindCrossedSyns,
    /// An ICMP error about an echo with another code.
    EchoCode,
}

impl Intended {
    pub const ALL: [Intended; 11] = [
        Intended::Reset,
        Intended::Handshake,
        Intended::AskedBack,
        Intended::RefusedConnection,
        Intended::ResetBehindReset,
        Intended::SynBehindReset,
        Intended::SynBehindFins,
        Intended::BehindAnotherSyn,
        Intended::FinBehindCrossedSyns,
        Intended::AckBehindCrossedSyns,
        Intended::EchoCode,
    ];

    /// Whether both hold the same for the connection afterwards.
    pub fn goes_on(self) -> bool {
        matches!(self, Intended::AskedBack | Intended::EchoCode)
    }
}

impl Stream {
    /// Whether `packet`, which met a connection that was in a state `before` and is in another `after` it, is a case
    /// where both may differ: by what they say about it, or from now on.
    pub fn intended(
        &mut self,
        packet: &Packet,
        [before, after]: [Option<TcpState>; 2],
        ours: Ours,
        theirs: bool,
    ) -> Option<Intended> {
        let Some(flags) = packet.flags.map(|flags| flags & (SYN | FIN | RST | ACK)) else {
            return (packet.other_code && ours == Ours::Passes && !theirs).then_some(Intended::EchoCode);
        };
        let is_open = matches!(before, Some(TcpState::Established | TcpState::FinWait | TcpState::LastAck));
        let is_over = matches!(before, Some(TcpState::TimeWait | TcpState::Closed));
        let asks_back = flags == SYN && packet.from == 1 && (is_open || before == Some(TcpState::SynReceived))
            || flags == SYN | ACK && packet.from == 0 && (is_open || is_over);
        // One that closes nothing here closes in Linux, unless it holds the connection for open
        // (`nf_conntrack_tcp_established`).
        let is_reset = before == Some(TcpState::Closed) || self.reset;
        let intended = match (ours, theirs) {
            (Ours::Refused(Refused::Reset), true) => Some(Intended::Reset),
            (Ours::Refused(Refused::Handshake), true) => Some(Intended::Handshake),
            _ if self.refused && flags != SYN => Some(Intended::RefusedConnection),
            _ if flags == SYN && is_reset => Some(Intended::SynBehindReset),
            _ if flags == SYN && (before == Some(TcpState::LastAck) || self.fins.iter().any(|fins| *fins > 1)) => {
                Some(Intended::SynBehindFins)
            }
            _ if self.anew && flags & (SYN | RST) != 0 => Some(Intended::BehindAnotherSyn),
            (Ours::Passes, false) if asks_back => Some(Intended::AskedBack),
            (Ours::Passes, false) if flags & RST != 0 && is_reset => Some(Intended::ResetBehindReset),
            (Ours::Passes, false) if self.crossed && before == Some(TcpState::SynReceived) => {
                match (packet.from, flags) {
                    (_, END) => Some(Intended::FinBehindCrossedSyns),
                    (0, ACK) => Some(Intended::AckBehindCrossedSyns),
                    _ => None,
                }
            }
            _ => None,
        };
        if flags == SYN && is_over {
            *self = Stream::default();
        } else if ours == Ours::Passes && theirs {
            self.reset |= flags & RST != 0 && after == before;
            self.refused |= flags & RST != 0 && !self.answered;
            self.crossed |= flags == SYN && packet.from == 1;
            self.anew |= self.again && flags == SYN | ACK && packet.from == 1;
            self.again |= flags == SYN && packet.from == 0 && is_open;
            self.answered |= packet.from == 1;
            self.fins[packet.from] += u32::from(flags & FIN != 0);
        }
        intended
    }
}
