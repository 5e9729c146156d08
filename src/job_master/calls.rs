//! Tasks that run the core's effects: writes, calls to TaskManagers and the ResourceManager, commits. Each
//! ends in one [`Done`]. Every call to a TaskManager has a timeout and names the registration that it belongs
//! to.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;
use tanist_compact::WatchCell;
use tanist_gateway::blobs::HeldBlob;
use tanist_gateway::persistence::{JobStateStore, PersistError};
use tanist_gateway::refusals::{self, RefusalCheck, Refusals};
use tanist_gateway::{
    Connector, Departure, GatewayError, GatewayResult, JobMasterId, ResourceRequirementsGateway,
    TaskExecutorGateway, Verdict,
};
use tanist_ha::clock::millis;
use tanist_ha::election::Epoch;
use tanist_ha::failpoint::failpoint;
use tanist_model::files::Look;
use tanist_proto::id::AllocationId;
use tanist_proto::v1 as pb;
use tokio::task::JoinSet;

use super::core::{
    CommitProgress, Connection, Coordinated, Effect, Event, JobMasterCore, KeptGraph, Milestone,
    Needs, SubmitOutcome, Unprepared, checkpoints, parse,
};
use super::options::{CommitError, JobMasterContext, JobMasterOptions, SinkCommitter};
use super::{coordinator_preparation, graph_blob};

/// The result of a task.
#[derive(Debug)]
pub(super) enum Done {
    /// The store has refused a write: a younger term exists.
    TermOver,
    /// An event from within this process.
    Local(Event),
    /// An event of the checkpoints from within this process.
    Checkpoint(checkpoints::Event),
    /// The commit of a checkpoint was answered.
    CheckpointCommitted {
        number: u64,
        progress: CommitProgress,
    },
    /// Objects of checkpoints were listed, or some removed. `problem`: why not.
    CheckpointStorage {
        event: checkpoints::Event,
        problem: Option<String>,
    },
    /// Work whose outcome changes nothing.
    Nothing,
    /// Marks of commits could not be removed.
    MarksLeft,
    /// Files of earlier attempts could not be removed. `regions`: those whose checkpoint superseded the attempts.
    /// `received`: nor those of another job.
    FilesLeft { regions: Vec<usize>, received: bool },
    /// A call to a TaskManager was answered or failed, and its outcome concerns checkpoints too.
    CheckpointCalled {
        called: Box<Done>,
        connection: Connection,
        events: Vec<checkpoints::Event>,
        /// All executions that the TaskManager knows.
        reports: Vec<pb::CheckpointReport>,
    },
    /// The ResourceManager answered.
    Declared {
        wanted: Option<Arc<Needs>>,
        answer: GatewayResult<()>,
    },
    /// The decision whether a TaskManager that refuses calls is gone.
    LossChecked {
        connection: Connection,
        cause: String,
        is_lost: bool,
    },
    /// A call to a TaskManager was answered or failed.
    Called {
        connection: Connection,
        event: Option<Event>,
        error: Option<GatewayError>,
        is_heartbeat: bool,
    },
}

/// Divides deployments into messages of at most this size in bytes, in their order. One that is larger has a message of
/// its own.
fn divided(tasks: Vec<pb::TaskDeployment>, limit: usize) -> Vec<Vec<pb::TaskDeployment>> {
    let mut messages: Vec<Vec<pb::TaskDeployment>> = Vec::new();
    let mut size = 0;
    for task in tasks {
        // With its field number and length.
        let length = task.encoded_len().saturating_add(8);
        size += length;
        match messages.last_mut().filter(|_| size <= limit) {
            Some(message) => message.push(task),
            None => {
                size = length;
                messages.push(vec![task]);
            }
        }
    }
    messages
}

