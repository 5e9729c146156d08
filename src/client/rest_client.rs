//! Sends a request, with retries until a JobManager answers it.
//!
//! Several JobManagers may receive one request, so a request must be safe to repeat. It ends with an answer, with an
//! error that each JobManager would give, or with [`ClientError::Unreachable`] after its timeout: then it is not known
//! whether it took effect. Meanwhile [`JobClient::waits`](super::JobClient::waits) says why there is no answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, StatusCode};
use parking_lot::Mutex;
use serde::Serialize;
use tanist_net::{HttpClient, http_client, http_connector};
use tanist_rest_model::{Errors, headers, paths};
use tokio::sync::watch;
use tokio::time::Instant;

use super::error::ClientError;
use super::finder::LeaderFinder;

/// Time without an answer after which the client reports what it waits for.
const NOTICE_AFTER: Duration = Duration::from_secs(1);

/// Timeouts and delays of a client.
#[derive(Debug, Clone)]
pub struct RetryOptions {
    /// Timeout of a request, including retries.
    pub timeout: Duration,
    /// Delay after all addresses were tried.
    pub retry_period: Duration,
    /// Timeout for the answer of one JobManager, before the next one is tried.
    pub request_timeout: Duration,
    /// Timeout for connecting.
    pub connect_timeout: Duration,
    /// Timeout of a read while no JobManager accepts a connection; `None`: as `timeout`. During a failover, and
    /// while there is no leader, JobManagers do accept connections.
    pub reach_timeout: Option<Duration>,
}

impl Default for RetryOptions {
    fn default() -> RetryOptions {
        RetryOptions {
            timeout: Duration::from_secs(60),
            retry_period: Duration::from_millis(200),
            request_timeout: Duration::from_secs(10),
            connect_timeout: Duration::from_secs(2),
            reach_timeout: None,
        }
    }
}

/// A request. It may be sent several times, so repeating it must have no further effect.
#[derive(Debug, Clone)]
pub(super) struct Request {
    /// The method.
    pub(super) method: Method,
    /// Path with query, starting with `/v1`.
    pub(super) path: String,
    /// Additional headers.
    pub(super) headers: Vec<(&'static str, String)>,
    /// The body.
    pub(super) body: Bytes,
}

impl Request {
    /// Creates a read of one of the [`paths`].
    pub(super) fn get(path: &str) -> Request {
        Request {
            method: Method::GET,
            path: format!("{}{path}", paths::VERSION),
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }

    /// Creates a request that makes a change, with this body.
    pub(super) fn post(path: &str, body: &impl Serialize) -> Request {
        let body = serde_json::to_vec(body).expect("bodies have named fields and plain values");
        Request {
            method: Method::POST,
            headers: vec![("content-type", "application/json".to_owned())],
            body: body.into(),
            ..Request::get(path)
        }
    }
}

/// A successful answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// Address of the server: `host:port`.
    pub(super) address: String,
    /// Its body.
    pub(super) body: Bytes,
}

/// Body of a request as sent.
pub(super) type RequestBody = BoxBody<Bytes, std::io::Error>;

/// Why one try failed.
pub(super) enum Failure {
    /// Another JobManager, or the same one later, may answer.
    Passing(String),
    /// The same; the server accepted no connection. `is_refused`: no process listens there.
    Unreached {
        /// Reason.
        reason: String,
        /// Whether the host refused the connection at once.
        is_refused: bool,
    },
    /// The JobManager has other requests to serve first. This time does not count for the timeout.
    Busy(String),
    /// Every try would fail like this.
    Final(ClientError),
}

/// Sends requests to the cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RestClient {
    finder: Arc<dyn LeaderFinder>,
    options: RetryOptions,
    http: HttpClient<RequestBody>,
    /// Address that answered last; it is tried first.
    answered: Arc<Mutex<Option<String>>>,
    /// Why a request has no answer yet, or which requests come first; `None` while all is well.
    waits: watch::Sender<Option<String>>,
}

impl RestClient {
    /// Creates a client of the JobManagers that `finder` returns.
    pub fn new(finder: Arc<dyn LeaderFinder>, options: RetryOptions) -> RestClient {
        let mut connector = http_connector(None);
        connector.set_connect_timeout(Some(options.connect_timeout));
        RestClient {
            finder,
            options,
            http: http_client(connector),
            answered: Arc::default(),
            waits: watch::Sender::new(None),
        }
    }

    /// See [`JobClient::waits`](super::JobClient::waits).
    pub(super) fn waits(&self) -> watch::Receiver<Option<String>> {
        self.waits.subscribe()
    }

