//! Invalid input and broken environments: a clear error where the user looks, the process stays alive,
//! and no data is lost.

use std::time::Duration;

use anyhow::ensure;
use tanist_chaos::{ClusterBuilder, Store, StoreKind, Submission, dump};
use tanist_gateway::kinds;
use tanist_ha::clock::Clock;
use tanist_ha::etcd::test_servers::EtcdServerOptions;
use tanist_ha::keys::Key;
use tanist_ha::zookeeper::{ZooKeeperOptions, open_election};

use crate::support::{PROGRAM, WordsAndTicks, cluster_on, job_file};

/// Timeout until a process reports the problem.
const LOG_TIMEOUT: Duration = Duration::from_secs(30);

on_stores! {
    embedded(Embedded) { a_corrupt_graph_is_quarantined_and_all_other_jobs_are_recovered }
    etcd(Etcd) {
        a_corrupt_graph_is_quarantined_and_all_other_jobs_are_recovered,
        processes_whose_store_is_unreachable_say_so_and_work_once_it_is_there,
    }
    zookeeper(ZooKeeper) {
        a_corrupt_graph_is_quarantined_and_all_other_jobs_are_recovered,
        processes_whose_store_is_unreachable_say_so_and_work_once_it_is_there,
    }
}

async fn processes_whose_store_is_unreachable_say_so_and_work_once_it_is_there(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut store = Store::own(kind).await?;
    store.kill_server()?;
    let endpoint = store.endpoint().to_owned();
    let builder = ClusterBuilder::new(PROGRAM, store)
        .jobmanagers(1)
        .taskmanagers(1);
    let mut cluster = builder.launch().await?;
    cluster.jobmanager(0).logs(&endpoint, LOG_TIMEOUT).await?;
    cluster.taskmanager(0).logs(&endpoint, LOG_TIMEOUT).await?;
    ensure!(
        cluster.jobmanager(0).runs() && cluster.taskmanager(0).runs(),
        "a process ended"
    );
    cluster.store().restart_server().await?;
    cluster.leader().await?;
    cluster.wait_until_complete().await?;
    let workload = WordsAndTicks::prepare(&cluster, 1)?;
    cluster.submit(&workload.submission).await?;
    workload.check_finished(&mut cluster).await
}

async fn a_corrupt_graph_is_quarantined_and_all_other_jobs_are_recovered(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.slots(4).start().await?;
    let healthy = WordsAndTicks::prepare_endless(&cluster)?;
    let mut corrupt = WordsAndTicks::prepare_endless(&cluster)?.submission;
    for (_, value) in corrupt
        .parameters
        .iter_mut()
        .filter(|(name, _)| name != "input")
    {
        // The outputs of this job are separate.
        if value.starts_with('/') {
            value.push_str("-of-the-other");
        }
    }
    cluster.submit(&healthy.submission).await?;
    let job = cluster.submit(&corrupt).await?;
    cluster.wait_for_state(job, "RUNNING").await?;
    let former = cluster.leader().await?;
    let key = Key::new(kinds::GRAPHS, job.to_string().parse()?);
    dump::damage(&*cluster.records().await?, &key, b"no record at all").await?;
    cluster.jobmanager(former.index).kill();
    cluster.successor_of(&former).await?;
    let path = format!("/v1/jobs/{job}");
    cluster
        .wait_for_rest("the reason of the quarantine", LOG_TIMEOUT, &path, |body| {
            body["quarantine"].to_string().contains(&key.to_string())
        })
        .await?;
    healthy.stop(&mut cluster).await?;
    healthy.check_result()?;
    // The job stays until an operator decides.
    let leader = cluster.leader().await?;
    cluster
        .cli()
        .run(&["cancel", &job.to_string(), "--address", &leader.rest])
        .await?
        .success()?;
    cluster.check_nothing_left(&healthy.outputs()).await
}

#[tokio::test]
async fn a_password_that_etcd_refuses_is_said_and_the_processes_live() -> anyhow::Result<()> {
    let user = ("tanist".to_owned(), "right".to_owned());
    let options = EtcdServerOptions {
        user: Some(user),
        ..EtcdServerOptions::default()
    };
    let store = Store::own_etcd(options).await?;
    let builder =
        ClusterBuilder::new(PROGRAM, store).set("high-availability.etcd.password", "wrong");
    report_and_recover(builder, "authentication failed").await
}