/// The context of calls.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) sender: Arc<pb::Sender>,
    pub(super) job: pb::JobScope,
    graph: KeptGraph,
    pub(super) id: JobMasterId,
    /// What the ResourceManager says about this JobMaster.
    pub(super) verdict: WatchCell<Verdict>,
    /// The graph in the blob server, if it is too large to be sent with each deployment.
    held: Option<HeldBlob>,
    pub(super) rpc_address: Arc<str>,
    pub(super) ask_timeout: Duration,
    /// Maximum size of a message in bytes.
    max_message_size: usize,
    /// Set for an isolated job.
    stop_first: Option<pb::StopFirst>,
    pub(super) retry_delay: Duration,
    connector: Arc<dyn Connector>,
    refusals: Arc<dyn Refusals>,
    pub(super) resources: Arc<dyn ResourceRequirementsGateway>,
    pub(super) state_store: Arc<dyn JobStateStore>,
    pub(super) committer: Arc<dyn SinkCommitter>,
}

impl Calls {
    pub(super) async fn new(
        options: &JobMasterOptions,
        context: &JobMasterContext,
        graph: KeptGraph,
        job_incarnation: u64,
    ) -> GatewayResult<Calls> {
        let most = options.inline_deployment_threshold;
        let held = graph_blob::hold(&context.graph, most, &context.blobs).await?;
        let stop_first = graph.is_stop_first().then(|| pb::StopFirst {
            timeout_ms: millis(options.stop_first.timeout),
            cancellation_ms: millis(options.stop_first.cancellation),
        });
        Ok(Calls {
            stop_first,
            sender: context.sender.clone(),
            job: pb::JobScope {
                job_id: context.graph.job_id.clone(),
                job_incarnation,
            },
            id: JobMasterId {
                epoch: Epoch::new(context.sender.epoch),
                incarnation: job_incarnation,
            },
            verdict: WatchCell::default(),
            graph,
            held,
            rpc_address: context.rpc_address.clone(),
            ask_timeout: options.rpc_ask_timeout,
            max_message_size: options.max_message_size,
            retry_delay: options.heartbeat_interval,
            connector: context.connector.clone(),
            refusals: context.refusals.clone(),
            resources: context.resources.clone(),
            state_store: context.state_store.clone(),
            committer: context.committer.clone(),
        })
    }

    /// This JobManager, to be named in messages: other JobManagers may reach what this one can't reach.
    pub(super) fn place(&self) -> String {
        match self.sender.process.as_str() {
            "" => format!("the JobManager at {}", self.rpc_address),
            process => format!("JobManager {process} at {}", self.rpc_address),
        }
    }

    /// Starts the task of an effect that waits. The actor runs other effects itself.
    pub(super) fn start(&self, io: &mut JoinSet<Done>, core: &JobMasterCore, effect: Effect) {
        match effect {
            Effect::Persist {
                number,
                state,
                milestones,
            } => {
                io.spawn(persist(self.state_store.clone(), number, state, milestones));
            }
            Effect::Prepare {
                region,
                generation,
                look,
                operators,
            } => {
                io.spawn(prepare(region, generation, look, operators));
            }
            Effect::CommitSinks(committables) => {
                io.spawn(commit(self.committer.clone(), committables));
            }
            Effect::Deploy { connection, tasks } => {
                // None waits for the answer to another one, so they may arrive in any order.
                for tasks in divided(tasks, self.max_message_size / 2) {
                    self.deploy(io, core, connection.clone(), tasks);
                }
            }
            Effect::Cancel { connection, tasks } => self.cancel(io, core, connection, tasks),
            Effect::Acknowledge {
                connection,
                executions,
            } => {
                let (sender, job) = (self.sender(&connection), Some(self.job.clone()));
                let request = pb::AcknowledgeExecutionsRequest {
                    sender,
                    job,
                    executions,
                };
                self.call(io, core, connection, move |peer| async move {
                    peer.acknowledge_executions(request).await
                });
            }
            Effect::FreeSlots {
                connection,
                allocations,
                cause,
            } => {
                let sender = self.sender(&connection);
                let allocation_ids = allocations.iter().map(AllocationId::to_string).collect();
                let request = pb::FreeSlotsRequest {
                    sender,
                    allocation_ids,
                    cause,
                };
                self.call(io, core, connection, move |peer| async move {
                    peer.free_slots(request).await
                });
            }
            Effect::AskReport(connection) => {
                if let Some(location) = core.location(&connection.task_manager) {
                    let allocations = core.slots_of(&connection.task_manager);
                    let as_of = (core.turn(), core.tells_to_stop());
                    self.heartbeat(io, connection, location, &allocations, as_of);
                }
            }
            Effect::Disconnect {
                connection,
                location,
                cause,
            } => {
                let request = self.goodbye(&connection, cause, false);
                let peer = self.connector.task_executor(&location.rpc_address);
                let ask_timeout = self.ask_timeout;
                io.spawn(async move {
                    let answer = bounded(ask_timeout, peer.disconnect_job_master(request)).await;
                    called(connection, None, answer.err())
                });
            }
            Effect::Declare(_)
            | Effect::AnswerOffer { .. }
            | Effect::AnswerCoordinator { .. }
            | Effect::AnswerCancels(_)
            | Effect::AnswerStops(_)
            | Effect::Quarantine(_)
            | Effect::End(_) => {}
        }
    }

