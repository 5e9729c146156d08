//! Jobs that begin from savepoints and from what other jobs left, over a directory and the memory store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tanist_gateway::DispatcherGateway as _;
use tanist_gateway::persistence::JobStateStore as _;
use tanist_ha::blob::{BlobStore, range_checksum};
use tanist_ha::memory::MemoryCluster;

use super::super::{Kept, Retained};
use super::Place as Stored;
use super::*;
use crate::DispatcherOptions;
use crate::cleanup::HiddenOutput;
use crate::core::{Submission, first_state};
use crate::tests::scripted::{End, JOB, Leader, blobs, result_of, submission};

#[path = "go_back_tests.rs"]
mod go_back;
#[path = "hidden_output_tests.rs"]
mod hidden_output;
#[path = "shared_output_tests.rs"]
mod shared_output;

const OTHER: JobId = JobId::from_bits(8);

/// A directory with a blob store, and a cluster that uses it.
struct World {
    directory: tempfile::TempDir,
    blobs: Arc<BlobStore>,
    cluster: MemoryCluster,
}

impl World {
    async fn new() -> World {
        let (directory, blobs) = blobs().await;
        let cluster = MemoryCluster::default();
        World {
            directory,
            blobs,
            cluster,
        }
    }

    async fn leader(&self, name: &str) -> Leader {
        let options = DispatcherOptions::default();
        Leader::with(&self.cluster, name, Some(self.blobs.clone()), options).await
    }

    /// The leader after `old`, which is cut off.
    async fn leader_after(&self, old: &Leader, name: &str) -> Leader {
        self.cluster.partition(&old.process);
        self.cluster.expire(&old.process);
        self.leader(name).await
    }

    /// Writes a savepoint of another cluster.
    async fn savepoint(&self, name: &str, manifest: &pb::CheckpointManifest) -> String {
        let source = self.blobs.checkpoints(&name_of(JobId::from_bits(9)));
        source.put("7-1-aa", "state".into()).await.expect("written");
        let path = self
            .directory
            .path()
            .join(name)
            .to_string_lossy()
            .into_owned();
        let written = savepoints::write(&path, manifest, Some(&source)).await;
        written.expect("written");
        path
    }
}

/// The manifest of a checkpoint with one object; `padding` bytes larger.
fn manifest(padding: usize) -> pb::CheckpointManifest {
    let segment = pb::StateSegment {
        object: "7-1-aa".to_owned(),
        length: 5,
        checksum: range_checksum(b"state"),
        ..pb::StateSegment::default()
    };
    pb::CheckpointManifest {
        number: 7,
        job_id: "p".repeat(padding),
        regions: vec![pb::RegionSnapshot {
            kind: pb::RegionSnapshotKind::Taken.into(),
            subtasks: vec![pb::SubtaskSnapshot {
                segments: vec![segment],
                ..pb::SubtaskSnapshot::default()
            }],
            ..pb::RegionSnapshot::default()
        }],
        ..pb::CheckpointManifest::default()
    }
}

fn from_path(path: &str) -> pb::RestoreRequest {
    pb::RestoreRequest {
        from: Some(RestoreFrom::Path(path.to_owned())),
        ..pb::RestoreRequest::default()
    }
}

fn from_job(job: JobId) -> pb::RestoreRequest {
    pb::RestoreRequest {
        from: Some(RestoreFrom::JobId(job.to_string())),
        allow_non_restored_state: true,
        ..pb::RestoreRequest::default()
    }
}

/// It fits as it is, and the coordinators are those of the manifest.
fn fitting(
    manifest: &pb::CheckpointManifest,
    graph: &pb::JobGraph,
    _: Unclaimed,
) -> Result<pb::CheckpointManifest, String> {
    Ok(pb::CheckpointManifest {
        job_id: graph.job_id.clone(),
        uncommitted: Vec::new(),
        coordinators: vec![pb::CoordinatorState {
            operator: format!("of {}", manifest.number),
            ..pb::CoordinatorState::default()
        }],
        ..manifest.clone()
    })
}

async fn put(
    leader: &Leader,
    job: JobId,
    request: &pb::RestoreRequest,
    fits: Fits,
) -> Result<pb::JobState, JobStoreError> {
    let files = Files::default();
    put_with(leader, job, request, (fits, &files)).await
}

