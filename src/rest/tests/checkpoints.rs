//! Checkpoints of a job, as Flink's clients read them.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use tanist_proto::id::{JobId, JobVertexId};
use tanist_proto::v1 as pb;

use super::scripted::{ScriptedDispatcher, Served};
use crate::json::checkpoints::checkpoint_statistics;

/// The acknowledgements of two vertices with two subtasks each: the second one of the second vertex is slow.
fn vertices(number: u64, is_complete: bool) -> Vec<pb::VertexCheckpoint> {
    let acknowledged = |subtask, after_ms, alignment_us| pb::SubtaskAcknowledgement {
        subtask,
        at_ms: number * 1000 + after_ms,
        size: 20,
        written: 2,
        times: Some(pb::CheckpointTimes {
            alignment_us,
            saving_us: 1_000,
            writing_us: 2_000,
        }),
    };
    let vertex = |vertex: u128, acknowledgements: Vec<pb::SubtaskAcknowledgement>| {
        let acknowledged = u32::try_from(acknowledgements.len()).expect("few");
        pb::VertexCheckpoint {
            vertex_id: JobVertexId::from_bits(vertex).to_string(),
            subtasks: 2,
            acknowledged_subtasks: if is_complete { 2 } else { acknowledged },
            acknowledgements,
        }
    };
    let of_second = match is_complete {
        true => vec![acknowledged(1, 9, 4_000)],
        false => Vec::new(),
    };
    // The first subtask of the second vertex had ended before.
    vec![vertex(1, vec![acknowledged(0, 5, 0)]), vertex(2, of_second)]
}

/// Two completed checkpoints, a failed one, and one in progress.
pub(super) fn details() -> pb::CheckpointDetails {
    use pb::CheckpointOutcome::{Completed, Failed, InProgress};
    let summary = |number: u64, outcome: pb::CheckpointOutcome, size, took| pb::CheckpointSummary {
        number,
        outcome: outcome.into(),
        triggered_at_ms: number * 1000,
        acknowledged_at_ms: if took == 0 {
            0
        } else {
            number * 1000 + took - 1
        },
        ended_at_ms: if took == 0 { 0 } else { number * 1000 + took },
        size,
        subtasks: 4,
        acknowledged_subtasks: if outcome == Completed { 4 } else { 1 },
        reason: String::new(),
        written: size / 10,
        vertices: vertices(number, outcome == Completed),
    };
    pb::CheckpointDetails {
        interval_ms: 1000,
        min_pause_ms: 5,
        timeout_ms: 600_000,
        tolerable_failures: -1,
        retained: 1,
        completed: 12,
        failed: 1,
        history: vec![
            summary(17, Completed, 100, 10),
            summary(18, Completed, 300, 30),
            pb::CheckpointSummary {
                reason: "sums (1/2) declined it: no space".to_owned(),
                ..summary(19, Failed, 0, 7)
            },
            summary(20, InProgress, 0, 0),
        ],
        skipped: vec![pb::SkippedRegion {
            vertices: vec!["program".to_owned()],
            reason: "no checkpoint can save what is inside a program".to_owned(),
        }],
        restored_from: 16,
        restored_at_ms: 16_500,
        restored_directory: String::new(),
        kept: 0,
        savepoints: vec![
            pb::SavepointSummary {
                trigger_id: "a".repeat(32),
                outcome: pb::SavepointOutcome::Completed.into(),
                text: "/savepoints/a".to_owned(),
                requested_at_ms: 18_005,
                number: 18,
                stops: false,
            },
            pb::SavepointSummary {
                trigger_id: "b".repeat(32),
                outcome: pb::SavepointOutcome::Failed.into(),
                text: "timeout".to_owned(),
                requested_at_ms: 18_006,
                number: 0,
                stops: true,
            },
        ],
        started_from: "/savepoints/of-another".to_owned(),
        retention: pb::CheckpointRetention::RetainOnCancellation.into(),
        saved: vec![pb::RegionsSaved {
            vertices: vec!["numbers".to_owned(), "sums".to_owned()],
            regions: 1,
            since_ms: 18_030,
        }],
        failing: vec![pb::FailingRegions {
            vertices: vec!["alarms".to_owned()],
            regions: 1,
            number: 15,
            reason: "sums (1/2) declined it: no space".to_owned(),
            in_a_row: 2,
            since_ms: 14_000,
        }],
        storage_problem: Some(pb::StorageProblem {
            text: "not removed".to_owned(),
            since_ms: 13_000,
        }),
    }
}

