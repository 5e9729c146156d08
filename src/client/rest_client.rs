//! One request, tried until somebody answers it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, StatusCode};
use serde::Deserialize;
use tokio::sync::watch;
use tokio::time::Instant;

use super::error::ClientError;
use super::finder::LeaderFinder;
use crate::net::{HttpClient, http_client, http_connector};

/// After so long without an answer a client says what it waits for.
const NOTICE_AFTER: Duration = Duration::from_secs(1);

/// The header of an answer that only says what keeps the JobManager busy.
const BUSY: &str = "tanist-busy";

/// How long a client tries.
#[derive(Debug, Clone)]
pub struct RetryOptions {
    /// How long it goes on with one request.
    pub timeout: Duration,
    /// The pause after all addresses were tried.
    pub retry_period: Duration,
    /// How long one JobManager may take for its answer before the next one is asked.
    pub request_timeout: Duration,
    /// How long a connection may take.
    pub connect_timeout: Duration,
    /// How long a read goes on while no JobManager takes a connection; `None`: as long as `timeout`. Over a failover, and while none
    /// leads, JobManagers do take connections.
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

/// What is asked. It may be sent several times: it must not take effect twice.
#[derive(Debug, Clone)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// The path with its query, from `/v1`.
    pub path: String,
    /// More headers.
    pub headers: Vec<(&'static str, String)>,
    /// The body.
    pub body: Bytes,
}

impl Request {
    /// A read.
    pub fn get(path: impl Into<String>) -> Request {
        Request {
            method: Method::GET,
            path: path.into(),
            headers: Vec::new(),
            body: Bytes::new(),
        }
    }
}

/// A good answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Who answered: `host:port`.
    pub address: String,
    /// Its body.
    pub body: Bytes,
}

/// What is sent with a request.
pub(super) type RequestBody = BoxBody<Bytes, std::io::Error>;

/// Why one try came to nothing.
pub(super) enum Failure {
    /// The next JobManager, or the same one later, may answer.
    Passing(String),
    /// The same, and nobody took the connection. `is_refused`: nobody listens there.
    Unreached {
        /// Why.
        reason: String,
        /// At once, by the host itself.
        is_refused: bool,
    },
    /// It has others to serve first, and says so: whatever time that takes is not lost.
    Busy(String),
    /// Every try would end like this.
    Final(ClientError),
}

/// Flink's error body.
#[derive(Debug, Deserialize)]
struct Errors {
    errors: Vec<String>,
}

/// Asks the cluster. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RestClient {
    finder: Arc<dyn LeaderFinder>,
    options: RetryOptions,
    http: HttpClient<RequestBody>,
    /// Who answered last is asked first.
    answered: Arc<Mutex<Option<String>>>,
    waits: watch::Sender<Option<String>>,
}

impl RestClient {
    /// A client that asks whom `finder` names.
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

    /// Follows what it waits for: why nobody has answered for a while, or who comes first where all is well.
    pub fn waits(&self) -> watch::Receiver<Option<String>> {
        self.waits.subscribe()
    }

    fn set_waits(&self, reason: Option<String>) {
        self.waits.send_if_modified(|waits| {
            let is_other = *waits != reason;
            *waits = reason;
            is_other
        });
    }

    /// How long it tries.
    pub fn options(&self) -> &RetryOptions {
        &self.options
    }

    /// The answer of the first JobManager that gives one.
    pub async fn send(&self, request: &Request) -> Result<Answer, ClientError> {
        let is_read = request.method == Method::GET;
        let reach_timeout = self.options.reach_timeout.filter(|_| is_read);
        let ask = async |address: &str, patience| self.try_at(address, request, patience).await;
        self.ask_around_within(reach_timeout, ask).await
    }

    /// Asks one JobManager after the other, again and again, until one gives an answer. `ask` is told how long it may take to
    /// say something. Each time that one says that it is busy the time for all this begins anew.
    pub(super) async fn ask_around(
        &self,
        ask: impl AsyncFn(&str, Duration) -> Result<Answer, Failure>,
    ) -> Result<Answer, ClientError> {
        self.ask_around_within(None, ask).await
    }

