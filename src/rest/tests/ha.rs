//! Leader, status of all members, hand-over, and metrics.

use std::sync::Arc;

use axum::http::{Method, StatusCode};
use serde_json::{Value, json};
use tanist_leadership::Role;

use super::scripted::{ScriptedDispatcher, Served};
use crate::RestServerOptions;

#[tokio::test]
async fn the_leader_and_the_members_are_told_by_any_process() {
    let (served, _) = Served::leading(ScriptedDispatcher::default()).await;
    let body = served.get("/v1/ha/status").await.body;
    let leader = json!({
        "epoch": 7, "process": "jm-1", "rest-address": "jm:10", "rpc-address": null, "since": 1000
    });
    assert_eq!(body["leader"], leader);
    let term = json!({
        "state": "leading", "epoch": 7, "process": "jm-1", "since": 1000, "state-since": 1000
    });
    assert_eq!(body["term"], term);
    for (name, value) in [("store", "etcd"), ("process", "jm-2"), ("role", "standby")] {
        assert_eq!(body[name], value, "{name}");
    }
    let members = body["members"].as_array().expect("a list");
    let names: Vec<&Value> = members.iter().map(|member| &member["process"]).collect();
    assert_eq!(names, ["jm-1", "jm-2"]);
    assert_eq!([&members[0]["leads"], &members[1]["leads"]], [true, false]);
    assert_eq!(members[1]["role"], "standby");
    let missing = &members[1]["missing-permissions"];
    assert_eq!(missing[0], "to write members");
    let warnings = body["warnings"].to_string();
    assert!(warnings.contains("jm-2 can't lead"), "{warnings}");
    let claim = json!({
        "process": "jm-2", "by": "TaskManager tm-9 at worker:5000", "epoch": 1007, "stored-epoch": 7,
        "at": 1234
    });
    assert_eq!(body["claims"], json!([claim]));
    assert!(warnings.contains("named epoch 1007 to jm-2"), "{warnings}");
    // No process has the name `jm`, so its status is missing.
    assert_eq!(members[0]["role"], Value::Null);
    assert!(members[0]["error"].is_string(), "{body}");
    let warnings = body["warnings"].to_string();
    assert!(warnings.contains("the status of jm-1"), "{warnings}");
}

