//! `tanist savepoint` and `tanist stop`: standard output has the path of the savepoint alone, for scripts.
//!
//! The store has an accepted request: a signal ends the wait for the savepoint, and not the savepoint.

use std::path::Component;
use std::time::Duration;

use tanist_client::{ClientError, JobClient, SavepointFailure};
use tanist_config::{Configuration, StorageLocation};
use tanist_gateway::savepoints as storage;
use tanist_proto::id::JobId;
use tanist_telemetry::ExitCode;
use tokio::time::Instant;

use super::args::{GlobalArgs, OutputFormat, SavepointArgs, SavepointCommand, StopArgs};
use super::connect::{connect_to_change, reporting};
use super::inspection::Inspection;
use super::jobs;
use super::output::{answer, answer_json, fail, hint, inform};
use super::report_error;
use super::run::interrupted;

/// Time after which it is shown what a savepoint waits for: most are complete by then.
const WAIT_DELAY: Duration = Duration::from_secs(2);
/// Time after which it is shown again, if that has changed: each failed checkpoint may change it.
const WAIT_INTERVAL: Duration = Duration::from_secs(10);

pub(super) async fn stop(
    configuration: &Configuration,
    global: &GlobalArgs,
    args: &StopArgs,
) -> ExitCode {
    let Some(directory) = args.savepoint() else {
        return jobs::stop(configuration, global, args.job).await;
    };
    let wanted = Wanted {
        job: args.job,
        directory,
        is_detached: args.detached,
        stops: true,
    };
    take(configuration, global, &wanted).await
}

pub(super) async fn savepoint(
    configuration: &Configuration,
    global: &GlobalArgs,
    args: &SavepointArgs,
) -> ExitCode {
    match (&args.command, args.job) {
        (Some(SavepointCommand::Inspect { path, verify }), _) => {
            inspect(path, *verify, global.output).await
        }
        (
            Some(SavepointCommand::Dispose {
                path,
                without_cluster,
            }),
            _,
        ) => dispose(configuration, global, path, *without_cluster).await,
        (None, Some(job)) => {
            let wanted = Wanted {
                job,
                directory: args.directory.as_ref(),
                is_detached: args.detached,
                stops: false,
            };
            take(configuration, global, &wanted).await
        }
        (None, None) => {
            fail("no job is named");
            ExitCode::Usage
        }
    }
}

/// A savepoint that is to be taken.
struct Wanted<'a> {
    job: JobId,
    directory: Option<&'a StorageLocation>,
    is_detached: bool,
    stops: bool,
}

impl Wanted<'_> {
    async fn trigger(&self, jobs: &JobClient) -> Result<String, ClientError> {
        let directory = self.directory.map(ToString::to_string);
        let directory = directory.as_deref();
        match self.stops {
            true => jobs.stop_with_savepoint(self.job, directory).await,
            false => jobs.trigger_savepoint(self.job, directory).await,
        }
    }
}

async fn take(configuration: &Configuration, global: &GlobalArgs, wanted: &Wanted<'_>) -> ExitCode {
    let job = wanted.job;
    let connection = match connect_to_change(configuration, &global.address).await {
        Ok(connection) => connection,
        Err(error) => return report_error(&error),
    };
    let jobs = &connection.jobs;
    let trigger = match reporting(jobs.waits(), wanted.trigger(jobs)).await {
        Ok(trigger) => trigger,
        Err(error) => return report_error(&error),
    };
    if wanted.is_detached {
        match global.output {
            OutputFormat::Table => answer(format_args!("{trigger}\n")),
            OutputFormat::Json => answer_json(&serde_json::json!({ "request-id": trigger })),
        }
        return ExitCode::Ended;
    }
    inform(match wanted.stops {
        true => format!("job {job} is being stopped with a savepoint"),
        false => format!("a savepoint of job {job} is being taken"),
    });
    let mut wait = Wait::begin(Instant::now());
    let waiting = jobs.wait_for_savepoint(job, &trigger, |awaited| {
        if let Some(news) = awaited.and_then(|it| wait.news(it, Instant::now())) {
            inform(format_args!("the savepoint waits: {news}"));
        }
    });
    let taken = tokio::select! {
        taken = reporting(jobs.waits(), waiting) => taken,
        code = interrupted() => {
            inform("interrupted: the savepoint is taken all the same");
            hint(format_args!("`tanist checkpoints {job}` shows it"));
            return code;
        }
    };
    match taken {
        Ok(path) => {
            if wanted.stops {
                inform(format_args!("job {job} has finished with a savepoint"));
            }
            match global.output {
                OutputFormat::Table => answer(format_args!("{path}\n")),
                OutputFormat::Json => answer_json(&serde_json::json!({ "location": path })),
            }
            ExitCode::Ended
        }
        Err(SavepointFailure::Client(error)) => report_error(&error),
        Err(SavepointFailure::Failed { reason }) => {
            fail(format_args!(
                "no savepoint of job {job} was taken: {reason}"
            ));
            ExitCode::Unsuccessful
        }
    }
}

