//! The core against a simulated world: clients that submit, repeat, cancel, retry and delete; JobMasters that end or
//! break; a store that refuses, damages and forgets answers; and terms that end at any step. First with random steps,
//! then without faults: every job must end and be forgotten, and no step may break an invariant.

mod effects;
mod invariants;
mod random_steps;
mod reads;
mod rest;
mod steps;
mod store;
mod world;

pub(in crate::core::tests) use self::world::{Asked, World, job_of};
