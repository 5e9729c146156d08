//! Tests of the core.

mod interleavings_tests;
mod simulation;
