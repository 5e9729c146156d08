//! The decisions of a JobMaster, pure: (state, now, event) -> effects.
//!
//! The state is divided into owners with private fields; handlers borrow them and decide (`docs/adr/0056`).
//!
//! | owner | it alone says |
//! |---|---|
//! | [`DurableRecord`] | what is decided, what is being written, what is durable |
//! | [`ExecutionGraph`] | the state of each execution and region, and the indexes over them |
//! | [`Slots`] | which slots are held, needed, declared and reserved |
//! | [`TaskManagers`] | which registration counts, what was reported and is not acknowledged |
//! | [`Failover`] | which failures are open, whether and when a restart is allowed |
//! | [`JobEnd`] | which requests are open, how far the commit is, the result |
//! | [`Reconciliation`], [`Moves`], [`Coordinators`] | which regions are awaited, moved, prepared |
//! | [`Checkpointing`] | what regions are restored from, as the checkpoints of the job say |
//! | [`CheckpointCommit`] | why output that a checkpoint names is not visible yet |
//!
//! An event goes to its handler, mostly `reports.rs`, which changes the graph and notes failures. Then `decide.rs` runs
//! all handlers in one order. Decisions change the *decided* record and the graph. Everything that *acts* (deploy,
//! cancel, acknowledge, commit, answer) is derived from the *durable* record alone. So nothing acts on a decision that
//! the store does not have, and a record read from the store has the same effects as one that was just written.
//!
//! A generation is given up by a write of the next one without placements. Placing that one is another write.
//! Invariants: generations only grow; only what the durable record says is deployed, in the epoch that wrote it, once.

mod adopted_slots;
mod answers;
mod blocked_reasons;
mod checkpoint_commit;
mod checkpointing;
pub mod checkpoints;
mod coordinator;
mod deadlines;
mod decide;
mod details;
mod dirty;
mod durable_effects;
mod durable_record;
mod effect;
mod ending;
mod event;
mod eviction;
mod exceptions;
mod execution_graph;
mod failover;
mod faults;
mod handlers;
mod idle_slots;
mod job_end;
mod job_events;
mod kept_graph;
mod log_line;
mod moves;
mod options;
mod orphan_executions;
mod output;
mod reconciling;
mod recovery;
mod region_failover;
mod region_restart;
mod registering;
mod reports;
mod restart;
mod result_partitions;
mod savepoint_obstacle;
mod scheduling;
mod slot_assignment;
mod slot_needs;
mod slot_pool;
mod slot_requests;
mod slot_timeouts;
mod slot_wait;
mod slots;
mod status;
mod stopped;
mod task_managers;
mod terminal_states;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use tanist_ha::election::Epoch;
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::v1 as pb;

use self::checkpoint_commit::CheckpointCommit;
pub use self::checkpoint_commit::CommitProgress;
use self::checkpointing::Checkpointing;
pub(crate) use self::checkpointing::RestorePoints;
use self::coordinator::Coordinators;
pub(crate) use self::coordinator::{Coordinated, Kind, Unprepared, cut};
pub(crate) use self::details::{before_its_end, failed_initialization, sink_directories};
use self::dirty::Dirty;
use self::durable_record::DurableRecord;
pub use self::effect::Effect;
pub(crate) use self::effect::{CancelAnswer, CoordinatorAnswer, Milestone, Needs};
pub use self::event::SubmitOutcome;
pub use self::event::{Connection, Event, Registration};
pub(crate) use self::event::{CoordinatorRequest, Refusal};
pub(crate) use self::execution_graph::BuildError;
use self::execution_graph::ExecutionGraph;
pub use self::failover::FailoverStrategy;
use self::failover::{Failover, Failure};
use self::job_end::JobEnd;
use self::job_events::JobEvents;
pub(crate) use self::kept_graph::KeptGraph;
pub(crate) use self::log_line::LogLine;
use self::moves::Moves;
pub use self::options::CoreOptions;
use self::output::Output;
use self::reconciling::Reconciliation;
pub use self::restart::RestartStrategy;
use self::slot_needs::will_free_slots;
use self::slots::Slots;
use self::task_managers::TaskManagers;

