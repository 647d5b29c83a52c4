//! Tenants that share a core: what each gets, and how fair that is, scheduler by scheduler.

pub mod comparison;
pub mod decision;
mod report;
mod site;
