//! Savepoints of a job that its JobMaster ends: clients ask, checkpoints are copied, jobs stop.
//!
//! K11 is checked here, with both cores: an acknowledged request has an outcome in the end, which never changes and
//! says why there is no savepoint; what is copied is complete, and everything that it lists is visible; a job that
//! stops with a savepoint has shown exactly what the savepoint has; paused sources go on unless the job stops. The
//! executions and the rules are those of the simulation of the checkpoints alone.

use std::collections::{BTreeMap, BTreeSet};

use tanist_gateway::savepoints::is_open;
use tanist_proto::v1 as pb;

use super::{Checkpoints, assert_holds};
use crate::core::checkpoints::tests::simulation::execution::{Execution, Life, number};
use crate::core::checkpoints::tests::simulation::invariants::{
    Checked, ensure, k5_named_objects_exist,
};
use crate::core::checkpoints::tests::simulation::random::Random;
use crate::core::checkpoints::{Effect, Event, stop_of};
use crate::core::tests::simulation::world::World;

/// Number of requests that a record keeps.
const KEPT: usize = 16;

/// What clients ask for, and what was copied for them.
#[derive(Debug)]
pub(super) struct Savepoints {
    /// Draws of its own: cases without savepoints stay what they are.
    pub(super) random: Random,
    /// Number of the newest request.
    asked: u64,
    acknowledged: BTreeSet<String>,
    /// What the directory of savepoints has, by the trigger id.
    copies: BTreeMap<String, pb::CheckpointManifest>,
}

impl Savepoints {
    pub(super) fn new(random: Random) -> Savepoints {
        Savepoints {
            random,
            asked: 0,
            acknowledged: BTreeSet::new(),
            copies: BTreeMap::new(),
        }
    }
}

impl Checkpoints {
    /// Whether the job stops with a savepoint, unless that fails.
    pub(in crate::core::tests::simulation) fn is_to_stop(&self) -> bool {
        stop_of(&self.record.requests).is_some()
    }

    /// A request was answered.
    pub(super) fn note_answer(&mut self, id: String, answer: &Result<(), String>) {
        assert_holds(match answer {
            Ok(()) => {
                let requests = &self.record.requests;
                let is_known = requests.iter().any(|it| it.trigger_id == id);
                ensure(is_known || requests.len() >= KEPT, || {
                    format!("K11: request {id} is acknowledged, and not durable")
                })
            }
            Err(reason) => ensure(!reason.is_empty(), || {
                format!("K11: request {id} is refused without a reason")
            }),
        });
        if answer.is_ok() {
            self.savepoints.acknowledged.insert(id);
        }
    }

    /// Whether what would be done outside is a copy that takes longer: others are completed meanwhile.
    pub(super) fn is_copied_later(&mut self, pick: usize) -> bool {
        let picked = self.outside.get(pick % self.outside.len().max(1));
        let is_copy = picked.is_some_and(|it| matches!(it.1, Effect::CopySavepoint { .. }));
        is_copy && !self.savepoints.random.one_in(30)
    }

    /// The next of what is done outside in a round without faults. Copies take several rounds.
    pub(super) fn next_outside(&mut self) -> Option<usize> {
        (0..self.outside.len()).find(|index| {
            let is_copy = matches!(self.outside[*index].1, Effect::CopySavepoint { .. });
            !is_copy || self.savepoints.random.one_in(20)
        })
    }

    /// A copy begins.
    pub(super) fn assert_may_be_copied(&self, number: u64) {
        let mut uncommitted = self.uncommitted_parts.iter();
        let uncommitted = uncommitted.find(|(_, listed)| **listed <= number);
        assert_holds(ensure(uncommitted.is_none(), || {
            format!("K11: checkpoint {number} is copied before {uncommitted:?} is committed")
        }));
    }

