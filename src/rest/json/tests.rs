//! The bodies, compared literally.

mod failures;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tanist_proto::v1 as pb;
use tanist_rest_model::JobStatusBody;

use super::blocked_reason::quarantine_list;
use super::cluster::{Overview, UiConfig};
use super::events::events_with_tasks;
use super::exceptions::exceptions_of;
use super::failure_cause::failure_cause;
use super::job::{JobIdAndStatus, job_info, job_summary, status_of};
use super::result::ExecutionResult;
use super::task_managers::{TaskManagerDetails, task_manager_list};
use super::vertex::{SubtaskTimesBody, vertex_subtasks};

/// Id of the group `default` in the job of these tests: the first half of the SHA-256 of job id, a zero byte
/// and name.
const SHARING_GROUP: &str = "e47f0c355e6742af7d2f538e9ffe71fd";

fn subtask(index: u32, state: pb::ExecutionState) -> pb::SubtaskDetails {
    pb::SubtaskDetails {
        subtask: index,
        state: state.into(),
        attempt: 2,
        host: "worker:5001".to_owned(),
        resource_id: "tm-1".to_owned(),
        started_at_ms: 1_500,
        ended_at_ms: 0,
        metrics: Some(pb::TaskMetrics {
            records_in: 10,
            records_out: 5,
            bytes_in: 100,
            bytes_out: 50,
            late_records_dropped: 2,
            records_skipped: 3,
            peer_away_since_ms: 0,
            state_bytes: 7,
        }),
        timestamps: Vec::new(),
        unread_state: String::new(),
    }
}

fn job() -> pb::JobDetails {
    let at = |status: pb::JobStatus, at_ms| pb::StatusTimestamp {
        status: status.into(),
        at_ms,
    };
    let vertex = |id: &str, name: &str, subtasks| pb::VertexDetails {
        id: id.to_owned(),
        name: name.to_owned(),
        parallelism: 2,
        max_parallelism: 128,
        slot_sharing_group: "default".to_owned(),
        subtasks,
    };
    use pb::ExecutionState::{Created, Running};
    let unplaced = pb::SubtaskDetails {
        subtask: 1,
        state: Created.into(),
        ..pb::SubtaskDetails::default()
    };
    pb::JobDetails {
        job_id: "a".repeat(32),
        name: "count".to_owned(),
        status: pb::JobStatus::Running.into(),
        started_at_ms: 1_000,
        ended_at_ms: 0,
        max_parallelism: 128,
        timestamps: vec![
            at(pb::JobStatus::Initializing, 1_000),
            at(pb::JobStatus::Created, 1_100),
            at(pb::JobStatus::Running, 1_200),
        ],
        vertices: vec![
            vertex("b", "lines", vec![subtask(0, Running), subtask(1, Running)]),
            vertex("c", "sums", vec![subtask(0, Running), unplaced]),
        ],
        edges: vec![pb::JobEdgeDetails {
            source: "b".to_owned(),
            target: "c".to_owned(),
            partitioning: "hash".to_owned(),
            blocking: false,
        }],
        failures: vec![failure(1_300, "first"), failure(1_400, "second\nin detail")],
        restarts: 2,
        quarantine: String::new(),
        cleaning_up: false,
        state_sizes: Vec::new(),
        left_behind: String::new(),
        checkpoints: None,
        as_of: None,
        quarantined: None,
        blocked_reasons: Vec::new(),
        state_counts: Vec::new(),
        undescribed: String::new(),
        events: Vec::new(),
        cause: String::new(),
    }
}

fn failure(at_ms: u64, cause: &str) -> pb::FailureRecord {
    pb::FailureRecord {
        at_ms,
        cause: cause.to_owned(),
        task: "sums (1/2)".to_owned(),
        host: "worker:5001".to_owned(),
        resource_id: "tm-1".to_owned(),
        is_consequence: false,
        concurrent: vec![],
    }
}

fn to_json(body: impl Serialize) -> Value {
    serde_json::to_value(body).expect("bodies are JSON")
}

