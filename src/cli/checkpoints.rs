//! `tanist checkpoints`: checkpoints and savepoints of a job.

use tanist_client::{
    CheckpointInfo, CheckpointStatistics, FailingRegions, JobClient, SavepointInfo, SkippedRegion,
    StorageProblem,
};
use tanist_config::Configuration;
use tanist_proto::id::JobId;
use tanist_rest_model::paths;
use tanist_telemetry::ExitCode;

use super::args::GlobalArgs;
use super::jobs::show;
use super::output::{Table, bytes, duration, optional, time_if_known};

pub(super) async fn checkpoints(
    configuration: &Configuration,
    global: &GlobalArgs,
    job: JobId,
) -> ExitCode {
    let table = async |jobs: &JobClient| Ok(listing(&jobs.checkpoints(job).await?));
    show(configuration, global, &paths::job_checkpoints(job), table).await
}

/// The oldest first, and then the regions whose checkpoints fail, and those without any.
fn listing(statistics: &CheckpointStatistics) -> String {
    let mut table = Table::new([
        "NUMBER", "OUTCOME", "BEGAN", "DURATION", "SIZE", "SUBTASKS", "REASON",
    ]);
    for checkpoint in statistics.history.iter().rev() {
        table.row(row(checkpoint));
    }
    let mut text = match statistics.history.is_empty() {
        true => "no checkpoint was taken yet\n".to_owned(),
        false => table.to_string(),
    };
    let counts = &statistics.counts;
    text.push_str(&format!(
        "\n{} completed and {} failed since this JobManager leads the job\n",
        counts.completed, counts.failed
    ));
    if let Some(path) = &statistics.started_from {
        text.push_str(&format!("\nstarted from {path}\n"));
    }
    if !statistics.savepoints.is_empty() {
        text.push_str(&format!("\n{}", savepoints(&statistics.savepoints)));
    }
    for regions in &statistics.failing {
        text.push_str(&format!("\nfailing: {}\n", failing(regions)));
    }
    if let Some(problem) = &statistics.storage_problem {
        text.push_str(&format!("\nstorage: {}\n", storage(problem)));
    }
    for region in &statistics.skipped {
        text.push_str(&format!("\nnot checkpointed: {}\n", skipped(region)));
    }
    text
}

fn row(checkpoint: &CheckpointInfo) -> [String; 7] {
    let reason = checkpoint.failure_message.as_deref().unwrap_or_default();
    [
        checkpoint.id.to_string(),
        checkpoint.status.to_string(),
        time_if_known(checkpoint.trigger_timestamp),
        duration(checkpoint.end_to_end_duration),
        bytes(checkpoint.state_size),
        match checkpoint.num_subtasks {
            // An earlier leader took it.
            0 => "-".to_owned(),
            all => format!("{}/{all}", checkpoint.num_acknowledged_subtasks),
        },
        reason.lines().next().unwrap_or_default().to_owned(),
    ]
}

/// The oldest first.
fn savepoints(newest_first: &[SavepointInfo]) -> Table {
    let mut table = Table::new(["SAVEPOINT", "OUTCOME", "REQUESTED", "NUMBER", "PATH"]);
    for savepoint in newest_first.iter().rev() {
        let mut texts = [&savepoint.location, &savepoint.reason, &savepoint.waits_for]
            .into_iter()
            .flatten();
        let text = texts.next().map_or("", String::as_str);
        table.row([
            savepoint.trigger_id.clone(),
            savepoint.status.to_string(),
            time_if_known(savepoint.requested_at),
            optional(savepoint.number),
            text.lines().next().unwrap_or_default().to_owned(),
        ]);
    }
    table
}

/// A region without checkpoints, as a line: its vertices and the reason.
pub(super) fn skipped(region: &SkippedRegion) -> String {
    format!("{}: {}", region.vertices.join(", "), region.reason)
}

/// Why objects can't be removed, as a line.
pub(super) fn storage(problem: &StorageProblem) -> String {
    let first_line = problem.reason.lines().next().unwrap_or_default();
    format!("{first_line}, since {}", time_if_known(problem.since))
}

