//! The requests a front end sends, decoded and encoded (vhost-user: Message Specification, Front-end message types).
//!
//! Both sides use this module: the session decodes, the [client](super::client) encodes.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::codec::{Reader, Writer};
use super::error::{Fault, ProtocolError};
use super::framing::{Header, MAX_FDS};

/// The largest access to the configuration space: `VHOST_USER_MAX_CONFIG_SIZE` of QEMU and the `vhost` crate.
pub const MAX_CONFIG_SIZE: u32 = 256;

/// Bytes before the contents in GET_CONFIG and SET_CONFIG: offset, size, flags.
pub(crate) const CONFIG_HEADER: usize = 12;
const REGION: usize = 32;
/// The specification's fields of an in-flight description.
pub(crate) const INFLIGHT: usize = 20;
/// The same as the C structure without packing, which QEMU, DPDK and the `vhost` crate send.
pub(crate) const INFLIGHT_PADDED: usize = 24;
/// Bit 8 of SET_VRING_KICK, CALL and ERR: no file descriptor comes with the message.
const NO_FD: u64 = 1 << 8;

/// The id of a front-end request; prints as its name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u32);

macro_rules! requests {
    ($($name:ident = $id:literal;)*) => {
        /// Ids of the front end's requests (vhost-user: Front-end message types).
        #[allow(missing_docs, reason = "the names are the documentation")]
        pub mod request {
            $(pub const $name: u32 = $id;)*
        }

        impl RequestId {
            /// The name without the prefix VHOST_USER_; nothing for ids not implemented here.
            pub fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($id => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            /// Every request implemented here.
            pub const ALL: &'static [RequestId] = &[$(RequestId($id)),*];
        }
    };
}

requests! {
    GET_FEATURES = 1;
    SET_FEATURES = 2;
    SET_OWNER = 3;
    RESET_OWNER = 4;
    SET_MEM_TABLE = 5;
    SET_LOG_BASE = 6;
    SET_LOG_FD = 7;
    SET_VRING_NUM = 8;
    SET_VRING_ADDR = 9;
    SET_VRING_BASE = 10;
    GET_VRING_BASE = 11;
    SET_VRING_KICK = 12;
    SET_VRING_CALL = 13;
    SET_VRING_ERR = 14;
    GET_PROTOCOL_FEATURES = 15;
    SET_PROTOCOL_FEATURES = 16;
    GET_QUEUE_NUM = 17;
    SET_VRING_ENABLE = 18;
    SEND_RARP = 19;
    NET_SET_MTU = 20;
    SET_BACKEND_REQ_FD = 21;
    GET_CONFIG = 24;
    SET_CONFIG = 25;
    GET_INFLIGHT_FD = 31;
    SET_INFLIGHT_FD = 32;
    RESET_DEVICE = 34;
    GET_MAX_MEM_SLOTS = 36;
    ADD_MEM_REG = 37;
    REM_MEM_REG = 38;
    SET_STATUS = 39;
    GET_STATUS = 40;
}

impl RequestId {
    /// Whether the request has a reply of its own, which need_reply does not change (vhost-user: REPLY_ACK).
    pub fn has_reply(self) -> bool {
        matches!(
            self.0,
            request::GET_FEATURES
                | request::GET_PROTOCOL_FEATURES
                | request::GET_QUEUE_NUM
                | request::GET_VRING_BASE
                | request::SET_LOG_BASE
                | request::GET_CONFIG
                | request::GET_INFLIGHT_FD
                | request::GET_MAX_MEM_SLOTS
                | request::GET_STATUS
        )
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "request {}", self.0),
        }
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl From<u32> for RequestId {
    fn from(id: u32) -> Self {
        RequestId(id)
    }
}

/// A memory region (vhost-user: Memory region description).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionDescription {
    /// First guest-physical address.
    pub guest_address: u64,
    /// Bytes.
    pub size: u64,
    /// First address in the front end's own address space.
    pub user_address: u64,
    /// Where the region starts in the file behind the descriptor.
    pub mmap_offset: u64,
}

