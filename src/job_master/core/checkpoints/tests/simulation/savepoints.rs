//! Savepoints of the world: clients ask, checkpoints are copied, jobs stop; and the origin that a job begins from.
//!
//! K11 is checked here: an acknowledged request has an outcome in the end, which never changes and says why there is no
//! savepoint; what is copied is complete, and everything that it lists is visible; a job that stops with a savepoint
//! has shown nothing that the savepoint does not have; paused sources go on unless the job stops.

use std::collections::BTreeMap;

use tanist_gateway::savepoints::is_open;
use tanist_proto::v1 as pb;

use super::super::super::requests::{KEPT, stop_of};
use super::super::super::{Effect, Event, stops_with};
use super::execution::{Execution, Life, number};
use super::invariants::{Checked, ensure, k5_named_objects_exist};
use super::world::{Placement, World};

impl World {
    /// The job may begin from a savepoint, or with a copy of the checkpoint of another job.
    pub(super) fn draw_origin(&mut self) {
        if !self.extra.one_in(3) {
            return;
        }
        let origin = self.extra.between(1, 30);
        let owned = self.extra.one_in(2);
        let mut regions = Vec::new();
        for region in 0..self.regions.len() {
            let sources = self.sources_of(region);
            let positions: Vec<u64> = (0..sources).map(|_| self.extra.between(0, 3)).collect();
            let mut subtasks = Vec::new();
            for (index, task) in self.regions[region].iter().enumerate() {
                let object = format!("{}-1-{:016x}", origin, self.extra.next());
                if owned {
                    self.objects.insert(object.clone());
                }
                let position = positions.get(index).copied().unwrap_or_default();
                if index < sources {
                    self.origin_positions.insert(*task, position);
                }
                let counts = positions.iter().flat_map(|it| it.to_le_bytes());
                subtasks.push(pb::SubtaskSnapshot {
                    vertex_id: format!("t{task}"),
                    positions: vec![pb::SourcePosition {
                        uid: "position".to_owned(),
                        position: position.to_le_bytes().to_vec(),
                        ..pb::SourcePosition::default()
                    }],
                    operators: vec![pb::OperatorState {
                        uid: "counts".to_owned(),
                        name: String::new(),
                        content: counts.collect(),
                        ..pb::OperatorState::default()
                    }],
                    segments: vec![pb::StateSegment {
                        object,
                        length: 10,
                        ..pb::StateSegment::default()
                    }],
                    ..pb::SubtaskSnapshot::default()
                });
            }
            regions.push(pb::RegionSnapshot {
                kind: pb::RegionSnapshotKind::Taken.into(),
                number: origin,
                generation: u64::from(!owned),
                subtasks,
            });
        }
        let bytes = tanist_proto::manifest::encode(&pb::CheckpointManifest {
            job_id: if owned { "job" } else { "another" }.to_owned(),
            number: origin,
            regions,
            ..pb::CheckpointManifest::default()
        });
        let place = match self.extra.one_in(2) {
            true => pb::stored_manifest::Place::Inline(bytes),
            false => {
                let name = format!("manifest-{origin}-a");
                let length = bytes.len() as u64;
                self.manifests.insert(name.clone(), bytes);
                pb::stored_manifest::Place::Object(pb::ManifestObject { name, length })
            }
        };
        let manifest = Some(pb::StoredManifest { place: Some(place) });
        let mut record = pb::JobCheckpoints {
            job_id: "job".to_owned(),
            next: origin + 1,
            floor: origin + 1,
            ..pb::JobCheckpoints::default()
        };
        match owned {
            true => record.retained.push(pb::CompletedCheckpoint {
                number: origin,
                manifest,
                committed: true,
                ..pb::CompletedCheckpoint::default()
            }),
            false => {
                record.origin = Some(pb::CheckpointOrigin {
                    number: origin,
                    manifest,
                    directory: "/savepoint".to_owned(),
                });
            }
        }
        self.record = std::sync::Arc::new(record);
    }

