//! Objects that nothing points to, over a directory and the memory store.

use std::sync::Arc;
use std::time::Duration;

use tanist_ha::blob::BlobStore;
use tanist_ha::election::Epoch;
use tanist_ha::keys::{Kind, Name};
use tanist_ha::memory::MemoryCluster;
use tanist_ha::store::CoordinationStore as _;
use tanist_proto::id::JobId;

use super::super::DispatcherOptions;
use super::super::job_store::{JobStoreError, name_of};
use super::super::tests::{JOB, Leader, blobs};

const OTHER: JobId = JobId::from_bits(8);

async fn leader(cluster: &MemoryCluster, name: &str, blobs: &Arc<BlobStore>) -> Leader {
    let options = DispatcherOptions::default();
    Leader::with(cluster, name, Some(blobs.clone()), options).await
}

async fn uploaded(leader: &Leader, job: JobId) -> Name {
    let blobs = leader.store.records.blobs().expect("there are some");
    let mut upload = blobs.upload(&name_of(job)).expect("a name");
    upload.write(b"content").await.expect("written");
    let pointer = upload.finish().await.expect("finished");
    pointer.piece_names().expect("few").remove(0)
}

async fn there(blobs: &BlobStore) -> Vec<Name> {
    let listed = blobs.list().await.expect("listed");
    listed.into_iter().map(|entry| entry.name).collect()
}

#[tokio::test]
async fn only_what_nothing_points_to_is_removed_and_only_of_this_cluster() {
    let (_directory, blobs) = blobs().await;
    let cluster = MemoryCluster::default();
    let a = leader(&cluster, "a", &blobs).await;
    a.submit(JOB).await.expect("acknowledged");
    let of_running = uploaded(&a, JOB).await;
    let of_nobody = uploaded(&a, OTHER).await;
    let own = a.store.records.blobs().expect("there are some").clone();
    let bytes = bytes::Bytes::from_static(b"record");
    let earlier = own.put(&name_of(OTHER), Epoch::new(0), bytes.clone());
    let earlier = earlier.await.expect("put").name;
    let of_this_term = own.put(&name_of(OTHER), a.store.epoch, bytes.clone());
    let of_this_term = of_this_term.await.expect("put").name;
    let of_strangers = blobs.put(&name_of(OTHER), Epoch::new(0), bytes).await;
    let of_strangers = of_strangers.expect("put").name;
    let swept = a.store.sweep(Duration::from_secs(3600)).await;
    assert_eq!(swept.expect("swept"), 0, "all are young");
    let swept = a.store.sweep(Duration::ZERO).await.expect("swept");
    assert_eq!(swept, 2);
    let left = there(&blobs).await;
    for kept in [of_running, of_this_term, of_strangers] {
        assert!(left.contains(&kept), "{kept}");
    }
    assert!(!left.contains(&of_nobody) && !left.contains(&earlier));
    let doomed = a.records.list(Kind::Doomed, None, 10).await;
    assert!(doomed.expect("readable").items.is_empty());
}

#[tokio::test]
async fn a_deposed_leader_sweeps_nothing() {
    let (_directory, blobs) = blobs().await;
    let cluster = MemoryCluster::default();
    let a = leader(&cluster, "a", &blobs).await;
    let upload = uploaded(&a, OTHER).await;
    cluster.expire(&a.process);
    let _b = leader(&cluster, "b", &blobs).await;
    let refused = a.store.sweep(Duration::ZERO).await;
    assert!(
        matches!(refused, Err(JobStoreError::NotWritten | JobStoreError::Unknown)),
        "{refused:?}"
    );
    assert_eq!(there(&blobs).await, [upload]);
}

#[tokio::test]
async fn what_a_predecessor_doomed_is_known_and_goes() {
    let (_directory, blobs) = blobs().await;
    let cluster = MemoryCluster::default();
    let a = leader(&cluster, "a", &blobs).await;
    let upload = uploaded(&a, OTHER).await;
    // It died between saying so and doing it.
    let put = tanist_ha::store::Write::Put {
        key: tanist_ha::keys::Key::new(Kind::Doomed, upload.clone()),
        value: super::nothing(),
    };
    a.store.pipeline.commit(vec![put]).await.expect("written");
    a.dispatcher.stop().await;
    cluster.partition(&a.process);
    cluster.expire(&a.process);
    let b = leader(&cluster, "b", &blobs).await;
    assert!(b.store.lock_holdings().is_doomed(&upload));
    b.store.sweep(Duration::from_secs(3600)).await.expect("swept");
    assert!(there(&blobs).await.is_empty());
    assert!(!b.store.lock_holdings().is_doomed(&upload));
    let doomed = b.records.list(Kind::Doomed, None, 10).await;
    assert!(doomed.expect("readable").items.is_empty());
}