/// The state of one JobMaster.
#[derive(Debug)]
pub struct JobMasterCore {
    job_graph: KeptGraph,
    options: CoreOptions,
    is_recovered: bool,
    graph: ExecutionGraph,
    slots: Slots,
    task_managers: TaskManagers,
    dirty: Dirty,
    record: DurableRecord,
    failover: Failover,
    reconciliation: Reconciliation,
    end: JobEnd,
    moves: Moves,
    coordinators: Coordinators,
    checkpointing: Checkpointing,
    checkpoint_commit: CheckpointCommit,
    job_events: JobEvents,
    decided_at_ms: u64,
    turn: u64,
    out: Output,
}

impl JobMasterCore {
    /// Builds the ExecutionGraph of `graph` in the state that `state` records, for a job without checkpoints. Decides
    /// nothing yet.
    pub fn build(
        graph: impl Into<Arc<pb::JobGraph>>,
        state: impl Into<Arc<pb::JobState>>,
        is_recovered: bool,
        epoch: Epoch,
        options: CoreOptions,
        now_ms: u64,
    ) -> Result<JobMasterCore, BuildError> {
        let at = (epoch, now_ms);
        JobMasterCore::build_from((graph, state, None), is_recovered, options, at)
    }

    /// The same for a job that takes checkpoints or has some, if `points` is set.
    pub fn build_from(
        (graph, state, points): (
            impl Into<Arc<pb::JobGraph>>,
            impl Into<Arc<pb::JobState>>,
            Option<Arc<RestorePoints>>,
        ),
        is_recovered: bool,
        options: CoreOptions,
        (epoch, now_ms): (Epoch, u64),
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
        let coordinators = Coordinators::of(&graph, &mut execution);
        let job_events = JobEvents::of(&state, is_recovered, epoch.get(), now_ms);
        let kept = KeptGraph::of(&graph);
        let failover = Failover::new(strategy, &options, kept.is_stop_first());
        let kept_failures = options.exception_history_size;
        let record = DurableRecord::new(state, epoch, kept_failures, &execution);
        let checkpointing = Checkpointing::new(points, &graph, &execution);
        let mut core = JobMasterCore {
            job_graph: kept,
            is_recovered,
            graph: execution,
            slots: Slots::new(&options),
            task_managers: TaskManagers::default(),
            dirty: Dirty::default(),
            record,
            failover,
            reconciliation: Reconciliation::new(options.reconcile_timeout_ms),
            end: JobEnd::default(),
            moves: Moves::default(),
            coordinators,
            checkpointing,
            checkpoint_commit: CheckpointCommit::default(),
            job_events,
            decided_at_ms: 0,
            turn: 0,
            out: Output::default(),
            options,
        };
        core.restore(now_ms)?;
        core.note_status(now_ms);
        if core.checkpointing.is_on() {
            core.out.keep_news();
        }
        Ok(core)
    }

    /// Takes the collected lines for the log, which precede the effects.
    pub fn take_log(&mut self) -> Vec<LogLine> {
        self.out.take_log()
    }

    /// The graph.
    pub fn graph(&self) -> &KeptGraph {
        &self.job_graph
    }

    /// Handles an event, and decides. On an error the event had no effect.
    pub fn handle(&mut self, now_ms: u64, event: Event) -> Result<Vec<Effect>, Refusal> {
        self.turn += 1;
        let will_free_slots = will_free_slots(&self.graph, &self.record);
        self.slots.begin_event(will_free_slots, now_ms);
        let answer = self.take(now_ms, event);
        if answer.is_ok() {
            self.decide(now_ms);
            self.dirty = Dirty::default();
        }
        let effects = self.out.take_effects();
        answer.map(|()| effects)
    }

