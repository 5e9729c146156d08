//! Records in blobs that can't be read for a while. On paused time, over the memory store and a directory of blobs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::persistence::JobStateStore as _;
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::blob::BlobStore;
use tanist_ha::memory::MemoryCluster;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::crash_suspects_tests::with_ends;
use super::ended_tests::kill;
use super::scripted::{End, JOB, Leader, blobs, large_name, result_of, submission};
use super::testing::recovered;
use crate::DispatcherOptions;
use crate::core::{Resolution, first_state};
use crate::handle::Command;

const OTHER: JobId = JobId::from_bits(8);

/// A directory of blobs that fails when the test says so.
struct Place {
    directory: tempfile::TempDir,
    blobs: Arc<BlobStore>,
}

impl Place {
    async fn new() -> Place {
        let (directory, blobs) = blobs().await;
        Place { directory, blobs }
    }

    async fn lead(&self, cluster: &MemoryCluster, name: &str) -> Leader {
        let options = DispatcherOptions::default();
        Leader::with(cluster, name, Some(self.blobs.clone()), options).await
    }

    fn objects(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.directory.path()).expect("readable");
        entries
            .map(|entry| entry.expect("readable").path())
            .collect()
    }

    /// Makes all objects unreadable: each becomes a link to itself.
    fn fail(&self) {
        for path in self.objects() {
            fs::rename(&path, aside(&path)).expect("moved");
            symlink(&path, &path).expect("linked");
        }
    }

    fn answer(&self) {
        for path in self.objects() {
            if path.is_symlink() {
                fs::remove_file(&path).expect("removed");
                fs::rename(aside(&path), &path).expect("moved back");
            }
        }
    }
}

fn aside(path: &Path) -> PathBuf {
    path.with_extension("aside")
}

/// Writes a job whose graph is in a blob; its state too if `large`.
async fn put(leader: &Leader, job: JobId, large: bool, change: impl FnOnce(&mut pb::JobState)) {
    let mut submission = submission(job);
    submission.graph.name = large_name();
    let mut state = first_state(&submission, 1);
    if !large {
        state.name = "small".to_owned();
    }
    change(&mut state);
    let written = leader.store.put_submission(&submission.graph, &state).await;
    written.expect("written");
}

async fn resolve(leader: &Leader, action: pb::QuarantineAction) -> GatewayResult<pb::Ack> {
    let resolution = match action {
        pb::QuarantineAction::Delete => Resolution::Delete,
        _ => Resolution::Retry {
            from_checkpoint: None,
        },
    };
    let ask = |reply| Command::ResolveQuarantine {
        job: JOB,
        resolution,
        reply,
    };
    leader.dispatcher.ask(ask).await
}

