//! Savepoints: answers requests once they are durable, copies completed checkpoints, and adds events of the job about
//! their progress. The core decides which requests are taken, fail or are copied; [`Savepoints`] owns the callers that
//! wait and the copies that run.
//!
//! Invariant: each caller gets one answer, that of its trigger id.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::GatewayError;
use tanist_gateway::savepoints;
use tanist_ha::blob::CheckpointStorage;
use tanist_ha::failpoint::failpoint;
use tanist_ha::retry::Backoff;
use tanist_model::{commits_at_the_end, restore};
use tanist_proto::v1 as pb;
use tanist_proto::v1::SavepointProgress;
use tokio::sync::Semaphore;

use super::Checkpoints;
use crate::actor::JobMasterActor;
use crate::calls::Done;
use crate::core;
use crate::core::checkpoints::{Event, stop_of};
use crate::handle::Reply;

/// Number of attempts to copy a savepoint if the storage can't be reached.
const COPY_ATTEMPTS: u32 = 5;
/// Timeout of one attempt to remove the copy of a savepoint that failed.
const DISCARD_TIMEOUT: Duration = Duration::from_secs(120);

/// The requests for savepoints at one JobMaster; see the module.
#[derive(Debug, Default)]
pub(super) struct Savepoints {
    /// Callers that wait, by trigger id.
    waiting: BTreeMap<String, Vec<Reply<()>>>,
    /// The progress that has its event, by trigger id.
    told: BTreeMap<String, SavepointProgress>,
    /// The copies of this JobMaster, by trigger id.
    copies: BTreeMap<String, RunningCopy>,
}

/// A copy that runs, or has ended.
#[derive(Debug, Clone)]
struct RunningCopy {
    /// Closed when the copy is given up. Never has permits, so `acquire` returns once it is closed.
    given_up: Arc<Semaphore>,
    /// Closed when the copy has ended, and writes nothing more. Never has permits.
    ended: Arc<Semaphore>,
}

impl RunningCopy {
    fn new() -> RunningCopy {
        let [given_up, ended] = [0, 0].map(|permits| Arc::new(Semaphore::new(permits)));
        RunningCopy { given_up, ended }
    }

    /// Runs a copy until it has an outcome or is given up.
    async fn run(self, copying: impl Future<Output = Done>) -> Done {
        let done = tokio::select! {
            biased;
            _closed = self.given_up.acquire() => Done::Nothing,
            done = copying => done,
        };
        self.ended.close();
        done
    }

    /// Gives it up, and returns once it has ended.
    async fn stop(self) {
        self.given_up.close();
        let _closed = self.ended.acquire().await;
    }
}

impl Savepoints {
    /// The requests of the record that a JobMaster begins with: an earlier one has added their events.
    pub(super) fn new(record: &pb::JobCheckpoints) -> Savepoints {
        let mut savepoints = Savepoints::default();
        savepoints.take_news(record);
        savepoints
    }

    /// A copy begins. Those that have ended are forgotten: they write nothing more.
    fn begin_copy(&mut self, trigger_id: &str) -> RunningCopy {
        self.copies.retain(|_, copy| !copy.ended.is_closed());
        let running = RunningCopy::new();
        self.copies.insert(trigger_id.to_owned(), running.clone());
        running
    }

    /// The texts of events: the progress of requests since the last call.
    pub(super) fn take_news(&mut self, record: &pb::JobCheckpoints) -> Vec<String> {
        let mut news = Vec::new();
        for request in &record.requests {
            let progress = request.progress();
            let before = self.told.get(&request.trigger_id);
            if before == Some(&progress) {
                continue;
            }
            let is_new = before.is_none();
            self.told.insert(request.trigger_id.clone(), progress);
            if is_new {
                let stops = if request.stops {
                    ", with which the job stops"
                } else {
                    ""
                };
                news.push(format!(
                    "a savepoint below {} was requested{stops}",
                    request.directory
                ));
            }
            match progress {
                SavepointProgress::Completed => {
                    news.push(format!("the savepoint {} is complete", request.outcome));
                }
                SavepointProgress::Failed => {
                    news.push(format!("a savepoint failed: {}", request.outcome));
                }
                SavepointProgress::Requested | SavepointProgress::Copying => {}
            }
        }
        if self.told.len() > record.requests.len() {
            let is_kept = |id: &String| record.requests.iter().any(|it| it.trigger_id == *id);
            self.told.retain(|id, _| is_kept(id));
        }
        news
    }
}

