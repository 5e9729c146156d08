//! Where a task begins, by its deployment: at the start, behind a snapshot, or at its end. Pure. A snapshot that is
//! missing, or of another subtask, is a [`PlanError`].

use tanist_proto::v1::{SubtaskSnapshot, TaskDeployment};

use super::plan::PlanError;
use crate::operator::SinkOutput;

/// Where a task begins.
#[derive(Debug, PartialEq)]
pub(super) enum Beginning {
    /// From the start.
    Start,
    /// Behind what this snapshot covers.
    Snapshot(Box<SubtaskSnapshot>),
    /// It had ended: it has nothing left to do, and this is the output of its sinks.
    Ended(SinkOutput),
}

/// The number of the checkpoint that the deployment restores the task from, if that is one of its job: then later
/// snapshots may name its objects. Those of a savepoint are not the job's.
pub(super) fn own_number(deployment: &TaskDeployment) -> Option<u64> {
    let restore = deployment.restore.as_ref()?;
    restore.directory.is_empty().then_some(restore.number)
}

impl Beginning {
    /// Takes the snapshot out of the deployment: it may be large, and only the operators need it.
    pub(super) fn take(deployment: &mut TaskDeployment) -> Result<Beginning, PlanError> {
        let Some(restore) = &mut deployment.restore else {
            return Ok(Beginning::Start);
        };
        let mismatch = |reason: String| {
            let number = restore.number;
            PlanError::Mismatch(format!(
                "it can't be restored from checkpoint {number}: {reason}"
            ))
        };
        let Some(snapshot) = restore.snapshot.take() else {
            return Err(mismatch("there is no snapshot of it".to_owned()));
        };
        let own = (&*deployment.vertex_id, deployment.subtask);
        let (vertex, subtask) = (&*snapshot.vertex_id, snapshot.subtask);
        if (vertex, subtask) != own {
            return Err(mismatch(format!(
                "the snapshot is of {vertex} subtask {subtask}"
            )));
        }
        Ok(match snapshot.ended {
            true => Beginning::Ended(SinkOutput {
                committables: snapshot.output,
                checkpoint_committables: snapshot.committables,
            }),
            false => Beginning::Snapshot(Box::new(snapshot)),
        })
    }
}

#[cfg(test)]
mod tests {
    use tanist_proto::v1::{CheckpointCommittable, Committable, TaskRestore};

    use super::*;

    fn beginning(snapshot: Option<SubtaskSnapshot>) -> Result<Beginning, PlanError> {
        let mut deployment = TaskDeployment {
            vertex_id: "v".to_owned(),
            subtask: 1,
            restore: Some(TaskRestore {
                number: 3,
                snapshot,
                ..TaskRestore::default()
            }),
            ..TaskDeployment::default()
        };
        let beginning = Beginning::take(&mut deployment);
        let left = deployment.restore.expect("its number stays");
        assert_eq!((left.number, left.snapshot), (3, None));
        beginning
    }

    fn snapshot(vertex_id: &str, subtask: u32, ended: bool) -> SubtaskSnapshot {
        SubtaskSnapshot {
            vertex_id: vertex_id.to_owned(),
            subtask,
            ended,
            ..SubtaskSnapshot::default()
        }
    }

    #[test]
    fn a_task_begins_at_the_start_at_its_snapshot_or_at_its_end() {
        let start = Beginning::take(&mut TaskDeployment::default());
        assert_eq!(start.expect("valid"), Beginning::Start);
        let saved = snapshot("v", 1, false);
        let expected = Beginning::Snapshot(Box::new(saved.clone()));
        assert_eq!(beginning(Some(saved)).expect("valid"), expected);
        let ended = SubtaskSnapshot {
            output: vec![Committable::default()],
            committables: vec![CheckpointCommittable::default(); 2],
            ..snapshot("v", 1, true)
        };
        let output = SinkOutput {
            committables: ended.output.clone(),
            checkpoint_committables: ended.committables.clone(),
        };
        let ended = beginning(Some(ended));
        assert_eq!(ended.expect("valid"), Beginning::Ended(output));
    }

    #[test]
    fn a_snapshot_that_is_missing_or_of_another_subtask_is_refused() {
        for wrong in [
            None,
            Some(snapshot("v", 0, false)),
            Some(snapshot("w", 1, true)),
        ] {
            let error = beginning(wrong).expect_err("refused");
            assert!(error.to_string().contains("checkpoint 3"), "{error}");
        }
    }
}
