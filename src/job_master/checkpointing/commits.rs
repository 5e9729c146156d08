//! Commits the output that durable manifests list, and removes marks and pending files that are not needed any more.
//!
//! Invariants: one commit runs at a time, as the core begins one; only files of generations below that of a durable
//! snapshot are removed, and none that a retained manifest names. A removal of marks that fails is repeated after the
//! next write of the record, one of files after the next checkpoint of its regions, both once after a takeover. What
//! is left is found by the cleanup after the job.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use prost::Message as _;
use tanist_ha::failpoint::failpoint;
use tanist_model::operators::FileSink;
use tanist_proto::v1 as pb;

use super::Checkpoints;
use crate::actor::{JobMasterActor, job_id};
use crate::calls::Done;
use crate::core::checkpoints::Event;
use crate::core::{self, CommitProgress};
use crate::options::{CommitError, SinkCommitter, Superseded};

/// What is known of the files that sinks have left.
#[derive(Debug)]
pub(super) struct SinkFiles {
    /// The directories of the job's file sinks.
    sinks: Arc<pb::SinkDirectories>,
    /// The newest checkpoint whose mark may exist; marks of earlier JobMasters count as 0.
    marked: Option<u64>,
    /// By region, the generation below which files were removed.
    below: BTreeMap<usize, u64>,
    /// The job may have files of another job that has ended: the checkpoint that this job began with names them.
    has_received: bool,
}

impl SinkFiles {
    pub(super) fn new(sinks: pb::SinkDirectories, has_received: bool) -> SinkFiles {
        SinkFiles {
            marked: (!sinks.paths.is_empty()).then_some(0),
            sinks: Arc::new(sinks),
            below: BTreeMap::new(),
            has_received,
        }
    }
}

impl Checkpoints {
    /// The generations whose files can be removed: after a snapshot of a higher generation of one of these regions, or
    /// once no retained manifest names a snapshot that the job began with.
    fn superseded(&mut self, regions: &[usize]) -> Option<Superseded> {
        if self.files.sinks.paths.is_empty() {
            return None;
        }
        let mut below = BTreeMap::new();
        for region in regions {
            let Some(snapshot) = self.core.snapshot(*region) else {
                continue;
            };
            let generation = snapshot.generation;
            let before = self.files.below.insert(*region, generation);
            if generation <= before.unwrap_or(1) {
                continue;
            }
            let tasks = snapshot.subtasks.iter();
            below.extend(tasks.map(|it| ((it.vertex_id.clone(), it.subtask), generation)));
        }
        let is_received_last = self.files.has_received && !self.names_a_beginning();
        self.files.has_received &= !is_received_last;
        (is_received_last || !below.is_empty()).then(|| Superseded {
            below,
            kept: self.named_files(),
        })
    }

    /// Whether a retained manifest has a snapshot that no attempt of this job has taken.
    fn names_a_beginning(&self) -> bool {
        let retained = self.core.durable().retained.iter();
        let mut manifests = retained.filter_map(|it| self.core.manifest(it.number));
        manifests.any(|manifest| {
            let mut regions = manifest.regions.iter();
            let is_taken = |it: &pb::RegionSnapshot| it.kind() == pb::RegionSnapshotKind::Taken;
            regions.any(|region| is_taken(region) && region.generation == 0)
        })
    }

    /// The files that retained manifests name.
    fn named_files(&self) -> BTreeSet<Vec<u8>> {
        let mut named = BTreeSet::new();
        let retained = self.core.durable().retained.iter();
        for manifest in retained.filter_map(|it| self.core.manifest(it.number)) {
            named.extend(manifest.uncommitted.iter().filter_map(pending_file));
            let subtasks = manifest.regions.iter().flat_map(|it| &it.subtasks);
            for subtask in subtasks {
                named.extend(subtask.files.iter().cloned());
                named.extend(subtask.committables.iter().filter_map(pending_file));
                let output = subtask.output.iter();
                named.extend(output.map(|it| it.pending_path.clone().into_bytes()));
            }
        }
        named
    }
}

