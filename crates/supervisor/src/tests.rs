//! The supervisor beside a data plane that the test plays itself, over the real link: what it gets, what becomes of
//! what it says, and what its successor gets when it dies.

mod api;
mod bed;
mod control_plane;
mod front_ends;
mod hand_over;
mod lifecycle;
mod loads;
mod reexec;
mod refs;
mod slow_disk;
mod streams;
mod upgrade;
