//! The view of users and programs on high availability before and after the leader hands over and is killed:
//! status, history, the path of the leader, metrics, and consistent reads; all asked of every process.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use tanist_chaos::{Cluster, Leader, StoreKind};

use crate::support::{WordsAndTicks, cluster_on};

/// Timeout until a status shows a change.
const BOUND: Duration = Duration::from_secs(60);

on_stores! {
    embedded(Embedded) {
        who_leads_is_told_by_all_over_a_transfer_and_a_kill,
    }
    etcd(Etcd) {
        who_leads_is_told_by_all_over_a_transfer_and_a_kill,
    }
    zookeeper(ZooKeeper) {
        who_leads_is_told_by_all_over_a_transfer_and_a_kill,
    }
}

async fn who_leads_is_told_by_all_over_a_transfer_and_a_kill(
    kind: StoreKind,
) -> anyhow::Result<()> {
    let mut cluster = cluster_on(kind).await?.start().await?;
    let workload = WordsAndTicks::prepare_endless(&cluster)?;
    cluster.submit(&workload.submission).await?;
    let job = workload.job();
    cluster.wait_until_running_or_finished(job).await?;
    let former = cluster.leader().await?;
    check_reported(&mut cluster, &former).await?;
    check_what_runs(&cluster, &former, &job.to_string()).await?;
    run_cli(&cluster, &former, &["ha", "transfer"]).await?;
    let invited = cluster.successor_of(&former).await?;
    ensure!(invited.index != former.index, "it leads on: {invited:?}");
    check_reported(&mut cluster, &invited).await?;
    until_adopted(&mut cluster, &invited).await?;
    cluster.kill_leader().await?;
    let leader = cluster.successor_of(&invited).await?;
    check_reported(&mut cluster, &leader).await?;
    let history = until_adopted(&mut cluster, &leader).await?;
    let terms = history["terms"].as_array().context("terms")?;
    let [newest, before, first] = &terms[..3] else {
        anyhow::bail!("three terms: {history}");
    };
    ensure!(newest["epoch"] == leader.epoch, "{history}");
    ensure!(first["detected-by"].is_null(), "{history}");
    ensure!(before["detected-by"] == "invited", "{history}");
    ensure!(newest["detected-by"].is_string(), "{history}");
    ensure!(first["ended-how"] == "transferred", "{history}");
    for term in [newest, before] {
        check_steps(term).with_context(|| history.to_string())?;
        // Tasks of the words may have finished before.
        ensure!(term["tasks-adopted"].as_u64() >= Some(4), "{history}");
        ensure!(term["tasks-restarted"] == 0, "{history}");
    }
    let said = run_cli(&cluster, &leader, &["ha", "history"]).await?;
    ensure!(said.starts_with("EPOCH"), "{said}");
    workload.stop_and_check(&mut cluster).await
}

/// Waits until a leader has adopted all tasks; returns the history with that.
async fn until_adopted(cluster: &mut Cluster, leader: &Leader) -> anyhow::Result<Value> {
    let path = "/v1/ha/history";
    let has_adopted = |body: &Value| {
        let term = &body["terms"][0];
        term["epoch"] == leader.epoch && term["phases"]["last-adopted"].is_number()
    };
    cluster
        .wait_for_rest(
            "a term that has adopted all tasks",
            BOUND,
            path,
            has_adopted,
        )
        .await
}

/// Checks that each step of a takeover has a time in milliseconds, in the order of the steps.
fn check_steps(term: &Value) -> anyhow::Result<()> {
    let phases = &term["phases"];
    let took = |name: &str| phases[name].as_f64().with_context(|| format!("no {name}"));
    // From the last heartbeat until the loss was certain. If a leader is killed as soon as it leads, there may
    // have been no heartbeat.
    let noticed = phases["noticed"].as_f64();
    ensure!(
        term["detected-by"] == "invited" || noticed.is_none_or(|noticed| noticed > 0.0),
        "{term}"
    );
    ensure!(took("deposed")? >= 0.0, "{term}");
    let steps = ["pipeline", "cache-proven", "recovered", "confirmed"];
    let mut last = 0.0;
    for step in steps {
        let ms = took(step)?;
        ensure!(ms >= last, "{step} before the step before it: {term}");
        last = ms;
    }
    let (first, all) = (took("first-adopted")?, took("last-adopted")?);
    ensure!(0.0 < first && first <= all, "{term}");
    Ok(())
}

