//! Whole clusters in this process: what jobs go through, and what they survive.

mod crashes;
mod large_graphs;
mod lifecycle;
mod partitions;
mod random;
mod registrations;
mod task_managers;
