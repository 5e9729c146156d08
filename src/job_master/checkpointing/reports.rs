//! Translates what TaskExecutors report about checkpoints, and answers their reports.

use std::sync::Arc;

use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::blob::CheckpointStorage;
use tanist_proto::pieces::{Piece, pieces};
use tanist_proto::v1 as pb;

use crate::actor::JobMasterActor;
use crate::core::checkpoints::{Event, TaskProgress, TaskReport};
use crate::core::{Connection, JobMasterCore};

/// The options for the place of objects, for people.
const OPTIONS: &str = "`execution.checkpointing.dir` or `high-availability.storageDir`";

/// Why this JobMaster can't find the objects that a task has just written: they are in another storage. None: it can,
/// or the task has written none.
fn misplacement(own: Option<&CheckpointStorage>, report: &pb::CheckpointReport) -> Option<String> {
    let snapshot = report.snapshot.as_ref()?;
    let of_number = format!("{}-", report.highest);
    let mut objects = pieces(snapshot).filter_map(Piece::object);
    if !objects.any(|object| object.starts_with(&of_number)) {
        return None;
    }
    let name = own.and_then(CheckpointStorage::storage);
    let theirs = report.storage.as_str();
    let place = own.map_or_else(|| "none".to_owned(), CheckpointStorage::location);
    if own.is_some_and(CheckpointStorage::is_guarded) && name.is_none() {
        return Some(format!(
            "the JobManager can't use {place} yet: see {OPTIONS}"
        ));
    }
    (name.as_deref().unwrap_or_default() != theirs).then(|| {
        format!(
            "its state is in another storage than that of the JobManager, {place}: configure the same directory on all \
             hosts, see {OPTIONS}"
        )
    })
}

/// A report as the checkpoints take it. None: the job has no such task.
fn task_report(core: &JobMasterCore, report: pb::CheckpointReport) -> Option<TaskReport> {
    let execution = report.execution.as_ref()?;
    let task = core.find(&execution.vertex_id, execution.subtask)?;
    let generation = execution.generation;
    let progress = match report.progress() {
        pb::CheckpointProgress::Unheard => TaskProgress::Unheard,
        pb::CheckpointProgress::Blocked => TaskProgress::Blocked,
        pb::CheckpointProgress::Writing => TaskProgress::Writing,
        pb::CheckpointProgress::Declined => TaskProgress::Declined,
        pb::CheckpointProgress::Aborted => TaskProgress::Aborted,
        pb::CheckpointProgress::Acknowledged => {
            let snapshot = report.snapshot.unwrap_or_default();
            let is_own =
                snapshot.vertex_id == execution.vertex_id && snapshot.subtask == execution.subtask;
            match is_own {
                true => TaskProgress::Acknowledged(Arc::new(snapshot)),
                // The snapshot is of another task: a manifest with it could not restore this one.
                false => TaskProgress::Declined,
            }
        }
    };
    Some(TaskReport {
        task,
        generation,
        highest: report.highest,
        progress,
        is_paused: report.paused,
        has_input_ended: report.input_ended,
    })
}

impl JobMasterActor {
    /// The reports of tasks of the job. A task that has written objects where this JobMaster does not find them has
    /// declined.
    pub(crate) fn task_reports(&self, reports: Vec<pb::CheckpointReport>) -> Vec<TaskReport> {
        let reports = self.placed(reports).into_iter();
        let reports = reports.filter_map(|report| task_report(&self.core, report));
        reports.collect()
    }

    fn placed(&self, mut reports: Vec<pb::CheckpointReport>) -> Vec<pb::CheckpointReport> {
        let own = self.checkpoints.as_ref().and_then(|it| it.storage.as_ref());
        for report in &mut reports {
            if let Some(reason) = misplacement(own, report) {
                report.set_progress(pb::CheckpointProgress::Declined);
                report.snapshot = None;
                report.reason = reason;
            }
        }
        reports
    }

    /// Takes reports of changes. A TaskExecutor does not repeat them once they are answered; registrations and full
    /// reports repeat the newest one of each execution.
    pub(crate) fn report_checkpoints(
        &mut self,
        request: pb::ReportCheckpointsRequest,
    ) -> GatewayResult<pb::ReportCheckpointsResponse> {
        let connection = self.admit_from(&request.sender, &request.job, &request.resource_id)?;
        match self.peers.registration(&connection.task_manager) {
            Some(registration) if registration == connection.registration => {}
            Some(_) => {
                let reason = "another registration is present".to_owned();
                return Err(GatewayError::Outdated { epoch: 0, reason });
            }
            None => {
                let id = &connection.task_manager;
                return Err(GatewayError::NotFound(format!(
                    "TaskManager {id} is not registered at this JobMaster"
                )));
            }
        }
        for report in self.placed(request.reports) {
            let (reason, times) = (report.reason.clone(), report.times);
            if let Some(report) = task_report(&self.core, report) {
                if let Some(checkpoints) = &mut self.checkpoints {
                    let (task, progress) = (report.task, (report.highest, &report.progress));
                    checkpoints.history.note_times(task, progress, times);
                }
                self.tell_report(&connection, report, reason);
            }
        }
        self.settle_checkpoints();
        Ok(pb::ReportCheckpointsResponse {})
    }

