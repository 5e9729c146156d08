//! Tests of the whole ResourceManager, on paused time, with scripted TaskExecutors around it.

mod registration_tests;
pub(crate) mod scripted;
mod slots_tests;
mod unfulfillable_tests;
