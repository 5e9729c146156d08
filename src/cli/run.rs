//! `tanist run`: compiles a job file, submits it and waits for its end.
//!
//! The job has its id before it is sent. If this command ends before it has an answer, for any reason, it
//! says whether a JobManager may have received the job, and under which id.

use std::pin::pin;

use tanist_client::{ClientError, Job, JobClient, JobInfo, Restore};
use tanist_config::{Configuration, Source};
use tanist_proto::JobEnd;
use tanist_proto::id::JobId;
use tanist_proto::v1::JobGraph;
use tanist_rest_model::{job_status_name, paths};
use tanist_telemetry::ExitCode;
use tokio::sync::watch;

use super::args::{JobArgs, OutputFormat, RestoreArgs, RunArgs};
use super::connect::{connect_reporting, reporting};
use super::output::{answer, answer_json, duration, fail, hint, inform, warn};
use super::progress::Progress;
use super::{report_error, report_failure};

pub(super) async fn run(
    configuration: &Configuration,
    addresses: &[String],
    args: &RunArgs,
    output: OutputFormat,
) -> ExitCode {
    let running = run_until(interrupted(), configuration, addresses, args, output);
    Box::pin(running).await
}

async fn run_until(
    interrupted: impl Future<Output = ExitCode>,
    configuration: &Configuration,
    addresses: &[String],
    args: &RunArgs,
    output: OutputFormat,
) -> ExitCode {
    let graph = match compile_job(configuration, &args.job, args.job_id, Files::Uploaded) {
        Ok(graph) => graph,
        Err(error) => {
            fail(error);
            return ExitCode::InvalidJob;
        }
    };
    let restore = match restore_of(configuration, &args.restore) {
        Ok(restore) => restore,
        Err(error) => {
            fail(error);
            return ExitCode::Usage;
        }
    };
    for warning in settings_of_job_managers(configuration) {
        warn(warning);
    }
    let job = &graph.job_id;
    let mut interrupted = pin!(interrupted);
    let waits = watch::Sender::new(None);
    let connecting = connect_reporting(configuration, addresses, &waits);
    let connected = tokio::select! {
        connected = reporting(waits.subscribe(), connecting) => connected,
        code = &mut interrupted => {
            inform(format_args!("interrupted: {}", without_answer(job, false)));
            return code;
        }
    };
    let connection = match connected {
        Ok(connection) => connection,
        Err(error) => {
            let code = report_error(&error);
            inform(without_answer(job, false));
            return code;
        }
    };
    let is_chosen = args.job_id.is_some();
    let submitting = connection
        .cluster
        .submit_from(&graph, is_chosen, restore.as_ref());
    let submitted = tokio::select! {
        submitted = reporting(connection.jobs.waits(), submitting) => submitted,
        code = &mut interrupted => {
            let left = without_answer(job, connection.jobs.may_have_submitted());
            inform(format_args!("interrupted: {left}"));
            return code;
        }
    };
    match submitted {
        Ok(execution) if args.detached => {
            let id = execution.id();
            match output {
                OutputFormat::Table => answer(format_args!("{id}\n")),
                OutputFormat::Json => answer_json(&serde_json::json!({ "jobid": id.to_string() })),
            }
            ExitCode::Ended
        }
        Ok(execution) => {
            let accepted = if execution.was_accepted_before() {
                "was accepted before: waiting for its end"
            } else {
                "is accepted"
            };
            inform(format_args!("job {} {accepted}", execution.id()));
            follow_job(&connection.jobs, execution.id(), output, interrupted).await
        }
        Err(error) => {
            let code = report_error(&error);
            if matches!(error, ClientError::Unreachable { .. }) {
                inform(without_answer(job, connection.jobs.may_have_submitted()));
            }
            code
        }
    }
}

/// The advice for a job whose submission has no answer.
fn without_answer(job: &str, is_sent: bool) -> String {
    if is_sent {
        format!(
            "job {job} may have been accepted: `tanist info {job}` shows whether it was, `tanist cancel {job}` cancels it"
        )
    } else {
        "nothing was submitted".to_owned()
    }
}

/// How a job's files reach the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Files {
    /// Large files are uploaded separately, before the job.
    Uploaded,
    /// All files are part of the graph.
    InGraph,
}

/// Reads and compiles a job file. The error contains all problems of the file.
pub(super) fn compile_job(
    configuration: &Configuration,
    args: &JobArgs,
    job_id: Option<JobId>,
    files: Files,
) -> Result<JobGraph, String> {
    let unreadable = |error| {
        let name = args.file.display();
        format!("the job file {name} can't be read: {error}")
    };
    let mut job = Job::read(&args.file).map_err(unreadable)?;
    for (name, value) in &args.parameters {
        job = job.with_parameter(name, value);
    }
    if let Some(parallelism) = args.parallelism {
        job = job.with_parallelism(parallelism);
    }
    if let Some(id) = job_id {
        job = job.with_id(id);
    }
    if files == Files::InGraph {
        job = job.with_all_files_in_its_graph();
    }
    let graph = job
        .compile(configuration)
        .map_err(|error| error.to_string())?;
    for warning in tanist_compile::warnings(&graph) {
        warn(warning);
    }
    Ok(graph)
}

