//! Applications: the size of their record, what they leave, and the exit codes of their JobManagers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tanist_compile::{CompileOptions, JobBuilder};
use tanist_config::{Configuration, LoadOptions};
use tanist_gateway::kinds;
use tanist_ha::blob::{BlobOptions, BlobStore};
use tanist_ha::election::Epoch;
use tanist_ha::keys::{Key, Kind, Name};
use tanist_ha::store::Write;
use tanist_leadership::application::job_id_of;
use tanist_leadership::history::{self, TermPhase};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_proto::v1::QuarantineAction;
use tanist_telemetry::ExitCode;

use crate::testing::cluster::{TestCluster, graph};
use crate::testing::history::{Record, Stored};
use crate::{ApplicationContext, ApplicationSetup};

fn cluster_id() -> Name {
    Configuration::defaults().ha().cluster_id.clone()
}

/// The id of the application's job.
fn job(position: u32) -> JobId {
    job_id_of(&cluster_id(), position)
}

/// A TaskManager with two slots, and JobManagers that lead this application or stand by.
async fn cluster_of(
    application: ApplicationSetup,
    load: LoadOptions,
    job_managers: &[&str],
) -> TestCluster {
    let mut cluster = TestCluster::start_with(load, 0, 1, 2).await;
    cluster.application = Some(application);
    for name in job_managers {
        cluster.start_job_manager(name);
    }
    cluster
}

/// Submits this many jobs of one task each, and waits for nothing.
fn submits(name: String, jobs: u32) -> ApplicationSetup {
    ApplicationSetup::new(name, move |context| async move {
        for _ in 0..jobs {
            context.execute_graph(graph(job(0), 1)).await?;
        }
        Ok(())
    })
}

#[tokio::test(start_paused = true)]
async fn an_application_whose_record_grows_too_large_ends_as_unknown_and_waits_for_nothing() {
    // The memory store accepts a million bytes: the application begins, and some of its submissions are recorded. Each
    // refused one between two others takes a few bytes.
    const JOBS: u32 = 200;
    let name = "x".repeat(1_000_000 - 600);
    let application = ApplicationSetup::new(name, |context| async move {
        for _ in 0..JOBS {
            let refused = context.execute_graph(pb::JobGraph::default()).await;
            assert!(refused.is_err(), "it has no vertices");
            context.execute_graph(graph(job(0), 1)).await?;
        }
        Ok(())
    });
    let mut cluster = cluster_of(application, LoadOptions::default(), &["jm1"]).await;
    assert_eq!(cluster.end_of_job_manager("jm1").await, ExitCode::Fatal);
    let stored = cluster.world.stored();
    let submitted = u32::try_from(stored.graphs.len()).expect("few");
    assert!((2..JOBS).contains(&submitted), "{stored:?}");
}

