//! The operations of tests on the servers of one store. A store offers those that it has; the others are errors.

use std::fmt;
use std::path::Path;

use anyhow::bail;
use async_trait::async_trait;

/// Servers with the address at which clients reach them: host and port of each, separated by commas.
pub(super) type Started = (String, Box<dyn Servers>);

const NO_SINGLE_SERVER: &str = "this cluster has no single server of its own";
const NO_ENSEMBLE: &str = "this store is no ensemble";

/// The servers of one store, which end when this is dropped.
#[async_trait(?Send)]
pub(super) trait Servers: fmt::Debug + Send + Sync {
    /// Sends SIGKILL to the single server; its data stays.
    fn kill(&mut self) -> anyhow::Result<()> {
        bail!(NO_SINGLE_SERVER)
    }

    /// Sends SIGSTOP to the single server.
    fn stop(&self) -> anyhow::Result<()> {
        bail!(NO_SINGLE_SERVER)
    }

    /// Sends SIGCONT after [`Servers::stop`].
    fn cont(&self) -> anyhow::Result<()> {
        bail!(NO_SINGLE_SERVER)
    }

    /// Starts the single server again with its data, and waits until it is ready.
    async fn restart(&mut self) -> anyhow::Result<()> {
        bail!(NO_SINGLE_SERVER)
    }

    /// Whether the single server has ended by itself, or was killed.
    fn has_ended(&mut self) -> anyhow::Result<bool> {
        bail!("this cluster has no server of its own that can be seen to end")
    }

    /// Fills the single server up to its quota.
    async fn fill(&self) -> anyhow::Result<()> {
        bail!("this cluster has no single server with a quota")
    }

    /// Repairs a full server as an operator does.
    async fn make_room(&self) -> anyhow::Result<()> {
        bail!("this cluster has no single server with a quota")
    }

    /// Another server with the same data, or the same files: those in `from`, unless the server has its own, are
    /// copied to `to`.
    async fn copy(&self, from: &Path, to: &Path) -> anyhow::Result<Started> {
        let _ = (from, to);
        bail!(NO_SINGLE_SERVER)
    }

    /// Index of the leading server of an ensemble. All must be running.
    async fn leading_member(&self) -> anyhow::Result<usize> {
        bail!(NO_ENSEMBLE)
    }

    /// Sends SIGKILL to one server of an ensemble; its data stays.
    fn kill_member(&mut self, member: usize) -> anyhow::Result<()> {
        let _ = member;
        bail!(NO_ENSEMBLE)
    }

    /// Starts one server of an ensemble again with its data, and waits until it serves, which needs a quorum.
    async fn restart_member(&mut self, member: usize) -> anyhow::Result<()> {
        let _ = member;
        bail!(NO_ENSEMBLE)
    }
}

/// Servers that other clusters use too, or that were started elsewhere: they are left alone.
#[derive(Debug)]
pub(super) struct SharedServers;

impl Servers for SharedServers {}
