//! Single interleavings that random steps have found.

use super::simulation::{Asked, World, job_of};
use crate::core::{Command, Deadline, Effect};

/// A term that was deposed and does not know it must not deny what its successor may have accepted.
#[test]
fn a_submission_that_waited_for_another_one_is_denied_only_after_the_term_is_confirmed() {
    let mut world = World::new();
    let job = job_of(0);
    world.submit(job, 0, Deadline::Never);
    let past = Deadline::OfTerm {
        epoch: 1,
        until_ms: 1,
    };
    world.submit(job, 1, past);
    // The first one is refused. What the second one gets depends on whether the job exists.
    world.finish_one(0, true);
    let asks = world.pending.iter();
    let asks = asks.filter(|it| matches!(it.effect, Effect::ConfirmTerm));
    assert_eq!(asks.count(), 1);
    let submitted = Asked::Submit { job, token: 1 };
    assert!(world.open.values().any(|asked| *asked == submitted));
    world.come_to_rest();
}

#[test]
fn while_a_broken_job_master_is_removed_no_other_read_starts_the_job() {
    let mut world = World::new();
    let job = job_of(0);
    world.submit(job, 0, Deadline::Never);
    world.finish_one(0, false);
    let read = |reply| Command::StartCrashSuspects {
        jobs: vec![job],
        reply,
    };
    world.ask(Asked::Other, read, false);
    world.break_job_master(job, None);
    // The read is done before the JobMaster is gone.
    world.finish_one(0, false);
    assert!(world.job_masters[&job].has_ended);
    world.come_to_rest();
    assert!(!world.job_masters[&job].has_ended);
}

/// What a JobMaster has written since is lost if the job is started from an older read.
#[test]
fn a_read_from_before_a_job_master_was_removed_starts_no_other_one() {
    let mut world = World::new();
    let job = job_of(0);
    world.submit(job, 0, Deadline::Never);
    world.finish_one(0, false);
    let read = |reply| Command::StartCrashSuspects {
        jobs: vec![job],
        reply,
    };
    world.ask(Asked::Other, read, false);
    world.read_now(0);
    world.place(job);
    world.break_job_master(job, None);
    // Its records can't be read when the JobMaster is gone.
    world.make_unavailable(job);
    world.finish_one(1, false);
    world.finish_one(0, false);
    assert!(!world.job_masters.contains_key(&job));
    world.come_to_rest();
    assert!(world.job_masters.contains_key(&job));
}
