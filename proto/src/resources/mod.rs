//! What slots have and tasks need: CPU, memory by purpose, and extended resources by name.
//!
//! [`Resources`] are amounts. A [`ResourceProfile`] is amounts, or one of two that can't be reckoned with: *unknown*, which any
//! slot serves, and *any*, which serves everything. A [`WorkerResourceSpec`] is what a TaskManager is started with.
//! All of it is exact: cores are counted in millionths, so that what is added and taken away again leaves what was.
//! Sums saturate and nothing goes below zero, so that no message makes a process panic.

mod amounts;
mod messages;
mod profile;
#[cfg(test)]
mod tests;
mod worker;

pub use amounts::{CpuCores, ExtendedResources, InvalidCpuCores, Resources, extended_name_problem};
pub use profile::{ResourceProfile, Unmatched};
pub use worker::WorkerResourceSpec;
