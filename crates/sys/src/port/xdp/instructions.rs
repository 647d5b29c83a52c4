//! The XDP program, instruction by instruction (Documentation/bpf/standardization/instruction-set.rst). Written out as
//! there is no compiler for it where softdpu is built.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::Selection;
use super::bpf::Instruction;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Label {
    V4,
    V6,
    Port,
    Redirect,
    Pass,
}

enum Statement {
    Do(Instruction),
    /// A jump if register and source or immediate compare as the code says.
    Jump(u8, Register, Register, i32, Label),
    At(Label),
}

type Register = u8;
/// The first argument: at the start the program's context.
const R1: Register = 1;
const R2: Register = 2;
const R3: Register = 3;
const R4: Register = 4;
const R5: Register = 5;
const R0: Register = 0;
const NONE: Register = 0;

// Operations on 64 bits, between registers (X) and with an immediate (K).
const MOV_X: u8 = 0xbf;
const MOV_K: u8 = 0xb7;
const ADD_X: u8 = 0x0f;
const ADD_K: u8 = 0x07;
const AND_K: u8 = 0x57;
const LSH_K: u8 = 0x67;
// Loads of memory at source + offset.
const LDX_B: u8 = 0x71;
const LDX_H: u8 = 0x69;
const LDX_W: u8 = 0x61;
// Jumps: always, equal, not equal, greater (unsigned).
const JA: u8 = 0x05;
const JEQ_K: u8 = 0x15;
const JNE_K: u8 = 0x55;
const JGT_X: u8 = 0x2d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// A load of 64 bits in two instructions; with this source, of the map with the immediate as descriptor.
const LD_WIDE: u8 = 0x18;
const MAP_FD: Register = 1;

/// bpf_redirect_map(map, key, flags); the low bits of the flags are what it answers where the map has nothing.
const REDIRECT_MAP: i32 = 51;
const XDP_PASS: i32 = 2;
// Offsets in struct xdp_md.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE: i16 = 16;

const ETHERTYPE: i16 = 12;
const IP: i16 = 14;
const UDP: i32 = 17;

const fn op(code: u8, destination: Register, source: Register, offset: i16, immediate: i32) -> Statement {
    Statement::Do(Instruction { code, registers: source << 4 | destination, offset, immediate })
}

/// 16 bits of a frame as the machine loads them.
const fn wire(value: u16) -> i32 {
    u16::from_ne_bytes(value.to_be_bytes()) as i32
}

/// r1: context; r2: frame; r3: its end; r4: what is compared with it; r5: what was read.
pub(super) fn instructions(map: BorrowedFd<'_>, selection: Selection) -> Vec<Instruction> {
    use Label::{Pass, Port, Redirect, V4, V6};
    use Statement::{At, Jump};
    let mut statements = Vec::new();
    if let Selection::UdpPort(port) = selection {
        statements.extend([
            op(LDX_W, R2, R1, DATA, 0),
            op(LDX_W, R3, R1, DATA_END, 0),
            op(MOV_X, R4, R2, 0, 0),
            op(ADD_K, R4, NONE, 0, 14 + 20 + 8),
            Jump(JGT_X, R4, R3, 0, Pass),
            op(LDX_H, R5, R2, ETHERTYPE, 0),
            Jump(JEQ_K, R5, NONE, wire(0x0800), V4),
            Jump(JEQ_K, R5, NONE, wire(0x86dd), V6),
            Jump(JA, NONE, NONE, 0, Pass),
            At(V4),
            op(LDX_B, R5, R2, IP + 9, 0), // protocol
            Jump(JNE_K, R5, NONE, UDP, Pass),
            op(LDX_H, R5, R2, IP + 6, 0), // MF and fragment offset
            op(AND_K, R5, NONE, 0, wire(0x3fff)),
            Jump(JNE_K, R5, NONE, 0, Pass),
            op(LDX_B, R5, R2, IP, 0), // header length in words
            op(AND_K, R5, NONE, 0, 15),
            op(LSH_K, R5, NONE, 0, 2),
            op(ADD_X, R2, R5, 0, 0), // r2: 14 bytes before the UDP header
            op(MOV_X, R4, R2, 0, 0),
            op(ADD_K, R4, NONE, 0, 14 + 8),
            Jump(JGT_X, R4, R3, 0, Pass),
            op(LDX_H, R5, R2, 14 + 2, 0), // destination port
            Jump(JA, NONE, NONE, 0, Port),
            At(V6),
            op(MOV_X, R4, R2, 0, 0),
            op(ADD_K, R4, NONE, 0, 14 + 40 + 8),
            Jump(JGT_X, R4, R3, 0, Pass),
            op(LDX_B, R5, R2, IP + 6, 0), // next header
            Jump(JNE_K, R5, NONE, UDP, Pass),
            op(LDX_H, R5, R2, IP + 40 + 2, 0), // destination port
            At(Port),
            Jump(JEQ_K, R5, NONE, wire(port), Redirect),
            At(Pass),
            op(MOV_K, R0, NONE, 0, XDP_PASS),
            op(EXIT, NONE, NONE, 0, 0),
        ]);
    }
    statements.extend([
        At(Redirect),
        op(LDX_W, R2, R1, RX_QUEUE, 0),
        op(LD_WIDE, R1, MAP_FD, 0, map.as_raw_fd()),
        op(0, NONE, NONE, 0, 0),
        op(MOV_K, R3, NONE, 0, XDP_PASS),
        op(CALL, NONE, NONE, 0, REDIRECT_MAP),
        op(EXIT, NONE, NONE, 0, 0),
    ]);
    resolve(&statements)
}

/// Puts the distance into each jump: instructions from the one after it to its label.
fn resolve(statements: &[Statement]) -> Vec<Instruction> {
    let place = |label: Label| {
        let before = statements.iter().take_while(|statement| !matches!(statement, Statement::At(at) if *at == label));
        before.filter(|statement| !matches!(statement, Statement::At(_))).count() as i16
    };
    let mut all = Vec::with_capacity(statements.len());
    for statement in statements {
        match *statement {
            Statement::Do(instruction) => all.push(instruction),
            Statement::Jump(code, register, source, immediate, to) => {
                let offset = place(to) - all.len() as i16 - 1;
                all.push(Instruction { code, registers: source << 4 | register, offset, immediate });
            }
            Statement::At(_) => {}
        }
    }
    all
}
