//! Everything that is never on the data path: configuration, the management API, status, metrics and the supervisor.
//!
//! ```text
//!  site file ──config──▶ Site ──▶ supervisor ──link──▶ data plane ──status──▶ tables, top, JSON, Prometheus
//!                          ▲                                          │
//!  softdpu volume|device … ┴── api (JSON lines, Unix socket) ─────────┘
//! ```

#![forbid(unsafe_code)]

mod accounts;
pub mod api;
pub mod attach;
pub mod config;
pub mod dataplane;
pub mod link;
pub mod metrics_http;
mod outbox;
pub mod status;
pub mod supervisor;
