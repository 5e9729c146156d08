//! A job on a TaskExecutor: its executions, the connection to its JobMaster, and the messages on it. Pure.
//!
//! The methods are in `messages` (sent and received), `tasks` (how tasks start and end) and `snapshots` (checkpoints).
//!
//! - A job that has ended here is not connected any more, and is forgotten when its tasks have ended.
//! - A job that is being stopped stays so: the sources of tasks that start later end, too.

mod messages;
mod snapshots;
mod tasks;

use std::collections::BTreeSet;
use std::sync::Arc;

use tanist_ha::clock::Uptime;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

pub(super) use self::snapshots::SourceState;
pub(super) use self::tasks::Beginning;
use super::checkpoints::{Checkpoints, DeclineTimer};
use super::connection::Connection;
use super::effect::{Effect, TaskKey};
use super::executions::{CancellationTimeouts, ExecutionKey, Executions};
use super::graphs::KnownGraph;
use super::outbox::Outbox;
use super::output::Output;
use super::regions::Regions;

/// See the module.
#[derive(Debug)]
pub(super) struct Job {
    id: JobId,
    /// Highest known incarnation of the job's JobMaster.
    incarnation: u64,
    /// The connection to its JobMaster.
    connection: Connection,
    outbox: Outbox,
    executions: Executions,
    checkpoints: Checkpoints,
    /// Since when it has no JobMaster here.
    decline_timer: DeclineTimer,
    /// The pipelined regions of its deployed tasks.
    regions: Regions,
    /// Its graph, if deployments only name it and it was fetched.
    graph: Option<KnownGraph>,
    /// Whether files may be kept for its next tasks: some tasks started since it last had no slot.
    has_files: bool,
    /// Whether its sources must end.
    is_stopped: bool,
    /// Whether it has ended and only waits for its tasks to end.
    is_ending: bool,
}

impl Job {
    /// Without slots and executions. The runs of its connection are above `run`.
    pub(super) fn new(id: JobId, run: u64) -> Job {
        Job {
            id,
            incarnation: 0,
            connection: Connection::idle(run),
            outbox: Outbox::new(),
            executions: Executions::default(),
            checkpoints: Checkpoints::default(),
            decline_timer: DeclineTimer::default(),
            regions: Regions::default(),
            graph: None,
            has_files: false,
            is_stopped: false,
            is_ending: false,
        }
    }

    /// Its id.
    pub(super) fn id(&self) -> JobId {
        self.id
    }

    /// Highest known incarnation of its JobMaster.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The connection to its JobMaster.
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Its executions.
    pub(super) fn executions(&self) -> &Executions {
        &self.executions
    }

    /// Whether its sources must end.
    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Whether it has ended and only waits for its tasks to end.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// When something of it is due.
    pub(super) fn next_deadline(&self) -> Option<Uptime> {
        let is_sending = self.connection.is_registered();
        let retry_at = self.outbox.retry_at(&self.executions);
        let times = [
            self.connection.lost_at(),
            self.executions.next_deadline(),
            retry_at.filter(|_| is_sending),
            self.checkpoints.retry_at().filter(|_| is_sending),
            self.decline_timer
                .deadline()
                .filter(|_| self.checkpoints.has_blocked()),
        ];
        times.into_iter().flatten().min()
    }

    /// Begins to connect to another JobMaster, or again to the same one. Returns the run of attempts.
    pub(super) fn connect(&mut self, address: &str) -> u64 {
        self.outbox.reset(&mut self.executions);
        self.checkpoints.reset();
        self.connection.begin(address)
    }

    /// Ends the connection.
    pub(super) fn disconnect(&mut self) {
        self.outbox.reset(&mut self.executions);
        self.checkpoints.reset();
        self.connection.end();
    }

    /// Records a message of the JobMaster.
    pub(super) fn record_contact(&mut self, now: Uptime) {
        self.connection.record_contact(now);
    }

    /// Records an incarnation of the JobMaster.
    pub(super) fn raise_incarnation(&mut self, incarnation: u64) {
        self.incarnation = self.incarnation.max(incarnation);
    }

    /// Keeps a fetched graph.
    pub(super) fn keep_graph(&mut self, graph: KnownGraph) {
        self.graph = Some(graph);
    }

    /// The referenced graph, if it was fetched.
    pub(super) fn graph(&self, reference: &pb::BlobReference) -> Option<Arc<pb::JobGraph>> {
        self.graph.as_ref()?.if_is(reference)
    }

    /// Begins its end here: disconnects, and cancels all tasks.
    pub(super) fn end(&mut self, timeouts: CancellationTimeouts, output: &mut Output) {
        self.is_ending = true;
        self.disconnect();
        self.outbox.replace_offers(BTreeSet::new());
        self.cancel_all(timeouts, output);
    }

    /// Releases the files kept for its next tasks: it has no slot any more.
    pub(super) fn release_files(&mut self, output: &mut Output) {
        if std::mem::take(&mut self.has_files) {
            output.effect(Effect::ReleaseFiles(self.id));
        }
    }

    fn task(&self, execution: ExecutionKey) -> TaskKey {
        TaskKey {
            job: self.id,
            execution,
        }
    }
}
