use proptest::prelude::*;

use super::*;

fn discriminator(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap()
}

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn parameters(interval: u64, multiplier: u8) -> SessionParameters {
    SessionParameters { interval: ms(interval), multiplier }
}

/// Two systems and the wires between them, whose packets take no time and may be lost.
struct Pair {
    sides: [Session; 2],
    now: Duration,
    /// Packets from a side arrive.
    arrives: [bool; 2],
    /// Packets each side has sent.
    sent: [usize; 2],
}

impl Pair {
    fn new(one: SessionParameters, other: SessionParameters) -> Pair {
        let sides = [
            Session::new(one, discriminator(1), Duration::ZERO),
            Session::new(other, discriminator(2), Duration::ZERO),
        ];
        Pair { sides, now: Duration::ZERO, arrives: [true; 2], sent: [0; 2] }
    }

    fn deliver(&mut self, from: usize, packet: ControlPacket) {
        self.sent[from] += 1;
        if !self.arrives[from] {
            return;
        }
        let packet = ControlPacket::parse(&packet.to_bytes()).unwrap();
        if let Ok(Some(answer)) = self.sides[1 - from].receive(&packet, self.now) {
            self.deliver(1 - from, answer);
        }
    }

    fn run(&mut self, length: Duration) {
        let end = self.now + length;
        while self.now < end {
            for side in 0..2 {
                if let Some(packet) = self.sides[side].poll(self.now, 0x4000_0000) {
                    self.deliver(side, packet);
                }
            }
            let next = self.sides.iter().filter_map(Session::deadline).min().unwrap_or(end);
            self.now = next.max(self.now + Duration::from_micros(1)).min(end);
        }
    }

    fn states(&self) -> [State; 2] {
        [self.sides[0].state(), self.sides[1].state()]
    }
}

fn up() -> Pair {
    let mut pair = Pair::new(parameters(100, 3), parameters(100, 3));
    pair.run(ms(3000));
    assert_eq!(pair.states(), [State::Up; 2]);
    pair
}

#[test]
fn two_sides_come_up_within_the_slow_interval_and_then_send_at_the_agreed_one() {
    let mut pair = up();
    assert!(!pair.sides[0].polling && !pair.sides[1].polling, "the change of interval was acknowledged");
    pair.sent = [0; 2];
    pair.run(ms(10_000));
    // A hundred intervals, each a sixteenth shorter by this jitter.
    for sent in pair.sent {
        assert!((100..=115).contains(&sent), "{sent} packets in 100 intervals");
    }
}

#[test]
fn the_slower_side_sets_the_interval() {
    let mut pair = Pair::new(parameters(100, 3), parameters(400, 5));
    pair.run(ms(6000));
    assert_eq!(pair.states(), [State::Up; 2]);
    assert_eq!(pair.sides[0].transmit_interval(), Some(ms(400)), "the neighbour receives no faster");
    assert_eq!(pair.sides[1].transmit_interval(), Some(ms(400)));
    assert_eq!(pair.sides[0].detection_time(), Some(ms(2000)), "five of the neighbour's intervals");
    assert_eq!(pair.sides[1].detection_time(), Some(ms(1200)), "three, no shorter than this side can receive");
}

#[test]
fn silence_is_noticed_after_the_detection_time_and_not_before() {
    let mut pair = up();
    pair.arrives = [true, false];
    let since = pair.now;
    let last = pair.sides[0].detect_at.unwrap();
    assert!(last <= since + ms(300) && last > since + ms(199));
    pair.run(last - pair.now);
    assert_eq!(pair.sides[0].state(), State::Up, "until the detection time has passed");
    pair.run(ms(1));
    assert_eq!((pair.sides[0].state(), pair.sides[0].diagnostic()), (State::Down, Diagnostic::DetectionTimeExpired));
    pair.run(ms(10));
    assert_eq!(
        (pair.sides[1].state(), pair.sides[1].diagnostic()),
        (State::Down, Diagnostic::NeighbourDown),
        "the other side still hears, and is told at once"
    );
    pair.arrives = [true; 2];
    pair.run(ms(3000));
    assert_eq!(pair.states(), [State::Up; 2]);
}

