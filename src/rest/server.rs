//! The HTTP server: which path leads to which handler.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post, put};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::ask::Context;
use super::error::RestError;
use super::peers::Peers;
use super::view::ClusterView;
use super::{aggregates, cluster, drains, guard, ha, jobs, metrics, savepoints, submit, upload};
use crate::config::AllowedHosts;
use crate::net::http::{self, Protocol};
use crate::net::{BodyShare, Listener};

/// Maximum number of concurrent uploads; others have to be repeated.
pub(super) const UPLOADS_AT_ONCE: usize = 4;

/// Timeouts and limits of the server.
#[derive(Debug, Clone)]
pub struct RestServerOptions {
    /// Timeout for finding a leader, and for finding another one if the leader does not answer.
    pub await_leader_timeout: Duration,
    /// Timeout for one answer of the leader.
    pub answer_timeout: Duration,
    /// Deadline of a submission that names none, from its arrival.
    pub submission_timeout: Duration,
    /// Time for requests in progress after the server was told to stop.
    pub shutdown_timeout: Duration,
    /// Maximum size of a body, in bytes.
    pub max_content_length: usize,
    /// Maximum size of a file that is uploaded for a job, in bytes.
    pub max_artifact_size: u64,
    /// The parallelism of steps of job files that name none.
    pub default_parallelism: u32,
    /// The maximum parallelism of job files that name none.
    pub max_parallelism: u32,
    /// Whether operators of job files are chained.
    pub operator_chaining: bool,
    /// The names of this process, from its bind and published addresses.
    pub own_hosts: AllowedHosts,
    /// Other names under which the server is reached; pages of these names may make changes.
    pub allowed_hosts: AllowedHosts,
    /// Why no jobs are accepted here; `None` if they are.
    pub refuses_submissions: Option<String>,
}

impl Default for RestServerOptions {
    fn default() -> RestServerOptions {
        RestServerOptions {
            await_leader_timeout: Duration::from_secs(30),
            answer_timeout: Duration::from_secs(30),
            submission_timeout: Duration::from_secs(60),
            shutdown_timeout: Duration::from_secs(1),
            max_content_length: 100 << 20,
            max_artifact_size: 4 << 30,
            default_parallelism: 1,
            max_parallelism: 128,
            operator_chaining: true,
            own_hosts: AllowedHosts::default(),
            allowed_hosts: AllowedHosts::default(),
            refuses_submissions: None,
        }
    }
}

/// Serves until `stop`: then accepts no new connections, answers requests that wait for a leader with 503 and
/// gives the others [`RestServerOptions::shutdown_timeout`].
pub async fn serve(
    listener: Listener,
    view: impl ClusterView,
    options: RestServerOptions,
    stop: CancellationToken,
) {
    let shutdown_timeout = options.shutdown_timeout;
    let largest = options.max_content_length;
    let context = Context {
        view: Arc::new(view),
        peers: Peers::new(),
        options: Arc::new(options),
        uploads: Arc::new(Semaphore::new(UPLOADS_AT_ONCE)),
        stop: stop.clone(),
    };
    let bodies = BodyShare::of_process(listener.port(), largest);
    let router = router(context);
    let serving = http::serve(listener, router, Protocol::Http1, bodies, stop.clone());
    let past_shutdown = async {
        stop.cancelled().await;
        tokio::time::sleep(shutdown_timeout).await;
    };
    tokio::select! {
        () = serving => {}
        () = past_shutdown => tracing::debug!("requests were cut short"),
    }
}

/// All paths, each with `/v1` before it and without; and `/metrics`, where scrapers look for it.
pub(super) fn router(context: Context) -> Router {
    let paths = paths();
    Router::new()
        .nest("/v1", paths.clone())
        .merge(paths)
        .route("/metrics", get(metrics::metrics))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(from_fn_with_state(context.clone(), guard::check))
        .with_state(context)
}

fn paths() -> Router<Context> {
    Router::new()
        .route("/overview", get(cluster::overview))
        .route("/config", get(cluster::ui_config))
        .route("/taskmanagers", get(cluster::task_managers))
        .route("/taskmanagers/metrics", get(aggregates::of_task_managers))
        .route("/taskmanagers/{id}", get(cluster::task_manager))
        .route("/taskmanagers/{id}/drain", post(drains::drain))
        .route("/taskmanagers/{id}/undrain", post(drains::undrain))
        .route("/hosts/{host}/drain", post(drains::drain_host))
        .route("/hosts/{host}/undrain", post(drains::undrain_host))
        .route("/ha/status", get(ha::status))
        .route("/ha/self", get(ha::own_status))
        .route("/ha/history", get(ha::history))
        .route("/ha/leader", get(ha::leader))
        .route("/ha/transfer", post(ha::transfer))
        .route("/ha/time", get(ha::time))
        .route("/healthz", get(cluster::healthz))
        .route("/readyz", get(cluster::readyz))
        .route("/jobs", get(jobs::job_ids).post(submit::submit))
        .route("/jobs/overview", get(jobs::overview))
        .route("/jobs/metrics", get(aggregates::of_jobs))
        .route("/jobs/quarantine", get(jobs::quarantined))
        .route("/jobs/{job}", get(jobs::job).patch(jobs::change))
        .route("/jobs/{job}/stop", post(jobs::stop))
        .route(
            "/jobs/{job}/savepoints/{trigger}",
            get(savepoints::operation),
        )
        .route("/jobs/{job}/status", get(jobs::status))
        .route("/jobs/{job}/plan", get(jobs::plan))
        .route("/jobs/{job}/exceptions", get(jobs::exceptions))
        .route("/jobs/{job}/events", get(jobs::events))
        .route("/jobs/{job}/execution-result", get(jobs::execution_result))
        .route("/jobs/{job}/artifacts/{sha256}", put(upload::upload))
        .route("/jobs/{job}/quarantine", delete(jobs::delete_quarantined))
        .route(
            "/jobs/{job}/quarantine/retry",
            post(jobs::retry_quarantined),
        )
        .route("/jobs/{job}/vertices/{vertex}", get(jobs::vertex))
        .route(
            "/jobs/{job}/vertices/{vertex}/subtasktimes",
            get(jobs::subtask_times),
        )
}

async fn unknown_path(uri: Uri) -> RestError {
    RestError::not_found(format!("there is no path `{}`", uri.path()))
}

async fn unknown_method(method: Method, uri: Uri) -> RestError {
    let text = format!("{method} is not allowed on {}", uri.path());
    RestError::new(StatusCode::METHOD_NOT_ALLOWED, text)
}