async fn put_with(
    leader: &Leader,
    job: JobId,
    request: &pb::RestoreRequest,
    (fits, files): (Fits, &Files),
) -> Result<pb::JobState, JobStoreError> {
    let submission = submission(job);
    let mut state = first_state(&submission, 1);
    let how = (fits, files as &dyn SinkCleaner);
    let store = &leader.store;
    let putting = store.put_restored_submission(&submission.graph, &mut state, request, how);
    putting.await.map(|()| state)
}

/// The files of sinks. A file that is given to a job has its id before its path.
#[derive(Debug, Default)]
struct Files {
    /// What can't be done.
    trouble: Mutex<Option<&'static str>>,
    committed: Mutex<Vec<(u64, usize)>>,
    /// Job, run and directory.
    cleaned: Mutex<Vec<(JobId, String, String)>>,
    given: Mutex<Vec<Vec<u8>>>,
}

impl Files {
    fn checked(&self) -> Result<(), String> {
        let trouble = *self.trouble.lock();
        trouble.map_or(Ok(()), |trouble| Err(trouble.to_owned()))
    }
}

#[async_trait]
impl SinkCleaner for Files {
    async fn clean(
        &self,
        directory: &str,
        job: JobId,
        run: &str,
        kept: &HiddenOutput,
    ) -> Result<(), String> {
        self.checked()?;
        assert_eq!(*kept, HiddenOutput::default());
        let cleaned = (job, run.to_owned(), directory.to_owned());
        self.cleaned.lock().push(cleaned);
        Ok(())
    }

    async fn finish_commit(
        &self,
        number: u64,
        committables: &[pb::CheckpointCommittable],
    ) -> Result<(), String> {
        self.checked()?;
        self.committed.lock().push((number, committables.len()));
        Ok(())
    }

    async fn hand_over(
        &self,
        files: &[Vec<u8>],
        (job, _): (JobId, &str),
        _: &[PathBuf],
    ) -> Result<Vec<Vec<u8>>, String> {
        self.checked()?;
        self.given.lock().extend(files.iter().cloned());
        let job = job.to_string();
        let given = files.iter().map(|file| [job.as_bytes(), file].concat());
        Ok(given.collect())
    }
}

async fn record(leader: &Leader, job: JobId) -> Option<pb::JobCheckpoints> {
    let read = leader.store.checkpoints(&job.to_string()).await;
    read.expect("readable")
}

/// The record's origin, and its manifest.
async fn origin(leader: &Leader, job: JobId) -> (pb::CheckpointOrigin, pb::CheckpointManifest) {
    let record = record(leader, job).await.expect("there is one");
    assert_eq!((record.next, record.floor), (8, 8));
    let origin = record.origin.expect("it begins from a savepoint");
    let bytes = leader
        .store
        .manifest_of(job, origin.manifest.as_ref())
        .await;
    let manifest = manifest::decode(&bytes.expect("readable"));
    (origin, manifest.expect("whole"))
}

/// The manifest of the checkpoint that a job begins with, which is its own.
async fn begun(leader: &Leader, job: JobId) -> pb::CheckpointManifest {
    let record = record(leader, job).await.expect("there is one");
    assert_eq!((record.next, record.floor, &record.origin), (8, 8, &None));
    let [begun] = &*record.retained else {
        panic!("{record:?}");
    };
    assert_eq!((begun.number, begun.committed), (7, true));
    let bytes = leader.store.manifest_of(job, begun.manifest.as_ref()).await;
    let manifest = manifest::decode(&bytes.expect("readable")).expect("whole");
    assert_eq!(manifest.job_id, job.to_string());
    manifest
}

async fn sweep(leader: &Leader) -> usize {
    let gc = leader.store.orphan_gc();
    let swept = gc.sweep(Duration::ZERO, Duration::ZERO).await;
    swept.expect("swept")
}

