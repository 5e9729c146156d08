//! The fields that Flink's classes read from each answer.

use super::types::Type::{
    self, Bool, Id, Int, List, Long, Map, MapOf, Number, Object, OneOf, Optional, Raw, Text,
};

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
pub(super) const JOB_STATUSES: &[&str] = &[
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
/// The states whose durations Flink's classes add up.
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
pub(super) const PLAN: Type = Object(&[
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
pub(super) const JOB: Type = Object(&[
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
pub(super) const JOB_IN_OVERVIEW: Type = Object(&[
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
pub(super) const VERTEX: Type = Object(&[
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
pub(super) const SUBTASK_TIMES: Type = Object(&[
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
pub(super) const TASK_MANAGER: Type = Object(&[
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
pub(super) const TASK_MANAGER_DETAILS: Type = Object(&[
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
pub(super) const EXCEPTIONS: Type = Object(&[(
    "exceptionHistory",
    Object(&[("entries", List(&EXCEPTION)), ("truncated", Bool)]),
)]);
/// Of a failure, Flink's classes read only the object in Base64.
const FAILURE: Type = Object(&[("serialized-throwable", Text)]);
pub(super) const EXECUTION_RESULT: Type = Object(&[
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
pub(super) const OPERATION: Type = Object(&[
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
pub(super) const TRIGGERED: Type = Object(&[("request-id", Id)]);
pub(super) const OVERVIEW: Type = Object(&[
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
pub(super) const CONFIG: Type = Object(&[
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
pub(super) const AGGREGATED_METRICS: Type = List(&Object(&[
    ("id", Text),
    ("min", Optional(&Number)),
    ("max", Optional(&Number)),
    ("avg", Optional(&Number)),
    ("sum", Optional(&Number)),
]));
const CHECKPOINT_STATISTICS: Type = Object(&[
    ("min", Long),
    ("max", Long),
    ("avg", Long),
    ("p50", Number),
    ("p90", Number),
    ("p95", Number),
    ("p99", Number),
    ("p999", Number),
]);
/// The part of a vertex in a checkpoint: what each body has, and these further fields.
macro_rules! vertex_in_checkpoint {
    ($($field:expr),* $(,)?) => {
        &[
            ("id", Long),
            ("status", OneOf(&["IN_PROGRESS", "COMPLETED", "FAILED"])),
            ("latest_ack_timestamp", Long),
            ("checkpointed_size", Long),
            ("state_size", Long),
            ("end_to_end_duration", Long),
            ("alignment_buffered", Long),
            ("processed_data", Long),
            ("persisted_data", Long),
            ("num_subtasks", Int),
            ("num_acknowledged_subtasks", Int),
            $($field),*
        ]
    };
}
const VERTEX_IN_CHECKPOINT: &[(&str, Type)] = vertex_in_checkpoint!();
pub(super) const VERTEX_CHECKPOINT: Type = Object(vertex_in_checkpoint!(
    (
        "summary",
        Object(&[
            ("checkpointed_size", CHECKPOINT_STATISTICS),
            ("state_size", CHECKPOINT_STATISTICS),
            ("end_to_end_duration", CHECKPOINT_STATISTICS),
            (
                "checkpoint_duration",
                MapOf(&["sync", "async"], &CHECKPOINT_STATISTICS),
            ),
            (
                "alignment",
                MapOf(
                    &["buffered", "processed", "persisted", "duration"],
                    &CHECKPOINT_STATISTICS,
                ),
            ),
            ("start_delay", CHECKPOINT_STATISTICS),
        ]),
    ),
    (
        "subtasks",
        List(&Object(&[
            ("className", OneOf(&["completed", "pending"])),
            ("index", Int),
            ("status", OneOf(&["completed", "pending_or_failed"])),
            ("ack_timestamp", Optional(&Long)),
            ("end_to_end_duration", Optional(&Long)),
            ("checkpointed_size", Optional(&Long)),
            ("state_size", Optional(&Long)),
            ("checkpoint", Optional(&MapOf(&["sync", "async"], &Long))),
            (
                "alignment",
                Optional(&MapOf(
                    &["buffered", "processed", "persisted", "duration"],
                    &Long,
                )),
            ),
            ("start_delay", Optional(&Long)),
            ("unaligned_checkpoint", Optional(&Bool)),
            ("aborted", Optional(&Bool)),
        ])),
    ),
));
/// The type of a checkpoint: what each has, and these further fields.
macro_rules! checkpoint {
    ($($field:expr),* $(,)?) => {
        Object(&[
            ("className", OneOf(&["in_progress", "completed", "failed"])),
            ("id", Long),
            ("status", OneOf(&["IN_PROGRESS", "COMPLETED", "FAILED"])),
            ("is_savepoint", Bool),
            ("savepointFormat", Optional(&Text)),
            ("trigger_timestamp", Long),
            ("latest_ack_timestamp", Long),
            ("checkpointed_size", Long),
            ("state_size", Long),
            ("end_to_end_duration", Long),
            ("alignment_buffered", Long),
            ("processed_data", Long),
            ("persisted_data", Long),
            ("num_subtasks", Int),
            ("num_acknowledged_subtasks", Int),
            (
                "checkpoint_type",
                OneOf(&[
                    "CHECKPOINT",
                    "UNALIGNED_CHECKPOINT",
                    "SAVEPOINT",
                    "SYNC_SAVEPOINT",
                ]),
            ),
            ("tasks", Map(&Object(VERTEX_IN_CHECKPOINT))),
            $($field),*
        ])
    };
}
pub(super) const CHECKPOINT: Type = checkpoint!();
pub(super) const COMPLETED_CHECKPOINT: Type =
    checkpoint!(("external_path", Optional(&Text)), ("discarded", Bool));
pub(super) const FAILED_CHECKPOINT: Type = checkpoint!(
    ("failure_timestamp", Long),
    ("failure_message", Optional(&Text)),
);
pub(super) const CHECKPOINTS: Type = Object(&[
    (
        "counts",
        Object(&[
            ("restored", Long),
            ("total", Long),
            ("in_progress", Int),
            ("completed", Long),
            ("failed", Long),
        ]),
    ),
    (
        "summary",
        MapOf(
            &[
                "checkpointed_size",
                "state_size",
                "end_to_end_duration",
                "alignment_buffered",
                "processed_data",
                "persisted_data",
            ],
            &CHECKPOINT_STATISTICS,
        ),
    ),
    (
        "latest",
        Object(&[
            ("completed", Optional(&COMPLETED_CHECKPOINT)),
            ("savepoint", Optional(&COMPLETED_CHECKPOINT)),
            ("failed", Optional(&FAILED_CHECKPOINT)),
            (
                "restored",
                Optional(&Object(&[
                    ("id", Long),
                    ("restore_timestamp", Long),
                    ("is_savepoint", Bool),
                    ("external_path", Optional(&Text)),
                ])),
            ),
        ]),
    ),
    ("history", List(&CHECKPOINT)),
]);
pub(super) const CHECKPOINT_CONFIG: Type = Object(&[
    ("mode", OneOf(&["exactly_once", "at_least_once"])),
    ("interval", Long),
    ("timeout", Long),
    ("min_pause", Long),
    ("max_concurrent", Int),
    (
        "externalization",
        Object(&[("enabled", Bool), ("delete_on_cancellation", Bool)]),
    ),
    ("state_backend", Text),
    ("checkpoint_storage", Text),
    ("unaligned_checkpoints", Bool),
    ("tolerable_failed_checkpoints", Int),
    ("aligned_checkpoint_timeout", Long),
    ("checkpoints_after_tasks_finish", Bool),
    ("state_changelog_enabled", Bool),
    ("changelog_periodic_materialization_interval", Long),
    ("changelog_storage", Text),
]);
