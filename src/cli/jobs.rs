//! `tanist list`, `tanist info`, `tanist cancel`, and `tanist stop` without a savepoint. Other commands that show
//! something use [`show`] and [`finish`].

use std::cmp::Reverse;
use std::fmt::Write as _;

use tanist_client::{
    BlockedReason, CheckpointInProgress, ClientError, JobCheckpoints, JobClient, JobInfo,
    JobSummary,
};
use tanist_config::Configuration;
use tanist_ha::clock::wall_clock_ms;
use tanist_proto::id::JobId;
use tanist_proto::v1::JobStatus;
use tanist_rest_model::{Word, job_status_name, paths};
use tanist_telemetry::ExitCode;

use super::args::{GlobalArgs, ListArgs, OutputFormat};
use super::checkpoints::{failing, skipped, storage};
use super::connect::{Connection, connect, connect_to_change, reporting};
use super::output::{Table, answer, answer_json, duration, field, inform, time_if_known};
use super::report_error;

/// The kind of the reason why a quarantined job does not run.
const QUARANTINED: &str = "quarantined";

/// The state as shown to users.
pub(super) fn shown_name(shown: Option<&Word>, status: JobStatus) -> &str {
    shown.map_or(job_status_name(status), |shown| shown)
}

pub(super) async fn list(
    configuration: &Configuration,
    global: &GlobalArgs,
    args: &ListArgs,
) -> ExitCode {
    let listing = async {
        let connection = connect(configuration, &global.address).await?;
        let all = reporting(connection.jobs.waits(), connection.jobs.list()).await?;
        let (jobs, left_out) = chosen(all, args);
        match global.output {
            OutputFormat::Json => answer_json(&serde_json::json!({ "jobs": jobs })),
            OutputFormat::Table => answer(job_table(&jobs, wall_clock_ms())),
        }
        if left_out > 0 {
            inform(format_args!("{left_out} older jobs are left out"));
        }
        Ok(())
    };
    finish(listing.await)
}

/// The jobs that match the arguments, newest first, and how many more match.
fn chosen(mut jobs: Vec<JobSummary>, args: &ListArgs) -> (Vec<JobSummary>, usize) {
    jobs.retain(|job| {
        let state = shown_name(job.shown_state.as_ref(), job.state);
        args.state.is_empty() || args.state.iter().any(|wanted| wanted == state)
    });
    jobs.sort_by_key(|job| (Reverse(job.start_time), job.jid));
    let left_out = jobs.len().saturating_sub(args.limit.unwrap_or(usize::MAX));
    jobs.truncate(jobs.len() - left_out);
    (jobs, left_out)
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
    show(configuration, global, &paths::job(job), text).await
}

pub(super) async fn cancel(
    configuration: &Configuration,
    global: &GlobalArgs,
    job: JobId,
) -> ExitCode {
    let canceling = async {
        let connection = connect_to_change(configuration, &global.address).await?;
        reporting(connection.jobs.waits(), connection.jobs.cancel(job)).await?;
        match status_of(&connection, job).await {
            Some(JobStatus::Canceled) => inform(format_args!("job {job} is cancelled")),
            _ => inform(format_args!("job {job} is being cancelled")),
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
        let connection = connect_to_change(configuration, &global.address).await?;
        reporting(connection.jobs.waits(), connection.jobs.stop(job)).await?;
        match status_of(&connection, job).await {
            Some(JobStatus::Finished) => inform(format_args!("job {job} has finished")),
            Some(JobStatus::Canceled | JobStatus::Cancelling) => inform(format_args!(
                "job {job} is cancelled: none of its tasks had started, or another request cancelled it"
            )),
            _ => inform(format_args!(
                "job {job} is being stopped: it finishes with what its sources have read"
            )),
        }
        Ok(())
    };
    finish(stopping.await)
}

/// The status of a job after a request about it. The request itself has succeeded, so a missing answer is not an error.
async fn status_of(connection: &Connection, job: JobId) -> Option<JobStatus> {
    let info = connection.jobs.info(job).await;
    info.ok().map(|info| info.state)
}

/// Answers with the JSON of a REST path, or with a text for people of about the same content.
pub(super) async fn show(
    configuration: &Configuration,
    global: &GlobalArgs,
    path: &str,
    text: impl AsyncFnOnce(&JobClient) -> Result<String, ClientError>,
) -> ExitCode {
    let showing = async {
        let connection = connect(configuration, &global.address).await?;
        let waits = connection.jobs.waits();
        match global.output {
            OutputFormat::Json => {
                answer_json(&reporting(waits, connection.jobs.raw(path)).await?);
            }
            OutputFormat::Table => answer(reporting(waits, text(&connection.jobs)).await?),
        }
        Ok(())
    };
    finish(showing.await)
}

pub(super) fn finish(result: Result<(), ClientError>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::Ended,
        Err(error) => report_error(&error),
    }
}

