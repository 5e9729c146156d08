//! Runs the effects of the checkpoints' core. Work that waits is a task of the actor, whose result comes back as an
//! event. The triggers and aborts of many regions on one TaskManager become one call.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tanist_gateway::persistence::{JobStateStore, PersistError};
use tanist_gateway::savepoints::is_open;
use tanist_gateway::{GatewayResult, manifests};
use tanist_ha::blob::CheckpointStorage;
use tanist_ha::failpoint::{failpoint, is_armed};
use tanist_proto::v1 as pb;
use tokio::sync::Semaphore;

use super::Checkpoints;
use super::storage_timeout::answered;
use crate::actor::JobMasterActor;
use crate::calls::{Done, bounded, called};
use crate::core::checkpoints::{Barrier, Effect, Event, Executions, TriggerAnswer};
use crate::core::{self, Connection};

/// Failpoint between the first and the second of several calls that trigger a number.
const TRIGGERED_SOME: &str = "checkpoint.triggered-some";

/// The first call that triggers a number. For the failpoint [`TRIGGERED_SOME`] alone: without it calls do not wait for
/// each other.
#[derive(Debug, Clone)]
pub(super) struct FirstTrigger {
    number: u64,
    /// Closed once the call is answered.
    unanswered: Arc<Semaphore>,
}

impl FirstTrigger {
    fn sent(&self) {
        self.unanswered.close();
    }

    async fn is_sent(&self) {
        // It never has permits: this returns once it is closed.
        let _ = self.unanswered.acquire().await;
    }
}

impl Checkpoints {
    /// The first call of a number, and whether this is it. None, unless a test stops the process between the calls.
    fn turn_of(&mut self, number: u64) -> Option<(bool, FirstTrigger)> {
        if !is_armed(TRIGGERED_SOME) {
            return None;
        }
        let known = self.first_trigger.clone();
        let known = known.filter(|first| first.number == number);
        if let Some(first) = known {
            return Some((false, first));
        }
        let first = FirstTrigger {
            number,
            unanswered: Arc::new(Semaphore::new(0)),
        };
        self.first_trigger = Some(first.clone());
        Some((true, first))
    }
}

/// The effects of many regions that are run together.
#[derive(Debug, Default)]
struct Batch {
    /// Calls to TaskManagers, each with the regions that it is for.
    triggers: BTreeMap<(Connection, Barrier), Vec<Executions>>,
    aborts: BTreeMap<(Connection, u64), Vec<Executions>>,
    aborted: Aborted,
}

/// Numbers that are aborted, with the reason and whether it is a failure, and at how many regions.
type Aborted = BTreeMap<(u64, String, bool), usize>;

impl JobMasterActor {
    pub(super) fn run_checkpoint_effects(&mut self, effects: Vec<Effect>) {
        let mut batch = Batch::default();
        for effect in effects {
            self.run_checkpoint_effect(effect, &mut batch);
        }
        for ((connection, number), regions) in batch.aborts {
            self.abort(connection, number, &regions);
        }
        for ((connection, barrier), sources) in batch.triggers {
            self.trigger(connection, sources, barrier);
        }
        self.log_aborted(batch.aborted);
    }

    fn log_aborted(&self, aborted: Aborted) {
        let job = &self.calls.job.job_id;
        for ((checkpoint, reason, is_failure), regions) in aborted {
            match is_failure {
                true => {
                    tracing::warn!(job, checkpoint, regions, reason, "checkpoint failed");
                }
                false => {
                    tracing::info!(job, checkpoint, regions, reason, "checkpoint aborted");
                }
            }
        }
    }