    fn deploy(
        &self,
        io: &mut JoinSet<Done>,
        core: &JobMasterCore,
        connection: Connection,
        tasks: Vec<pb::TaskDeployment>,
    ) {
        let Some(location) = core.location(&connection.task_manager) else {
            return;
        };
        let peer = self.connector.task_executor(&location.rpc_address);
        let ask_timeout = self.ask_timeout;
        let ids = tasks.iter().map(|task| pb::ExecutionId {
            vertex_id: task.vertex_id.clone(),
            subtask: task.subtask,
            generation: task.generation,
        });
        let ids = ids.collect();
        let request = pb::SubmitTasksRequest {
            sender: self.sender(&connection),
            job: Some(self.job.clone()),
            graph: self
                .held
                .is_none()
                .then(|| Arc::unwrap_or_clone(self.graph.get())),
            tasks,
            graph_reference: self.held.as_ref().map(HeldBlob::reference),
            stopping: core.tells_to_stop(),
            stop_first: self.stop_first,
        };
        let own_epoch = self.sender.epoch;
        io.spawn(async move {
            let answer = bounded(ask_timeout, peer.submit_tasks(request)).await;
            let (outcome, error) = match answer {
                Ok(answer) => (SubmitOutcome::Answered(answer.refused), None),
                Err(error @ GatewayError::Outdated { epoch, .. }) if epoch <= own_epoch => {
                    (SubmitOutcome::Outdated, Some(error))
                }
                Err(error) => (SubmitOutcome::Unknown(error.to_string()), Some(error)),
            };
            let event = Event::TasksSubmitted {
                connection: connection.clone(),
                tasks: ids,
                outcome,
            };
            called(connection, Some(event), error)
        });
    }

    fn cancel(
        &self,
        io: &mut JoinSet<Done>,
        core: &JobMasterCore,
        connection: Connection,
        tasks: Vec<pb::TaskCancellation>,
    ) {
        let Some(location) = core.location(&connection.task_manager) else {
            return;
        };
        let peer = self.connector.task_executor(&location.rpc_address);
        let ask_timeout = self.ask_timeout;
        let request = pb::CancelTasksRequest {
            sender: self.sender(&connection),
            job: Some(self.job.clone()),
            tasks: tasks.clone(),
        };
        io.spawn(async move {
            let answer = bounded(ask_timeout, peer.cancel_tasks(request)).await;
            let event = Event::TasksCancelled {
                connection: connection.clone(),
                tasks,
                is_confirmed: answer.is_ok(),
            };
            called(connection, Some(event), answer.err())
        });
    }