#[test]
fn an_administrator_takes_a_session_down_and_up() {
    let mut pair = up();
    let now = pair.now;
    pair.sides[0].set_admin_down(true, now);
    pair.run(ms(1500));
    assert_eq!(pair.states(), [State::AdminDown, State::Down]);
    assert_eq!(pair.sides[1].diagnostic(), Diagnostic::NeighbourDown);
    let refused = {
        let packet = pair.sides[1].packet(false);
        pair.sides[0].receive(&packet, now)
    };
    assert_eq!(refused, Err(Refused::AdminDown));
    let now = pair.now;
    pair.sides[0].set_admin_down(false, now);
    pair.run(ms(4000));
    assert_eq!(pair.states(), [State::Up; 2]);
}

#[test]
fn a_poll_is_answered_at_once_with_the_final_bit_alone() {
    let mut pair = up();
    let mut packet = pair.sides[1].packet(false);
    packet.poll = true;
    let answer = pair.sides[0].receive(&packet, pair.now).unwrap().unwrap();
    assert!(answer.is_final && !answer.poll);
    packet.poll = false;
    assert_eq!(pair.sides[0].receive(&packet, pair.now), Ok(None));
}

#[test]
fn other_parameters_are_asked_to_be_acknowledged() {
    let mut pair = up();
    let now = pair.now;
    pair.sides[0].set_parameters(parameters(50, 4), now);
    let asked = pair.sides[0].poll(now, 0).unwrap();
    assert!(asked.poll);
    assert_eq!((asked.desired_min_tx, asked.detect_multiplier), (50_000, 4));
    pair.deliver(0, asked);
    assert!(!pair.sides[0].polling);
    assert_eq!(pair.sides[1].detection_time(), Some(ms(400)), "four of 100 ms: this side receives no faster");
}

#[test]
fn a_packet_for_another_session_changes_nothing() {
    let mut pair = up();
    let before = pair.sides[0].snapshot();
    let mut packet = pair.sides[1].packet(false);
    packet.state = State::Down;
    packet.your_discriminator = Some(discriminator(99));
    assert_eq!(pair.sides[0].receive(&packet, pair.now), Err(Refused::Discriminator(discriminator(99))));
    assert_eq!(pair.sides[0].snapshot(), before);
}

#[test]
fn one_packet_with_the_largest_values_is_believed_for_five_minutes_at_the_most() {
    let mut session = Session::new(parameters(100, 3), discriminator(1), Duration::ZERO);
    let packet = ControlPacket {
        diagnostic: Diagnostic::None,
        state: State::AdminDown,
        poll: false,
        is_final: false,
        control_plane_independent: false,
        demand: false,
        detect_multiplier: 255,
        my_discriminator: discriminator(9),
        your_discriminator: None,
        desired_min_tx: u32::MAX,
        required_min_rx: u32::MAX,
    };
    session.receive(&packet, Duration::ZERO).unwrap();
    assert!(!session.neighbour_is_admin_down(), "it may come from any sender");
    assert_eq!((session.detection_time(), session.transmit_interval()), (Some(ms(300_000)), Some(ms(300_000))));
    let named = ControlPacket { your_discriminator: Some(discriminator(1)), ..packet };
    session.receive(&named, Duration::ZERO).unwrap();
    assert!(session.neighbour_is_admin_down());
    session.poll(ms(300_000), 0);
    assert!(!session.neighbour_is_admin_down(), "it was not heard again");
}

