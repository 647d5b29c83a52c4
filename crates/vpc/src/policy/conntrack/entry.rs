//! One connection in the table.

use super::key::Pair;
use super::tcp::{Tcp, TcpState};
use super::timeouts::Timeouts;

#[derive(Clone, Copy, Debug)]
pub struct Entry {
    pub pair: Pair,
    /// How often a connection came here or went: odd while there is one.
    pub generation: u32,
    pub bucket: u32,
    /// The original direction is from the lower end to the higher.
    pub ascends: bool,
    pub answered: bool,
    /// It was said that it has ended.
    pub ended: bool,
    pub standing: Option<Standing>,
    pub life: Life,
    /// Nanoseconds.
    pub deadline: u64,
}

// Three cache lines, of which a look-up that finds another connection reads one.
const _: () = assert!(size_of::<Entry>() <= 192);

/// Which of a zone's lists an entry is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    HalfOpen,
    Over,
}

#[derive(Clone, Copy, Debug)]
pub enum Life {
    Tcp(Tcp),
    Udp,
    Echo,
    Other,
}

impl Entry {
    pub fn is_there(&self) -> bool {
        self.generation % 2 == 1
    }

    pub fn timeout(&self, timeouts: &Timeouts) -> u64 {
        match self.life {
            Life::Tcp(tcp) => match tcp.state {
                TcpState::SynSent => timeouts.syn_sent,
                TcpState::SynReceived => timeouts.syn_received,
                // Picked up and not answered: perhaps it never was.
                TcpState::Established if !tcp.is_assured() => timeouts.syn_sent,
                TcpState::Established => timeouts.established,
                TcpState::FinWait => timeouts.fin_wait,
                TcpState::LastAck => timeouts.last_ack,
                TcpState::TimeWait => timeouts.time_wait,
                TcpState::Closed => timeouts.closed,
            },
            Life::Udp if self.answered => timeouts.udp_answered,
            Life::Udp => timeouts.udp,
            Life::Echo => timeouts.icmp,
            Life::Other => timeouts.other,
        }
    }

    pub fn should_stand(&self) -> Option<Standing> {
        match self.life {
            Life::Tcp(tcp) if tcp.is_over() => Some(Standing::Over),
            Life::Tcp(tcp) if tcp.is_assured() => None,
            Life::Udp | Life::Echo | Life::Other if self.answered => None,
            _ => Some(Standing::HalfOpen),
        }
    }
}
