//! A full etcd: its alarm NOSPACE refuses every put until an operator frees space and disarms it.

use std::sync::Arc;

use etcd_client::Client;

use super::*;
use crate::election::core::Timing;
use crate::election::{ElectionOptions, LeaderElection, LeaderSession, Leadership, random_start};
use crate::etcd::client::Connection;
use crate::etcd::health::keeps_more_than;
use crate::store::pipeline::{CommitError, CommitPipeline};

/// Enough for an empty etcd and a few values of this size.
const QUOTA: u64 = 4 * 1024 * 1024;
const VALUE: usize = 256 * 1024;

async fn lead(options: &EtcdOptions) -> TestResult<(LeaderElection, LeaderSession)> {
    let election_options = ElectionOptions {
        process: ProcessId::new("a"),
        start: random_start(),
        timing: Timing::default(),
        clock: Clock::Boottime,
    };
    let election = LeaderElection::start(Arc::new(contender(options).await?), election_options);
    let mut leadership = election.leadership();
    let is_granted = |now: &Leadership| matches!(now, Leadership::Granted(_));
    let granted = level(&mut leadership, is_granted).await?;
    let session = granted.session().cloned();
    Ok((election, session.ok_or("it was granted")?))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_etcd_refuses_puts_deletes_and_ends_no_term() -> TestResult {
    let server = EtcdServer::start(EtcdServerOptions {
        quota_bytes: Some(QUOTA),
        ..EtcdServerOptions::default()
    })
    .await?;
    let options = options(vec![server.endpoint()], "space");
    let (_election, session) = lead(&options).await?;
    let store = Arc::new(EtcdStore::open(options, KINDS).await?);
    let pipeline = CommitPipeline::start(store.clone(), session.clone()).await?;

    let mut written = 0;
    let refusal = loop {
        let value = vec![written; VALUE];
        match pipeline
            .commit(vec![put(&format!("{written}"), value)])
            .await
        {
            Ok(_) => written += 1,
            Err(refusal) => break refusal,
        }
        // Its file grows shortly after a write.
        assert!(written < 100, "it has a quota");
    };
    assert!(matches!(refusal, CommitError::OutOfSpace(_)), "{refusal:?}");
    assert!(written > 0, "there was space for one value");
    let full_at = pipeline.last();

    // Also a small one, and no other request waits behind it.
    let refusal = pipeline.commit(vec![put("small", "x")]).await;
    let refusal = refusal.expect_err("the alarm is raised");
    assert!(matches!(refusal, CommitError::OutOfSpace(_)), "{refusal:?}");
    let names = (0..written).map(|name| key(&name.to_string()));
    let deletions = names.map(|key| Write::Delete { key }).collect();
    assert_eq!(pipeline.commit(deletions).await?, full_at);
    assert_eq!(store.get(&[key("0")]).await?, [None]);
    assert_eq!(session.check(), Ok(()), "its lease is renewed as before");

    server.make_room().await?;
    let next = pipeline.commit(vec![put("small", "x")]).await?;
    assert_eq!(next.number, full_at.number + 1);
    let touched = store.touched(next.number, next.number).await?;
    let touched = touched[0].clone().ok_or("it is in the ring")?.keys;
    assert_eq!(touched.len(), usize::from(written) + 1, "{touched:?}");
    assert!(touched.contains(&"documents/0".to_owned()), "{touched:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_quota_and_missing_compaction_are_reported_before_etcd_is_full() -> TestResult {
    let server = EtcdServer::start(EtcdServerOptions {
        quota_bytes: Some(QUOTA),
        ..EtcdServerOptions::default()
    })
    .await?;
    let plain = options(vec![server.endpoint()], "quota");
    let store = EtcdStore::open(plain.clone(), KINDS).await?;
    let health = store.health().await?;
    // A server that reports its quota reports this one.
    let is_told = health.quota_bytes == Some(QUOTA);
    let is_assumed = health.quota_bytes == Some(2 << 30) && health.quota_is_assumed;
    assert!(is_told || is_assumed, "{health:?}");
    let configured = EtcdOptions {
        quota_bytes: Some(QUOTA),
        ..plain.clone()
    };
    let store = EtcdStore::open(configured.clone(), KINDS).await?;
    let health = store.health().await?;
    assert_eq!(health.quota_bytes, Some(QUOTA));
    assert!(!health.quota_is_assumed, "{health:?}");
    assert_eq!(health.revisions_kept, None);

    let connection = Connection::new(configured);
    let is_kept = async |many| keeps_more_than(&connection, many).await;
    let mut client = Client::connect([server.endpoint()], None).await?;
    for _ in 0..20 {
        client.put("a", vec![0; 100_000], None).await?;
    }
    assert_eq!(is_kept(10).await, Ok(true), "etcd is not compacted");
    assert_eq!(is_kept(1_000).await, Ok(false), "there are fewer");
    // The last few revisions take space as well.
    for _ in 0..20 {
        client.put("a", vec![0; 70_000], None).await?;
    }
    wait_until("a warning", BOUND, async || {
        let health = store.health().await.map_err(|error| error.to_string())?;
        let said = health.warnings().join(" ");
        said.contains("bytes").then_some(()).ok_or(said)
    })
    .await;
    server.make_room().await?;
    assert_eq!(is_kept(10).await, Ok(false), "it was compacted");
    Ok(())
}
