//! The operation of a stop through Flink's API, derived from the job's record.

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::scripted::{ScriptedDispatcher, Served};

fn job(status: pb::JobStatus, events: &[pb::JobEventKind]) -> pb::JobDetails {
    let event = |kind: &pb::JobEventKind| pb::JobEvent {
        kind: (*kind).into(),
        ..pb::JobEvent::default()
    };
    pb::JobDetails {
        job_id: JobId::from_bits(1).to_string(),
        status: status.into(),
        events: events.iter().map(event).collect(),
        failures: vec![pb::FailureRecord {
            cause: "it broke".to_owned(),
            ..pb::FailureRecord::default()
        }],
        ..pb::JobDetails::default()
    }
}

async fn operation_of(job: pb::JobDetails) -> (StatusCode, Value) {
    // A server that does not know of the stop, as after a failover.
    let (served, _) = Served::leading(ScriptedDispatcher {
        jobs: vec![job].into(),
        ..ScriptedDispatcher::default()
    })
    .await;
    let path = format!(
        "/v1/jobs/{}/savepoints/{}",
        JobId::from_bits(1),
        "7".repeat(32)
    );
    let answer = served.get(&path).await;
    (answer.status, answer.body)
}

#[tokio::test]
async fn the_trigger_of_a_stop_leads_to_a_status_that_the_record_alone_tells() {
    use pb::JobEventKind::{Cancel, Stop};
    let (status, body) = operation_of(job(pb::JobStatus::Running, &[Stop])).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(body, json!({"status": {"id": "IN_PROGRESS"}}));

    let (_, body) = operation_of(job(pb::JobStatus::Finished, &[Stop])).await;
    assert_eq!(body["status"]["id"], "COMPLETED");
    let location = body["operation"]["location"].as_str().expect("a text");
    assert!(location.contains("no savepoint was taken"), "{location}");
    assert!(body["operation"].get("failure-cause").is_none(), "{body}");

    let ends = [
        (pb::JobStatus::Failed, vec![Stop], "it broke"),
        (pb::JobStatus::Canceled, vec![Stop], "nothing to drain"),
        (
            pb::JobStatus::Canceled,
            vec![Stop, Cancel],
            "before it had stopped",
        ),
    ];
    for (status, events, text) in ends {
        let (_, body) = operation_of(job(status, &events)).await;
        assert_eq!(body["status"]["id"], "COMPLETED");
        let cause = &body["operation"]["failure-cause"];
        let told = cause["stack-trace"].as_str().expect("a text");
        assert!(told.contains(text), "{body}");
        assert!(cause["serialized-throwable"].is_string(), "{body}");
        assert!(body["operation"].get("location").is_none(), "{body}");
    }
}

#[tokio::test]
async fn a_job_that_nobody_asked_to_stop_has_no_such_operation() {
    let (status, body) = operation_of(job(pb::JobStatus::Running, &[])).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{body}");
    let (served, _) = Served::leading(ScriptedDispatcher::default()).await;
    let path = format!("/v1/jobs/{}/savepoints/x", JobId::from_bits(1));
    assert_eq!(served.get(&path).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_stop_is_followed_under_the_id_that_the_client_chose() {
    let running = job(pb::JobStatus::Running, &[]);
    let (served, _) = Served::leading(ScriptedDispatcher {
        jobs: vec![running].into(),
        ..ScriptedDispatcher::default()
    })
    .await;
    let path = format!("/v1/jobs/{}/stop", JobId::from_bits(1));
    let trigger = "7".repeat(32);
    let body = json!({"drain": true, "triggerId": trigger}).to_string();
    let answer = served.ask(Method::POST, &path, &[], body).await;
    assert_eq!(answer.body, json!({"request-id": trigger}));
}
