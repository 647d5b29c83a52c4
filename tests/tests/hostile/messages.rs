//! Messages of the protocol: framing, payloads, order.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use softdpu_tests::Failure;
use softdpu_transport::vhost_user::{
    ConfigSpace, FdPresence, HEADER_SIZE, InflightDescription, LogDescription, Message, ProtocolFeatures,
    RegionDescription, RequestId, VringAddress, VringState, request,
};

use super::scene::Expect::{Closes, Harmless, Refused};
use super::scene::{Abuse, Seen};
use crate::client::{FrontEnd, GUEST, MEMORY, Refusal, Settings, USER};

/// Header flags: version 1, and NEED_REPLY.
const VERSION: u32 = 1;
const NEED_REPLY: u32 = 1 << 3;

/// Sends a message; what became of it.
pub fn sends(front: &mut FrontEnd, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<Seen, Failure> {
    seen(front.call_for_fds(message, fds).map(|_| ()))
}

fn seen(outcome: Result<(), Refusal>) -> Result<Seen, Failure> {
    match outcome {
        Ok(()) => Ok(Seen::Accepted),
        Err(Refusal::Refused(_)) => Ok(Seen::Refused),
        Err(Refusal::Closed) => Ok(Seen::Closed),
        Err(Refusal::Broken(error)) => Err(Failure::new(error)),
    }
}

/// A header as it is, however wrong.
fn frame(request: u32, flags: u32, size: u32, payload: &[u8]) -> Vec<u8> {
    [&request.to_le_bytes()[..], &flags.to_le_bytes(), &size.to_le_bytes(), payload].concat()
}

/// Sends bytes that are not answered.
fn says(front: &mut FrontEnd, bytes: &[u8]) -> Result<Seen, Failure> {
    match front.send(bytes, &[]) {
        Ok(()) | Err(Refusal::Closed) => Ok(Seen::Nothing),
        Err(error) => Err(error.into()),
    }
}

/// Sends a request with a payload of its own and waits for the status.
fn asks(front: &mut FrontEnd, request: u32, payload: &[u8]) -> Result<Seen, Failure> {
    front.send(&frame(request, VERSION | NEED_REPLY, payload.len() as u32, payload), &[])?;
    seen(front.answer(RequestId(request)).map(|_| ()))
}

fn state(index: u32, num: u32) -> VringState {
    VringState { index, num }
}

fn regions(front: &mut FrontEnd, table: &[RegionDescription]) -> Result<Seen, Failure> {
    let memory = std::sync::Arc::clone(&front.memory);
    let fds = vec![memory.fd.as_fd(); table.len()];
    sends(front, &Message::SetMemTable(table.to_vec()), &fds)
}

/// As if queue 1 was to be set up: SET_VRING_NUM, then SET_VRING_ADDR.
fn second_queue(front: &mut FrontEnd, change: impl Fn(&mut VringAddress)) -> Result<Seen, Failure> {
    front.call(&Message::SetVringNum(state(1, 16)), &[])?;
    let mut address = VringAddress { index: 1, ..front.ring_address() };
    change(&mut address);
    match sends(front, &Message::SetVringAddr(address), &[])? {
        Seen::Accepted => {
            let kick = front.kick.try_clone().map_err(|error| Failure::new(error.to_string()))?;
            sends(front, &Message::SetVringKick(FdPresence { index: 1, present: true }), &[kick.as_fd()])
        }
        seen => Ok(seen),
    }
}

pub fn abuses() -> Vec<Abuse> {
    [framing(), payloads(), memory()].into_iter().flatten().collect()
}

fn framing() -> Vec<Abuse> {
    vec![
        Abuse::new("version 0", "no protocol version", Closes("protocol version 0"), |f| {
            says(f, &frame(request::GET_FEATURES, 0, 0, &[]))
        }),
        Abuse::new("version 3", "a protocol to come", Closes("protocol version 3"), |f| {
            says(f, &frame(request::GET_FEATURES, 3, 0, &[]))
        }),
        Abuse::new("reserved flags", "bit 31", Closes("flags"), |f| {
            says(f, &frame(request::GET_FEATURES, VERSION | 1 << 31, 0, &[]))
        }),
        Abuse::new("a reply instead of a request", "bit 2 of the flags", Closes("reply"), |f| {
            says(f, &frame(request::GET_FEATURES, VERSION | 4, 0, &[]))
        }),
        Abuse::new("payload of 4097 bytes", "a byte above the limit", Closes("4097 bytes of payload"), |f| {
            says(f, &frame(request::SET_FEATURES, VERSION, 4097, &[0; 512]))
        }),
        Abuse::new("payload of 4 GiB", "announced, not sent", Closes("4294967295 bytes of payload"), |f| {
            says(f, &frame(request::SET_MEM_TABLE, VERSION, u32::MAX, &[]))
        }),
        Abuse::new("header cut off", "5 of 12 bytes, then the end", Closes("middle of a message"), |f| {
            says(f, &frame(request::GET_FEATURES, VERSION, 0, &[])[..5])?;
            hang_up(f)
        }),
        Abuse::new("payload cut off", "7 of 8 bytes, then the end", Closes("middle of a message"), |f| {
            says(f, &frame(request::SET_FEATURES, VERSION, 8, &[0; 7]))?;
            hang_up(f)
        }),
        Abuse::new("half a message and a long pause", "300 ms in the middle", Harmless, |f| {
            let message = frame(request::GET_FEATURES, VERSION, 0, &[]);
            says(f, &message[..HEADER_SIZE / 2])?;
            std::thread::sleep(Duration::from_millis(300));
            says(f, &message[HEADER_SIZE / 2..])?;
            seen(f.answer(RequestId(request::GET_FEATURES)).map(|_| ()))
        }),
        Abuse::new("one byte at a time", "a message as 20 packets", Harmless, |f| {
            let message = frame(request::SET_VRING_ENABLE, VERSION | NEED_REPLY, 8, &[0, 0, 0, 0, 1, 0, 0, 0]);
            for byte in message {
                says(f, &[byte])?;
            }
            seen(f.answer(RequestId(request::SET_VRING_ENABLE)).map(|_| ()))
        }),
        Abuse::new("unknown request, answer wanted", "id 9999", Refused("unknown"), |f| asks(f, 9999, &[])),
        Abuse::new("unknown request, no answer wanted", "id 9999", Closes("unknown"), |f| {
            says(f, &frame(9999, VERSION, 0, &[]))
        }),
        Abuse::new("request 0", "no request has this id", Refused("unknown"), |f| asks(f, 0, &[])),
        Abuse::new("garbage", "4 KiB that are no messages", Closes("protocol version"), |f| {
            let bytes: Vec<u8> = (0..4096u32).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8 & 0xfc).collect();
            says(f, &bytes)
        }),
        Abuse::new("300 requests at once", "all written before one answer is read", Harmless, |f| {
            let one = frame(request::GET_FEATURES, VERSION, 0, &[]);
            says(f, &one.repeat(300))?;
            for _ in 0..300 {
                f.answer(RequestId(request::GET_FEATURES))?;
            }
            Ok(Seen::Accepted)
        }),
        Abuse::new("answers never read", "2,000 requests, and a full socket", Harmless, |f| {
            f.socket.set_nonblocking(true).map_err(|error| Failure::new(error.to_string()))?;
            let one = frame(request::GET_FEATURES, VERSION, 0, &[]);
            let sent = (0..2000).take_while(|_| f.send(&one, &[]).is_ok()).count();
            std::thread::sleep(Duration::from_millis(100));
            f.socket.set_nonblocking(false).map_err(|error| Failure::new(error.to_string()))?;
            for _ in 0..sent {
                f.answer(RequestId(request::GET_FEATURES))?;
            }
            Ok(Seen::Accepted)
        }),
        Abuse::new("gone with requests unanswered", "a stop, a reset and the end", Closes("connection"), |f| {
            let stop = Message::GetVringBase(state(0, 0)).encode(true);
            says(f, &[stop, Message::ResetDevice.encode(true)].concat())?;
            hang_up(f)
        }),
    ]
}

