//! The ports between real network namespaces, with the kernel's own stack at the other end.

mod lab;
mod packet;
mod tap;