/// The file of a committable, if it is one of a file sink.
fn file_of(committable: &pb::CheckpointCommittable) -> Option<pb::Committable> {
    let file = (committable.kind == FileSink::OUTPUT).then_some(&*committable.content)?;
    pb::Committable::decode(file).ok()
}

/// The pending file of a committable, if it is one of a file sink.
fn pending_file(committable: &pb::CheckpointCommittable) -> Option<Vec<u8>> {
    Some(file_of(committable)?.pending_path.into_bytes())
}

impl JobMasterActor {
    pub(super) fn commit_checkpoint(
        &mut self,
        number: u64,
        committables: Vec<pb::CheckpointCommittable>,
    ) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.files.marked = Some(number);
        }
        self.answer_commit(CommitProgress::Began);
        let committer = self.calls.committer.clone();
        let process = self.calls.sender.process.clone();
        self.io
            .spawn(commit(committer, process, number, committables));
    }

    /// Takes the outcome of a commit. One that can never succeed fails the job and is not repeated.
    pub(crate) fn note_committed(&mut self, number: u64, progress: CommitProgress) {
        match progress {
            CommitProgress::Done => self.tell_checkpoints(Event::Committed { number }),
            CommitProgress::Failed(_) => self.tell_checkpoints(Event::CommitFailed { number }),
            CommitProgress::Began
            | CommitProgress::Refused(_)
            | CommitProgress::Unrecorded(_)
            | CommitProgress::Recorded => {}
        }
        self.answer_commit(progress);
        self.settle_checkpoints();
    }

    /// Reports to the job's core whether the record of the checkpoints can be written, if that has changed.
    pub(crate) fn note_recorded(&mut self, event: &Event) {
        let refusal = match event {
            Event::Written { .. } => None,
            Event::WriteRefused { reason, .. } => Some(reason.clone()),
            _ => return,
        };
        let Some(checkpoints) = &mut self.checkpoints else {
            return;
        };
        if checkpoints.refusal != refusal {
            checkpoints.refusal.clone_from(&refusal);
            self.answer_commit(
                refusal.map_or(CommitProgress::Recorded, CommitProgress::Unrecorded),
            );
        }
    }

    fn answer_commit(&mut self, progress: CommitProgress) {
        let event = core::Event::CheckpointCommit(progress);
        self.exchange.answers.push_back(event);
    }

    /// Removes the marks of commits that the record says are done.
    pub(super) fn forget_commits(&mut self, up_to: u64) {
        let Some(checkpoints) = &mut self.checkpoints else {
            return;
        };
        let files = &mut checkpoints.files;
        if files.marked.take_if(|marked| *marked <= up_to).is_none() {
            return;
        }
        let (sinks, committer) = (files.sinks.clone(), self.calls.committer.clone());
        let job = job_id(&self.calls.job.job_id);
        self.io.spawn(async move {
            match committer.forget_marks(&sinks, job, up_to).await {
                Ok(()) => Done::Nothing,
                Err(reason) => {
                    tracing::warn!(%job, up_to, reason, "marks of commits can't be removed; it is tried again");
                    Done::MarksLeft
                }
            }
        });
    }

    /// Removes pending files of attempts that these regions' new snapshots supersede.
    pub(super) fn remove_superseded(&mut self, regions: &[usize]) {
        let Some(checkpoints) = &mut self.checkpoints else {
            return;
        };
        let had_received = checkpoints.files.has_received;
        let Some(superseded) = checkpoints.superseded(regions) else {
            return;
        };
        let received = had_received && !checkpoints.files.has_received;
        let (sinks, committer) = (
            checkpoints.files.sinks.clone(),
            self.calls.committer.clone(),
        );
        let job = job_id(&self.calls.job.job_id);
        let regions = regions.to_vec();
        self.io.spawn(async move {
            let removed = committer.remove_superseded(&sinks, job, &superseded).await;
            match removed {
                Ok(()) => Done::Nothing,
                Err(reason) => {
                    tracing::warn!(%job, reason, "files of earlier attempts can't be removed; it is tried again");
                    Done::FilesLeft { regions, received }
                }
            }
        });
    }

    /// Marks could not be removed: the next removal includes them.
    pub(crate) fn note_marks_left(&mut self) {
        if let Some(checkpoints) = &mut self.checkpoints {
            // 0 is below each number, so the next removal has them. If a later commit left a mark, its number stays.
            checkpoints.files.marked.get_or_insert(0);
        }
    }

    /// Files of earlier attempts of these regions could not be removed: their next checkpoint removes them. `received`:
    /// those of another job neither.
    pub(crate) fn note_files_left(&mut self, regions: &[usize], received: bool) {
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.files.has_received |= received;
            let below = &mut checkpoints.files.below;
            below.retain(|region, _| !regions.contains(region));
        }
    }
}