/// The front end's end of the connection.
fn hang_up(front: &mut FrontEnd) -> Result<Seen, Failure> {
    front.socket.shutdown(std::net::Shutdown::Both).map_err(|error| Failure::new(error.to_string()))?;
    Ok(Seen::Closed)
}

fn payloads() -> Vec<Abuse> {
    vec![
        Abuse::new("payload too short", "SET_FEATURES with 4 bytes", Refused("SET_FEATURES"), |f| {
            asks(f, request::SET_FEATURES, &[0; 4])
        }),
        Abuse::new("payload too long", "SET_VRING_NUM with 16 bytes", Refused("SET_VRING_NUM"), |f| {
            asks(f, request::SET_VRING_NUM, &[0; 16])
        }),
        Abuse::new("payload where none belongs", "SET_OWNER with 8 bytes", Refused("SET_OWNER"), |f| {
            asks(f, request::SET_OWNER, &[0; 8])
        }),
        Abuse::new("features not offered", "bit 63", Refused("SET_FEATURES"), |f| {
            let features = f.features | 1 << 63;
            sends(f, &Message::SetFeatures(features), &[])
        }),
        Abuse::new("ACCESS_PLATFORM", "an IOTLB that is not offered", Refused("SET_FEATURES"), |f| {
            let features = f.features | 1 << 33;
            sends(f, &Message::SetFeatures(features), &[])
        }),
        Abuse::new("features while a queue runs", "packed instead of split", Refused("SET_FEATURES"), |f| {
            let features = f.features | crate::client::F_RING_PACKED;
            sends(f, &Message::SetFeatures(features), &[])
        }),
        Abuse::new("protocol features not offered", "bit 63", Refused("SET_PROTOCOL_FEATURES"), |f| {
            f.send(&Message::SetProtocolFeatures(1 << 63).encode(true), &[])?;
            seen(f.answer(RequestId(request::SET_PROTOCOL_FEATURES)).map(|_| ()))
        }),
        Abuse::new("a feature without the one it needs", "GET_VRING_BASE_INFLIGHT alone", Refused("needs"), |f| {
            let alone = ProtocolFeatures::REPLY_ACK.with(ProtocolFeatures::GET_VRING_BASE_INFLIGHT);
            f.send(&Message::SetProtocolFeatures(alone.0).encode(true), &[])?;
            seen(f.answer(RequestId(request::SET_PROTOCOL_FEATURES)).map(|_| ()))
        }),
        Abuse::new("queue index out of range", "queue 2 of 2", Refused("vring index"), |f| {
            sends(f, &Message::SetVringNum(state(2, 16)), &[])
        }),
        Abuse::new("queue index 2^32 - 1", "SET_VRING_ENABLE", Refused("vring index"), |f| {
            sends(f, &Message::SetVringEnable(state(u32::MAX, 1)), &[])
        }),
        Abuse::new("queue size 0", "SET_VRING_NUM 0", Refused("SET_VRING_NUM"), |f| {
            sends(f, &Message::SetVringNum(state(1, 0)), &[])
        }),
        Abuse::new("queue size 15", "no power of two", Refused("power of two"), |f| {
            sends(f, &Message::SetVringNum(state(1, 15)), &[])
        }),
        Abuse::new("queue size 65536", "more than any queue has", Refused("SET_VRING_NUM"), |f| {
            sends(f, &Message::SetVringNum(state(1, 65536)), &[])
        }),
        Abuse::new("queue size while it runs", "SET_VRING_NUM 32", Refused("SET_VRING_NUM"), |f| {
            sends(f, &Message::SetVringNum(state(0, 32)), &[])
        }),
        Abuse::new("ring addresses while it runs", "another descriptor table", Refused("SET_VRING_ADDR"), |f| {
            let address = f.ring_address();
            sends(f, &Message::SetVringAddr(VringAddress { descriptor: address.descriptor + 4096, ..address }), &[])
        }),
        Abuse::new("descriptor table unaligned", "8 instead of 16", Refused("SET_VRING_ADDR"), |f| {
            second_queue(f, |address| address.descriptor += 8)
        }),
        Abuse::new("used ring unaligned", "2 instead of 4", Refused("SET_VRING_ADDR"), |f| {
            second_queue(f, |address| address.used += 2)
        }),
        Abuse::new("available ring unaligned", "an odd address", Refused("SET_VRING_ADDR"), |f| {
            second_queue(f, |address| address.available += 1)
        }),
        Abuse::new("ring outside memory", "the used ring is nowhere", Refused("used"), |f| {
            second_queue(f, |address| address.used = USER + MEMORY + 0x1000)
        }),
        Abuse::new("ring across the end of memory", "all but the last bytes", Refused("used"), |f| {
            second_queue(f, |address| address.used = USER + MEMORY - 64)
        }),
        Abuse::new("ring address wraps", "descriptor table at 2^64 - 16", Refused("descriptor"), |f| {
            second_queue(f, |address| address.descriptor = u64::MAX - 15)
        }),
        Abuse::new("kick before anything else", "a queue that was never set up", Refused("SET_VRING_KICK"), |f| {
            let kick = f.kick.try_clone().map_err(|error| Failure::new(error.to_string()))?;
            sends(f, &Message::SetVringKick(FdPresence { index: 1, present: true }), &[kick.as_fd()])
        }),
        Abuse::new("enable with 7", "neither 0 nor 1", Refused("SET_VRING_ENABLE"), |f| {
            sends(f, &Message::SetVringEnable(state(0, 7)), &[])
        }),
        Abuse::new("packed position outside the ring", "slot 100 of 16", Refused("SET_VRING_BASE"), |f| {
            f.call(&Message::SetVringNum(state(1, 16)), &[])?;
            sends(f, &Message::SetVringBase(state(1, 0x8064_8064)), &[])
        })
        .with(Settings::PACKED),
        Abuse::new("configuration out of range", "GET_CONFIG of bytes 250 to 299", Refused("GET_CONFIG"), |f| {
            sends(f, &Message::GetConfig(ConfigSpace { offset: 250, flags: 0, bytes: vec![0; 50] }), &[])
        }),
        Abuse::new("configuration of no bytes", "GET_CONFIG of size 0", Refused("GET_CONFIG"), |f| {
            sends(f, &Message::GetConfig(ConfigSpace { offset: 0, flags: 0, bytes: Vec::new() }), &[])
        }),
        Abuse::new("configuration size that lies", "256 announced, 4 sent", Refused("GET_CONFIG"), |f| {
            let payload = [&0u32.to_le_bytes()[..], &256u32.to_le_bytes(), &0u32.to_le_bytes(), &[0; 4]].concat();
            asks(f, request::GET_CONFIG, &payload)
        }),
        Abuse::new("capacity written", "SET_CONFIG of a field that is not the driver's", Refused("SET_CONFIG"), |f| {
            sends(f, &Message::SetConfig(ConfigSpace { offset: 0, flags: 0, bytes: vec![0xff; 8] }), &[])
        }),
        Abuse::new("dirty log too small", "one byte for 5 MiB", Closes("SET_LOG_BASE"), |f| {
            let memory = std::sync::Arc::clone(&f.memory);
            sends(f, &Message::SetLogBase(LogDescription { size: 1, offset: 0 }), &[memory.fd.as_fd()])
        }),
        Abuse::new("dirty log wraps", "offset 2^64 - 1", Closes("SET_LOG_BASE"), |f| {
            let memory = std::sync::Arc::clone(&f.memory);
            let log = LogDescription { size: 4096, offset: u64::MAX };
            sends(f, &Message::SetLogBase(log), &[memory.fd.as_fd()])
        }),
        Abuse::new("in-flight region of 65535 queues", "GET_INFLIGHT_FD", Closes("GET_INFLIGHT_FD"), |f| {
            sends(f, &Message::GetInflightFd(inflight(0, 0, u16::MAX, 128)), &[])
        }),
        Abuse::new("in-flight region of size 65535", "GET_INFLIGHT_FD", Closes("GET_INFLIGHT_FD"), |f| {
            sends(f, &Message::GetInflightFd(inflight(0, 0, 1, u16::MAX)), &[])
        }),
        Abuse::new("in-flight region while a queue runs", "SET_INFLIGHT_FD", Refused("SET_INFLIGHT_FD"), |f| {
            let memory = std::sync::Arc::clone(&f.memory);
            sends(f, &Message::SetInflightFd(inflight(4096, 0, 1, 16)), &[memory.fd.as_fd()])
        }),
        Abuse::new("in-flight region wraps", "size 2^64 - 1", Refused("SET_INFLIGHT_FD"), |f| {
            f.call(&Message::GetVringBase(state(0, 0)), &[])?;
            let memory = std::sync::Arc::clone(&f.memory);
            let seen = sends(f, &Message::SetInflightFd(inflight(u64::MAX, 4096, 1, 16)), &[memory.fd.as_fd()])?;
            f.start_queue()?;
            Ok(seen)
        }),
        Abuse::new("RARP for a disk", "a network device's message", Refused("SEND_RARP"), |f| {
            sends(f, &Message::SendRarp(0x1234), &[])
        }),
        Abuse::new("status of 9 bits", "SET_STATUS 0x1ff", Refused("SET_STATUS"), |f| {
            sends(f, &Message::SetStatus(0x1ff), &[])
        }),
    ]
}

