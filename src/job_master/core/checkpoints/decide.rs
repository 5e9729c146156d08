//! The order of all decisions after each event and each deadline, and what follows from a write.
//!
//! Each step that is not the first says why it stands where it does.

use tanist_proto::v1 as pb;

use super::attempts::Counts;
use super::options::MAX_UNCOMMITTED;
use super::{CheckpointCore, Effect};
use crate::core::faults::{Fault, is_planted};

impl CheckpointCore {
    /// All decisions, after each event and each deadline, in one order.
    pub(super) fn decide(&mut self, now_ms: u64) {
        if self.record.is_over() {
            return;
        }
        if self.is_end_decided {
            let reason = "the end of the job is decided";
            let in_flight = self.regions.attempts().map(|(region, _)| region);
            for region in in_flight.collect::<Vec<_>>() {
                self.attempts(now_ms)
                    .abort(region, reason, Counts::NoFailure);
            }
        } else {
            self.attempts(now_ms).abort_overdue();
            // Before the next completion: it must not include a number that this step aborts.
            self.resume_sources(now_ms);
        }
        // Before the next write, which says so.
        self.fail_savepoints(now_ms);
        // After the aborts: a round ends with its last region. Before the next round, which begins when what is
        // complete is durable.
        self.complete(now_ms);
        self.begin_round(now_ms);
        // By the durable record alone, so it does not matter that a write may just have begun.
        self.commit(now_ms);
        // After the commits: all output of a checkpoint that is copied is visible.
        self.copy_savepoints();
        // By the durable outcome alone: until that is durable, the next leader may go on with the copy.
        self.discard_copies();
        // Last, and never before a completion.
        self.remove(now_ms);
    }

    /// Writes complete numbers, once the round is over or the next one is due; or reserves numbers, or records changed
    /// requests. While output of the newest checkpoint is not committed, complete numbers wait.
    fn complete(&mut self, now_ms: u64) {
        let is_busy = self.record.writing().is_some() || self.put.is_running();
        if is_busy || now_ms < self.put.retry_at_ms() {
            return;
        }
        let is_over = self.rounds.due_ms() <= now_ms || !self.rounds.is_open();
        let needs_write = !self.numbers.is_any_left() && !self.next_round(now_ms).is_empty()
            || self.have_requests_changed();
        let may_complete =
            !self.is_end_decided && !self.is_committing() && !self.is_last_complete();
        let finished = match may_complete {
            true => self.unrecorded_ends(),
            false => Vec::new(),
        };
        loop {
            let mut completing = self.completing();
            let complete = match may_complete && is_over {
                true => completing.complete(),
                false => Vec::new(),
            };
            if complete.is_empty() && finished.is_empty() {
                if needs_write {
                    completing.write_alone();
                }
                return;
            }
            let Err(too_large) = completing.build(&complete, &finished) else {
                return;
            };
            // Its number is aborted, so that the others complete without it.
            let region = too_large.region;
            self.attempts(now_ms)
                .abort(region, &too_large.reason, Counts::Failure);
        }
    }

    /// Begins a round if it is due or a request needs it, unless a write is under way: that raises the floor.
    fn begin_round(&mut self, now_ms: u64) {
        let is_busy = self.record.writing().is_some() || self.put.is_running();
        if is_busy || self.uncommitted() > MAX_UNCOMMITTED {
            return;
        }
        let regions = self.next_round(now_ms);
        if regions.is_empty() {
            return;
        }
        if let Some(number) = self.numbers.take() {
            self.numbers.put_in_flight(number);
            if self.rounds.due_ms() <= now_ms {
                self.rounds.begin(regions.iter().copied(), now_ms);
            } else {
                // A number that a request forces does not delay the next regular round.
                regions.iter().for_each(|it| self.rounds.join(*it));
            }
            for region in regions {
                self.attempts(now_ms).begin(region, number);
            }
        }
    }

    /// Regions that could take a number.
    pub(super) fn ready(&self, now_ms: u64) -> Vec<usize> {
        let takes = |place| self.links.takes_checkpoints(place);
        let ready = self.regions.idle().filter(|region| {
            let at = self.regions.get(*region);
            self.regions.is_ready(*region, now_ms) && at.by_task_manager().into_keys().all(takes)
        });
        ready.collect()
    }