#[tokio::test(start_paused = true)]
async fn a_job_begins_from_a_savepoint_and_its_record_is_part_of_the_submission() {
    let place = World::new().await;
    let leader = place.leader("a").await;
    for (job, padding) in [(JOB, 0), (OTHER, 10_000)] {
        let taken = manifest(padding);
        let path = place.savepoint(&format!("of-{job}"), &taken).await;
        let state = put(
            &leader,
            job,
            &from_path(&format!("file://{path}/")),
            fitting,
        )
        .await;
        assert_eq!(state.expect("stored").coordinators[0].operator, "of 7");
        let (origin, found) = origin(&leader, job).await;
        assert_eq!(origin.number, 7);
        assert_eq!(origin.directory, path);
        assert_eq!(found, savepoints::read(&path).await.expect("read"));
        let place = origin
            .manifest
            .and_then(|it| it.place)
            .expect("there is one");
        assert_eq!(matches!(place, Stored::Object(_)), padding > 0);
    }
    // Read before and after the record is taken, by the next leader.
    let next = place.leader_after(&leader, "b").await;
    for _ in 0..2 {
        assert_eq!(origin(&next, OTHER).await.0.number, 7);
    }
    assert_eq!(sweep(&next).await, 0);
    origin(&next, OTHER).await;
}

#[tokio::test]
async fn what_does_not_fit_is_refused_before_anything_is_written() {
    let place = World::new().await;
    let leader = place.leader("a").await;
    let path = place.savepoint("one", &manifest(0)).await;
    let unfit: Fits = |_, _, unclaimed| match unclaimed {
        Unclaimed::Refused => Err("state of `count` has no step".to_owned()),
        Unclaimed::Ignored => Ok(pb::CheckpointManifest::default()),
    };
    let half = place.savepoint("half", &manifest(0)).await;
    std::fs::remove_file(place.directory.path().join("half/_metadata")).expect("removed");
    let empty = place.directory.path().join("empty");
    std::fs::create_dir(&empty).expect("made");
    let empty = empty.to_string_lossy().into_owned();
    let damaged = place.savepoint("damaged", &manifest(0)).await;
    let metadata = place.directory.path().join("damaged/_metadata");
    let whole = std::fs::read(&metadata).expect("it is there");
    let mut one_byte = whole.clone();
    *one_byte.last_mut().expect("not empty") ^= 1;
    std::fs::write(&metadata, one_byte).expect("written");
    // Magic, format, checksum, content: the format of a later version.
    let later = place.savepoint("later", &manifest(0)).await;
    let mut prefix = whole[..6].to_vec();
    prefix[4] += 1;
    let checksum = range_checksum(&[&prefix, &whole[14..]].concat());
    let whole = [&prefix, &checksum.to_le_bytes()[..], &whole[14..]].concat();
    std::fs::write(place.directory.path().join("later/_metadata"), whole).expect("written");
    let nothing = pb::RestoreRequest::default();
    for (request, what) in [
        (from_path(&path), "state of `count` has no step"),
        (from_path(&half), "half copied"),
        (
            from_path(&empty),
            "is not a savepoint: it has no _metadata, and no other file",
        ),
        (
            from_path(&damaged),
            "is damaged: the checksum of its _metadata",
        ),
        (from_path(&later), "a later version"),
        (from_path("/no/where"), "nothing is there"),
        (from_path("some/where"), "absolute path"),
        (nothing, "names neither"),
        (from_job(OTHER), "there is no ended job"),
    ] {
        let refused = put(&leader, JOB, &request, unfit).await;
        let refusal = GatewayError::from(refused.expect_err("unfit"));
        let text = refusal.to_string();
        assert!(matches!(refusal, GatewayError::Invalid(_)), "{refusal:?}");
        let from = match &request.from {
            Some(RestoreFrom::Path(from) | RestoreFrom::JobId(from)) => from.as_str(),
            None => "",
        };
        for told in [
            what,
            from,
            "job `test`",
            "`--from-savepoint`",
            "`execution.state-recovery.path`",
        ] {
            assert!(text.contains(told), "no {told} in {text}");
        }
        assert_eq!(record(&leader, JOB).await, None);
        let is_needed = leader.store.records.needs_checkpoints(JOB).await;
        assert!(!is_needed.expect("answered"));
    }
    let disposed = leader.store.dispose_savepoint(&path).await;
    disposed.expect("no job begins from it");
    // Without that state.
    let other = place.savepoint("two", &manifest(0)).await;
    let mut request = from_path(&other);
    request.allow_non_restored_state = true;
    put(&leader, JOB, &request, unfit).await.expect("stored");
}

