//! First attempts to register at many JobMasters of one leader, in few messages: after a change of leader all of
//! them are due at the same moment.
//!
//! Each registration in such a message has the same meaning as a separate one. One that fails, or is not answered
//! in time, continues with separate attempts, so that nothing else of registering is repeated here.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tanist_gateway::registration::{Answer, Registered};
use tanist_gateway::{GatewayError, GatewayResult, JobMastersGateway};
use tanist_ha::clock::Uptime;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tokio::time::timeout;

use super::{Actor, Called};
use crate::core::{Event, ExecutionKey, Target, TaskKey};
use crate::launcher::RunningTask;

/// Maximum number of registrations in a message, and of their bytes: far below the maximum message size.
const MAX_REGISTRATIONS: usize = 256;
const MAX_BYTES: usize = 1 << 20;

/// The result of one registration.
#[derive(Debug)]
pub(super) struct BatchOutcome {
    job: JobId,
    run: u64,
    address: String,
    /// `None`: to be tried separately.
    answer: Option<Answer<(pb::RegistrationSuccess, u64)>>,
}

#[derive(Default)]
struct Batch {
    runs: Vec<(JobId, u64)>,
    registrations: Vec<pb::RegisterTaskManagerRequest>,
    bytes: usize,
}

impl Actor {
    /// Begins these runs of attempts.
    pub(super) fn register_at_job_masters(&mut self, runs: Vec<(JobId, String, u64)>) {
        let mut by_address: BTreeMap<String, Vec<(JobId, u64)>> = BTreeMap::new();
        for (job, address, run) in runs {
            // Skips runs that ended, or were replaced, in the same turn.
            if self.core.is_registering(job, run) {
                by_address.entry(address).or_default().push((job, run));
            }
        }
        for (address, runs) in by_address {
            match self.services.connector.job_masters(&address) {
                Some(gateway) if runs.len() > 1 => self.register_in_batch(&address, runs, &gateway),
                Some(_) | None => {
                    for (job, run) in runs {
                        self.register(Target::JobMaster(job), address.clone(), run);
                    }
                }
            }
        }
    }

    fn register_in_batch(
        &mut self,
        address: &str,
        runs: Vec<(JobId, u64)>,
        gateway: &Arc<dyn JobMastersGateway>,
    ) {
        let mut batch = Batch::default();
        for (job, run) in runs {
            self.stop_registering(Target::JobMaster(job));
            let running = &self.running;
            let metrics = |execution: &_| metrics_of(running, job, execution);
            let now = self.started.uptime();
            match self.core.prepare_job_master(now, job, run, &metrics) {
                Ok(registration) => {
                    let bytes = registration.encoded_len();
                    if batch.runs.len() >= MAX_REGISTRATIONS || batch.bytes + bytes > MAX_BYTES {
                        self.send(address, std::mem::take(&mut batch), gateway.clone());
                    }
                    batch.bytes += bytes;
                    batch.runs.push((job, run));
                    batch.registrations.push(registration);
                }
                // The message can't be prepared yet.
                Err(_) => self.register(Target::JobMaster(job), address.to_owned(), run),
            }
        }
        self.send(address, batch, gateway.clone());
    }

    fn send(&mut self, address: &str, batch: Batch, gateway: Arc<dyn JobMastersGateway>) {
        let Batch {
            runs,
            registrations,
            ..
        } = batch;
        if runs.is_empty() {
            return;
        }
        let address = address.to_owned();
        let bound = self.options.registration.initial_timeout;
        self.calls.spawn(async move {
            let request = pb::RegisterTaskManagersRequest { registrations };
            let answers = ask(&*gateway, request, bound, runs.len()).await;
            let outcomes = runs.into_iter().zip(answers);
            let outcome = |((job, run), answer)| BatchOutcome {
                job,
                run,
                address: address.clone(),
                answer,
            };
            Called::AtJobMasters(outcomes.map(outcome).collect())
        });
    }

    /// Handles the answers to a message.
    pub(super) fn registered_in_batch(&mut self, now: Uptime, outcomes: Vec<BatchOutcome>) {
        for BatchOutcome {
            job,
            run,
            address,
            answer,
        } in outcomes
        {
            if !self.core.is_registering(job, run) {
                continue;
            }
            let result = match answer {
                Some(Answer::Success(success)) => Registered::Success(success),
                Some(Answer::Rejection(reason)) => Registered::Rejected(reason),
                other => {
                    if let Some(Answer::TooLow { highest }) = other {
                        self.core.handle(now, Event::RegistrationSeen(highest));
                    }
                    self.register(Target::JobMaster(job), address, run);
                    continue;
                }
            };
            let registered = Event::RegisteredAtJobMaster { job, run, result };
            self.core.handle(now, registered);
        }
    }
}

/// The answers, in the order of the registrations.
async fn ask(
    gateway: &dyn JobMastersGateway,
    request: pb::RegisterTaskManagersRequest,
    bound: Duration,
    count: usize,
) -> Vec<Option<Answer<(pb::RegistrationSuccess, u64)>>> {
    let late = |_| GatewayError::NoAnswer {
        target: "the JobMasters".to_owned(),
        reason: format!("none within {bound:?}"),
    };
    let answered = timeout(bound, gateway.register_task_managers(request)).await;
    match answered.map_err(late).and_then(|answered| answered) {
        Ok(response) => {
            let mut outcomes = response.outcomes.into_iter();
            let answers = (0..count).map(|_| outcomes.next().and_then(|it| answer_of(it).ok()));
            answers.collect()
        }
        Err(error) => {
            tracing::debug!(%error, registrations = count, "registrations failed together");
            (0..count).map(|_| None).collect()
        }
    }
}

fn answer_of(
    outcome: pb::RegistrationOutcome,
) -> GatewayResult<Answer<(pb::RegistrationSuccess, u64)>> {
    use pb::registration_outcome::Outcome;
    match outcome.outcome {
        Some(Outcome::Response(response)) => {
            let incarnation = response.job_incarnation;
            let answer = Answer::from_message(response.registration.unwrap_or_default())?;
            Ok(answer.map(|success| (success, incarnation)))
        }
        Some(Outcome::Failed(reason)) => Err(GatewayError::NotYet(reason)),
        None => Err(GatewayError::Invalid("no outcome".to_owned())),
    }
}

/// The metrics of a task, for its report.
pub(super) fn metrics_of(
    running: &BTreeMap<TaskKey, Box<dyn RunningTask>>,
    job: JobId,
    execution: &ExecutionKey,
) -> Option<pb::TaskMetrics> {
    running
        .get(&TaskKey {
            job,
            execution: *execution,
        })
        .map(|task| task.metrics())
}
