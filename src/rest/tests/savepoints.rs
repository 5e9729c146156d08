//! Savepoints and stops through Flink's API, and their status, which follows from the description of the job.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::scripted::{ScriptedDispatcher, Served};
use crate::RestServerOptions;

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

/// A server with a directory for savepoints, over a leader with one running job.
async fn with_directory() -> (Served, Arc<ScriptedDispatcher>) {
    let leader = Arc::new(ScriptedDispatcher {
        jobs: vec![job(pb::JobStatus::Running, &[])].into(),
        ..ScriptedDispatcher::default()
    });
    let options = RestServerOptions {
        savepoint_dir: Some("/configured".to_owned()),
        ..RestServerOptions::default()
    };
    (Served::over(Some(leader.clone()), options).await, leader)
}

fn savepoints_path(rest: &str) -> String {
    format!("/v1/jobs/{}/savepoints{rest}", JobId::from_bits(1))
}

fn stop_path() -> String {
    format!("/v1/jobs/{}/stop", JobId::from_bits(1))
}

async fn post(served: &Served, path: &str, body: impl Into<Value>) -> (StatusCode, Value) {
    let body = body.into().to_string();
    let answer = served.ask(Method::POST, path, &[], body).await;
    (answer.status, answer.body)
}

/// The leader ends the only savepoint of the only job.
fn set_savepoint(leader: &ScriptedDispatcher, outcome: pb::SavepointOutcome, text: &str) {
    let mut jobs = leader.jobs.lock();
    let checkpoints = jobs[0].checkpoints.as_mut().expect("a request");
    let [savepoint] = &mut checkpoints.savepoints[..] else {
        panic!("one request: {checkpoints:?}")
    };
    savepoint.set_outcome(outcome);
    savepoint.text = text.to_owned();
}

#[tokio::test]
async fn a_savepoint_is_followed_by_its_trigger_id_until_it_is_complete() {
    let (served, leader) = with_directory().await;
    let trigger = "ABCDEF0123456789".repeat(2);
    let kept = trigger.to_ascii_lowercase();
    let body = json!({"target-directory": "file:/named/", "triggerId": trigger, "formatType": "CANONICAL",
        "cancel-job": false});
    for _ in 0..2 {
        let (status, body) = post(&served, &savepoints_path(""), body.clone()).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{body}");
        assert_eq!(body, json!({"request-id": kept}));
    }
    let expected = pb::TriggerSavepointRequest {
        job_id: JobId::from_bits(1).to_string(),
        trigger_id: kept.clone(),
        directory: "/named/".to_owned(),
        stop: false,
    };
    assert_eq!(*leader.savepoints.lock(), [expected.clone(), expected]);
    let path = savepoints_path(&format!("/{trigger}"));
    let status_of = async || served.get(&path).await.body;
    let in_progress = json!({"status": {"id": "IN_PROGRESS"}});
    assert_eq!(status_of().await, in_progress);
    set_savepoint(&leader, pb::SavepointOutcome::InProgress, "a does not run");
    let waiting = json!({"status": {"id": "IN_PROGRESS"}, "waits-for": "a does not run"});
    assert_eq!(status_of().await, waiting);
    set_savepoint(&leader, pb::SavepointOutcome::Completed, "/named/a");
    let completed = json!({"status": {"id": "COMPLETED"}, "operation": {"location": "/named/a"}});
    assert_eq!(status_of().await, completed);

    // A server that does not know of the request, and a job that has ended since.
    let mut ended = leader.jobs.lock()[0].clone();
    ended.set_status(pb::JobStatus::Failed);
    let (next, _) = Served::leading(ScriptedDispatcher {
        jobs: vec![ended].into(),
        ..ScriptedDispatcher::default()
    })
    .await;
    assert_eq!(next.get(&path).await.body, completed);
    let unknown = savepoints_path(&format!("/{}", "7".repeat(32)));
    assert_eq!(next.get(&unknown).await.status, StatusCode::NOT_FOUND);
    // The same request is accepted, another one is not.
    let (status, _) = post(&next, &savepoints_path(""), body.clone()).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    let other = json!({"target-directory": "/named"});
    let (status, body) = post(&next, &savepoints_path(""), other).await;
    assert_eq!(status, StatusCode::CONFLICT, "{body}");
    for trigger in [None, Some(&trigger)] {
        let stop = json!({"targetDirectory": "/named", "triggerId": trigger});
        let (status, body) = post(&next, &stop_path(), stop).await;
        assert_eq!(status, StatusCode::CONFLICT, "{body}");
    }
    for directory in ["/other", "/nam"] {
        let elsewhere = json!({"target-directory": directory, "triggerId": trigger});
        let (status, body) = post(&next, &savepoints_path(""), elsewhere).await;
        assert_eq!(status, StatusCode::CONFLICT, "{directory}: {body}");
    }
}

#[tokio::test]
async fn a_savepoint_that_fails_says_why_also_if_the_job_ended_before() {
    let (served, leader) = with_directory().await;
    let (_, body) = post(&served, &savepoints_path(""), json!({})).await;
    let trigger = body["request-id"].as_str().expect("the server makes one");
    assert_eq!(trigger.len(), 32);
    assert_eq!(leader.savepoints.lock()[0].directory, "/configured");
    let path = savepoints_path(&format!("/{trigger}"));
    let cause_of = async || {
        let body = served.get(&path).await.body;
        assert_eq!(body["status"]["id"], "COMPLETED");
        assert!(body["operation"].get("location").is_none(), "{body}");
        body["operation"]["failure-cause"].clone()
    };
    leader.jobs.lock()[0].set_status(pb::JobStatus::Failed);
    let lost = cause_of().await;
    let text = lost["stack-trace"].as_str().expect("a text");
    assert!(text.contains("the job ended before"), "{lost}");
    set_savepoint(&leader, pb::SavepointOutcome::Failed, "timeout");
    let failed = cause_of().await;
    assert_eq!(failed["stack-trace"], "timeout");
    assert!(failed["serialized-throwable"].is_string(), "{failed}");
}

