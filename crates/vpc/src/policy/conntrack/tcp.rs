//! A TCP connection, as seen between its ends.
//!
//! ```text
//!   SYN ─► SynSent ─ SYN ACK ─► SynReceived ─ ACK ─► Established
//!                                                   │ FIN of one
//!   Closed ◄─ RST, from anywhere                 FinWait ─ FIN of the other ─► LastAck ─ both acknowledged ─► TimeWait
//! ```
//!
//! Sequence numbers are followed to judge handshakes and resets. Other segments pass wherever they are, as with Linux's
//! `nf_conntrack_tcp_be_liberal`: their receiver knows better. A reset, which a stranger may have guessed, has to be
//! where the receiver takes it (RFC 5961 §3.2): exactly at the next byte it expects, or right behind what its sender
//! sent last. In the window but elsewhere it passes and closes nothing, for the receiver asks back; outside it is
//! refused.

use super::key::Direction;
use super::reason::Refused;

pub const FIN: u8 = 0x01;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

/// The largest shift of a window (RFC 7323 §2.3).
const MOST_SCALE: u8 = 14;
/// The largest window without a shift: how far an acknowledgement may be ahead of what was seen.
const WINDOW: u32 = 0xffff;

/// What the tracker needs of a TCP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHeader {
    /// FIN, SYN, RST, PSH, ACK, … from bit 0 up.
    pub flags: u8,
    /// Sequence number.
    pub sequence: u32,
    /// Acknowledgement number.
    pub acknowledgement: u32,
    /// Window, as it is in the header.
    pub window: u16,
    /// Bytes of payload.
    pub len: u32,
    /// The window scale option.
    pub scale: Option<u8>,
}

/// Where a connection is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TcpState {
    /// A SYN was seen.
    SynSent,
    /// And its answer.
    SynReceived,
    /// And the answer's.
    Established,
    /// One side has sent its FIN.
    FinWait,
    /// Both have.
    LastAck,
    /// And both were acknowledged.
    TimeWait,
    /// It was reset.
    Closed,
}

/// What becomes of a segment that is not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It passes, and the connection is alive.
    Pass,
    /// It passes, and says nothing about the connection.
    Stay,
    /// It begins a new connection: this one is over.
    Reopen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tcp {
    pub state: TcpState,
    sides: [Side; 2],
}

/// What is known of one side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Side {
    /// It has sent something: `first` and `end` mean something.
    seen: bool,
    /// It has acknowledged something: `ack` does.
    acked: bool,
    /// The first byte behind its SYN.
    first: u32,
    /// Behind the last byte it sent.
    end: u32,
    /// The next byte it expects.
    ack: u32,
    /// The largest window it offered, bytes.
    window: u32,
    /// The shift of its windows, where both sides have one.
    scale: Option<u8>,
    /// Behind its FIN.
    fin: Option<u32>,
    fin_acked: bool,
}

/// Whether `a` is behind `b`, modulo 2^32 (RFC 9293 §3.4).
fn behind(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) > 0
}

impl TcpHeader {
    fn end(&self) -> u32 {
        let marks = u32::from(self.flags & SYN != 0) + u32::from(self.flags & FIN != 0);
        self.sequence.wrapping_add(self.len).wrapping_add(marks)
    }

    fn has(&self, flags: u8) -> bool {
        self.flags & flags == flags
    }
}

impl Tcp {
    /// The connection that a segment opens: a SYN, or, where that is allowed, one in the middle (`pickup`).
    pub fn open(header: &TcpHeader, pickup: bool) -> Result<Tcp, Refused> {
        let mut tcp = Tcp { state: TcpState::SynSent, sides: [Side::default(); 2] };
        match header.flags & (SYN | FIN | RST | ACK) {
            SYN => tcp.sides[0].begin(header),
            ACK if pickup => {
                tcp.state = TcpState::Established;
                tcp.learn(Direction::Original, header);
            }
            ACK | RST => return Err(Refused::NoConnection),
            flags if flags == SYN | ACK || flags == FIN | ACK || flags == RST | ACK => {
                return Err(Refused::NoConnection);
            }
            _ => return Err(Refused::TcpFlags),
        }
        Ok(tcp)
    }