/// The notices while a savepoint is waited for.
#[derive(Debug)]
struct Wait {
    /// When something may be shown again.
    next_at: Instant,
    shown: String,
}

impl Wait {
    fn begin(now: Instant) -> Wait {
        Wait {
            next_at: now + WAIT_DELAY,
            shown: String::new(),
        }
    }

    /// The text if it is to be shown: it has changed, and it is time to show something again.
    fn news<'a>(&mut self, awaited: &'a str, now: Instant) -> Option<&'a str> {
        if now < self.next_at || self.shown == awaited {
            return None;
        }
        self.shown = awaited.to_owned();
        self.next_at = now + WAIT_INTERVAL;
        Some(awaited)
    }
}

async fn inspect(path: &str, verifies: bool, output: OutputFormat) -> ExitCode {
    let path = match absolute(path) {
        Ok(path) => path,
        Err(error) => {
            fail(error);
            return ExitCode::Unsuccessful;
        }
    };
    let read = match verifies {
        true => storage::verify(&path).await,
        false => storage::read(&path).await,
    };
    match read {
        Ok(manifest) => {
            let inspection = Inspection::new(&path, &manifest, verifies);
            match output {
                OutputFormat::Table => answer(inspection.text()),
                OutputFormat::Json => answer_json(&inspection.json()),
            }
            ExitCode::Ended
        }
        Err(error) => {
            fail(error);
            ExitCode::Unsuccessful
        }
    }
}

/// The path as it is stored. A relative one starts at the working directory.
fn absolute(path: &str) -> Result<String, String> {
    if path.contains("://") || path.starts_with("file:") {
        let wrong = |wrong| format!("{path:?} {wrong}");
        let location: StorageLocation = path.parse().map_err(wrong)?;
        return Ok(location.to_string());
    }
    let absolute = match std::path::absolute(path) {
        Ok(absolute) => absolute,
        Err(error) => return Err(format!("{path:?} is not a path: {error}")),
    };
    let goes_up = |part: Component<'_>| part == Component::ParentDir;
    match absolute.components().any(goes_up) {
        // Only this host reads the path, so its links are resolved here.
        true => match absolute.canonicalize() {
            Ok(path) => Ok(path.display().to_string()),
            Err(error) => Err(format!("{path:?} can't be read: {error}")),
        },
        false => Ok(absolute.display().to_string()),
    }
}

async fn dispose(
    configuration: &Configuration,
    global: &GlobalArgs,
    path: &StorageLocation,
    without_cluster: bool,
) -> ExitCode {
    let path = path.to_string();
    if without_cluster {
        if let Err(error) = storage::dispose(&path).await {
            fail(error);
            return ExitCode::Unsuccessful;
        }
    } else {
        let disposing = async {
            let connection = connect_to_change(configuration, &global.address).await?;
            reporting(connection.jobs.waits(), connection.cluster.dispose(&path)).await
        };
        match disposing.await {
            Ok(()) => {}
            Err(error) => {
                let code = report_error(&error);
                if code == ExitCode::Unreachable {
                    hint("--without-cluster removes a savepoint that no job needs");
                }
                return code;
            }
        }
    }
    inform(format_args!("the savepoint {path} is removed"));
    ExitCode::Ended
}

