//! A standby's cache: a new leader recovers from it, and the result is the content of the store.

use tanist_config::Configuration;
use tanist_gateway::kinds;
use tanist_ha::election::{ElectionDriver as _, Epoch, MemberCache};
use tanist_ha::keys::Key;
use tanist_ha::store::CoordinationStore as _;
use tanist_ha::store::cache::Proof;
use tanist_leadership::application::job_id_of;
use tanist_leadership::history::{self, HistoryRecord, TermPhase};
use tanist_proto::id::JobId;
use tanist_telemetry::ExitCode;

use crate::ApplicationSetup;
use crate::testing::cluster::{TestCluster, graph};

fn jobs(count: u128) -> impl Iterator<Item = JobId> {
    (1..=count).map(JobId::from_bits)
}

/// This many running jobs of two tasks each.
async fn cluster_with_jobs(job_managers: u32, count: u128) -> TestCluster {
    let slots = u32::try_from(count).expect("few");
    let cluster = TestCluster::start(job_managers, 1, slots).await;
    cluster.leader().await;
    for job in jobs(count) {
        let submitted = cluster.client.submit(&graph(job, 1), "token").await;
        submitted.expect("accepted");
    }
    for job in jobs(count) {
        cluster.until_running(job, 2).await;
    }
    cluster
}

/// The cache status in the member's record of that name.
async fn reported(cluster: &TestCluster, name: &str) -> Option<MemberCache> {
    let members = cluster.memory.observer().members().await.expect("members");
    let member = members.into_iter().find(|it| it.process.as_str() == name)?;
    member.cache
}