/// The requests of a record, for people. `waits_for`: what an open one waits for.
pub(super) fn summaries(
    record: &pb::JobCheckpoints,
    waits_for: impl Fn(&pb::SavepointRequest) -> Option<String>,
) -> Vec<pb::SavepointSummary> {
    let summary = |request: &pb::SavepointRequest| pb::SavepointSummary {
        trigger_id: request.trigger_id.clone(),
        outcome: match request.progress() {
            SavepointProgress::Requested | SavepointProgress::Copying => {
                pb::SavepointOutcome::InProgress
            }
            SavepointProgress::Completed => pb::SavepointOutcome::Completed,
            SavepointProgress::Failed => pb::SavepointOutcome::Failed,
        }
        .into(),
        text: waits_for(request).unwrap_or_else(|| request.outcome.clone()),
        requested_at_ms: request.requested_at_ms,
        number: request.number,
        stops: request.stops,
    };
    record.requests.iter().map(summary).collect()
}

/// The description of a job that has ended: a savepoint that is not complete never will be.
pub(crate) fn end_open(details: &mut pb::CheckpointDetails) {
    for savepoint in &mut details.savepoints {
        if savepoint.outcome() == pb::SavepointOutcome::InProgress {
            savepoint.set_outcome(pb::SavepointOutcome::Failed);
            savepoint.text = "the job has ended".to_owned();
        }
    }
}

impl Checkpoints {
    /// Whether a request is durable, or is being written.
    fn has_taken(&self, trigger_id: &str) -> bool {
        let mut durable = self.core.durable().requests.iter();
        let is_durable = durable.any(|it| it.trigger_id == trigger_id);
        is_durable || self.savepoints.waiting.contains_key(trigger_id)
    }

    /// The job has ended: callers that wait get no savepoint.
    pub(super) fn refuse_savepoints(&mut self) {
        let waiting = std::mem::take(&mut self.savepoints.waiting);
        for reply in waiting.into_values().flatten() {
            // A caller that is gone needs no answer.
            let _ = reply.send(Err(GatewayError::Conflict("the job has ended".to_owned())));
        }
    }
}

impl JobMasterActor {
    /// Takes a request for a savepoint. It is answered once it is durable.
    pub(crate) fn trigger_savepoint(
        &mut self,
        request: pb::TriggerSavepointRequest,
        reply: Reply<()>,
    ) {
        if self.checkpoints.is_none() {
            let why = match self.progress.0.look(|progress| progress.outcome.is_some()) {
                true => "it has ended",
                false => {
                    "it takes no checkpoints: set `interval` of `checkpoints` in its job file, or `execution.checkpointing.interval`"
                }
            };
            let _ = reply.send(Err(self.no_savepoint(why)));
            return;
        }
        if let Some(step) = commits_at_the_end(&self.core.graph().get()) {
            let why = format!(
                "step {step} makes its output visible at the end of the job, so a savepoint would lack it: write \
                 `commit: checkpoint` there"
            );
            let _ = reply.send(Err(self.no_savepoint(&why)));
            return;
        }
        if request.stop && self.core.tells_to_stop() {
            let _ = reply.send(Err(
                self.no_savepoint("it is being stopped: its sources end")
            ));
            return;
        }
        // A request that was taken before is not refused: its caller waits for the same answer.
        let checkpoints = self.checkpoints.as_ref();
        let is_new = checkpoints.is_some_and(|it| !it.has_taken(&request.trigger_id));
        if is_new && let Some(why) = self.core.savepoint_obstacle(self.now_ms()) {
            let _ = reply.send(Err(self.no_savepoint(&why)));
            return;
        }
        let Some(checkpoints) = &mut self.checkpoints else {
            return;
        };
        let waiting = &mut checkpoints.savepoints.waiting;
        let waiting = waiting.entry(request.trigger_id.clone()).or_default();
        waiting.retain(|before| !before.is_closed());
        waiting.push(reply);
        let at_ms = self.now_ms();
        self.note_checkpoints([Event::SavepointRequested { request, at_ms }]);
    }

    /// The answer to a request that is refused.
    fn no_savepoint(&self, why: &str) -> GatewayError {
        let job = &self.calls.job.job_id;
        GatewayError::Conflict(format!("no savepoint of job {job} can be taken: {why}"))
    }

    /// Whether the job is being stopped with a savepoint.
    pub(crate) fn stops_with_savepoint(&self) -> bool {
        let checkpoints = self.checkpoints.as_ref();
        checkpoints.is_some_and(|it| stop_of(&it.core.durable().requests).is_some())
    }

