//! Bytes to events. The bytes are a file from anywhere: each field is checked, and what is wrong is reported with its
//! place.

use std::fmt;

use super::{Event, Header, LARGEST_BACK_END, LARGEST_QUEUE, LARGEST_TIME, MAGIC, OLDEST_VERSION, VERSION, opcode};
use crate::{
    BackEnd, Cost, Decision, Grant, LatencyClass, Limits, Nanos, Placement, QueueId, Rate, Share, SliceEnd, TenantId,
    Work, WorkKind, YieldPolicy, YieldTuning, YieldedSlice,
};

/// What is wrong with a recording, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodeError {
    /// Bytes before it.
    pub offset: usize,
    /// What it is.
    pub fault: Fault,
}

/// What can be wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It does not begin as recordings do.
    NotARecording,
    /// Another format.
    Version(u16),
    /// It ends within an event, as the recording of a killed data plane does. What is before that event is whole.
    Truncated,
    /// No event begins with this.
    Opcode(u8),
    /// A number of more than 64 bits.
    TooLarge,
    /// A number that its field cannot have.
    Field {
        /// The field.
        name: &'static str,
        /// What is there.
        value: u64,
    },
    /// A name that is not UTF-8.
    Name,
    /// A decision is repeated that was not asked for, or that granted work.
    Again,
    /// Something follows after the recording stopped.
    AfterStop,
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: ", self.offset)?;
        match &self.fault {
            Fault::NotARecording => f.write_str("this is no recording of a scheduler"),
            Fault::Version(version) => {
                write!(
                    f,
                    "format {version}; this release reads {OLDEST_VERSION} to {VERSION}: replay it with the release that wrote it"
                )
            }
            Fault::Truncated => f.write_str("the file ends within an event; what is before it is whole"),
            Fault::Opcode(code) => write!(f, "no event begins with {code:#04x}: the file is damaged"),
            Fault::TooLarge => f.write_str("a number of more than 64 bits: the file is damaged"),
            Fault::Field { name, value } => write!(f, "{name} cannot be {value}: the file is damaged"),
            Fault::Name => f.write_str("a name that is not UTF-8: the file is damaged"),
            Fault::Again => f.write_str("asked again what was not asked: the file is damaged"),
            Fault::AfterStop => f.write_str("there is something after the end of the recording: the file is damaged"),
        }
    }
}

impl std::error::Error for DecodeError {}

/// Reads a recording, event by event. After an error there is nothing more.
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    file: &'a [u8],
    at: usize,
    last: Nanos,
    /// The event before was a decision that granted nothing.
    is_idle: bool,
    is_stopped: bool,
    is_broken: bool,
}

type Read<T> = Result<T, DecodeError>;

impl<'a> Decoder<'a> {
    /// Reads the header.
    ///
    /// # Errors
    /// [`DecodeError`]: it is no recording, of another version, or damaged.
    pub fn new(file: &'a [u8]) -> Result<(Header, Decoder<'a>), DecodeError> {
        let mut decoder = Decoder { file, at: 0, last: Nanos(0), is_idle: false, is_stopped: false, is_broken: false };
        if !file.starts_with(&MAGIC) {
            return Err(decoder.error(0, Fault::NotARecording));
        }
        decoder.at = MAGIC.len();
        let version = u16::from_le_bytes([decoder.byte()?, decoder.byte()?]);
        if !(OLDEST_VERSION..=VERSION).contains(&version) {
            return Err(decoder.error(MAGIC.len(), Fault::Version(version)));
        }
        let core = decoder.number("a core", u32::MAX.into())? as u32;
        let policy = decoder.name()?;
        let count = decoder.byte()?;
        let mut parameters = Vec::new();
        for _ in 0..count {
            parameters.push((decoder.name()?, decoder.varint()?));
        }
        Ok((Header { core, policy, parameters }, decoder))
    }

    /// Bytes before the next event.
    pub fn offset(&self) -> usize {
        self.at
    }

