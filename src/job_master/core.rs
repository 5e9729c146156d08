//! The decisions of a JobMaster, pure: (state, now, event) -> effects.
//!
//! There are two copies of the job's record: `record`, as it should be, and `written`, as it is durable. Events change
//! `record` and the ExecutionGraph; what *acts* (deploy, cancel, acknowledge, commit, answer) is derived from `written`
//! alone, after each event (`settle.rs`). So nothing acts on a decision that the store does not have, and a
//! record that was read again has the same effects as one that was just written.
//!
//! Giving up a generation is a write of the next one without placements; placing it is another write. Invariants:
//! generations only grow; what is deployed is what `written` says, in the epoch that wrote it, once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tanist_ha::election::Epoch;
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::adopted_slots::AdoptedSlots;
use super::agenda::{Agenda, LookedAt};
use super::chronicle::Chronicle;
use super::coordinator::Coordination;
use super::event::{Connection, Effect, Event, Needs, Refusal, Registration};
use super::execution::Cancellation;
use super::execution_graph::{BuildError, ExecutionGraph};
use super::failover::FailoverStrategy;
use super::kept_graph::KeptGraph;
use super::moving::Moves;
use super::patience::Patience;
use super::reconciling::Reconciliation;
use super::restart::{RestartBackoff, RestartStrategy};
use super::slot_pool::SlotPool;
use super::strays::Strays;
use crate::gateway::Unfulfillable;
use crate::small_map::SmallMap;

/// Bounds of the core's patience, in milliseconds.
#[derive(Debug, Clone, PartialEq)]
pub struct CoreOptions {
    /// How long a region waits for its slots before that counts as a failure.
    pub slot_request_timeout_ms: u64,
    /// How long a slot that nothing needs is kept.
    pub slot_idle_timeout_ms: u64,
    /// How long a task may take to stop before its TaskManager is given up.
    pub task_cancellation_timeout_ms: u64,
    /// How long a TaskManager that the record names is waited for after a recovery.
    pub reconcile_timeout_ms: u64,
    /// Where the graph names no strategy.
    pub restart_strategy: RestartStrategy,
    /// With how many slots no TaskManager is started any more, where a driver does that and somebody has bounded it.
    pub max_slots: Option<u32>,
    /// Which regions start anew after a failure.
    pub failover_strategy: FailoverStrategy,
    /// How many failures the record keeps.
    pub exception_history_size: usize,
    /// A job that would have more regions has one for each set of vertices that pipelined edges connect.
    pub max_regions: usize,
    /// Seed of the jitter.
    pub seed: u64,
}

/// A registered TaskManager.
#[derive(Debug, Clone)]
pub(super) struct TaskManager {
    pub(super) registration: Registration,
    pub(super) location: Arc<pb::TaskManagerLocation>,
    // Ended executions that it reports until they are acknowledged: index of the task, generation.
    pub(super) unacknowledged: BTreeSet<(usize, u64)>,
    // Outputs that it keeps, and how far their release is.
    pub(super) outputs: BTreeMap<(usize, u64), Cancellation>,
    // Whether it was told, in this registration, that sources are to end.
    pub(super) is_told_to_stop: bool,
}

/// A task failed, or could not be placed.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) region: usize,
    pub(super) cause: String,
    pub(super) task: String,
    pub(super) host: String,
    pub(super) resource_id: String,
    // Whether the restart strategy counts it.
    pub(super) is_counted: bool,
    // Whether no restart mends it.
    pub(super) is_unrecoverable: bool,
}

impl Failure {
    /// Of a region of which no task has failed: it could not be placed.
    pub(super) fn of_region(region: usize, cause: String) -> Failure {
        let (task, host, resource_id) = Default::default();
        Failure {
            region,
            cause,
            task,
            host,
            resource_id,
            is_counted: true,
            is_unrecoverable: false,
        }
    }
}

/// How far the sinks' commit is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Commit {
    NotYet,
    Running { since_ms: u64, retry_delay_ms: u64 },
    RetryAt { at_ms: u64, retry_delay_ms: u64 },
    Done,
}

