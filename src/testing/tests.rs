//! The cluster in one process, tested by the possible ends of an application.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tanist_compile::{JobBuilder, StreamGraph};
use tanist_gateway::kinds;
use tanist_ha::keys::{Key, Name};
use tanist_ha::store::{CommitReply, CommitRequest, Fence, Write};
use tanist_leadership::ha;
use tanist_model::{ArtifactSpec, CustomSpec};
use tanist_proto::id::JobId;

use arrow_array::RecordBatch;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;
use crate::application::{
    Application, ApplicationMain, Operator, OperatorError, Output, job_id_of,
};

/// The examples that use a cluster are tests of this module.
#[path = "../../examples/testing.rs"]
#[allow(dead_code, reason = "a test has no use for the example's main")]
mod example_of_testing;

#[path = "../../examples/client.rs"]
#[allow(dead_code, reason = "a test has no use for the example's main")]
mod example_of_client;

#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_a_client_follows_its_job_also_when_it_is_started_again()
-> Result<(), TestClusterError> {
    let cluster = TestCluster::builder().start().await?;
    let output = cluster.directory().join("out");
    let run = || example_of_client::run(cluster.client(), &output);
    let first = run().await.expect("it finishes");
    let again = run().await.expect("it has finished");
    assert_eq!((first.job, first.status), (again.job, JobStatus::Finished));
    assert_eq!(first.info.start_time, again.info.start_time, "the same run");
    Ok(())
}

/// A job that never ends by itself.
fn endless() -> StreamGraph {
    JobBuilder::new("endless")
        .datagen("numbers", Some(10), None, 0, 10)
        .discard("out")
        .build()
}

fn short(count: u64) -> StreamGraph {
    JobBuilder::new("short")
        .datagen("numbers", None, Some(count), 0, 10)
        .discard("out")
        .build()
}

fn first_job(cluster: &TestCluster) -> JobExecution {
    let id = Name::new("test").expect("a name");
    cluster.client().job(job_id_of(&id, 0))
}

/// An application whose job ran when its leader was killed, and that job. No process leads it.
async fn without_its_leader(
    application: &ApplicationMain,
) -> Result<(TestCluster, JobExecution), TestClusterError> {
    let builder = TestCluster::builder().application(application);
    let mut cluster = builder.start().await?;
    let job = first_job(&cluster);
    cluster.wait_until_running(&job).await?;
    cluster.kill_leader().await?;
    Ok((cluster, job))
}

