//! Tests of the core, without loop and tasks, and its simulation: time is a number that the test passes in.

mod adoption_tests;
mod blocked_reasons_tests;
mod commit_tests;
mod consistency;
mod exceptions_tests;
mod failover_tests;
mod file_splits_tests;
mod isolation_tests;
mod job_events_tests;
mod many_regions_tests;
mod moving_late_news_tests;
mod moving_rounds_tests;
mod moving_tests;
mod profiles_tests;
pub(crate) mod recovered;
mod refused_writes_tests;
mod regions_tests;
mod result_partitions_tests;
mod simulation;
mod slot_pool_model_tests;
mod slot_pool_tests;
mod slot_wait_tests;
mod stopped_tests;
pub(crate) mod testing;
