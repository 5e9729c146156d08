//! Waits for tests of whole clusters: until conditions about the store and about jobs hold.

use std::time::Duration;

use tanist_gateway::Connector as _;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::cluster::{TIMEOUT, TestCluster};
use super::history::{AttemptKey, Stored};

impl TestCluster {
    /// Waits until a condition about the stored state holds.
    pub(crate) async fn until_stored(&self, what: &str, claim: impl Fn(&Stored) -> bool) {
        self.until(what, || claim(&self.world.stored())).await;
    }

    /// Waits until a condition holds.
    pub(crate) async fn until(&self, what: &str, claim: impl Fn() -> bool) {
        let start = tokio::time::Instant::now();
        while !claim() {
            assert!(
                start.elapsed() < TIMEOUT,
                "not within {TIMEOUT:?}: {what}; leader: {:?}, running: {:#?}, stored: {:#?}",
                self.leader_view(),
                self.world.tasks,
                self.world.stored()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until this many tasks of a job run as the record says, and no others, and the leader reports the
    /// same; returns the highest generation.
    pub(crate) async fn until_running(&self, job: JobId, tasks: usize) -> u64 {
        let highest = || {
            let stored = self.world.stored();
            let regions = &stored.states.get(&job)?.regions;
            let highest = regions.iter().map(|region| region.generation).max()?;
            let running = self.world.tasks.of(job);
            let is_recorded = |(attempt, _): &(AttemptKey, String)| {
                regions.iter().any(|region| {
                    region.generation == attempt.generation
                        && region.placements.iter().any(|placement| {
                            placement.vertex_id == attempt.vertex
                                && placement.subtask == attempt.subtask
                        })
                })
            };
            let all_run = running.len() == tasks && running.iter().all(is_recorded);
            all_run.then_some(highest)
        };
        let start = tokio::time::Instant::now();
        loop {
            if highest().is_some() && self.leader_says_running(job, tasks).await {
                return highest().unwrap_or_default();
            }
            assert!(
                start.elapsed() < TIMEOUT,
                "{tasks} tasks don't run within {TIMEOUT:?}; leader: {:?}, running: {:#?}, stored: {:#?}",
                self.leader_view(),
                self.world.tasks,
                self.world.stored()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn leader_says_running(&self, job: JobId, tasks: usize) -> bool {
        let leader = self.leader_view().leader;
        let Some(address) = leader.and_then(|leader| leader.addresses.get("rpc").cloned()) else {
            return false;
        };
        let dispatcher = self.client.connector.dispatcher(&address);
        let request = pb::DescribeJobRequest {
            job_id: job.to_string(),
            ..pb::DescribeJobRequest::default()
        };
        let described = dispatcher.describe_job(request);
        let described = tokio::time::timeout(Duration::from_secs(1), described).await;
        let Ok(Ok(details)) = described else {
            return false;
        };
        let subtasks = details.vertices.iter().flat_map(|vertex| &vertex.subtasks);
        let running = subtasks.filter(|subtask| subtask.state() == pb::ExecutionState::Running);
        details.status() == pb::JobStatus::Running && running.count() == tasks
    }

    /// Waits until a job has ended, its result is clean and nothing else of it is stored.
    pub(crate) async fn until_clean(&self, job: JobId) -> pb::JobStatus {
        let status = self.client.ended(job).await;
        self.until_stored("a clean result and nothing else", |stored| {
            let result = stored.results.get(&job);
            result.is_some_and(|result| !result.dirty)
                && !stored.graphs.contains_key(&job)
                && !stored.states.contains_key(&job)
        })
        .await;
        status
    }
}