#[cfg(test)]
mod tests {
    use std::future::IntoFuture as _;
    use std::sync::Arc;

    use axum::http::StatusCode;
    use axum::routing::{get, post};
    use axum::{Json, Router};
    use clap::Parser as _;
    use parking_lot::Mutex;
    use serde_json::{Value, json};
    use tokio::net::TcpListener;

    use super::*;
    use crate::args::{Cli, Command};

    const JOB: &str = "0123456789abcdef0123456789abcdef";

    #[derive(Clone, Default)]
    struct Cluster {
        /// The bodies of requests, with their paths.
        asked: Arc<Mutex<Vec<(String, Value)>>>,
        /// The statuses of the savepoint. The last one stays.
        statuses: Arc<Mutex<Vec<Value>>>,
    }

    impl Cluster {
        fn with(statuses: impl IntoIterator<Item = Value>) -> Cluster {
            let statuses: Vec<Value> = statuses.into_iter().collect();
            Cluster {
                statuses: Arc::new(Mutex::new(statuses)),
                ..Cluster::default()
            }
        }

        async fn address(&self) -> String {
            let trigger = |path: &'static str| {
                let asked = self.asked.clone();
                post(move |Json(body): Json<Value>| async move {
                    asked.lock().push((path.to_owned(), body.clone()));
                    let trigger = body["triggerId"].clone();
                    (StatusCode::ACCEPTED, Json(json!({"request-id": trigger})))
                })
            };
            let statuses = self.statuses.clone();
            let status = move || async move {
                let mut statuses = statuses.lock();
                let status = statuses[0].clone();
                if statuses.len() > 1 {
                    statuses.remove(0);
                }
                Json(status)
            };
            let disposals = self.asked.clone();
            let dispose = move |Json(body): Json<Value>| async move {
                disposals.lock().push(("dispose".to_owned(), body.clone()));
                match body["savepoint-path"] == "/needed" {
                    true => (
                        StatusCode::CONFLICT,
                        Json(json!({"errors": ["a job needs it"]})),
                    ),
                    false => (StatusCode::OK, Json(json!({"request-id": "7"}))),
                }
            };
            let router = Router::new()
                .route("/v1/jobs/{job}/savepoints", trigger("savepoints"))
                .route("/v1/jobs/{job}/stop", trigger("stop"))
                .route("/v1/jobs/{job}/savepoints/{trigger}", get(status))
                .route("/v1/savepoint-disposal", post(dispose));
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            let address = listener.local_addr().expect("it is bound").to_string();
            tokio::spawn(axum::serve(listener, router).into_future());
            address
        }

        async fn run(&self, arguments: &[&str]) -> ExitCode {
            let address = self.address().await;
            let address = ["--address", address.as_str()];
            let all = ["tanist"].iter().chain(arguments).chain(&address).copied();
            let cli = Cli::try_parse_from(all).expect("a command");
            let configuration = Configuration::defaults();
            match cli.command {
                Command::Stop(args) => stop(&configuration, &cli.global, &args).await,
                Command::Savepoint(args) => savepoint(&configuration, &cli.global, &args).await,
                other => panic!("{other:?}"),
            }
        }

