//! Tests of the whole Dispatcher, on paused time over the memory store, with scripted JobMasters. Those of a part
//! of the job store are modules of its file, whose inner state they read.

mod actor_tests;
mod admission_tests;
mod crash_suspects_tests;
mod ended_tests;
mod kept_results_tests;
mod quarantine_tests;
mod retention_tests;
pub(crate) mod scripted;
mod store_trouble_tests;
pub(crate) mod testing;
mod unavailable_records_tests;
