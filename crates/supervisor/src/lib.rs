//! The supervisor: a small process that outlives the data plane and holds what must not die with it.
//!
//! ```text
//!  front ends ══ sockets ══╗                        ╔══ link ══ data plane (killed at any instant, started again)
//!  API clients ═ sockets ══╬══ one thread, epoll ═══╣
//!  systemd, signals ═══════╝                        ╚══ opens backing files on threads of their own
//!
//!  holds: listening and connected sockets · each connection's fd table, session and unapplied message · the vault ·
//!         desired state (site file and changes)
//! ```
//!
//! The loop never waits for a peer: every socket is non-blocking and every reply buffered, and nothing more is read
//! from a peer that does not take its replies. `docs/operations.md` is the operator's side of this.

#![forbid(unsafe_code)]

mod calls;
mod changes;
mod clients;
mod control_plane;
mod copier;
mod desired;
mod from_plane;
mod front_ends;
mod metrics_http;
mod node_status;
mod notify;
mod oom;
mod opener;
mod plane;
mod poller;
mod process;
mod record;
mod reexec;
mod requests;
mod restart;
mod run;
mod saves;
mod socket;
mod supervisor;
mod task;
#[cfg(test)]
mod tests;
mod upgrade;
mod vault;
mod wanted;

pub use desired::{StateError, check_kept};
pub use process::{Exit, Process, ProcessState, Program, SUBCOMMAND, Spawner};
pub use reexec::{
    CHECK_SUBCOMMAND, Executed, FORMATS_SUBCOMMAND, RESUME_SUBCOMMAND, Resume, Successor, Understood, Verdict, check,
    resume, understood,
};
pub use run::{RunError, RunOptions, run};
pub use socket::SocketError;
pub use supervisor::{Handle, Timing};