    /// Both sides have sent something, and the handshake is over.
    pub fn is_assured(&self) -> bool {
        self.sides.iter().all(|side| side.seen) && !matches!(self.state, TcpState::SynSent | TcpState::SynReceived)
    }

    pub fn is_over(&self) -> bool {
        matches!(self.state, TcpState::TimeWait | TcpState::Closed)
    }

    /// The next segment. `any_reset`: where a reset is does not matter.
    pub fn step(&mut self, direction: Direction, header: &TcpHeader, any_reset: bool) -> Result<Step, Refused> {
        match header.flags & (SYN | FIN | RST | ACK) {
            RST => self.reset(direction, header, any_reset),
            flags if flags == RST | ACK => self.reset(direction, header, any_reset),
            SYN => Ok(self.syn(direction, header)),
            flags if flags == SYN | ACK => self.syn_ack(direction, header),
            ACK => self.data(direction, header),
            flags if flags == FIN | ACK => self.data(direction, header),
            _ => Err(Refused::TcpFlags),
        }
    }

    fn syn(&mut self, direction: Direction, header: &TcpHeader) -> Step {
        match (self.state, direction) {
            (TcpState::SynSent, Direction::Original) => self.sides[0].begin(header),
            // Both open at once (RFC 9293 §3.5, figure 7).
            (TcpState::SynSent, Direction::Reply) => {
                self.sides[1].begin(header);
                self.state = TcpState::SynReceived;
            }
            // Its sender has given up the first one.
            (TcpState::SynReceived, Direction::Original) if header.end() != self.sides[0].end => {
                *self = Tcp { state: TcpState::SynSent, sides: [Side::default(); 2] };
                self.sides[0].begin(header);
            }
            (TcpState::SynReceived, _) if header.end() == self.sides[direction as usize].end => {}
            (TcpState::TimeWait | TcpState::Closed, _) => return Step::Reopen,
            // Its receiver asks back (RFC 5961 §4.2).
            _ => return Step::Stay,
        }
        Step::Pass
    }

    fn syn_ack(&mut self, direction: Direction, header: &TcpHeader) -> Result<Step, Refused> {
        let (this, other) = (direction as usize, direction.other() as usize);
        let answers = self.sides[other].is_answered_by(header);
        match (self.state, direction) {
            (TcpState::SynSent, Direction::Reply) if answers => {
                self.sides[this].begin(header);
                self.state = TcpState::SynReceived;
            }
            (TcpState::SynReceived, Direction::Reply) if answers => {
                self.sides[this].seen_ack(header.acknowledgement);
            }
            (TcpState::SynReceived, Direction::Original) if answers => {
                self.sides[this].seen_ack(header.acknowledgement);
                self.state = TcpState::Established;
            }
            (TcpState::SynSent | TcpState::SynReceived, _) => return Err(Refused::Handshake),
            _ => return Ok(Step::Stay),
        }
        Ok(Step::Pass)
    }

    /// An acknowledgement, with or without data, with or without FIN.
    fn data(&mut self, direction: Direction, header: &TcpHeader) -> Result<Step, Refused> {
        match (self.state, direction) {
            (TcpState::SynSent, _) => return Err(Refused::Handshake),
            (TcpState::SynReceived, Direction::Original) => {
                if !self.sides[1].is_answered_by(header) {
                    return Err(Refused::Handshake);
                }
                self.state = TcpState::Established;
            }
            (TcpState::TimeWait | TcpState::Closed, _) => return Ok(Step::Stay),
            _ => {}
        }
        self.learn(direction, header);
        let (this, other) = (direction as usize, direction.other() as usize);
        if header.has(FIN) && self.sides[this].fin.is_none() {
            self.sides[this].fin = Some(header.end());
        }
        if self.sides[other].fin.is_some_and(|fin| !behind(fin, header.acknowledgement)) {
            self.sides[other].fin_acked = true;
        }
        if self.state != TcpState::SynReceived {
            self.state = match (self.sides.map(|side| side.fin.is_some()), self.sides.map(|side| side.fin_acked)) {
                ([true, true], [true, true]) => TcpState::TimeWait,
                ([true, true], _) => TcpState::LastAck,
                ([false, false], _) => self.state,
                _ => TcpState::FinWait,
            };
        }
        Ok(Step::Pass)
    }

