//! ZooKeeper as a [`Backend`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use super::{ZooKeeperOptions, open_election, open_store, remove_cluster};
use crate::backend::{Access, Backend};
use crate::clock::Clock;
use crate::election::{ElectionDriver, ProcessId};
use crate::error::Result;
use crate::keys::Kinds;
use crate::store::CoordinationStore;

#[async_trait]
impl Backend for ZooKeeperOptions {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn lease(&self) -> Option<Duration> {
        Some(self.session_timeout)
    }

    async fn open_election(
        &self,
        _process: ProcessId,
        access: Access,
    ) -> Result<Arc<dyn ElectionDriver>> {
        let contends = access == Access::Contend;
        let election = open_election(self.clone(), Clock::Boottime, contends);
        Ok(Arc::new(election.await?))
    }

    async fn open_store(
        &self,
        kinds: Kinds,
        _access: Access,
    ) -> Result<Arc<dyn CoordinationStore>> {
        Ok(Arc::new(open_store(self.clone(), kinds).await?))
    }

    async fn remove(&self) -> Result<()> {
        remove_cluster(self.clone()).await
    }
}