        fn asked(&self) -> Vec<(String, Value)> {
            self.asked.lock().clone()
        }
    }

    fn in_progress() -> Value {
        json!({"status": {"id": "IN_PROGRESS"}})
    }

    fn completed() -> Value {
        json!({"status": {"id": "COMPLETED"}, "operation": {"location": "/savepoints/a"}})
    }

    #[tokio::test]
    async fn a_savepoint_is_waited_for_unless_the_command_is_detached() {
        let cluster = Cluster::with([in_progress(), completed()]);
        let code = cluster.run(&["savepoint", JOB, "/savepoints"]).await;
        assert_eq!(code, ExitCode::Ended);
        assert_eq!(cluster.statuses.lock().len(), 1, "it did not wait");
        let (path, body) = cluster.asked().remove(0);
        assert_eq!(path, "savepoints");
        assert_eq!(body["target-directory"], "/savepoints");
        let trigger = body["triggerId"].as_str().expect("the client chooses it");
        assert_eq!(trigger.len(), 32);

        let cluster = Cluster::with([in_progress(), completed()]);
        let code = cluster.run(&["savepoint", JOB, "--detached"]).await;
        assert_eq!(code, ExitCode::Ended);
        assert_eq!(cluster.statuses.lock().len(), 2, "it waited");
        let (_, body) = cluster.asked().remove(0);
        assert!(body.get("target-directory").is_none(), "{body}");
    }

    #[test]
    fn what_a_savepoint_waits_for_is_shown_after_a_while_and_again_when_it_has_changed() {
        let begin = Instant::now();
        let mut wait = Wait::begin(begin);
        let mut news = |text, seconds| wait.news(text, begin + Duration::from_secs(seconds));
        assert_eq!(news("a does not run", 1), None, "every savepoint waits");
        assert_eq!(news("a does not run", 2), Some("a does not run"));
        assert_eq!(news("a does not run", 60), None, "no news");
        assert_eq!(news("b does not run", 61), Some("b does not run"));
        assert_eq!(news("a does not run", 62), None, "too soon");
        assert_eq!(news("a does not run", 71), Some("a does not run"));
    }

    #[tokio::test]
    async fn a_savepoint_that_fails_is_no_success() {
        let failed = json!({
            "status": {"id": "COMPLETED"},
            "operation": {"failure-cause": {"class": "c", "stack-trace": "no space", "serialized-throwable": ""}}
        });
        let cluster = Cluster::with([failed]);
        let code = cluster.run(&["stop", "--savepoint", JOB]).await;
        assert_eq!(code, ExitCode::Unsuccessful);
        let (path, body) = cluster.asked().remove(0);
        assert_eq!(
            (path.as_str(), &body["drain"]),
            ("stop", &json!(false)),
            "{body}"
        );
    }

    #[tokio::test]
    async fn a_savepoint_is_removed_by_the_cluster_which_knows_who_needs_it() {
        let cluster = Cluster::default();
        let code = cluster
            .run(&["savepoint", "dispose", "/savepoints/a"])
            .await;
        assert_eq!(code, ExitCode::Ended);
        let code = cluster.run(&["savepoint", "dispose", "/needed"]).await;
        assert_eq!(code, ExitCode::Unsuccessful);
        let paths: Vec<Value> = cluster
            .asked()
            .into_iter()
            .map(|(_, body)| body["savepoint-path"].clone())
            .collect();
        assert_eq!(paths, ["/savepoints/a", "/needed"]);
    }

    #[test]
    fn a_relative_path_starts_where_the_command_runs() {
        let here = std::env::current_dir().expect("it runs somewhere");
        let expected = here.join("a").display().to_string();
        assert_eq!(absolute("a"), Ok(expected));
        assert_eq!(absolute("file:///a"), Ok("/a".to_owned()));
        assert_eq!(absolute("s3://b/a/"), Ok("s3://b/a".to_owned()));
        assert!(absolute("hdfs://b/a").is_err());
    }

    #[test]
    fn a_path_that_goes_up_is_the_one_that_it_leads_to_here() {
        let directory = tempfile::tempdir().expect("a directory");
        let here = directory.path().canonicalize().expect("it is there");
        std::fs::create_dir_all(here.join("a/b")).expect("made");
        std::os::unix::fs::symlink(here.join("a/b"), here.join("link")).expect("made");
        let up = here.join("link/../b").display().to_string();
        let expected = here.join("a/b").display().to_string();
        assert_eq!(absolute(&up), Ok(expected));
        let missing = here.join("no/../b").display().to_string();
        let error = absolute(&missing).expect_err("it leads nowhere");
        assert!(error.contains(&missing), "{error}");
    }
}
