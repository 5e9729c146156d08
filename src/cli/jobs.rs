//! `tanist list`, `tanist info`, `tanist cancel`, `tanist stop`.

use std::fmt::Write as _;

use tanist_proto::id::JobId;
use tanist_proto::v1::JobStatus;

use super::args::{GlobalArgs, OutputFormat};
use super::connect::{Connection, connect};
use super::output::{Table, answer, answer_json, duration, field, say, time_if_known};
use super::tell;
use crate::client::{ClientError, JobClient, JobInfo, JobSummary};
use crate::config::Configuration;
use crate::telemetry::ExitCode;

/// A status as REST names it.
pub(super) fn status_name(status: JobStatus) -> &'static str {
    let name = status.as_str_name();
    name.strip_prefix("JOB_STATUS_").unwrap_or(name)
}

pub(super) async fn list(configuration: &Configuration, global: &GlobalArgs) -> ExitCode {
    let table = async |jobs: &JobClient| Ok(job_table(&jobs.list().await?));
    show(configuration, global, "/v1/jobs/overview", table).await
}

pub(super) async fn info(
    configuration: &Configuration,
    global: &GlobalArgs,
    job: JobId,
) -> ExitCode {
    let text = async |jobs: &JobClient| {
        let info = jobs.info(job).await?;
        let failure = jobs.last_failure(job).await?;
        Ok(job_text(&info, failure.as_deref()))
    };
    show(configuration, global, &format!("/v1/jobs/{job}"), text).await
}

pub(super) async fn cancel(
    configuration: &Configuration,
    global: &GlobalArgs,
    job: JobId,
) -> ExitCode {
    let canceling = async {
        let connection = connect(configuration, &global.address).await?;
        connection.jobs.cancel(job).await?;
        match status_of(&connection, job).await {
            Some(JobStatus::Canceled) => say(format_args!("job {job} is cancelled")),
            _ => say(format_args!("job {job} is being cancelled")),
        }
        Ok(())
    };
    finish(canceling.await)
}

pub(super) async fn stop(
    configuration: &Configuration,
    global: &GlobalArgs,
    job: JobId,
) -> ExitCode {
    let stopping = async {
        let connection = connect(configuration, &global.address).await?;
        connection.jobs.stop(job).await?;
        match status_of(&connection, job).await {
            Some(JobStatus::Finished) => say(format_args!("job {job} has finished")),
            Some(JobStatus::Canceled | JobStatus::Cancelling) => say(format_args!(
                "job {job} is cancelled: none of its tasks had begun, or somebody cancelled it"
            )),
            _ => say(format_args!(
                "job {job} is being stopped: it finishes with what its sources have read"
            )),
        }
        Ok(())
    };
    finish(stopping.await)
}

/// How a job stands after something was asked of it. That it was asked is known: an answer that does not come says nothing else.
async fn status_of(connection: &Connection, job: JobId) -> Option<JobStatus> {
    let info = connection.jobs.info(job).await;
    info.ok().map(|info| info.state)
}

/// Answers with what REST has at a path, or with a text for people that is about the same.
pub(super) async fn show(
    configuration: &Configuration,
    global: &GlobalArgs,
    path: &str,
    text: impl AsyncFnOnce(&JobClient) -> Result<String, ClientError>,
) -> ExitCode {
    let showing = async {
        let connection = connect(configuration, &global.address).await?;
        match global.output {
            OutputFormat::Json => answer_json(&connection.jobs.raw(path).await?),
            OutputFormat::Table => answer(text(&connection.jobs).await?),
        }
        Ok(())
    };
    finish(showing.await)
}

pub(super) fn finish(result: Result<(), ClientError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::Ended,
        Err(error) => tell(&error),
    }
}

fn job_table(jobs: &[JobSummary]) -> String {
    let mut table = Table::new(["JOB", "NAME", "STATUS", "TASKS", "DURATION", ""]);
    for job in jobs {
        table.row([
            job.jid.to_string(),
            job.name.clone(),
            status_name(job.state).to_owned(),
            format!("{}/{}", job.tasks.running, job.tasks.total),
            duration(job.duration),
            [&job.quarantine, &job.cause, &job.not_running]
                .into_iter()
                .flatten()
                .next()
                .and_then(|text| text.lines().next())
                .unwrap_or_default()
                .to_owned(),
        ]);
    }
    table.to_string()
}