    fn tell_report(&mut self, connection: &Connection, report: TaskReport, reason: String) {
        let TaskReport {
            task,
            generation,
            highest,
            ..
        } = report;
        let connection = connection.clone();
        if report.has_input_ended {
            self.tell_checkpoints(Event::InputEnded {
                connection: connection.clone(),
                task,
                generation,
                highest,
            });
        }
        self.tell_checkpoints(match report.progress {
            TaskProgress::Acknowledged(snapshot) => Event::Acknowledged {
                connection,
                task,
                generation,
                number: highest,
                snapshot,
            },
            TaskProgress::Declined => Event::Declined {
                reason: format!(
                    "{} at {} declined it: {reason}",
                    self.core.task_name(task),
                    connection.task_manager
                ),
                connection,
                task,
                generation,
                number: highest,
            },
            TaskProgress::Unheard
            | TaskProgress::Blocked
            | TaskProgress::Writing
            | TaskProgress::Aborted => Event::Reported {
                connection,
                reports: vec![report],
            },
        });
    }

    /// Takes the reports of all executions that a TaskExecutor knows.
    pub(crate) fn note_full_report(
        &mut self,
        connection: &Connection,
        reports: Vec<pb::CheckpointReport>,
    ) {
        if self.checkpoints.is_none() || reports.is_empty() {
            return;
        }
        let reported = Event::Reported {
            connection: connection.clone(),
            reports: self.task_reports(reports),
        };
        self.note_checkpoints([reported]);
    }
}

#[cfg(test)]
mod tests {
    use tanist_ha::blob::{BlobOptions, BlobStore};
    use tanist_ha::keys::Name;

    use super::*;

    /// A subtask acknowledges number 7, and the segments of its state are these objects.
    fn report(storage: &str, objects: &[&str]) -> pb::CheckpointReport {
        let segment = |object: &&str| pb::StateSegment {
            object: (*object).to_owned(),
            length: 1,
            ..pb::StateSegment::default()
        };
        let snapshot = pb::SubtaskSnapshot {
            segments: objects.iter().map(segment).collect(),
            ..pb::SubtaskSnapshot::default()
        };
        pb::CheckpointReport {
            highest: 7,
            snapshot: Some(snapshot),
            storage: storage.to_owned(),
            ..pb::CheckpointReport::default()
        }
    }

    #[tokio::test]
    async fn what_is_written_to_another_storage_is_not_found_here() {
        let directory = tempfile::tempdir().expect("a directory");
        let options = |shared| BlobOptions {
            url: directory.path().to_string_lossy().into_owned(),
            shared,
        };
        let blobs = BlobStore::open(&options(true)).await.expect("opens");
        let (blobs, job) = (blobs.guarded(), Name::new("job").expect("a name"));
        let own = blobs.checkpoints(&job);
        let of = |report| misplacement(Some(&own), &report);
        let unknown = of(report("a", &["7-1-00"])).expect("it is not begun");
        assert!(
            unknown.contains("can't use") && unknown.contains(OPTIONS),
            "{unknown}"
        );
        blobs.rely_on("a", &[]);
        assert_eq!(of(report("a", &["3-1-00", "7-1-00"])), None);
        // Nothing was written for this number.
        assert_eq!(of(report("b", &["3-1-00"])), None);
        assert_eq!(of(report("", &[])), None);
        for theirs in ["b", ""] {
            let other = of(report(theirs, &["3-1-00", "7-1-00"])).expect("it is elsewhere");
            let is_told = other.contains("another storage") && other.contains(&own.location());
            assert!(is_told, "{other}");
        }

        let local = BlobStore::open(&options(false)).await.expect("opens");
        let local = local.guarded().checkpoints(&job);
        assert_eq!(misplacement(Some(&local), &report("", &["7-1-00"])), None);
        assert!(misplacement(Some(&local), &report("a", &["7-1-00"])).is_some());
        assert!(misplacement(None, &report("a", &["7-1-00"])).is_some());
    }
}
