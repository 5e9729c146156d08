//! Files that a job names by their address: the submitting process fetches them once, then they are shipped
//! like any other file.
//!
//! `http://` is always supported, `https://` with the feature `https`, `s3://` with the feature `s3`.
//! Invariants: the result is the complete content from the server, with the given SHA-256 if one was given; no
//! more than the limit is ever read; a secure address never leads to an insecure one; the part of an address
//! after `?`, which may be a signature, appears in no message.
//!
//! Submission, and the distribution of files to TaskManagers, are not done here.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use http_body_util::{BodyExt as _, Empty};
use hyper::header::{ACCEPT_ENCODING, CONTENT_LENGTH, LOCATION, USER_AGENT};
use hyper::{StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use sha2::{Digest as _, Sha256};
use tanist_ha::retry::Backoff;
use tanist_model::artifact::{self, MAX_SHIPPED, hex};
use tanist_net::{self as net, HttpConnector};
use tanist_proto::v1 as pb;
use tokio::io::AsyncWriteExt as _;

/// Maximum number of tries per file.
const TRIES: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Maximum number of redirections followed.
const MOST_REDIRECTIONS: u32 = 5;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Settings of a fetch. Tests have others.
#[derive(Debug, Clone)]
struct Terms {
    /// Timeout for the next byte; then the try fails.
    timeout: Duration,
    /// Trusted certificate authorities; `None`: those of the host, or of `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    #[cfg(feature = "https")]
    roots: Option<std::sync::Arc<rustls::RootCertStore>>,
}

impl Default for Terms {
    fn default() -> Terms {
        Terms {
            timeout: Duration::from_secs(30),
            #[cfg(feature = "https")]
            roots: None,
        }
    }
}

/// Why a file was not fetched. The text names artifact, address and reason.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("artifact `{name}`: {address} can't be fetched: {reason}")]
pub struct FetchError {
    name: String,
    address: String,
    reason: String,
    is_passing: bool,
}

impl FetchError {
    /// Whether a retry may succeed: the server did not answer or had an error.
    pub fn is_passing(&self) -> bool {
        self.is_passing
    }
}

/// Why one try failed.
#[derive(Debug)]
struct Failure {
    reason: String,
    is_passing: bool,
}

impl Failure {
    fn passing(reason: impl Into<String>) -> Failure {
        Failure {
            reason: reason.into(),
            is_passing: true,
        }
    }

    fn lasting(reason: impl Into<String>) -> Failure {
        Failure {
            reason: reason.into(),
            is_passing: false,
        }
    }
}

/// Content of a file as a stream, and its size if the server states it.
struct Answer {
    size: Option<u64>,
    pieces: BoxStream<'static, Result<Bytes, Failure>>,
}

/// Receives the content of a file; restarted with each try.
#[expect(async_fn_in_trait, reason = "it is used where it is known")]
pub trait Destination {
    /// Empties it.
    async fn restart(&mut self) -> std::io::Result<()>;
    /// Appends the next bytes.
    async fn take(&mut self, bytes: &[u8]) -> std::io::Result<()>;
}

impl Destination for Vec<u8> {
    async fn restart(&mut self) -> std::io::Result<()> {
        self.clear();
        Ok(())
    }

    async fn take(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.extend_from_slice(bytes);
        Ok(())
    }
}

impl Destination for tokio::fs::File {
    async fn restart(&mut self) -> std::io::Result<()> {
        use tokio::io::AsyncSeekExt as _;
        self.set_len(0).await?;
        self.rewind().await.map(drop)
    }

    async fn take(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.write_all(bytes).await
    }
}

/// Fetches all files of a graph that have only an address, into the graph.
pub async fn embed_remote(graph: &mut pb::JobGraph) -> Result<(), FetchError> {
    for index in 0..graph.artifacts.len() {
        if graph.artifacts[index].url.is_empty() {
            continue;
        }
        let shipped = graph.artifacts.iter().map(|it| it.content.len() as u64);
        let room = MAX_SHIPPED.saturating_sub(shipped.sum());
        let mut content = Vec::new();
        let bound = Bound {
            bytes: room,
            what: "are left for files in the job's graph",
        };
        let artifact = &mut graph.artifacts[index];
        let sha256 = fetch(artifact, bound, &mut content).await?;
        artifact.content = content.into();
        artifact.sha256 = sha256;
        artifact.url.clear();
    }
    Ok(())
}

/// Maximum size of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// In bytes.
    pub bytes: u64,
    /// Reason of the limit: the end of the sentence "and N bytes ...".
    pub what: &'static str,
}

