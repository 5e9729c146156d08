//! When the store is read, and what follows from the answer.

use std::time::Duration;

use tanist_gateway::fencing::HighestEpoch;
use tanist_gateway::{NoAnswer, StoredGenerations, StoredJobs};
use tanist_ha::clock::{Moment, Uptime};
use tanist_ha::election::{ClusterIncarnation, Epoch};
use tanist_proto::id::{Generation, JobId};

use super::core_world::shown;
use crate::core::Effect;
use crate::core::generation_check::*;
use crate::core::output::Output;

const JOB: JobId = JobId::from_bits(1);
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(300);

/// A check whose job is in doubt from the start on.
struct Check {
    check: GenerationCheck,
    now: Uptime,
    output: Output,
}

impl Check {
    fn new() -> Check {
        let terms = HighestEpoch::default();
        terms.follow(&shown(1)).expect("the first");
        Check {
            check: GenerationCheck::new(Uptime::START, terms),
            now: Uptime::START,
            output: Output::default(),
        }
    }

    /// Lets time pass. Returns whether a read begins.
    fn reads_after(&mut self, time: Duration, is_in_doubt: bool) -> bool {
        self.now += time;
        let doubted = is_in_doubt.then_some((JOB, 1)).into_iter();
        self.check
            .review(self.now, Moment::default(), doubted, &mut self.output);
        let effects = self.output.take_effects();
        matches!(effects[..], [Effect::ReadGenerations(_)])
    }

    /// Ends a read. The last message of a leader arrived at the start.
    fn finish(&mut self, answer: Result<StoredJobs, NoAnswer>) -> Option<Verdict> {
        let (check, last_contact) = (&mut self.check, Uptime::START);
        let output = &mut self.output;
        check.finish(self.now, answer, last_contact, FAILOVER_TIMEOUT, output)
    }
}

fn silence() -> Result<StoredJobs, NoAnswer> {
    Err(NoAnswer("a test says so".to_owned()))
}

fn answer(epoch: u64, job: JobId) -> Result<StoredJobs, NoAnswer> {
    let generations = StoredGenerations::Present(vec![Generation::new(1)]);
    Ok(StoredJobs {
        incarnation: ClusterIncarnation::new("c1"),
        epoch: Epoch::new(epoch),
        jobs: [(job, generations)].into(),
    })
}

#[test]
fn one_read_at_a_time_begins_a_pause_after_doubt_or_the_last_one() {
    let mut check = Check::new();
    assert!(!check.reads_after(Duration::ZERO, true));
    assert!(check.reads_after(PAUSE, true));
    assert!(!check.reads_after(PAUSE * 10, true), "one is in flight");
    assert!(matches!(
        check.finish(answer(1, JOB)),
        Some(Verdict::Stored(_))
    ));
    assert!(!check.reads_after(PAUSE / 2, true));
    assert!(check.reads_after(PAUSE / 2, true));
}

#[test]
fn without_doubt_nothing_is_read() {
    let mut check = Check::new();
    assert!(!check.reads_after(Duration::ZERO, true));
    assert!(!check.reads_after(PAUSE, false));
    assert!(!check.reads_after(PAUSE, true));
    assert!(check.reads_after(PAUSE, true));
}

#[test]
fn only_a_read_that_began_after_the_failover_timeout_makes_it_give_up() {
    let mut check = Check::new();
    check.reads_after(Duration::ZERO, true);
    assert!(check.reads_after(PAUSE, true));
    check.now += FAILOVER_TIMEOUT;
    assert!(check.finish(silence()).is_none(), "it began too early");
    assert!(check.reads_after(PAUSE, true));
    assert!(matches!(
        check.finish(silence()),
        Some(Verdict::Unreachable)
    ));
}

#[test]
fn an_answer_of_an_older_term_or_about_another_job_says_nothing() {
    let mut check = Check::new();
    check.reads_after(Duration::ZERO, true);
    assert!(check.reads_after(PAUSE, true));
    assert!(check.finish(answer(0, JOB)).is_none());
    assert!(check.reads_after(PAUSE, true));
    let of_other = check.finish(answer(1, JobId::from_bits(2)));
    assert!(matches!(of_other, Some(Verdict::Stored(jobs)) if jobs.is_empty()));
    assert!(check.finish(answer(1, JOB)).is_none(), "none is in flight");
}