    fn error(&self, offset: usize, fault: Fault) -> DecodeError {
        DecodeError { offset, fault }
    }

    fn byte(&mut self) -> Read<u8> {
        let Some(&byte) = self.file.get(self.at) else { return Err(self.error(self.at, Fault::Truncated)) };
        self.at += 1;
        Ok(byte)
    }

    fn varint(&mut self) -> Read<u64> {
        let start = self.at;
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.error(start, Fault::TooLarge))
    }

    fn number(&mut self, name: &'static str, most: u64) -> Read<u64> {
        let start = self.at;
        let value = self.varint()?;
        if value > most {
            return Err(self.error(start, Fault::Field { name, value }));
        }
        Ok(value)
    }

    fn name(&mut self) -> Read<String> {
        let start = self.at;
        let length = usize::from(self.byte()?);
        let Some(bytes) = self.file.get(self.at..self.at + length) else {
            return Err(self.error(self.file.len(), Fault::Truncated));
        };
        self.at += length;
        String::from_utf8(bytes.to_vec()).map_err(|_| self.error(start, Fault::Name))
    }

    fn u32(&mut self, name: &'static str) -> Read<u32> {
        Ok(self.number(name, u32::MAX.into())? as u32)
    }

    fn flags(&mut self, name: &'static str, most: u8) -> Read<u8> {
        let start = self.at;
        let value = self.byte()?;
        if value > most {
            return Err(self.error(start, Fault::Field { name, value: value.into() }));
        }
        Ok(value)
    }

    /// A time, as a difference from the last one; a clock may have gone back.
    fn time(&mut self) -> Read<Nanos> {
        let start = self.at;
        self.last = Nanos(self.last.0.wrapping_add(self.difference()?));
        self.bounded(start, "a time", self.last)
    }

    fn bounded(&self, start: usize, name: &'static str, time: Nanos) -> Read<Nanos> {
        if time > LARGEST_TIME {
            return Err(self.error(start, Fault::Field { name, value: time.0 }));
        }
        Ok(time)
    }

    fn difference(&mut self) -> Read<u64> {
        let value = self.varint()?;
        Ok((value >> 1) ^ (value & 1).wrapping_neg())
    }

    fn tenant(&mut self) -> Read<TenantId> {
        Ok(TenantId(self.number("a tenant", u16::MAX.into())? as u16))
    }

    fn queue(&mut self) -> Read<QueueId> {
        let tenant = self.tenant()?;
        Ok(QueueId { tenant, index: self.number("a queue", LARGEST_QUEUE.into())? as u32 })
    }

    fn grant(&mut self) -> Read<Grant> {
        Ok(Grant { queue: self.queue()?, units: self.u32("units")? })
    }

    fn cost(&mut self) -> Read<Cost> {
        let units = self.u32("units")?;
        let time = self.duration()?;
        let bytes = self.varint()?;
        Ok(Cost { units, time, bytes, pending: self.u32("pending units")? })
    }

    fn share(&mut self) -> Read<Share> {
        let weight = self.u32("a weight")?;
        let guarantee = self.number("a guarantee", u16::MAX.into())? as u16;
        let class = match self.flags("a latency class", 2)? {
            0 => LatencyClass::Latency,
            1 => LatencyClass::Normal,
            _ => LatencyClass::Background,
        };
        let which = self.flags("limits", 15)?;
        let mut rates = [None; 3];
        for (bit, rate) in rates.iter_mut().enumerate() {
            if which & 1 << bit != 0 {
                *rate = Some(Rate { rate: self.varint()?, burst: self.varint()? });
            }
        }
        let [requests, bytes, packets] = rates;
        let cores = if which & 8 != 0 { self.number("cores", u16::MAX.into())? as u16 } else { 0 };
        Ok(Share { weight, guarantee, class, limits: Limits { requests, bytes, packets }, cores })
    }

    fn duration(&mut self) -> Read<Nanos> {
        Ok(Nanos(self.number("a duration", LARGEST_TIME.0)?))
    }

    fn yielding(&mut self) -> Read<YieldPolicy> {
        Ok(match self.flags("a policy of yielding", 2)? {
            0 => YieldPolicy::Never,
            1 => YieldPolicy::After(self.duration()?),
            _ => YieldPolicy::Adaptive(YieldTuning {
                threshold: self.varint()?,
                least: self.varint()?,
                most: self.varint()?,
                slice: self.duration()?,
                longest: self.duration()?,
                spin: self.duration()?,
            }),
        })
    }

    fn yielded(&mut self) -> Read<YieldedSlice> {
        let now = self.time()?;
        let (polls, spun, slice) = (self.varint()?, self.duration()?, self.duration()?);
        let end = match self.flags("the end of a slice", 2)? {
            0 => SliceEnd::Expired,
            1 => SliceEnd::Preempted,
            _ => SliceEnd::Due,
        };
        Ok(YieldedSlice { now, polls, spun, slice, end })
    }

    fn placement(&mut self) -> Read<Placement> {
        let device = self.u32("a device")?;
        let flags = self.flags("a placement", 7)?;
        let kind = match flags & 5 {
            0 => WorkKind::Requests,
            1 => WorkKind::Packets,
            _ => WorkKind::Received,
        };
        let back_end = match flags & 2 {
            0 => None,
            _ => {
                let index = self.number("a back end", LARGEST_BACK_END.into())? as u32;
                Some(BackEnd { index, depth: self.u32("a depth")? })
            }
        };
        Ok(Placement { device, kind, back_end })
    }

    fn event(&mut self) -> Read<Event> {
        let start = self.at;
        let was_idle = std::mem::take(&mut self.is_idle);
        if self.is_stopped {
            return Err(self.error(start, Fault::AfterStop));
        }
        Ok(match self.byte()? {
            opcode::CONFIGURE => Event::Configure { tenant: self.tenant()?, share: self.share()? },
            opcode::PLACE => Event::Place { queue: self.queue()?, placement: self.placement()? },
            opcode::READY => {
                let (now, queue) = (self.time()?, self.queue()?);
                Event::Ready { now, queue, work: Work { units: self.u32("units")?, bytes: self.varint()? } }
            }
            opcode::RUN => Event::Decide { now: self.time()?, decision: Decision::Run(self.grant()?) },
            opcode::IDLE_UNTIL => {
                self.is_idle = true;
                let now = self.time()?;
                let start = self.at;
                let at = Nanos(now.0.wrapping_add(self.difference()?));
                Event::Decide { now, decision: Decision::IdleUntil(self.bounded(start, "a time", at)?) }
            }
            opcode::IDLE => {
                self.is_idle = true;
                Event::Decide { now: self.time()?, decision: Decision::Idle }
            }
            opcode::AGAIN if was_idle => Event::Again { now: self.time()?, times: self.varint()? },
            opcode::AGAIN => return Err(self.error(start, Fault::Again)),
            opcode::CHARGE => {
                let (now, grant) = (self.time()?, self.grant()?);
                Event::Charge { now, grant, cost: self.cost()? }
            }
            opcode::COMPLETE => {
                let (now, grant) = (self.time()?, self.grant()?);
                Event::Complete { now, grant, cost: self.cost()? }
            }
            opcode::CANCEL => Event::Cancel { now: self.time()?, queue: self.queue()? },
            opcode::YIELDING => Event::Yielding(self.yielding()?),
            opcode::YIELDED => Event::Yielded(self.yielded()?),
            opcode::STOPPED => {
                self.is_stopped = true;
                Event::Stopped
            }
            code => return Err(self.error(start, Fault::Opcode(code))),
        })
    }
}

impl Iterator for Decoder<'_> {
    type Item = Result<Event, DecodeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_broken || self.at == self.file.len() {
            return None;
        }
        let event = self.event();
        self.is_broken = event.is_err();
        Some(event)
    }
}