/// Regions whose checkpoints fail, as a line: their vertices, since when, and why.
pub(super) fn failing(regions: &FailingRegions) -> String {
    let vertices = regions.vertices.join(", ");
    let of = match regions.regions {
        1 => String::new(),
        count => format!(" ({count} regions)"),
    };
    let since = time_if_known(regions.since);
    let first_line = regions.reason.lines().next().unwrap_or_default();
    let (row, id) = (regions.in_a_row, regions.id);
    format!("{vertices}{of}: {row} in a row since {since}, the last is number {id}: {first_line}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn checkpoint(number: u64, status: &str, took: i64) -> Value {
        json!({
            "id": number, "status": status, "is_savepoint": false, "savepointFormat": null,
            "trigger_timestamp": 1_700_000_000_000_i64, "latest_ack_timestamp": -1, "checkpointed_size": 2048,
            "state_size": 2048, "end_to_end_duration": took, "alignment_buffered": 0, "processed_data": 0,
            "persisted_data": 0, "num_subtasks": 4, "num_acknowledged_subtasks": 3,
            "checkpoint_type": "CHECKPOINT", "external_path": null
        })
    }

    #[test]
    fn checkpoints_are_told_in_their_order_with_the_regions_that_have_none()
    -> Result<(), serde_json::Error> {
        let mut failed = checkpoint(18, "FAILED", 600_000);
        failed["failure_message"] = json!("timeout\nin detail");
        let statistics: CheckpointStatistics = serde_json::from_value(json!({
            "counts": {"restored": 0, "total": 2, "in_progress": 0, "completed": 1, "failed": 1},
            "summary": tanist_rest_model::CheckpointSummaries::default(),
            "latest": {},
            "history": [failed, checkpoint(17, "COMPLETED", 12)],
            "skipped": [{"vertices": ["a", "b -> c"], "reason": "no checkpoint can save what is inside a program"}],
            "failing": [{"vertices": ["c", "d"], "regions": 2, "id": 16, "reason": "timeout\nin detail", "in-a-row": 3,
                "since": 1_700_000_000_000_i64}],
            "storage-problem": {"reason": "not removed\nin detail", "since": 1_700_000_000_000_i64},
            "savepoints": [
                {"trigger-id": "c", "status": "IN_PROGRESS", "requested-at": -1, "stops": false,
                 "waits-for": "the region of a does not run"},
                {"trigger-id": "b", "status": "FAILED", "requested-at": -1, "stops": true, "reason": "timeout\nin detail"},
                {"trigger-id": "a", "status": "COMPLETED", "requested-at": 1_700_000_000_000_i64, "number": 17,
                 "stops": false, "location": "/savepoints/a"}
            ],
            "started-from": "/savepoints/of-another"
        }))?;
        let expected = "\
NUMBER  OUTCOME    BEGAN                    DURATION   SIZE     SUBTASKS  REASON
17      COMPLETED  2023-11-14 22:13:20 UTC  12 ms      2.0 KiB  3/4
18      FAILED     2023-11-14 22:13:20 UTC  10 min 0 s  2.0 KiB  3/4       timeout

1 completed and 1 failed since this JobManager leads the job

started from /savepoints/of-another

SAVEPOINT  OUTCOME    REQUESTED                NUMBER  PATH
a          COMPLETED  2023-11-14 22:13:20 UTC  17      /savepoints/a
b          FAILED     -                        -       timeout
c          IN_PROGRESS -                       -       the region of a does not run

failing: c, d (2 regions): 3 in a row since 2023-11-14 22:13:20 UTC, the last is number 16: timeout

storage: not removed, since 2023-11-14 22:13:20 UTC

not checkpointed: a, b -> c: no checkpoint can save what is inside a program
";
        let squeezed = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(squeezed(&listing(&statistics)), squeezed(expected));
        let none = CheckpointStatistics {
            history: Vec::new(),
            ..statistics
        };
        let told = listing(&none);
        assert!(told.starts_with("no checkpoint was taken yet\n"), "{told}");
        Ok(())
    }
}
