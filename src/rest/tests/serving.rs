//! Reading, cancelling, errors, and a leader that is lost during a request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::{Method, StatusCode};
use serde_json::json;
use tanist_gateway::GatewayError;
use tanist_leadership::Role;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

use super::kept_connection::KeptConnection;
use super::scripted::{ScriptedDispatcher, Served, short_timeouts};
use crate::RestServerOptions;

fn job() -> pb::JobDetails {
    pb::JobDetails {
        job_id: JobId::from_bits(1).to_string(),
        name: "count".to_owned(),
        status: pb::JobStatus::Running.into(),
        ..pb::JobDetails::default()
    }
}

fn with_job() -> ScriptedDispatcher {
    ScriptedDispatcher {
        jobs: vec![job()].into(),
        ..ScriptedDispatcher::default()
    }
}

#[tokio::test]
async fn every_path_answers_with_and_without_its_version() {
    let (served, _) = Served::leading(with_job()).await;
    let job = format!("/jobs/{}", job().job_id);
    let paths = [
        "/overview",
        "/config",
        "/jobs",
        "/jobs/overview",
        &job,
        &format!("{job}/status"),
        &format!("{job}/exceptions"),
        &format!("{job}/events"),
        &format!("{job}/execution-result"),
        &format!("{job}/plan"),
        "/taskmanagers",
        "/ha/status",
        "/ha/self",
        "/healthz",
        "/readyz",
    ];
    for path in paths {
        for prefix in ["", "/v1"] {
            let answer = served.get(&format!("{prefix}{path}")).await;
            assert_eq!(answer.status, StatusCode::OK, "{prefix}{path}: {answer:?}");
            let kind = answer.headers["content-type"].to_str().expect("text");
            assert_eq!(kind, "application/json", "{prefix}{path}");
        }
    }
}

#[tokio::test]
async fn answers_of_the_leader_say_as_of_when_they_are() {
    let (served, _) = Served::leading(with_job()).await;
    for path in read_paths() {
        let answer = served.get(&path).await;
        assert_eq!(answer.headers["tanist-epoch"], "7", "{path}");
        assert_eq!(answer.headers["tanist-change"], "42", "{path}");
        assert!(!answer.headers.contains_key("tanist-term"), "{path}");
    }
}

#[tokio::test]
async fn answers_of_a_leader_that_the_store_does_not_confirm_are_marked() {
    let suspended = ScriptedDispatcher {
        is_suspended: true,
        ..with_job()
    };
    let (served, _) = Served::leading(suspended).await;
    for path in read_paths() {
        let answer = served.get(&path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        assert_eq!(answer.headers["tanist-epoch"], "7", "{path}");
        assert_eq!(answer.headers["tanist-term"], "suspended", "{path}");
    }
}

/// Each path that the leader answers.
fn read_paths() -> Vec<String> {
    let id = job().job_id;
    let of_job = ["", "/status", "/plan", "/exceptions", "/execution-result"];
    let of_job = of_job.iter().map(|rest| format!("/v1/jobs/{id}{rest}"));
    let others = [
        "/v1/jobs",
        "/v1/jobs/overview",
        "/v1/overview",
        "/v1/taskmanagers",
    ];
    of_job.chain(others.map(str::to_owned)).collect()
}

#[tokio::test]
async fn every_read_can_be_asked_to_be_consistent() {
    let (served, leader) = Served::leading(with_job()).await;
    let asked = || leader.consistent_reads.swap(0, Ordering::Relaxed);
    for path in read_paths() {
        served.get(&path).await;
        served.get(&format!("{path}?consistent=false")).await;
        assert_eq!(asked(), 0, "{path}");
        served.get(&format!("{path}?consistent=true")).await;
        served.get(&format!("{path}?consistent")).await;
        assert_eq!(asked(), 2, "{path}");
        let answer = served.get(&format!("{path}?consistent=yes")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path}");
    }
}

#[tokio::test]
async fn a_request_that_a_frozen_leader_holds_is_answered_by_its_successor() {
    let frozen = ScriptedDispatcher {
        is_frozen: true,
        ..ScriptedDispatcher::default()
    };
    let (served, frozen) = Served::leading(frozen).await;
    let (answer, ()) = tokio::join!(served.get("/v1/jobs"), async {
        served.until_called(&frozen).await;
        served.set_successor(Arc::new(with_job()));
    });
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.body["jobs"][0]["status"], "RUNNING");
}