/// Lists jobs in the given order. TASKS: running and finished tasks, of all tasks.
fn job_table(jobs: &[JobSummary], now: u64) -> String {
    let mut table = Table::new(["JOB", "NAME", "STATUS", "TASKS", "AGE", "DURATION", ""]);
    for job in jobs {
        let tasks = job.tasks.running + job.tasks.finished;
        let submitted = u64::try_from(job.start_time).ok();
        let age = submitted.and_then(|at| i64::try_from(now.saturating_sub(at)).ok());
        table.row([
            job.jid.to_string(),
            job.name.clone(),
            shown_name(job.shown_state.as_ref(), job.state).to_owned(),
            format!("{tasks}/{}", job.tasks.total),
            duration(age.unwrap_or(-1)),
            duration(job.duration),
            [&job.quarantine, &job.cause, &job.blocked_by]
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
    line("Status", shown_name(job.shown_state.as_ref(), job.state));
    if let Some(reason) = &job.quarantine {
        line("Quarantine", reason);
    }
    // The reason of the quarantine is in the line above.
    let is_above = |it: &&BlockedReason| job.quarantine.is_some() && it.kind == QUARANTINED;
    for blocked_reason in job.blocked_by.iter().filter(|it| !is_above(it)) {
        let mut text = blocked_reason.text.clone();
        if !blocked_reason.missing.is_empty() {
            write!(text, " ({})", blocked_reason.missing.join(", "))
                .expect("writing to a string succeeds");
        }
        if blocked_reason.until > 0 {
            write!(text, "; until {}", time_if_known(blocked_reason.until))
                .expect("writing to a string succeeds");
        }
        if let Some(retry_at) = blocked_reason.retry_at {
            write!(text, "; tried again at {}", time_if_known(retry_at))
                .expect("writing to a string succeeds");
        }
        line("Waits", &text);
    }
    line("Duration", &duration(job.duration));
    line("Restarts", &job.restarts.to_string());
    if let Some(checkpoints) = &job.checkpoints {
        for (name, value) in checkpoint_lines(checkpoints) {
            line(name, &value);
        }
        if let Some(text) = kept(job, checkpoints) {
            line("Retained", &text);
        }
    }
    if let Some(what) = job.left_out() {
        line("Left out", &what);
    }
    if let Some(cause) = &job.cause {
        line("Cause", cause);
    }
    let is_contained = |failure: &str| job.cause.iter().any(|cause| cause.contains(failure));
    if let Some(failure) = failure.filter(|failure| !is_contained(failure)) {
        line("Last failure", failure);
    }
    let mut table = Table::new(["VERTEX", "NAME", "STATUS", "TASKS", "RECORDS IN", "OUT"]);
    for vertex in &job.vertices {
        table.row([
            vertex.id.clone(),
            vertex.name.clone(),
            vertex.status.to_string(),
            format!(
                "{}/{}",
                vertex.tasks.running + vertex.tasks.finished,
                vertex.parallelism
            ),
            vertex.metrics.read_records.to_string(),
            vertex.metrics.write_records.to_string(),
        ]);
    }
    if !job.vertices.is_empty() {
        write!(text, "\n{table}").expect("writing to a string succeeds");
    }
    text
}

/// When the last checkpoint was, what failed since, and of which regions none is taken.
fn checkpoint_lines(checkpoints: &JobCheckpoints) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    let last = match checkpoints.completed {
        Some(number) if checkpoints.completed_at <= 0 => {
            format!("number {number}, before this JobManager led the job")
        }
        Some(number) => format!(
            "number {number}, at {}",
            time_if_known(checkpoints.completed_at)
        ),
        None if checkpoints.interval == 0 => "none are taken: no interval is set".to_owned(),
        None => "none is complete".to_owned(),
    };
    lines.push(("Checkpoint", last));
    if let Some(slowest) = &checkpoints.slowest {
        let [alignment, sync, beside] =
            [slowest.alignment, slowest.sync, slowest.beside].map(|it| duration(it.cast_signed()));
        lines.push((
            "Slowest",
            format!(
                "{}, {}: waited {alignment} for barriers, {sync} for its state, {beside} for writing it",
                slowest.subtask,
                duration(slowest.duration)
            ),
        ));
    }
    if let Some(open) = &checkpoints.in_progress {
        lines.push(("In progress", in_progress(open)));
    }
    if let Some(number) = checkpoints.restored {
        let at = time_if_known(checkpoints.restored_at);
        lines.push(("Restored", format!("from checkpoint {number}, at {at}")));
    }
    if let Some(path) = &checkpoints.started_from {
        lines.push(("Started from", path.clone()));
    }
    for regions in &checkpoints.failing {
        lines.push(("Failing", failing(regions)));
    }
    // Regions that fail are listed with their own reasons.
    if let Some(failure) = &checkpoints.failure
        && checkpoints.failing.is_empty()
    {
        lines.push(("Failed", format!("the last checkpoint: {failure}")));
    }
    if let Some(savepoint) = &checkpoints.savepoint {
        let at = time_if_known(savepoint.requested_at);
        let text = match (&savepoint.location, &savepoint.reason, &savepoint.waits_for) {
            (Some(path), _, _) => format!("{path}, requested at {at}"),
            (None, Some(reason), _) => format!("failed, requested at {at}: {reason}"),
            (None, None, Some(awaited)) => {
                format!("in progress, requested at {at}: {awaited}")
            }
            (None, None, None) => format!("in progress, requested at {at}"),
        };
        lines.push(("Savepoint", text));
    }
    if let Some(problem) = &checkpoints.storage_problem {
        lines.push(("Storage", storage(problem)));
    }
    for region in &checkpoints.skipped {
        lines.push(("Not saved", skipped(region)));
    }
    lines
}

/// Whether the last checkpoint of an ended job was retained. None: it runs, or has finished, which keeps none.
fn kept(job: &JobInfo, checkpoints: &JobCheckpoints) -> Option<String> {
    let id = job.jid;
    match checkpoints.kept {
        Some(number) => Some(format!(
            "checkpoint {number}, when the job ended: `tanist run FILE --from-savepoint job:{id}` begins from it"
        )),
        None if job.state == JobStatus::Canceled && checkpoints.completed.is_some() => Some(
            "no checkpoint: `retention: RETAIN_ON_CANCELLATION` in the `checkpoints` of a job keeps the last one"
                .to_owned(),
        ),
        None => None,
    }
}

fn in_progress(open: &CheckpointInProgress) -> String {
    let begun = format!(
        "number {}, since {}",
        open.id,
        time_if_known(open.triggered_at)
    );
    let unnamed = (open.missing as usize).saturating_sub(open.missing_subtasks.len());
    let others = match unnamed {
        0 => String::new(),
        1 => " and another one".to_owned(),
        unnamed => format!(" and {unnamed} others"),
    };
    match open.missing_subtasks.is_empty() {
        true => begun,
        false => format!(
            "{begun}: waits for {}{others}",
            open.missing_subtasks.join(", ")
        ),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn job(number: u32, name: &str, state: &str, submitted: i64) -> Value {
        json!({
            "jid": format!("{number:032x}"), "name": name, "state": state, "shown-state": state,
            "start-time": submitted, "end-time": -1, "duration": 4200,
            "tasks": {"total": 4, "running": 3, "finished": 0}
        })
    }

    #[test]
    fn jobs_are_listed_in_a_table() -> Result<(), serde_json::Error> {
        let mut waiting = job(1, "count", "RUNNING", 1_000);
        waiting["shown-state"] = json!("WAITING");
        waiting["tasks"]["running"] = json!(0);
        waiting["blocked-by"] = json!("waiting for 4 slots");
        let mut lost = job(2, "lost", "SUSPENDED", -1);
        lost["quarantine"] = json!("its graph can't be read");
        let mut done = job(3, "done", "FINISHED", 1_000);
        done["tasks"] = json!({"total": 2, "running": 0, "finished": 2});
        let mut bad = job(4, "bad", "FAILED", 1_000);
        bad["duration"] = json!(899);
        bad["cause"] = json!("it broke (not restarted: ...)\nat length");
        let jobs: Vec<JobSummary> = serde_json::from_value(json!([waiting, lost, done, bad]))?;
        let expected = "\
JOB                               NAME   STATUS     TASKS  AGE        DURATION
00000000000000000000000000000001  count  WAITING    0/4    1 min 4 s  4.2 s     waiting for 4 slots
00000000000000000000000000000002  lost   SUSPENDED  3/4    -          4.2 s     its graph can't be read
00000000000000000000000000000003  done   FINISHED   2/2    1 min 4 s  4.2 s
00000000000000000000000000000004  bad    FAILED     3/4    1 min 4 s  899 ms    it broke (not restarted: ...)
";
        assert_eq!(job_table(&jobs, 65_000), expected);
        Ok(())
    }

    #[test]
    fn the_newest_jobs_come_first_and_those_in_other_states_not_at_all()
    -> Result<(), serde_json::Error> {
        let all: Vec<JobSummary> = serde_json::from_value(json!([
            job(1, "old", "RUNNING", 10),
            job(2, "new", "FINISHED", 30),
            job(3, "newer", "RUNNING", 40),
            job(4, "unknown", "SUSPENDED", -1)
        ]))?;
        let names = |state: &[&str], limit| {
            let args = ListArgs {
                state: state.iter().map(ToString::to_string).collect(),
                limit,
            };
            let (jobs, left_out) = chosen(all.clone(), &args);
            let names = jobs.into_iter().map(|job| job.name);
            (names.collect::<Vec<_>>(), left_out)
        };
        let of = |names: &[&str], left_out: usize| {
            (
                names.iter().map(ToString::to_string).collect::<Vec<_>>(),
                left_out,
            )
        };
        assert_eq!(names(&[], None), of(&["newer", "new", "old", "unknown"], 0));
        assert_eq!(names(&["RUNNING"], None), of(&["newer", "old"], 0));
        assert_eq!(names(&["RUNNING", "FINISHED"], Some(1)), of(&["newer"], 2));
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
        let mut quarantined = info.clone();
        quarantined.quarantine = Some("bit rot".to_owned());
        quarantined.blocked_by = serde_json::from_value(json!([
            {"kind": "quarantined", "text": "quarantined: bit rot", "since": 1, "until": -1, "missing": []}
        ]))?;
        let text = job_text(&quarantined, None);
        assert_eq!(text.matches("bit rot").count(), 1, "{text}");
        info.checkpoints = Some(serde_json::from_value(json!({
            "interval": 1000, "completed": 18, "completed-at": 1_700_000_000_000_i64, "restored": 16,
            "restored-at": 1_700_000_000_000_i64, "failure": "timeout", "started-from": "/savepoints/a",
            "savepoint": {"trigger-id": "b", "status": "COMPLETED", "requested-at": 1_700_000_000_000_i64,
                "stops": false, "location": "/savepoints/b"},
            "slowest": {"subtask": "sums -> out (2/2)", "duration": 41, "alignment": 30, "sync": 1, "async": 9},
            "in-progress": {"id": 19, "triggered-at": 1_700_000_001_000_i64, "missing": 3,
                "missing-subtasks": ["lines (1/2)", "sums -> out (1/2)"]},
            "skipped": [{"vertices": ["program", "out"], "reason": "no checkpoint can save what is inside a program"}]
        }))?);
        let text = job_text(&info, None);
        let lines = "\
Checkpoint   number 18, at 2023-11-14 22:13:20 UTC
Slowest      sums -> out (2/2), 41 ms: waited 30 ms for barriers, 1 ms for its state, 9 ms for writing it
In progress  number 19, since 2023-11-14 22:13:21 UTC: waits for lines (1/2), sums -> out (1/2) and another one
Restored     from checkpoint 16, at 2023-11-14 22:13:20 UTC
Started from /savepoints/a
Failed       the last checkpoint: timeout
Savepoint    /savepoints/b, requested at 2023-11-14 22:13:20 UTC
Not saved    program, out: no checkpoint can save what is inside a program
";
        assert!(text.contains(lines), "{text}");
        assert!(!text.contains("Retained"), "{text}");
        let checkpoints = info.checkpoints.as_mut().expect("it has some");
        checkpoints.failing =
            serde_json::from_value(json!([{"vertices": ["c"], "regions": 1, "id": 17,
            "reason": "timeout", "in-a-row": 3, "since": 1_700_000_000_000_i64}]))?;
        checkpoints.storage_problem = Some(serde_json::from_value(
            json!({"reason": "not removed", "since": 1_700_000_000_000_i64}),
        )?);
        let text = job_text(&info, None);
        let storage = "Storage      not removed, since 2023-11-14 22:13:20 UTC\n";
        assert!(text.contains(storage), "{text}");
        let failing = "\
Failing      c: 3 in a row since 2023-11-14 22:13:20 UTC, the last is number 17: timeout
";
        assert!(text.contains(failing), "{text}");
        assert!(!text.contains("\nFailed "), "{text}");
        let earlier = info.checkpoints.as_mut().map(|it| &mut it.completed_at);
        *earlier.expect("it has some") = -1;
        let line = "Checkpoint   number 18, before this JobManager led the job\n";
        assert!(job_text(&info, None).contains(line));
        info.state = JobStatus::Canceled;
        let none = "Retained     no checkpoint: `retention: RETAIN_ON_CANCELLATION` in the `checkpoints` of a job keeps the last one\n";
        assert!(job_text(&info, None).contains(none));
        let of_end = info.checkpoints.as_mut().map(|it| &mut it.kept);
        *of_end.expect("it has some") = Some(18);
        let kept = "Retained     checkpoint 18, when the job ended: `tanist run FILE --from-savepoint \
                    job:00000000000000000000000000000001` begins from it\n";
        assert!(job_text(&info, None).contains(kept));
        let cause = "sums (1/2): it broke (not restarted: all 2 restarts are used up)";
        info.cause = Some(cause.to_owned());
        let text = job_text(&info, Some("sums (1/2): it broke"));
        assert!(text.contains(&format!("Cause        {cause}\n")), "{text}");
        assert!(!text.contains("Last failure"), "{text}");
        Ok(())
    }
}
