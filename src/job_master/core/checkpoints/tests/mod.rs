//! Tests of the checkpoints' core.

mod simulation;