/// Sections of a job file, with the prefix of the settings that JobManagers have for jobs without the section.
const SECTIONS: [(&str, &str); 2] = [
    ("execution.checkpointing.", "checkpoints"),
    ("restart-strategy.", "restart-strategy"),
];

/// The warnings about settings of this command that only JobManagers read.
fn settings_of_job_managers(configuration: &Configuration) -> Vec<String> {
    let settings = configuration.explicit_settings().into_iter();
    let settings = settings.filter(|it| it.source == Source::Flag);
    let warnings = settings.filter_map(|it| {
        let mut sections = SECTIONS.iter();
        let (_, section) = sections.find(|(prefix, _)| it.key.starts_with(prefix))?;
        Some(format!(
            "`-D {}` does not apply to the job, as JobManagers read it: write `{section}` into the job file",
            it.key
        ))
    });
    warnings.collect()
}

/// The savepoint or checkpoint that the job begins from: that of the arguments, else the configured one; `None`: from
/// the start.
pub(super) fn restore_of(
    configuration: &Configuration,
    args: &RestoreArgs,
) -> Result<Option<Restore>, &'static str> {
    let restore = match &args.from_savepoint {
        // The configured claim mode belongs to the configured path.
        Some(from) => Some(Restore::new(from.clone())),
        None => Restore::configured(configuration),
    };
    let restore = restore.map(|restore| match args.claim_mode {
        Some(claim_mode) => restore.with_claim_mode(claim_mode),
        None => restore,
    });
    match restore {
        Some(restore) => {
            let is_allowed = args.allow_non_restored_state || restore.allows_non_restored_state();
            Ok(Some(restore.allowing_non_restored_state(is_allowed)))
        }
        None if args.allow_non_restored_state => Err(
            "--allow-non-restored-state is for a job that begins from a savepoint: add --from-savepoint",
        ),
        None if args.claim_mode.is_some() => Err(
            "--claim-mode is for a job that begins from what another one left: add --from-savepoint",
        ),
        None => Ok(None),
    }
}

/// Waits for the end of a job and shows its progress. A signal ends the waiting, not the job.
async fn follow_job(
    client: &JobClient,
    job: JobId,
    output: OutputFormat,
    interrupted: impl Future<Output = ExitCode>,
) -> ExitCode {
    let mut progress = Progress::new();
    let ended = tokio::select! {
        ended = client.wait_for_end(job, |info| progress.update(info)) => Ok(ended),
        code = interrupted => Err(code),
    };
    progress.end();
    match ended {
        Ok(Ok(info)) => {
            let code = report_end(client, &info).await;
            if info.quarantine.is_some() {
                inform("it has not ended");
                hint(format_args!(
                    "`tanist job quarantine retry {job}` leads it again, \
                     `tanist job quarantine delete {job}` cancels it"
                ));
            }
            show_end(client, job, output, code).await
        }
        Ok(Err(error)) => report_failure(format_args!("stopped waiting for job {job}"), &error),
        Err(code) => {
            inform(format_args!(
                "job {job} continues: `tanist info {job}` shows it, `tanist cancel {job}` cancels it"
            ));
            code
        }
    }
}

/// Shows the final state of the job if JSON output was requested. Returns the exit code of the command: if a
/// job FINISHED but can't be read any more, that answer is missing.
pub(super) async fn show_end(
    client: &JobClient,
    job: JobId,
    output: OutputFormat,
    code: ExitCode,
) -> ExitCode {
    match output {
        OutputFormat::Table => code,
        OutputFormat::Json => match client.raw(&paths::job(job)).await {
            Ok(end) => {
                answer_json(&end);
                code
            }
            Err(error) => {
                let what = format_args!("the final state of job {job} can't be shown");
                report_failure(what, &error);
                match code {
                    ExitCode::Ended => ExitCode::Unsuccessful,
                    code => code,
                }
            }
        },
    }
}

/// Completes when this process is asked to end, with the exit code of the signal.
pub(super) async fn interrupted() -> ExitCode {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        // Without handlers a signal ends this process by itself.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => ExitCode::Interrupted,
        _ = terminate.recv() => ExitCode::Terminated,
    }
}

