//! An NVMe controller: any accesses to its registers, any commands in its admin queue, any I/O commands.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| softdpu_device::fuzz::nvme_controller(data));