    /// Sends a heartbeat that requests a full report. `requested_in`: the step of the core in which it is sent;
    /// `stopping`: whether the sources of the job have to end.
    pub(super) fn heartbeat(
        &self,
        io: &mut JoinSet<Done>,
        connection: Connection,
        location: &pb::TaskManagerLocation,
        allocations: &[AllocationId],
        (requested_in, stopping): (u64, bool),
    ) {
        let peer = self.connector.task_executor(&location.rpc_address);
        let ask_timeout = self.ask_timeout;
        let request = pb::HeartbeatFromJobMasterRequest {
            sender: self.sender(&connection),
            job: Some(self.job.clone()),
            allocation_ids: allocations.iter().map(AllocationId::to_string).collect(),
            full_report: true,
            stopping,
        };
        io.spawn(async move {
            let answer = bounded(ask_timeout, peer.heartbeat_from_job_master(request)).await;
            let mut reports = Vec::new();
            let (event, error) = match answer {
                Ok(answer) => {
                    reports = answer.checkpoints;
                    let allocations = answer.allocation_ids.iter().filter_map(|id| parse(id));
                    let event = Event::HeartbeatAnswered {
                        connection: connection.clone(),
                        requested_in,
                        allocations: allocations.collect(),
                        executions: answer.executions,
                        outputs: answer.outputs,
                    };
                    (Some(event), None)
                }
                Err(error) => (None, Some(error)),
            };
            let called = Done::Called {
                connection: connection.clone(),
                event,
                error,
                is_heartbeat: true,
            };
            if reports.is_empty() {
                return called;
            }
            Done::CheckpointCalled {
                called: Box::new(called),
                connection,
                events: Vec::new(),
                reports,
            }
        });
    }

    /// Determines whether a TaskManager that refuses calls is gone.
    pub(super) fn check_lost(
        &self,
        io: &mut JoinSet<Done>,
        connection: Connection,
        address: String,
        cause: String,
        check: RefusalCheck,
    ) {
        let (connector, refusals) = (self.connector.clone(), self.refusals.clone());
        io.spawn(async move {
            let checking = refusals::is_lost(&*connector, &*refusals, &address, check);
            let is_lost = checking.await;
            Done::LossChecked {
                connection,
                cause,
                is_lost,
            }
        });
    }

    /// Tells TaskManagers and the ResourceManager that the job has a durable result, so that they release
    /// everything they hold for it.
    pub(super) async fn close(
        &self,
        connections: Vec<(Connection, Arc<pb::TaskManagerLocation>, Vec<AllocationId>)>,
    ) {
        let goodbyes = connections.into_iter().map(|(connection, location, _)| {
            let request = self.goodbye(&connection, "the job has ended".to_owned(), true);
            let peer = self.connector.task_executor(&location.rpc_address);
            async move {
                let answer = bounded(self.ask_timeout, peer.disconnect_job_master(request)).await;
                if let Err(error) = answer {
                    tracing::debug!(%error, "could not tell a TaskManager that the job has ended");
                }
            }
        });
        let job = self.job_id();
        let departure = Departure::JobEnded(self.id);
        let left = self.resources.disconnect_job_master(job, departure);
        let left = bounded(self.ask_timeout, left);
        let (_, left) = tokio::join!(futures::future::join_all(goodbyes), left);
        if let Err(error) = left {
            tracing::debug!(%error, "could not tell the ResourceManager that the job has ended");
        }
    }

    fn goodbye(
        &self,
        connection: &Connection,
        cause: String,
        job_ended: bool,
    ) -> pb::DisconnectJobMasterRequest {
        let (sender, job) = (self.sender(connection), Some(self.job.clone()));
        pb::DisconnectJobMasterRequest {
            sender,
            job,
            cause,
            job_ended,
        }
    }

    /// A call whose answer is only an acknowledgement.
    fn call<F>(
        &self,
        io: &mut JoinSet<Done>,
        core: &JobMasterCore,
        connection: Connection,
        ask: impl FnOnce(Arc<dyn TaskExecutorGateway>) -> F,
    ) where
        F: Future<Output = GatewayResult<pb::Ack>> + Send + 'static,
    {
        if let Some(location) = core.location(&connection.task_manager) {
            let answer = ask(self.connector.task_executor(&location.rpc_address));
            let ask_timeout = self.ask_timeout;
            io.spawn(async move {
                let answer = bounded(ask_timeout, answer).await;
                called(connection, None, answer.err())
            });
        }
    }