    /// The same; after `reach_timeout` only if somebody has taken a connection by then.
    async fn ask_around_within(
        &self,
        reach_timeout: Option<Duration>,
        ask: impl AsyncFn(&str, Duration) -> Result<Answer, Failure>,
    ) -> Result<Answer, ClientError> {
        let began_at = Instant::now();
        let mut heard_at = began_at;
        let mut timeout = reach_timeout.unwrap_or(self.options.timeout);
        let left =
            |heard_at: Instant, timeout: Duration| timeout.saturating_sub(heard_at.elapsed());
        let mut last = None;
        loop {
            let finding = self.finder.addresses(left(heard_at, timeout));
            match self.noticing(began_at, finding).await {
                Ok(addresses) => {
                    for address in self.in_order(addresses) {
                        if left(heard_at, timeout).is_zero() {
                            break;
                        }
                        // Who has not been reached yet is given the whole time for a connection: cut short, it would look like
                        // one that was taken.
                        let most = left(heard_at, self.options.timeout);
                        let patience = self.options.request_timeout.min(most);
                        let answer = ask(&address, patience).await;
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
                                heard_at = Instant::now();
                                last = Some(format!("{address}: {reason}"));
                                self.set_waits(Some(reason));
                            }
                            Err(Failure::Final(error)) => return Err(error),
                            Err(Failure::Unreached { reason, is_refused }) => {
                                let reason = format!("{address}: {reason}");
                                tracing::debug!(reason, "nobody took the connection, trying on");
                                let is_told_at_once = is_refused && reach_timeout.is_some();
                                if is_told_at_once || began_at.elapsed() >= NOTICE_AFTER {
                                    self.notice(|| reason.clone());
                                }
                                last = Some(reason);
                            }
                            Err(Failure::Passing(reason)) => {
                                tracing::debug!(address, reason, "no answer, trying on");
                                // What our own end cuts short says less than what was said before.
                                let is_cut_short = left(heard_at, timeout).is_zero();
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
            if left(heard_at, timeout) <= self.options.retry_period {
                let waited = timeout;
                let last = last.unwrap_or_else(|| "there was no time to ask anybody".to_owned());
                return Err(ClientError::Unreachable { waited, last });
            }
            tokio::time::sleep(self.options.retry_period).await;
        }
    }

    /// Says that nobody leads while it takes long to find somebody to ask.
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

    /// Says what it waits for, unless it has said so: many reasons in turn tell people no more than the first.
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
        patience: Duration,
    ) -> Result<Answer, Failure> {
        let trying = self.exchange(address, request);
        let (status, body) = tokio::time::timeout(patience, trying)
            .await
            .map_err(|_| Failure::Passing(format!("no answer within {patience:?}")))??;
        judge(address, &request.path, status, body)
    }

    async fn exchange(
        &self,
        address: &str,
        request: &Request,
    ) -> Result<(StatusCode, Bytes), Failure> {
        let body = Full::new(request.body.clone()).map_err(|never| match never {});
        self.exchange_with(address, request, body.boxed()).await
    }

    /// Sends a request with another body than its own.
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
                reason: format!("this is no request: {error}"),
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
        if let Some(reason) = answer.headers().get(BUSY) {
            // The connection may end before the rest of the answer is read: our body is not wanted.
            let reason = String::from_utf8_lossy(reason.as_bytes()).into_owned();
            return Err(Failure::Busy(reason));
        }
        let body = answer.into_body().collect().await;
        let body = body.map_err(|error| Failure::Passing(root_cause(&error)))?;
        Ok((status, body.to_bytes()))
    }

    fn in_order(&self, mut addresses: Vec<String>) -> Vec<String> {
        let answered = self.answered.lock().expect("nothing panics holding it");
        if let Some(best) = answered.as_ref() {
            addresses.sort_by_key(|address| address != best);
        }
        addresses
    }

    fn set_answered(&self, address: String) {
        *self.answered.lock().expect("nothing panics holding it") = Some(address);
    }
}

/// A good answer, or why there is none.
pub(super) fn judge(
    address: &str,
    path: &str,
    status: StatusCode,
    body: Bytes,
) -> Result<Answer, Failure> {
    if status.is_success() {
        let address = address.to_owned();
        return Ok(Answer { address, body });
    }
    let told = match serde_json::from_slice::<Errors>(&body) {
        Ok(Errors { errors }) if !errors.is_empty() => Some(errors),
        Ok(_) | Err(_) => None,
    };
    match status {
        // Who stands between us and the JobManager may say that it isn't there. What we sent too slowly can be sent again.
        StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::BAD_GATEWAY
        | StatusCode::GATEWAY_TIMEOUT
        | StatusCode::REQUEST_TIMEOUT => {
            let reason = told.map_or_else(|| format!("status {status}"), |told| told.join("; "));
            Err(Failure::Passing(reason))
        }
        _ => {
            // Somebody else may listen there.
            let not_ours = || {
                vec![format!(
                    "{address} does not answer as a JobManager's REST server does: status {status} for {path}"
                )]
            };
            Err(Failure::Final(ClientError::Refused {
                status: status.as_u16(),
                errors: told.unwrap_or_else(not_ours),
            }))
        }
    }
}

/// Whether the host says that nobody listens there.
fn is_refused(error: &(dyn std::error::Error + 'static)) -> bool {
    let refused = |error: &(dyn std::error::Error + 'static)| {
        let io = error.downcast_ref::<std::io::Error>();
        io.is_some_and(|io| io.kind() == std::io::ErrorKind::ConnectionRefused)
    };
    std::iter::successors(Some(error), |error| error.source()).any(refused)
}

/// hyper's own words (`client error (Connect)`) say less than what lies beneath them.
fn root_cause(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
