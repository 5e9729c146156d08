//! Transfer of bulk data between processes: a process serves content, others fetch it.
//!
//! [`ServedBlobs`] owns the content that is held in memory; each [`HeldBlob`] keeps one content there until it is
//! dropped. The server checks only that the content exists. The fetching side knows size and SHA-256 beforehand and
//! accepts nothing else: a mismatch is an error. Transfers use their own connections, so they never delay a control
//! message.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use parking_lot::Mutex;
use tanist_ha::blob::{BlobStore, Checksum};
use tanist_ha::keys::Name;
use tanist_ha::records::record::MAX_PAYLOAD;
use tanist_ha::retry::Backoff;
use tanist_proto::v1 as pb;
use tanist_proto::v1::fetch_blob_request::Content;
use tokio::time::Instant;

use super::{Connector, GatewayError, GatewayResult};

/// Content as a stream of pieces.
pub type BlobStream = BoxStream<'static, GatewayResult<Bytes>>;

/// Maximum size of a piece, in bytes.
const CHUNK: usize = 256 * 1024;

/// Interface of a JobManager's blob server.
#[async_trait]
pub trait BlobGateway: Send + Sync + fmt::Debug + 'static {
    /// Returns the content, unchecked; `NotFound` if it does not exist.
    async fn fetch(&self, request: pb::FetchBlobRequest) -> GatewayResult<BlobStream>;
}

/// Content that this process serves: what it holds in memory, and the objects of its blob store. Cheap to
/// clone; all clones serve the same content.
#[derive(Debug, Clone)]
pub struct ServedBlobs {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Address at which other processes fetch it.
    endpoint: String,
    held: Mutex<HashMap<Checksum, Held>>,
    store: OnceLock<Arc<BlobStore>>,
}

#[derive(Debug)]
struct Held {
    bytes: Bytes,
    holders: usize,
}

impl ServedBlobs {
    /// Creates it without content. Other processes reach it at `endpoint` (`host:port`).
    pub fn new(endpoint: impl Into<String>) -> ServedBlobs {
        ServedBlobs {
            inner: Arc::new(Inner {
                endpoint: endpoint.into(),
                held: Mutex::default(),
                store: OnceLock::new(),
            }),
        }
    }

    /// Also serves the objects of a blob store from here on. Only the first call has an effect.
    pub fn serve_store(&self, store: Arc<BlobStore>) {
        let _the_first_stays = self.inner.store.set(store);
    }

    /// Returns the blob store that is served, once it is set.
    pub fn store(&self) -> Option<&Arc<BlobStore>> {
        self.inner.store.get()
    }

    /// Serves `bytes` until the returned value is dropped. Hashes on a blocking thread.
    pub async fn hold(&self, bytes: Bytes) -> GatewayResult<HeldBlob> {
        let sha256 = checksum(bytes.clone()).await?;
        let size = bytes.len() as u64;
        let mut held = self.inner.held.lock();
        let entry = held.entry(sha256).or_insert(Held { bytes, holders: 0 });
        entry.holders += 1;
        drop(held);
        Ok(HeldBlob {
            served: self.clone(),
            sha256,
            size,
        })
    }

    /// Returns the number of different contents held.
    pub fn held(&self) -> usize {
        self.inner.held.lock().len()
    }

    fn find_held(&self, sha256: &[u8]) -> GatewayResult<BlobStream> {
        let sha256 = Checksum::try_from(sha256).map_err(invalid)?;
        let held = self
            .inner
            .held
            .lock()
            .get(&sha256)
            .map(|held| held.bytes.clone());
        let held = held.ok_or_else(|| {
            GatewayError::NotFound(format!("this process holds no content of SHA-256 {sha256}"))
        })?;
        Ok(stream::iter(cut(Ok(held))).boxed())
    }

    async fn open_object(&self, object: &str) -> GatewayResult<BlobStream> {
        let none = || GatewayError::NotFound("this process has no blob store".to_owned());
        let store = self.inner.store.get().cloned().ok_or_else(none)?;
        let name = Name::new(object).map_err(invalid)?;
        let opened = store.stream(&name).await;
        let opened = opened.map_err(|error| match error {
            tanist_ha::Error::Corrupt { .. } => GatewayError::NotFound(error.to_string()),
            other => GatewayError::NotYet(other.to_string()),
        })?;
        let internal = |error: tanist_ha::Error| GatewayError::Internal(error.to_string());
        Ok(opened
            .map(move |chunk| chunk.map_err(internal))
            .flat_map(|chunk| stream::iter(cut(chunk)))
            .boxed())
    }
}

/// Splits a chunk into pieces that are small enough to be sent.
fn cut(chunk: GatewayResult<Bytes>) -> Vec<GatewayResult<Bytes>> {
    match chunk {
        Ok(mut rest) => {
            let mut chunks = Vec::new();
            while !rest.is_empty() {
                chunks.push(Ok(rest.split_to(rest.len().min(CHUNK))));
            }
            chunks
        }
        Err(error) => vec![Err(error)],
    }
}

#[async_trait]
impl BlobGateway for ServedBlobs {
    async fn fetch(&self, request: pb::FetchBlobRequest) -> GatewayResult<BlobStream> {
        match request.content {
            Some(Content::Sha256(sha256)) => self.find_held(&sha256),
            Some(Content::Object(object)) => self.open_object(&object).await,
            None => Err(GatewayError::Invalid(
                "the request names no content".to_owned(),
            )),
        }
    }
}

