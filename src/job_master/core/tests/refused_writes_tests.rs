//! A recorded end of a job counts for the next leader, even if the store accepts no further record.

use tanist_ha::election::Epoch;
use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus, WantedStatus};

use super::recovered::{end, one_region, options, placed};
use crate::core::{Effect, Event, JobMasterCore};

const NOW_MS: u64 = 1_000_000;

/// A core of the next leader, whose first write is in flight.
fn taken_up(state: pb::JobState) -> JobMasterCore {
    let epoch = Epoch::new(2);
    let core = JobMasterCore::build(one_region(), state, true, epoch, options(), NOW_MS);
    let mut core = core.expect("the record is of this graph");
    let effects = core.handle(NOW_MS, Event::Started).expect("taken");
    assert_eq!(writes(&effects).len(), 1);
    core
}

fn refuse(core: &mut JobMasterCore, number: u64) -> Vec<Effect> {
    let refused = Event::PersistRefused(number, "it is too large".to_owned());
    core.handle(NOW_MS, refused).expect("taken")
}

fn writes(effects: &[Effect]) -> Vec<&pb::JobState> {
    let writes = effects.iter().filter_map(|effect| match effect {
        Effect::Persist { state, .. } => Some(&**state),
        _ => None,
    });
    writes.collect()
}

fn ended_as(core: &JobMasterCore) -> Option<JobStatus> {
    core.end.result().map(pb::JobResult::status)
}

/// The record of a job whose tasks have all finished, with events.
fn finished() -> pb::JobState {
    let mut state = placed(&one_region(), 1);
    let tasks = [(1, 0), (1, 1), (2, 0), (2, 1)];
    let ends = tasks.map(|(vertex, subtask)| end(vertex, subtask, 1, S::Finished));
    state.terminal = ends.to_vec();
    state.events = vec![pb::JobEvent::default(); 2];
    state
}

#[test]
fn a_cancellation_that_is_recorded_stays_one() {
    let mut state = placed(&one_region(), 1);
    state.set_wanted(WantedStatus::Canceled);
    let mut core = taken_up(state);
    refuse(&mut core, 1);
    assert_eq!(ended_as(&core), Some(JobStatus::Canceled));
}

#[test]
fn a_finished_job_is_taken_over_with_a_shortened_record() {
    let before = finished();
    let mut core = taken_up(before.clone());
    let effects = refuse(&mut core, 1);
    let [again] = writes(&effects)[..] else {
        panic!("it is not written again: {effects:?}");
    };
    assert_eq!(again.terminal, before.terminal);
    assert_eq!(again.job_incarnation, before.job_incarnation + 1);
    assert!(again.events.len() < before.events.len());
    let effects = core.handle(NOW_MS, Event::Persisted(2)).expect("taken");
    let is_commit = |effect: &Effect| matches!(effect, Effect::CommitSinks(_));
    assert!(effects.iter().any(is_commit), "{effects:?}");
    core.handle(NOW_MS, Event::SinksCommitted).expect("taken");
    assert_eq!(ended_as(&core), Some(JobStatus::Finished));
}

#[test]
fn a_record_that_is_refused_in_any_length_fails_the_job() {
    let mut core = taken_up(finished());
    refuse(&mut core, 1);
    assert_eq!(ended_as(&core), None);
    refuse(&mut core, 2);
    assert_eq!(ended_as(&core), Some(JobStatus::Failed));
}