    /// A registered TaskManager.
    pub(super) fn task_executor(
        &self,
        core: &JobMasterCore,
        connection: &Connection,
    ) -> Option<Arc<dyn TaskExecutorGateway>> {
        let location = core.location(&connection.task_manager)?;
        Some(self.connector.task_executor(&location.rpc_address))
    }

    /// The sender of messages on a connection.
    pub(super) fn sender(&self, connection: &Connection) -> Option<pb::Sender> {
        let registration = connection.registration.get();
        Some(pb::Sender {
            registration,
            ..(*self.sender).clone()
        })
    }
}

pub(super) fn called(
    connection: Connection,
    event: Option<Event>,
    error: Option<GatewayError>,
) -> Done {
    Done::Called {
        connection,
        event,
        error,
        is_heartbeat: false,
    }
}

pub(super) async fn bounded<T>(
    timeout: Duration,
    call: impl Future<Output = GatewayResult<T>>,
) -> GatewayResult<T> {
    tokio::time::timeout(timeout, call)
        .await
        .unwrap_or_else(|_| {
            Err(GatewayError::NoAnswer {
                target: "the other side".to_owned(),
                reason: format!("nothing within {timeout:?}"),
            })
        })
}

async fn persist(
    store: Arc<dyn JobStateStore>,
    number: u64,
    state: Arc<pb::JobState>,
    milestones: Vec<Milestone>,
) -> Done {
    if milestones.contains(&Milestone::CancelDecided) {
        failpoint("job.cancel-persisting").await;
    }
    match store.put_state(&state).await {
        Ok(()) => {
            for milestone in milestones {
                match milestone {
                    Milestone::CancelDecided => failpoint("job.cancel-persisted").await,
                    Milestone::StoppedWithSavepoint => failpoint("savepoint.stop-persisted").await,
                    Milestone::StopDecided => failpoint("job.stop-persisted").await,
                    Milestone::GenerationPlaced => {
                        failpoint("job.generation-persisted").await;
                        if state.regions.iter().any(|it| it.restored_from > 0) {
                            failpoint("restore.placed").await;
                        }
                    }
                    Milestone::CoordinatorDecided => {
                        failpoint("job.coordinator-persisted").await;
                    }
                    Milestone::AllFinished => failpoint("job.all-finished-persisted").await,
                    Milestone::FailureDecided => failpoint("job.failure-persisted").await,
                }
            }
            Done::Local(Event::Persisted(number))
        }
        Err(PersistError::TermOver) => Done::TermOver,
        Err(
            error @ (PersistError::TooLarge { .. }
            | PersistError::Refused(_)
            | PersistError::NoBlobs(_)),
        ) => Done::Local(Event::PersistRefused(number, error.to_string())),
    }
}

/// Runs on a blocking thread, as it lists files.
async fn prepare(
    region: usize,
    generation: u64,
    look: Look,
    operators: Arc<[Coordinated]>,
) -> Done {
    let preparing = tokio::task::spawn_blocking(move || {
        coordinator_preparation::prepare(&operators, generation, look)
    });
    let outcome = preparing.await.unwrap_or_else(|error| {
        Err(Unprepared {
            cause: format!("the files to read could not be listed: {error}"),
            is_unrecoverable: false,
        })
    });
    failpoint("job.coordinators-prepared").await;
    Done::Local(Event::Prepared {
        region,
        generation,
        outcome,
    })
}

async fn commit(committer: Arc<dyn SinkCommitter>, committables: Vec<pb::Committable>) -> Done {
    match committer.commit(&committables).await {
        Ok(()) => {
            failpoint("job.sinks-committed").await;
            Done::Local(Event::SinksCommitted)
        }
        Err(CommitError::Failed(reason)) => {
            tracing::warn!(reason, "committing the sinks failed; it will be retried");
            Done::Local(Event::SinksFailed(reason))
        }
        Err(CommitError::Refused(reason)) => Done::Local(Event::SinksRefused(reason)),
    }
}