/// The write that is on its way.
#[derive(Debug, Clone)]
pub(super) struct Write {
    pub(super) number: u64,
    pub(super) revision: u64,
    pub(super) since_ms: u64,
    pub(super) state: Arc<pb::JobState>,
}

/// The state of one JobMaster.
#[derive(Debug)]
pub struct JobMasterCore {
    pub(super) graph: KeptGraph,
    pub(super) options: CoreOptions,
    pub(super) epoch: Epoch,
    pub(super) is_recovered: bool,
    pub(super) execution: ExecutionGraph,
    pub(super) pool: SlotPool,
    pub(super) task_managers: SmallMap<ResourceId, Box<TaskManager>>,
    pub(super) seen: SmallMap<ResourceId, Registration>,
    pub(super) strays: Strays,
    pub(super) agenda: Agenda,
    pub(super) looked_at: LookedAt,
    // Shared with `written` and what is being written while nothing has changed since.
    pub(super) record: Arc<pb::JobState>,
    pub(super) revision: u64,
    pub(super) written: Arc<pb::JobState>,
    pub(super) written_revision: u64,
    // Index of the task -> its end in `written`, for the present generation there.
    pub(super) durable_ends: BTreeMap<usize, ExecutionState>,
    // How many of these have finished.
    pub(super) durably_finished: usize,
    pub(super) writing: Option<Write>,
    pub(super) last_write: u64,
    pub(super) is_durable: bool,
    pub(super) refusal: Option<String>,
    pub(super) backoff: RestartBackoff,
    pub(super) failures: Vec<Failure>,
    pub(super) reconciliation: Reconciliation,
    pub(super) cancel_is_requested: bool,
    pub(super) stop_is_requested: bool,
    pub(super) commit: Commit,
    pub(super) commit_failure: Option<Box<pb::FailureRecord>>,
    // The slots that are needed, as of the last event: how many of each profile.
    pub(super) profiles_needed: Vec<(ResourceProfile, u32)>,
    // Counts the changes of `task_managers`: who comes, registers anew, goes.
    pub(super) registrations_version: u64,
    pub(super) patience: Patience,
    // Until when regions that were given up are not placed again.
    pub(super) held_until: BTreeSet<(u64, usize)>,
    pub(super) adopted_slots: AdoptedSlots,
    // Whether `record` has placements that no write has.
    pub(super) has_placed: bool,
    // Since when slots are collected for a batch of regions.
    pub(super) collecting_since_ms: Option<u64>,
    // Whether `record` may have ends of generations that were given up.
    pub(super) has_stale_ends: bool,
    pub(super) declared: Option<Arc<Needs>>,
    // What no TaskManager could ever give, says the ResourceManager.
    pub(super) unfulfillable: Option<Box<Unfulfillable>>,
    pub(super) moves: Moves,
    // Whether all of it ends by itself.
    pub(super) is_bounded: bool,
    // None where no operator has a half here.
    pub(super) coordination: Option<Box<Coordination>>,
    pub(super) result: Option<Box<pb::JobResult>>,
    pub(super) chronicle: Chronicle,
    pub(super) settled_at_ms: u64,
    pub(super) turn: u64,
    pub(super) effects: Vec<Effect>,
}

