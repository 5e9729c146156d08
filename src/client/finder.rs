//! Finds the JobManagers to ask: configured addresses, or the leader that the store names. Without an address in time
//! the result is the reason, and the request is retried until its own timeout.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use tanist_ha::retrieval::LeaderView;
use tokio::sync::watch;

/// Returns the REST servers to ask.
#[async_trait]
pub trait LeaderFinder: Send + Sync + fmt::Debug + 'static {
    /// Returns their addresses as `host:port`, the most promising first. Waits for one up to `timeout`; fails
    /// with the reason if there is none.
    async fn addresses(&self, timeout: Duration) -> Result<Vec<String>, String>;
}

/// Configured JobManagers, whether they lead or not.
#[derive(Debug, Clone)]
pub struct StaticAddresses(pub Vec<String>);

#[async_trait]
impl LeaderFinder for StaticAddresses {
    async fn addresses(&self, _: Duration) -> Result<Vec<String>, String> {
        if self.0.is_empty() {
            return Err("no address of a JobManager is known".to_owned());
        }
        Ok(self.0.clone())
    }
}

/// The leader that the store names.
#[derive(Debug, Clone)]
pub(super) struct FollowedLeader(pub(super) watch::Receiver<LeaderView>);

#[async_trait]
impl LeaderFinder for FollowedLeader {
    async fn addresses(&self, timeout: Duration) -> Result<Vec<String>, String> {
        let mut leaders = self.0.clone();
        let known = leaders.wait_for(|view| rest_address(view).is_some());
        match tokio::time::timeout(timeout, known).await {
            Ok(Ok(view)) => Ok(rest_address(&view).into_iter().collect()),
            Ok(Err(_)) => Err("the store is no longer watched".to_owned()),
            Err(_) => Err("the store names no leader".to_owned()),
        }
    }
}

fn rest_address(view: &LeaderView) -> Option<String> {
    view.leader.as_ref()?.addresses.get("rest").cloned()
}