#[tokio::test(start_paused = true)]
async fn a_savepoint_is_disposed_of_when_no_job_begins_from_it() {
    let place = World::new().await;
    let path = place.savepoint("one", &manifest(0)).await;
    let dispose = async |leader: &Leader| {
        let path = format!("{path}/");
        let request = pb::DisposeSavepointRequest { path };
        leader.dispatcher.dispose_savepoint(request).await
    };
    let a = place.leader("a").await;
    put(&a, JOB, &from_path(&path), fitting)
        .await
        .expect("stored");
    let refusal = dispose(&a).await.expect_err("in use");
    assert!(matches!(refusal, GatewayError::Conflict(_)), "{refusal}");
    let b = place.leader_after(&a, "b").await;
    let refusal = dispose(&b).await.expect_err("in use");
    assert!(refusal.to_string().contains(&JOB.to_string()), "{refusal}");
    let link = place.directory.path().join("link");
    std::os::unix::fs::symlink(&path, &link).expect("linked");
    let by_link = pb::DisposeSavepointRequest {
        path: link.to_string_lossy().into_owned(),
    };
    let refusal = b.dispatcher.dispose_savepoint(by_link).await;
    let refusal = refusal.expect_err("the same one");
    assert!(refusal.to_string().contains(&JOB.to_string()), "{refusal}");
    place.cluster.heal(&a.process);
    dispose(&a).await.expect_err("deposed");
    savepoints::verify(&path).await.expect("it is still there");

    let mut record = record(&b, JOB).await.expect("there is one");
    record.origin = None;
    b.store.put_checkpoints(&record).await.expect("written");
    dispose(&b).await.expect("disposed");
    let gone = dispose(&b).await.expect_err("gone");
    let is_told = |text: &String| text.contains("an earlier attempt of this request");
    assert!(
        matches!(&gone, GatewayError::NotFound(text) if is_told(text)),
        "{gone}"
    );
    let request = pb::DisposeSavepointRequest {
        path: place.directory.path().to_string_lossy().into_owned(),
    };
    let foreign = b
        .dispatcher
        .dispose_savepoint(request)
        .await
        .expect_err("none");
    assert!(matches!(foreign, GatewayError::Invalid(_)), "{foreign}");
}

/// Submits a job, and takes a checkpoint of it. Returns the record.
async fn run_with_checkpoint(
    leader: &Leader,
    retention: pb::CheckpointRetention,
) -> pb::JobCheckpoints {
    leader.submit(JOB).await.expect("acknowledged");
    let objects = leader.store.objects_of(JOB).expect("a blob store");
    for object in ["7-1-aa", "6-1-bb", "manifest-7-cc"] {
        let bytes = match object {
            "manifest-7-cc" => manifest::encode(&manifest(0)).into(),
            _ => "state".into(),
        };
        objects.put(object, bytes).await.expect("written");
    }
    let taken = pb::JobCheckpoints {
        job_id: JOB.to_string(),
        next: 9,
        floor: 9,
        retained: vec![pb::CompletedCheckpoint {
            number: 7,
            manifest: Some(pb::StoredManifest {
                place: Some(Stored::Object(pb::ManifestObject {
                    name: "manifest-7-cc".to_owned(),
                    length: 1,
                })),
            }),
            committed: true,
            ..pb::CompletedCheckpoint::default()
        }],
        retention: retention.into(),
        ..pb::JobCheckpoints::default()
    };
    leader.store.put_checkpoints(&taken).await.expect("written");
    taken
}

/// Runs a job that fails, and leaves its newest checkpoint. Returns the names of its objects.
async fn fail_with_checkpoint(leader: &Leader) -> Vec<String> {
    let taken = run_with_checkpoint(leader, pb::CheckpointRetention::DeleteOnCancellation).await;
    leader.retain_with_last(taken);
    let result = pb::JobResult {
        status: pb::JobStatus::Failed.into(),
        remove: Some(pb::Cleanup::default()),
        ..result_of(JOB)
    };
    leader.end_last(End::Result(Box::new(result)));
    until_clean(leader).await
}

