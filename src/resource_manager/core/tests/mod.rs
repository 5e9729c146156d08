//! Tests of the core, without loop and tasks: time is a number that the test passes in.

mod forgetting_tests;
mod idle_tests;
mod matching_model_tests;

mod probe_tests;
mod profile_model;
mod profile_model_tests;
mod profile_tests;
mod queue_tests;
mod slot_manager_model_tests;
mod slot_manager_tests;
mod slots_tests;
mod standstill_tests;
