//! Two honest ends of a TCP connection, segments that get lost on either side of the tracker, and a stranger.

use super::*;

#[derive(Clone, Copy, Debug)]
struct EndPoint {
    first: u32,
    /// Bytes that it still has to send, and those sent but not acknowledged; with SYN and FIN.
    next: u32,
    unacknowledged: u32,
    expects: Option<u32>,
    last: u32,
    scale: u8,
}

const WINDOW: u16 = 3000;

impl EndPoint {
    fn new(chance: &mut Chance) -> EndPoint {
        let first = chance.below(1 << 32) as u32;
        let last = first.wrapping_add(1 + chance.below(400_000) as u32);
        EndPoint { first, next: first, unacknowledged: first, expects: None, last, scale: chance.below(5) as u8 }
    }

    /// The next segment, at most one byte behind what is expected of it, or what is not acknowledged again.
    fn segment(&mut self, peer: &EndPoint, again: bool, chance: &mut Chance) -> TcpHeader {
        // Nothing follows a SYN before that is acknowledged.
        let opens = self.expects.is_none() || self.unacknowledged == self.first;
        let from = if again || opens { self.unacknowledged } else { self.next };
        let ack = if self.expects.is_some() { ACK } else { 0 };
        let acknowledgement = self.expects.unwrap_or(0);
        let header =
            |flags, len, scale, window| TcpHeader { flags, sequence: from, acknowledgement, window, len, scale };
        if from == self.first {
            self.next = self.first.wrapping_add(1);
            return header(SYN | ack, 0, Some(self.scale), WINDOW);
        }
        let window = u32::from(WINDOW) << peer.scale;
        let room = self.unacknowledged.wrapping_add(window).wrapping_sub(from).min(1448 * 4);
        let left = self.last.wrapping_sub(from);
        if left == u32::MAX || room == 0 {
            // Its FIN was sent, or there is no room.
            return header(ACK, 0, None, WINDOW);
        }
        let len = (chance.below(u64::from(room)) as u32 + 1).min(left);
        let fin = if len == left && len < room { FIN } else { 0 };
        let end = from.wrapping_add(len + u32::from(fin));
        if (end.wrapping_sub(self.next) as i32) > 0 {
            self.next = end;
        }
        header(fin | ACK, len, None, WINDOW)
    }

    fn receive(&mut self, header: &TcpHeader) {
        // An end that has sent a SYN waits for one (RFC 9293 §3.10.7.3).
        if self.expects.is_none() && header.flags & SYN == 0 {
            return;
        }
        let marks = u32::from(header.flags & SYN != 0) + u32::from(header.flags & FIN != 0);
        let end = header.sequence.wrapping_add(header.len + marks);
        if header.flags & SYN != 0 && self.expects.is_none() {
            self.expects = Some(end);
        }
        if let Some(expects) = self.expects
            && (expects.wrapping_sub(header.sequence) as i32) >= 0
            && (end.wrapping_sub(expects) as i32) > 0
        {
            self.expects = Some(end);
        }
        let ack = header.acknowledgement;
        if header.flags & ACK != 0 && (ack.wrapping_sub(self.unacknowledged) as i32) > 0 {
            self.unacknowledged = ack;
        }
    }

    fn has_heard_all(&self, peer: &EndPoint) -> bool {
        self.expects == Some(peer.last.wrapping_add(1))
    }

    fn is_done(&self) -> bool {
        self.unacknowledged == self.last.wrapping_add(1)
    }
}

pub fn talk(chance: &mut Chance) -> Result<(), TestCaseError> {
    let key = key(0, (1, 4000), (2, 80), 6);
    let mut table = Conntrack::new(config(4, &[4]));
    let mut ends = [EndPoint::new(chance), EndPoint::new(chance)];
    let (mut ended, mut handle) = (Vec::new(), None);
    for _ in 0..2_000 {
        // The second speaks when it has been spoken to.
        let from = if ends[1].expects.is_none() { 0 } else { chance.below(2) as usize };
        let peer = ends[1 - from];
        let again = chance.below(4) == 0;
        let header = ends[from].segment(&peer, again, chance);
        let way = if from == 0 { key } else { key.reversed() };
        // Lost before the tracker, or behind it, or not at all.
        let fate = chance.below(10);
        if fate != 0 {
            let passed = pass(&mut table, &Segment { key: way, content: Content::Tcp(header) }, 0, &mut ended);
            prop_assert!(passed.is_ok(), "{:?} of {:?} is refused: {:?}", header, ends, passed);
            handle = passed.ok().map(|tracked| tracked.connection);
        }
        if fate > 1 {
            ends[1 - from].receive(&header);
        }
        let state = handle.and_then(|handle| table.tcp_state(handle));
        let knows = matches!(state, Some(TcpState::Established | TcpState::FinWait));
        if knows && chance.below(8) == 0 {
            let sequence = chance.below(1 << 32) as u32;
            let from = chance.below(2) as usize;
            // No attacker guesses one of these by chance; here, one might.
            let is_near = ends.iter().any(|end| end.next.wrapping_sub(sequence).wrapping_add(500_000) < 1_000_000);
            let way = if from == 0 { key } else { key.reversed() };
            if !is_near {
                let passed = table.look(&tcp(way, RST, sequence, 0), 0, &mut ended);
                prop_assert_eq!(passed.map(drop), Err(Refused::Reset));
            }
            prop_assert_eq!(handle.and_then(|handle| table.tcp_state(handle)), state);
        }
        if ends.iter().all(EndPoint::is_done) {
            break;
        }
    }
    let state = handle.and_then(|handle| table.tcp_state(handle));
    if ends.iter().all(EndPoint::is_done) {
        let closed = ended.iter().filter(|ended| ended.why == End::Closed).count();
        let over = matches!(state, Some(TcpState::TimeWait | TcpState::LastAck | TcpState::FinWait));
        prop_assert!(over && closed == usize::from(state == Some(TcpState::TimeWait)), "{:?} {:?}", state, ended);
    } else {
        // The last acknowledgement may have been lost behind the tracker: over is what both have heard the other's FIN
        // of.
        let heard = ends[0].has_heard_all(&ends[1]) && ends[1].has_heard_all(&ends[0]);
        prop_assert!(ended.is_empty() || heard, "{:?} {:?}", ends, ended);
    }
    Ok(())
}