/// The next JobManager leads the same job until it is cancelled; by then its program has run and waits for the
/// job.
async fn goes_on_until_cancelled(
    cluster: &mut TestCluster,
    job: &JobExecution,
    jobmanager: &str,
) -> Result<(), TestClusterError> {
    cluster.start_jobmanager(jobmanager).await?;
    cluster.wait_until_running(job).await?;
    job.cancel().await?;
    let code = cluster.jobmanager_ended(jobmanager).await?;
    assert_eq!(code, ExitCode::JobCanceled);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_of_a_session_survives_its_leader() -> Result<(), TestClusterError> {
    let mut cluster = TestCluster::builder().jobmanagers(2).start().await?;
    let execution = cluster
        .client()
        .execute_async(endless())
        .await
        .expect("accepted");
    cluster.wait_until_running(&execution).await?;
    let killed = cluster.kill_leader().await?;
    assert_ne!(cluster.leader().await?, killed);
    cluster.wait_until_running(&execution).await?;
    // Another process knows the job by its id.
    let same = cluster.client().job(execution.id());
    same.cancel().await?;
    assert_eq!(same.result().await?.status, JobStatus::Canceled);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_job_ends_its_application_as_canceled_everywhere()
-> Result<(), TestClusterError> {
    let application = Application::new("endless").job(|_| Ok(endless()));
    let builder = TestCluster::builder().jobmanagers(2);
    let mut cluster = builder.application(&application).start().await?;
    let job = first_job(&cluster);
    cluster.wait_until_running(&job).await?;
    job.cancel().await?;
    for id in ["jm-1", "jm-2"] {
        assert_eq!(cluster.jobmanager_ended(id).await?, ExitCode::JobCanceled);
    }
    // When it is started again it finds the recorded end.
    cluster.start_jobmanager("jm-1").await?;
    assert_eq!(
        cluster.jobmanager_ended("jm-1").await?,
        ExitCode::JobCanceled
    );
    // The cluster can't be used for anything else either.
    cluster.application = None;
    cluster.start_jobmanager("jm-3").await?;
    assert_eq!(cluster.jobmanager_ended("jm-3").await?, ExitCode::Refused);
    Ok(())
}

/// Removes everything that the store has of a job, which only an operator does.
async fn remove_by_hand(cluster: &TestCluster, job: JobId) {
    let configuration = cluster.configuration().expect("it is valid");
    let records = ha::open_records(configuration.ha()).await.expect("opened");
    let store = records.coordination_store();
    let guard = store.guard().await.expect("asked");
    let (epoch, token, incarnation) = guard.epoch.expect("there was a leader");
    let name = Name::new(job.to_string()).expect("a name");
    let remove = |kind| Write::Delete {
        key: Key::new(kind, name.clone()),
    };
    let request = CommitRequest {
        fence: Fence {
            epoch,
            token,
            incarnation,
        },
        after: guard.change,
        writes: vec![remove(kinds::RESULTS), remove(kinds::DESCRIPTIONS)],
    };
    let reply = store.commit(&request).await.expect("answered");
    assert_eq!(reply, CommitReply::Applied);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_whose_job_was_removed_ends_as_unknown_and_keeps_everything()
-> Result<(), TestClusterError> {
    let runs = Arc::new(AtomicU64::new(0));
    let counted = runs.clone();
    let application = Application::new("two").program(move |context| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            context.execute(short(10)).await?;
            context.execute(endless()).await?;
            Ok(())
        }
    });
    let builder = TestCluster::builder().slots(2);
    let mut cluster = builder.application(&application).start().await?;
    let id = Name::new("test").expect("a name");
    let second = cluster.client().job(job_id_of(&id, 1));
    cluster.wait_until_running(&second).await?;
    cluster.kill_leader().await?;
    remove_by_hand(&cluster, job_id_of(&id, 0)).await;
    // Every next JobManager reports that, and neither runs the first job again nor ends the second one.
    for jobmanager in ["jm-2", "jm-3"] {
        cluster.start_jobmanager(jobmanager).await?;
        let code = cluster.jobmanager_ended(jobmanager).await?;
        assert_eq!(code, ExitCode::Fatal);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    let configuration = cluster.configuration()?;
    let records = ha::open_records(configuration.ha()).await;
    let store = records.expect("opened").coordination_store().clone();
    let graphs = store.list(kinds::GRAPHS, None, 10).await.expect("listed");
    let left: Vec<String> = graphs.items.iter().map(|it| it.0.to_string()).collect();
    assert_eq!(left, [job_id_of(&id, 1).to_string()]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_input_is_missing_fails_at_its_first_try_whatever_its_restarts()
-> Result<(), TestClusterError> {
    let cluster = TestCluster::builder().start().await?;
    let missing = cluster.directory().join("missing.txt");
    let job = JobBuilder::new("reads")
        .file_source("lines", [missing.to_string_lossy()])
        .discard("out")
        .build();
    let execution = cluster.client().execute_async(job).await.expect("accepted");
    let result = execution.result().await?;
    assert_eq!(result.status, JobStatus::Failed);
    let cause = result.cause.unwrap_or_default();
    for part in ["lines", &*missing.to_string_lossy(), " on host "] {
        assert!(cause.contains(part), "{cause}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_fails_before_it_submits_ends_its_application_as_failed()
-> Result<(), TestClusterError> {
    for application in [
        Application::new("fails").job(|_| Err("no graph today".into())),
        Application::new("fails").program(async |_| panic!("no graph today")),
    ] {
        let mut cluster = TestCluster::builder()
            .application(&application)
            .start_unled()
            .await?;
        assert_eq!(cluster.jobmanager_ended("jm-1").await?, ExitCode::JobFailed);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_fails_has_its_other_jobs_cancelled() -> Result<(), TestClusterError> {
    let application = Application::new("fails").program(async |context| {
        context.execute_async(endless()).await?;
        Err("no second job".into())
    });
    let mut cluster = TestCluster::builder()
        .application(&application)
        .start_unled()
        .await?;
    assert_eq!(cluster.jobmanager_ended("jm-1").await?, ExitCode::JobFailed);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_builds_another_graph_is_refused_and_the_job_goes_on()
-> Result<(), TestClusterError> {
    let count = Arc::new(AtomicU64::new(1_000_000_000));
    let differs = count.clone();
    let application = Application::new("differs").job(move |_| {
        let graph = JobBuilder::new("numbers");
        let count = differs.load(Ordering::SeqCst);
        Ok(graph
            .datagen("numbers", Some(10), Some(count), 0, 10)
            .discard("out")
            .build())
    });
    let (mut cluster, job) = without_its_leader(&application).await?;
    count.store(1, Ordering::SeqCst);
    cluster.start_jobmanager("jm-2").await?;
    assert_eq!(cluster.jobmanager_ended("jm-2").await?, ExitCode::Refused);
    // With the right program the same job is led again.
    count.store(1_000_000_000, Ordering::SeqCst);
    goes_on_until_cancelled(&mut cluster, &job, "jm-3").await
}

/// Serves another file at each request, and counts the requests. Returns the address.
async fn serve_what_changes(requests: Arc<AtomicU64>) -> std::io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = format!("http://{}/model", listener.local_addr()?);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                match stream.read_u8().await {
                    Ok(byte) => head.push(byte),
                    Err(_closed) => break,
                }
            }
            let number = requests.fetch_add(1, Ordering::SeqCst);
            let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 4\r\n\r\n";
            let answer = format!("{head}{number:04}");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    Ok(address)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_application_goes_on_under_the_next_leader_though_an_address_has_another_file_by_then()
-> Result<(), TestClusterError> {
    let requests = Arc::new(AtomicU64::new(0));
    let address = serve_what_changes(requests.clone()).await;
    let address = address.expect("a port is free");
    let application = Application::new("ships").job(move |_| {
        Ok(JobBuilder::new("ships")
            .artifact(ArtifactSpec::new("model", address.as_str()))
            .datagen("numbers", Some(10), None, 0, 10)
            .discard("out")
            .build())
    });
    let (mut cluster, job) = without_its_leader(&application).await?;
    goes_on_until_cancelled(&mut cluster, &job, "jm-2").await?;
    assert_eq!(
        requests.load(Ordering::SeqCst),
        1,
        "what was there at first"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_fails_where_an_earlier_run_did_not_ends_its_process_only()
-> Result<(), TestClusterError> {
    let fails = Arc::new(AtomicU64::new(0));
    let failing = fails.clone();
    let application =
        Application::new("misled").job(move |_| match failing.load(Ordering::SeqCst) {
            0 => Ok(endless()),
            _ => Err("a parameter is missing".into()),
        });
    let (mut cluster, job) = without_its_leader(&application).await?;
    fails.store(1, Ordering::SeqCst);
    cluster.start_jobmanager("jm-2").await?;
    assert_eq!(cluster.jobmanager_ended("jm-2").await?, ExitCode::Refused);
    fails.store(0, Ordering::SeqCst);
    cluster.start_jobmanager("jm-3").await?;
    cluster.wait_until_running(&job).await?;
    // A process that is asked to end leaves everything as it is.
    assert_eq!(cluster.stop_jobmanager("jm-3").await?, ExitCode::Ended);
    cluster.start_jobmanager("jm-4").await?;
    cluster.wait_until_running(&job).await
}

#[tokio::test(flavor = "multi_thread")]
async fn several_jobs_at_once_end_an_application_that_succeeded() -> Result<(), TestClusterError> {
    let application = Application::new("several").program(async |context| {
        for count in 1..=3 {
            // Only the application itself waits for them.
            context.execute_async(short(count)).await?;
        }
        Ok(())
    });
    let builder = TestCluster::builder().slots(3).application(&application);
    let mut cluster = builder.start_unled().await?;
    assert_eq!(cluster.jobmanager_ended("jm-1").await?, ExitCode::Ended);
    Ok(())
}

/// Counts its records.
struct Counting(Arc<AtomicU64>);

impl Operator for Counting {
    fn process(&mut self, batch: RecordBatch, _: &mut Output) -> Result<(), OperatorError> {
        let rows = u64::try_from(batch.num_rows()).expect("it fits");
        self.0.fetch_add(rows, Ordering::SeqCst);
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_of_an_application_runs_and_an_unknown_one_is_refused()
-> Result<(), TestClusterError> {
    let seen = Arc::new(AtomicU64::new(0));
    let counted = seen.clone();
    let of_an_application = |operator: &str| {
        JobBuilder::new("counted")
            .datagen("numbers", None, Some(1000), 0, 10)
            .custom("counting", CustomSpec::sink(operator))
            .build()
    };
    let graph = of_an_application("testing-counting");
    let application = Application::new("counted")
        .operator("testing-counting", move |_, _| {
            Ok(Box::new(Counting(counted.clone())))
        })
        .job(move |_| Ok(graph.clone()));
    let mut cluster = TestCluster::builder()
        .application(&application)
        .start_unled()
        .await?;
    assert_eq!(cluster.jobmanager_ended("jm-1").await?, ExitCode::Ended);
    assert_eq!(seen.load(Ordering::SeqCst), 1000);

    let session = TestCluster::builder().start().await?;
    let unknown = of_an_application("testing-unknown");
    let refused = session
        .client()
        .execute(unknown)
        .await
        .expect_err("refused");
    assert!(refused.to_string().contains("testing-unknown"), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taskmanager_does_not_start_without_the_control_group_that_it_is_to_use()
-> Result<(), TestClusterError> {
    let builder = TestCluster::builder().taskmanagers(0);
    let builder = builder.with("process.control-groups", "/nowhere");
    let mut cluster = builder.start().await?;
    let refused = cluster.start_taskmanager("tm-1").await;
    let text = refused.expect_err("it is nowhere").to_string();
    assert!(
        text.contains("process.control-groups") && text.contains("/nowhere"),
        "{text}"
    );
    Ok(())
}

/// Waits until a TaskManager has ended by itself, and returns its exit code.
async fn taskmanager_ended(cluster: &mut TestCluster, id: &str) -> ExitCode {
    let process = cluster.taskmanagers.get_mut(id).expect("it was started");
    let ended = tokio::time::timeout(BOUND, &mut process.ended).await;
    ended.expect("it ends by itself").expect("it says how")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taskmanager_that_comes_to_a_cluster_which_ended_with_its_job_ends()
-> Result<(), TestClusterError> {
    let application = Application::new("short").job(|_| Ok(short(10)));
    let builder = TestCluster::builder().application(&application);
    let mut cluster = builder.start_unled().await?;
    assert_eq!(cluster.jobmanager_ended("jm-1").await?, ExitCode::Ended);
    cluster.start_taskmanager("late").await?;
    for id in ["tm-1", "late"] {
        assert_eq!(taskmanager_ended(&mut cluster, id).await, ExitCode::Ended);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taskmanager_whose_cluster_is_removed_ends() -> Result<(), TestClusterError> {
    let mut cluster = TestCluster::builder()
        .with("heartbeat.interval", "200 ms")
        .with("heartbeat.timeout", "2 s")
        .start()
        .await?;
    wait_for("tm-1 is registered", async || {
        match cluster.client().jobs().task_managers().await {
            Ok(all) if all.registered.len() == 1 => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    cluster.kill_leader().await?;
    // At once: threads of the killed process may still write.
    let directory = cluster.directory();
    std::fs::rename(directory.join("store"), directory.join("removed"))?;
    let code = taskmanager_ended(&mut cluster, "tm-1").await;
    assert_eq!(code, ExitCode::Ended);
    Ok(())
}
