//! Runs an application within one term: starts its program, waits for its jobs, decides how it ended, and carries out
//! the end.
//!
//! It may be dropped with the term at any point: the next term continues from what was persisted until then. If the end
//! of the application can't be found out, everything is kept and the process ends: the next leader may know more.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::join_all;
use tanist_dispatcher::JobStore;
use tanist_gateway::DispatcherGateway;
use tanist_ha::Error;
use tanist_ha::clock::wall_clock_ms;
use tanist_ha::failpoint::failpoint;
use tanist_ha::keys::Name;
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_ha::store::{CoordinationStore, Write};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_resource_manager::ResourceManagerHandle;
use tanist_resource_manager::{FinalStatus, ResourceManagerDriver};
use tanist_telemetry::ExitCode;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::{error, info, warn};

use super::commits::{NotCommitted, commit, retries};
use super::end::{self, Unfinished};
use super::program_run::{Cause, ProgramRun};
use super::record::{ApplicationRecord, ApplicationStatus, FoundApplication, LONGEST_TEXT};
use super::setup::Application;
use crate::ending::Ending;

/// What an application uses of the term in which it is led.
#[derive(Debug, Clone)]
pub(crate) struct ApplicationTerm {
    pub application: Application,
    pub cluster_id: Name,
    pub dispatcher: Arc<dyn DispatcherGateway>,
    pub resources: ResourceManagerHandle,
    pub pipeline: CommitPipeline,
    pub store: Arc<dyn CoordinationStore>,
    pub jobs: Arc<JobStore>,
    pub ending: Ending,
    /// Starts TaskManagers; `None` if they are started from outside.
    pub driver: Option<Arc<dyn ResourceManagerDriver>>,
    /// Whether the term's record says that all recovered JobMasters have begun.
    pub has_recovered: watch::Receiver<bool>,
}

/// Returns when the process must end, with the reason in `ending`; never returns if the term ends first.
pub(crate) async fn attend(term: ApplicationTerm, found_application: FoundApplication) {
    let (code, cause) = match term.run(found_application).await {
        Ok(end) => end,
        Err(error) => {
            let diagnosis = format!("the application's record can't be written: {error}");
            term.report_unknown_end(diagnosis).await
        }
    };
    term.ending.decide(code, cause);
}

/// The last message of a process about an application.
pub(crate) fn final_message(record: &ApplicationRecord) -> String {
    let ApplicationRecord { name, status, .. } = record;
    let diagnosis = if record.diagnosis.is_empty() {
        String::new()
    } else {
        format!(": {}", record.diagnosis)
    };
    let left = if record.left.is_empty() {
        String::new()
    } else {
        format!("; {}", record.left)
    };
    format!(
        "the application {name:?} has ended {}{diagnosis}{left}",
        status.name()
    )
}

impl ApplicationTerm {
    /// Continues from the stored record until the application has ended. Returns the process's exit code and
    /// the cause. An error: the store does not accept the application's record.
    async fn run(&self, found_application: FoundApplication) -> Result<(ExitCode, String), Error> {
        let mut record = match found_application {
            FoundApplication::Session | FoundApplication::Over(_) => {
                return std::future::pending().await;
            }
            FoundApplication::Fresh => {
                let record = ApplicationRecord::begin(&self.application, wall_clock_ms());
                self.commit(vec![record.write(&self.cluster_id)]).await?;
                failpoint("application.recorded").await;
                record
            }
            FoundApplication::Recovered(record) => self.take_over(*record).await?,
        };
        if record.status == ApplicationStatus::Running {
            self.all_begun().await;
            match self.run_program(&mut record).await {
                Cause::Status(ApplicationStatus::Unknown, diagnosis) => {
                    return Ok(self.report_unknown_end(diagnosis).await);
                }
                Cause::AnotherProgram(reason) => return Ok((ExitCode::Refused, reason)),
                Cause::Status(status, diagnosis) => {
                    let jobs = self.all_jobs().await;
                    let jobs: Vec<JobId> = jobs.into_iter().map(|(job, _)| job).collect();
                    record.end(status, &diagnosis, &jobs, wall_clock_ms());
                    self.commit(vec![record.write(&self.cluster_id)]).await?;
                    info!(
                        status = status.name(),
                        diagnosis = record.diagnosis,
                        "the application has ended"
                    );
                    failpoint("application.decided").await;
                }
            }
        } else {
            info!(
                status = record.status.name(),
                "the application ended in an earlier term: its cleanup continues"
            );
        }
        match end::carry_out(self, &mut record).await {
            // The program of this process never ran.
            Ok(()) if !record.is_of(&self.application) => {
                let reason = record.refusal_of_another(&self.cluster_id);
                Ok((ExitCode::Refused, reason))
            }
            Ok(()) => Ok((record.status.exit_code(), final_message(&record))),
            Err(Unfinished::Refused(error)) => Err(error),
            Err(Unfinished::JobsNotEnded(why)) => Ok(self
                .report_unknown_end(format!("{}; {why}", final_message(&record)))
                .await),
        }
    }

