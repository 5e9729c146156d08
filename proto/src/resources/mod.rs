//! The resources of slots and the needs of tasks: CPU, memory by purpose, and extended resources by name.
//!
//! [`Resources`] are amounts. A [`ResourceProfile`] is amounts, or one of two special values without
//! arithmetic: *unknown*, which any slot serves, and *any*, which serves everything. A [`WorkerResourceSpec`]
//! is the resources with which a TaskManager is started.
//!
//! All values are exact: cores are counted in millionths, so that adding and subtracting an amount restores
//! the old value. Sums saturate and nothing goes below zero, so that no message makes a process panic.

mod amounts;
mod messages;
mod profile;
#[cfg(test)]
mod tests;
mod worker;

pub use amounts::{CpuCores, ExtendedResources, InvalidCpuCores, Resources, extended_name_problem};
pub use profile::{ResourceProfile, Unmatched};
pub use worker::WorkerResourceSpec;