impl JobMasterCore {
    /// Builds the ExecutionGraph of `graph` as `state` has it. Nothing is decided yet.
    pub fn build(
        graph: impl Into<Arc<pb::JobGraph>>,
        state: impl Into<Arc<pb::JobState>>,
        is_recovered: bool,
        epoch: Epoch,
        options: CoreOptions,
        now_ms: u64,
    ) -> Result<JobMasterCore, BuildError> {
        let graph = graph.into();
        let mut state: Arc<pb::JobState> = state.into();
        if state.job_id != graph.job_id {
            let other = format!(
                "it is of job {}, the graph of {}",
                state.job_id, graph.job_id
            );
            return Err(BuildError::OtherGraph(other));
        }
        let mut execution = ExecutionGraph::of_record(&graph, &mut state, options.max_regions)?;
        let in_graph = graph
            .options
            .as_ref()
            .and_then(|options| options.restart_strategy.as_ref());
        let strategy = in_graph.and_then(RestartStrategy::from_proto);
        let strategy = strategy.unwrap_or_else(|| options.restart_strategy.clone());
        let coordination = Coordination::of(&graph, &mut execution);
        let is_bounded = execution.regions.iter().all(|region| region.is_bounded);
        let chronicle = Chronicle::of(&state, is_recovered, epoch.get(), now_ms);
        let mut core = JobMasterCore {
            graph: KeptGraph::of(&graph),
            epoch,
            is_recovered,
            execution,
            pool: SlotPool::default(),
            task_managers: SmallMap::new(),
            seen: SmallMap::new(),
            strays: Strays::default(),
            agenda: Agenda::default(),
            looked_at: LookedAt::default(),
            record: state.clone(),
            revision: 0,
            written: state,
            written_revision: 0,
            durable_ends: BTreeMap::new(),
            durably_finished: 0,
            writing: None,
            last_write: 0,
            is_durable: false,
            refusal: None,
            backoff: RestartBackoff::new(strategy),
            failures: Vec::new(),
            reconciliation: Reconciliation::default(),
            cancel_is_requested: false,
            stop_is_requested: false,
            commit: Commit::NotYet,
            commit_failure: None,
            profiles_needed: Vec::new(),
            registrations_version: 0,
            patience: Patience::default(),
            held_until: BTreeSet::new(),
            adopted_slots: AdoptedSlots::default(),
            has_placed: false,
            collecting_since_ms: None,
            has_stale_ends: false,
            declared: None,
            unfulfillable: None,
            moves: Moves::default(),
            is_bounded,
            coordination,
            result: None,
            chronicle,
            settled_at_ms: 0,
            turn: 0,
            effects: Vec::new(),
            options,
        };
        core.note_durable_ends();
        core.take_over(now_ms)?;
        core.note_status(now_ms);
        Ok(core)
    }

    /// Takes an event. Refused: nothing has changed.
    pub fn handle(&mut self, now_ms: u64, event: Event) -> Result<Vec<Effect>, Refusal> {
        self.turn += 1;
        self.note_patience(now_ms);
        let answer = self.take(now_ms, event);
        if answer.is_ok() {
            self.settle(now_ms);
            self.agenda = Agenda::default();
        }
        let effects = std::mem::take(&mut self.effects);
        answer.map(|()| effects)
    }

