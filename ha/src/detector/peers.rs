//! How processes reach each other, without the store.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use futures::stream::BoxStream;

use super::beat::{Beat, Break, Invitation, Question, Reply};
use crate::election::{Epoch, ProcessId};

/// Beats as they come in. Its end is the end of the connection.
pub type BeatStream = BoxStream<'static, Beat>;

/// The other processes of the cluster, by address. No call is bounded in time here: the caller bounds it.
#[async_trait]
pub trait Peers: Send + Sync + fmt::Debug + 'static {
    /// Opens the stream of beats of the process at `address`. The first beat follows at once.
    async fn beats(&self, address: &str) -> Result<BeatStream, Break>;

    /// One beat of the process at `address`.
    async fn probe(&self, address: &str) -> Result<Beat, Break>;

    /// Asks the process at `address`.
    async fn ask(&self, address: &str, question: &Question) -> Result<Reply, Break>;

    /// How many of those at the addresses `of` answer the process at `address` when it asks them `question`.
    async fn count_reached(
        &self,
        address: &str,
        question: &Question,
        of: &[String],
    ) -> Result<usize, Break>;

    /// Invites the process at `address` to depose `leader` in `epoch`; it gives up after `bound`. Returns when it leads.
    /// The error says why not.
    async fn invite(
        &self,
        address: &str,
        leader: &ProcessId,
        epoch: Epoch,
        invitation: Invitation,
        bound: Duration,
    ) -> Result<(), String>;
}