impl RegionDescription {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, Fault> {
        Ok(RegionDescription {
            guest_address: reader.u64()?,
            size: reader.u64()?,
            user_address: reader.u64()?,
            mmap_offset: reader.u64()?,
        })
    }

    fn encode(&self, writer: Writer) -> Writer {
        writer.u64(self.guest_address).u64(self.size).u64(self.user_address).u64(self.mmap_offset)
    }
}

/// A queue and a number (vhost-user: A vring state description).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringState {
    /// The queue.
    pub index: u32,
    /// Its size, position or enablement.
    pub num: u32,
}

/// Where the parts of a ring are (vhost-user: A vring address description).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VringAddress {
    /// The queue.
    pub index: u32,
    /// Bit 0 (`VHOST_VRING_F_LOG`): writes to the used ring are logged.
    pub flags: u32,
    /// User address of the descriptor table.
    pub descriptor: u64,
    /// User address of the used ring.
    pub used: u64,
    /// User address of the available ring.
    pub available: u64,
    /// Guest address under which writes to the used ring are logged.
    pub log: u64,
}

/// Whether a descriptor comes with SET_VRING_KICK, CALL or ERR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdPresence {
    /// The queue, bits 0 to 7.
    pub index: u8,
    /// Bit 8 clear: a descriptor comes with the message.
    pub present: bool,
}

/// The dirty log (vhost-user: Log description).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogDescription {
    /// Bytes of the log.
    pub size: u64,
    /// Where it starts in the file behind the descriptor.
    pub offset: u64,
}

/// An access to the configuration space (vhost-user: Virtio device config space).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigSpace {
    /// First byte.
    pub offset: u32,
    /// 0: the driver writes; 1: live migration writes.
    pub flags: u32,
    /// The contents; in a request to read, their number is what counts.
    pub bytes: Vec<u8>,
}

/// An in-flight region (vhost-user: Inflight description).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightDescription {
    /// Bytes of the region.
    pub mmap_size: u64,
    /// Where it starts in the file behind the descriptor.
    pub mmap_offset: u64,
    /// Queues it is for.
    pub num_queues: u16,
    /// Size of those queues.
    pub queue_size: u16,
    /// Whether the payload had the four padding bytes of the C structure. The reply has the form of the request.
    pub padded: bool,
}

/// A request with its payload. File descriptors travel beside it; [`Message::fds`] says how many.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the variants are the requests of the specification")]
pub enum Message {
    GetFeatures,
    SetFeatures(u64),
    SetOwner,
    ResetOwner,
    SetMemTable(Vec<RegionDescription>),
    SetLogBase(LogDescription),
    SetLogFd,
    SetVringNum(VringState),
    SetVringAddr(VringAddress),
    SetVringBase(VringState),
    GetVringBase(VringState),
    SetVringKick(FdPresence),
    SetVringCall(FdPresence),
    SetVringErr(FdPresence),
    GetProtocolFeatures,
    SetProtocolFeatures(u64),
    GetQueueNum,
    SetVringEnable(VringState),
    SendRarp(u64),
    NetSetMtu(u64),
    SetBackendReqFd,
    GetConfig(ConfigSpace),
    SetConfig(ConfigSpace),
    GetInflightFd(InflightDescription),
    SetInflightFd(InflightDescription),
    ResetDevice,
    GetMaxMemSlots,
    AddMemReg(RegionDescription),
    RemMemReg(RegionDescription),
    SetStatus(u64),
    GetStatus,
}

impl Message {
    /// Decodes the payload of a request. Only the form is checked here: sizes, counts, reserved bits.
    pub fn decode(header: &Header, payload: &[u8]) -> Result<Message, ProtocolError> {
        let fail = |fault| ProtocolError::new(header.request, fault);
        if header.reply {
            return Err(fail(Fault::NotARequest));
        }
        if payload.len() != header.size as usize {
            return Err(fail(Fault::PayloadSize { found: payload.len(), expected: header.size as usize }));
        }
        Self::decode_payload(header.request, payload).map_err(fail)
    }

