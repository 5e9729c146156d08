//! The description of a job, for users and REST, and its result. Pure; decides nothing.

use tanist_gateway::persistence::was_never_placed;
use tanist_ha::election::Epoch;
use tanist_model::OperatorSpec;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState;

use super::JobMasterCore;
use super::execution_graph::execution::Execution;
use super::job_events::entering;

impl JobMasterCore {
    /// The full description of the job.
    pub fn details(&self) -> pb::JobDetails {
        self.details_of(&self.job_graph.get())
    }

    fn details_of(&self, graph: &pb::JobGraph) -> pb::JobDetails {
        let vertices = graph.vertices.iter().zip(self.graph.vertices());
        let vertices = vertices.map(|(vertex, at)| pb::VertexDetails {
            id: vertex.id.clone(),
            name: vertex.name.clone(),
            parallelism: vertex.parallelism,
            max_parallelism: vertex.max_parallelism,
            slot_sharing_group: vertex.slot_sharing_group.clone(),
            subtasks: (0..vertex.parallelism)
                .map(|subtask| self.subtask_details(at.first, subtask))
                .collect(),
        });
        let mut failures = self.record.decided().failures.clone();
        failures.extend(self.end.commit_failure().cloned());
        failures.extend(self.checkpoint_commit.failure().cloned());
        pb::JobDetails {
            job_id: self.record.decided().job_id.clone(),
            name: self.record.decided().name.clone(),
            status: self.status().into(),
            started_at_ms: self.record.decided().submitted_at_ms,
            ended_at_ms: 0,
            max_parallelism: graph
                .vertices
                .iter()
                .map(|vertex| vertex.max_parallelism)
                .max()
                .unwrap_or_default(),
            timestamps: self.timestamps(),
            vertices: vertices.collect(),
            edges: graph.edges.iter().map(edge_details).collect(),
            failures,
            restarts: self
                .record
                .decided()
                .restarts
                .as_ref()
                .map_or(0, |counters| counters.restarts),
            quarantine: String::new(),
            cleaning_up: self.end.has_ended(),
            left_behind: String::new(),
            as_of: None,
            quarantined: None,
            blocked_reasons: self.blocked_reasons(),
            state_counts: Vec::new(),
            undescribed: String::new(),
            checkpoints: None,
            state_sizes: Vec::new(),
            events: self.events(),
            cause: self
                .end
                .result()
                .map_or_else(String::new, |result| result.cause.clone()),
        }
    }

    fn subtask_details(&self, first: usize, subtask: u32) -> pb::SubtaskDetails {
        let task = self
            .graph
            .task(first + super::execution_graph::as_index(subtask));
        let execution = &task.execution;
        let place = execution.place.as_ref();
        let (state, timestamps) = match self.stops_with_savepoint() {
            true => finished(execution),
            false => (execution.state, execution.timestamps()),
        };
        pb::SubtaskDetails {
            subtask,
            state: state.into(),
            attempt: execution.generation.get(),
            host: place
                .map(|place| place.location.rpc_address.clone())
                .unwrap_or_default(),
            resource_id: place
                .map(|place| place.task_manager.to_string())
                .unwrap_or_default(),
            started_at_ms: execution.started_at_ms,
            ended_at_ms: execution.ended_at_ms,
            metrics: execution.metrics,
            timestamps,
            unread_state: execution.unread_state().unwrap_or_default().to_owned(),
        }
    }

    /// Whether the job ends as FINISHED with a savepoint. A cancellation or a failure that is decided since is another
    /// end.
    fn stops_with_savepoint(&self) -> bool {
        let stops = |state: &pb::JobState| !state.stopped_with.is_empty();
        stops(self.record.durable()) && stops(self.record.decided())
    }

    /// The result of the job if it ends now, dirty.
    pub(super) fn result_of(
        &mut self,
        status: pb::JobStatus,
        cause: String,
        now_ms: u64,
    ) -> Box<pb::JobResult> {
        let graph = self.job_graph.get();
        let mut details = self.details_of(&graph);
        details.status = status.into();
        details.ended_at_ms = now_ms;
        details.blocked_reasons.clear();
        for status in self.way_to(status) {
            super::job_events::enter(&mut details.timestamps, status, now_ms);
            let entered = entering(status, &cause, self.record.epoch(), now_ms);
            details.events.push(entered);
        }
        Box::new(result(
            &graph,
            self.record.decided(),
            status,
            cause,
            details,
            now_ms,
        ))
    }
}