/// Waits until a standby has reported the store's current change number.
async fn until_current(cluster: &TestCluster, name: &str) -> MemberCache {
    let store = cluster.memory.store();
    for _ in 0..10_000 {
        let change = store.guard().await.expect("guard").change;
        if let Some(cache) = reported(cluster, name).await
            && cache.change == change
        {
            return cache;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("{name} is not current: {:?}", reported(cluster, name).await);
}

async fn record_of(cluster: &TestCluster, epoch: u64) -> HistoryRecord {
    let store = cluster.memory.store();
    for _ in 0..10_000 {
        let found = history::read(&store, Epoch::new(epoch)).await;
        // Before the confirmation it says only that the term recovers.
        if let Some(record) = found.expect("read").filter(|it| it.recovery.is_some()) {
            return record;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("no record of epoch {epoch}");
}

fn other(name: &str) -> &'static str {
    if name == "jm1" { "jm2" } else { "jm1" }
}

#[tokio::test(start_paused = true)]
async fn a_standby_that_was_current_takes_over_without_reading_a_record() {
    let mut cluster = cluster_with_jobs(2, 8).await;
    let leader = cluster.leader().await;
    let cache = until_current(&cluster, other(&leader)).await;
    assert_eq!(cache.records, 16);
    cluster.kill_job_manager(&leader).await;
    assert_eq!(cluster.leader_above(1).await, other(&leader));
    let record = record_of(&cluster, 2).await;
    assert_eq!((record.jobs, record.process.as_str()), (8, other(&leader)));
    let recovery = record.recovery.expect("noted");
    assert_eq!(recovery.proof, Proof::Current);
    assert_eq!((recovery.from_cache, recovery.read), (16, 0));
    assert!(record.phases.cache_proven_ms.is_some());
    for job in jobs(8) {
        cluster.until_running(job, 2).await;
    }
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn a_record_that_was_deleted_by_hand_is_not_restored_by_a_takeover_from_memory() {
    let mut cluster = cluster_with_jobs(2, 3).await;
    let leader = cluster.leader().await;
    until_current(&cluster, other(&leader)).await;
    let [graphless, forgotten, healthy] = [1, 2, 3].map(JobId::from_bits);
    let record = |kind, job: JobId| Key::new(kind, job.to_string().parse().expect("a name"));
    let deleted = [
        record(kinds::GRAPHS, graphless),
        record(kinds::GRAPHS, forgotten),
        record(kinds::STATES, forgotten),
    ];
    for key in &deleted {
        cluster.memory.overwrite(key, None);
    }
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(1).await;
    let recovery = record_of(&cluster, 2).await.recovery.expect("noted");
    assert_eq!(recovery.proof, Proof::Current, "no number tells");
    cluster.until_running(healthy, 2).await;
    let details = cluster.client.describe(graphless).await.expect("known");
    assert!(details.quarantine.contains("is missing"), "{details:?}");
    let unknown = cluster.client.describe(forgotten).await;
    unknown.expect_err("nothing is there of it");
    let found = cluster.memory.store().get(&deleted).await;
    assert_eq!(found.expect("readable"), [None, None, None]);
}

#[tokio::test(start_paused = true)]
async fn an_application_whose_record_was_deleted_is_not_led_from_memory() {
    let mut cluster = TestCluster::start(0, 1, 2).await;
    let application = ApplicationSetup::new("one", |context| async move {
        context.execute_graph(graph(JobId::from_bits(0), 1)).await?;
        Ok(())
    });
    cluster.application = Some(application);
    cluster.start_job_manager("jm1");
    let cluster_id = Configuration::defaults().ha().cluster_id.clone();
    cluster.until_running(job_id_of(&cluster_id, 0), 2).await;
    cluster.start_job_manager("jm2");
    until_current(&cluster, "jm2").await;
    let record = Key::new(kinds::APPLICATIONS, cluster_id);
    let store = cluster.memory.store();
    let before = store.get(std::slice::from_ref(&record)).await;
    assert!(before.expect("readable")[0].is_some());
    cluster.memory.overwrite(&record, None);
    cluster.kill_job_manager("jm1").await;
    // According to the store these jobs belong to no application; according to the standby's cache they are its
    // own.
    assert_eq!(cluster.end_of_job_manager("jm2").await, ExitCode::Refused);
    let after = store.get(&[record]).await;
    assert_eq!(after.expect("readable"), [None]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_jobs_were_all_deleted_starts_no_crash_loop_recovery() {
    let mut cluster = cluster_with_jobs(2, 2).await;
    let leader = cluster.leader().await;
    until_current(&cluster, other(&leader)).await;
    for job in jobs(2) {
        let name = job.to_string().parse().expect("a name");
        cluster
            .memory
            .overwrite(&Key::new(kinds::GRAPHS, name), None);
        let name = job.to_string().parse().expect("a name");
        cluster
            .memory
            .overwrite(&Key::new(kinds::STATES, name), None);
    }
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(1).await;
    let record = record_of(&cluster, 2).await;
    assert_eq!(record.recovery.expect("noted").from_cache, 4);
    // With jobs, the record would say so only some time after their JobMasters have begun.
    assert_eq!((record.jobs, record.phase), (0, Some(TermPhase::Leading)));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_was_put_by_hand_is_found_by_a_standby_that_knew_none() {
    let mut cluster = TestCluster::start(2, 1, 1).await;
    let leader = cluster.leader().await;
    assert_eq!(until_current(&cluster, other(&leader)).await.records, 0);
    let [put] = [1].map(JobId::from_bits);
    for kind in [kinds::GRAPHS, kinds::STATES] {
        let key = Key::new(kind, put.to_string().parse().expect("a name"));
        cluster.memory.overwrite(&key, Some("no record".into()));
    }
    cluster.kill_job_manager(&leader).await;
    cluster.leader_above(1).await;
    let recovery = record_of(&cluster, 2).await.recovery.expect("noted");
    assert_eq!((recovery.proof, recovery.from_cache), (Proof::Current, 0));
    let details = cluster.client.describe(put).await.expect("known");
    assert!(!details.quarantine.is_empty(), "{details:?}");
}

#[tokio::test(start_paused = true)]
async fn a_deposed_leader_keeps_its_records_warm_again_and_takes_over_with_them() {
    let mut cluster = cluster_with_jobs(2, 3).await;
    let first = cluster.leader().await;
    let second = other(&first);
    cluster.kill_job_manager(&first).await;
    cluster.leader_above(1).await;
    cluster.start_job_manager(&first);
    until_current(&cluster, &first).await;
    cluster.stop_job_manager(second).await;
    assert_eq!(cluster.leader_above(2).await, first);
    cluster.start_job_manager(second);
    until_current(&cluster, second).await;
    cluster.kill_job_manager(&first).await;
    let epoch = {
        cluster.leader_above(3).await;
        cluster.epoch()
    };
    let record = record_of(&cluster, epoch).await;
    let recovery = record.recovery.expect("noted");
    assert_eq!((recovery.from_cache + recovery.read, record.jobs), (6, 3));
    assert_ne!(recovery.proof, Proof::Listed);
    let store = cluster.memory.store();
    let all = history::read_all(&store).await.expect("read");
    let epochs: Vec<u64> = all.iter().map(|record| record.epoch).collect();
    assert_eq!(epochs, (1..=epoch).collect::<Vec<_>>());
    assert_eq!(all[0].recovery.expect("noted").proof, Proof::Listed);
    for job in jobs(3) {
        cluster.until_running(job, 2).await;
    }
    cluster.check();
}

#[tokio::test(start_paused = true)]
async fn standbys_of_an_idle_cluster_tell_nothing_new() {
    let cluster = cluster_with_jobs(2, 1).await;
    let standby = other(&cluster.leader().await);
    let cache = until_current(&cluster, standby).await;
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    assert_eq!(reported(&cluster, standby).await, Some(cache));
}