    fn decode_payload(id: u32, payload: &[u8]) -> Result<Message, Fault> {
        let reader = Reader::new(payload);
        let empty = |message| reader.expect(0).map(|()| message);
        Ok(match id {
            request::GET_FEATURES => empty(Message::GetFeatures)?,
            request::SET_FEATURES => Message::SetFeatures(number(payload)?),
            request::SET_OWNER => empty(Message::SetOwner)?,
            request::RESET_OWNER => empty(Message::ResetOwner)?,
            request::SET_MEM_TABLE => Message::SetMemTable(regions(payload)?),
            request::SET_LOG_BASE => Message::SetLogBase(log(payload)?),
            request::SET_LOG_FD => empty(Message::SetLogFd)?,
            request::SET_VRING_NUM => Message::SetVringNum(vring_state(payload)?),
            request::SET_VRING_ADDR => Message::SetVringAddr(vring_address(payload)?),
            request::SET_VRING_BASE => Message::SetVringBase(vring_state(payload)?),
            request::GET_VRING_BASE => Message::GetVringBase(vring_state(payload)?),
            request::SET_VRING_KICK => Message::SetVringKick(fd_presence(payload)?),
            request::SET_VRING_CALL => Message::SetVringCall(fd_presence(payload)?),
            request::SET_VRING_ERR => Message::SetVringErr(fd_presence(payload)?),
            request::GET_PROTOCOL_FEATURES => empty(Message::GetProtocolFeatures)?,
            request::SET_PROTOCOL_FEATURES => Message::SetProtocolFeatures(number(payload)?),
            request::GET_QUEUE_NUM => empty(Message::GetQueueNum)?,
            request::SET_VRING_ENABLE => Message::SetVringEnable(vring_state(payload)?),
            request::SEND_RARP => Message::SendRarp(number(payload)?),
            request::NET_SET_MTU => Message::NetSetMtu(number(payload)?),
            request::SET_BACKEND_REQ_FD => empty(Message::SetBackendReqFd)?,
            request::GET_CONFIG => Message::GetConfig(config(payload)?),
            request::SET_CONFIG => Message::SetConfig(config(payload)?),
            request::GET_INFLIGHT_FD => Message::GetInflightFd(inflight(payload)?),
            request::SET_INFLIGHT_FD => Message::SetInflightFd(inflight(payload)?),
            request::RESET_DEVICE => empty(Message::ResetDevice)?,
            request::GET_MAX_MEM_SLOTS => empty(Message::GetMaxMemSlots)?,
            request::ADD_MEM_REG => Message::AddMemReg(single_region(payload)?),
            request::REM_MEM_REG => Message::RemMemReg(single_region(payload)?),
            request::SET_STATUS => Message::SetStatus(number(payload)?),
            request::GET_STATUS => empty(Message::GetStatus)?,
            _ => return Err(Fault::UnknownRequest),
        })
    }

