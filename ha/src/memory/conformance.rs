//! The memory backend, in real time. A process is partitioned where others are stopped or isolated.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;

use crate::clock::Clock;
use crate::election::{ElectionDriver, EpochRecord, ProcessId};
use crate::keys::{Key, path};
use crate::memory::{MemoryCluster, MemoryOptions};
use crate::store::CoordinationStore;
use crate::testing::conformance::{CaseResult, OpenElection, Place, Subject, lease};
use crate::testing::kinds::KINDS;

/// Opens a cluster of its own.
pub async fn open(_place: Place, _namespace: String) -> CaseResult<Box<dyn Subject>> {
    Ok(Box::new(MemorySubject::new()))
}

#[derive(Debug)]
struct MemorySubject {
    cluster: MemoryCluster,
    lease: Duration,
}

impl MemorySubject {
    fn new() -> MemorySubject {
        let lease = lease(Duration::from_secs(1), MemoryOptions::default().ttl);
        let options = MemoryOptions {
            ttl: lease,
            request_timeout: Duration::from_millis(500),
            ..MemoryOptions::default()
        };
        MemorySubject {
            cluster: MemoryCluster::new(options),
            lease,
        }
    }
}

#[async_trait(?Send)]
impl Subject for MemorySubject {
    fn lease(&self) -> Option<Duration> {
        Some(self.lease)
    }

    async fn contender(&self, process: &ProcessId) -> CaseResult<OpenElection> {
        let (cluster, process) = (self.cluster.clone(), process.clone());
        // The server's side of its lease is a separate task, which must not stop with the process's thread.
        let runtime = Handle::current();
        Ok(Box::new(move || {
            Box::pin(async move {
                let _entered = runtime.enter();
                let election = cluster.election(process, Clock::Boottime);
                Ok(Arc::new(election) as Arc<dyn ElectionDriver>)
            })
        }))
    }

    async fn observer(&self, _process: &ProcessId) -> CaseResult<Arc<dyn ElectionDriver>> {
        Ok(Arc::new(self.cluster.observer()))
    }

    async fn store(&self, process: &ProcessId) -> CaseResult<Arc<dyn CoordinationStore>> {
        Ok(Arc::new(self.cluster.store_with(process.clone(), KINDS)))
    }

    /// Its upkeep runs outside the process's thread, so it is partitioned instead.
    async fn stop(&self, process: &ProcessId) {
        self.cluster.partition(process);
    }

    async fn cont(&self, process: &ProcessId) {
        self.cluster.heal(process);
    }

    /// Dropping is enough: it simulates death.
    async fn crash(&self, _process: &ProcessId) {}

    async fn isolate(&self, process: &ProcessId) {
        self.cluster.partition(process);
    }

    async fn heal(&self, process: &ProcessId) {
        self.cluster.heal(process);
    }

    async fn interrupt(&self, process: &ProcessId) {
        self.cluster.partition(process);
        self.cluster.heal(process);
    }

    /// Expires the lease, because nothing else removes the key here.
    async fn delete_leader(&self) -> CaseResult {
        if let Some(leader) = self.cluster.observer().read().await?.leader {
            self.cluster.expire(&leader.process);
        }
        Ok(())
    }

    async fn overwrite(&self, path: &str, value: Option<&str>) -> CaseResult {
        match path {
            path::EPOCH => {
                let is_record = |text: &&str| serde_json::from_str::<EpochRecord>(text).is_ok();
                self.cluster
                    .overwrite_epoch(value.filter(|text| !is_record(text)));
            }
            _ => self.cluster.delete_leader_info(),
        }
        Ok(())
    }

    async fn write_by_hand(&self, key: &Key, value: Option<&[u8]>) -> CaseResult {
        let value = value.map(bytes::Bytes::copy_from_slice);
        self.cluster.overwrite(key, value);
        Ok(())
    }

    async fn lose_quorum(&self) -> CaseResult {
        self.cluster.unavailable(true);
        Ok(())
    }

    async fn regain_quorum(&self) -> CaseResult {
        self.cluster.unavailable(false);
        Ok(())
    }

    async fn restart(&self) -> CaseResult {
        self.cluster.unavailable(true);
        self.cluster.unavailable(false);
        Ok(())
    }

    async fn restart_wiped(&self) -> CaseResult {
        self.cluster.wipe();
        Ok(())
    }
}