    /// A client asks a leader for a savepoint, perhaps once more.
    pub(super) fn ask_savepoint(&mut self, may_stop: bool) -> Checked {
        let leader = self.any_leader();
        if !self.extra.one_in(4) {
            self.asked += 1;
        }
        let stop = may_stop && self.extra.one_in(3);
        let request = pb::TriggerSavepointRequest {
            job_id: "job".to_owned(),
            trigger_id: format!("s{}", self.asked),
            directory: "/savepoints".to_owned(),
            stop,
        };
        let at_ms = self.now_ms;
        self.hear(leader, Event::SavepointRequested { request, at_ms })?;
        Ok(())
    }

    /// A request was answered.
    pub(super) fn check_answer(&mut self, id: &str, answer: &Result<(), String>) -> Checked {
        match answer {
            Ok(()) => {
                let requests = &self.record.requests;
                let is_known = requests.iter().any(|it| it.trigger_id == *id);
                self.acknowledged.insert(id.to_owned());
                ensure(is_known || requests.len() >= KEPT, || {
                    format!("K11: request {id} is acknowledged, and not durable")
                })
            }
            Err(reason) => ensure(!reason.is_empty(), || {
                format!("K11: request {id} is refused without a reason")
            }),
        }
    }

    /// A copy begins.
    pub(super) fn check_copy(&self, number: u64) -> Checked {
        let mut uncommitted = self.uncommitted_parts.iter();
        let uncommitted = uncommitted.find(|(_, listed)| **listed <= number);
        ensure(uncommitted.is_none(), || {
            format!("K11: checkpoint {number} is copied before {uncommitted:?} is committed")
        })
    }

    /// A copy is discarded. No later leader goes on with it.
    pub(super) fn check_discard(&self, id: &str) -> Checked {
        let mut requests = self.record.requests.iter();
        let request = requests.find(|it| it.trigger_id == *id);
        let has_failed = |it: &pb::SavepointRequest| it.progress() == pb::SavepointProgress::Failed;
        ensure(request.is_none_or(has_failed), || {
            format!("K11: the copy of {id} is discarded, and it has not durably failed")
        })
    }

    /// The outcome of a copy, after it was made from what there is.
    pub(super) fn copy(&mut self, effect: &Effect, fails: bool) -> Result<Event, String> {
        let Effect::CopySavepoint {
            trigger_id, number, ..
        } = effect
        else {
            unreachable!("{effect:?} is no copy");
        };
        let is_it = |it: &pb::SavepointRequest| {
            it.trigger_id == *trigger_id && it.progress() == pb::SavepointProgress::Copying
        };
        let is_wanted = self.record.requests.iter().any(is_it);
        let outcome = if !is_wanted {
            Err("a later leader has decided about it".to_owned())
        } else if fails || self.extra.one_in(3) {
            Err("no space is left".to_owned())
        } else {
            let manifests = self.retained_manifests();
            let copied = manifests.iter().find(|it| it.number == *number);
            let copied = copied.ok_or_else(|| {
                format!("K11: checkpoint {number} is copied, and is not retained")
            })?;
            k5_named_objects_exist(std::iter::once(&**copied), &self.objects)?;
            self.reached.copied += 1;
            Ok(format!("/savepoints/{trigger_id}"))
        };
        Ok(Event::SavepointCopied {
            trigger_id: trigger_id.clone(),
            outcome,
        })
    }

    /// What a write says of requests.
    pub(super) fn check_requests(&self, record: &pb::JobCheckpoints) -> Checked {
        for before in &self.record.requests {
            let id = &before.trigger_id;
            let after = record.requests.iter().find(|it| it.trigger_id == *id);
            let is_left = after.is_some() || record.requests.len() >= KEPT && !is_open(before);
            ensure(is_left, || format!("K11: request {id} is forgotten"))?;
            let is_final = after.is_none_or(|after| is_open(before) || after == before);
            ensure(is_final, || format!("K11: the outcome of {id} changes"))?;
        }
        for request in &record.requests {
            let id = &request.trigger_id;
            let has_words = is_open(request) || !request.outcome.is_empty();
            ensure(has_words, || format!("K11: {id} does not say why"))?;
            let is_copied = request.progress() == pb::SavepointProgress::Copying;
            let mut retained = record.retained.iter();
            let is_there = !is_copied || retained.any(|it| it.number == request.number);
            ensure(is_there, || {
                format!("K11: checkpoint {} of {id} is not retained", request.number)
            })?;
        }
        Ok(())
    }