#[test]
fn a_neighbour_that_wants_no_packets_gets_none_and_one_in_demand_mode_only_polls() {
    let mut pair = up();
    let mut packet = pair.sides[1].packet(false);
    packet.required_min_rx = 0;
    pair.sides[0].receive(&packet, pair.now).unwrap();
    assert_eq!(pair.sides[0].poll(pair.now + ms(150), 0), None);
    packet.required_min_rx = 100_000;
    packet.demand = true;
    pair.sides[0].receive(&packet, pair.now).unwrap();
    assert_eq!(pair.sides[0].poll(pair.now + ms(150), 0), None);
    pair.sides[0].set_parameters(parameters(200, 3), pair.now);
    assert!(pair.sides[0].poll(pair.now + ms(150), 0).unwrap().poll);
}

#[test]
fn a_successor_goes_on_without_the_neighbour_noticing() {
    let mut pair = up();
    let snapshot = pair.sides[0].snapshot();
    pair.now += ms(150);
    pair.sides[0] = Session::resume(snapshot, parameters(100, 3), pair.now);
    assert_eq!(pair.sides[0].state(), State::Up);
    pair.run(ms(5000));
    assert_eq!(pair.states(), [State::Up; 2]);
    assert_eq!(pair.sides[1].diagnostic(), Diagnostic::None);
}

#[test]
fn a_successor_of_a_session_whose_neighbour_is_gone_notices() {
    let snapshot = up().sides[0].snapshot();
    let mut session = Session::resume(snapshot, parameters(100, 3), ms(10));
    assert_eq!(session.deadline(), Some(ms(10)), "it sends at once");
    session.poll(ms(309), 0);
    assert_eq!(session.state(), State::Up);
    session.poll(ms(310), 0);
    assert_eq!(session.state(), State::Down);
}

#[test]
fn jitter_keeps_within_a_quarter_and_a_lone_packet_comes_early() {
    let session = Session::new(parameters(100, 3), discriminator(1), Duration::ZERO);
    assert_eq!(session.jittered(ms(100), 0), ms(100));
    assert_eq!(session.jittered(ms(100), u32::MAX), ms(75));
    let session = Session::new(parameters(100, 1), discriminator(1), Duration::ZERO);
    assert_eq!(session.jittered(ms(100), 0), ms(90));
    assert_eq!(session.jittered(ms(100), u32::MAX), ms(75));
}

proptest! {
    /// RFC 5880 §6.8.6's table, by every pair of states.
    #[test]
    fn any_packet_at_any_time_keeps_the_session_sane(
        packets in proptest::collection::vec((0..4usize, any::<bool>(), 1..=255u8, any::<u32>(), any::<u32>(), 0..5000u64), 1..60),
    ) {
        let states = [State::AdminDown, State::Down, State::Init, State::Up];
        let mut session = Session::new(parameters(100, 3), discriminator(7), Duration::ZERO);
        let mut now = Duration::ZERO;
        for (state, poll, multiplier, tx, rx, wait) in packets {
            now += ms(wait);
            session.poll(now, tx ^ rx);
            let before = session.state();
            let packet = ControlPacket {
                diagnostic: Diagnostic::None,
                state: states[state],
                poll,
                is_final: false,
                control_plane_independent: false,
                demand: false,
                detect_multiplier: multiplier,
                my_discriminator: discriminator(9),
                your_discriminator: Some(discriminator(7)),
                desired_min_tx: tx,
                required_min_rx: rx,
            };
            let answer = session.receive(&packet, now).unwrap();
            prop_assert_eq!(answer.is_some(), poll);
            let expected = match (before, states[state]) {
                (_, State::AdminDown) => State::Down,
                (State::Down, State::Down) => State::Init,
                (State::Down, State::Init) => State::Up,
                (State::Down, State::Up) => State::Down,
                (State::Init, State::Down) => State::Init,
                (State::Init, _) => State::Up,
                (State::Up, State::Down) => State::Down,
                (State::Up, _) => State::Up,
                (State::AdminDown, _) => unreachable!(),
            };
            prop_assert_eq!(session.state(), expected);
            prop_assert!(session.deadline().is_some(), "it would never notice that the neighbour is gone");
        }
    }
}