#[tokio::test]
async fn a_stop_with_a_savepoint_has_ended_when_its_job_has() {
    for body in [
        json!({}),
        json!({"drain": false}),
        json!({"drain": false, "targetDirectory": "/named", "formatType": "NATIVE"}),
    ] {
        let (served, leader) = with_directory().await;
        let (status, answer) = post(&served, &stop_path(), body.clone()).await;
        assert_eq!(status, StatusCode::ACCEPTED, "{answer}");
        let requests = leader.savepoints.lock().clone();
        assert!(requests[0].stop, "{requests:?}");
        let directory = body["targetDirectory"].as_str().unwrap_or("/configured");
        assert_eq!(requests[0].directory, directory);
        let trigger = answer["request-id"].as_str().expect("an id");
        let path = savepoints_path(&format!("/{trigger}"));
        set_savepoint(&leader, pb::SavepointOutcome::Completed, "/named/a");
        let status_of = async || served.get(&path).await.body["status"]["id"].clone();
        assert_eq!(status_of().await, "IN_PROGRESS");
        leader.jobs.lock()[0].set_status(pb::JobStatus::Finished);
        assert_eq!(status_of().await, "COMPLETED");
        // The job was not drained: no other id leads to its stop.
        let other = savepoints_path(&format!("/{}", "7".repeat(32)));
        assert_eq!(served.get(&other).await.status, StatusCode::NOT_FOUND);
        assert!(leader.stopped.lock().is_empty());
    }
    // A drain takes no savepoint, whatever is configured.
    let (served, leader) = with_directory().await;
    let (status, _) = post(&served, &stop_path(), json!({"drain": true})).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    assert_eq!(leader.stopped.lock().len(), 1);
    assert!(leader.savepoints.lock().is_empty());
    // Flink's cancellation with a savepoint is a stop.
    let body = json!({"cancel-job": true});
    let (status, _) = post(&served, &savepoints_path(""), body).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    assert!(leader.savepoints.lock()[0].stop);
}

#[tokio::test]
async fn a_savepoint_without_a_place_or_with_a_wrong_one_is_refused_in_words() {
    let (served, leader) = Served::leading(ScriptedDispatcher {
        jobs: vec![job(pb::JobStatus::Running, &[])].into(),
        ..ScriptedDispatcher::default()
    })
    .await;
    let cases = [
        (json!({}), "set `execution.checkpointing.savepoint-dir`"),
        (
            json!({}),
            "`tanist savepoint JOB DIRECTORY`; in REST the field `target-directory`",
        ),
        (
            json!({"target-directory": "/a/../b"}),
            "it has `..` in it: write the path that it leads to",
        ),
        (json!({"target-directory": ""}), "it is empty"),
        (
            json!({"target-directory": "savepoints"}),
            "it is no absolute path",
        ),
        (
            json!({"target-directory": "hdfs://a/b"}),
            "it has an unknown scheme",
        ),
        (
            json!({"target-directory": "/a", "triggerId": "7"}),
            "is not a trigger id (32 hex digits)",
        ),
        (
            json!({"target-directory": "/a", "formatType": "OTHER"}),
            "there is no savepoint format",
        ),
        (json!({"target-directory": 7}), "JSON of another shape"),
        // The name of this field in the body of a stop.
        (
            json!({"targetDirectory": "/a"}),
            "unknown field `targetDirectory`, expected one of `target-directory`",
        ),
    ];
    for (body, text) in cases {
        let (status, answer) = post(&served, &savepoints_path(""), body.clone()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{body}");
        let error = answer["errors"][0].as_str().expect("a text");
        assert!(error.contains(text), "{body}: {error}");
    }
    assert!(leader.savepoints.lock().is_empty());
    let unknown = format!("/v1/jobs/{}/savepoints", JobId::from_bits(2));
    let body = json!({"target-directory": "/a"});
    assert_eq!(post(&served, &unknown, body).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_savepoint_is_removed_before_the_request_is_answered_and_each_server_knows_that() {
    let (served, leader) = Served::leading(ScriptedDispatcher::default()).await;
    let path = "/v1/savepoint-disposal";
    let (status, body) = post(&served, path, json!({"savepoint-path": "file:///sp/a"})).await;
    assert_eq!(status, StatusCode::OK, "{body}");
    assert_eq!(*leader.disposed.lock(), ["/sp/a"]);
    let trigger = body["request-id"].as_str().expect("an id").to_owned();
    let (next, _) = Served::leading(ScriptedDispatcher::default()).await;
    let answer = next.get(&format!("{path}/{trigger}")).await;
    assert_eq!(
        answer.body,
        json!({"status": {"id": "COMPLETED"}, "operation": {}})
    );
    for (trigger, status) in [("7".repeat(32), 404), ("x".to_owned(), 400)] {
        let answer = next.get(&format!("{path}/{trigger}")).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    let cases = [
        (json!({"savepoint-path": "/missing"}), 404),
        (json!({"savepoint-path": "/needed"}), 409),
        (json!({"savepoint-path": ""}), 400),
        (json!({"savepoint-path": "relative"}), 400),
        (json!({}), 400),
    ];
    for (body, expected) in cases {
        let (status, answer) = post(&served, path, body.clone()).await;
        assert_eq!(status, expected, "{body}: {answer}");
    }
    assert_eq!(leader.disposed.lock().len(), 1);
}