    /// A job that stops with a savepoint has shown nothing that the savepoint does not have.
    pub(super) fn check_stop(&self) -> Checked {
        if stops_with(&self.record).is_none() {
            return Ok(());
        }
        let last = stop_of(&self.record.requests).map_or(0, |stop| stop.number);
        let mut positions: BTreeMap<String, u64> = BTreeMap::new();
        let manifests = self.retained_manifests();
        let Some(manifest) = manifests.iter().find(|it| it.number == last) else {
            return Ok(());
        };
        for (region, snapshot) in manifest.regions.iter().enumerate() {
            for (task, subtask) in self.regions[region].iter().zip(&snapshot.subtasks) {
                let position = match subtask.ended {
                    true => self
                        .last_positions
                        .get(&(*task, snapshot.generation))
                        .copied(),
                    false => Some(number(&subtask.positions[0].position)),
                };
                positions.insert(task.to_string(), position.unwrap_or_default());
            }
        }
        for (sink, record) in self.committed_records.keys() {
            let (source, at) = record.split_once('.').expect("a record of a source");
            let at: u64 = at.parse().expect("a number");
            ensure(at < positions[source], || {
                format!(
                    "K11: the job stops with savepoint {last}, and {sink} has shown {record} after it"
                )
            })?;
        }
        Ok(())
    }

    /// Sources that were told that a number is aborted go on. While the job stops, none is told so of the snapshot that
    /// its region has, unless its leader has given the region up. A later number may be aborted: it is triggered again.
    pub(super) fn resume(&mut self, leader: usize, at: usize, aborted: u64) -> Checked {
        let execution = &self.executions[at];
        let (region, generation) = (execution.region, execution.generation);
        let Some(paused) = execution.paused_behind.filter(|it| *it <= aborted) else {
            return Ok(());
        };
        self.executions[at].paused_behind = None;
        self.reached.resumed += 1;
        let placement = self.leaders[leader].placements[region];
        let is_placed = matches!(placement, Placement::Awaited | Placement::Placed { .. });
        let is_stored = generation == self.stored[region].generation;
        let is_present = is_placed && is_stored && !self.is_end_decided;
        let is_saved = self.newest_snapshot(region).0 == aborted;
        let stop = stop_of(&self.record.requests).filter(|it| it.from <= paused);
        ensure(!is_present || !is_saved || stop.is_none(), || {
            format!("K11: region {region} goes on after {paused}, and the job stops with {stop:?}")
        })
    }

    /// Once everything is told, no source pauses unless the job stops.
    pub(super) fn check_paused(&self) -> Checked {
        if stop_of(&self.record.requests).is_some() {
            return Ok(());
        }
        let pauses = |it: &&Execution| {
            let is_present = it.generation == self.stored[it.region].generation;
            is_present && it.life == Life::Running && it.paused_behind.is_some()
        };
        let paused = self.executions.iter().find(pauses);
        ensure(paused.is_none(), || {
            let task = paused.map(|it| (it.task, it.paused_behind));
            format!("K11: a source pauses, and the job does not stop: {task:?}")
        })
    }

    /// The JobMaster ends the job once the savepoint that it stops with is complete.
    pub(super) fn end_if_stopped(&mut self, leader: usize) -> Checked {
        let durable = self.leaders[leader].core.durable();
        let is_stopped = stops_with(durable).is_some() && leader == self.present();
        if is_stopped && !self.is_end_decided {
            self.is_end_decided = true;
            self.reached.stopped += 1;
            self.hear(leader, Event::EndDecided)?;
        }
        Ok(())
    }

    /// With the job's result, each acknowledged request has an outcome.
    pub(super) fn check_outcomes(&self) -> Checked {
        for id in &self.acknowledged {
            let mut requests = self.record.requests.iter();
            let request = requests.find(|it| it.trigger_id == *id);
            let is_told = request.is_none_or(|it| !is_open(it));
            ensure(is_told, || format!("K11: request {id} has no outcome"))?;
        }
        self.check_stop()
    }
}
