//! The HTTP server: the routes from paths to handlers, its options, and its end.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::routing::{delete, get, post, put};
use tanist_config::{AllowedHosts, StateRecoveryOptions};
use tanist_net::http::{self, Protocol};
use tanist_net::{BodyShare, Listener};
use tanist_rest_model::paths;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::ask::Context;
use super::error::RestError;
use super::peers::Peers;
use super::view::ClusterView;
use super::{
    aggregates, checkpoints, cluster, drains, guard, ha, jobs, metrics, savepoints, submit, upload,
};

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
    /// Time for requests in progress after the server was requested to stop.
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
    /// Directory of savepoints whose request names none, an absolute path or a URL.
    pub savepoint_dir: Option<String>,
    /// The state from which the job of a job file begins if its submission names none.
    pub state_recovery: StateRecoveryOptions,
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
            savepoint_dir: None,
            state_recovery: StateRecoveryOptions::default(),
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
    let routes = routes();
    Router::new()
        .nest(paths::VERSION, routes.clone())
        .merge(routes)
        .route("/metrics", get(metrics::metrics))
        .fallback(unknown_path)
        .method_not_allowed_fallback(unknown_method)
        .layer(from_fn_with_state(context.clone(), guard::check))
        .with_state(context)
}

/// Placeholder of a job's id in a path.
const JOB: &str = "{job}";

fn routes() -> Router<Context> {
    let (task_manager, host) = (paths::task_manager("{id}"), paths::host("{host}"));
    Router::new()
        .route("/overview", get(cluster::overview))
        .route("/config", get(cluster::ui_config))
        .route(paths::TASK_MANAGERS, get(cluster::task_managers))
        .route("/taskmanagers/metrics", get(aggregates::of_task_managers))
        .route(&task_manager, get(cluster::task_manager))
        .route(&paths::drain(&task_manager), post(drains::drain))
        .route(&paths::undrain(&task_manager), post(drains::undrain))
        .route(&paths::drain(&host), post(drains::drain_host))
        .route(&paths::undrain(&host), post(drains::undrain_host))
        .route(paths::HA_STATUS, get(ha::status))
        .route(paths::HA_SELF, get(ha::own))
        .route(paths::HA_HISTORY, get(ha::history))
        .route("/ha/leader", get(ha::leader))
        .route(paths::HA_TRANSFER, post(ha::transfer))
        .route(paths::HA_TIME, get(ha::time))
        .route("/healthz", get(cluster::healthz))
        .route("/readyz", get(cluster::readyz))
        .route(paths::JOBS, get(jobs::job_ids).post(submit::submit))
        .route(paths::JOBS_OVERVIEW, get(jobs::overview))
        .route("/jobs/metrics", get(aggregates::of_jobs))
        .route(paths::QUARANTINED_JOBS, get(jobs::quarantined))
        .route(&paths::job(JOB), get(jobs::job).patch(jobs::change))
        .route(&paths::job_stop(JOB), post(savepoints::stop))
        .route(&paths::job_savepoints(JOB), post(savepoints::take))
        .route(
            &paths::job_savepoint(JOB, "{trigger}"),
            get(savepoints::status),
        )
        .route(paths::SAVEPOINT_DISPOSAL, post(savepoints::dispose))
        .route(
            &paths::savepoint_disposal("{trigger}"),
            get(savepoints::disposal),
        )
        .route(&paths::job_status(JOB), get(jobs::status))
        .route("/jobs/{job}/plan", get(jobs::plan))
        .route(&paths::job_exceptions(JOB), get(jobs::exceptions))
        .route(&paths::job_events(JOB), get(jobs::events))
        .route(
            &paths::job_checkpoints(JOB),
            get(checkpoints::statistics).post(checkpoints::trigger),
        )
        .route("/jobs/{job}/checkpoints/config", get(checkpoints::config))
        .route(
            "/jobs/{job}/checkpoints/details/{number}",
            get(checkpoints::checkpoint),
        )
        .route(
            "/jobs/{job}/checkpoints/details/{number}/subtasks/{vertex}",
            get(checkpoints::vertex),
        )
        .route("/jobs/{job}/execution-result", get(jobs::execution_result))
        .route(&paths::artifact(JOB, "{sha256}"), put(upload::upload))
        .route(
            &paths::job_quarantine(JOB),
            delete(jobs::delete_quarantined),
        )
        .route(
            &paths::job_quarantine_retry(JOB),
            post(jobs::retry_quarantined),
        )
        .route(&paths::vertex(JOB, "{vertex}"), get(jobs::vertex))
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
