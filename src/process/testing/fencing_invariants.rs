//! Invariants between terms and TaskExecutors: which epochs are accepted, what runs when, and what survives.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::history::{AttemptKey, Event, Record};
use super::reached::{Landmark, Reached};
use super::world::process_of;

/// All violations in a history.
pub(super) fn broken(events: &[Event]) -> Vec<String> {
    [
        an_epoch_is_of_one_process(events),
        epochs_grow_at_each_task_manager(events),
        nothing_starts_after_a_result(events),
    ]
    .concat()
}

/// No two lives are granted the same epoch, and none an older one than before.
fn an_epoch_is_of_one_process(events: &[Event]) -> Vec<String> {
    let mut leaders: BTreeMap<u64, &str> = BTreeMap::new();
    let mut youngest: BTreeMap<&str, u64> = BTreeMap::new();
    let mut broken = Vec::new();
    for event in events {
        let Event::Granted { life, epoch } = event else {
            continue;
        };
        let first = *leaders.entry(*epoch).or_insert(life);
        let before = youngest.insert(life, *epoch).unwrap_or(0);
        if first != life || before > *epoch {
            broken.push(format!(
                "{life} was granted epoch {epoch} after {before}; it was {first}'s"
            ));
        }
    }
    broken
}

/// A TaskExecutor that has accepted an epoch accepts no lower one, and starts nothing for a lower one.
fn epochs_grow_at_each_task_manager(events: &[Event]) -> Vec<String> {
    let mut highest: BTreeMap<&str, u64> = BTreeMap::new();
    let mut broken = Vec::new();
    for event in events {
        match event {
            Event::Accepted {
                task_manager,
                epoch,
                before,
            } => {
                if epoch < before {
                    broken.push(format!(
                        "{task_manager} obeyed epoch {epoch} after {before}"
                    ));
                }
                let highest = highest.entry(task_manager).or_default();
                *highest = (*highest).max(*epoch);
            }
            Event::Started {
                attempt,
                task_manager,
                epoch,
            } => {
                let heard = highest.get(task_manager.as_str()).copied().unwrap_or(0);
                if *epoch < heard {
                    broken.push(format!(
                        "{task_manager} started {attempt:?} of epoch {epoch} after epoch {heard}"
                    ));
                }
            }
            _ => {}
        }
    }
    broken
}

/// A job that has a result is not run again. A late start at a TaskManager that was given up, of a generation
/// from before it could not be reached, is an orphan execution: it has no effect, and stops when the store is
/// asked.
fn nothing_starts_after_a_result(events: &[Event]) -> Vec<String> {
    let mut broken = Vec::new();
    // TaskManagers that could not be reached since a job's last generation was written.
    let mut disturbed: BTreeMap<JobId, BTreeSet<&str>> = BTreeMap::new();
    let mut generations: BTreeMap<JobId, Vec<u64>> = BTreeMap::new();
    let mut ended: BTreeSet<JobId> = BTreeSet::new();
    for event in events {
        match event {
            Event::Committed { records, .. } => {
                for record in records {
                    match record {
                        Record::State(job, state) => {
                            let regions = state.regions.iter();
                            let now = regions.map(|region| region.generation).collect();
                            let is_other = generations.get(job) != Some(&now);
                            if is_other && state.regions.iter().any(|it| !it.placements.is_empty())
                            {
                                disturbed.insert(*job, BTreeSet::new());
                            }
                            generations.insert(*job, now);
                        }
                        Record::Result(job, _) => drop(ended.insert(*job)),
                        Record::Graph(_)
                        | Record::Description(_)
                        | Record::Deleted(..)
                        | Record::Checkpoints(..)
                        | Record::Other => {}
                    }
                }
            }
            Event::Disturbed(process) => {
                for unreachable in disturbed.values_mut() {
                    unreachable.insert(process);
                }
            }
            Event::Started {
                attempt,
                task_manager,
                ..
            } if ended.contains(&attempt.job) => {
                let unreachable = disturbed.get(&attempt.job);
                if !unreachable.is_some_and(|it| it.contains(process_of(task_manager))) {
                    broken.push(format!("{event:?} after the job's result"));
                }
            }
            _ => {}
        }
    }
    broken
}

/// No task of these jobs ends or starts, and no generation of theirs is written: for a part of a history in
/// which only JobManagers and the store had faults.
pub(crate) fn interrupted(events: &[Event], jobs: &BTreeSet<JobId>) -> Vec<String> {
    let mut broken = Vec::new();
    let mut generations: BTreeMap<(JobId, usize), u64> = BTreeMap::new();
    for event in events {
        match event {
            Event::Started { attempt, .. } | Event::Ended(attempt)
                if jobs.contains(&attempt.job) =>
            {
                broken.push(format!("work did not survive: {event:?}"));
            }
            Event::Committed { epoch, records } => {
                for record in records {
                    let Record::State(job, state) = record else {
                        continue;
                    };
                    for (number, region) in state.regions.iter().enumerate() {
                        let generation = generations.entry((*job, number));
                        let first = *generation.or_insert(region.generation);
                        if jobs.contains(job) && first != region.generation {
                            broken.push(format!(
                                "epoch {epoch} wrote generation {} of job {job}: {:?}",
                                region.generation, state.failures
                            ));
                        }
                    }
                }
            }
            _ => {}
        }
    }
    broken
}

/// Counts the landmarks of takeovers in a history.
pub(crate) fn note_takeovers(events: &[Event], reached: &Reached) {
    let mut started: BTreeMap<AttemptKey, u64> = BTreeMap::new();
    let mut adopted: BTreeSet<AttemptKey> = BTreeSet::new();
    let mut restarted: BTreeSet<(JobId, u64, String)> = BTreeSet::new();
    for event in events {
        match event {
            Event::Started { attempt, epoch, .. } => drop(started.insert(attempt.clone(), *epoch)),
            Event::Committed { epoch, records } => {
                for record in records {
                    let Record::State(job, state) = record else {
                        continue;
                    };
                    let ends = state.terminal.iter();
                    let of_older_terms = ends
                        .filter(|end| end.state() == pb::ExecutionState::Finished)
                        .map(|end| attempt_of(*job, end))
                        .filter(|attempt| started.get(attempt).is_some_and(|since| since < epoch));
                    adopted.extend(of_older_terms);
                    let failures = state.failures.iter();
                    let by_takeover = failures
                        .filter(|failure| failure.cause.starts_with("not there after a change"));
                    restarted.extend(
                        by_takeover.map(|failure| (*job, failure.at_ms, failure.task.clone())),
                    );
                }
            }
            _ => {}
        }
    }
    reached.add(Landmark::RunningTaskAdopted, adopted.len() as u64);
    reached.add(
        Landmark::RegionRestartedByReconciliation,
        restarted.len() as u64,
    );
}

fn attempt_of(job: JobId, end: &pb::TerminalExecution) -> AttemptKey {
    AttemptKey {
        job,
        vertex: end.vertex_id.clone(),
        subtask: end.subtask,
        generation: end.generation,
    }
}
