//! One session in asynchronous mode (RFC 5880 §6.8), active role.
//!
//! ```text
//!            hears down                 hears init or up
//!    Down ───────────────▶ Init ──────────────────────────▶ Up
//!     │ ╰────────────────── hears init ────────────────────▶│
//!     ◀──────── detection time passes, or hears down ───────┤
//! ```
//!
//! The caller owns sockets and clock: it hands packets to [`Session::receive`] and calls [`Session::poll`] no later
//! than [`Session::deadline`]. Times are those of any clock that does not go backwards.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::packet::{ControlPacket, Diagnostic, State};

/// While a session is not up it sends no more often than this (RFC 5880 §6.8.3).
const SLOW: Duration = Duration::from_secs(1);
/// No neighbour makes this side wait longer for it, nor between packets to it, whatever it says: packets are not
/// authenticated, and one with the largest values would keep a dead host up for twelve days.
const LONGEST_DETECTION: Duration = Duration::from_secs(300);
/// Jitter shortens each interval by up to this part of it, in percent (RFC 5880 §6.8.7).
const JITTER: u32 = 25;
/// With a multiplier of 1 an interval is shortened by at least this, in percent, so that one packet comes in time.
const LEAST_JITTER: u32 = 10;

/// What an administrator says of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionParameters {
    /// The interval at which this side wants to send and can receive.
    pub interval: Duration,
    /// Packets in a row that the neighbour may miss before it takes the path for down; 1 to 255.
    pub multiplier: u8,
}

impl Default for SessionParameters {
    fn default() -> SessionParameters {
        SessionParameters { interval: Duration::from_millis(100), multiplier: 3 }
    }
}

/// What the neighbour said in its last packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Neighbour {
    discriminator: NonZeroU32,
    /// It named this session, so it has heard this side.
    named_us: bool,
    state: State,
    demand: bool,
    multiplier: u8,
    /// Microseconds, as on the wire.
    desired_min_tx: u32,
    /// Microseconds, as on the wire.
    required_min_rx: u32,
}

/// A session's state as plain data, for the process that follows this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSnapshot {
    my_discriminator: NonZeroU32,
    state: State,
    diagnostic: Diagnostic,
    neighbour: Option<Neighbour>,
}

impl SessionSnapshot {
    /// The number by which the neighbour names the session.
    pub fn my_discriminator(&self) -> NonZeroU32 {
        self.my_discriminator
    }
}

/// Why a packet is not this session's (RFC 5880 §6.8.6).
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Refused {
    /// It names another session.
    #[error("it is for the session with discriminator {0}")]
    Discriminator(NonZeroU32),
    /// This session is administratively down.
    #[error("the session is administratively down")]
    AdminDown,
}

/// One session with one neighbour.
#[derive(Clone, Debug)]
pub struct Session {
    parameters: SessionParameters,
    my_discriminator: NonZeroU32,
    state: State,
    diagnostic: Diagnostic,
    /// Forgotten when the detection time passes without a packet (RFC 5880 §6.8.1, bfd.RemoteDiscr).
    neighbour: Option<Neighbour>,
    /// A poll sequence is under way: each packet asks for an answer until one comes.
    polling: bool,
    transmit_at: Duration,
    /// When the path is taken for down unless a packet comes.
    detect_at: Option<Duration>,
}

impl Session {
    /// A session that is down and sends its first packet at once. `my_discriminator` names it among all sessions of
    /// this system.
    pub fn new(parameters: SessionParameters, my_discriminator: NonZeroU32, now: Duration) -> Session {
        Session {
            parameters,
            my_discriminator,
            state: State::Down,
            diagnostic: Diagnostic::None,
            neighbour: None,
            polling: false,
            transmit_at: now,
            detect_at: None,
        }
    }

    /// Goes on where another process ended: what was up stays up unless a whole detection time passes without a packet.
    pub fn resume(snapshot: SessionSnapshot, parameters: SessionParameters, now: Duration) -> Session {
        let mut session = Session {
            state: snapshot.state,
            diagnostic: snapshot.diagnostic,
            neighbour: snapshot.neighbour,
            // The parameters may have changed meanwhile.
            polling: snapshot.state == State::Up,
            ..Session::new(parameters, snapshot.my_discriminator, now)
        };
        session.watch(now);
        session
    }

