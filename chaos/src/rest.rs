//! Sends REST requests to a JobManager, for JSON. A single attempt each: the caller retries.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

/// Timeout of one answer.
const ANSWER_BOUND: Duration = Duration::from_secs(3);

/// A client for any number of servers.
#[derive(Debug, Clone)]
pub struct RestClient {
    http: Client<HttpConnector, Full<Bytes>>,
}

impl Default for RestClient {
    fn default() -> RestClient {
        // Connections are not kept, because the server may have been killed.
        let http = Client::builder(TokioExecutor::new())
            .pool_max_idle_per_host(0)
            .build_http();
        RestClient { http }
    }
}

impl RestClient {
    /// The body of a successful answer to `GET http://address/path`.
    pub async fn get(&self, address: &str, path: &str) -> anyhow::Result<Value> {
        let (status, body) = self.request(Method::GET, address, path).await?;
        if !status.is_success() {
            bail!("GET {address}{path}: {status}: {body}");
        }
        Ok(body)
    }

    /// Status and body of the answer.
    pub async fn request(
        &self,
        method: Method,
        address: &str,
        path: &str,
    ) -> anyhow::Result<(StatusCode, Value)> {
        let (status, _, body) = self.request_with_headers(method, address, path).await?;
        Ok((status, body))
    }

    /// Status, headers and body of the answer.
    pub async fn request_with_headers(
        &self,
        method: Method,
        address: &str,
        path: &str,
    ) -> anyhow::Result<(StatusCode, HeaderMap, Value)> {
        let request = Request::builder()
            .method(&method)
            .uri(format!("http://{address}{path}"))
            .body(Full::default())?;
        let answer = self.exchange(request, ANSWER_BOUND).await?;
        let body = answer.body();
        let value = serde_json::from_slice(body)
            .unwrap_or_else(|_| Value::String(String::from_utf8_lossy(body).into_owned()));
        Ok((answer.status(), answer.headers().clone(), value))
    }

    /// The complete answer to a request, if it arrives within `bound`.
    pub async fn exchange(
        &self,
        request: Request<Full<Bytes>>,
        bound: Duration,
    ) -> anyhow::Result<Response<Bytes>> {
        let what = format!("{} {}", request.method(), request.uri());
        let exchange = async {
            let (head, body) = self.http.request(request).await?.into_parts();
            let body = body.collect().await?.to_bytes();
            anyhow::Ok(Response::from_parts(head, body))
        };
        tokio::time::timeout(bound, exchange)
            .await
            .with_context(|| format!("{what}: no answer within {bound:?}"))?
            .context(what)
    }
}