    /// Runs an effect, or adds it to those that are run once for many regions.
    fn run_checkpoint_effect(&mut self, effect: Effect, batch: &mut Batch) {
        let job = self.calls.job.job_id.clone();
        match effect {
            Effect::Trigger {
                connection,
                sources,
                barrier,
            } => {
                let triggers = &mut batch.triggers;
                triggers
                    .entry((connection, barrier))
                    .or_default()
                    .push(sources);
            }
            Effect::Abort {
                connection,
                executions,
                number,
            } => {
                let aborts = &mut batch.aborts;
                aborts
                    .entry((connection, number))
                    .or_default()
                    .push(executions);
            }
            Effect::Aborted {
                region: _,
                number,
                reason,
                is_failure,
            } => {
                let aborted = &mut batch.aborted;
                *aborted.entry((number, reason, is_failure)).or_default() += 1;
            }
            Effect::AnswerAcknowledgement { number, answer, .. } => {
                // No message is sent: the call that carried the acknowledgement is answered when it arrives, and the
                // reason is also that of the number's abort.
                if let Err(reason) = answer {
                    tracing::debug!(job, number, reason, "an acknowledgement does not count");
                }
            }
            Effect::PutManifest { number, bytes } => {
                if let Some(storage) = self.checkpoint_storage() {
                    self.io.spawn(put_manifest(storage, number, bytes));
                }
            }
            Effect::Write { write, record } => {
                let durable = self.checkpoints.as_ref().map(|it| it.core.durable());
                let milestones = durable.map(|durable| Milestones::of(durable, &record));
                let store = self.calls.state_store.clone();
                let milestones = milestones.unwrap_or_default();
                let place = self.calls.place();
                self.io
                    .spawn(write_record(store, place, (write, record), milestones));
            }
            Effect::Commit {
                number,
                committables,
            } => self.commit_checkpoint(number, committables),
            Effect::ForgetCommits { up_to } => self.forget_commits(up_to),
            Effect::AnswerSavepoint { trigger_id, answer } => {
                self.answer_savepoint(&trigger_id, answer);
            }
            Effect::CopySavepoint {
                trigger_id,
                number,
                directory,
            } => self.copy_savepoint(trigger_id, number, &directory),
            Effect::DiscardCopy {
                trigger_id,
                directory,
            } => self.discard_copy(&trigger_id, &directory),
            Effect::Remove { removal, objects } => match self.checkpoint_storage() {
                Some(storage) => {
                    self.io.spawn(remove(storage, removal, objects));
                }
                None => self.tell_checkpoints(Event::Removed { removal }),
            },
            Effect::List => match self.checkpoint_storage() {
                Some(storage) => {
                    self.io.spawn(list(storage));
                }
                None => self.tell_checkpoints(Event::Listed(Vec::new())),
            },
            Effect::FailRegion { region, cause } => {
                let failed = core::Event::CheckpointsFailed { region, cause };
                self.exchange.answers.push_back(failed);
            }
            Effect::Completed { number, regions } => {
                self.remove_superseded(&regions);
                let regions = regions.len();
                tracing::info!(job, checkpoint = number, regions, "checkpoint complete");
            }
        }
    }

    /// Notes that objects could be listed or removed. `problem`: why not.
    pub(crate) fn note_storage(&mut self, problem: Option<String>) {
        let (now_ms, place) = (self.now_ms(), self.calls.place());
        let Some(checkpoints) = &mut self.checkpoints else {
            return;
        };
        let Some(reason) = problem else {
            checkpoints.storage_problem.clear();
            return;
        };
        let storage = checkpoints.storage.as_ref();
        let location = storage.map_or_else(String::new, CheckpointStorage::location);
        let text = format!(
            "objects that no checkpoint needs can't be removed from {location} by {place}: {reason}"
        );
        if let Some(news) = checkpoints.storage_problem.note(text, now_ms) {
            checkpoints.history.announce(news);
        }
    }

    fn checkpoint_storage(&self) -> Option<CheckpointStorage> {
        self.checkpoints.as_ref()?.storage.clone()
    }

    fn ids(&self, regions: &[Executions]) -> Vec<pb::ExecutionId> {
        let executions = regions.iter().flat_map(|of_region| {
            let tasks = of_region.tasks.iter();
            tasks.map(move |task| self.core.execution_id(*task, of_region.generation))
        });
        executions.collect()
    }

