//! `tanist run`: compiles a job file, submits it and waits for its end.

use tanist_proto::id::JobId;
use tanist_proto::v1::{JobGraph, JobStatus};
use tokio::sync::watch;

use super::args::{JobArgs, OutputFormat, RunArgs};
use super::connect::connect;
use super::jobs::status_name;
use super::output::{answer, answer_json, duration, say};
use super::progress::Progress;
use super::tell;
use crate::client::{ClientError, Job, JobClient, JobInfo};
use crate::config::Configuration;
use crate::telemetry::ExitCode;

pub(super) async fn run(
    configuration: &Configuration,
    addresses: &[String],
    args: &RunArgs,
    output: OutputFormat,
) -> ExitCode {
    let graph = match compile_job(configuration, &args.job, args.job_id, Files::Uploaded) {
        Ok(graph) => graph,
        Err(error) => {
            say(error);
            return ExitCode::InvalidJob;
        }
    };
    let connection = match connect(configuration, addresses).await {
        Ok(connection) => connection,
        Err(error) => return tell(&error),
    };
    let submitting = connection.cluster.submit(&graph, args.job_id.is_some());
    match telling(connection.jobs.waits(), submitting).await {
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
                "was accepted before and is followed from here on"
            } else {
                "is accepted"
            };
            say(format_args!("job {} {accepted}", execution.id()));
            attend(&connection.jobs, execution.id(), output).await
        }
        Err(error) => {
            if matches!(error, ClientError::Unreachable { .. }) {
                let job = &graph.job_id;
                say(format_args!(
                    "job {job} may have been accepted all the same: `tanist info {job}` shows whether it was"
                ));
            }
            tell(&error)
        }
    }
}

/// Says what it waits for while it submits.
async fn telling<T>(
    mut waits: watch::Receiver<Option<String>>,
    submitting: impl Future<Output = T>,
) -> T {
    let tell = async {
        while waits.changed().await.is_ok() {
            if let Some(reason) = &*waits.borrow_and_update() {
                say(format_args!("waits: {reason}"));
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        submitted = submitting => submitted,
        never = tell => never,
    }
}

/// How a job's files reach the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Files {
    /// Large ones by themselves, before the job.
    Uploaded,
    /// All within its graph.
    InGraph,
}

/// Reads and compiles a job file. The error has everything that is wrong with it.
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
    job.compile(configuration)
        .map_err(|error| error.to_string())
}

/// Waits for the end of a job and says how it goes. A signal ends the waiting, not the job.
async fn attend(client: &JobClient, job: JobId, output: OutputFormat) -> ExitCode {
    let mut progress = Progress::new();
    let ended = tokio::select! {
        ended = client.wait_for_end(job, |info| progress.update(info)) => Some(ended),
        () = interrupted() => None,
    };
    progress.end();
    match ended {
        Some(Ok(info)) => {
            let code = tell_end(client, &info).await;
            if info.quarantine.is_some() {
                say(format_args!(
                    "it has not ended: `tanist job quarantine retry {job}` leads it again, \
                     `tanist job quarantine delete {job}` cancels it"
                ));
            }
            show_end(client, job, output, code).await
        }
        Some(Err(error)) => {
            say(format_args!("job {job} is no longer followed:"));
            tell(&error)
        }
        None => {
            say(format_args!(
                "job {job} goes on: `tanist info {job}` shows it, `tanist cancel {job}` cancels it"
            ));
            ExitCode::Interrupted
        }
    }
}

/// Gives the job as it stands at its end to whoever wants that as JSON. The code with which the command ends: where a job that
/// FINISHED can't be told about any more, that answer is missing.
pub(super) async fn show_end(
    client: &JobClient,
    job: JobId,
    output: OutputFormat,
    code: ExitCode,
) -> ExitCode {
    match output {
        OutputFormat::Table => code,
        OutputFormat::Json => match client.raw(&format!("/v1/jobs/{job}")).await {
            Ok(end) => {
                answer_json(&end);
                code
            }
            Err(error) => {
                say(format_args!(
                    "job {job} can't be shown as it stands at its end:"
                ));
                say(error);
                match code {
                    ExitCode::Ended => ExitCode::Unsuccessful,
                    code => code,
                }
            }
        },
    }
}