/// Fetches the file of an artifact. Returns its SHA-256, which equals that of the artifact if it has one.
pub async fn fetch(
    artifact: &pb::Artifact,
    bound: Bound,
    into: &mut impl Destination,
) -> Result<Bytes, FetchError> {
    fetch_on(&Terms::default(), artifact, bound, into).await
}

async fn fetch_on(
    terms: &Terms,
    artifact: &pb::Artifact,
    bound: Bound,
    into: &mut impl Destination,
) -> Result<Bytes, FetchError> {
    let mut backoff = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
    let mut tries = 0;
    loop {
        tries += 1;
        let failure = match fetch_once(terms, &artifact.url, bound, into).await {
            Ok(sha256) if artifact.sha256.is_empty() || artifact.sha256 == sha256 => {
                let address = artifact::shown(&artifact.url);
                tracing::info!(
                    artifact = artifact.name,
                    address,
                    "fetched a file of the job"
                );
                return Ok(sha256);
            }
            Ok(sha256) => {
                let (is, wanted) = (hex(&sha256), hex(&artifact.sha256));
                Failure::lasting(format!("it has the SHA-256 {is}, not {wanted}"))
            }
            Err(failure) => failure,
        };
        if !failure.is_passing || tries == TRIES {
            return Err(FetchError {
                name: artifact.name.clone(),
                address: artifact::shown(&artifact.url).to_owned(),
                reason: failure.reason,
                is_passing: failure.is_passing,
            });
        }
        tracing::debug!(
            reason = failure.reason,
            "a file could not be fetched; fetching is retried"
        );
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

async fn fetch_once(
    terms: &Terms,
    url: &str,
    bound: Bound,
    into: &mut impl Destination,
) -> Result<Bytes, Failure> {
    let too_large = |size: &dyn std::fmt::Display| {
        let Bound { bytes, what } = bound;
        Failure::lasting(format!("it has {size} bytes, and {bytes} {what}"))
    };
    let not_kept = |error: std::io::Error| Failure::lasting(format!("it can't be kept: {error}"));
    into.restart().await.map_err(not_kept)?;
    let mut answer = open(terms, url).await?;
    if let Some(size) = answer.size.filter(|size| *size > bound.bytes) {
        return Err(too_large(&size));
    }
    let (mut hasher, mut taken) = (Sha256::new(), 0_u64);
    while let Some(piece) = within_timeout(terms, answer.pieces.next()).await? {
        let piece = piece?;
        taken = taken.saturating_add(piece.len() as u64);
        if taken > bound.bytes {
            return Err(too_large(&"more"));
        }
        hasher.update(&piece);
        into.take(&piece).await.map_err(not_kept)?;
    }
    match answer.size {
        Some(size) if size != taken => Err(Failure::passing(format!(
            "it was cut off after {taken} of {size} bytes"
        ))),
        _ => Ok(Bytes::from(hasher.finalize().to_vec())),
    }
}

async fn within_timeout<T>(terms: &Terms, coming: impl Future<Output = T>) -> Result<T, Failure> {
    let timeout = terms.timeout;
    let waited = tokio::time::timeout(timeout, coming).await;
    waited.map_err(|_elapsed| Failure::passing(format!("it sent nothing for {timeout:?}")))
}

async fn open(terms: &Terms, url: &str) -> Result<Answer, Failure> {
    if url.starts_with("s3://") {
        return open_s3(terms, url).await;
    }
    let client = Client::builder(TokioExecutor::new()).build(connector(terms)?);
    let mut uri: Uri = url
        .parse()
        .map_err(|error| Failure::lasting(format!("it is not an address: {error}")))?;
    for _ in 0..=MOST_REDIRECTIONS {
        let request = hyper::Request::get(uri.clone())
            .header(USER_AGENT, concat!("tanist/", env!("CARGO_PKG_VERSION")))
            // The checksum is of the bytes as stored.
            .header(ACCEPT_ENCODING, "identity")
            .body(Empty::<Bytes>::new())
            .map_err(|error| Failure::lasting(format!("it is not an address: {error}")))?;
        let answer = within_timeout(terms, client.request(request)).await?;
        let answer = answer.map_err(|error| no_answer(&error))?;
        let status = answer.status();
        if status == StatusCode::OK {
            let length = answer.headers().get(CONTENT_LENGTH);
            let length = length.and_then(|it| it.to_str().ok()?.parse().ok());
            let pieces = answer.into_body().into_data_stream();
            let pieces = pieces.map(|piece| piece.map_err(|e| Failure::passing(root_cause(&e))));
            return Ok(Answer {
                size: length,
                pieces: pieces.boxed(),
            });
        }
        if !status.is_redirection() {
            let is_passing = status.is_server_error()
                || matches!(
                    status,
                    StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT
                );
            let reason = format!("the server answers {status}");
            return Err(Failure { reason, is_passing });
        }
        let location = answer.headers().get(LOCATION);
        let location = location.and_then(|it| it.to_str().ok()).unwrap_or_default();
        uri = redirected(&uri, location)?;
    }
    Err(Failure::lasting(format!(
        "it is behind more than {MOST_REDIRECTIONS} redirections"
    )))
}

/// Returns the target of a redirection.
fn redirected(from: &Uri, location: &str) -> Result<Uri, Failure> {
    let wrong = |why: &str| {
        let to = artifact::shown(location);
        Failure::lasting(format!("the server redirects to `{to}`{why}"))
    };
    let scheme = from.scheme_str().unwrap_or("http");
    let authority = from.authority().map_or("", |it| it.as_str());
    let target = if location.contains("://") {
        location.to_owned()
    } else if let Some(rest) = location.strip_prefix("//") {
        format!("{scheme}://{rest}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else {
        let directory = from.path().rsplit_once('/').map_or("", |it| it.0);
        format!("{scheme}://{authority}{directory}/{location}")
    };
    let target: Uri = target
        .parse()
        .map_err(|_| wrong(", which is not an address"))?;
    match (scheme, target.scheme_str()) {
        ("http", Some("http" | "https")) | ("https", Some("https")) => Ok(target),
        ("https", Some("http")) => Err(wrong(", which is not secure")),
        _ => Err(wrong("")),
    }
}

fn http_connector() -> HttpConnector {
    let mut http = net::http_connector(None);
    http.set_connect_timeout(Some(CONNECT_TIMEOUT));
    http
}

#[cfg(feature = "https")]
fn connector(terms: &Terms) -> Result<hyper_rustls::HttpsConnector<HttpConnector>, Failure> {
    let mut http = http_connector();
    http.enforce_http(false);
    let tls = hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls(terms)?);
    Ok(tls.https_or_http().enable_http1().wrap_connector(http))
}

/// Names the cryptography provider: without a name rustls takes the process's default, and panics if there are two.
#[cfg(feature = "https")]
fn tls(terms: &Terms) -> Result<rustls::ClientConfig, Failure> {
    use hyper_rustls::ConfigBuilderExt as _;

    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let builder = rustls::ClientConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .map_err(|error| Failure::lasting(error.to_string()))?;
    let builder = match &terms.roots {
        Some(roots) => builder.with_root_certificates(roots.clone()),
        None => builder.with_native_roots().map_err(|error| {
            Failure::lasting(format!("this host has no certificates to trust: {error}"))
        })?,
    };
    Ok(builder.with_no_client_auth())
}

#[cfg(not(feature = "https"))]
#[expect(clippy::unnecessary_wraps, reason = "with certificates it may fail")]
fn connector(_terms: &Terms) -> Result<HttpConnector, Failure> {
    Ok(http_connector())
}

async fn open_s3(terms: &Terms, url: &str) -> Result<Answer, Failure> {
    let read = within_timeout(terms, tanist_ha::blob::read_elsewhere(url)).await?;
    let failed = |error: tanist_ha::Error| Failure {
        is_passing: error.outcome() == tanist_ha::Outcome::Transient,
        reason: error.to_string(),
    };
    let (size, pieces) = read.map_err(failed)?;
    Ok(Answer {
        size: Some(size),
        pieces: pieces.map(move |piece| piece.map_err(failed)).boxed(),
    })
}

/// Why a request failed. A certificate that is not trusted will not be trusted on a retry either.
fn no_answer(error: &(dyn std::error::Error + 'static)) -> Failure {
    let reason = root_cause(error);
    if is_untrusted(error) {
        return Failure::lasting(format!(
            "{reason} (only certificates that this host trusts, or that SSL_CERT_FILE names, are accepted)"
        ));
    }
    Failure::passing(reason)
}

#[cfg(feature = "https")]
fn is_untrusted(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let tls = error.downcast_ref::<rustls::Error>();
        if matches!(tls, Some(rustls::Error::InvalidCertificate(_))) {
            return true;
        }
        // An I/O error may contain another error that is not its source.
        let inner = error.downcast_ref::<std::io::Error>();
        let inner = inner.and_then(|error| error.get_ref());
        let inner = inner.map(|inner| inner as &(dyn std::error::Error + 'static));
        cause = inner.or_else(|| error.source());
    }
    false
}

#[cfg(not(feature = "https"))]
fn is_untrusted(_error: &(dyn std::error::Error + 'static)) -> bool {
    false
}

/// Returns the innermost error: hyper's own text (`client error (Connect)`) says less.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
#[path = "remote_files_tests.rs"]
mod tests;