#[tokio::test]
async fn a_connection_that_is_kept_sees_no_error_over_a_change_of_leader() {
    let (served, _) = Served::leading(with_job()).await;
    let client = KeptConnection::to(&served).await;
    assert_eq!(client.get("/v1/jobs").await, StatusCode::OK);
    let dying = ScriptedDispatcher::failing([GatewayError::gone("the leader")]);
    served.set_leader(Some(Arc::new(dying)));
    let (status, ()) = tokio::join!(client.get("/v1/jobs"), async {
        served.set_leader(None);
        served.set_successor(Arc::new(with_job()));
    });
    assert_eq!(status, StatusCode::OK);
    assert_eq!(client.get("/v1/jobs").await, StatusCode::OK);
}

#[tokio::test]
async fn cancelling_is_accepted_once_the_leader_has_it() {
    let (served, leader) = Served::leading(with_job()).await;
    let path = format!("/v1/jobs/{}", job().job_id);
    for query in ["?mode=cancel", ""] {
        let path = format!("{path}{query}");
        let answer = served.ask(Method::PATCH, &path, &[], "").await;
        assert_eq!(answer.status, StatusCode::ACCEPTED);
        assert_eq!(answer.body, json!({}));
    }
    assert_eq!(
        leader.canceled.lock().as_slice(),
        [job().job_id, job().job_id]
    );
    let answer = served
        .ask(Method::PATCH, &format!("{path}?mode=suspend"), &[], "")
        .await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn stopping_is_asked_for_in_both_of_flinks_ways() {
    let (served, leader) = Served::leading(with_job()).await;
    let path = format!("/v1/jobs/{}", job().job_id);
    let answer = served
        .ask(Method::PATCH, &format!("{path}?mode=stop"), &[], "")
        .await;
    assert_eq!(answer.status, StatusCode::ACCEPTED);
    let path = format!("{path}/stop");
    for body in ["", r#"{"drain": true}"#, r#"{"targetDirectory": null}"#] {
        let answer = served.ask(Method::POST, &path, &[], body).await;
        assert_eq!(answer.status, StatusCode::ACCEPTED);
        assert_eq!(answer.body, json!({"request-id": job().job_id}));
    }
    let stopped = leader.stopped.lock().len();
    assert_eq!(stopped, 4);
    let refused = [
        ("no", "not valid JSON: line 1, column 2"),
        (r#"{"drain": "no"}"#, "another shape: line 1"),
        (r#"{"target-directory": "/s"}"#, "unknown field"),
        (r#"{"drain": false}"#, "stop with drain"),
        (
            r#"{"drain": false}"#,
            "`execution.checkpointing.savepoint-dir`",
        ),
        (
            r#"{"drain": true, "targetDirectory": "/s"}"#,
            "a drained job has processed all",
        ),
        (r#"{"targetDirectory": ""}"#, "it is empty"),
        (r#"{"targetDirectory": "s"}"#, "it is no absolute path"),
        (
            r#"{"targetDirectory": "/s", "formatType": "OTHER"}"#,
            "no savepoint format",
        ),
        (r#"{"triggerId": "7"}"#, "not a trigger id"),
    ];
    for (body, text) in refused {
        let answer = served.ask(Method::POST, &path, &[], body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        let error = answer.body["errors"][0].as_str().expect("a text");
        assert!(error.contains(text), "{body}: {error}");
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_said_in_flinks_error_body() {
    let (served, _) = Served::leading(with_job()).await;
    let id = JobId::from_bits(1);
    let unknown = JobId::from_bits(2);
    let cases = [
        ("/v1/nothing".to_owned(), 404, "there is no path"),
        ("/nothing".to_owned(), 404, "there is no path"),
        ("/v1/jobs/xyz".to_owned(), 400, "is not a job id"),
        (format!("/v1/jobs/{unknown}"), 404, "is not known"),
        (
            format!("/v1/jobs/{id}/vertices/xyz"),
            400,
            "is not a vertex id",
        ),
        (
            format!("/v1/jobs/{id}/vertices/{unknown}"),
            404,
            "has no vertex",
        ),
        (
            format!("/v1/jobs/{id}/exceptions?maxExceptions=many"),
            400,
            "maxExceptions must be a whole number, not \"many\"",
        ),
        ("/v1/taskmanagers/tm-1".to_owned(), 404, "no TaskManager"),
    ];
    for (path, status, text) in cases {
        let answer = served.get(&path).await;
        assert_eq!(answer.status, status, "{path}: {answer:?}");
        let errors = answer.body["errors"].as_array().expect("an array");
        assert_eq!(errors.len(), 1, "{path}");
        let error = errors[0].as_str().expect("a text");
        assert!(error.contains(text), "{path}: {error}");
    }
    let retry = format!("/v1/jobs/{id}/quarantine/retry?from-checkpoint=7&accept-duplicates=yes");
    let answer = served.ask(Method::POST, &retry, &[], "").await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    let error = "the query parameter `accept-duplicates=yes` is neither true nor false";
    assert_eq!(answer.body, json!({"errors": [error]}));
    let answer = served.ask(Method::DELETE, "/v1/jobs", &[], "").await;
    assert_eq!(answer.status, StatusCode::METHOD_NOT_ALLOWED);
    assert!(answer.body["errors"][0].is_string(), "{answer:?}");
}

#[tokio::test]
async fn each_error_of_the_leader_has_its_code() {
    let lost = |_| GatewayError::NoAnswer {
        target: "the leader".to_owned(),
        reason: "it is gone".to_owned(),
    };
    let text = || "so".to_owned();
    let cases = [
        (GatewayError::Invalid(text()), 400),
        (GatewayError::NotFound(text()), 404),
        (GatewayError::Conflict(text()), 409),
        (GatewayError::Internal(text()), 500),
        (GatewayError::NotYet(text()), 503),
        (GatewayError::gone("the leader"), 503),
        (lost(()), 503),
        (
            GatewayError::Outdated {
                epoch: 9,
                reason: text(),
            },
            503,
        ),
        (GatewayError::Unknown(text()), 503),
    ];
    for (error, code) in cases {
        let always = std::iter::repeat_n(error.clone(), 1000);
        let leader = Arc::new(ScriptedDispatcher::failing(always));
        let served = Served::over(Some(leader), short_timeouts()).await;
        let answer = served.get("/v1/overview").await;
        assert_eq!(answer.status, code, "{error:?}");
        assert_eq!(answer.body, json!({"errors": [error.to_string()]}));
        let retry_after = answer.headers.contains_key("retry-after");
        assert_eq!(retry_after, code == 503, "{error:?}");
    }
}

#[tokio::test]
async fn a_request_waits_for_a_leader_and_is_told_when_there_is_none() {
    let served = Served::over(None, short_timeouts()).await;
    let answer = served.get("/v1/jobs").await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    let error = answer.body["errors"][0].as_str().expect("a text");
    assert!(error.contains("leader election"), "{error}");

    let served = Served::over(None, RestServerOptions::default()).await;
    let (answer, ()) = tokio::join!(served.get("/v1/jobs"), async {
        served.until_a_request_waits().await;
        served.set_leader(Some(Arc::new(with_job())));
    });
    assert_eq!(answer.status, StatusCode::OK);
    assert_eq!(answer.body["jobs"][0]["status"], "RUNNING");
}

#[tokio::test]
async fn a_leader_that_goes_in_the_middle_is_replaced_by_the_next() {
    let errors = [
        GatewayError::gone("the leader"),
        GatewayError::NotYet("recovering".to_owned()),
        GatewayError::Outdated {
            epoch: 8,
            reason: "a younger term".to_owned(),
        },
    ];
    let leader = ScriptedDispatcher::failing(errors);
    leader.jobs.lock().push(job());
    let (served, leader) = Served::leading(leader).await;
    let answer = served.get("/v1/jobs").await;
    assert_eq!(answer.status, StatusCode::OK);
    assert!(leader.errors.lock().is_empty());
}

#[tokio::test]
async fn a_server_that_stops_keeps_nobody_waiting() {
    let served = Served::over(None, RestServerOptions::default()).await;
    let stop = served.stop.clone();
    let (answer, ()) = tokio::join!(served.get("/v1/jobs"), async {
        served.until_a_request_waits().await;
        stop.cancel();
    });
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    served.serving.await.expect("it ends");
}

#[tokio::test]
async fn readiness_follows_the_knowledge_of_a_leader() {
    let served = Served::over(None, RestServerOptions::default()).await;
    let ready = async |role| {
        served.set_role(role);
        served.get("/readyz").await.status.as_u16()
    };
    assert_eq!(ready(Role::Standby).await, 503);
    assert_eq!(ready(Role::Recovering).await, 503);
    assert_eq!(ready(Role::Leading).await, 200);
    served.set_leader(Some(Arc::default()));
    assert_eq!(ready(Role::Standby).await, 200);
    assert_eq!(ready(Role::Refused).await, 503);
    assert_eq!(ready(Role::Connecting).await, 503);
    assert_eq!(served.get("/healthz").await.status, StatusCode::OK);
}

#[tokio::test]
async fn task_managers_are_drained_one_or_all_of_a_host_with_what_the_body_says() {
    let location = pb::TaskManagerLocation {
        resource_id: "tm-1".to_owned(),
        rpc_address: "host-a:6122".to_owned(),
        ..pb::TaskManagerLocation::default()
    };
    let dispatcher = ScriptedDispatcher {
        task_managers: vec![pb::TaskManagerInfo {
            location: Some(location),
            ..pb::TaskManagerInfo::default()
        }],
        ..ScriptedDispatcher::default()
    };
    let (served, leader) = Served::leading(dispatcher).await;
    let body =
        r#"{"evict": true, "deadline": "30 min", "force": true, "by": "anna", "reason": "a disk"}"#;
    for (path, body, status) in [
        ("/v1/taskmanagers/tm-1/drain", "", 202),
        ("/v1/taskmanagers/tm-1/drain", body, 202),
        ("/v1/taskmanagers/tm-1/undrain", "", 202),
        ("/v1/hosts/host-a/drain", r#"{"deadline": "500"}"#, 202),
        ("/v1/hosts/host-a/undrain", "", 202),
        ("/v1/hosts/host-b/drain", "", 404),
        ("/v1/taskmanagers/tm-1/drain", r#"{"evcit": true}"#, 400),
        (
            "/v1/taskmanagers/tm-1/drain",
            r#"{"deadline": "soon"}"#,
            400,
        ),
    ] {
        let answer = served.ask(Method::POST, path, &[], body).await;
        assert_eq!(answer.status.as_u16(), status, "{path} {body}");
    }
    let plain = pb::DrainTaskManagerRequest {
        resource_id: "tm-1".to_owned(),
        ..pb::DrainTaskManagerRequest::default()
    };
    let of_host = pb::DrainTaskManagerRequest {
        host: "host-a".to_owned(),
        ..pb::DrainTaskManagerRequest::default()
    };
    let undrain = |request: &pb::DrainTaskManagerRequest| pb::DrainTaskManagerRequest {
        undrain: true,
        ..request.clone()
    };
    let expected = [
        plain.clone(),
        pb::DrainTaskManagerRequest {
            evict: true,
            deadline_in_ms: 30 * 60_000,
            force: true,
            by: "anna".to_owned(),
            reason: "a disk".to_owned(),
            ..plain.clone()
        },
        undrain(&plain),
        pb::DrainTaskManagerRequest {
            deadline_in_ms: 500,
            ..of_host.clone()
        },
        undrain(&of_host),
    ];
    assert_eq!(*leader.drains.lock(), expected);
}
