//! Tests of the checkpoints' core.

mod bench;
mod records;
mod rules;
mod savepoints;
mod simulation;
mod stragglers;