    /// The record to continue from. If the recorded application was another one of this name, and had not
    /// submitted anything, the cluster belongs to this one from here on.
    async fn take_over(&self, record: ApplicationRecord) -> Result<ApplicationRecord, Error> {
        let has_begun =
            || record.status != ApplicationStatus::Running || !record.submitted.is_empty();
        if record.is_of(&self.application) || has_begun() || !self.all_jobs().await.is_empty() {
            return Ok(record);
        }
        let record = ApplicationRecord::begin(&self.application, wall_clock_ms());
        self.commit(vec![record.write(&self.cluster_id)]).await?;
        Ok(record)
    }

    /// Waits until all recovered JobMasters have begun: the program may end its process, and crash-loop recovery must
    /// not suspect a job of that. Never returns if the term ends first.
    async fn all_begun(&self) {
        let mut has_recovered = self.has_recovered.clone();
        if has_recovered.wait_for(|has| *has).await.is_err() {
            std::future::pending().await
        }
    }

    /// Logs that the application's end is unknown, and informs the driver. The record stays unchanged: the next leader
    /// may know more.
    async fn report_unknown_end(&self, diagnosis: String) -> (ExitCode, String) {
        error!(
            diagnosis,
            "it is not known how the application ended: everything is kept"
        );
        end::notify_driver(self, FinalStatus::Unknown, &diagnosis).await;
        (ApplicationStatus::Unknown.exit_code(), diagnosis)
    }

    /// Runs the program, then waits until every job of the cluster has ended. Returns the cause that decided
    /// about the application.
    async fn run_program(&self, record: &mut ApplicationRecord) -> Cause {
        let run = ProgramRun::new(self, record.clone());
        let cause = self.run_in(&run).await;
        *record = run.close().await;
        cause
    }

    async fn run_in(&self, run: &ProgramRun) -> Cause {
        // In a task of its own, so that a panic is an error of the program; it is dropped with this term.
        let mut program = JoinSet::new();
        program.spawn((self.application.program)(run.clone()));
        let returned = program.join_next().await;
        let failure = match returned {
            Some(Ok(Ok(()))) | None => None,
            Some(Ok(Err(failure))) => Some(format!("its program failed: {}", chain(&*failure))),
            Some(Err(failure)) => Some(format!("its program panicked: {failure}")),
        };
        if let Some(failure) = failure {
            self.note_failure(run, failure).await;
        }
        if let Some(cause) = run.cause() {
            return cause;
        }
        let mut awaited = run.jobs();
        let submitted: BTreeSet<JobId> = awaited.iter().copied().collect();
        for (job, details) in self.all_jobs().await {
            if !submitted.contains(&job) {
                if !details.status().has_ended() {
                    warn!(%job, "this run of the program did not submit a job of an earlier run: waiting until that job has ended");
                }
                awaited.push(job);
            }
        }
        // The first job that does not finish decides, regardless of the others.
        let all = join_all(awaited.into_iter().map(|job| run.wait(job)));
        tokio::select! {
            biased;
            cause = run.first_cause() => cause,
            _ = all => run.cause().unwrap_or_else(|| {
                Cause::Status(ApplicationStatus::Succeeded, String::new())
            }),
        }
    }

    /// Notes that the program failed. If it failed before it submitted all jobs that an earlier run submitted, this
    /// process has started it differently, for example without a parameter that it needs: then the application does not
    /// end, and those jobs continue.
    async fn note_failure(&self, run: &ProgramRun, failure: String) {
        if run.cause().is_some() {
            return;
        }
        let submitted: BTreeSet<JobId> = run.jobs().into_iter().collect();
        let all = self.all_jobs().await;
        let missed = all.iter().find(|(job, _)| !submitted.contains(job));
        match missed {
            None => run.note(ApplicationStatus::Failed, failure),
            Some((job, _)) => run.note_cause(Cause::AnotherProgram(format!(
                "{failure}; an earlier run of it submitted job {job}, which is kept: this process's binary or \
                 parameters are not those that the application was started with"
            ))),
        }
    }

    /// Every job of the cluster.
    pub(super) async fn all_jobs(&self) -> Vec<(JobId, pb::JobDetails)> {
        let mut backoff = retries();
        loop {
            let request = pb::ListJobsRequest { consistent: false };
            match self.dispatcher.list_jobs(request).await {
                Ok(answer) => {
                    let jobs = answer.jobs.into_iter();
                    return jobs
                        .filter_map(|details| Some((details.job_id.parse().ok()?, details)))
                        .collect();
                }
                Err(error) => {
                    warn!(%error, "the jobs of the application can't be listed: retrying")
                }
            }
            tokio::time::sleep(backoff.next_delay()).await;
        }
    }

    /// Commits; waits without limit while the store has no space. Never returns if the term is over. An error:
    /// the write is too large.
    pub(super) async fn commit(&self, writes: Vec<Write>) -> Result<(), Error> {
        match commit(&self.pipeline, writes).await {
            Ok(()) => Ok(()),
            Err(NotCommitted::TooLarge(error)) => Err(error),
            Err(NotCommitted::TermOver) => std::future::pending().await,
        }
    }
}

/// The error's text, followed by all its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text.chars().take(LONGEST_TEXT).collect()
}
