//! What tests of the Dispatcher share: jobs read as a new term reads them, at any moment.

use tanist_ha::store::cache::{CacheOptions, WarmCache};
use tokio::sync::watch;

use super::{JobStore, RecoveredJobs};

/// All jobs as the store has them now, by a cache that was cold.
pub(super) async fn recovered(store: &JobStore) -> RecoveredJobs {
    let coordination = store.coordination_store().clone();
    loop {
        let guard = coordination.guard().await.expect("the store answers");
        let (_, _, incarnation) = guard.epoch.expect("somebody leads");
        let options = CacheOptions {
            kinds: JobStore::KINDS.to_vec(),
            max_bytes: 1 << 20,
        };
        let mut cache = WarmCache::new(coordination.clone(), options, watch::Sender::default());
        // What is written meanwhile refutes the proof.
        if let Ok(proven) = cache.prove(&incarnation, guard.change).await {
            return store.recover(&proven.records).await.expect("readable");
        }
        tokio::task::yield_now().await;
    }
}