fn metrics(factor: u64, complete: bool) -> Value {
    json!({
        "read-bytes": 100 * factor, "read-bytes-complete": complete,
        "write-bytes": 50 * factor, "write-bytes-complete": complete,
        "read-records": 10 * factor, "read-records-complete": complete,
        "write-records": 5 * factor, "write-records-complete": complete,
        "late-records-dropped": 2 * factor, "records-skipped": 3 * factor, "state-bytes": 7 * factor,
        "accumulated-backpressured-time": 0, "accumulated-idle-time": 0, "accumulated-busy-time": 0
    })
}

#[test]
fn a_job_has_flinks_fields() {
    let counts = |created: u64, running: u64| {
        json!({
            "CREATED": created, "SCHEDULED": 0, "DEPLOYING": 0, "RUNNING": running, "FINISHED": 0,
            "CANCELING": 0, "CANCELED": 0, "FAILED": 0, "RECONCILING": 0, "INITIALIZING": 0
        })
    };
    let node = |id: &str, name: &str| {
        json!({
            "id": id, "parallelism": 2, "operator": "", "operator_strategy": "",
            "description": name, "optimizer_properties": {}
        })
    };
    let mut sums = node("c", "sums");
    sums["inputs"] =
        json!([{"num": 0, "id": "b", "ship_strategy": "HASH", "exchange": "pipelined_bounded"}]);
    let vertex = |id: &str, name: &str, tasks: Value, metrics: Value| {
        json!({
            "id": id, "slotSharingGroupId": SHARING_GROUP, "slot-sharing-group": "default", "name": name, "maxParallelism": 128,
            "parallelism": 2, "status": "RUNNING", "start-time": 1500, "end-time": -1,
            "duration": 500, "tasks": tasks, "metrics": metrics
        })
    };
    let expected = json!({
        "jid": "a".repeat(32),
        "name": "count",
        "isStoppable": true,
        "state": "RUNNING",
        "shown-state": "RUNNING",
        "job-type": "STREAMING",
        "start-time": 1000,
        "end-time": -1,
        "duration": 1000,
        "maxParallelism": 128,
        "now": 2000,
        "timestamps": {
            "INITIALIZING": 1000, "CREATED": 1100, "RUNNING": 1200, "FAILING": 0, "FAILED": 0,
            "CANCELLING": 0, "CANCELED": 0, "FINISHED": 0, "RESTARTING": 0, "SUSPENDED": 0,
            "RECONCILING": 0
        },
        "vertices": [
            vertex("b", "lines", counts(0, 2), metrics(2, true)),
            vertex("c", "sums", counts(1, 1), metrics(1, false)),
        ],
        "status-counts": counts(0, 2),
        "plan": {
            "jid": "a".repeat(32), "name": "count", "type": "STREAMING",
            "nodes": [node("b", "lines"), sums]
        },
        "pending-operators": 0,
        "restarts": 2,
        "cleaning-up": false,
        "blocked-by": []
    });
    assert_eq!(to_json(job_info(&job(), 2_000)), expected);
}

#[test]
fn the_lists_of_jobs_have_flinks_fields() {
    let job = job();
    assert_eq!(
        to_json(JobIdAndStatus::new(&job)),
        json!({"id": "a".repeat(32), "status": "RUNNING"})
    );
    let expected = json!({
            "jid": "a".repeat(32), "name": "count", "start-time": 1000, "end-time": -1,
            "duration": 1000, "state": "RUNNING", "shown-state": "RUNNING", "last-modification": 1200,
            "tasks": {
                "total": 4, "created": 1, "scheduled": 0, "deploying": 0, "running": 3,
                "finished": 0, "canceling": 0, "canceled": 0, "failed": 0, "reconciling": 0,
                "initializing": 0
            },
            "pending-operators": 0, "job-type": "STREAMING"
    });
    assert_eq!(to_json(job_summary(&job, 2_000)), expected);
}