    /// The request's id.
    pub fn id(&self) -> RequestId {
        RequestId(match self {
            Message::GetFeatures => request::GET_FEATURES,
            Message::SetFeatures(_) => request::SET_FEATURES,
            Message::SetOwner => request::SET_OWNER,
            Message::ResetOwner => request::RESET_OWNER,
            Message::SetMemTable(_) => request::SET_MEM_TABLE,
            Message::SetLogBase(_) => request::SET_LOG_BASE,
            Message::SetLogFd => request::SET_LOG_FD,
            Message::SetVringNum(_) => request::SET_VRING_NUM,
            Message::SetVringAddr(_) => request::SET_VRING_ADDR,
            Message::SetVringBase(_) => request::SET_VRING_BASE,
            Message::GetVringBase(_) => request::GET_VRING_BASE,
            Message::SetVringKick(_) => request::SET_VRING_KICK,
            Message::SetVringCall(_) => request::SET_VRING_CALL,
            Message::SetVringErr(_) => request::SET_VRING_ERR,
            Message::GetProtocolFeatures => request::GET_PROTOCOL_FEATURES,
            Message::SetProtocolFeatures(_) => request::SET_PROTOCOL_FEATURES,
            Message::GetQueueNum => request::GET_QUEUE_NUM,
            Message::SetVringEnable(_) => request::SET_VRING_ENABLE,
            Message::SendRarp(_) => request::SEND_RARP,
            Message::NetSetMtu(_) => request::NET_SET_MTU,
            Message::SetBackendReqFd => request::SET_BACKEND_REQ_FD,
            Message::GetConfig(_) => request::GET_CONFIG,
            Message::SetConfig(_) => request::SET_CONFIG,
            Message::GetInflightFd(_) => request::GET_INFLIGHT_FD,
            Message::SetInflightFd(_) => request::SET_INFLIGHT_FD,
            Message::ResetDevice => request::RESET_DEVICE,
            Message::GetMaxMemSlots => request::GET_MAX_MEM_SLOTS,
            Message::AddMemReg(_) => request::ADD_MEM_REG,
            Message::RemMemReg(_) => request::REM_MEM_REG,
            Message::SetStatus(_) => request::SET_STATUS,
            Message::GetStatus => request::GET_STATUS,
        })
    }

    /// How many file descriptors come with the message.
    pub fn fds(&self) -> usize {
        match self {
            Message::SetMemTable(regions) => regions.len(),
            Message::SetVringKick(fd) | Message::SetVringCall(fd) | Message::SetVringErr(fd) => usize::from(fd.present),
            Message::SetLogBase(_)
            | Message::SetLogFd
            | Message::SetBackendReqFd
            | Message::SetInflightFd(_)
            | Message::AddMemReg(_) => 1,
            _ => 0,
        }
    }

    /// Header and payload as they are sent.
    pub fn encode(&self, need_reply: bool) -> Vec<u8> {
        Header::request(self.id().0, need_reply, 0).frame(&self.payload())
    }

    fn payload(&self) -> Vec<u8> {
        let out = Writer::new();
        match self {
            Message::GetFeatures
            | Message::SetOwner
            | Message::ResetOwner
            | Message::SetLogFd
            | Message::GetProtocolFeatures
            | Message::GetQueueNum
            | Message::SetBackendReqFd
            | Message::ResetDevice
            | Message::GetMaxMemSlots
            | Message::GetStatus => out,
            Message::SetFeatures(number)
            | Message::SetProtocolFeatures(number)
            | Message::SendRarp(number)
            | Message::NetSetMtu(number)
            | Message::SetStatus(number) => out.u64(*number),
            Message::SetMemTable(regions) => {
                regions.iter().fold(out.u32(regions.len() as u32).u32(0), |out, region| region.encode(out))
            }
            Message::SetLogBase(log) => out.u64(log.size).u64(log.offset),
            Message::SetVringNum(state)
            | Message::SetVringBase(state)
            | Message::GetVringBase(state)
            | Message::SetVringEnable(state) => out.u32(state.index).u32(state.num),
            Message::SetVringAddr(ring) => {
                let out = out.u32(ring.index).u32(ring.flags);
                out.u64(ring.descriptor).u64(ring.used).u64(ring.available).u64(ring.log)
            }
            Message::SetVringKick(fd) | Message::SetVringCall(fd) | Message::SetVringErr(fd) => {
                out.u64(u64::from(fd.index) | if fd.present { 0 } else { NO_FD })
            }
            Message::GetConfig(config) | Message::SetConfig(config) => config.encode(out),
            Message::GetInflightFd(inflight) | Message::SetInflightFd(inflight) => inflight.encode(out),
            Message::AddMemReg(region) | Message::RemMemReg(region) => region.encode(out.u64(0)),
        }
        .done()
    }
}

