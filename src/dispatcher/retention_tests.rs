//! How long results are kept when leaders change and wall clocks are wrong: on paused time, over the memory store.

use std::time::Duration;

use tanist_ha::memory::MemoryCluster;
use tanist_proto::v1 as pb;

use super::DispatcherOptions;
use super::scripted::{End, JOB, Leader, result_of};
use super::testing::recovered;

const RETENTION: Duration = Duration::from_secs(3600);

/// A leader, once it has looked for expired results.
async fn leader(cluster: &MemoryCluster, name: &str) -> Leader {
    let options = DispatcherOptions {
        result_retention: RETENTION,
        ..DispatcherOptions::default()
    };
    let leader = Leader::with(cluster, name, None, options).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    leader
}

/// Ends a term without a word, as if its process was killed.
async fn kill(leader: &Leader) {
    leader.dispatcher.stop().await;
    leader.cluster.partition(&leader.process);
    leader.cluster.expire(&leader.process);
}

/// A job whose end has this time by the leader's wall clock.
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
    // To the next leader, that is long ago.
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
async fn a_result_of_an_earlier_version_is_kept_for_the_whole_time_from_its_first_leader_on() {
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
