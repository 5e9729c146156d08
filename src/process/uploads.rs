//! Fetches uploads of a job for a TaskManager, from the blob server of the leader, which may be another process than
//! the one that received them. It follows changes of the leader, and gives an object up after [`TIMEOUT`].

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use tanist_gateway::{Connector, GatewayError, GatewayResult};
use tanist_ha::retrieval::LeaderView;
use tanist_operators::UploadSource;
use tanist_proto::v1 as pb;
use tanist_proto::v1::fetch_blob_request::Content;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

/// Maximum size of a piece, in bytes.
const LARGEST: usize = 16 * 1024 * 1024;
/// Timeout for one object, over changes of the leader.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Pause after a failed attempt, unless another JobManager leads sooner.
const PAUSE: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug)]
pub(super) struct LeadersUploads {
    pub(super) leaders: watch::Receiver<LeaderView>,
    pub(super) connector: Arc<dyn Connector>,
    /// Timeout for a silent server.
    pub(super) ask_timeout: Duration,
}

#[async_trait]
impl UploadSource for LeadersUploads {
    async fn object(&self, name: &str) -> Result<Bytes, String> {
        let give_up = Instant::now() + TIMEOUT;
        let mut leaders = self.leaders.clone();
        loop {
            let leader = leaders.borrow_and_update().leader.clone();
            let address = leader.and_then(|leader| leader.addresses.get("blob").cloned());
            let tried = match &address {
                Some(address) => self.fetch_from(address, name).await,
                None => Err(GatewayError::NotYet("no JobManager leads".to_owned())),
            };
            let error = match tried {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            if !error.is_retryable() || Instant::now() >= give_up {
                return Err(error.to_string());
            }
            tracing::debug!(name, %error, "an upload can't be fetched: retrying");
            // An error means that no leader is followed any more, and this process ends soon.
            let _ = timeout(PAUSE, leaders.changed()).await;
        }
    }
}

impl LeadersUploads {
    async fn fetch_from(&self, address: &str, name: &str) -> GatewayResult<Bytes> {
        let silent = |_| GatewayError::NoAnswer {
            target: format!("the blob server at {address}"),
            reason: format!("it sent nothing for {:?}", self.ask_timeout),
        };
        let request = pb::FetchBlobRequest {
            content: Some(Content::Object(name.to_owned())),
        };
        let gateway = self.connector.blobs(address);
        let opened = timeout(self.ask_timeout, gateway.fetch(request)).await;
        let mut chunks = opened.map_err(silent)??;
        let mut bytes = BytesMut::new();
        while let Some(chunk) = timeout(self.ask_timeout, chunks.next())
            .await
            .map_err(silent)?
        {
            let chunk = chunk.map_err(|error| GatewayError::NoAnswer {
                target: format!("the blob server at {address}"),
                reason: error.to_string(),
            })?;
            if bytes.len() + chunk.len() > LARGEST {
                let text = format!("{name} has more than the {LARGEST} bytes of a piece");
                return Err(GatewayError::Invalid(text));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.freeze())
    }
}
