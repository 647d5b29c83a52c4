//! The ports between real network namespaces, with the kernel's own stack at the other end.

mod lab;
mod netlink;
mod packet;
mod tap;
mod xdp;

#[test]
fn ports_may_be_handed_to_the_core_that_polls_them() {
    fn sendable<T: Send>() {}
    sendable::<softdpu_sys::port::tap::Tap>();
    sendable::<softdpu_sys::port::packet::PacketSocket>();
    sendable::<softdpu_sys::port::xdp::XdpSocket>();
}
