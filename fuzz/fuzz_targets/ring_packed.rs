//! A packed virtqueue: a driver that mostly keeps to the rules, and one that does not.
#![no_main]

libfuzzer_sys::fuzz_target!(|program: &[u8]| softdpu_ring::fuzz::packed(program));