    /// What was copied for a request is discarded. No later term goes on with it.
    pub(super) fn discard(&mut self, id: &str) {
        let mut requests = self.record.requests.iter();
        let request = requests.find(|it| it.trigger_id == *id);
        let has_failed = |it: &pb::SavepointRequest| it.progress() == pb::SavepointProgress::Failed;
        assert_holds(ensure(request.is_none_or(has_failed), || {
            format!("K11: the copy of {id} is discarded, and it has not durably failed")
        }));
        self.savepoints.copies.remove(id);
    }

    /// The outcome of a copy, after it was made from what there is.
    pub(super) fn copy(&mut self, id: &str, number: u64, fails: bool) -> Event {
        let is_it = |it: &pb::SavepointRequest| {
            it.trigger_id == *id && it.progress() == pb::SavepointProgress::Copying
        };
        let outcome = if !self.record.requests.iter().any(is_it) {
            Err("a later leader has decided about it".to_owned())
        } else if fails {
            Err("no space is left".to_owned())
        } else {
            let manifests = self.retained_manifests();
            let copied = manifests.into_iter().find(|it| it.number == number);
            let Some(copied) = copied else {
                panic!("K11: checkpoint {number} is copied, and is not retained");
            };
            let whole = k5_named_objects_exist(std::iter::once(&copied), &self.objects);
            assert_holds(whole);
            self.savepoints.copies.insert(id.to_owned(), copied);
            self.reached.copied += 1;
            Ok(format!("/savepoints/{id}"))
        };
        Event::SavepointCopied {
            trigger_id: id.to_owned(),
            outcome,
        }
    }

    /// What a write says of requests.
    pub(super) fn assert_requests(&self, record: &pb::JobCheckpoints) {
        for before in &self.record.requests {
            let id = &before.trigger_id;
            let after = record.requests.iter().find(|it| it.trigger_id == *id);
            let is_left = after.is_some() || record.requests.len() >= KEPT && !is_open(before);
            assert!(is_left, "K11: request {id} is forgotten");
            let is_final = after.is_none_or(|after| is_open(before) || after == before);
            assert!(is_final, "K11: the outcome of {id} changes");
        }
        for request in &record.requests {
            let id = &request.trigger_id;
            let has_words = is_open(request) || !request.outcome.is_empty();
            assert!(has_words, "K11: {id} does not say why");
            let is_copied = request.progress() == pb::SavepointProgress::Copying;
            let mut retained = record.retained.iter();
            let is_there = !is_copied || retained.any(|it| it.number == request.number);
            let number = request.number;
            assert!(is_there, "K11: checkpoint {number} of {id} is not retained");
            let is_complete = request.progress() == pb::SavepointProgress::Completed;
            let has_copy = self.savepoints.copies.contains_key(id);
            assert!(
                !is_complete || has_copy,
                "K11: {id} is complete, and has no copy"
            );
        }
    }

    /// With the job's result, each acknowledged request has an outcome.
    pub(super) fn assert_outcomes(&self, record: &pb::JobCheckpoints) {
        for id in &self.savepoints.acknowledged {
            let mut requests = record.requests.iter();
            let request = requests.find(|it| it.trigger_id == *id);
            let is_told = request.is_none_or(|it| !is_open(it));
            assert!(is_told, "K11: request {id} has no outcome");
        }
    }