    /// What [`resume`](Self::resume) needs.
    pub fn snapshot(&self) -> SessionSnapshot {
        SessionSnapshot {
            my_discriminator: self.my_discriminator,
            state: self.state,
            diagnostic: self.diagnostic,
            neighbour: self.neighbour,
        }
    }

    /// Its state.
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether the neighbour says that its administrator took the session down, in a packet that names this session.
    pub fn neighbour_is_admin_down(&self) -> bool {
        self.neighbour.is_some_and(|neighbour| neighbour.state == State::AdminDown && neighbour.named_us)
    }

    /// Why it went down last.
    pub fn diagnostic(&self) -> Diagnostic {
        self.diagnostic
    }

    /// The number by which the neighbour names it.
    pub fn my_discriminator(&self) -> NonZeroU32 {
        self.my_discriminator
    }

    /// The interval at which packets are sent, before jitter; none while the neighbour wants none.
    pub fn transmit_interval(&self) -> Option<Duration> {
        let wanted = self.desired_min_tx();
        match self.neighbour {
            Some(neighbour) if neighbour.required_min_rx == 0 => None,
            Some(neighbour) => Some(wanted.max(micros(neighbour.required_min_rx).min(LONGEST_DETECTION))),
            None => Some(wanted),
        }
    }

    /// After how long without a packet the path is taken for down (RFC 5880 §6.8.4); none while no neighbour is known.
    pub fn detection_time(&self) -> Option<Duration> {
        let neighbour = self.neighbour?;
        let interval = self.parameters.interval.max(micros(neighbour.desired_min_tx));
        Some(interval.saturating_mul(neighbour.multiplier.into()).min(LONGEST_DETECTION))
    }

    /// When [`poll`](Self::poll) has something to do next.
    pub fn deadline(&self) -> Option<Duration> {
        let transmit = self.sends_by_itself().then_some(self.transmit_at);
        match (transmit, self.detect_at) {
            (Some(transmit), Some(detect)) => Some(transmit.min(detect)),
            (one, other) => one.or(other),
        }
    }

    /// Changes interval and multiplier. The neighbour is asked to acknowledge (RFC 5880 §6.8.3).
    pub fn set_parameters(&mut self, parameters: SessionParameters, now: Duration) {
        if self.parameters != parameters {
            self.parameters = parameters;
            self.polling = self.state == State::Up;
            self.transmit_at = now;
            if self.detect_at.is_some() {
                self.watch(now);
            }
        }
    }

    /// Takes the session down for the administrator, or up again (RFC 5880 §6.8.16). The neighbour is told.
    pub fn set_admin_down(&mut self, down: bool, now: Duration) {
        match (down, self.state) {
            (true, State::AdminDown) => {}
            (true, _) => {
                self.enter(State::AdminDown, Diagnostic::AdministrativelyDown, now);
                self.detect_at = None;
            }
            (false, State::AdminDown) => self.enter(State::Down, self.diagnostic, now),
            (false, _) => {}
        }
    }

    /// Takes a packet that came from the session's neighbour (RFC 5880 §6.8.6). The answer to a poll is returned and is
    /// to be sent at once; [`state`](Self::state) tells what the packet changed.
    ///
    /// # Errors
    /// [`Refused`]: the packet changes nothing and is to be counted.
    pub fn receive(&mut self, packet: &ControlPacket, now: Duration) -> Result<Option<ControlPacket>, Refused> {
        if let Some(named) = packet.your_discriminator
            && named != self.my_discriminator
        {
            return Err(Refused::Discriminator(named));
        }
        if self.state == State::AdminDown {
            return Err(Refused::AdminDown);
        }
        let interval = self.transmit_interval();
        self.neighbour = Some(Neighbour {
            discriminator: packet.my_discriminator,
            named_us: packet.your_discriminator.is_some(),
            state: packet.state,
            demand: packet.demand,
            multiplier: packet.detect_multiplier,
            desired_min_tx: packet.desired_min_tx,
            required_min_rx: packet.required_min_rx,
        });
        if packet.is_final {
            self.polling = false;
        }
        self.step(packet.state, now);
        if self.transmit_interval() < interval {
            self.transmit_at = self.transmit_at.min(now + self.transmit_interval().unwrap_or_default());
        }
        self.watch(now);
        Ok(packet.poll.then(|| self.packet(true)))
    }