#[test]
fn a_vertex_lists_every_subtask_with_its_place_and_attempt() {
    let never = json!({
        "CREATED": 0, "SCHEDULED": 0, "DEPLOYING": 0, "INITIALIZING": 0, "RUNNING": 0, "FINISHED": 0,
        "CANCELING": 0, "CANCELED": 0, "FAILED": 0, "RECONCILING": 0
    });
    let mut unmeasured = never.clone();
    for duration in unmeasured.as_object_mut().expect("an object").values_mut() {
        *duration = json!(-1);
    }
    let statistics = |both: [i64; 2]| {
        let [min, max] = both;
        json!({
            "min": min, "max": max, "avg": (min + max) / 2, "sum": min + max, "median": (min + max) / 2,
            "p25": min, "p75": max, "p95": max
        })
    };
    let never_in = statistics([-1, -1]);
    let expected = json!({
        "id": "c", "name": "sums", "parallelism": 2, "maxParallelism": 128, "now": 2000,
        "subtasks": [
            {
                "subtask": 0, "status": "RUNNING", "attempt": 2, "host": "worker:5001",
                "endpoint": "worker:5001", "start-time": 1500, "start_time": 1500, "end-time": -1, "duration": 500,
                "metrics": metrics(1, true), "taskmanager-id": "tm-1", "timestamps": never,
                "status-duration": unmeasured, "other-concurrent-attempts": []
            },
            {
                "subtask": 1, "status": "CREATED", "attempt": 0, "host": "(unassigned)",
                "endpoint": "(unassigned)", "start-time": -1, "start_time": -1, "end-time": -1, "duration": -1,
                "metrics": metrics(0, false), "taskmanager-id": "(unassigned)",
                "timestamps": never, "status-duration": unmeasured, "other-concurrent-attempts": []
            }
        ],
        "aggregated": {
            "metrics": {
                "read-bytes": statistics([0, 100]), "write-bytes": statistics([0, 50]),
                "read-records": statistics([0, 10]),
                "state-bytes": {
                    "min": 0, "max": 7, "avg": 3, "sum": 7, "median": 3, "p25": 0, "p75": 7, "p95": 7
                },
                "write-records": {
                    "min": 0, "max": 5, "avg": 2, "sum": 5, "median": 2, "p25": 0, "p75": 5, "p95": 5
                },
                "accumulated-backpressured-time": statistics([0, 0]),
                "accumulated-idle-time": statistics([0, 0]),
                "accumulated-busy-time": statistics([0, 0])
            },
            "status-duration": {
                "CREATED": never_in, "SCHEDULED": never_in, "DEPLOYING": never_in,
                "INITIALIZING": never_in, "RUNNING": never_in
            }
        }
    });
    assert_eq!(
        to_json(vertex_subtasks(&job().vertices[1], 2_000)),
        expected
    );
}

#[test]
fn a_result_is_there_once_the_job_has_ended() {
    assert_eq!(
        to_json(ExecutionResult::new(&job())),
        json!({"status": {"id": "IN_PROGRESS"}})
    );
    let ended = |status: pb::JobStatus| pb::JobDetails {
        status: status.into(),
        ended_at_ms: 1_800,
        ..job()
    };
    let result = |status: &str| {
        json!({
            "status": {"id": "COMPLETED"},
            "job-execution-result": {
                "id": "a".repeat(32), "application-status": status, "accumulator-results": {},
                "net-runtime": 800
            }
        })
    };
    let finished = ExecutionResult::new(&ended(pb::JobStatus::Finished));
    assert_eq!(to_json(finished), result("SUCCEEDED"));
    let mut failed = result("FAILED");
    failed["job-execution-result"]["failure-cause"] =
        to_json(failure_cause("tanist.JobFailed", "second\nin detail"));
    assert_eq!(
        to_json(ExecutionResult::new(&ended(pb::JobStatus::Failed))),
        failed
    );
}

#[test]
fn a_job_without_slots_is_shown_as_waiting_and_keeps_flinks_status() {
    let lacking = |states: [pb::ExecutionState; 2]| {
        let mut job = pb::JobDetails {
            blocked_reasons: vec![pb::BlockedReason {
                kind: pb::BlockedReasonKind::NoSlots.into(),
                ..pb::BlockedReason::default()
            }],
            ..job()
        };
        job.vertices.truncate(1);
        for (subtask, state) in job.vertices[0].subtasks.iter_mut().zip(states) {
            subtask.set_state(state);
        }
        [
            to_json(job_info(&job, 2_000)),
            to_json(job_summary(&job, 2_000)),
        ]
    };
    use pb::ExecutionState::{Created, Finished, Running, Scheduled};
    for (states, shown) in [
        ([Created, Scheduled], "WAITING"),
        ([Finished, Created], "WAITING"),
        ([Running, Created], "RUNNING"),
    ] {
        for body in lacking(states) {
            assert_eq!(body["state"], "RUNNING");
            assert_eq!(body["shown-state"], shown, "{states:?}");
        }
    }
}

