//! Tests of the core, without loop and tasks: time is a number that the test passes in.

mod budget_tests;
mod calls;
mod checkpoint_calls;
mod checkpoints_tests;
mod connection_tests;
mod connections_tests;
mod core_tests;
mod core_world;
mod follow_ups;
mod generation_check_tests;
mod lateness_tests;
mod leader_tracker_tests;
mod leaderless_timer_tests;
mod lifecycle_tests;
mod outbox_tests;
mod slot_table_tests;
