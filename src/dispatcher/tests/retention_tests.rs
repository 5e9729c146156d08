//! How long results are kept when leaders change and wall clocks are wrong. On paused time, over the memory store.

use std::time::Duration;

use tanist_ha::clock::millis;
use tanist_ha::memory::MemoryCluster;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::scripted::{End, JOB, Leader, blobs, large_name, result_of};
use super::testing::recovered;
use crate::DispatcherOptions;

const RETENTION: Duration = Duration::from_secs(3600);

/// A leader that has checked for expired results once.
async fn leader(cluster: &MemoryCluster, name: &str) -> Leader {
    let options = DispatcherOptions {
        result_retention: RETENTION,
        ..DispatcherOptions::default()
    };
    let leader = Leader::with(cluster, name, None, options).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    leader
}

/// Ends a term without notice, as if its process was killed.
async fn kill(leader: &Leader) {
    leader.dispatcher.stop().await;
    leader.cluster.partition(&leader.process);
    leader.cluster.expire(&leader.process);
}

/// Ends a job at this time of the leader's wall clock.
async fn end(leader: &Leader, ended_at_ms: u64) {
    leader.submit(JOB).await.expect("acknowledged");
    let result = pb::JobResult {
        ended_at_ms,
        ..result_of(JOB)
    };
    leader.end_last(End::Result(Box::new(result)));
    leader.wait_for(JOB, pb::JobStatus::Finished).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
}