#[test]
fn a_quarantined_job_is_suspended_and_says_why() {
    let job = pb::JobDetails {
        quarantine: "its graph can't be read".to_owned(),
        ..job()
    };
    assert_eq!(
        to_json(JobStatusBody {
            status: status_of(&job)
        }),
        json!({"status": "SUSPENDED"})
    );
    for body in [
        to_json(job_info(&job, 2_000)),
        to_json(job_summary(&job, 2_000)),
    ] {
        assert_eq!(body["state"], "SUSPENDED");
        assert_eq!(body["quarantine"], "its graph can't be read");
    }
}

#[test]
fn a_failed_job_says_why_it_was_not_restarted() {
    let cause = "lines (1/2): it broke (not restarted: all 2 restarts are used up)";
    let job = pb::JobDetails {
        status: pb::JobStatus::Failed.into(),
        cause: cause.to_owned(),
        ..job()
    };
    for body in [
        to_json(job_info(&job, 2_000)),
        to_json(job_summary(&job, 2_000)),
    ] {
        assert_eq!(body["cause"], cause);
    }
}

#[test]
fn a_task_manager_has_flinks_fields() {
    let info = pb::TaskManagerInfo {
        location: Some(pb::TaskManagerLocation {
            resource_id: "tm-1".to_owned(),
            incarnation: "x".to_owned(),
            rpc_address: "worker:5000".to_owned(),
            data_address: "worker:5001".to_owned(),
        }),
        last_heartbeat_ms: 1_900,
        drain: None,
        slots_number: 4,
        free_slots: 1,
        hardware: Some(pb::HardwareDescription {
            cpu_cores: 8,
            physical_memory_bytes: 1 << 34,
        }),
        total_profile: Some(pb::ResourceProfile {
            cpu_cores: 4.0,
            memory_bytes: 1 << 30,
            network_memory_bytes: 64 << 20,
            managed_memory_bytes: 128 << 20,
            ..pb::ResourceProfile::default()
        }),
        free_profile: Some(pb::ResourceProfile {
            cpu_cores: 1.0,
            memory_bytes: 256 << 20,
            network_memory_bytes: 16 << 20,
            managed_memory_bytes: 32 << 20,
            ..pb::ResourceProfile::default()
        }),
        draining: false,
        memory_configuration: Some(pb::MemoryConfiguration {
            process_limit_bytes: 3 << 30,
            framework_bytes: 1 << 27,
            overhead_bytes: 1 << 28,
        }),
        allocated_slots: vec![pb::AllocatedSlot {
            job_id: "a".repeat(32),
            profile: Some(pb::ResourceProfile {
                cpu_cores: 1.0,
                memory_bytes: 256 << 20,
                network_memory_bytes: 16 << 20,
                managed_memory_bytes: 32 << 20,
                ..pb::ResourceProfile::default()
            }),
            tasks: 3,
        }],
    };
    let resource = |cores: f64, memory: u64| {
        json!({
            "cpuCores": cores, "taskHeapMemory": memory - memory / 16 * 3, "taskOffHeapMemory": 0,
            "managedMemory": memory / 8, "networkMemory": memory / 16, "extendedResources": {}
        })
    };
    let expected = json!({"taskmanagers": [{
        "id": "tm-1", "path": "worker:5000", "dataPort": 5001, "jmxPort": -1,
        "timeSinceLastHeartbeat": 1900, "slotsNumber": 4, "freeSlots": 1, "assignedTasks": 3,
        "totalResource": resource(4.0, 1024), "freeResource": resource(1.0, 256),
        "hardware": {
            "cpuCores": 8, "physicalMemory": 1u64 << 34, "freeMemory": 0, "managedMemory": 1 << 27
        },
        "memoryConfiguration": {
            "frameworkHeap": 1 << 27, "taskHeap": 13 << 26, "frameworkOffHeap": 0, "taskOffHeap": 0,
            "networkMemory": 1 << 26, "managedMemory": 1 << 27, "jvmMetaspace": 0,
            "jvmOverhead": 1 << 28, "totalFlinkMemory": 9 << 27, "totalProcessMemory": 11 << 27
        },
        "blocked": false
    }]});
    let details = to_json(TaskManagerDetails::new(&info));
    for (name, value) in expected["taskmanagers"][0].as_object().expect("an object") {
        assert_eq!(details[name], *value, "{name}");
    }
    assert_eq!(
        details["allocatedSlots"],
        json!([{"jobId": "a".repeat(32), "resource": resource(1.0, 256), "assignedTasks": 3}])
    );
    let metrics = &details["metrics"];
    assert_eq!(metrics["nettyShuffleMemoryTotal"], 64 << 20);
    assert_eq!(metrics["nettyShuffleMemoryUsed"], 48 << 20);
    let list = pb::ListTaskManagersResponse {
        task_managers: vec![info],
        ..pb::ListTaskManagersResponse::default()
    };
    assert_eq!(to_json(task_manager_list(&list)), expected);
    let pending = pb::PendingWorker {
        resource_id: "worker-1".to_owned(),
        slots: 2,
        requested_at_ms: 7,
    };
    let list = pb::ListTaskManagersResponse {
        workers: Some(pb::WorkersInfo {
            pending: vec![pending],
            start_failures: 3,
            text: "1 TaskManager is being started".to_owned(),
            retry_at_ms: 9,
        }),
        unmatched_drains: vec![pb::DrainInfo {
            since_ms: 5,
            by: "anna".to_owned(),
            resource_id: "tm-9".to_owned(),
            ..pb::DrainInfo::default()
        }],
        ..pb::ListTaskManagersResponse::default()
    };
    let drain = json!({
        "since": 5, "by": "anna", "reason": "", "host": "", "task-manager": "tm-9", "evicting": false,
        "deadline": -1, "force": false, "jobs": [], "kept-outputs": 0, "drained": false
    });
    let expected = json!({"taskmanagers": [], "unmatched-drains": [drain], "starting": {
        "pending": [{"id": "worker-1", "slots": 2, "since": 7}],
        "failures": 3, "text": "1 TaskManager is being started", "retry-at": 9
    }});
    assert_eq!(to_json(task_manager_list(&list)), expected);
}

