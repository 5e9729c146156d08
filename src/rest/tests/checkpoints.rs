//! Checkpoints of a job, as Flink's clients read them.

use axum::http::StatusCode;
use serde_json::{Value, json};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::scripted::{ScriptedDispatcher, Served};

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
    }
}

async fn served() -> Served {
    let job = |number, checkpoints| pb::JobDetails {
        job_id: JobId::from_bits(number).to_string(),
        status: pb::JobStatus::Running.into(),
        checkpoints,
        ..pb::JobDetails::default()
    };
    let (served, _) = Served::leading(ScriptedDispatcher {
        jobs: vec![job(1, Some(details())), job(2, None)].into(),
        ..ScriptedDispatcher::default()
    })
    .await;
    served
}

fn path(job: u128, rest: &str) -> String {
    format!("/jobs/{}/checkpoints{rest}", JobId::from_bits(job))
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
    assert_eq!(
        body["skipped"],
        json!([{"vertices": ["program"], "reason": "no checkpoint can save what is inside a program"}])
    );
}

#[tokio::test]
async fn a_checkpoint_is_shown_with_what_its_class_has() {
    let served = served().await;
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
            "checkpointed_size": 100, "state_size": 100, "end_to_end_duration": 10,
            "alignment_buffered": 0, "processed_data": 0, "persisted_data": 0, "num_subtasks": 4,
            "num_acknowledged_subtasks": 4, "checkpoint_type": "CHECKPOINT", "tasks": {},
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
            "interval": 1000, "completed": 18, "completed-at": 18_030, "restored": 16,
            "restored-at": 16_500, "failure": "sums (1/2) declined it: no space",
            "skipped": [{"vertices": ["program"], "reason": "no checkpoint can save what is inside a program"}],
            "savepoint": {"trigger-id": "b".repeat(32), "status": "FAILED", "requested-at": 18_006, "stops": true,
                "reason": "timeout"},
            "started-from": "/savepoints/of-another"
        })
    );
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
            "no checkpoints are taken of job {}: set `checkpoints` in its job file, or `execution.checkpointing.interval`",
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
}