    /// A job that has stopped with a savepoint has shown what the savepoint has, and nothing else.
    pub(super) fn assert_stopped(&mut self) {
        let stop = stop_of(&self.record.requests);
        let stop = stop.expect("K11: the job has stopped with a savepoint that was asked for");
        let savepoint = &self.savepoints.copies[&stop.trigger_id];
        let mut positions: BTreeMap<usize, u64> = BTreeMap::new();
        for (tasks, snapshot) in self.regions.iter().zip(&savepoint.regions) {
            for (task, subtask) in tasks.iter().zip(&snapshot.subtasks) {
                let last = self.last_positions.get(&(*task, snapshot.generation));
                let position = match subtask.ended {
                    true => last.copied().unwrap_or_default(),
                    false => number(&subtask.positions[0].position),
                };
                positions.insert(*task, position);
            }
        }
        for (sink, record) in self.committed_records.keys() {
            let (source, at) = record.split_once('.').expect("a record of a source");
            let source: usize = source.parse().expect("a task");
            let at: u64 = at.parse().expect("a number");
            assert!(
                at < positions[&source],
                "K11: the job has stopped with {stop:?}, and {sink} has shown {record} after it"
            );
        }
        for (region, tasks) in self.regions.iter().enumerate() {
            let (sources, sinks) = tasks.split_at(self.sources_of(region));
            for source in sources {
                let own = [*source];
                let sinks = if sinks.is_empty() { &own[..] } else { sinks };
                for sink in sinks {
                    for at in 0..positions[source] {
                        let record = (format!("t{sink}"), format!("{source}.{at}"));
                        let is_committed = self.committed_records.contains_key(&record);
                        assert!(
                            is_committed,
                            "K11: {record:?} is in the savepoint, and not visible"
                        );
                    }
                }
            }
        }
        self.reached.stopped += 1;
    }

    /// Once everything is told, no source pauses unless the job stops.
    pub(super) fn assert_goes_on(&self, stored: &pb::JobState) {
        if self.is_to_stop() {
            return;
        }
        let pauses = |it: &&Execution| {
            let is_present = it.generation == stored.regions[it.region].generation;
            is_present && it.life == Life::Running && it.paused_behind.is_some()
        };
        let mut executions = self.streams.iter().map(|it| &it.execution);
        let paused = executions.find(pauses);
        let paused = paused.map(|it| (it.task, it.paused_behind));
        assert!(
            paused.is_none(),
            "K11: a source pauses, and the job does not stop: {paused:?}"
        );
    }
}

impl World {
    /// A client asks the present term for a savepoint, perhaps once more.
    pub(super) fn ask_savepoint(&mut self) {
        // The actor refuses to stop a job with a savepoint that ends otherwise.
        let may_stop = self.stored.wanted() == pb::WantedStatus::Running;
        let Some(at) = &mut self.checkpoints else {
            return;
        };
        let savepoints = &mut at.savepoints;
        if !savepoints.random.one_in(4) {
            savepoints.asked += 1;
        }
        let stop = savepoints.random.one_in(3) && may_stop;
        let request = pb::TriggerSavepointRequest {
            job_id: self.graph.job_id.clone(),
            trigger_id: format!("s{}", savepoints.asked),
            directory: "/savepoints".to_owned(),
            stop,
        };
        if self.result.is_none() {
            let at_ms = self.now_ms;
            self.tell_checkpoints(Event::SavepointRequested { request, at_ms });
            self.settle_checkpoints();
        }
    }

    /// A source was told that a number is aborted, and goes on if it paused behind it. While the job stops, none is
    /// told so of the snapshot that its region has, unless its leader has given the region up. A later number may be
    /// aborted: it is triggered again.
    pub(super) fn resume(&mut self, epoch: u64, key: (usize, u64), aborted: u64) -> Checked {
        let Some(at) = &mut self.checkpoints else {
            return Ok(());
        };
        let Some(execution) = at.execution(key) else {
            return Ok(());
        };
        let region = execution.region;
        let paused = execution.paused_behind.take_if(|it| *it <= aborted);
        let Some(paused) = paused else {
            return Ok(());
        };
        at.reached.resumed += 1;
        let is_placed = self.core.as_ref().is_some_and(|core| {
            let decided = &core.record.decided().regions[region];
            decided.generation == key.1 && !core.is_to_end()
        });
        let is_present = is_placed && epoch == self.epoch;
        let is_saved = at.newest_snapshot(region).0 == aborted;
        let stop = stop_of(&at.record.requests).filter(|it| it.from <= paused);
        ensure(!is_present || !is_saved || stop.is_none(), || {
            format!("K11: region {region} goes on after {paused}, and the job stops with {stop:?}")
        })
    }
}
