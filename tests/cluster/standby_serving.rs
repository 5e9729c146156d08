//! Standbys serve requests: while leaders are killed, freeze and hand over, every healthy JobManager
//! answers a client that never retries, at every moment, and the answers never go back in time. A job
//! that is submitted to one of them while there is no leader is accepted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http_body_util::Full;
use hyper::{Method, Request, Response, StatusCode};
use tanist_chaos::{Cluster, Leader, RestClient, StoreKind, wait_for};
use tanist_proto::id::JobId;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::support::{
    PROCESS_GONE, RunningOn, default_cluster, transfer_to, until_standby, until_witnesses_are_known,
};

/// The pause between an answer and the next request.
const PAUSE: Duration = Duration::from_millis(10);
/// Timeout of one answer: a busy machine needs a while to detect a frozen leader.
const ANSWER_BOUND: Duration = Duration::from_secs(20);

/// A job that ends at once.
const SMALL_JOB: &str = "version: 1\nname: in-the-gap\nsteps:\n  - name: few\n    datagen: { count: 10 }\n  - name: out\n    discard: {}\n";

on_stores! {
    each { every_jobmanager_answers_while_leaders_are_killed_freeze_and_hand_over }
}

async fn every_jobmanager_answers_while_leaders_are_killed_freeze_and_hand_over(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let builder = default_cluster(kind).await?;
    let mut cluster = builder.jobmanagers(3).start().await?;
    let running = RunningOn::start(&mut cluster).await?;
    let job = running.workload.job();
    let first = running.first.clone();
    let mut submitted = Vec::new();
    for standby in others(&first) {
        until_standby(&mut cluster, standby, &first).await?;
    }

    let clients = start_clients(&cluster, job, &others(&first));
    until_answered_by(&clients, &first).await?;
    cluster.jobmanager(first.index).kill();
    submitted.push(submit_to(&cluster, others(&first)[0]).await?);
    let second = cluster.successor_of(&first).await?;
    all_were_answered(clients, &second).await?;
    cluster.jobmanager(first.index).start()?;
    until_standby(&mut cluster, first.index, &second).await?;

    until_witnesses_are_known(&mut cluster).await?;
    let clients = start_clients(&cluster, job, &others(&second));
    until_answered_by(&clients, &second).await?;
    cluster.jobmanager(second.index).stop()?;
    submitted.push(submit_to(&cluster, others(&second)[1]).await?);
    let third = cluster.successor_of(&second).await?;
    all_were_answered(clients, &third).await?;
    cluster.jobmanager(second.index).cont()?;
    until_standby(&mut cluster, second.index, &third).await?;

    let clients = start_clients(&cluster, job, &[0, 1, 2]);
    until_answered_by(&clients, &third).await?;
    let (rest, address) = (cluster.rest().clone(), third.rest.clone());
    let submitting = tokio::spawn(async move {
        // Its successor would start tasks that it had placed but not yet deployed.
        until_it_leads_no_more(&rest, &address).await?;
        submit_through(&rest, &address).await
    });
    let fourth = transfer_to(&mut cluster, &third, second.index).await?;
    submitted.push(submitting.await??);
    all_were_answered(clients, &fourth).await?;

    for job in submitted {
        cluster.wait_for_state(job, "FINISHED").await?;
    }
    let successors: [(Leader, &[&str]); 3] = [
        (second, &PROCESS_GONE),
        (third, &["silent-confirmed"]),
        (fourth, &["invited"]),
    ];
    running
        .check_finished_under(&mut cluster, &successors)
        .await
}

/// The other JobManagers.
fn others(leader: &Leader) -> Vec<usize> {
    (0..3).filter(|index| *index != leader.index).collect()
}

/// Requests a job repeatedly.
struct Client {
    address: String,
    state: Arc<State>,
    polling: JoinHandle<anyhow::Result<AnswerStatistics>>,
}

/// State shared between a client and its test.
#[derive(Debug, Default)]
struct State {
    is_over: AtomicBool,
    /// The epoch of the last answer.
    epoch: AtomicU64,
}

/// Statistics of the answers.
#[derive(Debug, Default)]
struct AnswerStatistics {
    answers: u32,
    /// The longest wait for an answer.
    longest: Duration,
    /// The epoch and the change number of the last answer.
    as_of: (u64, u64),
}