#[tokio::test(start_paused = true)]
async fn an_application_of_more_jobs_than_are_listed_goes_on_with_all_of_them_and_ends() {
    const JOBS: u32 = 130;
    let application = submits("many".to_owned(), JOBS);
    let mut cluster = cluster_of(application, LoadOptions::default(), &["jm1"]).await;
    for position in 0..JOBS {
        let tasks = &cluster.world.tasks;
        tasks.finish_after(job(position), Duration::from_millis(50));
    }
    let half = job(JOBS / 2);
    let has_ended = |stored: &Stored| stored.results.contains_key(&half);
    cluster.until_stored("half have ended", has_ended).await;
    cluster.kill_job_manager("jm1").await;
    cluster.start_job_manager("jm2");
    assert_eq!(cluster.end_of_job_manager("jm2").await, ExitCode::Ended);
    let stored = cluster.world.stored();
    assert!(stored.graphs.is_empty() && stored.results.is_empty());
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn the_jobs_of_an_application_begin_as_its_setup_says_unless_they_say_it() {
    use pb::restore_request::From;
    let from = |path: &str| {
        Some(pb::RestoreRequest {
            from: Some(From::Path(path.to_owned())),
            ..pb::RestoreRequest::default()
        })
    };
    let application = ApplicationSetup::new("restored", move |context| async move {
        let steps = JobBuilder::new("numbers").datagen("numbers", None, Some(1), 1, 1);
        let numbers = steps.discard("out").build();
        for (refused, path) in [
            (context.execute(numbers).await.map(drop), "/configured"),
            (
                context.execute_graph(graph(job(0), 1)).await.map(drop),
                "/configured",
            ),
            (
                context
                    .execute_graph_from(graph(job(0), 1), from("/named"))
                    .await
                    .map(drop),
                "/named",
            ),
        ] {
            let refused = refused.expect_err("nothing is there").to_string();
            assert!(refused.contains(path), "{refused}");
        }
        Ok(())
    });
    let application = application.beginning_from(from("/configured"));
    let mut cluster = cluster_of(application, LoadOptions::default(), &["jm1"]).await;
    assert_eq!(cluster.end_of_job_manager("jm1").await, ExitCode::Ended);
}

#[tokio::test(start_paused = true)]
async fn submissions_are_numbered_by_the_calls_in_whatever_order_their_futures_are_polled() {
    let application = ApplicationSetup::new("swapped", |context| async move {
        let first = context.execute_graph(graph(job(0), 1));
        let second = context.execute_graph(graph(job(0), 1));
        assert_eq!(second.await?.id(), job(1));
        assert_eq!(first.await?.id(), job(0));
        Ok(())
    });
    let mut cluster = cluster_of(application, LoadOptions::default(), &["jm1"]).await;
    for position in 0..2 {
        let tasks = &cluster.world.tasks;
        tasks.finish_after(job(position), Duration::from_millis(50));
    }
    assert_eq!(cluster.end_of_job_manager("jm1").await, ExitCode::Ended);
}

#[tokio::test(start_paused = true)]
async fn an_application_ends_though_its_cleanup_is_given_up_and_the_next_leader_resumes_the_cleanup()
 {
    let application = ApplicationSetup::new("writes", |context| async move {
        let job = JobBuilder::new("writes")
            .datagen("numbers", Some(10), None, 1, 10)
            .file_sink("out", "/out");
        let graph = job.build().compile(&CompileOptions::default())?;
        context.execute_graph(graph).await?.finished().await?;
        Ok(())
    });
    let attempts = "cleanup-strategy.exponential-delay.attempts";
    let load = LoadOptions::default().with(attempts, "2");
    let mut cluster = cluster_of(application, load, &["jm1", "jm2"]).await;
    cluster.world.sinks_deny.store(true, Ordering::Relaxed);
    let written = job(0);
    let tasks = &cluster.world.tasks;
    tasks.finish_after(written, Duration::from_secs(1));
    for leader in ["jm1", "jm2"] {
        assert_eq!(cluster.end_of_job_manager(leader).await, ExitCode::Ended);
    }
    assert_eq!(cluster.end_of_task_manager("tm1").await, ExitCode::Ended);
    let stored = cluster.world.stored();
    assert!(stored.results[&written].dirty, "{stored:?}");
    cluster.world.sinks_deny.store(false, Ordering::Relaxed);
    cluster.start_job_manager("jm3");
    assert_eq!(cluster.end_of_job_manager("jm3").await, ExitCode::Ended);
    assert!(cluster.world.stored().results.is_empty());
    cluster.check();
}

/// Two jobs; a record of the first one is damaged when its leader dies, before or after the job has ended
/// (`has_ended`). The next leader sets it aside and waits until it is deleted. Returns the exit codes of that
/// leader and of a standby.
async fn damaged(kind: Kind, has_ended: bool) -> [ExitCode; 2] {
    let application = submits("damaged".to_owned(), 2);
    let mut cluster = cluster_of(application, LoadOptions::default(), &["jm1"]).await;
    let [first, second] = [job(0), job(1)];
    cluster.until_running(first, 2).await;
    cluster.until_running(second, 2).await;
    if has_ended {
        cluster.world.finish_tasks(first);
        cluster.until_clean(first).await;
    }
    let name = Name::new(first.to_string()).expect("a name");
    let damaged = Write::Put {
        key: Key::new(kind, name),
        value: bytes::Bytes::from_static(b"bit rot"),
    };
    cluster.write_as_a_stranger(damaged).await;
    cluster.kill_job_manager("jm1").await;
    cluster.start_job_manager("jm2");
    cluster.start_job_manager("jm3");
    cluster.until_running(second, 2).await;
    let details = cluster.client.describe(first).await.expect("it is there");
    assert!(!details.quarantine.is_empty(), "{details:?}");
    // Longer than any timeout.
    tokio::time::sleep(Duration::from_secs(600)).await;
    let leader = cluster.leader_above(1).await;
    let standby = if leader == "jm2" { "jm3" } else { "jm2" };
    let deleted = cluster.client.resolve(first, QuarantineAction::Delete);
    deleted.await.expect("deleted");
    let code = cluster.end_of_job_manager(&leader).await;
    [code, cluster.end_of_job_manager(standby).await]
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_record_can_not_be_read_is_waited_for_until_it_is_deleted() {
    let codes = damaged(kinds::STATES, false).await;
    assert_eq!(codes, [ExitCode::JobCanceled; 2]);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_result_can_not_be_read_is_waited_for_and_its_end_is_unknown_once_it_is_deleted()
 {
    let codes = damaged(kinds::RESULTS, true).await;
    assert_eq!(codes, [ExitCode::Fatal; 2]);
}

#[tokio::test(start_paused = true)]
async fn what_a_deleted_job_left_is_taken_for_its_end_though_it_can_not_be_compared() {
    let application = submits("deleted".to_owned(), 1);
    let mut cluster = cluster_of(application, LoadOptions::default(), &["jm1"]).await;
    let first = job(0);
    cluster.until_running(first, 2).await;
    let name = Name::new(first.to_string()).expect("a name");
    let damaged = Write::Put {
        key: Key::new(kinds::STATES, name),
        value: bytes::Bytes::from_static(b"bit rot"),
    };
    cluster.write_as_a_stranger(damaged).await;
    cluster.kill_job_manager("jm1").await;
    cluster.start_job_manager("jm2");
    cluster.leader_above(1).await;
    let is_result = |record: &Record| matches!(record, Record::Result(..));
    cluster.strike_at(move |step| step.committed(is_result));
    let client = cluster.client.clone();
    let deleting =
        tokio::spawn(async move { client.resolve(first, QuarantineAction::Delete).await });
    assert_eq!(cluster.after_strike().await, "jm2");
    cluster.start_job_manager("jm3");
    assert_eq!(
        cluster.end_of_job_manager("jm3").await,
        ExitCode::JobCanceled
    );
    deleting.abort();
}

/// An application that submits a graph with this many subtasks, which is also its identity.
fn identified(subtasks: u32) -> ApplicationSetup {
    let program = move |context: ApplicationContext| async move {
        context.execute_graph(graph(job(0), subtasks)).await?;
        Ok(())
    };
    ApplicationSetup::new("identified", program).identified_by(subtasks.to_string())
}

/// The exit code of a JobManager that is started for such an application.
async fn code_of(cluster: &mut TestCluster, name: &str, subtasks: u32) -> ExitCode {
    cluster.application = Some(identified(subtasks));
    cluster.start_job_manager(name);
    cluster.end_of_job_manager(name).await
}

#[tokio::test(start_paused = true)]
async fn a_process_that_carries_out_the_end_of_another_application_ends_as_refused() {
    let mut cluster = cluster_of(identified(1), LoadOptions::default(), &["jm1"]).await;
    let tasks = &cluster.world.tasks;
    tasks.finish_after(job(0), Duration::from_secs(1));
    // The end is decided before that step.
    let is_end = |record: &Record| matches!(record, Record::Deleted(kinds::RESULTS, _));
    cluster.strike_at(move |step| step.commits(is_end));
    cluster.after_strike().await;
    assert_eq!(code_of(&mut cluster, "jm2", 2).await, ExitCode::Refused);
    assert!(cluster.world.stored().results.is_empty());
    assert_eq!(code_of(&mut cluster, "jm3", 1).await, ExitCode::Ended);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_belongs_to_the_application_that_submits_first() {
    let mut cluster = cluster_of(identified(1), LoadOptions::default(), &["jm1"]).await;
    cluster.strike_at(|step| step.commits(|record| matches!(record, Record::Graph(_))));
    cluster.after_strike().await;
    let tasks = &cluster.world.tasks;
    tasks.finish_after(job(0), Duration::from_secs(1));
    for (name, subtasks, code) in [
        ("jm2", 2, ExitCode::Ended),
        ("jm3", 1, ExitCode::Refused),
        ("jm4", 2, ExitCode::Ended),
    ] {
        assert_eq!(code_of(&mut cluster, name, subtasks).await, code, "{name}");
    }
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_program_that_ends_its_process_in_each_term_has_no_job_set_aside() {
    let application = submits("ends".to_owned(), 2);
    let mut cluster = cluster_of(application, LoadOptions::default(), &["jm1"]).await;
    // More deaths than are needed to find a culprit.
    for _ in 0..7 {
        let is_second = |record: &Record| matches!(record, Record::Graph(it) if *it == job(1));
        cluster.strike_at(move |step| step.commits(is_second));
        let struck = cluster.after_strike().await;
        cluster.start_job_manager(&struck);
    }
    cluster.until_running(job(1), 2).await;
    assert_eq!(cluster.until_running(job(0), 2).await, 1, "adopted");
    let terms = history::read_all(&cluster.memory.store()).await;
    let terms = terms.expect("readable");
    for term in &terms {
        let phase = (term.phase, term.suspicion.died.len());
        assert_eq!(phase, (Some(TermPhase::Leading), 0), "{terms:#?}");
    }
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn what_former_leaders_left_in_the_blob_store_goes_with_the_application() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = BlobOptions {
        url: directory.path().to_string_lossy().into_owned(),
        shared: true,
    };
    let blobs = Arc::new(BlobStore::open(&options).await.expect("opened"));
    let mut cluster =
        cluster_of(submits("leaves".to_owned(), 1), LoadOptions::default(), &[]).await;
    cluster.blobs = Some(blobs.clone());
    cluster.start_job_manager("jm1");
    cluster.until_running(job(0), 2).await;
    let incarnation = cluster
        .leader_view()
        .incarnation
        .expect("there is a leader");
    let own = blobs.of_cluster(&incarnation);
    let owner = Name::new(job(0).to_string()).expect("a name");
    let bytes = bytes::Bytes::from_static(b"left");
    let left = own.put(&owner, Epoch::new(0), bytes).await;
    left.expect("put");
    let mut upload = own.upload(&owner).expect("a name");
    upload.write(b"left").await.expect("written");
    upload.finish().await.expect("finished");
    // Two objects and the marker of the storage.
    assert_eq!(blobs.list().await.expect("listed").len(), 3);
    cluster.world.finish_tasks(job(0));
    assert_eq!(cluster.end_of_job_manager("jm1").await, ExitCode::Ended);
    let left = blobs.list().await.expect("listed");
    assert!(left.is_empty(), "{left:?}");
}