    fn uncommitted(&self) -> usize {
        let newest = self.record.newest_manifest();
        let newest = newest.filter(|newest| newest.number > self.commits.done());
        newest.map_or(0, |newest| newest.uncommitted.len())
    }

    /// Whether the newest manifest lists output that is not committed. A later manifest would have to list it again,
    /// under a mark of its own, and two commits would make the same output visible.
    fn is_committing(&self) -> bool {
        self.uncommitted() > 0
    }

    fn commit(&mut self, now_ms: u64) {
        let Some(newest) = self.record.newest_manifest() else {
            return;
        };
        if newest.number <= self.commits.done() {
            return;
        }
        if newest.uncommitted.is_empty() {
            self.commits.skip(newest.number);
        } else if self.commits.begin(newest.number, now_ms) {
            self.out.push(Effect::Commit {
                number: newest.number,
                committables: newest.uncommitted.clone(),
            });
        }
    }

    fn remove(&mut self, now_ms: u64) {
        let is_busy = self.record.writing().is_some() || self.put.is_running();
        if is_busy && !is_planted(Fault::DeletionBeforeFloor) {
            return;
        }
        let is_settled = self.regions.are_all_settled();
        self.removal
            .begin(&self.record, is_settled, now_ms, &mut self.out);
    }

    pub(super) fn manifest_put(&mut self, object: pb::ManifestObject) {
        let Some(completion) = self.put.finish() else {
            return;
        };
        let is_end_decided = self.is_end_decided;
        let mut completing = self.completing();
        // Regions may have failed meanwhile. Then the next manifest is built without them.
        if completing.is_valid(&completion) && !is_end_decided {
            completing.write_put(completion, object);
        } else {
            self.removal.leave_manifest(object.name, &mut self.out);
        }
    }

    pub(super) fn written(&mut self, now_ms: u64, write: u64) {
        let Some(write) = self.record.confirm(write) else {
            return;
        };
        self.numbers.confirm(write.record.next);
        self.removal.record_changed(&write.record, write.forgotten);
        let requests = &write.record.requests;
        self.savepoints.confirm(requests, now_ms, &mut self.out);
        if write.committed_up_to > 0 {
            self.out.push(Effect::ForgetCommits {
                up_to: write.committed_up_to,
            });
        }
        if let Some(object) = write.left {
            self.removal.leave_manifest(object, &mut self.out);
        }
        let Some(completion) = write.completion else {
            return;
        };
        for (region, number) in &completion.regions {
            if self.in_flight(*region) == Some(*number) {
                self.regions.take_attempt(*region);
            }
            self.regions.reset_failures(*region);
        }
        self.forget_recorded_ends();
        self.rounds.end(now_ms);
        self.out.push(Effect::Completed {
            number: completion.manifest.number,
            regions: completion.regions.iter().map(|it| it.0).collect(),
        });
    }

    /// Aborts the numbers of snapshots that could not be written.
    pub(super) fn give_up(&mut self, now_ms: u64, regions: &[(usize, u64)], reason: &str) {
        self.put.hold(now_ms);
        for (region, _) in regions {
            self.attempts(now_ms)
                .abort(*region, reason, Counts::Failure);
        }
    }

    /// Regions that have durably finished, and whose end is in no manifest.
    pub(super) fn unrecorded_ends(&self) -> Vec<usize> {
        let topology = self.regions.topology();
        let unrecorded = self.regions.unrecorded().filter(|region| {
            let takes_part = topology.not_checkpointed(*region).is_none();
            takes_part && !self.is_end_recorded(*region)
        });
        unrecorded.collect()
    }

    fn is_end_recorded(&self, region: usize) -> bool {
        let generation = self.regions.get(region).generation();
        self.record.snapshot(region).is_some_and(|snapshot| {
            let mut subtasks = snapshot.subtasks.iter();
            snapshot.generation == generation && subtasks.all(|subtask| subtask.ended)
        })
    }

    /// The record has changed: finished regions whose end it has are not examined any more.
    pub(super) fn forget_recorded_ends(&mut self) {
        let unrecorded = self.regions.unrecorded();
        let recorded = unrecorded.filter(|region| self.is_end_recorded(*region));
        for region in recorded.collect::<Vec<_>>() {
            self.regions.record_end(region);
        }
    }
}