/// Content that is served until this is dropped.
#[derive(Debug)]
pub struct HeldBlob {
    served: ServedBlobs,
    sha256: Checksum,
    size: u64,
}

impl HeldBlob {
    /// Returns the reference with which other processes fetch it.
    pub fn reference(&self) -> pb::BlobReference {
        pb::BlobReference {
            sha256: self.sha256.as_bytes().to_vec(),
            size: self.size,
            endpoints: vec![self.served.inner.endpoint.clone()],
            object: String::new(),
        }
    }
}

impl Drop for HeldBlob {
    fn drop(&mut self) {
        let mut held = self.served.inner.held.lock();
        if let Some(entry) = held.get_mut(&self.sha256) {
            entry.holders -= 1;
            if entry.holders == 0 {
                held.remove(&self.sha256);
            }
        }
    }
}

/// First and maximum delay before a server that had no free connection is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Fetches content from other processes and checks it.
#[derive(Debug, Clone)]
pub struct BlobFetcher {
    connector: Arc<dyn Connector>,
    timeout: Duration,
    limit: usize,
}

impl BlobFetcher {
    /// Creates a fetcher that gives a server up after `timeout` without data, and refuses content larger than
    /// any record.
    pub fn new(connector: Arc<dyn Connector>, timeout: Duration) -> BlobFetcher {
        BlobFetcher {
            connector,
            timeout,
            limit: MAX_PAYLOAD,
        }
    }

    /// Returns the content from the first server that sends all of it correctly.
    pub async fn fetch(&self, reference: &pb::BlobReference) -> GatewayResult<Bytes> {
        let wanted = Checksum::try_from(reference.sha256.as_slice()).map_err(invalid)?;
        let size = usize::try_from(reference.size).unwrap_or(usize::MAX);
        if size > self.limit {
            return Err(GatewayError::Invalid(format!(
                "content of {size} bytes is larger than the {} bytes that may be fetched",
                self.limit
            )));
        }
        let content = if reference.object.is_empty() {
            Content::Sha256(reference.sha256.clone())
        } else {
            Content::Object(reference.object.clone())
        };
        let content = Some(content);
        let mut failure = GatewayError::Invalid("no blob server is named".to_owned());
        for endpoint in &reference.endpoints {
            let request = pb::FetchBlobRequest {
                content: content.clone(),
            };
            match self.fetch_from(endpoint, request, size, wanted).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => failure = error,
            }
        }
        Err(failure)
    }

    /// The same, retried for `timeout` while the servers have no free connection: a blob port closes the
    /// latest connections beyond its limit. A try in progress is not aborted at that time.
    pub async fn fetch_with_retries(
        &self,
        reference: &pb::BlobReference,
        timeout: Duration,
    ) -> GatewayResult<Bytes> {
        let last_try_by = Instant::now() + timeout;
        let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let error = match self.fetch(reference).await {
                Err(error) if error.is_retryable() => error,
                fetched => return fetched,
            };
            let next_try_at = Instant::now() + backoff.next_delay();
            if next_try_at > last_try_by {
                return Err(error);
            }
            tracing::debug!(%error, "content could not be fetched; fetching is retried");
            tokio::time::sleep_until(next_try_at).await;
        }
    }

    async fn fetch_from(
        &self,
        endpoint: &str,
        request: pb::FetchBlobRequest,
        size: usize,
        wanted: Checksum,
    ) -> GatewayResult<Bytes> {
        let silent = |_| GatewayError::NoAnswer {
            target: format!("the blob server at {endpoint}"),
            reason: format!("it sent nothing for {:?}", self.timeout),
        };
        let mismatch = |what: String| {
            GatewayError::Internal(format!("the blob server at {endpoint} sent {what}"))
        };
        let gateway = self.connector.blobs(endpoint);
        let opened = tokio::time::timeout(self.timeout, gateway.fetch(request));
        let mut chunks = opened.await.map_err(silent)??;
        let mut bytes = BytesMut::with_capacity(size);
        while let Some(chunk) = tokio::time::timeout(self.timeout, chunks.next())
            .await
            .map_err(silent)?
        {
            let chunk = chunk?;
            if chunk.len() > size - bytes.len() {
                return Err(mismatch(format!("more than the {size} requested bytes")));
            }
            bytes.extend_from_slice(&chunk);
        }
        if bytes.len() != size {
            let found = bytes.len();
            return Err(mismatch(format!("{found} bytes, not the requested {size}")));
        }
        let bytes = bytes.freeze();
        let found = checksum(bytes.clone()).await?;
        if found != wanted {
            let what = format!("content of SHA-256 {found}, not the requested {wanted}");
            return Err(mismatch(what));
        }
        Ok(bytes)
    }
}

fn invalid(error: impl fmt::Display) -> GatewayError {
    GatewayError::Invalid(error.to_string())
}

/// Hashes on a blocking thread: large content would block a runtime thread.
async fn checksum(bytes: Bytes) -> GatewayResult<Checksum> {
    let sum = tokio::task::spawn_blocking(move || Checksum::of(&bytes)).await;
    sum.map_err(|error| GatewayError::Internal(format!("content can't be hashed: {error}")))
}

#[cfg(test)]
#[path = "blobs_tests.rs"]
mod tests;