fn named(vertex: u128, name: &str) -> pb::VertexDetails {
    pb::VertexDetails {
        id: JobVertexId::from_bits(vertex).to_string(),
        name: name.to_owned(),
        parallelism: 2,
        ..pb::VertexDetails::default()
    }
}

async fn served() -> Served {
    let job = |number, checkpoints| pb::JobDetails {
        job_id: JobId::from_bits(number).to_string(),
        name: "counts".to_owned(),
        status: pb::JobStatus::Running.into(),
        vertices: vec![named(1, "numbers"), named(2, "sums")],
        checkpoints,
        ..pb::JobDetails::default()
    };
    let (served, _) = Served::leading(ScriptedDispatcher {
        jobs: vec![
            pb::JobDetails {
                state_sizes: vec![pb::VertexStateSize {
                    vertex: "sums".to_owned(),
                    bytes: 4_096,
                }],
                ..job(1, Some(details()))
            },
            job(2, None),
        ]
        .into(),
        ..ScriptedDispatcher::default()
    })
    .await;
    served
}

fn path(job: u128, rest: &str) -> String {
    format!("/jobs/{}/checkpoints{rest}", JobId::from_bits(job))
}

#[test]
fn of_a_checkpoint_that_an_earlier_leader_took_no_duration_is_shown() {
    let mut details = details();
    details.history = vec![pb::CheckpointSummary {
        number: 17,
        outcome: pb::CheckpointOutcome::Completed.into(),
        triggered_at_ms: 17_000,
        size: 100,
        ..pb::CheckpointSummary::default()
    }];
    let shown = checkpoint_statistics(&details, 20_000);
    let latest = shown.latest.completed.expect("it is complete");
    assert_eq!((latest.id, latest.state_size), (17, 100));
    assert_eq!(latest.end_to_end_duration, -1);
    assert_eq!(shown.summary.end_to_end_duration.max, 0);
}

#[tokio::test]
async fn the_statistics_are_of_what_is_in_the_history() {
    let served = served().await;
    let answer = served.get(&path(1, "")).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let body = answer.body;
    assert_eq!(
        body["counts"],
        json!({"restored": 1, "total": 14, "in_progress": 1, "completed": 12, "failed": 1})
    );
    assert_eq!(body["summary"]["checkpointed_size"]["max"], 30);
    assert_eq!(body["history"][2]["tasks"], json!({}), "only with details");
    let size = json!({"min": 100, "max": 300, "avg": 200, "p50": 100.0, "p90": 300.0, "p95": 300.0, "p99": 300.0, "p999": 300.0});
    assert_eq!(body["summary"]["state_size"], size);
    let duration = &body["summary"]["end_to_end_duration"];
    assert_eq!(
        (&duration["min"], &duration["max"], &duration["avg"]),
        (&json!(10), &json!(30), &json!(20))
    );
    let numbers: Vec<&Value> = body["history"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|it| &it["id"])
        .collect();
    assert_eq!(numbers, [&json!(20), &json!(19), &json!(18), &json!(17)]);
    assert_eq!(body["latest"]["completed"]["id"], json!(18));
    let savepoint = &body["latest"]["savepoint"];
    assert_eq!(
        (
            &savepoint["id"],
            &savepoint["is_savepoint"],
            &savepoint["external_path"],
            &savepoint["checkpoint_type"]
        ),
        (
            &json!(18),
            &json!(true),
            &json!("/savepoints/a"),
            &json!("SAVEPOINT")
        )
    );
    assert_eq!(body["latest"]["completed"]["is_savepoint"], false);
    assert_eq!(
        body["savepoints"],
        json!([
            {"trigger-id": "b".repeat(32), "status": "FAILED", "requested-at": 18_006, "stops": true, "reason": "timeout"},
            {"trigger-id": "a".repeat(32), "status": "COMPLETED", "requested-at": 18_005, "number": 18, "stops": false,
             "location": "/savepoints/a"}
        ])
    );
    assert_eq!(body["started-from"], "/savepoints/of-another");
    assert_eq!(
        body["latest"]["restored"],
        json!({"id": 16, "restore_timestamp": 16_500, "is_savepoint": false, "external_path": null})
    );
    let from_savepoint = pb::CheckpointDetails {
        restored_directory: "/savepoints/of-another".to_owned(),
        ..details()
    };
    let restored = checkpoint_statistics(&from_savepoint, 20_000)
        .latest
        .restored;
    let restored = restored.expect("it was restored");
    assert!(restored.is_savepoint);
    assert_eq!(
        restored.external_path.as_deref(),
        Some("/savepoints/of-another")
    );
    assert_eq!(
        body["skipped"],
        json!([{"vertices": ["program"], "reason": "no checkpoint can save what is inside a program"}])
    );
    assert_eq!(body["failing"], failing());
    let problem = json!({"reason": "not removed", "since": 13_000});
    assert_eq!(body["storage-problem"], problem);
}

