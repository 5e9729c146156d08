//! Fills in what the tasks of a deployment are restored from: a snapshot of their region, or the origin of the job.
//!
//! The origin is of another job, so the snapshot of each task is computed from the origin's manifest and the graph.
//! That is done once, at the first deployment that needs it; `Checkpoints` owns the result. If something is missing or
//! does not fit, nothing is deployed, and the region fails.

use std::sync::Arc;

use tanist_ha::blob::CheckpointStorage;
use tanist_model::restore;
use tanist_proto::v1 as pb;

use super::Checkpoints;
use crate::actor::JobMasterActor;
use crate::core::{self, KeptGraph};

/// The snapshots that the origin has for the tasks of the graph, in the order of the vertices and their subtasks.
pub(super) type Redistributed = Arc<Vec<pb::SubtaskSnapshot>>;

/// A region that can't be restored, and why.
type Unrestored = (usize, String);

impl Checkpoints {
    /// Fills in what the tasks of a deployment are restored from.
    fn restore(
        &mut self,
        tasks: &mut [pb::TaskDeployment],
        graph: &KeptGraph,
        now_ms: u64,
    ) -> Result<(), Unrestored> {
        for task in tasks {
            let Some(restore) = &mut task.restore else {
                continue;
            };
            let region = usize::try_from(task.region).unwrap_or(usize::MAX);
            let is_of_task = |it: &&pb::SubtaskSnapshot| {
                it.vertex_id == task.vertex_id && it.subtask == task.subtask
            };
            let own = self.core.snapshot(region);
            let own = own.filter(|snapshot| snapshot.number == restore.number);
            let of_task = match own {
                Some(snapshot) => snapshot.subtasks.iter().find(is_of_task).cloned(),
                None => {
                    let (redistributed, directory) =
                        self.of_origin(restore.number, graph, region)?;
                    restore.directory = directory;
                    redistributed.iter().find(is_of_task).cloned()
                }
            };
            restore.snapshot = Some(of_task.ok_or_else(|| missing(region))?);
            self.history.restored(restore, now_ms);
        }
        Ok(())
    }

    /// The snapshots that the origin has for the tasks of the graph, and the directory of its objects.
    fn of_origin(
        &mut self,
        number: u64,
        graph: &KeptGraph,
        region: usize,
    ) -> Result<(Redistributed, String), Unrestored> {
        let origin = self.core.origin();
        let origin = origin.filter(|(origin, _)| origin.number == number);
        let (origin, manifest) = origin.ok_or_else(|| missing(region))?;
        let directory = origin.directory.clone();
        let redistributed = match &self.redistributed {
            Some(redistributed) => redistributed.clone(),
            None => {
                let redistributed = restore::redistribute(manifest, &graph.get());
                Arc::new(redistributed.map_err(|mismatch| (region, mismatch.to_string()))?)
            }
        };
        self.redistributed = Some(redistributed.clone());
        Ok((redistributed, directory))
    }
}

fn missing(region: usize) -> Unrestored {
    let cause = "the snapshot that it is restored from is missing".to_owned();
    (region, cause)
}

impl JobMasterActor {
    /// Fills in where the tasks of a deployment keep their objects, and what they are restored from. Returns whether
    /// they may be deployed.
    pub(crate) fn restore_tasks(&mut self, tasks: &mut [pb::TaskDeployment]) -> bool {
        let storage = self.checkpoints.as_ref().and_then(|it| it.storage.as_ref());
        if let Some(storage) = storage.and_then(CheckpointStorage::storage) {
            tasks
                .iter_mut()
                .for_each(|task| task.storage.clone_from(&storage));
        }
        if tasks.iter().all(|task| task.restore.is_none()) {
            return true;
        }
        let now_ms = self.now_ms();
        let restored = match &mut self.checkpoints {
            Some(checkpoints) => checkpoints.restore(tasks, self.core.graph(), now_ms),
            None => Err(missing(0)),
        };
        let Err((region, cause)) = restored else {
            return true;
        };
        let job = &self.calls.job.job_id;
        tracing::error!(job, region, cause, "a region can't be restored");
        let failed = core::Event::CheckpointsFailed { region, cause };
        self.exchange.answers.push_back(failed);
        false
    }
}
