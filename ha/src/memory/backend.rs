//! The memory store as a [`Backend`], in real time. The records part is not affected by the partition of a process.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{MemoryCluster, MemoryStore};
use crate::backend::{Access, Backend};
use crate::clock::Clock;
use crate::election::{ElectionDriver, ProcessId};
use crate::error::Result;
use crate::keys::Kinds;
use crate::store::CoordinationStore;

#[async_trait]
impl Backend for MemoryCluster {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn lease(&self) -> Option<Duration> {
        Some(self.server.options.ttl)
    }

    async fn open_election(
        &self,
        process: ProcessId,
        access: Access,
    ) -> Result<Arc<dyn ElectionDriver>> {
        Ok(match access {
            Access::Contend => Arc::new(self.election(process, Clock::Boottime)),
            Access::Observe => Arc::new(self.observer_of(process)),
        })
    }

    async fn open_store(
        &self,
        kinds: Kinds,
        _access: Access,
    ) -> Result<Arc<dyn CoordinationStore>> {
        Ok(Arc::new(MemoryStore::new(self.link(None), Some(kinds))))
    }

    async fn remove(&self) -> Result<()> {
        self.wipe();
        Ok(())
    }
}
