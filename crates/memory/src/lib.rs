//! Memory that a guest (or the host) shares with softdpu.
//!
//! ```text
//!  Domain ── the memory of one guest: mappings by (device, inode, offset), each mapped once for all its devices
//!    │ Arc<Mapping>
//!  View ──── what one connection sees: regions by guest-physical and front-end address, immutable, replaced whole
//!    │ Arc<View> (the pin)
//!  GuestBuffer · Window ── bytes of a request; memory of a ring. While one lives, what it points to stays mapped.
//! ```
//!
//! Two rules hold the crate together:
//!
//! - *Pinned:* what can reach guest bytes holds an `Arc` of the view they came from. Replacing a view unmaps nothing;
//!   dropping the last pin does.
//! - *Never a reference:* a guest writes its memory whenever it likes, so there is no `&[u8]` over it. Bytes are copied
//!   in and out, words are atomics, and the kernel gets an iovec.
//!
//! A front end may shrink the file behind a mapping. The bus error that would follow is caught, the mapping is replaced
//! by zeroes and marked [faulted](Mapping::is_faulted); see [`catch_bus_errors`].

#![deny(unsafe_op_in_unsafe_fn)]

mod budget;
mod buffer;
mod dirty;
mod domain;
mod fault;
mod file_system;
mod mapping;
mod mark;
mod span;
mod view;
mod window;

pub use buffer::GuestBuffer;
pub use dirty::{DirtyBitmap, PAGE};
pub use domain::{Domain, DomainError, MAX_MAPPINGS, Member};
pub use fault::catch_bus_errors;
pub use mapping::{MapError, Mapping, MappingKey};
pub use span::Span;
pub use view::{AccessError, GuestAddress, Region, UserAddress, View, ViewError};
pub use window::{Window, Words};
