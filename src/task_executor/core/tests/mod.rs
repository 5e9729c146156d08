//! Tests of the core, without loop and tasks: time is a number that the test passes in.

mod core_tests;
mod core_world;
mod slot_table_tests;
