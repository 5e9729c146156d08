//! Whole clusters in this process: the life of jobs, and the faults that they survive.

mod adoption;
mod application;
mod cancelling;
mod coordinators;
mod crash_loop;
mod crashes;
mod draining;
mod forged_terms;
mod isolation;
mod job_records;
mod large_graphs;
mod leaderless;
mod lifecycle;
mod overview;
mod partitions;
mod peers;
mod random;
mod registrations;
mod standby;
mod stopping;
mod task_managers;
mod visibility;
mod workers;
