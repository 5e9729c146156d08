//! What a task is restored from, as its deployment says it.

use tanist_proto::v1::{Committable, SubtaskSnapshot, TaskDeployment};

use super::plan::PlanError;

/// Where a task begins.
#[derive(Debug, PartialEq)]
pub(super) enum Beginning {
    /// From the start.
    Start,
    /// Behind what this snapshot covers.
    Snapshot(Box<SubtaskSnapshot>),
    /// It had ended: it has nothing left to do, and this is the output of its sinks.
    Ended(Vec<Committable>),
}

impl Beginning {
    /// Takes it out of the deployment: the contents may be large, and only the operators need them.
    pub(super) fn take(deployment: &mut TaskDeployment) -> Result<Beginning, PlanError> {
        let Some(restore) = deployment.restore.take() else {
            return Ok(Beginning::Start);
        };
        let mismatch = |reason: String| {
            let number = restore.number;
            PlanError::Mismatch(format!(
                "it can't be restored from checkpoint {number}: {reason}"
            ))
        };
        let Some(snapshot) = restore.snapshot else {
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
            true => Beginning::Ended(snapshot.output),
            false => Beginning::Snapshot(Box::new(snapshot)),
        })
    }
}

#[cfg(test)]
mod tests {
    use tanist_proto::v1::TaskRestore;

    use super::*;

    fn beginning(snapshot: Option<SubtaskSnapshot>) -> Result<Beginning, PlanError> {
        let mut deployment = TaskDeployment {
            vertex_id: "v".to_owned(),
            subtask: 1,
            restore: Some(TaskRestore {
                number: 3,
                snapshot,
                directory: String::new(),
            }),
            ..TaskDeployment::default()
        };
        let beginning = Beginning::take(&mut deployment);
        assert_eq!(deployment.restore, None);
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
        let ended = beginning(Some(snapshot("v", 1, true)));
        assert_eq!(ended.expect("valid"), Beginning::Ended(Vec::new()));
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