/// Waits until the job has ended and is cleaned up. Returns the names of its objects.
async fn until_clean(leader: &Leader) -> Vec<String> {
    let objects = leader.store.objects_of(JOB).expect("a blob store");
    for _ in 0..1_000 {
        let listed = objects.list().await.expect("listed");
        let result = leader.store.records.get::<ResultRecord>(JOB).await;
        if result
            .expect("readable")
            .is_some_and(|it| !it.record.0.dirty)
        {
            return listed;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the result is not clean");
}

#[tokio::test(start_paused = true)]
async fn what_a_failed_job_left_is_kept_and_copied_for_a_job_that_begins_from_it() {
    let place = World::new().await;
    let a = place.leader("a").await;
    let left = fail_with_checkpoint(&a).await;
    assert_eq!(left, ["7-1-aa", "manifest-7-cc"], "the rest is cleaned up");
    let begin = async |leader: &Leader, job: JobId| {
        assert_eq!(sweep(leader).await, 0);
        put(leader, job, &from_job(JOB), fitting)
            .await
            .expect("stored");
        let started_from = record(leader, job).await.map(|it| it.started_from);
        assert_eq!(started_from, Some(format!("job:{JOB}")));
        let found = begun(leader, job).await;
        let names = savepoints::objects_of(&found);
        let object = names.first().expect("one object");
        assert!(object.starts_with("7-0-"), "{object}");
        let objects = leader.store.objects_of(job).expect("a blob store");
        let state = objects.get(object).await.expect("copied");
        assert_eq!(state, "state");
        let listed = objects.list().await.expect("listed");
        assert_eq!(listed, std::slice::from_ref(object));
    };
    begin(&a, JobId::from_bits(0xA)).await;
    let b = place.leader_after(&a, "b").await;
    begin(&b, JobId::from_bits(0xB)).await;
    // With its result, all of it goes. What the others begin from is their own.
    b.store.delete_results(&[JOB]).await.expect("deleted");
    assert_eq!(record(&b, JOB).await, None);
    assert_eq!(sweep(&b).await, 2);
    let refused = put(&b, OTHER, &from_job(JOB), fitting).await;
    assert!(refused.is_err());
    begun(&b, JobId::from_bits(0xA)).await;
}

#[tokio::test]
async fn a_running_job_is_no_place_to_begin_from() {
    let place = World::new().await;
    let leader = place.leader("a").await;
    leader.submit(JOB).await.expect("acknowledged");
    let refused = put(&leader, OTHER, &from_job(JOB), fitting).await;
    let text = refused.expect_err("it runs").to_string();
    assert!(text.contains("has not ended"), "{text}");
    leader.end_last(End::Result(Box::new(result_of(JOB))));
    leader.wait_for(JOB, pb::JobStatus::Finished).await;
    let refused = put(&leader, OTHER, &from_job(JOB), fitting).await;
    let text = refused.expect_err("nothing is left").to_string();
    assert!(text.contains("is retained"), "{text}");
}

#[tokio::test]
async fn objects_of_checkpoints_of_a_job_without_a_record_are_swept() {
    let place = World::new().await;
    let leader = place.leader("a").await;
    leader.submit(JOB).await.expect("acknowledged");
    for job in [JOB, OTHER] {
        let objects = leader.store.objects_of(job).expect("a blob store");
        objects
            .put("1-1-aa", "state".into())
            .await
            .expect("written");
    }
    assert_eq!(sweep(&leader).await, 1);
    let lists = [JOB, OTHER].map(|job| leader.store.objects_of(job).expect("a blob store"));
    assert_eq!(lists[0].list().await.expect("listed"), ["1-1-aa"]);
    assert_eq!(lists[1].list().await.expect("listed"), Vec::<String>::new());
}

#[tokio::test]
async fn a_submission_that_names_no_savepoint_is_refused_and_may_be_repeated() {
    let place = World::new().await;
    let leader = place.leader("a").await;
    let path = place
        .directory
        .path()
        .join("later")
        .to_string_lossy()
        .into_owned();
    let request = Submission {
        restore: Some(from_path(&path)),
        ..submission(JOB)
    };
    for _ in 0..2 {
        let refused = Leader::submit_to(&leader.dispatcher, request.clone()).await;
        let refusal = refused.expect_err("nothing is there");
        assert!(matches!(refusal, GatewayError::Invalid(_)), "{refusal}");
    }
    leader.submit(JOB).await.expect("from the start");
    let repeated = Leader::submit_to(&leader.dispatcher, request).await;
    assert!(repeated.expect("the same token").repeated);
}

#[tokio::test(start_paused = true)]
async fn a_cancellation_without_a_job_master_keeps_the_checkpoint_if_the_job_wants_it() {
    use pb::CheckpointRetention::{DeleteOnCancellation, RetainOnCancellation};
    let kept: &[&str] = &["7-1-aa", "manifest-7-cc"];
    for (retention, expected) in [(RetainOnCancellation, kept), (DeleteOnCancellation, &[])] {
        for is_next_leader in [false, true] {
            let place = World::new().await;
            let a = place.leader("a").await;
            run_with_checkpoint(&a, retention).await;
            a.end_last(End::Unfit);
            a.wait_for(JOB, pb::JobStatus::Suspended).await;
            let leader = match is_next_leader {
                true => {
                    let b = place.leader_after(&a, "b").await;
                    b.end_last(End::Unfit);
                    b.wait_for(JOB, pb::JobStatus::Suspended).await;
                    b
                }
                false => a,
            };
            leader.cancel(JOB).await.expect("canceled");
            assert_eq!(until_clean(&leader).await, expected, "{retention:?}");
            let details = leader.describe(JOB).await.expect("it has ended");
            let checkpoints = details.checkpoints.expect("it had one");
            let kept = if expected.is_empty() { 0 } else { 7 };
            assert_eq!(checkpoints.kept, kept, "as it is shown");
            assert_eq!(checkpoints.history[0].number, 7);
            if expected.is_empty() {
                assert_eq!(record(&leader, JOB).await, None);
                continue;
            }
            let record = record(&leader, JOB).await.expect("kept");
            assert_eq!((record.floor, record.retained.len()), (9, 1));
            let other = JobId::from_bits(9);
            let begun = put(&leader, other, &from_job(JOB), fitting).await;
            begun.expect("a job can begin from it");
        }
    }
}

fn claim(job: JobId) -> pb::RestoreRequest {
    pb::RestoreRequest {
        claim_mode: pb::RecoveryClaimMode::Claim.into(),
        ..from_job(job)
    }
}

#[tokio::test(start_paused = true)]
async fn a_claimed_checkpoint_is_moved_to_the_job_that_begins_from_it() {
    let place = World::new().await;
    let a = place.leader("a").await;
    fail_with_checkpoint(&a).await;
    let (first, second) = (JobId::from_bits(8), JobId::from_bits(9));
    let claim = claim(JOB);
    let (of_first, of_second) = tokio::join!(
        put(&a, first, &claim, fitting),
        put(&a, second, &claim, fitting)
    );
    of_first.expect("claimed");
    let refusal = of_second.expect_err("once").to_string();
    assert!(refusal.contains("is retained"), "{refusal}");
    assert_eq!(record(&a, second).await, None);
    assert_eq!(record(&a, JOB).await, None, "it has left the ended job");

    let b = place.leader_after(&a, "b").await;
    let left = b.store.objects_of(JOB).expect("a blob store");
    // A leader that was deposed does not know whether the id is used again.
    let gc = a.store.orphan_gc();
    let swept = gc.sweep(Duration::ZERO, Duration::ZERO).await;
    swept.expect_err("deposed");
    assert_eq!(left.list().await.expect("listed").len(), 2);
    assert_eq!(sweep(&b).await, 2);
    assert_eq!(left.list().await.expect("listed"), Vec::<String>::new());
    assert_eq!(record(&b, JOB).await, None);
    let found = begun(&b, first).await;
    let names = savepoints::objects_of(&found);
    let objects = b.store.objects_of(first).expect("a blob store");
    for name in names {
        let bytes = objects.get(&name).await.expect("it is there");
        assert_eq!(bytes, "state");
    }
}

#[tokio::test(start_paused = true)]
async fn only_a_checkpoint_of_an_ended_job_that_is_cleaned_up_can_be_claimed() {
    let place = World::new().await;
    let a = place.leader("a").await;
    fail_with_checkpoint(&a).await;
    let result = a.store.records.get::<ResultRecord>(JOB).await;
    let mut result = result.expect("readable").expect("there is one").record.0;
    result.dirty = true;
    a.store.put_clean_result(&result).await.expect("written");
    let other = JobId::from_bits(9);
    let refusal = put(&a, other, &claim(JOB), fitting).await;
    let refusal = refusal.expect_err("dirty").to_string();
    assert!(refusal.contains("cleaned up"), "{refusal}");
    let of_path = pb::RestoreRequest {
        claim_mode: pb::RecoveryClaimMode::Claim.into(),
        ..from_path("/savepoints/one")
    };
    let refusal = put(&a, other, &of_path, fitting).await;
    let refusal = refusal.expect_err("the user's").to_string();
    assert!(refusal.contains("belongs to the user"), "{refusal}");
}

/// The job of `run_with_checkpoint` has failed, `heir` claims its checkpoint, and ends before it takes one.
async fn claim_and_end(leader: &Leader, heir: JobId, status: pb::JobStatus) -> Retained {
    put(leader, heir, &claim(JOB), fitting)
        .await
        .expect("claimed");
    let mut result = pb::JobResult {
        status: status.into(),
        dirty: false,
        ..result_of(heir)
    };
    let store = &leader.store;
    let retained = store.retained_without_job_master(heir, &mut result).await;
    let retained = retained.expect("readable");
    store
        .put_result_with(result, &retained)
        .await
        .expect("written");
    retained
}

#[tokio::test(start_paused = true)]
async fn a_claimed_checkpoint_outlives_a_job_that_ends_before_it_takes_one() {
    use pb::JobStatus::{Canceled, Failed};
    let (heir, next) = (JobId::from_bits(8), JobId::from_bits(9));
    for is_next_leader in [false, true] {
        let place = World::new().await;
        let a = place.leader("a").await;
        fail_with_checkpoint(&a).await;
        claim_and_end(&a, heir, Failed).await;
        let leader = match is_next_leader {
            true => place.leader_after(&a, "b").await,
            false => a,
        };
        let kept = leader.store.kept_objects(heir).await.expect("readable");
        let claimed = begun(&leader, heir).await;
        let objects = savepoints::objects_of(&claimed);
        let output = HiddenOutput::default();
        assert_eq!(kept, Kept::These { objects, output });
        put(&leader, next, &claim(heir), fitting)
            .await
            .expect("claimed");
        let names = savepoints::objects_of(&begun(&leader, next).await);
        let objects = leader.store.objects_of(next).expect("a blob store");
        for name in names {
            assert_eq!(objects.get(&name).await.expect("copied"), "state");
        }
    }
    // After a cancellation by the setting: until a JobMaster knows better, that of the job that it was claimed from.
    for (retention, is_kept) in [
        (pb::CheckpointRetention::RetainOnCancellation, true),
        (pb::CheckpointRetention::DeleteOnCancellation, false),
    ] {
        let place = World::new().await;
        let a = place.leader("a").await;
        let taken = run_with_checkpoint(&a, retention).await;
        a.retain_with_last(taken);
        let result = pb::JobResult {
            status: Failed.into(),
            ..result_of(JOB)
        };
        a.end_last(End::Result(Box::new(result)));
        until_clean(&a).await;
        let retained = claim_and_end(&a, heir, Canceled).await;
        assert_eq!(matches!(retained, Retained::Record(_)), is_kept);
    }
}

/// A submission with a claim holds up only those that copy retained checkpoints.
#[tokio::test(start_paused = true)]
async fn a_start_from_a_savepoint_waits_for_no_claim() {
    let place = World::new().await;
    let leader = place.leader("a").await;
    let path = place.savepoint("one", &manifest(0)).await;
    let claiming = leader.store.retained_starts.write().await;
    let (of_path, of_job) = (from_path(&path), from_job(JOB));
    let begun = put(&leader, OTHER, &of_path, fitting);
    let begun = tokio::time::timeout(Duration::from_secs(600), begun).await;
    begun.expect("it does not wait").expect("stored");
    let waiting = put(&leader, JobId::from_bits(9), &of_job, fitting);
    let waiting = tokio::time::timeout(Duration::from_secs(600), waiting).await;
    waiting.expect_err("it waits");
    drop(claiming);
}