/// Checks that each running process gives the same answer, and that only the leader claims to lead.
async fn check_reported(cluster: &mut Cluster, leader: &Leader) -> anyhow::Result<()> {
    let running = running(cluster);
    ensure!(!running.is_empty(), "no JobManager runs");
    for index in running {
        let address = cluster.rest_address(index).to_owned();
        let status = until(cluster, &address, "/v1/ha/status", |status| {
            let members = status["members"].as_array().into_iter().flatten();
            let (leads, standbys): (Vec<_>, Vec<_>) = members.partition(|it| it["leads"] == true);
            // A store, or the leader, may have answered too late on a busy machine.
            let is_whole = status["members-error"].is_null()
                && status["store-error"].is_null()
                && leads.iter().all(|it| it["role"].is_string());
            is_whole
                && status["leader"]["epoch"] == leader.epoch
                && status["term"]["state"] == "leading"
                && standbys.iter().all(|it| it["cache"]["behind"] == 0)
        })
        .await?;
        let members = status["members"].as_array().context("members")?;
        let leads = |it: &&Value| it["leads"] == true && it["role"] == "leading";
        ensure!(members.iter().filter(leads).count() == 1, "{status}");
        let standbys = members.iter().filter(|it| it["role"] == "standby");
        ensure!(standbys.clone().count() == members.len() - 1, "{status}");
        for standby in standbys {
            ensure!(standby["cache"]["behind"] == 0, "{status}");
        }
        ensure!(status["store-health"]["latency"].is_number(), "{status}");

        let rest = cluster.rest().clone();
        let expected = if index == leader.index { 200 } else { 503 };
        // A leader that its store does not answer is none for a moment.
        let asked = tanist_chaos::wait_for("the path of the leader", BOUND, async || {
            let asked = rest.request(hyper::Method::GET, &address, "/v1/ha/leader");
            let (code, body) = asked.await?;
            ensure!(index != leader.index || code != 503, "{body}");
            anyhow::Ok((code, body))
        });
        let (code, body) = asked.await?;
        ensure!(code.as_u16() == expected, "{address}: {code}: {body}");

        let has = |metrics: &Value, line: &str| {
            let text = metrics.as_str().unwrap_or_default();
            text.lines().any(|it| it == line)
        };
        let is_store_up = |metrics: &Value| has(metrics, "tanist_store_up 1");
        let metrics = until(cluster, &address, "/metrics", is_store_up).await?;
        let leads = u8::from(index == leader.index);
        ensure!(
            has(&metrics, &format!("tanist_leader {leads}")),
            "{metrics}"
        );
        let epoch = format!("tanist_epoch {}", leader.epoch);
        ensure!(has(&metrics, &epoch), "{metrics}");

        // The leader answers, whichever process is asked.
        until(cluster, &address, "/v1/jobs?consistent=true", |body| {
            body["jobs"].as_array().is_some_and(|jobs| jobs.len() == 1)
        })
        .await?;
    }
    let said = run_cli(cluster, leader, &["ha", "status"]).await?;
    let epoch = format!("Epoch        {}", leader.epoch);
    ensure!(said.lines().any(|line| line == epoch), "{said}");
    Ok(())
}

/// Checks the places of tasks, and that nothing has failed.
async fn check_what_runs(cluster: &Cluster, leader: &Leader, job: &str) -> anyhow::Result<()> {
    let task_managers = run_cli(cluster, leader, &["taskmanager", "list"]).await?;
    ensure!(task_managers.contains("tm-0"), "{task_managers}");
    let subtasks = run_cli(cluster, leader, &["job", "subtasks", job]).await?;
    let ticks = subtasks.lines().find(|line| line.starts_with("clock"));
    let runs = |line: &str| line.contains("RUNNING") && line.contains("tm-");
    ensure!(ticks.is_some_and(runs), "{subtasks}");
    let asked = ["job", "subtasks", job, "-o", "json"];
    let whole: Value = serde_json::from_str(&run_cli(cluster, leader, &asked).await?)?;
    let vertices = whole["vertices"].as_array().context("vertices")?;
    let counted = vertices.iter().flat_map(|it| it["subtasks"].as_array());
    let counted: usize = counted.map(Vec::len).sum();
    ensure!(
        counted + 1 == subtasks.lines().count(),
        "{whole}: {subtasks}"
    );
    let exceptions = run_cli(cluster, leader, &["job", "exceptions", job]).await?;
    ensure!(exceptions.lines().count() == 1, "{exceptions}");
    Ok(())
}

async fn run_cli(cluster: &Cluster, leader: &Leader, command: &[&str]) -> anyhow::Result<String> {
    let arguments = [command, &["--address", &leader.rest]].concat();
    cluster.cli().run(&arguments).await?.success()
}

fn running(cluster: &mut Cluster) -> Vec<usize> {
    let all = 0..cluster.jobmanagers();
    all.filter(|index| cluster.jobmanager(*index).runs())
        .collect()
}

/// The body of a path of one process, once it satisfies the condition.
async fn until(
    cluster: &Cluster,
    address: &str,
    path: &str,
    wanted: impl Fn(&Value) -> bool,
) -> anyhow::Result<Value> {
    let what = format!("{address}{path}");
    tanist_chaos::wait_for(&what, BOUND, async || {
        let body = cluster.rest().get(address, path).await?;
        ensure!(wanted(&body), "{body}");
        anyhow::Ok(body)
    })
    .await
}