#[test]
fn the_cluster_has_flinks_fields() {
    let overview = pb::ClusterOverview {
        task_managers: 2,
        slots_total: 8,
        slots_available: 3,
        jobs_running: 1,
        jobs_finished: 4,
        jobs_cancelled: 5,
        jobs_failed: 6,
        task_managers_blocked: 1,
        slots_free_and_blocked: 2,
        ..pb::ClusterOverview::default()
    };
    let expected = json!({
        "taskmanagers": 2, "taskmanagers-blocked": 1, "taskmanagers-pending": 0, "slots-total": 8, "slots-available": 3,
        "slots-free-and-blocked": 2, "jobs-running": 1, "jobs-finished": 4, "jobs-cancelled": 5,
        "jobs-failed": 6, "flink-version": super::VERSION,
        "flink-commit": super::REVISION
    });
    assert_eq!(to_json(Overview::new(&overview)), expected);
    let expected = json!({
        "refresh-interval": 3000, "timezone-name": "UTC", "timezone-offset": 0,
        "flink-version": super::VERSION,
        "flink-revision": super::REVISION,
        "features": {
            "web-submit": false, "web-cancel": true, "web-rescale": false, "web-history": false
        }
    });
    assert_eq!(to_json(UiConfig::default()), expected);
}

#[test]
fn a_job_says_what_it_waits_for() {
    let job = pb::JobDetails {
        blocked_reasons: vec![pb::BlockedReason {
            kind: pb::BlockedReasonKind::NoSlots.into(),
            text: "1 of 2 slots are missing".to_owned(),
            since_ms: 1_200,
            slots_needed: 2,
            slots_missing: 1,
            missing: vec!["sums (2/2)".to_owned()],
            retry_at_ms: 3_000,
            ..pb::BlockedReason::default()
        }],
        ..job()
    };
    let body = body_of(&job_info(&job, 2_000));
    let expected = serde_json::json!([{
        "kind": "no-slots", "text": "1 of 2 slots are missing", "since": 1_200, "until": -1, "retry-at": 3_000,
        "slots-needed": 2, "slots-missing": 1, "missing": ["sums (2/2)"]
    }]);
    assert_eq!(body["blocked-by"], expected);
    let listed = body_of(&job_summary(&job, 2_000));
    assert_eq!(listed["blocked-by"], "1 of 2 slots are missing");
}

