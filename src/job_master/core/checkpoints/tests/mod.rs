//! Tests of the checkpoints' core.

mod rules;
mod simulation;
