//! Tests of the decisions about workers, and their model.

mod matching_tests;
mod model;
mod model_tests;
mod planning_tests;
mod worker_events_tests;
