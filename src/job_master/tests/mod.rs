//! Tests of the whole JobMaster, on paused time, with scripted TaskExecutors around it.

mod actor_tests;
mod adoption_actor_tests;
mod checkpoint_commits_tests;
mod checkpoint_notices_tests;
mod checkpoints_tests;
mod lost_task_managers_tests;
mod registering_tests;
mod savepoint_tests;
mod scripted;
mod start_limiter_tests;