/// The exit code for a job that was followed to this state.
fn code_of(job: &JobInfo) -> ExitCode {
    if job.quarantine.is_some() {
        // Its tasks continue, and it may still finish: a caller who took this for a failure would run the job twice.
        return ExitCode::Quarantined;
    }
    match job.state.end() {
        Some(JobEnd::Finished) => ExitCode::Ended,
        Some(JobEnd::Canceled) => ExitCode::JobCanceled,
        Some(JobEnd::Failed) | None => ExitCode::JobFailed,
    }
}

/// Shows how a job ended, and returns the exit code for it.
pub(super) async fn report_end(client: &JobClient, job: &JobInfo) -> ExitCode {
    let (id, took, code) = (job.jid, duration(job.duration), code_of(job));
    if let Some(reason) = &job.quarantine {
        inform(format_args!("job {id} is quarantined: {reason}"));
        return code;
    }
    let left_out = job.left_out();
    let left_out = left_out.map_or_else(String::new, |what| format!(": {what}"));
    inform(format_args!(
        "job {id} {} after {took}{left_out}",
        job_status_name(job.state)
    ));
    if code == ExitCode::JobFailed {
        let cause = match job.cause.clone() {
            Some(cause) => Some(cause),
            None => client.last_failure(id).await.ok().flatten(),
        };
        if let Some(cause) = cause {
            inform(cause);
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use std::future::IntoFuture as _;
    use std::sync::Arc;
    use std::time::Duration;

    use axum::http::StatusCode;
    use axum::routing::{get, post};
    use axum::{Json, Router};
    use clap::Parser as _;
    use parking_lot::Mutex;
    use serde_json::json;
    use tanist_config::ClaimMode;
    use tanist_proto::v1::{JobStatus, RecoveryClaimMode};
    use tokio::net::TcpListener;

    use super::*;
    use crate::args::{Cli, Command};
    use tanist_client::{RestClient, RetryOptions, StaticAddresses};

    #[test]
    fn a_job_that_is_quarantined_has_not_failed() -> Result<(), serde_json::Error> {
        let mut job: JobInfo = serde_json::from_value(json!({
            "jid": "0".repeat(32), "name": "count", "state": "FAILED", "start-time": 1,
            "end-time": -1, "duration": 200, "vertices": []
        }))?;
        assert_eq!(code_of(&job), ExitCode::JobFailed);
        job.state = JobStatus::Suspended;
        job.quarantine = Some("its graph can't be read".to_owned());
        assert_eq!(code_of(&job), ExitCode::Quarantined);
        Ok(())
    }

    async fn serving(router: Router) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        tokio::spawn(axum::serve(listener, router).into_future());
        address
    }

    #[tokio::test]
    async fn an_interrupted_submission_says_that_it_may_have_been_accepted() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("job.yaml");
        let steps = "[{datagen: {count: 1}}, {discard: {}}]";
        std::fs::write(&file, format!("version: 1\nname: a\nsteps: {steps}\n")).expect("written");
        let file = file.to_string_lossy().into_owned();
        let cli = Cli::try_parse_from(["tanist", "run", &file]).expect("a command");
        let Command::Run(args) = cli.command else {
            panic!("it is `run`")
        };
        let (sent, mut is_sent) = watch::channel(false);
        let time = || async { Json(json!({"epoch": 1, "now": 1, "longest": 1_000})) };
        let hang = move || {
            sent.send_replace(true);
            std::future::pending::<StatusCode>()
        };
        let router = Router::new()
            .route("/v1/ha/time", get(time))
            .route("/v1/jobs", post(hang));
        let addresses = [serving(router).await];
        let interrupted = async move {
            let reached = is_sent.wait_for(|sent| *sent).await.map(drop);
            reached.expect("the server lives");
            ExitCode::Interrupted
        };
        let configuration = Configuration::defaults();
        let table = OutputFormat::Table;
        let running = run_until(interrupted, &configuration, &addresses, &args, table);
        let code = tokio::time::timeout(Duration::from_secs(30), Box::pin(running)).await;
        assert_eq!(code, Ok(ExitCode::Interrupted));
        let shown = without_answer("7", true);
        assert!(shown.contains("may have been accepted"), "{shown}");
        assert!(shown.contains("tanist cancel 7"), "{shown}");
    }

    /// A client of a cluster that reports once that the job FINISHED, and answers nothing about it afterwards.
    async fn of_a_forgetful_cluster() -> JobClient {
        let finished = json!({
            "jid": "0".repeat(32), "name": "count", "state": "FINISHED", "start-time": 1,
            "end-time": 201, "duration": 200, "vertices": []
        });
        let shown = Arc::new(Mutex::new(Some(finished)));
        let tell = async move || match shown.lock().take() {
            Some(finished) => (StatusCode::OK, Json(finished)),
            None => (
                StatusCode::NOT_FOUND,
                Json(json!({"errors": ["no such job"]})),
            ),
        };
        let address = serving(Router::new().route("/v1/jobs/{job}", get(tell))).await;
        let addresses = Arc::new(StaticAddresses(vec![address]));
        JobClient::new(RestClient::new(addresses, RetryOptions::default()))
    }

    #[tokio::test]
    async fn an_end_that_can_not_be_shown_as_json_is_no_success() {
        for (output, code) in [
            (OutputFormat::Json, ExitCode::Unsuccessful),
            (OutputFormat::Table, ExitCode::Ended),
        ] {
            let client = of_a_forgetful_cluster().await;
            let never = std::future::pending();
            let ended = follow_job(&client, JobId::from_bits(0), output, never).await;
            assert_eq!(ended, code, "{output:?}");
        }
    }

    #[test]
    fn a_job_begins_as_its_arguments_say_or_else_as_the_configuration_says() {
        let of = |settings: &[(&str, &str)], args: &RestoreArgs| {
            let mut load = tanist_config::LoadOptions::default();
            for (key, value) in settings {
                load = load.with(key, value);
            }
            let configuration = Configuration::load(load).expect("it is valid");
            let restore = restore_of(&configuration, args)?;
            Ok::<_, &str>(restore.map(|it| (it.from().to_string(), it.allows_non_restored_state())))
        };
        let named = |path: &str, is_allowed| RestoreArgs {
            from_savepoint: Some(path.parse().expect("a path")),
            allow_non_restored_state: is_allowed,
            ..RestoreArgs::default()
        };
        let allowed = RestoreArgs {
            allow_non_restored_state: true,
            ..RestoreArgs::default()
        };
        let some = |path: &str, is_allowed| Ok(Some((path.to_owned(), is_allowed)));
        let configured = [("execution.state-recovery.path", "/b")];
        let claimed = RestoreArgs {
            claim_mode: Some(ClaimMode::Claim),
            ..RestoreArgs::default()
        };
        assert!(of(&[], &claimed).is_err_and(|error| error.contains("--from-savepoint")));
        assert_eq!(of(&[], &RestoreArgs::default()), Ok(None));
        assert_eq!(of(&[], &named("/a", false)), some("/a", false));
        assert_eq!(of(&configured, &named("/a", true)), some("/a", true));
        assert_eq!(of(&configured, &allowed), some("/b", true));
        assert_eq!(of(&configured, &RestoreArgs::default()), some("/b", false));
        let claim_mode = |settings: &[(&str, &str)], named: RestoreArgs, claim_mode| {
            let mut load = tanist_config::LoadOptions::default();
            for (key, value) in settings {
                load = load.with(key, value);
            }
            let configuration = Configuration::load(load).expect("it is valid");
            let args = RestoreArgs {
                claim_mode,
                ..named
            };
            let restore = restore_of(&configuration, &args).expect("a restore");
            restore.map(|it| it.request().claim_mode())
        };
        let here = || named("/a", false);
        let claim = [
            ("execution.state-recovery.path", "/b"),
            ("execution.state-recovery.claim-mode", "CLAIM"),
        ];
        let [kept, claimed] = [
            Some(RecoveryClaimMode::NoClaim),
            Some(RecoveryClaimMode::Claim),
        ];
        assert_eq!(claim_mode(&[], here(), None), kept);
        assert_eq!(claim_mode(&[], here(), Some(ClaimMode::Claim)), claimed);
        // The configured claim mode belongs to the configured path.
        assert_eq!(claim_mode(&claim, here(), None), kept);
        let nowhere = RestoreArgs::default;
        assert_eq!(claim_mode(&claim, nowhere(), None), claimed);
        assert_eq!(
            claim_mode(&claim, nowhere(), Some(ClaimMode::NoClaim)),
            kept
        );
        let error = of(&[], &allowed).expect_err("there is nothing to leave out");
        assert!(error.contains("--from-savepoint"), "{error}");
    }

    #[test]
    fn settings_that_only_job_managers_read_are_named() {
        let load = tanist_config::LoadOptions::default()
            .with("execution.checkpointing.interval", "1 s")
            .with("execution.state-recovery.path", "/a")
            .with("parallelism.default", "2");
        let configuration = Configuration::load(load).expect("it is valid");
        let warnings = settings_of_job_managers(&configuration);
        assert_eq!(
            warnings,
            [
                "`-D execution.checkpointing.interval` does not apply to the job, as JobManagers read it: write \
                 `checkpoints` into the job file"
            ]
        );
        let none = settings_of_job_managers(&Configuration::defaults());
        assert_eq!(none, [""; 0]);
    }

    #[test]
    fn a_job_file_that_is_not_there_is_named() {
        let args = JobArgs {
            file: "/nowhere/job.yaml".into(),
            parameters: Vec::new(),
            parallelism: None,
        };
        let error = compile_job(&Configuration::defaults(), &args, None, Files::InGraph)
            .expect_err("no file");
        assert!(error.contains("/nowhere/job.yaml"), "{error}");
    }
}
