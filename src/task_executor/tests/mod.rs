//! Tests of the whole TaskExecutor, on paused time, between scripted leaders and tasks.

mod actor_tests;
mod cancellation_timeout_tests;
mod checkpoint_tests;
mod draining_tests;
mod generation_check_tests;
mod graphs_tests;
mod incarnation_tests;
mod isolation_tests;
mod registration_tests;
mod scripted_gateways;
mod scripted_leader;
pub(crate) mod testing;