fn job_text(job: &JobInfo, failure: Option<&str>) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        field(&mut text, name, value);
    };
    line("Job", &job.jid.to_string());
    line("Name", &job.name);
    line("Status", status_name(job.state));
    if let Some(reason) = &job.quarantine {
        line("Quarantine", reason);
    }
    for hindrance in &job.not_running {
        let mut text = hindrance.text.clone();
        if !hindrance.missing.is_empty() {
            write!(text, " ({})", hindrance.missing.join(", "))
                .expect("writing to a string succeeds");
        }
        if hindrance.until > 0 {
            write!(text, "; until {}", time_if_known(hindrance.until))
                .expect("writing to a string succeeds");
        }
        if hindrance.retry_at > 0 {
            write!(
                text,
                "; tried again at {}",
                time_if_known(hindrance.retry_at)
            )
            .expect("writing to a string succeeds");
        }
        line("Waits", &text);
    }
    line("Duration", &duration(job.duration));
    line("Restarts", &job.restarts.to_string());
    if let Some(what) = job.left_out() {
        line("Left out", &what);
    }
    if let Some(cause) = &job.cause {
        line("Cause", cause);
    }
    let is_told = |failure: &str| job.cause.iter().any(|cause| cause.contains(failure));
    if let Some(failure) = failure.filter(|failure| !is_told(failure)) {
        line("Last failure", failure);
    }
    let mut table = Table::new(["VERTEX", "NAME", "STATUS", "TASKS", "RECORDS IN", "OUT"]);
    for vertex in &job.vertices {
        table.row([
            vertex.id.clone(),
            vertex.name.clone(),
            vertex.status.clone(),
            format!("{}/{}", vertex.tasks.running, vertex.parallelism),
            vertex.metrics.read_records.to_string(),
            vertex.metrics.write_records.to_string(),
        ]);
    }
    if !job.vertices.is_empty() {
        write!(text, "\n{table}").expect("writing to a string succeeds");
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn jobs_are_listed_in_a_table() -> Result<(), serde_json::Error> {
        let tasks = json!({"total": 4, "running": 3, "finished": 0});
        let jobs: Vec<JobSummary> = serde_json::from_value(json!([
            {"jid": "0".repeat(31) + "1", "name": "count", "state": "RUNNING", "start-time": 1,
             "end-time": -1, "duration": 4200, "tasks": tasks},
            {"jid": "0".repeat(31) + "2", "name": "lost", "state": "SUSPENDED", "start-time": -1,
             "end-time": -1, "duration": -1, "tasks": tasks, "quarantine": "its graph can't be read"},
            {"jid": "0".repeat(31) + "3", "name": "bad", "state": "FAILED", "start-time": 1,
             "end-time": 900, "duration": 899, "tasks": tasks, "cause": "it broke (not restarted: ...)\nat length"}
        ]))?;
        let expected = "\
JOB                               NAME   STATUS     TASKS  DURATION
00000000000000000000000000000001  count  RUNNING    3/4    4.2 s
00000000000000000000000000000002  lost   SUSPENDED  3/4    -         its graph can't be read
00000000000000000000000000000003  bad    FAILED     3/4    899 ms    it broke (not restarted: ...)
";
        assert_eq!(job_table(&jobs), expected);
        Ok(())
    }

    #[test]
    fn a_job_is_shown_with_its_vertices_and_last_failure() -> Result<(), serde_json::Error> {
        let vertex = |id: &str, name: &str, read: u64, written: u64| {
            json!({
                "id": id, "name": name, "parallelism": 2, "status": "RUNNING",
                "tasks": {"RUNNING": 2, "FINISHED": 0},
                "metrics": {"read-records": read, "write-records": written, "records-skipped": read / 500}
            })
        };
        let mut info: JobInfo = serde_json::from_value(json!({
            "jid": "0".repeat(31) + "1", "name": "count", "state": "RUNNING", "start-time": 1,
            "end-time": -1, "duration": 61_000, "restarts": 1,
            "vertices": [vertex("b", "lines", 0, 1000), vertex("c", "sums -> out", 1000, 0)]
        }))?;
        let expected = "\
Job          00000000000000000000000000000001
Name         count
Status       RUNNING
Duration     1 min 1 s
Restarts     1
Left out     2 records skipped
Last failure sums (1/2): it broke

VERTEX  NAME         STATUS   TASKS  RECORDS IN  OUT
b       lines        RUNNING  2/2    0           1000
c       sums -> out  RUNNING  2/2    1000        0
";
        assert_eq!(job_text(&info, Some("sums (1/2): it broke")), expected);
        let cause = "sums (1/2): it broke (not restarted: all 2 restarts are used up)";
        info.cause = Some(cause.to_owned());
        let text = job_text(&info, Some("sums (1/2): it broke"));
        assert!(text.contains(&format!("Cause        {cause}\n")), "{text}");
        assert!(!text.contains("Last failure"), "{text}");
        Ok(())
    }
}
