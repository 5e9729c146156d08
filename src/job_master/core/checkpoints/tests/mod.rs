//! Tests of the checkpoints' core.

mod bench;
mod records;
mod rules;
mod savepoints;
pub(in crate::core) mod simulation;
mod stragglers;