    fn reset(&mut self, direction: Direction, header: &TcpHeader, any: bool) -> Result<Step, Refused> {
        if self.is_over() {
            return Ok(Step::Stay);
        }
        let (this, other) = (self.sides[direction as usize], self.sides[direction.other() as usize]);
        let expected = other.acked && header.sequence == other.ack;
        let behind_last = this.seen && header.sequence == this.end;
        // The answer to a SYN that is refused (RFC 9293 §3.10.7.3).
        let refuses = !other.acked && header.has(ACK) && other.seen && header.acknowledgement == other.end;
        if any || expected || behind_last || refuses {
            self.state = TcpState::Closed;
            return Ok(Step::Pass);
        }
        let in_window = header.sequence.wrapping_sub(other.ack) <= other.window;
        if other.acked && in_window { Ok(Step::Stay) } else { Err(Refused::Reset) }
    }

    /// What a segment tells about both sides, where it is plausible.
    fn learn(&mut self, direction: Direction, header: &TcpHeader) {
        let [from, to] = [direction as usize, direction.other() as usize];
        let (mut this, mut other) = (self.sides[from], self.sides[to]);
        let scale = this.scale.zip(other.scale).map_or(0, |(scale, _)| scale);
        this.window = this.window.max(u32::from(header.window) << scale);
        let end = header.end();
        if !this.seen {
            (this.seen, this.first, this.end) = (true, header.sequence, end);
        }
        // Ahead of what was seen by no more than a window, or it is of another sender.
        let (base, room) = if other.acked { (other.ack, other.window.max(1)) } else { (this.end, WINDOW) };
        if behind(end, this.end) && !behind(end, base.wrapping_add(room)) {
            this.end = end;
        }
        let ack = header.acknowledgement;
        if !other.seen {
            // Picked up in the middle: what is acknowledged was sent.
            other.end = ack;
            this.seen_ack(ack);
        } else if !behind(ack, other.end.wrapping_add(this.window.max(WINDOW))) {
            this.seen_ack(ack);
            if behind(ack, other.end) {
                other.end = ack;
            }
        }
        (self.sides[from], self.sides[to]) = (this, other);
    }
}

impl TcpState {
    const ALL: [TcpState; 7] = [
        TcpState::SynSent,
        TcpState::SynReceived,
        TcpState::Established,
        TcpState::FinWait,
        TcpState::LastAck,
        TcpState::TimeWait,
        TcpState::Closed,
    ];
}

impl Tcp {
    /// A connection of which nothing is known but that it was there.
    pub fn unknown() -> Tcp {
        Tcp { state: TcpState::Established, sides: [Side::default(); 2] }
    }

    /// All that is known, as words.
    pub fn to_words(self) -> [u64; 7] {
        let [[a, b, c], [d, e, f]] = self.sides.map(Side::to_words);
        [self.state as u64, a, b, c, d, e, f]
    }

    /// What [`to_words`](Self::to_words) was of; None of other words.
    pub fn from_words([state, a, b, c, d, e, f]: [u64; 7]) -> Option<Tcp> {
        let state = *TcpState::ALL.get(usize::try_from(state).ok()?)?;
        Some(Tcp { state, sides: [Side::from_words([a, b, c])?, Side::from_words([d, e, f])?] })
    }
}

impl Side {
    /// It was seen, it acknowledged, its FIN was, that was acknowledged, its windows are shifted.
    const FLAGS: [u64; 5] = [1, 2, 4, 8, 16];

