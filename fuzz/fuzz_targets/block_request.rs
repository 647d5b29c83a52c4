//! One virtio-blk request: any configuration, any chain, any bytes.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| softdpu_device::fuzz::block_request(data));