    fn take(&mut self, now_ms: u64, event: Event) -> Result<(), Refusal> {
        match event {
            Event::Started | Event::TimePassed => {}
            Event::Registered {
                connection,
                location,
                executions,
                slots,
                outputs,
            } => {
                let reported = (executions.as_slice(), slots.as_slice());
                self.register(&connection, location, reported, now_ms)?;
                self.note_outputs(&connection.task_manager, &outputs, None);
            }
            Event::SlotsOffered { connection, slots } => {
                self.check(&connection)?;
                let (accepted, rejected) = self.offer(&connection.task_manager, &slots, now_ms);
                self.effects
                    .push(Effect::AnswerOffer { accepted, rejected });
            }
            Event::SlotFailed {
                connection,
                allocation,
                cause,
            } => {
                self.check(&connection)?;
                let held = self.pool.get(&allocation);
                if held.is_some_and(|slot| slot.task_manager == connection.task_manager) {
                    self.lose_slot(&allocation, &cause, now_ms);
                }
            }
            Event::ExecutionsReported {
                connection,
                executions,
            } => {
                self.check(&connection)?;
                self.hear(&connection.task_manager, &executions, now_ms);
            }
            Event::HeartbeatAnswered {
                connection,
                asked_in,
                executions,
                allocations,
                outputs,
            } => {
                self.check(&connection)?;
                self.reconcile(&connection.task_manager, asked_in, &executions, now_ms);
                self.reconcile_slots(&connection.task_manager, asked_in, &allocations, now_ms);
                self.note_outputs(&connection.task_manager, &outputs, Some(asked_in));
            }
            Event::TaskManagerLost { connection, cause } => {
                self.check(&connection)?;
                self.lose_task_manager(&connection.task_manager, &cause, now_ms);
            }
            Event::TaskManagerLeft { connection, cause } => {
                self.check(&connection)?;
                self.let_task_manager_go(&connection.task_manager, &cause, now_ms);
            }
            Event::TaskManagerGone {
                task_manager,
                incarnation,
            } => self.miss_task_manager(&task_manager, &incarnation, now_ms),
            Event::TasksSubmitted {
                connection,
                tasks,
                outcome,
            } => {
                self.check(&connection)?;
                self.note_submitted(&connection.task_manager, &tasks, outcome);
            }
            Event::TasksCancelled {
                connection,
                tasks,
                is_confirmed,
            } => {
                self.check(&connection)?;
                self.note_cancelled(&connection, &tasks, is_confirmed);
                self.note_released(&connection.task_manager, &tasks, is_confirmed);
            }
            Event::Prepared {
                region,
                generation,
                outcome,
            } => self.note_prepared(region, generation, outcome),
            Event::CoordinatorAsked {
                connection,
                request,
            } => {
                self.check(&connection)?;
                self.ask(&connection, request)?;
            }
            Event::Unfulfillable(verdict) => self.unfulfillable = verdict,
            Event::HasRoom(has_room) => self.patience.has_room = has_room,
            Event::Leaving(leaving) => self.moves.leaving = leaving,
            Event::CancelRequested => self.cancel_is_requested = true,
            Event::StopRequested => self.stop_is_requested = true,
            Event::Persisted(number) => {
                if let Some(write) = self.writing.take_if(|write| write.number == number) {
                    self.written = write.state;
                    self.written_revision = write.revision;
                    self.is_durable = true;
                    self.agenda.has_written = true;
                    self.begin_reconciliation(now_ms);
                    self.note_durable_ends();
                }
            }
            Event::PersistRefused(number, reason) => {
                if self
                    .writing
                    .take_if(|write| write.number == number)
                    .is_some()
                {
                    self.refusal = Some(reason);
                }
            }
            Event::SinksCommitted => self.commit = Commit::Done,
            Event::SinksFailed(reason) => self.note_commit_failure(reason, now_ms),
            Event::SinksRefused(reason) => self.give_up_commit(&reason, now_ms),
        }
        Ok(())
    }

    /// Whether the job is to end without finishing, durable or not.
    pub(super) fn is_stopping(&self) -> bool {
        self.record.wanted() == pb::WantedStatus::Canceled || !self.record.fatal_cause.is_empty()
    }

    /// The turn of the last event; goes with a heartbeat, so that its answer can be judged.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Whether it is decided, durable or not, that the job ends without finishing.
    #[cfg(test)]
    pub(super) fn is_to_end(&self) -> bool {
        self.is_stopping() || self.result.is_some()
    }

    /// Whether anything that this JobMaster wrote is durable: the record names it.
    pub fn is_durable(&self) -> bool {
        self.is_durable
    }

    /// The number of JobMasters of this job up to and including this one.
    pub fn job_incarnation(&self) -> u64 {
        self.record.job_incarnation
    }

    /// All registered TaskManagers and the slots that are held there.
    pub fn connections(
        &self,
    ) -> Vec<(Connection, Arc<pb::TaskManagerLocation>, Vec<AllocationId>)> {
        let known = self.task_managers.iter();
        let described = known.map(|(id, known)| {
            let connection = Connection {
                task_manager: id.clone(),
                registration: known.registration,
            };
            (connection, known.location.clone(), self.pool.slots_of(id))
        });
        described.collect()
    }

    /// Changes whenever [`JobMasterCore::registrations`] does.
    pub fn registrations_version(&self) -> u64 {
        self.registrations_version
    }

    /// All registered TaskManagers.
    pub fn registrations(&self) -> impl Iterator<Item = (&ResourceId, Registration)> {
        let known = self.task_managers.iter();
        known.map(|(id, known)| (id, known.registration))
    }

    /// The slots that are held of a TaskManager.
    pub fn slots_of(&self, task_manager: &ResourceId) -> Vec<AllocationId> {
        self.pool.slots_of(task_manager)
    }

    /// Where a TaskManager is reached, if it is registered.
    pub fn location(&self, task_manager: &ResourceId) -> Option<&Arc<pb::TaskManagerLocation>> {
        self.task_managers
            .get(task_manager)
            .map(|known| &known.location)
    }
}

/// An id from its text.
pub(super) fn parse<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}