    pub(super) fn answer_savepoint(&mut self, trigger_id: &str, answer: Result<(), String>) {
        let Some(checkpoints) = &mut self.checkpoints else {
            return;
        };
        let waiting = checkpoints.savepoints.waiting.remove(trigger_id);
        let answer = answer.map_err(|reason| self.no_savepoint(&reason));
        for reply in waiting.into_iter().flatten() {
            let _ = reply.send(answer.clone());
        }
    }

    /// Adds events about the progress of requests, once that is durable.
    pub(super) fn note_savepoints(&mut self) {
        let Some(checkpoints) = &mut self.checkpoints else {
            return;
        };
        let news = checkpoints.savepoints.take_news(checkpoints.core.durable());
        let kind = pb::JobEventKind::Savepoint;
        let news = news.into_iter();
        let news = news.map(|text| core::Event::CheckpointNoted(kind, text));
        self.exchange.answers.extend(news);
    }

    pub(super) fn copy_savepoint(&mut self, trigger_id: String, number: u64, directory: &str) {
        let Some(checkpoints) = &mut self.checkpoints else {
            return;
        };
        let Some(manifest) = checkpoints.core.manifest(number).cloned() else {
            let outcome = Err(format!("checkpoint {number} is not there any more"));
            self.tell_checkpoints(Event::SavepointCopied {
                trigger_id,
                outcome,
            });
            return;
        };
        if let Some(hidden) = restore::hidden_output(&manifest) {
            let outcome = Err(hidden);
            self.tell_checkpoints(Event::SavepointCopied {
                trigger_id,
                outcome,
            });
            return;
        }
        let path = savepoints::path_of(directory, &self.calls.job.job_id, &trigger_id, number);
        let storage = checkpoints.storage.clone();
        let is_default = self.options.savepoint_dir.as_deref() == Some(directory);
        let to = Target {
            path,
            key: is_default.then_some(SAVEPOINT_DIR),
            place: self.calls.place(),
        };
        let running = checkpoints.savepoints.begin_copy(&trigger_id);
        self.io
            .spawn(running.run(copy(trigger_id, to, manifest, storage)));
    }

    /// Removes the copy of a savepoint that has durably failed, after a copy that this JobMaster runs has ended:
    /// otherwise that copy would write more files.
    pub(super) fn discard_copy(&mut self, trigger_id: &str, directory: &str) {
        let Some(checkpoints) = &mut self.checkpoints else {
            return;
        };
        let running = checkpoints.savepoints.copies.remove(trigger_id);
        let record = checkpoints.core.durable();
        let mut failed = savepoints::failed_copies(record);
        let failed = failed.find(|it| it.trigger_id == trigger_id);
        let job = self.calls.job.job_id.clone();
        let path = failed.map(|it| savepoints::path_of(directory, &job, trigger_id, it.number));
        self.io.spawn(async move {
            if let Some(running) = running {
                running.stop().await;
            }
            if let Some(path) = path {
                discard(&path, &job).await;
            }
            Done::Nothing
        });
    }
}

/// Removes the copy of a savepoint that failed. If the storage can't be reached, that is left to the next JobMaster and
/// to the cleanup after the job.
async fn discard(path: &str, job: &str) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    for _ in 0..COPY_ATTEMPTS {
        let discarding = savepoints::discard_copy(path, job);
        let reason = match tokio::time::timeout(DISCARD_TIMEOUT, discarding).await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(_elapsed) => format!("no answer within {DISCARD_TIMEOUT:?}"),
        };
        tracing::warn!(
            path,
            reason,
            "what was copied for a failed savepoint can't be removed"
        );
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

/// The key of the directory of savepoints.
const SAVEPOINT_DIR: &str = "execution.checkpointing.savepoint-dir";

/// Where a savepoint is written.
#[derive(Debug)]
struct Target {
    path: String,
    /// The key by which its directory is configured, unless a request named another one.
    key: Option<&'static str>,
    /// The JobManager that writes it, for people.
    place: String,
}

impl Target {
    /// Why it can't be written.
    fn unwritten(&self, error: &impl Display) -> String {
        let Target { path, key, place } = self;
        let of_key = key.map_or_else(String::new, |key| format!(" (`{key}`)"));
        format!("it can't be copied to {path}{of_key} by {place}: {error}")
    }
}

