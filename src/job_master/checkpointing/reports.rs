//! Translates what TaskExecutors report about checkpoints, and answers their reports.

use std::sync::Arc;

use tanist_gateway::{GatewayError, GatewayResult};
use tanist_proto::v1 as pb;

use crate::actor::JobMasterActor;
use crate::core::checkpoints::{Event, TaskProgress, TaskReport};
use crate::core::{Connection, JobMasterCore};

/// A report as the checkpoints take it. None: the job has no such task.
pub(crate) fn task_report(
    core: &JobMasterCore,
    report: pb::CheckpointReport,
) -> Option<TaskReport> {
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
                // A manifest that has it could restore nothing from it.
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
    /// Takes reports of changes. They are not repeated after the answer; registrations and full reports repeat the
    /// newest of each execution.
    pub(crate) fn report_checkpoints(
        &mut self,
        request: pb::ReportCheckpointsRequest,
    ) -> GatewayResult<pb::ReportCheckpointsResponse> {
        let connection = self.admit_from(
            request.sender.as_ref(),
            request.job.as_ref(),
            &request.resource_id,
        )?;
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
        for report in request.reports {
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
                connection,
                task,
                generation,
                number: highest,
                reason: format!("{} declined it: {reason}", self.core.task_name(task)),
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
        let reports = reports.into_iter();
        let reports = reports.filter_map(|report| task_report(&self.core, report));
        let reported = Event::Reported {
            connection: connection.clone(),
            reports: reports.collect(),
        };
        self.note_checkpoints([reported]);
    }
}