fn failing() -> Value {
    json!([{"vertices": ["alarms"], "regions": 1, "id": 15, "reason": "sums (1/2) declined it: no space",
        "in-a-row": 2, "since": 14_000}])
}

#[tokio::test]
async fn a_checkpoint_is_shown_with_what_its_class_has() {
    let served = served().await;
    let of_vertex = |at: u64, took: u64| {
        json!({
            "id": 17, "status": "COMPLETED", "latest_ack_timestamp": at, "checkpointed_size": 2, "state_size": 20,
            "end_to_end_duration": took, "alignment_buffered": 0, "processed_data": 0, "persisted_data": 0,
            "num_subtasks": 2, "num_acknowledged_subtasks": 2
        })
    };
    let of = async |number: u64| {
        served
            .get(&path(1, &format!("/details/{number}")))
            .await
            .body
    };
    assert_eq!(
        of(17).await,
        json!({
            "className": "completed", "id": 17, "status": "COMPLETED", "is_savepoint": false,
            "savepointFormat": null, "trigger_timestamp": 17_000, "latest_ack_timestamp": 17_009,
            "checkpointed_size": 10, "state_size": 100, "end_to_end_duration": 10,
            "alignment_buffered": 0, "processed_data": 0, "persisted_data": 0, "num_subtasks": 4,
            "num_acknowledged_subtasks": 4, "checkpoint_type": "CHECKPOINT",
            "tasks": {
                JobVertexId::from_bits(1).to_string(): of_vertex(17_005, 5),
                JobVertexId::from_bits(2).to_string(): of_vertex(17_009, 9),
            },
            "external_path": null, "discarded": true
        })
    );
    assert_eq!(of(18).await["discarded"], json!(false));
    let failed = of(19).await;
    assert_eq!(failed["className"], json!("failed"));
    assert_eq!(failed["failure_timestamp"], json!(19_007));
    let reason = json!("sums (1/2) declined it: no space");
    assert_eq!(failed["failure_message"], reason);
    assert_eq!(failed["discarded"], Value::Null);
    let in_progress = of(20).await;
    assert_eq!(in_progress["className"], json!("in_progress"));
    assert_eq!(in_progress["latest_ack_timestamp"], json!(-1));
    let job = served
        .get(&format!("/jobs/{}", JobId::from_bits(1)))
        .await
        .body;
    assert_eq!(
        job["checkpoints"],
        json!({
            "interval": 1000, "completed": 18, "completed-at": 18_030,
            "slowest": {"subtask": "sums (2/2)", "duration": 9, "alignment": 4, "sync": 1, "async": 2},
            "in-progress": {"id": 20, "triggered-at": 20_000, "missing": 3,
                "missing-subtasks": ["numbers (2/2)", "sums (1/2)", "sums (2/2)"]},
            "restored": 16,
            "restored-at": 16_500, "failure": "sums (1/2) declined it: no space",
            "skipped": [{"vertices": ["program"], "reason": "no checkpoint can save what is inside a program"}],
            "failing": failing(),
            "storage-problem": {"reason": "not removed", "since": 13_000},
            "savepoint": {"trigger-id": "b".repeat(32), "status": "FAILED", "requested-at": 18_006, "stops": true,
                "reason": "timeout"},
            "started-from": "/savepoints/of-another"
        })
    );
}