#[tokio::test]
async fn a_password_that_zookeeper_refuses_is_said_and_the_processes_live() -> anyhow::Result<()> {
    let store = Store::own(StoreKind::ZooKeeper).await?;
    let root = "/guarded";
    // ZooKeeper does not verify a password: it belongs to the user who created the nodes.
    let owner = ZooKeeperOptions {
        digest: Some(("tanist".to_owned(), "right".to_owned())),
        ..ZooKeeperOptions::new(vec![store.endpoint().to_owned()], root)
    };
    let _nodes = open_election(owner, Clock::Boottime, false).await?;
    let builder = ClusterBuilder::new(PROGRAM, store)
        .set("high-availability.zookeeper.path.root", root)
        .set("high-availability.zookeeper.auth.user", "tanist")
        .set("high-availability.zookeeper.auth.password", "wrong");
    report_and_recover(builder, "denies access").await
}

/// Checks that every process logs `what`, stays alive, and shows no password.
async fn report_and_recover(builder: ClusterBuilder, what: &str) -> anyhow::Result<()> {
    let builder = builder.jobmanagers(1).taskmanagers(1);
    let mut cluster = builder.launch().await?;
    cluster.jobmanager(0).logs(what, LOG_TIMEOUT).await?;
    cluster.taskmanager(0).logs(what, LOG_TIMEOUT).await?;
    ensure!(
        cluster.jobmanager(0).runs() && cluster.taskmanager(0).runs(),
        "a process ended"
    );
    ensure!(
        !cluster.jobmanager(0).log().contains("wrong"),
        "the password is in the log"
    );
    cluster.check_nothing_left(&[]).await
}

#[tokio::test]
async fn a_port_in_use_ends_the_process_with_what_to_set() -> anyhow::Result<()> {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let port = taken.local_addr()?.port().to_string();
    let builder = cluster_on(StoreKind::Embedded)
        .await?
        .jobmanagers(1)
        .taskmanagers(1);
    let builder = builder
        .set("jobmanager.rpc.port", &port)
        .set("taskmanager.data.port", &port);
    let mut cluster = builder.launch().await?;
    let status = cluster.jobmanager(0).ended(LOG_TIMEOUT).await?;
    ensure!(
        status.code() == Some(11),
        "{status}: {}",
        cluster.jobmanager(0).log_tail()
    );
    cluster
        .jobmanager(0)
        .logs("jobmanager.rpc.port", LOG_TIMEOUT)
        .await?;
    cluster.jobmanager(0).logs(&port, LOG_TIMEOUT).await?;
    let status = cluster.taskmanager(0).ended(LOG_TIMEOUT).await?;
    ensure!(
        status.code() == Some(11),
        "{status}: {}",
        cluster.taskmanager(0).log_tail()
    );
    cluster
        .taskmanager(0)
        .logs("taskmanager.data.port", LOG_TIMEOUT)
        .await?;
    cluster.check_nothing_left(&[]).await
}

#[tokio::test]
async fn an_unreadable_input_and_a_bad_record_fail_their_jobs_with_the_reason_and_no_others()
-> anyhow::Result<()> {
    let mut cluster = cluster_on(StoreKind::Embedded)
        .await?
        .slots(4)
        .start()
        .await?;
    let healthy = WordsAndTicks::prepare_endless(&cluster)?;
    cluster.submit(&healthy.submission).await?;

    let missing = cluster.directory().join("no-such-file.txt");
    let output = cluster.directory().join("output");
    let stubborn = |input: &std::path::Path| {
        Submission::new(job_file("stubborn.yaml"))
            .path("input", input)
            .path("output", &output)
    };
    let unreadable = stubborn(&missing);
    let bad = cluster.directory().join("endless-line.txt");
    std::fs::write(&bad, vec![b'x'; 17 << 20])?;
    let bad_record = stubborn(&bad);
    for (submission, path) in [(unreadable, missing), (bad_record, bad)] {
        let job = cluster.submit(&submission).await?;
        cluster.wait_for_state(job, "FAILED").await?;
        let exceptions = cluster
            .get(&format!("/v1/jobs/{job}/exceptions"))
            .await?
            .to_string();
        let path = path.to_string_lossy();
        ensure!(
            exceptions.contains(&*path),
            "{path} is not named: {exceptions}"
        );
    }
    healthy.stop(&mut cluster).await?;
    healthy.check_result()?;
    let [words, ticks] = healthy.outputs();
    cluster.check_nothing_left(&[words, ticks, output]).await
}