    fn set_waits(&self, reason: Option<String>) {
        self.waits.send_if_modified(|waits| {
            let is_other = *waits != reason;
            *waits = reason;
            is_other
        });
    }

    /// Returns its options.
    pub(super) fn options(&self) -> &RetryOptions {
        &self.options
    }

    /// Returns the answer of the first JobManager that gives one.
    pub(super) async fn send(&self, request: &Request) -> Result<Answer, ClientError> {
        let is_read = request.method == Method::GET;
        let reach_timeout = self.options.reach_timeout.filter(|_| is_read);
        let ask = async |address: &str, timeout| self.try_at(address, request, timeout).await;
        self.try_each_within(reach_timeout, ask).await
    }

    /// Tries one JobManager after the other repeatedly until one answers. `ask` gets the timeout of its try.
    /// Each "busy" answer restarts the overall timeout.
    pub(super) async fn try_each(
        &self,
        ask: impl AsyncFn(&str, Duration) -> Result<Answer, Failure>,
    ) -> Result<Answer, ClientError> {
        self.try_each_within(None, ask).await
    }

    /// The same; stops after `reach_timeout` if no JobManager has accepted a connection by then.
    async fn try_each_within(
        &self,
        reach_timeout: Option<Duration>,
        ask: impl AsyncFn(&str, Duration) -> Result<Answer, Failure>,
    ) -> Result<Answer, ClientError> {
        let began_at = Instant::now();
        // When the timeout began: a JobManager that is busy restarts it.
        let mut timed_from = began_at;
        // `reach_timeout` until a JobManager has accepted a connection, then that of the whole request.
        let mut timeout = reach_timeout.unwrap_or(self.options.timeout);
        let left =
            |timed_from: Instant, timeout: Duration| timeout.saturating_sub(timed_from.elapsed());
        let mut last = None;
        loop {
            let finding = self.finder.addresses(left(timed_from, timeout));
            match self.noticing(began_at, finding).await {
                Ok(addresses) => {
                    for address in self.in_order(addresses) {
                        if left(timed_from, timeout).is_zero() {
                            break;
                        }
                        // A server that has not been reached yet gets the full connect timeout: if that were cut
                        // short, the failure would look like one after an accepted connection.
                        let most = left(timed_from, self.options.timeout);
                        let limit = self.options.request_timeout.min(most);
                        let answer = ask(&address, limit).await;
                        if !matches!(answer, Err(Failure::Unreached { .. })) {
                            timeout = self.options.timeout;
                        }
                        match answer {
                            Ok(answer) => {
                                self.set_answered(address);
                                self.set_waits(None);
                                return Ok(answer);
                            }
                            Err(Failure::Busy(reason)) => {
                                timed_from = Instant::now();
                                last = Some(format!("{address}: {reason}"));
                                self.set_waits(Some(reason));
                            }
                            Err(Failure::Final(error)) => return Err(error),
                            Err(Failure::Unreached { reason, is_refused }) => {
                                let reason = format!("{address}: {reason}");
                                tracing::debug!(
                                    reason,
                                    "no connection was accepted; trying the next address"
                                );
                                let is_reported_at_once = is_refused && reach_timeout.is_some();
                                if is_reported_at_once || began_at.elapsed() >= NOTICE_AFTER {
                                    self.notice(|| reason.clone());
                                }
                                last = Some(reason);
                            }
                            Err(Failure::Passing(reason)) => {
                                tracing::debug!(
                                    address,
                                    reason,
                                    "no answer; trying the next address"
                                );
                                // A try that our own timeout cut short says less than the error before it.
                                let is_cut_short = left(timed_from, timeout).is_zero();
                                if !is_cut_short || last.is_none() {
                                    last = Some(format!("{address}: {reason}"));
                                }
                                if began_at.elapsed() >= NOTICE_AFTER {
                                    self.notice(|| format!("{address}: {reason}"));
                                }
                            }
                        }
                    }
                }
                Err(reason) => last = Some(reason),
            }
            if left(timed_from, timeout) <= self.options.retry_period {
                let waited = timeout;
                let last = last.unwrap_or_else(|| {
                    "the timeout was too short to reach a JobManager".to_owned()
                });
                return Err(ClientError::Unreachable { waited, last });
            }
            tokio::time::sleep(self.options.retry_period).await;
        }
    }

