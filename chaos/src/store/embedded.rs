//! The embedded store: a directory of the cluster, without servers.

use std::path::Path;
use std::sync::Arc;

use anyhow::bail;
use async_trait::async_trait;
use tanist_ha::backend::Backend;
use tanist_ha::embedded::EmbeddedOptions;

use super::servers::{Servers, Started};
use super::{Place, StoreType};
use crate::copies::copy_all;

pub(super) struct Embedded;

#[async_trait(?Send)]
impl StoreType for Embedded {
    fn name(&self) -> &'static str {
        "embedded"
    }

    fn place_key(&self) -> &'static str {
        "high-availability.embedded.dir"
    }

    fn has_servers(&self) -> bool {
        false
    }

    async fn shared(&self) -> anyhow::Result<Started> {
        Ok((String::new(), Box::new(NoServers)))
    }

    async fn own(&self) -> anyhow::Result<Started> {
        self.shared().await
    }

    async fn ensemble(&self) -> anyhow::Result<Started> {
        bail!("the embedded store has no servers")
    }

    fn settings(&self, _place: &Place<'_>, _shortest: bool) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn backend(&self, place: &Place<'_>, cluster_id: &str) -> Arc<dyn Backend> {
        Arc::new(EmbeddedOptions::new(place.directory.join(cluster_id)))
    }
}

/// The cluster's own directory.
#[derive(Debug)]
struct NoServers;

#[async_trait(?Send)]
impl Servers for NoServers {
    async fn copy(&self, from: &Path, to: &Path) -> anyhow::Result<Started> {
        copy_all(from, to)?;
        Ok((String::new(), Box::new(NoServers)))
    }
}