async fn is_kept(leader: &Leader) -> bool {
    !recovered(&leader.store).await.results.is_empty()
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_clock_is_far_ahead_forgets_no_result_before_its_time() {
    let cluster = MemoryCluster::default();
    let a = leader(&cluster, "a").await;
    // A long time ago by the next leader's clock.
    end(&a, 1).await;
    kill(&a).await;
    let b = leader(&cluster, "b").await;
    tokio::time::sleep(RETENTION - Duration::from_secs(60)).await;
    assert!(is_kept(&b).await);
    assert!(b.submit(JOB).await.expect("answered").repeated);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(!is_kept(&b).await);
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_clock_is_far_behind_forgets_results_in_time() {
    let cluster = MemoryCluster::default();
    let a = leader(&cluster, "a").await;
    end(&a, u64::MAX / 2).await;
    kill(&a).await;
    let b = leader(&cluster, "b").await;
    tokio::time::sleep(RETENTION + Duration::from_secs(60)).await;
    assert!(!is_kept(&b).await);
}

#[tokio::test(start_paused = true)]
async fn leaders_that_change_often_count_together_and_results_go_at_last() {
    let cluster = MemoryCluster::default();
    let mut leading = leader(&cluster, "0").await;
    end(&leading, 1).await;
    let reign = RETENTION / 6;
    let mut terms = 0;
    while is_kept(&leading).await {
        assert!(
            terms < 9,
            "each counts what it led, less what it had not written down"
        );
        tokio::time::sleep(reign).await;
        kill(&leading).await;
        terms += 1;
        leading = leader(&cluster, &terms.to_string()).await;
    }
    assert!(terms >= 6, "forgotten by the leader of term {terms}");
}

#[tokio::test(start_paused = true)]
async fn a_result_of_which_no_count_is_known_is_kept_for_the_whole_time_from_the_next_leader_on() {
    let cluster = MemoryCluster::default();
    let a = leader(&cluster, "a").await;
    let of_before = pb::JobResult {
        ended_at_ms: 1,
        dirty: false,
        ..result_of(JOB)
    };
    let written = a.store.put_clean_result(&of_before).await;
    written.expect("written");
    kill(&a).await;
    let b = leader(&cluster, "b").await;
    tokio::time::sleep(RETENTION - Duration::from_secs(60)).await;
    assert!(is_kept(&b).await);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert!(!is_kept(&b).await);
}

#[tokio::test(start_paused = true)]
async fn job_masters_that_broke_are_forgotten_with_the_result_of_their_job() {
    let leader = leader(&MemoryCluster::default(), "a").await;
    leader.submit(JOB).await.expect("acknowledged");
    for _ in 1..=3 {
        leader.end_last(End::Broken);
        leader.wait_for(JOB, pb::JobStatus::Reconciling).await;
        leader.wait_for(JOB, pb::JobStatus::Running).await;
    }
    leader.end_last(End::Result(Box::new(result_of(JOB))));
    leader.wait_for(JOB, pb::JobStatus::Finished).await;
    tokio::time::sleep(RETENTION + Duration::from_secs(60)).await;
    assert!(!is_kept(&leader).await);
    let again = leader.submit(JOB).await.expect("acknowledged");
    assert!(!again.repeated);
    leader.end_last(End::Broken);
    leader.wait_for(JOB, pb::JobStatus::Reconciling).await;
    // With those of the first run it would be quarantined.
    leader.wait_for(JOB, pb::JobStatus::Running).await;
}

/// The result of a job that is clean except for the last check.
fn clean_result(job: JobId, directory: &str) -> pb::JobResult {
    pb::JobResult {
        dirty: false,
        remove: Some(pb::Cleanup {
            sink_directories: vec![directory.to_owned()],
            ..pb::Cleanup::default()
        }),
        ..result_of(job)
    }
}

/// A leader that finds these results of its predecessor.
async fn leader_that_finds(cluster: &MemoryCluster, results: &[pb::JobResult]) -> Leader {
    let before = leader(cluster, "before").await;
    for result in results {
        let written = before.store.put_clean_result(result).await;
        written.expect("written");
    }
    kill(&before).await;
    leader(cluster, "leader").await
}

#[tokio::test(start_paused = true)]
async fn a_sink_directory_that_hangs_keeps_no_result_from_being_forgotten() {
    let cluster = MemoryCluster::default();
    let results = [1, 2].map(|job| (JobId::from_bits(job), ["/hangs", "/out"][job as usize - 1]));
    let results = results.map(|(job, directory)| clean_result(job, directory));
    let leader = leader_that_finds(&cluster, &results).await;
    leader.world.hanging.lock().push("/hangs".to_owned());
    tokio::time::sleep(RETENTION + Duration::from_secs(60)).await;
    assert!(!is_kept(&leader).await);
    assert_eq!(*leader.world.cleaned.lock(), ["/out"]);
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_the_store_does_not_confirm_cleans_up_after_no_job_that_is_to_be_forgotten() {
    let cluster = MemoryCluster::default();
    let results = [clean_result(JOB, "/out")];
    let leader = leader_that_finds(&cluster, &results).await;
    tokio::time::sleep(RETENTION - Duration::from_secs(120)).await;
    // Another leader may run another job under this id then.
    cluster.unavailable(true);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(leader.world.cleaned.lock().is_empty());
    cluster.unavailable(false);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(*leader.world.cleaned.lock(), ["/out"]);
    assert!(!is_kept(&leader).await);
}

/// Returns the retention count that was last written to the store.
async fn noted_ms(leader: &Leader) -> u64 {
    let results = recovered(&leader.store).await.results;
    let noted = results.iter().map(|(_, result)| result.counted_ms);
    noted.max().expect("there are results")
}

#[tokio::test(start_paused = true)]
async fn the_count_is_written_down_also_while_something_is_forgotten_at_every_look() {
    let cluster = MemoryCluster::default();
    let (looks, interval_ms) = (300, 30_000);
    let results: Vec<pb::JobResult> = (1..=looks)
        .map(|look| pb::JobResult {
            kept_since_ms: look * interval_ms,
            ..clean_result(JobId::from_bits(look.into()), "/out")
        })
        .collect();
    let leader = leader_that_finds(&cluster, &results).await;
    let led = RETENTION * 3 / 4;
    tokio::time::sleep(led).await;
    let lost_ms = looks * interval_ms + millis(led) - noted_ms(&leader).await;
    assert!(
        lost_ms <= millis(RETENTION / 60) + 2 * interval_ms,
        "{lost_ms} ms"
    );
}

#[tokio::test(start_paused = true)]
async fn a_result_of_a_leader_that_could_not_read_all_is_kept_for_the_whole_time() {
    let cluster = MemoryCluster::default();
    let (directory, blobs) = blobs().await;
    let led_with_blobs = async |name: &str| {
        let options = DispatcherOptions {
            result_retention: RETENTION,
            ..DispatcherOptions::default()
        };
        Leader::with(&cluster, name, Some(blobs.clone()), options).await
    };
    let before = led_with_blobs("before").await;
    let carries_the_count = pb::JobResult {
        name: large_name(),
        kept_since_ms: 100 * millis(RETENTION),
        ..clean_result(JobId::from_bits(1), "/out")
    };
    let written = before.store.put_clean_result(&carries_the_count).await;
    written.expect("written");
    kill(&before).await;

    let away = directory.path().with_extension("away");
    std::fs::rename(directory.path(), &away).expect("moved");
    let without = led_with_blobs("without").await;
    end(&without, 1).await;
    tokio::time::sleep(RETENTION / 2).await;
    kill(&without).await;
    std::fs::rename(&away, directory.path()).expect("moved back");

    let with = led_with_blobs("with").await;
    let is_known = async || with.status(JOB).await.is_some();
    tokio::time::sleep(RETENTION - Duration::from_secs(60)).await;
    assert!(is_known().await);
    tokio::time::sleep(Duration::from_secs(180)).await;
    assert!(!is_known().await);
}