    /// Reports that no leader is known if finding an address takes long.
    async fn noticing<T>(&self, began_at: Instant, finding: impl Future<Output = T>) -> T {
        tokio::pin!(finding);
        tokio::select! {
            biased;
            found = &mut finding => return found,
            () = tokio::time::sleep_until(began_at + NOTICE_AFTER) => {}
        }
        self.notice(|| "no leader is known".to_owned());
        finding.await
    }

    /// Reports what it waits for, unless it has done so: further reasons would tell the user no more than the first.
    fn notice(&self, reason: impl FnOnce() -> String) {
        self.waits.send_if_modified(|waits| {
            let is_first = waits.is_none();
            if is_first {
                *waits = Some(reason());
            }
            is_first
        });
    }

    pub(super) async fn try_at(
        &self,
        address: &str,
        request: &Request,
        timeout: Duration,
    ) -> Result<Answer, Failure> {
        let trying = self.exchange(address, request);
        let (status, body) = tokio::time::timeout(timeout, trying)
            .await
            .map_err(|_| Failure::Passing(format!("no answer within {timeout:?}")))??;
        classify(address, &request.path, status, body)
    }

    async fn exchange(
        &self,
        address: &str,
        request: &Request,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let body = Full::new(request.body.clone()).map_err(|never| match never {});
        self.exchange_with(address, request, body.boxed()).await
    }

    /// Sends a request with a different body.
    pub(super) async fn exchange_with(
        &self,
        address: &str,
        request: &Request,
        body: RequestBody,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let wrong = |error: hyper::http::Error| {
            Failure::Final(ClientError::BadAnswer {
                address: address.to_owned(),
                path: request.path.clone(),
                reason: format!("the request is invalid: {error}"),
            })
        };
        let mut http = hyper::Request::builder()
            .method(request.method.clone())
            .uri(format!("http://{address}{}", request.path));
        for (name, value) in &request.headers {
            http = http.header(*name, value);
        }
        let http = http.body(body).map_err(wrong)?;
        let answer = self.http.request(http).await;
        let answer = answer.map_err(|error| match error.is_connect() {
            true => Failure::Unreached {
                reason: root_cause(&error),
                is_refused: is_refused(&error),
            },
            false => Failure::Passing(root_cause(&error)),
        })?;
        let status = answer.status();
        if let Some(reason) = answer.headers().get(headers::BUSY) {
            // The connection may end before the rest of the answer is read, because the server does not want our body.
            let reason = String::from_utf8_lossy(reason.as_bytes()).into_owned();
            return Err(Failure::Busy(reason));
        }
        let body = answer.into_body().collect().await;
        let body = body.map_err(|error| Failure::Passing(root_cause(&error)))?;
        Ok((status, body.to_bytes()))
    }

    fn in_order(&self, mut addresses: Vec<String>) -> Vec<String> {
        let answered = self.answered.lock();
        if let Some(best) = answered.as_ref() {
            addresses.sort_by_key(|address| address != best);
        }
        addresses
    }

    fn set_answered(&self, address: String) {
        *self.answered.lock() = Some(address);
    }
}

/// Returns a successful answer, or the failure.
pub(super) fn classify(
    address: &str,
    path: &str,
    status: StatusCode,
    body: Bytes,
) -> Result<Answer, Failure> {
    if status.is_success() {
        let address = address.to_owned();
        return Ok(Answer { address, body });
    }
    let errors = match serde_json::from_slice::<Errors>(&body) {
        Ok(Errors { errors }) if !errors.is_empty() => Some(errors),
        Ok(_) | Err(_) => None,
    };
    match status {
        // A proxy in between may answer that the JobManager is unavailable. A request that was sent too slowly
        // may be sent again.
        StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::BAD_GATEWAY
        | StatusCode::GATEWAY_TIMEOUT
        | StatusCode::REQUEST_TIMEOUT => {
            let reason =
                errors.map_or_else(|| format!("status {status}"), |errors| errors.join("; "));
            Err(Failure::Passing(reason))
        }
        _ => {
            // Another program may listen there.
            let not_ours = || {
                vec![format!(
                    "{address} does not answer as a JobManager's REST server does: status {status} for {path}"
                )]
            };
            Err(Failure::Final(ClientError::Refused {
                status: status.as_u16(),
                errors: errors.unwrap_or_else(not_ours),
            }))
        }
    }
}

/// Whether the host reports that no process listens there.
fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let refused = |error: &(dyn std::error::Error + 'static)| {
        let io = error.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused)
    };
    std::iter::successors(Some(error), |error| error.source()).any(refused)
}

/// Returns the innermost error: hyper's own text (`client error (Connect)`) says less.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
