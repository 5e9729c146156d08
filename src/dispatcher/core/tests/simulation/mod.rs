//! The core against a simulated world: clients that submit, repeat, cancel, retry and delete; JobMasters that end or
//! break; a store that refuses, damages and forgets answers, and that answers late; and terms that are suspended or
//! end at any step. First with random steps, then without faults in the same term: each request must be answered, and
//! no job may wait. Then in the next term: every job must end and be forgotten. No step may break an invariant.

mod effects;
mod invariants;
mod random_steps;
mod reads;
mod rest;
mod steps;
mod store;
mod world;

pub(in crate::core::tests) use self::world::{Asked, World, job_of};
