//! The events and failures of a job.

use serde_json::json;
use tanist_proto::v1 as pb;

use super::super::events::{events_of, events_with_tasks};
use super::super::exceptions::exceptions_of;
use super::{failure, job, to_json};

fn entered(state: pb::ExecutionState, at_ms: u64) -> pb::ExecutionTimestamp {
    pb::ExecutionTimestamp {
        state: state.into(),
        at_ms,
    }
}

#[test]
fn what_failed_with_a_failure_is_listed_below_it() {
    let mut root = failure(1500, "root");
    root.concurrent = vec![failure(1501, "other")];
    let job = pb::JobDetails {
        failures: vec![root],
        ..job()
    };
    let listed = to_json(exceptions_of(&job, 1));
    let root = &listed["exceptionHistory"]["entries"][0];
    assert_eq!(root["exceptionName"], "root");
    let others = root["concurrentExceptions"].as_array();
    let others = others.expect("a list");
    assert_eq!(
        (others.len(), &others[0]["stacktrace"]),
        (1, &json!("other"))
    );
    assert_eq!(others[0].get("concurrentExceptions"), None);
}

#[test]
fn what_happened_to_a_job_is_listed_newest_first_up_to_the_maximum() {
    let event = |at_ms, kind: pb::JobEventKind| pb::JobEvent {
        at_ms,
        kind: kind.into(),
        epoch: 7,
        ..pb::JobEvent::default()
    };
    let job = pb::JobDetails {
        events: vec![
            pb::JobEvent {
                status: pb::JobStatus::Running.into(),
                ..event(1, pb::JobEventKind::Status)
            },
            pb::JobEvent {
                task: "sums (1/2)".to_owned(),
                text: "it broke".to_owned(),
                until_ms: 9,
                regions: 2,
                ..event(2, pb::JobEventKind::Restart)
            },
        ],
        ..job()
    };
    let restart = json!({
        "timestamp": 2, "kind": "RESTART", "epoch": 7, "task": "sums (1/2)", "regions": 2,
        "until": 9, "text": "it broke"
    });
    let running = json!({
        "timestamp": 1, "kind": "STATUS", "epoch": 7, "status": "RUNNING", "text": ""
    });
    assert_eq!(
        to_json(events_of(&job, 1)),
        json!({"events": [restart], "truncated": true})
    );
    assert_eq!(
        to_json(events_of(&job, 9)),
        json!({"events": [restart, running], "truncated": false})
    );
    let mut job = job;
    job.vertices[1].subtasks[0].timestamps = vec![
        entered(pb::ExecutionState::Scheduled, 1),
        entered(pb::ExecutionState::Running, 3),
    ];
    let task = |at_ms: u64, status: &str| {
        json!({
            "timestamp": at_ms, "kind": "TASK", "status": status, "task": "sums (1/2)", "attempt": 2,
            "text": "worker:5001"
        })
    };
    let all = json!([task(3, "RUNNING"), restart, task(1, "SCHEDULED"), running]);
    assert_eq!(
        to_json(events_with_tasks(&job, 9)),
        json!({"events": all, "truncated": false})
    );
    assert_eq!(
        to_json(events_with_tasks(&job, 1)),
        json!({"events": [task(3, "RUNNING")], "truncated": true})
    );
}

#[test]
fn failures_are_listed_newest_first_up_to_the_maximum() {
    let entry = |name: &str, trace: &str, at: u64| {
        json!({
            "exceptionName": name, "stacktrace": trace, "timestamp": at, "taskName": "sums (1/2)",
            "endpoint": "worker:5001", "taskManagerId": "tm-1", "failureLabels": {},
            "concurrentExceptions": []
        })
    };
    let second = entry("second", "second\nin detail", 1400);
    let first = entry("first", "first", 1300);
    assert_eq!(
        to_json(exceptions_of(&job(), 1)),
        json!({"exceptionHistory": {"entries": [second], "truncated": true}})
    );
    assert_eq!(
        to_json(exceptions_of(&job(), 20)),
        json!({"exceptionHistory": {"entries": [second, first], "truncated": false}})
    );
}