fn inflight(mmap_size: u64, mmap_offset: u64, num_queues: u16, queue_size: u16) -> InflightDescription {
    InflightDescription { mmap_size, mmap_offset, num_queues, queue_size, padded: true }
}

fn memory() -> Vec<Abuse> {
    vec![
        Abuse::new("regions overlap for the guest", "by one page", Refused("SET_MEM_TABLE"), |f| {
            let first = f.memory.region();
            let second = RegionDescription { guest_address: GUEST + MEMORY - 4096, user_address: USER << 1, ..first };
            regions(f, &[first, second])
        }),
        Abuse::new("regions overlap for the front end", "two files in one place", Refused("SET_MEM_TABLE"), |f| {
            let first = f.memory.region();
            let second = RegionDescription { guest_address: GUEST << 12, user_address: USER + 4096, ..first };
            regions(f, &[first, second])
        }),
        Abuse::new("region wraps", "guest address 2^64 - 4096", Refused("SET_MEM_TABLE"), |f| {
            let region = RegionDescription { guest_address: u64::MAX - 4095, ..f.memory.region() };
            regions(f, &[region])
        }),
        Abuse::new("region's file offset wraps", "offset 2^64 - 4096", Refused("SET_MEM_TABLE"), |f| {
            let region = RegionDescription { mmap_offset: u64::MAX - 4095, ..f.memory.region() };
            regions(f, &[region])
        }),
        Abuse::new("region of no bytes", "size 0", Refused("SET_MEM_TABLE"), |f| {
            let region = RegionDescription { size: 0, ..f.memory.region() };
            regions(f, &[region])
        }),
        Abuse::new("region of 2^63 bytes", "more than the file has", Refused("SET_MEM_TABLE"), |f| {
            let region = RegionDescription { size: 1 << 62, ..f.memory.region() };
            regions(f, &[region])
        }),
        Abuse::new("nine regions", "eight fit into a message", Closes("SET_MEM_TABLE"), |f| {
            let one = f.memory.region();
            let table: Vec<_> = (0..9).map(|at| at_place(one, at)).collect();
            regions(f, &table)
        }),
        Abuse::new("region count that lies", "8 announced, 1 sent", Refused("SET_MEM_TABLE"), |f| {
            let mut payload = vec![0; 8 + 32];
            payload[0] = 8;
            asks(f, request::SET_MEM_TABLE, &payload)
        }),
        Abuse::new("too many memory slots", "ADD_MEM_REG 600 times", Refused("ADD_MEM_REG"), |f| {
            let memory = std::sync::Arc::clone(&f.memory);
            let one = memory.region();
            for at in 1..600 {
                let region = RegionDescription { size: 4096, ..at_place(one, at) };
                match sends(f, &Message::AddMemReg(region), &[memory.fd.as_fd()])? {
                    Seen::Accepted => {}
                    seen => return Ok(seen),
                }
            }
            Ok(Seen::Accepted)
        }),
        Abuse::new("a region that was never added", "REM_MEM_REG", Refused("REM_MEM_REG"), |f| {
            let region = RegionDescription { guest_address: 1 << 40, ..f.memory.region() };
            sends(f, &Message::RemMemReg(region), &[])
        }),
        Abuse::new("the same region twice", "ADD_MEM_REG of what is there", Refused("ADD_MEM_REG"), |f| {
            let memory = std::sync::Arc::clone(&f.memory);
            sends(f, &Message::AddMemReg(memory.region()), &[memory.fd.as_fd()])
        }),
    ]
}

/// The same memory at another place, for the guest and for the front end.
fn at_place(region: RegionDescription, at: u64) -> RegionDescription {
    RegionDescription {
        guest_address: region.guest_address + (at << 30),
        user_address: region.user_address + (at << 30),
        ..region
    }
}
