//! A job that ends the process that starts it is found and set aside; no other job is affected.

use std::time::Duration;

use tanist_leadership::history::{self, HistoryRecord, TermPhase};
use tanist_proto::id::JobId;
use tanist_proto::v1::{JobEventKind, JobStatus, QuarantineAction, QuarantineKind};

use crate::testing::cluster::{TestCluster, graph};
use crate::testing::history::Record;

const JOBS: u32 = 8;
const CULPRIT: JobId = job(6);

const fn job(number: u128) -> JobId {
    JobId::from_bits(number)
}

fn others() -> impl Iterator<Item = JobId> {
    let all = (1..=u128::from(JOBS)).map(job);
    all.filter(|job| *job != CULPRIT)
}

/// Two JobManagers, and [`JOBS`] jobs of two tasks each, all of which run.
async fn cluster() -> TestCluster {
    let cluster = TestCluster::start(2, 2, JOBS / 2).await;
    for job in others().chain([CULPRIT]) {
        let submitted = cluster.client.submit(&graph(job, 1), "t").await;
        submitted.expect("accepted");
        cluster.until_running(job, 2).await;
    }
    until_leading(&cluster).await;
    cluster
}

async fn records(cluster: &TestCluster) -> Vec<HistoryRecord> {
    let read = history::read_all(&cluster.memory.store()).await;
    read.expect("readable")
}