impl ConfigSpace {
    pub(crate) fn encode(&self, out: Writer) -> Writer {
        out.u32(self.offset).u32(self.bytes.len() as u32).u32(self.flags).bytes(&self.bytes)
    }
}

impl InflightDescription {
    pub(crate) fn encode(&self, out: Writer) -> Writer {
        let out = out.u64(self.mmap_size).u64(self.mmap_offset).u16(self.num_queues).u16(self.queue_size);
        if self.padded { out.u32(0) } else { out }
    }
}

fn number(payload: &[u8]) -> Result<u64, Fault> {
    let mut reader = Reader::new(payload);
    reader.expect(8)?;
    reader.u64()
}

fn vring_state(payload: &[u8]) -> Result<VringState, Fault> {
    let mut reader = Reader::new(payload);
    reader.expect(8)?;
    Ok(VringState { index: reader.u32()?, num: reader.u32()? })
}

fn vring_address(payload: &[u8]) -> Result<VringAddress, Fault> {
    let mut reader = Reader::new(payload);
    reader.expect(40)?;
    Ok(VringAddress {
        index: reader.u32()?,
        flags: reader.u32()?,
        descriptor: reader.u64()?,
        used: reader.u64()?,
        available: reader.u64()?,
        log: reader.u64()?,
    })
}

fn fd_presence(payload: &[u8]) -> Result<FdPresence, Fault> {
    let value = number(payload)?;
    if value & !(NO_FD | 0xff) != 0 {
        return Err(Fault::Field {
            field: "u64",
            found: value,
            expected: "a queue in bits 0 to 7 and a flag in bit 8",
        });
    }
    Ok(FdPresence { index: value as u8, present: value & NO_FD == 0 })
}

fn regions(payload: &[u8]) -> Result<Vec<RegionDescription>, Fault> {
    let mut reader = Reader::new(payload);
    let count = reader.u32()?;
    let _padding = reader.u32()?;
    if count as usize > MAX_FDS {
        return Err(Fault::Range { field: "num regions", found: count.into(), least: 0, most: MAX_FDS as u64 });
    }
    reader.expect(8 + REGION * count as usize)?;
    (0..count).map(|_| RegionDescription::decode(&mut reader)).collect()
}

fn single_region(payload: &[u8]) -> Result<RegionDescription, Fault> {
    let mut reader = Reader::new(payload);
    reader.expect(8 + REGION)?;
    let _padding = reader.u64()?;
    RegionDescription::decode(&mut reader)
}

fn log(payload: &[u8]) -> Result<LogDescription, Fault> {
    let mut reader = Reader::new(payload);
    reader.expect(16)?;
    Ok(LogDescription { size: reader.u64()?, offset: reader.u64()? })
}

fn config(payload: &[u8]) -> Result<ConfigSpace, Fault> {
    let mut reader = Reader::new(payload);
    let (offset, size, flags) = (reader.u32()?, reader.u32()?, reader.u32()?);
    if size == 0 || size > MAX_CONFIG_SIZE {
        return Err(Fault::Range { field: "size", found: size.into(), least: 1, most: MAX_CONFIG_SIZE.into() });
    }
    reader.expect(CONFIG_HEADER + size as usize)?;
    if offset.checked_add(size).is_none_or(|end| end > MAX_CONFIG_SIZE) {
        let most = MAX_CONFIG_SIZE - size;
        return Err(Fault::Range { field: "offset", found: offset.into(), least: 0, most: most.into() });
    }
    Ok(ConfigSpace { offset, flags, bytes: reader.bytes(size as usize)?.to_vec() })
}

fn inflight(payload: &[u8]) -> Result<InflightDescription, Fault> {
    let padded = payload.len() == INFLIGHT_PADDED;
    let mut reader = Reader::new(payload);
    if !padded {
        reader.expect(INFLIGHT)?;
    }
    Ok(InflightDescription {
        mmap_size: reader.u64()?,
        mmap_offset: reader.u64()?,
        num_queues: reader.u16()?,
        queue_size: reader.u16()?,
        padded,
    })
}