    /// Does what is due: takes the path for down where the detection time has passed, and returns the packet that is to
    /// be sent now. `random` spreads the sending times (RFC 5880 §6.8.7); any even spread over all values will do.
    pub fn poll(&mut self, now: Duration, random: u32) -> Option<ControlPacket> {
        if self.detect_at.is_some_and(|at| at <= now) {
            self.detect_at = None;
            self.neighbour = None;
            if matches!(self.state, State::Init | State::Up) {
                self.enter(State::Down, Diagnostic::DetectionTimeExpired, now);
            }
        }
        if !self.sends_by_itself() || self.transmit_at > now {
            return None;
        }
        let interval = self.transmit_interval()?;
        self.transmit_at = now + self.jittered(interval, random);
        Some(self.packet(false))
    }

    /// The state machine of RFC 5880 §6.8.6, for a packet that says `heard`.
    fn step(&mut self, heard: State, now: Duration) {
        match (self.state, heard) {
            (State::Down, State::Down) => self.enter(State::Init, self.diagnostic, now),
            (State::Down, State::Init) | (State::Init, State::Init | State::Up) => {
                self.enter(State::Up, Diagnostic::None, now);
                // The interval changes from a second to what was asked for, which the neighbour has to acknowledge.
                self.polling = true;
            }
            (State::Init | State::Up, State::AdminDown) | (State::Up, State::Down) => {
                self.enter(State::Down, Diagnostic::NeighbourDown, now);
            }
            (State::Down, State::Up | State::AdminDown)
            | (State::Init, State::Down)
            | (State::Up, State::Init | State::Up)
            | (State::AdminDown, _) => {}
        }
    }

    /// Another state is told at once, not at the next interval (RFC 5880 §6.8.7).
    fn enter(&mut self, state: State, diagnostic: Diagnostic, now: Duration) {
        self.state = state;
        self.diagnostic = diagnostic;
        self.polling = false;
        self.transmit_at = now;
    }

    /// Starts the detection time anew.
    fn watch(&mut self, now: Duration) {
        self.detect_at = self.detection_time().map(|time| now + time);
    }

    fn desired_min_tx(&self) -> Duration {
        if self.state == State::Up { self.parameters.interval } else { self.parameters.interval.max(SLOW) }
    }

    /// Whether packets go out by the clock (RFC 5880 §6.8.7).
    fn sends_by_itself(&self) -> bool {
        let quiet = self.neighbour.is_some_and(|neighbour| {
            let both_up = self.state == State::Up && neighbour.state == State::Up;
            neighbour.required_min_rx == 0 || neighbour.demand && both_up && !self.polling
        });
        !quiet
    }

    fn jittered(&self, interval: Duration, random: u32) -> Duration {
        let least = if self.parameters.multiplier == 1 { LEAST_JITTER } else { 0 };
        let spread = u64::from(JITTER - least) * 1000;
        // Thousandths of a percent; `random` is spread over 2^32.
        let cut = u64::from(least) * 1000 + ((u64::from(random) * (spread + 1)) >> 32);
        interval - interval.mul_f64(cut as f64 / 100_000.0)
    }

    fn packet(&self, is_final: bool) -> ControlPacket {
        ControlPacket {
            diagnostic: self.diagnostic,
            state: self.state,
            poll: self.polling && !is_final,
            is_final,
            control_plane_independent: false,
            demand: false,
            detect_multiplier: self.parameters.multiplier.max(1),
            my_discriminator: self.my_discriminator,
            your_discriminator: self.neighbour.map(|neighbour| neighbour.discriminator),
            desired_min_tx: to_micros(self.desired_min_tx()),
            required_min_rx: to_micros(self.parameters.interval),
        }
    }
}

fn micros(count: u32) -> Duration {
    Duration::from_micros(count.into())
}

/// On the wire; an interval of more than 71 minutes is the longest there is.
fn to_micros(duration: Duration) -> u32 {
    u32::try_from(duration.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
