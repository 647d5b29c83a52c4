//! One vhost-user connection: messages and file descriptors of a front end that knows the protocol and breaks its
//! rules.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| softdpu_transport::vhost_user::fuzz::session(data));