/// State and times of a task that ends with a savepoint. All that it has read is in the savepoint, so it has finished
/// like its job, although its TaskManager cancels it.
fn finished(execution: &Execution) -> (ExecutionState, Vec<pb::ExecutionTimestamp>) {
    use ExecutionState::{Canceled, Canceling, Finished};
    let mut times = execution.timestamps();
    times.retain(|it| it.state() != Canceling);
    for time in &mut times {
        if time.state() == Canceled {
            time.set_state(Finished);
        }
    }
    let state = match execution.state {
        Canceled => Finished,
        state => state,
    };
    (state, times)
}

/// A result of `state`, dirty, that names the resources to clean up after the job.
fn result(
    graph: &pb::JobGraph,
    state: &pb::JobState,
    status: pb::JobStatus,
    cause: String,
    details: pb::JobDetails,
    now_ms: u64,
) -> pb::JobResult {
    pb::JobResult {
        job_id: state.job_id.clone(),
        name: state.name.clone(),
        status: status.into(),
        cause,
        submitted_at_ms: state.submitted_at_ms,
        ended_at_ms: now_ms,
        dirty: true,
        remove: Some(pb::Cleanup {
            sink_directories: sink_directories(graph),
            run: graph.run.clone(),
            ..pb::Cleanup::default()
        }),
        submission_token: state.submission_token.clone(),
        graph_digest: state.graph_digest.clone(),
        details: Some(details),
        description: None,
        // Set by the Dispatcher, which writes the result.
        kept_since_ms: 0,
        counted_ms: 0,
        never_placed: was_never_placed(state),
        drained: state.wanted() == pb::WantedStatus::Stopped,
    }
}

/// The result of a job for which no ExecutionGraph could be built.
pub(crate) fn failed_initialization(
    graph: &pb::JobGraph,
    state: &pb::JobState,
    cause: String,
    epoch: Epoch,
    now_ms: u64,
) -> pb::JobResult {
    let event = entering(pb::JobStatus::Failed, &cause, epoch.get(), now_ms);
    let entered = |status: pb::JobStatus| pb::StatusTimestamp {
        status: status.into(),
        at_ms: now_ms,
    };
    let details = pb::JobDetails {
        job_id: state.job_id.clone(),
        name: state.name.clone(),
        status: pb::JobStatus::Failed.into(),
        started_at_ms: state.submitted_at_ms,
        ended_at_ms: now_ms,
        timestamps: vec![
            entered(pb::JobStatus::Initializing),
            entered(pb::JobStatus::Failed),
        ],
        failures: vec![pb::FailureRecord {
            at_ms: now_ms,
            cause: cause.clone(),
            ..pb::FailureRecord::default()
        }],
        events: vec![event],
        ..pb::JobDetails::default()
    };
    result(graph, state, pb::JobStatus::Failed, cause, details, now_ms)
}

/// The description of such a job until its result is written: it has not ended before that.
pub(crate) fn before_its_end(result: &pb::JobResult) -> pb::JobDetails {
    let mut details = result.details.clone().unwrap_or_default();
    details.status = pb::JobStatus::Initializing.into();
    details.ended_at_ms = 0;
    details.timestamps.retain(|it| it.status != result.status);
    details.events.retain(|it| it.status != result.status);
    details.cleaning_up = true;
    details.cause.clone_from(&result.cause);
    details
}

/// The directories of the graph's file sinks, each once.
pub(crate) fn sink_directories(graph: &pb::JobGraph) -> Vec<String> {
    let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    let directory = |operator: &pb::Operator| match serde_json::from_str(&operator.spec) {
        Ok(OperatorSpec::FileSink(sink)) => Some(sink.path),
        Ok(_) | Err(_) => None,
    };
    let mut directories: Vec<String> = operators.filter_map(directory).collect();
    directories.sort();
    directories.dedup();
    directories
}

fn edge_details(edge: &pb::JobEdge) -> pb::JobEdgeDetails {
    let partitioning = match edge.partitioning() {
        pb::Partitioning::Unspecified => "",
        pb::Partitioning::Forward => "forward",
        pb::Partitioning::Hash => "hash",
        pb::Partitioning::Rebalance => "rebalance",
        pb::Partitioning::Broadcast => "broadcast",
        pb::Partitioning::Global => "global",
    };
    pb::JobEdgeDetails {
        source: edge.source.clone(),
        target: edge.target.clone(),
        partitioning: partitioning.to_owned(),
        blocking: edge.exchange() == pb::Exchange::Blocking,
    }
}
