//! `tanist job exceptions`: the recorded failures of a job, oldest first.

use tanist_client::{JobClient, JobExceptionInfo};
use tanist_config::Configuration;
use tanist_proto::id::JobId;
use tanist_telemetry::ExitCode;

use super::args::GlobalArgs;
use super::jobs::show;
use super::output::{Table, time};

pub(super) async fn exceptions(
    configuration: &Configuration,
    global: &GlobalArgs,
    job: JobId,
) -> ExitCode {
    let table = async |jobs: &JobClient| Ok(listing(&jobs.exceptions(job).await?));
    show(
        configuration,
        global,
        &JobClient::path_of_exceptions(job),
        table,
    )
    .await
}

/// The oldest first. Tasks that failed together with another one follow it.
fn listing(exceptions: &[JobExceptionInfo]) -> String {
    let mut table = Table::new(["TIME", "TASK", "HOST", "TASKMANAGER", "CAUSE"]);
    for exception in exceptions.iter().rev() {
        table.row(row(exception, ""));
        for beside in exception.concurrent_exceptions.iter().flatten() {
            table.row(row(beside, "with it: "));
        }
    }
    table.to_string()
}

fn row(exception: &JobExceptionInfo, how: &str) -> [String; 5] {
    let named = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".to_owned());
    let first_line = exception.stacktrace.lines().next().unwrap_or_default();
    [
        time(exception.timestamp),
        named(&exception.task_name),
        named(&exception.endpoint),
        named(&exception.task_manager_id),
        format!("{how}{first_line}"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn failures_are_told_in_their_order_with_what_failed_beside_them()
    -> Result<(), serde_json::Error> {
        let exceptions: Vec<JobExceptionInfo> = serde_json::from_value(json!([
            {"timestamp": 1_700_000_001_000_i64, "stacktrace": "the cluster ended it",
             "taskName": null, "endpoint": null, "taskManagerId": null, "concurrentExceptions": []},
            {"timestamp": 1_700_000_000_000_i64, "stacktrace": "it broke\nin detail", "taskName": "sums (1/2)",
             "endpoint": "b:9", "taskManagerId": "tm-2", "concurrentExceptions": [
                {"timestamp": 1_700_000_000_000_i64, "stacktrace": "its peer is gone", "taskName": "out (1/1)",
                 "endpoint": "a:9", "taskManagerId": "tm-1"}]}
        ]))?;
        let expected = "\
TIME                     TASK        HOST  TASKMANAGER  CAUSE
2023-11-14 22:13:20 UTC  sums (1/2)  b:9   tm-2         it broke
2023-11-14 22:13:20 UTC  out (1/1)   a:9   tm-1         with it: its peer is gone
2023-11-14 22:13:21 UTC  -           -     -            the cluster ended it
";
        assert_eq!(listing(&exceptions), expected);
        Ok(())
    }
}
