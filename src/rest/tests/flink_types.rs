//! Every answer that has Flink's name has Flink's types: what Flink's classes need in order to read it is there, and is of the kind
//! that they parse.
//!
//! The tables say, field by field, what the constructors of Flink 2.3's message classes take, and what its published OpenAPI document
//! says of the same fields. `cargo xtask flink` lets those classes themselves read a running cluster.

use axum::http::StatusCode;
use serde_json::{Value, json};
use tanist_proto::id::{JobId, JobVertexId};
use tanist_proto::v1 as pb;

use super::scripted::{ScriptedDispatcher, Served};

/// What a value must be.
#[derive(Clone, Copy)]
enum Type {
    Bool,
    /// An integer of 32 bits.
    Int,
    /// An integer of 64 bits.
    Long,
    Number,
    Text,
    /// 32 hexadecimal digits.
    Id,
    OneOf(&'static [&'static str]),
    Object(&'static [(&'static str, Type)]),
    /// An object in which each of the names has a value of the type.
    MapOf(&'static [&'static str], &'static Type),
    /// An object with any names.
    Map(&'static Type),
    List(&'static Type),
    /// May be left out, or be null.
    Optional(&'static Type),
    /// Any JSON at all.
    Raw,
}
use Type::{Bool, Id, Int, List, Long, Map, MapOf, Number, Object, OneOf, Optional, Raw, Text};

const EXECUTION_STATES: &[&str] = &[
    "CREATED",
    "SCHEDULED",
    "DEPLOYING",
    "RUNNING",
    "FINISHED",
    "CANCELING",
    "CANCELED",
    "FAILED",
    "RECONCILING",
    "INITIALIZING",
];
const JOB_STATUSES: &[&str] = &[
    "INITIALIZING",
    "CREATED",
    "RUNNING",
    "FAILING",
    "FAILED",
    "CANCELLING",
    "CANCELED",
    "FINISHED",
    "RESTARTING",
    "SUSPENDED",
    "RECONCILING",
];
/// Those whose durations Flink's classes add up.
const MEASURED_STATES: &[&str] = &[
    "CREATED",
    "SCHEDULED",
    "DEPLOYING",
    "INITIALIZING",
    "RUNNING",
];
const STATISTICS: Type = MapOf(
    &["min", "max", "avg", "sum", "median", "p25", "p75", "p95"],
    &Long,
);
const IO_NAMES: &[&str] = &[
    "read-bytes",
    "write-bytes",
    "read-records",
    "write-records",
    "accumulated-backpressured-time",
    "accumulated-idle-time",
    "accumulated-busy-time",
];
const IO_METRICS: Type = Object(&[
    ("read-bytes", Long),
    ("read-bytes-complete", Bool),
    ("write-bytes", Long),
    ("write-bytes-complete", Bool),
    ("read-records", Long),
    ("read-records-complete", Bool),
    ("write-records", Long),
    ("write-records-complete", Bool),
    ("accumulated-backpressured-time", Long),
    ("accumulated-idle-time", Long),
    ("accumulated-busy-time", Number),
]);
const PLAN_INPUT: Type = Object(&[
    ("id", Text),
    ("num", Long),
    ("exchange", Text),
    ("ship_strategy", Optional(&Text)),
    ("local_strategy", Optional(&Text)),
    ("caching", Optional(&Text)),
]);
const PLAN_NODE: Type = Object(&[
    ("id", Text),
    ("operator", Text),
    ("parallelism", Long),
    ("operator_strategy", Text),
    ("description", Text),
    ("optimizer_properties", Raw),
    ("inputs", Optional(&List(&PLAN_INPUT))),
]);
const PLAN: Type = Object(&[
    ("jid", Text),
    ("name", Text),
    ("type", Text),
    ("nodes", List(&PLAN_NODE)),
]);
const JOB_VERTEX: Type = Object(&[
    ("id", Id),
    ("slotSharingGroupId", Id),
    ("name", Text),
    ("maxParallelism", Int),
    ("parallelism", Int),
    ("status", OneOf(EXECUTION_STATES)),
    ("start-time", Long),
    ("end-time", Long),
    ("duration", Long),
    ("tasks", MapOf(EXECUTION_STATES, &Int)),
    ("metrics", IO_METRICS),
]);
const JOB: Type = Object(&[
    ("jid", Id),
    ("name", Text),
    ("isStoppable", Bool),
    ("state", OneOf(JOB_STATUSES)),
    ("job-type", OneOf(&["BATCH", "STREAMING"])),
    ("start-time", Long),
    ("end-time", Long),
    ("duration", Long),
    ("maxParallelism", Long),
    ("now", Long),
    ("timestamps", MapOf(JOB_STATUSES, &Long)),
    ("vertices", List(&JOB_VERTEX)),
    ("status-counts", MapOf(EXECUTION_STATES, &Int)),
    ("plan", PLAN),
    ("pending-operators", Int),
]);
const JOB_IN_OVERVIEW: Type = Object(&[
    ("jid", Id),
    ("name", Text),
    ("start-time", Long),
    ("end-time", Long),
    ("duration", Long),
    ("state", OneOf(JOB_STATUSES)),
    ("last-modification", Long),
    ("pending-operators", Int),
    (
        "tasks",
        MapOf(
            &[
                "total",
                "created",
                "scheduled",
                "deploying",
                "running",
                "finished",
                "canceling",
                "canceled",
                "failed",
                "reconciling",
                "initializing",
            ],
            &Int,
        ),
    ),
]);
const SUBTASK: Type = Object(&[
    ("subtask", Int),
    ("status", OneOf(EXECUTION_STATES)),
    ("attempt", Int),
    ("endpoint", Text),
    ("start-time", Long),
    ("start_time", Long),
    ("end-time", Long),
    ("duration", Long),
    ("metrics", IO_METRICS),
    ("taskmanager-id", Text),
    ("status-duration", MapOf(EXECUTION_STATES, &Long)),
    ("other-concurrent-attempts", List(&Raw)),
]);
const VERTEX: Type = Object(&[
    ("id", Id),
    ("name", Text),
    ("parallelism", Int),
    ("maxParallelism", Int),
    ("now", Long),
    ("subtasks", List(&SUBTASK)),
    (
        "aggregated",
        Object(&[
            ("metrics", MapOf(IO_NAMES, &STATISTICS)),
            ("status-duration", MapOf(MEASURED_STATES, &STATISTICS)),
        ]),
    ),
]);
const SUBTASK_TIMES: Type = Object(&[
    ("id", Text),
    ("name", Text),
    ("now", Long),
    (
        "subtasks",
        List(&Object(&[
            ("subtask", Int),
            ("endpoint", Text),
            ("duration", Long),
            ("timestamps", MapOf(EXECUTION_STATES, &Long)),
        ])),
    ),
]);
const RESOURCE: Type = Object(&[
    ("cpuCores", Number),
    ("taskHeapMemory", Int),
    ("taskOffHeapMemory", Int),
    ("managedMemory", Int),
    ("networkMemory", Int),
    ("extendedResources", Map(&Number)),
]);
const HARDWARE: Type = Object(&[
    ("cpuCores", Int),
    ("physicalMemory", Long),
    ("freeMemory", Long),
    ("managedMemory", Long),
]);
const MEMORY: Type = MapOf(
    &[
        "frameworkHeap",
        "taskHeap",
        "frameworkOffHeap",
        "taskOffHeap",
        "networkMemory",
        "managedMemory",
        "jvmMetaspace",
        "jvmOverhead",
        "totalFlinkMemory",
        "totalProcessMemory",
    ],
    &Long,
);
const TASK_MANAGER: Type = Object(&[
    ("id", Text),
    ("path", Text),
    ("dataPort", Int),
    ("jmxPort", Int),
    ("timeSinceLastHeartbeat", Long),
    ("slotsNumber", Int),
    ("freeSlots", Int),
    ("assignedTasks", Int),
    ("totalResource", RESOURCE),
    ("freeResource", RESOURCE),
    ("hardware", HARDWARE),
    ("memoryConfiguration", MEMORY),
    ("blocked", Optional(&Bool)),
]);
const SLOT: Type = Object(&[
    ("jobId", Id),
    ("resource", RESOURCE),
    ("assignedTasks", Int),
]);
const TASK_MANAGER_METRICS: &[&str] = &[
    "heapUsed",
    "heapCommitted",
    "heapMax",
    "nonHeapUsed",
    "nonHeapCommitted",
    "nonHeapMax",
    "directCount",
    "directUsed",
    "directMax",
    "mappedCount",
    "mappedUsed",
    "mappedMax",
    "nettyShuffleMemorySegmentsAvailable",
    "nettyShuffleMemorySegmentsUsed",
    "nettyShuffleMemorySegmentsTotal",
    "nettyShuffleMemoryAvailable",
    "nettyShuffleMemoryUsed",
    "nettyShuffleMemoryTotal",
];
const TASK_MANAGER_DETAILS: Type = Object(&[
    ("allocatedSlots", List(&SLOT)),
    ("metrics", MapOf(TASK_MANAGER_METRICS, &Long)),
    ("metrics", Object(&[("garbageCollectors", List(&Raw))])),
]);
const EXCEPTION: Type = Object(&[
    ("exceptionName", Text),
    ("stacktrace", Text),
    ("timestamp", Long),
    ("failureLabels", Map(&Text)),
    ("taskName", Optional(&Text)),
    ("endpoint", Optional(&Text)),
    ("taskManagerId", Optional(&Text)),
    ("concurrentExceptions", Optional(&List(&Raw))),
]);
const EXCEPTIONS: Type = Object(&[(
    "exceptionHistory",
    Object(&[("entries", List(&EXCEPTION)), ("truncated", Bool)]),
)]);
/// Flink's classes read nothing of a failure but the object in Base64.
const FAILURE: Type = Object(&[("serialized-throwable", Text)]);
const EXECUTION_RESULT: Type = Object(&[
    (
        "status",
        Object(&[("id", OneOf(&["IN_PROGRESS", "COMPLETED"]))]),
    ),
    (
        "job-execution-result",
        Optional(&Object(&[
            ("id", Id),
            (
                "application-status",
                OneOf(&["SUCCEEDED", "FAILED", "CANCELED", "UNKNOWN"]),
            ),
            ("accumulator-results", Map(&Raw)),
            ("net-runtime", Long),
            ("failure-cause", Optional(&FAILURE)),
        ])),
    ),
]);
const OPERATION: Type = Object(&[
    (
        "status",
        Object(&[("id", OneOf(&["IN_PROGRESS", "COMPLETED"]))]),
    ),
    (
        "operation",
        Optional(&Object(&[
            ("location", Optional(&Text)),
            ("failure-cause", Optional(&FAILURE)),
        ])),
    ),
]);
const OVERVIEW: Type = Object(&[
    ("taskmanagers", Int),
    ("slots-total", Int),
    ("slots-available", Int),
    ("taskmanagers-blocked", Int),
    ("slots-free-and-blocked", Int),
    ("jobs-running", Int),
    ("jobs-finished", Int),
    ("jobs-cancelled", Int),
    ("jobs-failed", Int),
    ("flink-version", Text),
    ("flink-commit", Text),
]);
const CONFIG: Type = Object(&[
    ("refresh-interval", Long),
    ("timezone-name", Text),
    ("timezone-offset", Int),
    ("flink-version", Text),
    ("flink-revision", Text),
    (
        "features",
        MapOf(
            &["web-submit", "web-cancel", "web-rescale", "web-history"],
            &Bool,
        ),
    ),
]);
const AGGREGATED_METRICS: Type = List(&Object(&[
    ("id", Text),
    ("min", Optional(&Number)),
    ("max", Optional(&Number)),
    ("avg", Optional(&Number)),
    ("sum", Optional(&Number)),
]));

/// What is wrong with a value, each with its place.
fn misfits(place: &str, value: &Value, wanted: Type, found: &mut Vec<String>) {
    let fits = match wanted {
        Bool => value.is_boolean(),
        Int => value
            .as_i64()
            .is_some_and(|number| i32::try_from(number).is_ok()),
        Long => value.is_i64(),
        Number => value.is_number(),
        Text => value.is_string(),
        Id => value.as_str().is_some_and(|text| {
            text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        }),
        OneOf(names) => value.as_str().is_some_and(|text| names.contains(&text)),
        Raw => !value.is_null(),
        Optional(inner) => {
            if !value.is_null() {
                misfits(place, value, *inner, found);
            }
            true
        }
        Object(fields) => {
            for (name, wanted) in fields {
                misfits(&format!("{place}.{name}"), &value[*name], *wanted, found);
            }
            value.is_object()
        }
        MapOf(names, wanted) => {
            for name in names {
                misfits(&format!("{place}.{name}"), &value[*name], *wanted, found);
            }
            value.is_object()
        }
        Map(wanted) => {
            for (name, value) in value.as_object().into_iter().flatten() {
                misfits(&format!("{place}.{name}"), value, *wanted, found);
            }
            value.is_object()
        }
        List(wanted) => {
            for value in value.as_array().into_iter().flatten() {
                misfits(&format!("{place}[]"), value, *wanted, found);
            }
            value.is_array()
        }
    };
    if !fits {
        found.push(format!("{place}: {value}"));
    }
}

fn task_manager() -> pb::TaskManagerInfo {
    let profile = Some(pb::ResourceProfile {
        cpu_cores: 1.5,
        memory_bytes: 1 << 30,
        network_memory_bytes: 64 << 20,
        managed_memory_bytes: 128 << 20,
        extended: vec![pb::ExtendedResource {
            name: "gpu".to_owned(),
            amount: 2,
        }],
        any: false,
    });
    pb::TaskManagerInfo {
        location: Some(pb::TaskManagerLocation {
            resource_id: "tm-1".to_owned(),
            rpc_address: "worker:5000".to_owned(),
            data_address: "worker:5001".to_owned(),
            ..pb::TaskManagerLocation::default()
        }),
        total_profile: profile.clone(),
        allocated_slots: vec![pb::AllocatedSlot {
            job_id: JobId::from_bits(1).to_string(),
            profile,
            tasks: 2,
        }],
        ..pb::TaskManagerInfo::default()
    }
}

fn vertex(number: u128) -> pb::VertexDetails {
    let placed = pb::SubtaskDetails {
        state: pb::ExecutionState::Running.into(),
        attempt: 1,
        host: "worker:5001".to_owned(),
        resource_id: "tm-1".to_owned(),
        started_at_ms: 1500,
        metrics: Some(pb::TaskMetrics::default()),
        timestamps: vec![pb::ExecutionTimestamp {
            state: pb::ExecutionState::Running.into(),
            at_ms: 1500,
        }],
        ..pb::SubtaskDetails::default()
    };
    let unplaced = pb::SubtaskDetails {
        subtask: 1,
        ..pb::SubtaskDetails::default()
    };
    pb::VertexDetails {
        id: JobVertexId::from_bits(number).to_string(),
        name: format!("step {number}"),
        parallelism: 2,
        max_parallelism: 128,
        slot_sharing_group: "default".to_owned(),
        subtasks: vec![placed, unplaced],
    }
}

fn job(number: u128, status: pb::JobStatus) -> pb::JobDetails {
    let vertices = vec![vertex(1), vertex(2)];
    pb::JobDetails {
        job_id: JobId::from_bits(number).to_string(),
        name: "count".to_owned(),
        status: status.into(),
        started_at_ms: 1000,
        max_parallelism: 128,
        edges: vec![pb::JobEdgeDetails {
            source: vertices[0].id.clone(),
            target: vertices[1].id.clone(),
            partitioning: "hash".to_owned(),
            blocking: false,
        }],
        vertices,
        failures: vec![pb::FailureRecord {
            at_ms: 1300,
            cause: "it broke".to_owned(),
            concurrent: vec![pb::FailureRecord::default()],
            ..pb::FailureRecord::default()
        }],
        events: vec![pb::JobEvent {
            kind: pb::JobEventKind::Stop.into(),
            ..pb::JobEvent::default()
        }],
        ..pb::JobDetails::default()
    }
}

#[tokio::test]
async fn every_answer_has_the_fields_and_types_that_flinks_classes_read() {
    let jobs = [
        (1, pb::JobStatus::Running),
        (2, pb::JobStatus::Failed),
        (3, pb::JobStatus::Finished),
    ];
    let (served, _) = Served::leading(ScriptedDispatcher {
        jobs: jobs
            .map(|(number, status)| job(number, status))
            .to_vec()
            .into(),
        task_managers: vec![task_manager()],
        ..ScriptedDispatcher::default()
    })
    .await;
    let mut answers = vec![
        ("/overview".to_owned(), OVERVIEW),
        ("/config".to_owned(), CONFIG),
        (
            "/jobs".to_owned(),
            Object(&[(
                "jobs",
                List(&Object(&[("id", Id), ("status", OneOf(JOB_STATUSES))])),
            )]),
        ),
        (
            "/jobs/overview".to_owned(),
            Object(&[("jobs", List(&JOB_IN_OVERVIEW))]),
        ),
        ("/jobs/metrics".to_owned(), AGGREGATED_METRICS),
        (
            "/jobs/metrics?get=numRestarts&agg=max".to_owned(),
            AGGREGATED_METRICS,
        ),
        (
            "/taskmanagers".to_owned(),
            Object(&[("taskmanagers", List(&TASK_MANAGER))]),
        ),
        ("/taskmanagers/metrics".to_owned(), AGGREGATED_METRICS),
        ("/taskmanagers/tm-1".to_owned(), TASK_MANAGER),
        ("/taskmanagers/tm-1".to_owned(), TASK_MANAGER_DETAILS),
    ];
    for (number, _) in jobs {
        let job = format!("/jobs/{}", JobId::from_bits(number));
        let vertex = format!("{job}/vertices/{}", JobVertexId::from_bits(1));
        answers.extend([
            (job.clone(), JOB),
            (
                format!("{job}/status"),
                Object(&[("status", OneOf(JOB_STATUSES))]),
            ),
            (format!("{job}/plan"), Object(&[("plan", PLAN)])),
            (format!("{job}/exceptions"), EXCEPTIONS),
            (format!("{job}/execution-result"), EXECUTION_RESULT),
            (format!("{job}/savepoints/{}", "7".repeat(32)), OPERATION),
            (vertex.clone(), VERTEX),
            (format!("{vertex}/subtasktimes"), SUBTASK_TIMES),
        ]);
    }
    let mut found = Vec::new();
    for (path, wanted) in answers {
        let answer = served.get(&path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {answer:?}");
        misfits(&path, &answer.body, wanted, &mut found);
    }
    assert!(found.is_empty(), "{found:#?}");
}

#[tokio::test]
async fn metrics_over_jobs_and_task_managers_are_chosen_by_flinks_parameters() {
    let restarted = |number, restarts| pb::JobDetails {
        restarts,
        ..job(number, pb::JobStatus::Running)
    };
    let (served, _) = Served::leading(ScriptedDispatcher {
        jobs: vec![restarted(1, 2), restarted(2, 5)].into(),
        task_managers: vec![task_manager()],
        ..ScriptedDispatcher::default()
    })
    .await;
    let get = async |path: &str| served.get(path).await.body;
    assert_eq!(get("/jobs/metrics").await, json!([{"id": "numRestarts"}]));
    assert_eq!(
        get("/jobs/metrics?get=numRestarts,other").await,
        json!([{"id": "numRestarts", "min": 2.0, "max": 5.0, "avg": 3.5, "sum": 7.0}])
    );
    let one = format!(
        "/jobs/metrics?get=numRestarts&agg=sum&jobs={}",
        JobId::from_bits(2)
    );
    assert_eq!(get(&one).await, json!([{"id": "numRestarts", "sum": 5.0}]));
    let memory = "Status.Flink.Memory.Managed.Total";
    assert_eq!(
        get(&format!("/taskmanagers/metrics?get={memory}&agg=max")).await,
        json!([{"id": memory, "max": 134_217_728.0}])
    );
    let wrong = served.get("/jobs/metrics?get=numRestarts&agg=most").await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
}

#[test]
fn a_value_of_another_type_does_not_fit() {
    let misfits_of = |value: Value, wanted| {
        let mut found = Vec::new();
        misfits("", &value, wanted, &mut found);
        found.len()
    };
    assert_eq!(misfits_of(json!("default"), Id), 1);
    assert_eq!(misfits_of(json!(1_u64 << 40), Int), 1);
    assert_eq!(misfits_of(json!({}), MapOf(MEASURED_STATES, &Long)), 5);
    assert_eq!(misfits_of(json!([{"id": 1}]), AGGREGATED_METRICS), 1);
}
