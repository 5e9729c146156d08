//! The Dispatcher over the memory store, with scripted JobMasters: answers of a leader that may be deposed, and
//! a job's records after its end.

use std::time::Duration;

use tanist_compile::{CompileOptions, JobBuilder};
use tanist_gateway::{DispatcherGateway as _, GatewayError};
use tanist_ha::memory::MemoryCluster;
use tanist_ha::store::pipeline::CommitPipeline;
use tanist_model::{ColumnType, CustomSpec, artifact};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::scripted::{Describes, End, JOB, Leader, blobs, large_name, result_of, submission};
use super::testing;
use super::testing::recovered;
use crate::DispatcherOptions;
use crate::handle::Command;

/// B leads. A is cut off from the store and does not know that it was deposed.
async fn deposed_unawares() -> (Leader, Leader) {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    cluster.partition(&a.process);
    cluster.expire(&a.process);
    let b = Leader::of(&cluster, "b").await;
    assert!(!a.session.is_over());
    (a, b)
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_does_not_know_that_it_is_deposed_denies_no_job() {
    let (a, b) = deposed_unawares().await;
    b.submit(JOB).await.expect("acknowledged");
    for denied in [
        a.describe(JOB).await.map(|_| ()),
        a.cancel(JOB).await.map(|_| ()),
        a.dispatcher.job_master(JOB).await.map(|_| ()),
        a.submit_late(JOB).await.map(|_| ()),
    ] {
        let denied = denied.expect_err("it knows nothing of the job");
        assert!(matches!(denied, GatewayError::NotYet(_)), "{denied:?}");
    }
    // When it reaches the store again, it may first learn that its term is over.
    a.cluster.heal(&a.process);
    let denied = a
        .cancel(JOB)
        .await
        .expect_err("it knows nothing of the job");
    assert!(denied.is_retryable(), "{denied:?}");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_the_store_confirms_says_that_there_is_no_such_job() {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    let (described, cancelled, asked, late) = tokio::join!(
        a.describe(JOB),
        a.cancel(JOB),
        a.dispatcher.job_master(JOB),
        a.submit_late(JOB),
    );
    assert!(
        matches!(described, Err(GatewayError::NotFound(_))),
        "{described:?}"
    );
    assert!(
        matches!(cancelled, Err(GatewayError::NotFound(_))),
        "{cancelled:?}"
    );
    assert!(matches!(asked, Err(GatewayError::NotFound(_))));
    assert!(matches!(late, Err(GatewayError::Invalid(_))), "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_submission_whose_term_ends_under_it_is_not_said_to_be_unhandled() {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    a.records.faults().lose_replies(1);
    a.records.faults().delay(Duration::from_millis(500));
    let stop = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        a.dispatcher.stop().await;
    };
    let (answer, ()) = tokio::join!(a.submit(JOB), stop);
    assert!(
        matches!(answer, Err(GatewayError::Unknown(_))),
        "{answer:?}"
    );
    assert_eq!(recovered(&a.store).await.jobs.len(), 1);
}

/// Submissions that this Dispatcher refuses as new jobs if files may have 9 bytes, each with the reason.
fn flawed() -> Vec<(pb::SubmitJobRequest, &'static str)> {
    let graph = || testing::submission("token").graph.expect("it has one");
    let artifact = |uploaded, local_path: &str| pb::Artifact {
        name: "model".to_owned(),
        sha256: vec![0; 32].into(),
        uploaded,
        local_path: local_path.to_owned(),
        ..pb::Artifact::default()
    };
    let content = pb::UploadedContent {
        object: format!("{}-upload-0123456789ab-0123456789abcdef", testing::JOB),
        pieces: 1,
        size: 10,
    };
    let mut of_no_vertex = graph();
    of_no_vertex.vertices.clear();
    // A list of its subtasks would take 32 GiB.
    let mut of_too_many = graph();
    of_too_many.vertices[0].parallelism = u32::MAX;
    let strange = CustomSpec::source("unheard-of", [("number", ColumnType::Int64)]);
    let strange = JobBuilder::new("stream").custom("numbers", strange);
    let options = CompileOptions {
        job_id: testing::JOB,
        ..CompileOptions::default()
    };
    let of_a_stranger = strange.discard("out").build().compile(&options);
    let mut too_large = graph();
    too_large.artifacts = vec![artifact(Some(content), "")];
    let mut not_uploaded = graph();
    not_uploaded.artifacts = vec![artifact(None, "/model")];
    let flawed = [
        (of_no_vertex, "no vert"),
        (of_too_many, "its parallelism is 4294967295"),
        (of_a_stranger.expect("valid"), "unheard-of"),
        (too_large, "artifacts.max-size"),
        (not_uploaded, "was not uploaded"),
    ];
    let request = |graph| pb::SubmitJobRequest {
        graph: Some(graph),
        ..testing::submission("token")
    };
    let requests = flawed.into_iter();
    requests.map(|(graph, why)| (request(graph), why)).collect()
}

#[tokio::test(start_paused = true)]
async fn what_another_leader_accepted_is_answered_though_this_one_would_refuse_it() {
    for (request, why) in flawed() {
        let cluster = MemoryCluster::default();
        let a = Leader::of(&cluster, "a").await;
        // A leader recognises a repeated submission by its key alone.
        let mut accepted = submission(testing::JOB);
        accepted.key.digest = artifact::digest(request.graph.as_ref().expect("it has one"));
        let submission = Box::new(accepted);
        let command = |reply| Command::Submit { submission, reply };
        a.dispatcher.ask(command).await.expect("another version");
        cluster.expire(&a.process);
        let options = DispatcherOptions {
            max_uploaded: 9,
            ..DispatcherOptions::default()
        };
        let b = Leader::with(&cluster, "b", None, options).await;
        let again = b.dispatcher.submit_job(request.clone()).await;
        assert!(
            again.as_ref().is_ok_and(|it| it.repeated),
            "{why}: {again:?}"
        );

        let mut of_its_own = request;
        let graph = of_its_own.graph.as_mut().expect("it has one");
        graph.job_id = JobId::from_bits(0xB).to_string();
        for uploaded in graph.artifacts.iter_mut().flat_map(|it| &mut it.uploaded) {
            uploaded.object = uploaded
                .object
                .replace(&testing::JOB.to_string(), &graph.job_id);
        }
        let refusal = b.dispatcher.submit_job(of_its_own).await;
        assert!(
            matches!(&refusal, Err(GatewayError::Invalid(reason)) if reason.contains(why)),
            "{why}: {refusal:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_takes_an_expired_ones_place_is_not_forgotten_with_it() {
    let cluster = MemoryCluster::default();
    let options = DispatcherOptions {
        result_retention: Duration::ZERO,
        expiration_interval: Duration::from_secs(1),
        ..DispatcherOptions::default()
    };
    let a = Leader::with(&cluster, "a", None, options).await;
    a.submit(JOB).await.expect("acknowledged");
    let mut result = result_of(JOB);
    result.ended_at_ms = 1;
    a.end_last(End::Result(Box::new(result)));
    // Requests take longer than the interval of the check for expired results.
    a.records.faults().delay(Duration::from_millis(2500));
    while a.world.job_masters.lock().len() < 2 {
        a.submit(JOB).await.expect("acknowledged");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for _ in 0..20 {
        assert_eq!(a.status(JOB).await, Some(pb::JobStatus::Running));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn blobs_go_with_what_pointed_to_them() {
    let (_directory, blobs) = blobs().await;
    let cluster = MemoryCluster::default();
    let options = DispatcherOptions::default();
    let a = Leader::with(&cluster, "a", Some(blobs.clone()), options).await;
    let mut submission = submission(JOB);
    submission.graph.name = large_name();
    let submission = Box::new(submission);
    let command = |reply| Command::Submit { submission, reply };
    a.dispatcher.ask(command).await.expect("acknowledged");
    for _ in 0..3 {
        let state = pb::JobState {
            job_id: JOB.to_string(),
            name: large_name(),
            ..pb::JobState::default()
        };
        use tanist_gateway::persistence::JobStateStore as _;
        a.store.put_state(&state).await.expect("written");
    }
    let there = blobs.list().await.expect("listed").len();
    assert_eq!(there, 2, "of the graph and of the last state");
    a.end_last(End::Result(Box::new(result_of(JOB))));
    a.wait_for(JOB, pb::JobStatus::Finished).await;
    for _ in 0..1000 {
        if blobs.list().await.expect("listed").is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("left behind: {:?}", blobs.list().await);
}

#[tokio::test]
async fn checkpoints_outlive_their_leader_and_go_with_their_job() {
    use tanist_gateway::persistence::{JobStateStore as _, PersistError};
    let (_directory, blobs) = blobs().await;
    let cluster = MemoryCluster::default();
    let with_blobs = async |name| {
        let options = DispatcherOptions::default();
        Leader::with(&cluster, name, Some(blobs.clone()), options).await
    };
    let a = with_blobs("a").await;
    a.submit(JOB).await.expect("acknowledged");
    let job = JOB.to_string();
    assert_eq!(a.store.checkpoints(&job).await, Ok(None));
    let record = pb::JobCheckpoints {
        job_id: job.clone(),
        next: 17,
        ..pb::JobCheckpoints::default()
    };
    a.store.put_checkpoints(&record).await.expect("written");
    let of_cluster = a.store.blobs().expect("there is one");
    let objects = of_cluster.checkpoints(&job.parse().expect("a name"));
    objects
        .put("1-1-0123456789abcdef", "state".into())
        .await
        .expect("put");

    cluster.expire(&a.process);
    let b = with_blobs("b").await;
    assert_eq!(b.store.checkpoints(&job).await, Ok(Some(record.clone())));
    assert_eq!(
        b.store.checkpoints(&job).await,
        Ok(Some(record.clone())),
        "read from the store"
    );
    let late = a.store.put_checkpoints(&record).await;
    assert_eq!(late, Err(PersistError::TermOver));
    b.end_last(End::Result(Box::new(result_of(JOB))));
    b.wait_for(JOB, pb::JobStatus::Finished).await;
    assert_eq!(b.store.checkpoints(&job).await, Ok(None));
    for _ in 0..1000 {
        if objects.list().await.expect("listed").is_empty() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("left behind: {:?}", objects.list().await);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large_is_kept_without_its_details() {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    a.submit(JOB).await.expect("acknowledged");
    let mut result = result_of(JOB);
    result.details = Some(pb::JobDetails {
        name: (0..80_000)
            .map(|_| format!("{:016x}", rand::random::<u64>()))
            .collect(),
        ..pb::JobDetails::default()
    });
    a.end_last(End::Result(Box::new(result)));
    a.wait_for(JOB, pb::JobStatus::Finished).await;
    assert!(recovered(&a.store).await.jobs.is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_a_late_task_left_behind_goes_with_the_result() {
    let cluster = MemoryCluster::default();
    let options = DispatcherOptions {
        result_retention: Duration::ZERO,
        expiration_interval: Duration::from_secs(60),
        ..DispatcherOptions::default()
    };
    let a = Leader::with(&cluster, "a", None, options).await;
    // The first check for expired results is over.
    tokio::time::sleep(Duration::from_secs(1)).await;
    a.submit(JOB).await.expect("acknowledged");
    let mut result = result_of(JOB);
    result.ended_at_ms = 1;
    result.remove = Some(pb::Cleanup {
        blobs: Vec::new(),
        sink_directories: vec!["/out".to_owned()],
        ..pb::Cleanup::default()
    });
    a.end_last(End::Result(Box::new(result)));
    a.wait_for(JOB, pb::JobStatus::Finished).await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(a.world.cleaned.lock().len(), 1);
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(a.world.cleaned.lock().len(), 2);
    let gone = a.describe(JOB).await.expect_err("forgotten");
    assert!(matches!(gone, GatewayError::NotFound(_)), "{gone:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_result_cannot_be_read_is_not_run_again() {
    use tanist_gateway::kinds;
    use tanist_ha::keys::{Key, Name};
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    let pipeline = CommitPipeline::start(a.records.clone(), a.session.clone());
    let name = Name::new(JOB.to_string()).expect("a name");
    let write = tanist_ha::store::Write::Put {
        key: Key::new(kinds::RESULTS, name),
        value: bytes::Bytes::from_static(b"what is this"),
    };
    let written = pipeline.await.expect("leads").commit(vec![write]).await;
    written.expect("committed");
    a.dispatcher.stop().await;
    cluster.partition(&a.process);
    cluster.expire(&a.process);
    let b = Leader::of(&cluster, "b").await;
    let refused = b.submit(JOB).await.expect_err("it has ended");
    let is_told = matches!(refused, GatewayError::Incomparable(_));
    assert!(is_told, "{refused:?}");
    let refused = b.cancel(JOB).await.expect_err("it has ended");
    assert!(matches!(refused, GatewayError::Conflict(_)), "{refused:?}");
    assert!(b.world.job_masters.lock().is_empty());
}

/// A job that has just ended, with a store that takes `delay` for each write.
async fn just_ended(delay: Duration) -> Leader {
    let cluster = MemoryCluster::default();
    let a = Leader::of(&cluster, "a").await;
    a.submit(JOB).await.expect("acknowledged");
    a.records.faults().delay(delay);
    a.end_last(End::Result(Box::new(result_of(JOB))));
    a.wait_for(JOB, pb::JobStatus::Finished).await;
    assert!(a.describe(JOB).await.expect("known").cleaning_up);
    a
}

#[tokio::test(start_paused = true)]
async fn a_submission_of_a_job_that_just_ended_is_answered_when_nothing_of_that_is_left() {
    let a = just_ended(Duration::from_secs(1)).await;
    let answer = a.submit(JOB).await.expect("the result is its answer");
    assert!(answer.repeated);
    let details = a.describe(JOB).await.expect("known");
    assert!(!details.cleaning_up && details.blocked_reasons.is_empty());
    assert_eq!(a.world.job_masters.lock().len(), 1, "it did not run again");
}

#[tokio::test(start_paused = true)]
async fn a_submission_does_not_wait_for_a_cleanup_that_takes_too_long() {
    let a = just_ended(Duration::from_secs(60)).await;
    let asked = tokio::time::Instant::now();
    let (answer, waiting) = tokio::join!(a.submit(JOB), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        a.describe(JOB).await.expect("known")
    });
    assert!(answer.expect("the result is its answer").repeated);
    assert!(asked.elapsed() < Duration::from_secs(5));
    let text = &waiting.blocked_reasons[0].text;
    assert!(text.contains("a submission with its id waits"), "{text}");
    assert!(a.describe(JOB).await.expect("known").cleaning_up);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_job_master_gives_no_answer_is_listed_as_it_is_known_by_then() {
    let a = Leader::of(&MemoryCluster::default(), "a").await;
    let (first, last) = (JobId::from_bits(1), JobId::from_bits(9));
    a.submit(first).await.expect("acknowledged");
    // The JobMaster breaks, does not answer, or ends, while the list is requested.
    for (end, expected) in [
        (Some(End::Broken), pb::JobStatus::Reconciling),
        (None, pb::JobStatus::Reconciling),
        (
            Some(End::Result(Box::new(result_of(last)))),
            pb::JobStatus::Finished,
        ),
    ] {
        a.submit(last).await.expect("acknowledged");
        a.wait_for(last, pb::JobStatus::Running).await;
        let describes = last_describes(&a);
        describes.send_replace(Describes::Never);
        let meanwhile = async {
            tokio::task::yield_now().await;
            match end {
                Some(end) => a.end_last(end),
                None => drop(describes.send_replace(Describes::Closed)),
            }
        };
        let listing = a.dispatcher.list_jobs(pb::ListJobsRequest::default());
        let (listed, ()) = tokio::join!(listing, meanwhile);
        let listed = listed.expect("listed").jobs;
        let listed: Vec<_> = listed
            .iter()
            .map(|it| (it.job_id.clone(), it.status()))
            .collect();
        let running = pb::JobStatus::Running;
        let all = [(first.to_string(), running), (last.to_string(), expected)];
        assert_eq!(listed, all);
        describes.send_replace(Describes::AtOnce);
    }
}

fn last_describes(leader: &Leader) -> tokio::sync::watch::Sender<Describes> {
    let job_masters = leader.world.job_masters.lock();
    let last = job_masters.last().expect("a JobMaster was started");
    last.describes.clone()
}
