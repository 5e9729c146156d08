//! Invariants of every history, as predicates that are written once.

use std::collections::{BTreeMap, BTreeSet};

use tanist_proto::v1 as pb;

use super::history::{AttemptKey, Event, Record, Stored};
use super::world::process_of;
use super::{checkpoints, fencing_invariants, outputs};

/// All violations in a history.
pub(crate) fn broken(events: &[Event]) -> Vec<String> {
    [
        acknowledged_jobs_are_kept(events),
        attempts_start_once(events),
        attempts_start_where_the_record_says(events),
        generations_overlap_only_behind_a_cut(events),
        nothing_is_written_after_a_result(events),
        descriptions_come_and_go_with_what_results_say(events),
        epochs_and_generations_grow(events),
        outputs::broken(events),
        checkpoints::broken(events),
        fencing_invariants::broken(events),
    ]
    .concat()
}

/// Replays a history, with the stored state before each event.
pub(super) fn replay(events: &[Event], mut look: impl FnMut(&Stored, &Event)) {
    let mut stored = Stored::default();
    for event in events {
        look(&stored, event);
        stored.apply(event);
    }
}

/// From the acknowledgement of a job on, the job or its result is stored.
fn acknowledged_jobs_are_kept(events: &[Event]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut acknowledged = BTreeSet::new();
    let mut stored = Stored::default();
    for event in events {
        stored.apply(event);
        if let Event::Acknowledged(job) = event {
            acknowledged.insert(*job);
        }
        for job in acknowledged.iter().filter(|job| !stored.has(**job)) {
            broken.push(format!("acknowledged job {job} is lost after {event:?}"));
        }
    }
    broken
}

/// A subtask starts at most once per generation.
fn attempts_start_once(events: &[Event]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let mut broken = Vec::new();
    for event in events {
        if let Event::Started { attempt, .. } = event
            && !seen.insert(attempt)
        {
            broken.push(format!("{attempt:?} was started twice"));
        }
    }
    broken
}

/// An attempt starts only after its placement was written, only there, and for the term that wrote it.
fn attempts_start_where_the_record_says(events: &[Event]) -> Vec<String> {
    let mut placed: BTreeSet<(AttemptKey, String, u64)> = BTreeSet::new();
    let mut broken = Vec::new();
    for event in events {
        match event {
            Event::Committed { records, .. } => {
                for record in records {
                    let Record::State(job, state) = record else {
                        continue;
                    };
                    for (region, placement) in placements(state) {
                        let attempt = AttemptKey {
                            job: *job,
                            vertex: placement.vertex_id.clone(),
                            subtask: placement.subtask,
                            generation: region.generation,
                        };
                        let location = placement.location.clone().unwrap_or_default();
                        placed.insert((attempt, location.incarnation, region.epoch));
                    }
                }
            }
            Event::Started {
                attempt,
                task_manager,
                epoch,
            } => {
                let wanted = (attempt.clone(), task_manager.clone(), *epoch);
                if !placed.contains(&wanted) {
                    broken.push(format!("{wanted:?} was started and no record says so"));
                }
            }
            _ => {}
        }
    }
    broken
}

fn placements(state: &pb::JobState) -> impl Iterator<Item = (&pb::RegionState, &pb::Placement)> {
    let regions = state.regions.iter();
    regions.flat_map(|region| region.placements.iter().map(move |place| (region, place)))
}

