//! Invariants of what jobs leave behind: their sinks' output and their results.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::history::{Event, Record};
use super::invariants::replay;

/// All violations in a history.
pub(super) fn broken(events: &[Event]) -> Vec<String> {
    [
        sinks_are_committed_as_recorded(events),
        an_output_is_of_one_generation(events),
        ends_are_as_decided(events),
        cancels_are_kept(events),
        stops_are_kept(events),
        what_is_stopped_ends_as_its_protocol_says(events),
    ]
    .concat()
}

fn pending(committable: &pb::Committable) -> &str {
    &committable.pending_path
}

/// The visible output of a subtask is of one generation, however often it is made visible.
fn an_output_is_of_one_generation(events: &[Event]) -> Vec<String> {
    let mut visible: BTreeMap<&str, &str> = BTreeMap::new();
    let mut broken = Vec::new();
    for event in events {
        let Event::SinksCommitted(paths) = event else {
            continue;
        };
        for path in paths {
            let first = *visible
                .entry(&path.final_path)
                .or_insert(&path.pending_path);
            if first != path.pending_path {
                broken.push(format!("{path:?} was committed after {first}"));
            }
        }
    }
    broken
}

/// From its acknowledgement on, a cancellation is recorded, or the job has ended.
fn cancels_are_kept(events: &[Event]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut canceled: BTreeSet<JobId> = BTreeSet::new();
    replay(events, |stored, event| {
        for job in &canceled {
            let is_wanted = |state: &pb::JobState| state.wanted() == pb::WantedStatus::Canceled;
            let is_kept = stored.states.get(job).is_some_and(is_wanted);
            if !is_kept && !stored.results.contains_key(job) {
                broken.push(format!("the cancel of job {job} is lost before {event:?}"));
            }
        }
        if let Event::CancelAcknowledged(job) = event {
            canceled.insert(*job);
        }
    });
    broken
}

/// From its acknowledgement on, a stop is recorded, or a later cancellation, or there is nothing left to stop.
fn stops_are_kept(events: &[Event]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut stopped: BTreeSet<JobId> = BTreeSet::new();
    let has_finished = |state: &pb::JobState| {
        let placed = state.regions.iter().map(|region| region.placements.len());
        let ends = state.terminal.iter();
        let ends = ends.filter(|end| end.state() == pb::ExecutionState::Finished);
        placed.sum::<usize>() == ends.count()
    };
    replay(events, |stored, event| {
        for job in &stopped {
            let is_kept = |state: &pb::JobState| {
                state.wanted() != pb::WantedStatus::Running || has_finished(state)
            };
            let is_kept = stored.states.get(job).is_some_and(is_kept);
            if !is_kept && !stored.results.contains_key(job) {
                broken.push(format!("the stop of job {job} is lost before {event:?}"));
            }
        }
        if let Event::StopAcknowledged(job) = event {
            stopped.insert(*job);
        }
    });
    broken
}

/// Part of the cause of a job that fails because records that it had read before it was stopped are lost.
pub(super) const LOST: &str = "what its sources had read would be missing";

/// A stop stays recorded until the end, unless a cancellation follows. Such a job finishes, or fails because
/// records that it had read are lost, and then no region of it was given up.
fn what_is_stopped_ends_as_its_protocol_says(events: &[Event]) -> Vec<String> {
    let mut broken = Vec::new();
    replay(events, |stored, event| {
        let Event::Committed { records, .. } = event else {
            return;
        };
        for record in records {
            let (Record::State(job, _) | Record::Result(job, _)) = record else {
                continue;
            };
            let before = stored.states.get(job);
            let before = before.filter(|it| it.wanted() == pb::WantedStatus::Stopped);
            let Some(before) = before else {
                continue;
            };
            let is_right = match record {
                Record::State(_, state) => state.wanted() != pb::WantedStatus::Running,
                Record::Result(_, result) => match result.status() {
                    pb::JobStatus::Finished => before.fatal_cause.is_empty(),
                    pb::JobStatus::Failed => {
                        result.cause.contains(LOST) && before.fatal_cause.contains(LOST)
                    }
                    // The cancellation of a quarantined job is not recorded before its result.
                    pb::JobStatus::Canceled => before.quarantine.is_some(),
                    _ => false,
                },
                _ => true,
            };
            if !is_right {
                broken.push(format!("job {job} was to be stopped, and then: {record:?}"));
            }
        }
    });
    broken
}

/// Sinks are committed only when the record says that all tasks finished and that no cancellation was wanted
/// before; they commit exactly the recorded output, always the same.
fn sinks_are_committed_as_recorded(events: &[Event]) -> Vec<String> {
    let mut broken = Vec::new();
    replay(events, |stored, event| {
        let Event::SinksCommitted(paths) = event else {
            return;
        };
        let recorded = |state: &&pb::JobState| {
            let ends = state.terminal.iter();
            let recorded = ends.flat_map(|end| end.committables.iter());
            recorded.map(pending).collect::<BTreeSet<_>>() == paths.iter().map(pending).collect()
        };
        match stored.states.values().find(recorded) {
            None => broken.push(format!("{paths:?} were committed and are recorded nowhere")),
            Some(state) => {
                let is_finished =
                    |end: &pb::TerminalExecution| end.state() == pb::ExecutionState::Finished;
                if state.wanted() == pb::WantedStatus::Canceled
                    || !state.terminal.iter().all(is_finished)
                {
                    broken.push(format!("{paths:?} were committed of {state:?}"));
                }
            }
        }
    });
    broken
}

/// A job whose cancellation was acknowledged ends as canceled; one that finished has committed its sinks.
fn ends_are_as_decided(events: &[Event]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut canceled: BTreeSet<JobId> = BTreeSet::new();
    let mut committed: BTreeSet<String> = BTreeSet::new();
    replay(events, |stored, event| match event {
        Event::CancelAcknowledged(job) => {
            canceled.insert(*job);
            if let Some(result) = stored.results.get(job)
                && result.status() != pb::JobStatus::Canceled
            {
                broken.push(format!(
                    "cancel of {job} was acknowledged, its result is {result:?}"
                ));
            }
        }
        Event::SinksCommitted(paths) => {
            committed.extend(paths.iter().map(|path| path.final_path.clone()));
        }
        Event::Committed { records, .. } => {
            for record in records {
                let Record::Result(job, result) = record else {
                    continue;
                };
                if canceled.contains(job) && result.status() != pb::JobStatus::Canceled {
                    broken.push(format!("job {job} was to be canceled and is {result:?}"));
                }
                let of_job = |path: &String| path.contains(&job.to_string());
                let has_effect = committed.iter().any(of_job);
                let is_finished = result.status() == pb::JobStatus::Finished;
                if has_effect != is_finished {
                    broken.push(format!(
                        "job {job} ended as {:?}, its sinks were committed: {has_effect}",
                        result.status()
                    ));
                }
            }
        }
        _ => {}
    });
    broken
}