/// Copies a checkpoint. A storage that can't be reached is tried only [`COPY_ATTEMPTS`] times: the sources of a job
/// that stops with the savepoint are paused meanwhile.
async fn copy(
    trigger_id: String,
    to: Target,
    manifest: Arc<pb::CheckpointManifest>,
    storage: Option<CheckpointStorage>,
) -> Done {
    let path = &to.path;
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(2));
    let mut attempt = 1;
    let outcome = loop {
        match savepoints::write(path, &manifest, storage.as_ref()).await {
            Ok(()) => {
                failpoint("savepoint.copied").await;
                break Ok(path.clone());
            }
            Err(error) if attempt < COPY_ATTEMPTS && error.may_pass() => {
                tracing::warn!(path, %error, "a savepoint can't be copied; it is tried again");
                attempt += 1;
                tokio::time::sleep(backoff.next_delay()).await;
            }
            Err(error) => {
                tracing::warn!(path, %error, "a savepoint can't be copied");
                break Err(to.unwritten(&error));
            }
        }
    };
    Done::Checkpoint(Event::SavepointCopied {
        trigger_id,
        outcome,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(
        trigger_id: &str,
        progress: SavepointProgress,
        outcome: &str,
    ) -> pb::SavepointRequest {
        pb::SavepointRequest {
            trigger_id: trigger_id.to_owned(),
            directory: "/savepoints".to_owned(),
            progress: progress.into(),
            outcome: outcome.to_owned(),
            stops: trigger_id == "b",
            ..pb::SavepointRequest::default()
        }
    }

    fn record(requests: &[pb::SavepointRequest]) -> pb::JobCheckpoints {
        pb::JobCheckpoints {
            requests: requests.to_vec(),
            ..pb::JobCheckpoints::default()
        }
    }

    #[test]
    fn each_change_is_told_once_and_what_an_earlier_leader_told_is_not() {
        use SavepointProgress::{Completed, Copying, Failed, Requested};
        let first = request("a", Requested, "");
        let mut savepoints = Savepoints::new(&record(std::slice::from_ref(&first)));
        let requests = [request("a", Copying, ""), request("b", Requested, "")];
        let news = savepoints.take_news(&record(&requests));
        let asked = "a savepoint below /savepoints was requested, with which the job stops";
        assert_eq!(news, [asked]);
        assert!(savepoints.take_news(&record(&requests)).is_empty());
        let requests = [
            request("a", Completed, "/savepoints/1"),
            request("b", Failed, "the disk is full"),
        ];
        let news = savepoints.take_news(&record(&requests));
        let ended = [
            "the savepoint /savepoints/1 is complete",
            "a savepoint failed: the disk is full",
        ];
        assert_eq!(news, ended);
        assert!(savepoints.take_news(&record(&[])).is_empty());
        assert!(savepoints.told.is_empty(), "forgotten with the record");
    }

    #[tokio::test]
    async fn copies_that_have_ended_are_forgotten() {
        let mut savepoints = Savepoints::default();
        for trigger_id in ["a", "b", "c"] {
            let running = savepoints.begin_copy(trigger_id);
            assert!(savepoints.copies.keys().eq([trigger_id]));
            let _done = running.run(async { Done::Nothing }).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_savepoint_that_can_t_be_written_fails_and_names_its_directory() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        std::fs::write(&file, "no directory").expect("written");
        let path = file.join("savepoint-1").to_string_lossy().into_owned();
        let manifest = Arc::new(pb::CheckpointManifest::default());
        let to = Target {
            path: path.clone(),
            key: None,
            place: "JobManager a".to_owned(),
        };
        let copied = copy("a".to_owned(), to, manifest, None).await;
        let Done::Checkpoint(Event::SavepointCopied { outcome, .. }) = copied else {
            panic!("{copied:?}");
        };
        let reason = outcome.expect_err("no directory");
        let expected = format!("it can't be copied to {path} by JobManager a: ");
        assert!(reason.starts_with(&expected), "{reason}");
    }

    #[test]
    fn a_request_that_is_being_copied_is_in_progress_for_people() {
        use SavepointProgress::{Completed, Copying};
        let requests = [request("a", Copying, ""), request("b", Completed, "/s/1")];
        let [a, b] = summaries(&record(&requests), |_| None)
            .try_into()
            .expect("two");
        assert_eq!(a.outcome(), pb::SavepointOutcome::InProgress);
        assert_eq!(
            (b.outcome(), b.text.as_str()),
            (pb::SavepointOutcome::Completed, "/s/1")
        );
        assert!(b.stops && !a.stops);
        let mut details = pb::CheckpointDetails {
            savepoints: vec![a, b],
            ..pb::CheckpointDetails::default()
        };
        end_open(&mut details);
        let outcomes = details.savepoints.iter().map(pb::SavepointSummary::outcome);
        let ended = [
            pb::SavepointOutcome::Failed,
            pb::SavepointOutcome::Completed,
        ];
        assert!(outcomes.eq(ended));
    }
}
