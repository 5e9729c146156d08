//! Every answer under Flink's name has Flink's types: the fields that Flink's classes need are there, with the
//! types that they parse.
//!
//! The tables list, field by field, what the constructors of Flink 2.3's message classes accept, and what its
//! published OpenAPI document says about the same fields. `cargo xtask flink` lets those classes themselves
//! read a running cluster.

mod tables;
mod types;

use axum::http::{Method, StatusCode};
use serde_json::json;
use tanist_proto::id::{JobId, JobVertexId};
use tanist_proto::v1 as pb;

use super::scripted::{ScriptedDispatcher, Served};
use tables::{
    AGGREGATED_METRICS, CHECKPOINT, CHECKPOINT_CONFIG, CHECKPOINTS, COMPLETED_CHECKPOINT, CONFIG,
    EXCEPTIONS, EXECUTION_RESULT, FAILED_CHECKPOINT, JOB, JOB_IN_OVERVIEW, JOB_STATUSES, OPERATION,
    OVERVIEW, PLAN, SUBTASK_TIMES, TASK_MANAGER, TASK_MANAGER_DETAILS, TRIGGERED, VERTEX,
    VERTEX_CHECKPOINT,
};
use types::Type::{Id, List, Object, OneOf};
use types::misfits;

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
        checkpoints: Some(super::checkpoints::details()),
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
            (format!("{job}/checkpoints"), CHECKPOINTS),
            (format!("{job}/checkpoints/config"), CHECKPOINT_CONFIG),
            (
                format!("{job}/checkpoints/details/18"),
                COMPLETED_CHECKPOINT,
            ),
            (format!("{job}/checkpoints/details/19"), FAILED_CHECKPOINT),
            (format!("{job}/checkpoints/details/20"), CHECKPOINT),
            (
                format!(
                    "{job}/checkpoints/details/18/subtasks/{}",
                    JobVertexId::from_bits(2)
                ),
                VERTEX_CHECKPOINT,
            ),
            (format!("{job}/exceptions"), EXCEPTIONS),
            (format!("{job}/execution-result"), EXECUTION_RESULT),
            (format!("{job}/savepoints/{}", "7".repeat(32)), OPERATION),
            (format!("{job}/savepoints/{}", "a".repeat(32)), OPERATION),
            (format!("{job}/savepoints/{}", "b".repeat(32)), OPERATION),
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
    for (path, body) in [
        (
            format!("/jobs/{}/savepoints", JobId::from_bits(1)),
            r#"{"target-directory": "/savepoints"}"#,
        ),
        (
            format!("/jobs/{}/stop", JobId::from_bits(1)),
            r#"{"targetDirectory": "/savepoints"}"#,
        ),
        (
            "/savepoint-disposal".to_owned(),
            r#"{"savepoint-path": "/savepoints/a"}"#,
        ),
    ] {
        let answer = served.ask(Method::POST, &path, &[], body).await;
        assert!(answer.status.is_success(), "{path}: {answer:?}");
        misfits(&path, &answer.body, TRIGGERED, &mut found);
        if path == "/savepoint-disposal" {
            let trigger = answer.body["request-id"].as_str().unwrap_or_default();
            let path = format!("{path}/{trigger}");
            let answer = served.get(&path).await;
            misfits(&path, &answer.body, OPERATION, &mut found);
        }
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