#[tokio::test]
async fn earlier_terms_are_told_newest_first() {
    let (served, _) = Served::leading(ScriptedDispatcher::default()).await;
    let body = served.get("/v1/ha/history").await.body;
    let terms = body["terms"].as_array().expect("a list");
    assert_eq!([&terms[0]["epoch"], &terms[1]["epoch"]], [7, 6]);
    assert_eq!(terms[0]["detected-by"], "process-gone");
    assert_eq!(terms[0]["phases"]["confirmed"], 9.5);
    assert_eq!(
        terms[1]["ended-how"], "deposed",
        "by the one that found it gone"
    );
    assert_eq!(terms[1]["duration"], 600);
    let newest = served.get("/v1/ha/history?limit=1").await.body;
    assert_eq!(newest["terms"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn a_process_gives_an_account_of_itself() {
    let (served, _) = Served::leading(ScriptedDispatcher::default()).await;
    let body = served.get("/v1/ha/self").await.body;
    assert_eq!(body["process"], "jm-2");
    assert_eq!(body["role"], "standby");
    assert!(body["wall-clock"].as_u64().is_some_and(|ms| ms > 0));
}

#[tokio::test]
async fn a_load_balancer_finds_the_leader_by_its_status() {
    let served = Served::over(None, RestServerOptions::default()).await;
    let refused = served.get("/v1/ha/leader").await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    served.set_leader(Some(std::sync::Arc::default()));
    let refused = served.get("/v1/ha/leader").await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    let error = refused.body["errors"][0].as_str().expect("a text");
    assert!(error.contains("jm-1 leads"), "{error}");
    served.lead();
    let leader = served.get("/v1/ha/leader").await;
    assert_eq!(leader.status, StatusCode::OK);
    assert_eq!(leader.body["process"], "jm-2");
    assert_eq!(leader.body["epoch"], 7);
    // It may have a successor that it does not know.
    served.set_role(Role::Suspended);
    let refused = served.get("/v1/ha/leader").await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn leadership_is_handed_over_once_however_often_that_is_asked() {
    let (served, _) = Served::leading(ScriptedDispatcher::default()).await;
    served.lead();
    let never = "/v1/ha/transfer?epoch=9";
    let refused = served.ask(Method::POST, never, &[], "").await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{refused:?}");
    let path = "/v1/ha/transfer?epoch=7";
    let body = r#"{"to": "jm-3"}"#;
    for _ in 0..2 {
        let answer = served.ask(Method::POST, path, &[], body).await;
        assert_eq!(answer.status, StatusCode::OK, "{answer:?}");
        assert_eq!(answer.body["process"], "jm-3");
        assert_eq!(answer.body["epoch"], 8);
    }
    // With any successor, epoch 7 is over.
    let answer = served.ask(Method::POST, path, &[], "").await;
    assert_eq!(answer.body["epoch"], 8);
    let refused = served
        .ask(Method::POST, path, &[], r#"{"two": "jm-3"}"#)
        .await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_handover_after_which_another_process_leads_is_refused_by_name() {
    let (served, _) = Served::leading(ScriptedDispatcher::default()).await;
    served.lead();
    let path = "/v1/ha/transfer?to=jm-dies";
    let refused = served.ask(Method::POST, path, &[], "").await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{refused:?}");
    let error = refused.body["errors"][0].as_str().expect("a text");
    assert!(
        error.starts_with("jm-3 leads in epoch 9, not jm-dies"),
        "{error}"
    );
}

#[tokio::test]
async fn metrics_tell_how_a_process_stands_and_the_leader_tells_more() {
    let (served, _) = Served::leading(ScriptedDispatcher::default()).await;
    let scrape = async || {
        let answer = served.get("/metrics").await;
        let kind = answer.headers["content-type"].to_str().expect("text");
        assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
        answer.body.as_str().expect("text").to_owned()
    };
    let standby = scrape().await;
    for line in [
        "tanist_leader 0",
        "tanist_epoch 7",
        "tanist_members 2",
        "tanist_role{role=\"standby\"} 1",
        "tanist_role{role=\"leading\"} 0",
    ] {
        assert!(standby.lines().any(|it| it == line), "{line}: {standby}");
    }
    assert!(!standby.contains("tanist_slots"), "the leader's to tell");
    served.lead();
    let leader = scrape().await;
    for line in [
        "tanist_leader 1",
        "tanist_jobs{status=\"RUNNING\"} 1",
        "tanist_slots 8",
        "tanist_slots_free 3",
        "tanist_change 42",
        "tanist_commits_total 5",
        "tanist_commit_transactions_total 4",
        "tanist_commit_seconds_total 0.5",
        "tanist_remembered_terms 2",
        "tanist_remembered_false_alarms 1",
        "tanist_takeover_phase_milliseconds{phase=\"deposed\"} 2",
        "tanist_takeover_info{detection=\"process-gone\"} 1",
        "tanist_takeover_tasks{outcome=\"adopted\"} 12",
    ] {
        assert!(leader.lines().any(|it| it == line), "{line}: {leader}");
    }
}

#[tokio::test]
async fn a_leader_that_is_deposed_during_a_scrape_tells_nothing_of_its_successors() {
    let served = Served::over(None, RestServerOptions::default()).await;
    served.lead();
    let (answer, ()) = tokio::join!(served.get("/metrics"), async {
        served.until_a_request_waits().await;
        served.set_role(Role::Standby);
        served.set_successor(Arc::new(ScriptedDispatcher::default()));
    });
    let text = answer.body.as_str().expect("text");
    for others in ["tanist_slots", "tanist_jobs", "tanist_remembered_terms"] {
        assert!(!text.contains(others), "{others}: {text}");
    }
}
