//! An HTTP client that keeps its connections, for the clients and observers of benchmarks.

use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Method, Request, StatusCode};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tanist_proto::id::JobId;

/// Timeout of an answer: long enough for a request that waits for a leader.
const ANSWER_BOUND: Duration = Duration::from_secs(40);

/// Content type of job files.
pub const YAML: &str = "application/yaml";
/// Content type of job graphs.
pub const PROTOBUF: &str = "application/x-protobuf";

/// A client with its own connections.
#[derive(Debug, Clone)]
pub struct Http {
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Default for Http {
    fn default() -> Http {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        Http {
            client: Client::builder(TokioExecutor::new()).build(connector),
        }
    }
}

impl Http {
    /// The JSON of a successful answer to `GET http://address/path`.
    pub async fn get(&self, address: &str, path: &str) -> anyhow::Result<Value> {
        let request = Request::get(format!("http://{address}{path}")).body(Full::default())?;
        let (status, body) = self.send(request).await?;
        if !status.is_success() {
            bail!("GET {address}{path}: {status}: {}", text(&body));
        }
        serde_json::from_slice(&body).with_context(|| format!("GET {address}{path}"))
    }

    /// The text of a successful answer to `GET http://address/path`.
    pub async fn text(&self, address: &str, path: &str) -> anyhow::Result<String> {
        let request = Request::get(format!("http://{address}{path}")).body(Full::default())?;
        let (status, body) = self.send(request).await?;
        let body = text(&body);
        if !status.is_success() {
            bail!("GET {address}{path}: {status}: {body}");
        }
        Ok(body)
    }

    /// The JSON of a successful answer to `POST http://address/path` with that JSON.
    pub async fn post(&self, address: &str, path: &str, body: &Value) -> anyhow::Result<Value> {
        let request = Request::post(format!("http://{address}{path}"))
            .header("content-type", "application/json")
            .body(Full::new(serde_json::to_vec(body)?.into()))?;
        let (status, body) = self.send(request).await?;
        if !status.is_success() {
            bail!("POST {address}{path}: {status}: {}", text(&body));
        }
        serde_json::from_slice(&body).with_context(|| format!("POST {address}{path}"))
    }

    /// Submits `body`; returns the job's id once the job is acknowledged.
    pub async fn submit(
        &self,
        address: &str,
        query: &str,
        content_type: &str,
        body: Bytes,
    ) -> anyhow::Result<JobId> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(format!("http://{address}/v1/jobs{query}"))
            .header("content-type", content_type)
            .body(Full::new(body))?;
        let (status, body) = self.send(request).await?;
        if status != StatusCode::ACCEPTED {
            bail!("submitting to {address}: {status}: {}", text(&body));
        }
        let answer: Value = serde_json::from_slice(&body)?;
        let id = answer["jobid"].as_str().context("no jobid in the answer")?;
        Ok(id.parse()?)
    }

    /// Asks the leader to hand over; returns when another JobManager leads.
    pub async fn transfer(&self, address: &str) -> anyhow::Result<()> {
        let request = Request::post(format!("http://{address}/v1/ha/transfer"));
        let (status, body) = self.send(request.body(Full::default())?).await?;
        if !status.is_success() {
            bail!("transferring from {address}: {status}: {}", text(&body));
        }
        Ok(())
    }

    /// Requests the cancellation of a job.
    pub async fn cancel(&self, address: &str, job: JobId) -> anyhow::Result<()> {
        let request = Request::builder()
            .method(Method::PATCH)
            .uri(format!("http://{address}/v1/jobs/{job}?mode=cancel"))
            .body(Full::default())?;
        let (status, body) = self.send(request).await?;
        if status != StatusCode::ACCEPTED {
            bail!("cancelling at {address}: {status}: {}", text(&body));
        }
        Ok(())
    }

    async fn send(&self, request: Request<Full<Bytes>>) -> anyhow::Result<(StatusCode, Bytes)> {
        let exchange = async {
            let answer = self.client.request(request).await?;
            let status = answer.status();
            anyhow::Ok((status, answer.into_body().collect().await?.to_bytes()))
        };
        tokio::time::timeout(ANSWER_BOUND, exchange)
            .await
            .with_context(|| format!("no answer within {ANSWER_BOUND:?}"))?
    }
}

fn text(body: &[u8]) -> String {
    String::from_utf8_lossy(body).into_owned()
}