#[test]
fn a_subtask_says_when_it_entered_each_state() {
    let mut job = job();
    job.vertices[0].subtasks[0].timestamps = vec![pb::ExecutionTimestamp {
        state: pb::ExecutionState::Deploying.into(),
        at_ms: 1_500,
    }];
    let body = body_of(&vertex_subtasks(&job.vertices[0], 2_000));
    let timestamps = &body["subtasks"][0]["timestamps"];
    assert_eq!(
        (&timestamps["DEPLOYING"], &timestamps["RUNNING"]),
        (&1_500.into(), &0.into())
    );
    let times = body_of(&SubtaskTimesBody::new(&job.vertices[0], 2_000));
    assert_eq!(times["subtasks"][0]["timestamps"], *timestamps);
}

#[test]
fn quarantined_jobs_are_listed_with_what_that_rests_on() {
    let quarantined = pb::JobDetails {
        quarantine: "it ended processes".to_owned(),
        quarantined: Some(pb::Quarantine {
            kind: pb::QuarantineKind::EndedProcess.into(),
            reason: "it ended processes".to_owned(),
            since_ms: 5,
            evidence: vec![pb::QuarantineEvidence {
                epoch: 7,
                process: "jm-1".to_owned(),
                at_ms: 0,
                what: "ended".to_owned(),
            }],
        }),
        ..job()
    };
    let listing = quarantine_list(&[job(), quarantined]);
    let expected = serde_json::json!({"jobs": [{
        "jid": "a".repeat(32), "name": "count", "kind": "ended-process", "reason": "it ended processes",
        "since": 5, "evidence": [{"epoch": 7, "process": "jm-1", "at": -1, "what": "ended"}]
    }]});
    assert_eq!(body_of(&listing), expected);
}

/// What a client reads in a body is what the server wrote.
#[test]
fn every_body_that_clients_read_is_read_as_it_was_written() {
    fn check<T: Serialize + DeserializeOwned>(written: T) {
        let written = to_json(written);
        let read: T = serde_json::from_value(written.clone()).expect("of its own shape");
        assert_eq!(to_json(read), written);
    }
    let mut job = pb::JobDetails {
        quarantine: "bit rot".to_owned(),
        quarantined: Some(pb::Quarantine {
            evidence: vec![pb::QuarantineEvidence::default()],
            ..pb::Quarantine::default()
        }),
        blocked_reasons: vec![pb::BlockedReason::default()],
        events: vec![pb::JobEvent::default()],
        ..job()
    };
    job.failures[0].concurrent = vec![failure(1, "other")];
    let task_managers = pb::ListTaskManagersResponse {
        task_managers: vec![pb::TaskManagerInfo {
            drain: Some(pb::DrainInfo::default()),
            ..pb::TaskManagerInfo::default()
        }],
        unmatched_drains: vec![pb::DrainInfo::default()],
        workers: Some(pb::WorkersInfo {
            pending: vec![pb::PendingWorker::default()],
            ..pb::WorkersInfo::default()
        }),
        ..pb::ListTaskManagersResponse::default()
    };
    check(job_info(&job, 2_000));
    check(job_summary(&job, 2_000));
    check(vertex_subtasks(&job.vertices[0], 2_000));
    check(quarantine_list(&[job.clone()]));
    check(events_with_tasks(&job, 9));
    check(exceptions_of(&job, 9));
    check(task_manager_list(&task_managers));
}

fn body_of(body: &impl Serialize) -> serde_json::Value {
    serde_json::to_value(body).expect("JSON")
}