/// Waits until the record of the leader's term says that all JobMasters have begun.
async fn until_leading(cluster: &TestCluster) {
    for _ in 0..100_000 {
        let last = records(cluster).await.pop();
        if last.is_some_and(|last| {
            last.epoch == cluster.epoch() && last.phase == Some(TermPhase::Leading)
        }) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("no term leads: {:#?}", records(cluster).await);
}

/// Makes the start of a culprit's JobMaster end its process.
fn strike_at(cluster: &TestCluster, culprits: &'static [JobId]) {
    let is_start = |record: &Record| matches!(record, Record::State(job, state) if culprits.contains(job) && state.quarantine.is_none());
    cluster.strike_at(move |step| step.commits(is_start));
}

fn is_set_aside(cluster: &TestCluster, job: JobId) -> bool {
    let stored = cluster.world.stored();
    let state = stored.states.get(&job);
    state.is_some_and(|state| state.quarantine.is_some())
}

/// Lets the culprits end processes, which are started again, until all are set aside. Returns the number of
/// ended processes.
async fn search(cluster: &mut TestCluster, culprits: &'static [JobId]) -> usize {
    strike_at(cluster, culprits);
    let leader = cluster.leader().await;
    cluster.kill_job_manager(&leader).await;
    cluster.start_job_manager(&leader);
    let mut deaths = 0;
    for _ in 0..100_000 {
        if culprits.iter().all(|job| is_set_aside(cluster, *job)) {
            cluster.strike_at(|_| false);
            return deaths;
        }
        if let Some(name) = cluster.bury_struck().await {
            deaths += 1;
            strike_at(cluster, culprits);
            cluster.start_job_manager(&name);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!(
        "after {deaths} deaths not all are set aside: {:#?}",
        records(cluster).await
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_that_ends_its_process_is_found_and_set_aside_and_led_again_when_it_is_retried() {
    let mut cluster = cluster().await;
    let deaths = search(&mut cluster, &[CULPRIT]).await;
    // Twice with all, then with a quarter of them, as the first half had begun, and twice alone.
    assert_eq!(deaths, 2 + 1 + 2);
    let alone = |record: &HistoryRecord| {
        let starting = record.suspicion.starting;
        starting.is_some_and(|range| range.first == CULPRIT && range.last == CULPRIT)
    };
    let first_alone = records(&cluster).await.iter().position(alone);
    assert_eq!(
        first_alone,
        Some(1 + 2 + 1),
        "after the term in which all was well"
    );
    until_leading(&cluster).await;
    for job in others() {
        assert_eq!(cluster.until_running(job, 2).await, 1, "not touched");
    }
    // Longer than any timeout.
    tokio::time::sleep(Duration::from_secs(1800)).await;
    assert_eq!(cluster.world.tasks.of(CULPRIT).len(), 2, "they run on");

    let details = cluster.client.describe(CULPRIT).await.expect("known");
    assert_eq!(details.status(), JobStatus::Suspended);
    let quarantine = details.quarantined.expect("it is set aside");
    assert_eq!(quarantine.kind(), QuarantineKind::EndedProcess);
    assert_eq!(quarantine.evidence.len(), deaths);

    // The next term knows it from the stored records.
    let leader = cluster.leader().await;
    let epoch = cluster.epoch();
    cluster.kill_job_manager(&leader).await;
    cluster.start_job_manager(&leader);
    cluster.leader_above(epoch).await;
    until_leading(&cluster).await;
    let details = cluster.client.describe(CULPRIT).await.expect("known");
    assert!(!details.quarantine.is_empty());

    let retried = cluster
        .client
        .resolve(CULPRIT, QuarantineAction::Retry)
        .await;
    retried.expect("led again");
    for job in others().chain([CULPRIT]) {
        assert_eq!(cluster.until_running(job, 2).await, 1, "adopted");
    }
    let details = cluster.client.describe(CULPRIT).await.expect("known");
    let reported = details.events.iter().map(|it| (it.kind(), it.epoch));
    let reported: Vec<(JobEventKind, u64)> = reported.collect();
    let at = |kind| reported.iter().position(|it| it.0 == kind);
    let (set_aside, retried) = (at(JobEventKind::Quarantine), at(JobEventKind::Retry));
    assert!(set_aside.is_some() && set_aside < retried, "{reported:?}");
    assert!(
        retried
            < reported
                .iter()
                .rposition(|it| it.0 == JobEventKind::Takeover)
    );
    assert_eq!(
        reported.last().map(|it| it.1),
        Some(cluster.epoch()),
        "{reported:?}"
    );
    let again = cluster
        .client
        .resolve(CULPRIT, QuarantineAction::Delete)
        .await;
    again.expect_err("it is not quarantined any more");
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn two_jobs_that_end_their_processes_are_both_found() {
    const CULPRITS: [JobId; 2] = [job(2), CULPRIT];
    let mut cluster = cluster().await;
    let deaths = search(&mut cluster, &CULPRITS).await;
    // Twice with all, with four and with two of them, and twice alone. Then the second culprit, among the six
    // that had not begun yet: with one other job, and twice alone.
    assert_eq!(deaths, (2 + 1 + 1 + 2) + (1 + 2));
    until_leading(&cluster).await;
    for job in others().filter(|job| !CULPRITS.contains(job)) {
        assert_eq!(cluster.until_running(job, 2).await, 1, "not touched");
    }
    for job in CULPRITS {
        assert_eq!(cluster.world.tasks.of(job).len(), 2, "they run on");
    }
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_quarantined_job_that_is_deleted_is_cancelled_and_its_tasks_end() {
    let mut cluster = cluster().await;
    search(&mut cluster, &[CULPRIT]).await;
    until_leading(&cluster).await;
    let deleted = cluster
        .client
        .resolve(CULPRIT, QuarantineAction::Delete)
        .await;
    deleted.expect("cancelled");
    assert_eq!(cluster.until_clean(CULPRIT).await, JobStatus::Canceled);
    let gone = || cluster.world.tasks.of(CULPRIT).is_empty();
    cluster.until("its tasks have ended", gone).await;
    for job in others() {
        assert_eq!(cluster.until_running(job, 2).await, 1, "not touched");
    }
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn an_outside_kill_during_recovery_costs_a_crash_loop_recovery_and_no_job() {
    let mut cluster = cluster().await;
    let leader = cluster.leader().await;
    cluster.kill_job_manager(&leader).await;
    for _ in 0..2 {
        cluster.strike_at(|step| step.commits(|record| matches!(record, Record::State(..))));
        if !cluster.runs(&leader) {
            cluster.start_job_manager(&leader);
        }
        let struck = cluster.after_strike().await;
        cluster.start_job_manager(&struck);
    }
    until_leading(&cluster).await;
    for job in others().chain([CULPRIT]) {
        assert_eq!(cluster.until_running(job, 2).await, 1, "adopted");
    }
    let last = records(&cluster).await.pop().expect("its own");
    let tasks = usize::try_from(2 * JOBS).ok();
    let reported = (last.tasks_adopted, last.tasks_restarted);
    assert_eq!(
        reported,
        (tasks, Some(0)),
        "also of those that were started last"
    );
    let stored = cluster.world.stored();
    assert!(
        stored
            .states
            .values()
            .all(|state| state.quarantine.is_none())
    );
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn leaders_that_are_killed_one_after_the_other_cause_no_crash_loop_recovery() {
    const BETWEEN: Duration = Duration::from_millis(300);
    let mut cluster = cluster().await;
    for _ in 0..4 {
        let leader = cluster.leader().await;
        cluster.kill_job_manager(&leader).await;
        let killed_at = cluster.epoch();
        cluster
            .until("the next one leads", || cluster.epoch() > killed_at)
            .await;
        cluster.start_job_manager(&leader);
        for job in others().chain([CULPRIT]) {
            cluster.until_running(job, 2).await;
        }
        tokio::time::sleep(BETWEEN).await;
        let last = records(&cluster).await.pop().expect("its own");
        assert_eq!(last.phase, Some(TermPhase::Leading));
        assert!(last.takeover.is_some());
    }
    let suspected = |record: &HistoryRecord| !record.suspicion.died.is_empty();
    assert!(!records(&cluster).await.iter().any(suspected));
    cluster.check();
}