    fn trigger(&mut self, connection: Connection, sources: Vec<Executions>, barrier: Barrier) {
        // It is not registered. The core aborts the number, because the trigger has no answer within its timeout.
        let Some(peer) = self.calls.task_executor(&self.core, &connection) else {
            return;
        };
        let number = barrier.number;
        let turn = self.checkpoints.as_mut().and_then(|it| it.turn_of(number));
        let request = pb::TriggerCheckpointRequest {
            sender: self.calls.sender(&connection),
            job: Some(self.calls.job.clone()),
            barrier: Some(pb::CheckpointBarrier {
                number,
                newest: barrier.newest,
                floor: barrier.floor,
                savepoint: barrier.is_savepoint,
                pause: barrier.pauses,
            }),
            sources: self.ids(&sources),
        };
        let ask_timeout = self.calls.ask_timeout;
        self.io.spawn(async move {
            failpoint("checkpoint.reserved").await;
            if let Some((false, first)) = &turn {
                first.is_sent().await;
                failpoint(TRIGGERED_SOME).await;
            }
            let answer = bounded(ask_timeout, peer.trigger_checkpoint(request)).await;
            if let Some((true, first)) = turn {
                first.sent();
            }
            failpoint("checkpoint.triggered").await;
            let error = answer.as_ref().err().cloned();
            let mut answers = answers_of(answer);
            let events = sources.into_iter().map(|of_region| Event::TriggerAnswered {
                connection: connection.clone(),
                region: of_region.region,
                number,
                answers: of_region.tasks.into_iter().zip(&mut answers).collect(),
            });
            Done::CheckpointCalled {
                events: events.collect(),
                called: Box::new(called(connection.clone(), None, error)),
                connection,
                reports: Vec::new(),
            }
        });
    }

    fn abort(&mut self, connection: Connection, number: u64, regions: &[Executions]) {
        let Some(peer) = self.calls.task_executor(&self.core, &connection) else {
            return;
        };
        let request = pb::AbortCheckpointRequest {
            sender: self.calls.sender(&connection),
            job: Some(self.calls.job.clone()),
            number,
            executions: self.ids(regions),
        };
        let ask_timeout = self.calls.ask_timeout;
        self.io.spawn(async move {
            let answer = bounded(ask_timeout, peer.abort_checkpoint(request)).await;
            failpoint("checkpoint.aborted").await;
            called(connection, None, answer.err())
        });
    }
}

/// The answers of sources to a trigger, in the order of the request, and then refusals without end: a source without an
/// answer counts as refusing, so the number is aborted, although a call that failed may have arrived.
fn answers_of(
    answer: GatewayResult<pb::TriggerCheckpointResponse>,
) -> impl Iterator<Item = TriggerAnswer> {
    use pb::trigger_answer::Answer;
    let (answers, missing) = match answer {
        Ok(answer) => {
            let missing = "its TaskManager gave no answer for it".to_owned();
            (answer.answers, missing)
        }
        Err(error) => (Vec::new(), error.to_string()),
    };
    let refused = TriggerAnswer::Refused(missing);
    let unanswered = refused.clone();
    let answers = answers.into_iter().map(move |it| match it.answer {
        Some(Answer::Injected(pb::Ack {})) => TriggerAnswer::Injected,
        Some(Answer::SourceEnded(pb::Ack {})) => TriggerAnswer::SourceEnded,
        Some(Answer::Refused(reason)) => TriggerAnswer::Refused(reason),
        None => unanswered.clone(),
    });
    answers.chain(std::iter::repeat(refused))
}

/// The decisions that a write of the record makes durable. Tests can stop the process at each.
#[derive(Debug, Clone, Copy, Default)]
struct Milestones {
    completes: bool,
    records_commit: bool,
    takes_request: bool,
    ends_request: bool,
}