    fn to_words(self) -> [u64; 3] {
        let [seen, acked, fin, fin_acked, scaled] = Side::FLAGS;
        let flags = [
            (self.seen, seen),
            (self.acked, acked),
            (self.fin.is_some(), fin),
            (self.fin_acked, fin_acked),
            (self.scale.is_some(), scaled),
        ];
        let flags = flags.iter().filter(|(is_set, _)| *is_set).fold(0, |all, (_, flag)| all | flag);
        let both = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        let scale = u64::from(self.scale.unwrap_or_default()) << 8;
        [both(self.first, self.end), both(self.ack, self.window), both(self.fin.unwrap_or_default(), 0) | scale | flags]
    }

    fn from_words([one, two, three]: [u64; 3]) -> Option<Side> {
        let [seen, acked, fin, fin_acked, scaled] = Side::FLAGS.map(|flag| three & flag != 0);
        let scale = (three >> 8) as u8;
        let side = Side {
            seen,
            acked,
            first: (one >> 32) as u32,
            end: one as u32,
            ack: (two >> 32) as u32,
            window: two as u32,
            scale: scaled.then_some(scale),
            fin: fin.then_some((three >> 32) as u32),
            fin_acked,
        };
        (scale <= MOST_SCALE && side.to_words() == [one, two, three]).then_some(side)
    }
}

impl Side {
    /// Its SYN.
    fn begin(&mut self, header: &TcpHeader) {
        let has_ack = header.has(ACK);
        *self = Side {
            seen: true,
            acked: has_ack,
            first: header.sequence.wrapping_add(1),
            end: header.end(),
            ack: if has_ack { header.acknowledgement } else { 0 },
            window: header.window.into(),
            scale: header.scale.map(|scale| scale.min(MOST_SCALE)),
            fin: None,
            fin_acked: false,
        };
    }

    fn seen_ack(&mut self, ack: u32) {
        if !self.acked || behind(ack, self.ack) {
            (self.acked, self.ack) = (true, ack);
        }
    }

    /// Whether a segment acknowledges the SYN, and nothing that was not sent.
    fn is_answered_by(&self, header: &TcpHeader) -> bool {
        self.seen && !behind(self.first, header.acknowledgement) && !behind(header.acknowledgement, self.end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn words_are_of_one_connection_or_none(
            state in 0_u64..9, one in any::<[u64; 3]>(), other in any::<[u64; 3]>(), plain in any::<bool>(),
        ) {
            let mask = |[a, b, c]: [u64; 3]| [a, b, if plain { c & 0xffff_ffff_0000_0f1f } else { c }];
            let ([a, b, c], [d, e, f]) = (mask(one), mask(other));
            let words = [state, a, b, c, d, e, f];
            if let Some(tcp) = Tcp::from_words(words) {
                prop_assert_eq!(tcp.to_words(), words);
            }
        }
    }

    #[test]
    fn a_connection_comes_back_from_its_words() {
        let header = |flags, sequence, acknowledgement| TcpHeader {
            flags,
            sequence,
            acknowledgement,
            window: 9,
            len: 0,
            scale: (flags & SYN != 0).then_some(7),
        };
        let mut tcp = Tcp::open(&header(SYN, 100, 0), false).unwrap();
        let steps = [
            (Direction::Reply, header(SYN | ACK, 500, 101)),
            (Direction::Original, header(ACK, 101, 501)),
            (Direction::Reply, header(FIN | ACK, 501, 101)),
            (Direction::Original, header(FIN | ACK, 101, 502)),
            (Direction::Reply, header(ACK, 502, 102)),
        ];
        for (direction, header) in steps {
            assert_eq!(Tcp::from_words(tcp.to_words()), Some(tcp));
            tcp.step(direction, &header, true).unwrap();
        }
        assert_eq!(Tcp::from_words(tcp.to_words()).map(|tcp| tcp.state), Some(TcpState::TimeWait));
    }
}