#[tokio::test]
async fn each_subtask_of_a_vertex_is_shown_with_what_it_has_acknowledged() {
    let served = served().await;
    let of = async |job: u128, number: u64, vertex: u128| {
        let vertex = JobVertexId::from_bits(vertex);
        let rest = format!("/details/{number}/subtasks/{vertex}");
        served.get(&path(job, &rest)).await
    };
    let answer = of(1, 18, 2).await;
    assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
    let body = answer.body;
    assert_eq!(
        body["subtasks"],
        json!([
            {"className": "pending", "index": 0, "status": "pending_or_failed"},
            {"className": "completed", "index": 1, "status": "completed", "ack_timestamp": 18_009,
             "end_to_end_duration": 9, "checkpointed_size": 2, "state_size": 20,
             "checkpoint": {"sync": 1, "async": 2},
             "alignment": {"buffered": 0, "processed": 0, "persisted": 0, "duration": 4},
             "start_delay": 2, "unaligned_checkpoint": false, "aborted": false}
        ])
    );
    assert_eq!(
        (&body["id"], &body["num_subtasks"]),
        (&json!(18), &json!(2))
    );
    assert_eq!(body["summary"]["alignment"]["duration"]["max"], json!(4));
    assert_eq!(
        body["summary"]["checkpoint_duration"]["async"]["min"],
        json!(2)
    );
    for (answer, text) in [
        (
            of(1, 16, 2).await,
            "has no checkpoint 16 among its last ones",
        ),
        (of(1, 18, 3).await, "was not taken of a vertex"),
        (of(2, 18, 2).await, "no checkpoints are taken of job"),
    ] {
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{answer:?}");
        assert!(answer.body.to_string().contains(text), "{answer:?}");
    }
}

#[tokio::test]
async fn a_checkpoint_that_is_asked_for_is_answered_with_what_there_is_instead() {
    let answer = served()
        .await
        .ask(Method::POST, &path(1, ""), &[], "{}".to_owned())
        .await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    let text = answer.body.to_string();
    assert!(text.contains("take a savepoint"), "{text}");
}

#[tokio::test]
async fn the_settings_are_in_flinks_words() {
    let answer = served().await.get(&path(1, "/config")).await;
    assert_eq!(
        answer.body,
        json!({
            "mode": "exactly_once", "interval": 1000, "timeout": 600_000, "min_pause": 5, "max_concurrent": 1,
            "externalization": {"enabled": true, "delete_on_cancellation": false}, "state_backend": "memory",
            "checkpoint_storage": "blobs", "unaligned_checkpoints": false, "tolerable_failed_checkpoints": -1,
            "aligned_checkpoint_timeout": 0, "checkpoints_after_tasks_finish": true,
            "state_changelog_enabled": false, "changelog_periodic_materialization_interval": 0,
            "changelog_storage": "", "retained": 1
        })
    );
}

#[tokio::test]
async fn what_is_not_there_is_answered_with_404_in_words() {
    let served = served().await;
    for rest in ["", "/config", "/details/17"] {
        let answer = served.get(&path(2, rest)).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{rest}");
        let expected = format!(
            "no checkpoints are taken of job {}: set `interval` of `checkpoints` in its job file, or `execution.checkpointing.interval`",
            JobId::from_bits(2)
        );
        assert_eq!(answer.body, json!({"errors": [expected]}), "{rest}");
    }
    let unknown = served.get(&path(1, "/details/16")).await;
    assert_eq!(unknown.status, StatusCode::NOT_FOUND);
    let expected = format!(
        "job {} has no checkpoint 16 among its last ones",
        JobId::from_bits(1)
    );
    assert_eq!(unknown.body, json!({"errors": [expected]}));
    let no_number = served.get(&path(1, "/details/first")).await;
    assert_eq!(no_number.status, StatusCode::BAD_REQUEST);
    let expected = "\"first\" is not the number of a checkpoint: write a whole number";
    assert_eq!(no_number.body, json!({"errors": [expected]}));
}

#[tokio::test]
async fn metrics_have_the_last_checkpoint_of_each_job_and_its_age_by_region() {
    let served = served().await;
    served.lead();
    let answer = served.get("/metrics").await;
    let text = answer.body.as_str().expect("text");
    let job = format!("job_id=\"{}\",job_name=\"counts\"", JobId::from_bits(1));
    for line in [
        format!("tanist_checkpoints_completed_total{{{job}}} 12\n"),
        format!("tanist_checkpoints_failed_total{{{job}}} 1\n"),
        format!("tanist_checkpoint_duration_seconds{{{job}}} 0.03\n"),
        format!("tanist_checkpoint_size_bytes{{{job}}} 300\n"),
        format!("tanist_checkpoint_written_bytes{{{job}}} 30\n"),
        format!("tanist_checkpoint_alignment_seconds{{{job}}} 0.004\n"),
        format!("tanist_checkpoint_skipped{{{job}}} 1\n"),
        format!("tanist_state_bytes{{{job},vertex=\"sums\"}} 4096\n"),
        format!("tanist_checkpoint_age_seconds{{{job},region=\"numbers, sums\"}} "),
    ] {
        assert!(text.contains(&line), "{line} is not in {text}");
    }
    assert!(
        !text.contains(&JobId::from_bits(2).to_string()),
        "it has none"
    );
}