/// Completes when this process is asked to end.
pub(super) async fn interrupted() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        // Without handlers a signal ends this process by itself.
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => (),
        _ = terminate.recv() => (),
    }
}

/// What following a job to this point ends with.
fn code_of(job: &JobInfo) -> ExitCode {
    if job.quarantine.is_some() {
        // Its tasks run on, and it may yet finish: whoever took that for a failure would run it twice.
        return ExitCode::Interrupted;
    }
    match job.state {
        JobStatus::Finished => ExitCode::Ended,
        JobStatus::Canceled => ExitCode::JobCanceled,
        JobStatus::Failed
        | JobStatus::Initializing
        | JobStatus::Created
        | JobStatus::Running
        | JobStatus::Failing
        | JobStatus::Cancelling
        | JobStatus::Restarting
        | JobStatus::Suspended
        | JobStatus::Reconciling => ExitCode::JobFailed,
    }
}

/// Says how a job ended, and gives the code for it.
pub(super) async fn tell_end(client: &JobClient, job: &JobInfo) -> ExitCode {
    let (id, took, code) = (job.jid, duration(job.duration), code_of(job));
    if let Some(reason) = &job.quarantine {
        say(format_args!("job {id} is quarantined: {reason}"));
        return code;
    }
    let left_out = job.left_out();
    let left_out = left_out.map_or_else(String::new, |what| format!(": {what}"));
    say(format_args!(
        "job {id} {} after {took}{left_out}",
        status_name(job.state)
    ));
    if code == ExitCode::JobFailed {
        let cause = match job.cause.clone() {
            Some(cause) => Some(cause),
            None => client.last_failure(id).await.ok().flatten(),
        };
        if let Some(cause) = cause {
            say(cause);
        }
    }
    code
}

#[cfg(test)]
mod tests {
    use std::future::IntoFuture as _;
    use std::sync::{Arc, Mutex};

    use axum::http::StatusCode;
    use axum::routing::get;
    use axum::{Json, Router};
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;
    use crate::client::{RestClient, RetryOptions, StaticAddresses};

    #[test]
    fn a_job_that_is_quarantined_has_not_failed() -> Result<(), serde_json::Error> {
        let mut job: JobInfo = serde_json::from_value(json!({
            "jid": "0".repeat(32), "name": "count", "state": "FAILED", "start-time": 1,
            "end-time": -1, "duration": 200, "vertices": []
        }))?;
        assert_eq!(code_of(&job), ExitCode::JobFailed);
        job.state = JobStatus::Suspended;
        job.quarantine = Some("its graph can't be read".to_owned());
        assert_eq!(code_of(&job), ExitCode::Interrupted);
        Ok(())
    }

    /// A client of a cluster that tells once that the job FINISHED, and knows nothing of it afterwards.
    async fn of_a_forgetful_cluster() -> JobClient {
        let finished = json!({
            "jid": "0".repeat(32), "name": "count", "state": "FINISHED", "start-time": 1,
            "end-time": 201, "duration": 200, "vertices": []
        });
        let told = Arc::new(Mutex::new(Some(finished)));
        let tell = async move || match told.lock().expect("nothing panics holding it").take() {
            Some(finished) => (StatusCode::OK, Json(finished)),
            None => (
                StatusCode::NOT_FOUND,
                Json(json!({"errors": ["no such job"]})),
            ),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("it is bound").to_string();
        let router = Router::new().route("/v1/jobs/{job}", get(tell));
        tokio::spawn(axum::serve(listener, router).into_future());
        let addresses = Arc::new(StaticAddresses(vec![address]));
        JobClient::new(RestClient::new(addresses, RetryOptions::default()))
    }

    #[tokio::test]
    async fn whoever_wants_the_end_as_json_and_gets_none_is_not_told_that_all_went_well() {
        for (output, code) in [
            (OutputFormat::Json, ExitCode::Unsuccessful),
            (OutputFormat::Table, ExitCode::Ended),
        ] {
            let client = of_a_forgetful_cluster().await;
            let ended = attend(&client, JobId::from_bits(0), output).await;
            assert_eq!(ended, code, "{output:?}");
        }
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