fn started(leader: &Leader) -> Vec<String> {
    let job_masters = leader.world.job_masters.lock();
    let ids = job_masters.iter().map(|it| it.state.job_id.clone());
    ids.collect()
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_blob_can_not_be_read_at_a_takeover_is_led_by_itself_when_it_can() {
    let (cluster, place) = (MemoryCluster::default(), Place::new().await);
    let a = place.lead(&cluster, "a").await;
    put(&a, JOB, false, |_| {}).await;
    a.submit(OTHER).await.expect("acknowledged");
    kill(&a).await;

    place.fail();
    let b = place.lead(&cluster, "b").await;
    b.wait_for(OTHER, pb::JobStatus::Running).await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    let details = b.describe(JOB).await.expect("known");
    assert_eq!(details.status(), pb::JobStatus::Reconciling);
    let why = &details.blocked_reasons[0].text;
    assert!(why.contains("the blob store gives no answer"), "{why}");
    let refused = resolve(&b, pb::QuarantineAction::Delete).await;
    assert!(
        matches!(refused, Err(GatewayError::Conflict(_))),
        "{refused:?}"
    );
    assert_eq!(started(&b), [OTHER.to_string()]);

    place.answer();
    b.wait_for(JOB, pb::JobStatus::Running).await;
    assert_eq!(started(&b), [OTHER, JOB].map(|job| job.to_string()));
}

#[tokio::test(start_paused = true)]
async fn a_job_of_which_nothing_can_be_read_at_present_is_neither_taken_for_another_nor_run_twice()
{
    let (cluster, place) = (MemoryCluster::default(), Place::new().await);
    let a = place.lead(&cluster, "a").await;
    put(&a, JOB, true, |_| {}).await;
    kill(&a).await;
    place.fail();
    let b = place.lead(&cluster, "b").await;
    for asked in [b.submit(JOB).await.map(drop), b.cancel(JOB).await.map(drop)] {
        let error = asked.expect_err("unknown yet");
        assert!(error.is_retryable(), "{error:?}");
    }
    place.answer();
    b.wait_for(JOB, pb::JobStatus::Running).await;
    assert!(b.submit(JOB).await.expect("the same").repeated);
    assert_eq!(started(&b).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_can_not_be_read_at_present_is_not_forgotten_and_is_read_later() {
    let (cluster, place) = (MemoryCluster::default(), Place::new().await);
    let a = place.lead(&cluster, "a").await;
    let result = pb::JobResult {
        name: large_name(),
        ..result_of(JOB)
    };
    a.store.put_clean_result(&result).await.expect("written");
    kill(&a).await;
    place.fail();
    let b = place.lead(&cluster, "b").await;
    let action = pb::QuarantineAction::Delete;
    let refused = resolve(&b, action).await;
    assert!(
        matches!(refused, Err(GatewayError::Conflict(_))),
        "{refused:?}"
    );
    let error = b.submit(JOB).await.expect_err("unknown yet");
    assert!(error.is_retryable(), "{error:?}");
    place.answer();
    b.wait_for(JOB, pb::JobStatus::Finished).await;
    assert!(b.submit(JOB).await.expect("the same").repeated);
    assert_eq!(recovered(&b.store).await.results.len(), 1);
    assert!(started(&b).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_blob_is_missing_stays_quarantined_until_somebody_retries_it() {
    let (cluster, place) = (MemoryCluster::default(), Place::new().await);
    let a = place.lead(&cluster, "a").await;
    put(&a, JOB, false, |_| {}).await;
    kill(&a).await;
    let object = place.objects().remove(0);
    fs::rename(&object, aside(&object)).expect("moved");
    let b = place.lead(&cluster, "b").await;
    b.wait_for(JOB, pb::JobStatus::Suspended).await;
    fs::rename(aside(&object), &object).expect("moved back");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(b.status(JOB).await, Some(pb::JobStatus::Suspended));
    let retried = resolve(&b, pb::QuarantineAction::Retry).await;
    retried.expect("readable");
    assert_eq!(b.status(JOB).await, Some(pb::JobStatus::Running));
}

#[tokio::test(start_paused = true)]
async fn an_unavailable_job_can_be_cancelled_where_its_state_says_what_it_leaves() {
    let (cluster, place) = (MemoryCluster::default(), Place::new().await);
    let a = place.lead(&cluster, "a").await;
    put(&a, JOB, false, |state| {
        let paths = vec!["/out".to_owned()];
        state.sinks = Some(pb::SinkDirectories {
            paths,
            ..pb::SinkDirectories::default()
        });
    })
    .await;
    kill(&a).await;
    place.fail();
    let b = place.lead(&cluster, "b").await;
    b.cancel(JOB).await.expect("acknowledged");
    b.wait_for(JOB, pb::JobStatus::Canceled).await;
    place.answer();
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(*b.world.cleaned.lock(), ["/out"]);
    assert!(started(&b).is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_was_set_aside_before_it_was_unavailable_is_set_aside_again() {
    let (cluster, place) = (MemoryCluster::default(), Place::new().await);
    let a = place.lead(&cluster, "a").await;
    put(&a, JOB, true, |state| {
        state.quarantine = Some(pb::Quarantine {
            kind: pb::QuarantineKind::EndedProcess.into(),
            reason: "it ended the processes that led it".to_owned(),
            ..pb::Quarantine::default()
        });
    })
    .await;
    kill(&a).await;
    place.fail();
    let b = place.lead(&cluster, "b").await;
    b.wait_for(JOB, pb::JobStatus::Reconciling).await;
    place.answer();
    b.wait_for(JOB, pb::JobStatus::Suspended).await;
    assert!(started(&b).is_empty());
}

/// The reason of a job's quarantine.
fn broke() -> Option<pb::Quarantine> {
    Some(pb::Quarantine {
        kind: pb::QuarantineKind::Broke.into(),
        reason: "its JobMaster broke".to_owned(),
        ..pb::Quarantine::default()
    })
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_is_denied_the_records_of_a_job_forgets_nothing_of_it() {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    a.submit(JOB).await.expect("acknowledged");
    let state = pb::JobState {
        quarantine: broke(),
        ..first_state(&submission(JOB), 1)
    };
    a.store.put_state(&state).await.expect("written");
    kill(&a).await;
    let b = Leader::of(&cluster, "b").await;
    let before = b.describe(JOB).await.expect("known");
    b.records.faults().deny_gets(true);
    let retried = resolve(&b, pb::QuarantineAction::Retry).await;
    assert!(
        matches!(retried, Err(GatewayError::NotYet(_))),
        "{retried:?}"
    );
    let after = b.describe(JOB).await.expect("known");
    assert_eq!(after.quarantined, before.quarantined);
    assert!(b.submit(JOB).await.expect("the same").repeated);
    b.records.faults().deny_gets(false);
    let retried = resolve(&b, pb::QuarantineAction::Retry).await;
    retried.expect("readable");
    assert_eq!(b.status(JOB).await, Some(pb::JobStatus::Running));
}

#[tokio::test(start_paused = true)]
async fn what_was_known_of_a_job_is_known_when_its_state_can_not_be_read_any_more() {
    let (cluster, place) = (MemoryCluster::default(), Place::new().await);
    let a = place.lead(&cluster, "a").await;
    let finished = with_ends([(2, pb::ExecutionState::Finished); 2]);
    put(&a, JOB, true, |state| {
        state.quarantine = broke();
        state.regions = finished.regions;
        state.terminal = finished.terminal;
    })
    .await;
    kill(&a).await;
    let b = place.lead(&cluster, "b").await;
    b.wait_for(JOB, pb::JobStatus::Suspended).await;
    let name = b.describe(JOB).await.expect("known").name;
    for object in place.objects() {
        fs::remove_file(&object).expect("removed");
    }
    for refused in [
        resolve(&b, pb::QuarantineAction::Retry).await,
        b.cancel(JOB).await,
    ] {
        assert!(
            matches!(refused, Err(GatewayError::Conflict(_))),
            "{refused:?}"
        );
    }
    let details = b.describe(JOB).await.expect("known");
    assert_eq!(details.name, name);
    assert!(details.quarantine.contains("missing"), "{details:?}");
    assert!(b.submit(JOB).await.expect("the same").repeated);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_job_master_broke_is_the_same_while_its_records_are_denied() {
    let a = Leader::of(&MemoryCluster::default(), "a").await;
    a.submit(JOB).await.expect("acknowledged");
    a.records.faults().deny_gets(true);
    a.end_last(End::Broken);
    tokio::time::sleep(Duration::from_secs(60)).await;
    let details = a.describe(JOB).await.expect("known");
    let why = &details.blocked_reasons[0].text;
    assert!(why.contains("denies access"), "{why}");
    assert!(a.submit(JOB).await.expect("the same").repeated);
    a.records.faults().deny_gets(false);
    a.wait_for(JOB, pb::JobStatus::Running).await;
}