/// Two generations of a subtask run at the same time only across terms, or if the older one's TaskManager was
/// disturbed meanwhile.
fn generations_overlap_only_behind_a_cut(events: &[Event]) -> Vec<String> {
    struct Alive {
        on: String,
        epoch: u64,
        disturbed: bool,
    }
    let mut alive: BTreeMap<AttemptKey, Alive> = BTreeMap::new();
    let mut broken = Vec::new();
    for event in events {
        match event {
            Event::Started {
                attempt,
                task_manager,
                epoch,
            } => {
                let same = |key: &AttemptKey| {
                    let of = |key: &AttemptKey| (key.job, key.vertex.clone(), key.subtask);
                    of(key) == of(attempt)
                };
                for (other, running) in alive.iter().filter(|(key, _)| same(key)) {
                    let is_older = other.generation < attempt.generation;
                    if !is_older || running.epoch == *epoch && !running.disturbed {
                        broken.push(format!(
                            "{attempt:?} was started on {task_manager} in epoch {epoch} while {other:?} \
                             ran on {} since epoch {}",
                            running.on, running.epoch
                        ));
                    }
                }
                alive.insert(
                    attempt.clone(),
                    Alive {
                        on: task_manager.clone(),
                        epoch: *epoch,
                        disturbed: false,
                    },
                );
            }
            Event::Ended(attempt) => drop(alive.remove(attempt)),
            Event::Disturbed(process) => {
                for running in alive.values_mut() {
                    running.disturbed |= process_of(&running.on) == process;
                }
            }
            _ => {}
        }
    }
    broken
}

/// After a job's result its graph and its state are never written again.
fn nothing_is_written_after_a_result(events: &[Event]) -> Vec<String> {
    let mut broken = Vec::new();
    replay(events, |stored, event| {
        let Event::Committed { epoch, records } = event else {
            return;
        };
        for record in records {
            let job = match record {
                Record::Graph(job) | Record::State(job, _) => job,
                Record::Result(job, result) => {
                    let before = stored.results.get(job);
                    if before.is_some_and(|before| before.status != result.status) {
                        broken.push(format!("epoch {epoch} changed the end of job {job}"));
                    }
                    continue;
                }
                // What is retained stays, until the result goes.
                Record::Checkpoints(..)
                | Record::Description(_)
                | Record::Deleted(..)
                | Record::Other => continue,
            };
            if stored.results.contains_key(job) {
                broken.push(format!("epoch {epoch} wrote {record:?} after its result"));
            }
        }
    });
    broken
}

/// A description exists exactly while the job's result says so.
fn descriptions_come_and_go_with_what_results_say(events: &[Event]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut stored = Stored::default();
    for event in events {
        stored.apply(event);
        let described = stored.results.iter();
        let described: BTreeSet<_> = described
            .filter(|(_, result)| result.description.is_some())
            .map(|(job, _)| *job)
            .collect();
        if described != stored.descriptions {
            let there = &stored.descriptions;
            broken.push(format!(
                "{there:?} are described, and results say {described:?}, after {event:?}"
            ));
            return broken;
        }
    }
    broken
}

/// No term writes after a younger one began. The incarnations of a job and the generations of its regions only
/// grow.
fn epochs_and_generations_grow(events: &[Event]) -> Vec<String> {
    let mut broken = Vec::new();
    let mut highest = 0;
    replay(events, |stored, event| {
        let (epoch, records) = match event {
            Event::Committed { epoch, records } => (epoch, records),
            Event::Granted { epoch, .. } => {
                highest = highest.max(*epoch);
                return;
            }
            _ => return,
        };
        if *epoch < highest {
            broken.push(format!(
                "epoch {epoch} wrote {records:?} after epoch {highest} began"
            ));
        }
        highest = highest.max(*epoch);
        for record in records {
            let Record::State(job, state) = record else {
                continue;
            };
            let Some(before) = stored.states.get(job) else {
                continue;
            };
            if state.job_incarnation < before.job_incarnation {
                broken.push(format!("the incarnation of job {job} went back"));
            }
            for (region, before) in state.regions.iter().zip(&before.regions) {
                if region.generation < before.generation {
                    broken.push(format!("a generation of job {job} went back"));
                }
                if region.generation == before.generation
                    && !before.placements.is_empty()
                    && region != before
                {
                    broken.push(format!("a generation of job {job} was placed twice"));
                }
            }
        }
    });
    broken
}