impl Milestones {
    fn of(durable: &pb::JobCheckpoints, record: &pb::JobCheckpoints) -> Milestones {
        let newest = |record: &pb::JobCheckpoints| Some(record.retained.last()?.number);
        let mut uncommitted = durable.retained.iter().filter(|it| !it.committed);
        let stays = |number: u64| {
            let mut retained = record.retained.iter();
            retained.any(|it| it.number == number && !it.committed)
        };
        let ended = |record: &pb::JobCheckpoints| {
            let requests = record.requests.iter();
            requests.filter(|it| !is_open(it)).count()
        };
        let last = |record: &pb::JobCheckpoints| {
            let last = record.requests.last();
            last.map(|it| it.trigger_id.clone())
        };
        Milestones {
            completes: newest(record) != newest(durable),
            records_commit: uncommitted.any(|it| !stays(it.number)),
            takes_request: last(record) != last(durable),
            ends_request: ended(record) > ended(durable),
        }
    }

    async fn reach(self) {
        if self.completes {
            failpoint("checkpoint.completed").await;
        }
        if self.records_commit {
            failpoint("checkpoint.commit-recorded").await;
        }
        if self.takes_request {
            failpoint("savepoint.requested").await;
        }
        if self.ends_request {
            failpoint("savepoint.told").await;
        }
    }
}

async fn write_record(
    store: Arc<dyn JobStateStore>,
    place: String,
    (write, record): (u64, Arc<pb::JobCheckpoints>),
    milestones: Milestones,
) -> Done {
    if milestones.completes {
        failpoint("checkpoint.all-acknowledged").await;
    }
    match store.put_checkpoints(&record).await {
        Ok(()) => {
            milestones.reach().await;
            Done::Checkpoint(Event::Written { write })
        }
        Err(PersistError::TermOver) => Done::TermOver,
        Err(
            error @ (PersistError::TooLarge { .. }
            | PersistError::Refused(_)
            | PersistError::NoBlobs(_)),
        ) => {
            let reason = match error {
                // The text names this JobManager: others may reach the blob store.
                PersistError::NoBlobs(_) => format!("{error}, on {place}"),
                _ => error.to_string(),
            };
            tracing::warn!(
                job = record.job_id,
                reason,
                "the record of checkpoints is refused; it is tried again"
            );
            Done::Checkpoint(Event::WriteRefused { write, reason })
        }
    }
}

async fn put_manifest(storage: CheckpointStorage, number: u64, bytes: Vec<u8>) -> Done {
    let name = manifests::object_name(number);
    let length = bytes.len() as u64;
    let put = {
        let (storage, name) = (storage.clone(), name.clone());
        async move { storage.put(&name, Bytes::from(bytes)).await }
    };
    let put = answered(&storage, put).await;
    failpoint("checkpoint.manifest-written").await;
    Done::Checkpoint(match put {
        Ok(()) => Event::ManifestPut(pb::ManifestObject { name, length }),
        Err(reason) => Event::ManifestNotPut(reason),
    })
}

async fn remove(storage: CheckpointStorage, removal: u64, objects: Vec<String>) -> Done {
    for object in &objects {
        let removing = {
            let (storage, object) = (storage.clone(), object.clone());
            async move { storage.remove(&object).await }
        };
        if let Err(error) = answered(&storage, removing).await {
            tracing::warn!(object, %error, "an object of a checkpoint can't be removed; it is tried again");
            return Done::CheckpointStorage {
                event: Event::RemovalFailed { removal },
                problem: Some(error),
            };
        }
        failpoint("checkpoint.some-removed").await;
    }
    Done::CheckpointStorage {
        event: Event::Removed { removal },
        problem: None,
    }
}

async fn list(storage: CheckpointStorage) -> Done {
    let listing = {
        let storage = storage.clone();
        async move { storage.list().await }
    };
    let (event, problem) = match answered(&storage, listing).await {
        Ok(listed) => (Event::Listed(listed), None),
        Err(error) => {
            tracing::warn!(%error, "the objects of a job's checkpoints can't be listed; it is tried again");
            (Event::NotListed, Some(error))
        }
    };
    Done::CheckpointStorage { event, problem }
}