/// Starts a client for each of these JobManagers.
fn start_clients(cluster: &Cluster, job: JobId, jobmanagers: &[usize]) -> Vec<Client> {
    let start = |index: &usize| {
        let address = cluster.rest_address(*index).to_owned();
        let state = Arc::<State>::default();
        let url = format!("http://{address}/v1/jobs/{job}");
        let polling = poll_until(cluster.rest().clone(), url, state.clone());
        Client {
            address,
            state,
            polling: tokio::spawn(polling),
        }
    };
    jobmanagers.iter().map(start).collect()
}

async fn poll_until(
    rest: RestClient,
    url: String,
    state: Arc<State>,
) -> anyhow::Result<AnswerStatistics> {
    let mut statistics = AnswerStatistics::default();
    while !state.is_over.load(Ordering::Relaxed) {
        let request = Request::get(&url).body(Full::default())?;
        let sent = Instant::now();
        let answer = rest.exchange(request, ANSWER_BOUND).await?;
        let text = || String::from_utf8_lossy(answer.body()).into_owned();
        ensure!(
            answer.status() == StatusCode::OK,
            "{url}: {}: {}",
            answer.status(),
            text()
        );
        let as_of = (
            number(&answer, "tanist-epoch")?,
            number(&answer, "tanist-change")?,
        );
        ensure!(
            as_of >= statistics.as_of,
            "{url}: as of {as_of:?} after {:?}",
            statistics.as_of
        );
        statistics.answers += 1;
        statistics.longest = statistics.longest.max(sent.elapsed());
        statistics.as_of = as_of;
        state.epoch.store(as_of.0, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(statistics)
}

fn number(answer: &Response<Bytes>, header: &str) -> anyhow::Result<u64> {
    let value = answer.headers().get(header);
    let value = value.with_context(|| format!("no {header}"))?;
    Ok(value.to_str()?.parse()?)
}

/// Waits until each client has an answer of this leader's term.
async fn until_answered_by(clients: &[Client], leader: &Leader) -> anyhow::Result<()> {
    for client in clients {
        let what = format!("{} to answer as of {leader:?}", client.address);
        wait_for(&what, ANSWER_BOUND, async || {
            let epoch = client.state.epoch.load(Ordering::Relaxed);
            let is_over = client.polling.is_finished();
            ensure!(epoch == leader.epoch || is_over, "epoch {epoch}");
            anyhow::Ok(())
        })
        .await?;
    }
    Ok(())
}

/// Ends the clients once they have answers of `leader`'s term, and checks that all answers were successful.
async fn all_were_answered(clients: Vec<Client>, leader: &Leader) -> anyhow::Result<()> {
    until_answered_by(&clients, leader).await?;
    for client in clients {
        client.state.is_over.store(true, Ordering::Relaxed);
        let statistics = client.polling.await??;
        eprintln!("{}: {statistics:?}", client.address);
        ensure!(
            statistics.as_of.0 == leader.epoch,
            "{}: {statistics:?}",
            client.address
        );
    }
    Ok(())
}

async fn submit_to(cluster: &Cluster, jobmanager: usize) -> anyhow::Result<JobId> {
    submit_through(cluster.rest(), cluster.rest_address(jobmanager)).await
}

/// Waits until the JobManager at `address` reports that it is not the leader, or no longer.
async fn until_it_leads_no_more(rest: &RestClient, address: &str) -> anyhow::Result<()> {
    let ceased = async {
        loop {
            let request =
                Request::get(format!("http://{address}/v1/ha/leader")).body(Full::default())?;
            if rest.exchange(request, ANSWER_BOUND).await?.status() != StatusCode::OK {
                return anyhow::Ok(());
            }
            tokio::time::sleep(PAUSE / 10).await;
        }
    };
    let ceased = tokio::time::timeout(ANSWER_BOUND, ceased).await;
    ceased.context("it leads still")?
}

/// Submits a job through the JobManager at `address`, once; it must be accepted. Returns its id.
async fn submit_through(rest: &RestClient, address: &str) -> anyhow::Result<JobId> {
    let job = JobId::random();
    let request = Request::builder()
        .method(Method::POST)
        .uri(format!("http://{address}/v1/jobs?job-id={job}"))
        .header("content-type", "application/yaml")
        .body(Full::from(SMALL_JOB))?;
    let answer = rest.exchange(request, ANSWER_BOUND).await?;
    ensure!(
        answer.status() == StatusCode::ACCEPTED,
        "{}: {}",
        answer.status(),
        String::from_utf8_lossy(answer.body())
    );
    Ok(job)
}
