//! Recovered JobMasters that wait for their permit to start.

use std::time::Duration;

use tanist_gateway::persistence::MemoryJobStateStore;
use tokio::time::{Instant, timeout};

use super::scripted::{Fixture, options, wait_until};
use crate::RestartStrategy;
use crate::StartLimiter;

/// Longer than anything takes here.
const LONG: Duration = Duration::from_secs(3600);

/// A JobMaster of a job that another term has left. Each write of its record takes `write`.
async fn recovered(start_limiter: &StartLimiter, write: Duration) -> Fixture {
    let options = options(RestartStrategy::None);
    let former = Fixture::start(options.clone());
    former.register("tm1", 1).await.expect("admitted");
    let task_executor = former.task_executor("tm1");
    wait_until("three tasks run", || task_executor.reports().len() == 3).await;
    former.job_master.stop().await;
    let store = MemoryJobStateStore::default();
    store.set_delay(write);
    let (graph, state) = (former.graph.clone(), former.stored());
    Fixture::start_in_turn(options, graph, state, store, start_limiter.clone())
}

#[tokio::test(start_paused = true)]
async fn a_recovered_job_starts_with_a_permit_and_returns_it() {
    let start_limiter = StartLimiter::at_once(1);
    let others = start_limiter.acquire().await;
    let first = recovered(&start_limiter, Duration::from_millis(5)).await;
    let second = recovered(&start_limiter, Duration::from_millis(5)).await;
    let began = timeout(LONG, first.job_master.begun()).await;
    assert!(began.is_err(), "it had no permit: {began:?}");
    assert_eq!(first.store.history().len(), 0);
    drop(others);
    let both = async {
        (
            first.job_master.begun().await,
            second.job_master.begun().await,
        )
    };
    let both = timeout(LONG, both).await.expect("both had their permit");
    assert_eq!(both, (Some(2), Some(2)));
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_record_is_not_written_delays_others_by_the_permit_timeout_at_most() {
    let start_limiter = StartLimiter::at_once(1);
    let stuck = recovered(&start_limiter, LONG * 2).await;
    let next = recovered(&start_limiter, Duration::from_millis(5)).await;
    let start = Instant::now();
    let began = timeout(LONG, next.job_master.begun()).await;
    assert_eq!(began.expect("it had its permit"), Some(2));
    assert!(start.elapsed() < Duration::from_secs(1), "{start:?}");
    assert_eq!(
        stuck.store.history().len(),
        0,
        "the other one's is on its way"
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_master_that_waits_for_its_permit_can_be_stopped() {
    let start_limiter = StartLimiter::at_once(1);
    let _others = start_limiter.acquire().await;
    let waiting = recovered(&start_limiter, Duration::ZERO).await;
    let stopped = timeout(LONG, waiting.job_master.stop()).await;
    assert!(stopped.is_ok(), "it ended without a permit");
    assert_eq!(waiting.store.history().len(), 0);
}