    fn take(&mut self, now_ms: u64, event: Event) -> Result<(), Refusal> {
        if let Some(connection) = event.connection() {
            self.task_managers.check(connection)?;
        }
        let said = self.said_in(&event);
        let mut reports = self.reports(now_ms);
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
                reports.register(&connection, location, reported)?;
                reports.apply_partitions(&connection.task_manager, &outputs, None);
            }
            Event::SlotsOffered { connection, slots } => {
                let (accepted, rejected) = reports.offer(&connection.task_manager, &slots);
                self.out.push(Effect::AnswerOffer { accepted, rejected });
            }
            Event::SlotFailed {
                connection,
                allocation,
                cause,
            } => reports.fail_offered_slot(&connection.task_manager, &allocation, &cause),
            Event::ExecutionsReported {
                connection,
                executions,
            } => reports.apply_reports(&connection.task_manager, &executions),
            Event::HeartbeatAnswered {
                connection,
                requested_in,
                executions,
                allocations,
                outputs,
            } => {
                let id = &connection.task_manager;
                reports.reconcile(id, requested_in, &executions);
                reports.reconcile_slots(id, requested_in, &allocations);
                reports.apply_partitions(id, &outputs, Some(requested_in));
            }
            Event::TaskManagerLost { connection, cause } => {
                reports.lose_task_manager(&connection.task_manager, &cause);
            }
            Event::TaskManagerLeft { connection, cause } => {
                reports.let_task_manager_go(&connection.task_manager, &cause);
            }
            Event::TaskManagerGone {
                task_manager,
                incarnation,
            } => reports.give_up_awaited_on(&task_manager, &incarnation),
            Event::TasksSubmitted {
                connection,
                tasks,
                outcome,
            } => reports.apply_submitted(&connection.task_manager, &tasks, &outcome),
            Event::TasksCancelled {
                connection,
                tasks,
                is_confirmed,
            } => reports.apply_cancelled(&connection, &tasks, is_confirmed),
            Event::Prepared {
                region,
                generation,
                outcome,
            } => reports.apply_prepared(region, generation, outcome),
            Event::CoordinatorAsked {
                connection,
                request,
            } => {
                let (record, graph) = (&self.record, &self.graph);
                self.coordinators
                    .request(&connection, request, record, graph, &mut self.out)?;
            }
            Event::Unfulfillable(verdict) => self.slots.set_unfulfillable(verdict),
            Event::HasRoom(has_room) => self.slots.set_room(has_room),
            Event::Leaving(leaving) => self.moves.set_leaving(leaving),
            Event::CancelRequested => self.end.request_cancel(),
            Event::StopRequested => self.end.request_stop(),
            Event::Persisted(number) => {
                let before = self.record.durable_state();
                if let Some(changed) = self.record.confirm(number, &self.graph) {
                    self.dirty.set_written();
                    self.reconciliation.begin(now_ms);
                    self.slots.apply_ends(&changed, &self.graph);
                    self.tell_written(&changed.ended, &before.coordinators);
                }
            }
            Event::PersistRefused(number, reason) => self.record.refuse(number, reason),
            Event::CheckpointsChanged(points) => self.checkpointing.set(points),
            Event::CheckpointsFailed { region, cause } => reports.fail_region(region, cause),
            Event::CheckpointCommit(progress) => self.ending(now_ms).commit_checkpoint(progress),
            Event::CheckpointNoted(kind, text) => self.job_events.add(kind, text, now_ms),
            Event::SinksCommitted => self.end.commit_done(),
            Event::SinksFailed(reason) => self.end.commit_failed(&reason, now_ms),
            Event::SinksRefused(reason) => self.ending(now_ms).refuse_commit(&reason),
        }
        self.note_said(said, now_ms);
        Ok(())
    }

    /// The index of a task.
    pub fn find(&self, vertex_id: &str, subtask: u32) -> Option<usize> {
        self.graph.find(vertex_id, subtask)
    }

    /// The id of an execution of a task.
    pub fn execution_id(&self, task: usize, generation: u64) -> pb::ExecutionId {
        self::execution_graph::deployment::execution_id(&self.graph, task, generation)
    }

    /// A task's name for people: `count (2/4)`.
    pub fn task_name(&self, task: usize) -> String {
        self.graph.task_name(task)
    }

    /// The names of the vertices of a region.
    pub fn vertices_of(&self, region: usize) -> Vec<String> {
        let tasks = self.graph.region(region).tasks.iter();
        let mut vertices: Vec<usize> = tasks.map(|task| self.graph.task(*task).vertex).collect();
        vertices.dedup();
        let vertices = vertices.into_iter().map(|it| &self.graph.vertices()[it]);
        vertices.map(|vertex| vertex.name.clone()).collect()
    }

    /// The names of all vertices.
    pub fn vertex_names(&self) -> Vec<String> {
        let vertices = self.graph.vertices().iter();
        vertices.map(|vertex| vertex.name.clone()).collect()
    }

    /// The first task of a region that can't read at present what it is restored from, and why.
    pub fn unread_state_of(&self, region: usize) -> Option<String> {
        self.graph.region(region).tasks.iter().find_map(|task| {
            let reason = self.graph.execution(*task).unread_state()?;
            Some(format!("{}: {reason}", self.graph.task_name(*task)))
        })
    }

    /// The number of the last event. Sent with a heartbeat, so that its answer can be compared with later
    /// events.
    pub fn turn(&self) -> u64 {
        self.turn
    }

    /// Whether it is decided, durable or not, that the job ends without finishing, or it has ended.
    #[cfg(test)]
    fn is_to_end(&self) -> bool {
        self.record.is_stopping() || self.end.has_ended()
    }

    /// Whether a write of this JobMaster is durable, so that the record names it.
    pub fn is_durable(&self) -> bool {
        self.record.is_durable()
    }

    /// The number of JobMasters that this job has had, including this one.
    pub fn job_incarnation(&self) -> u64 {
        self.record.decided().job_incarnation
    }

    /// All registered TaskManagers and the slots held on each.
    pub fn connections(
        &self,
    ) -> Vec<(Connection, Arc<pb::TaskManagerLocation>, Vec<AllocationId>)> {
        let registered = self.task_managers.registrations();
        let described = registered.filter_map(|(id, registration)| {
            let location = self.task_managers.location(id)?.clone();
            let connection = Connection {
                task_manager: id.clone(),
                registration,
            };
            Some((connection, location, self.slots.pool().slots_of(id)))
        });
        described.collect()
    }

    /// Version of [`JobMasterCore::registrations`]; changes whenever they do.
    pub fn registrations_version(&self) -> u64 {
        self.task_managers.version()
    }

    /// All registered TaskManagers.
    pub fn registrations(&self) -> impl Iterator<Item = (&ResourceId, Registration)> {
        self.task_managers.registrations()
    }

    /// The slots held on a TaskManager.
    pub fn slots_of(&self, task_manager: &ResourceId) -> Vec<AllocationId> {
        self.slots.pool().slots_of(task_manager)
    }

    /// The connection to a TaskManager, if it is registered.
    pub fn connection(&self, task_manager: &ResourceId) -> Option<Connection> {
        self.task_managers.connection(task_manager)
    }

    /// The location of a TaskManager, if it is registered.
    pub fn location(&self, task_manager: &ResourceId) -> Option<&Arc<pb::TaskManagerLocation>> {
        self.task_managers.location(task_manager)
    }
}

/// Parses an id.
pub(crate) fn parse<T: std::str::FromStr>(text: &str) -> Option<T> {
    text.parse().ok()
}