/// The sinks into whose directories a failed commit wanted to write, by the longest paths of directories in its reason;
/// all of them if it names none.
fn failed_sinks(committables: &[pb::CheckpointCommittable], reason: &str) -> String {
    // Length of the directory of a path, if the reason has it in quotes, alone or in front of a file.
    let named = |path: &str| {
        let directory = Path::new(path).parent().and_then(Path::to_str)?;
        let mut ends = ["/", "\""].into_iter();
        let is_named = ends.any(|end| reason.contains(&format!("\"{directory}{end}")));
        is_named.then_some(directory.len())
    };
    let by_reason = committables.iter().map(|committable| {
        let file = file_of(committable);
        let length = file.and_then(|it| named(&it.pending_path).max(named(&it.final_path)));
        (committable.uid.as_str(), length)
    });
    let by_reason: Vec<(&str, Option<usize>)> = by_reason.collect();
    // If the reason names none, each has the longest, which is `None`.
    let longest = by_reason.iter().map(|(_, length)| *length).max().flatten();
    let failed = by_reason.iter().filter(|(_, length)| *length == longest);
    let sinks: BTreeSet<&str> = failed.map(|(uid, _)| *uid).collect();
    sinks.into_iter().collect::<Vec<_>>().join(", ")
}

/// Makes the output of a checkpoint visible. `process`: the name of this JobManager, for messages.
async fn commit(
    committer: Arc<dyn SinkCommitter>,
    process: String,
    number: u64,
    committables: Vec<pb::CheckpointCommittable>,
) -> Done {
    let committed = committer.commit_checkpoint(number, &committables).await;
    let place = match process.as_str() {
        "" => String::new(),
        process => format!(", on JobManager {process}"),
    };
    let of_sinks = |reason: String| {
        let sinks = failed_sinks(&committables, &reason);
        format!("checkpoint {number}, sinks {sinks}{place}: {reason}")
    };
    let progress = match committed {
        Ok(()) => {
            failpoint("checkpoint.committed").await;
            CommitProgress::Done
        }
        Err(CommitError::Failed(reason)) => {
            let reason = of_sinks(reason);
            tracing::warn!(reason, "committing a checkpoint failed; it is tried again");
            CommitProgress::Failed(reason)
        }
        Err(CommitError::Refused(reason)) => CommitProgress::Refused(of_sinks(reason)),
    };
    Done::CheckpointCommitted { number, progress }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_commit_names_the_sinks_whose_directories_are_in_its_reason() {
        let part = |uid: &str, directory: &str| pb::CheckpointCommittable {
            uid: uid.to_owned(),
            kind: FileSink::OUTPUT.to_owned(),
            content: pb::Committable {
                pending_path: format!("{directory}/.tanist/1-r/a.pending"),
                final_path: format!("{directory}/part-a"),
            }
            .encode_to_vec(),
        };
        let parts = [
            part("b", "/out/b"),
            part("a", "/out/a"),
            part("ab", "/out/ab"),
        ];
        let failed = |reason: &str| failed_sinks(&parts, reason);
        let moved = r#"can't move to "/out/a/part-a": Read-only file system"#;
        assert_eq!(failed(moved), "a");
        let marked = r#"can't write to "/out/b/.tanist/1-r": Permission denied"#;
        assert_eq!(failed(marked), "b");
        let synced = r#"can't sync "/out/ab": it is gone"#;
        assert_eq!(failed(synced), "ab");
        assert_eq!(failed("the file system hangs"), "a, ab, b");
    }
}
