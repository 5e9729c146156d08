//! Handlers that take and remove savepoints, that stop jobs, and that report how such a request ended.
//!
//! Nothing is kept here. The job's record has each request for a savepoint with its trigger id, and whether the job was
//! asked to stop. So each JobManager can answer, also after failovers, and a repeated request is the same one. A
//! savepoint is removed before the request is answered, so a trigger id of a removal shows that the removal is done.

use std::path::Path;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use serde::de::DeserializeOwned;
use sha2::{Digest as _, Sha256};
use tanist_config::StorageLocation;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;
use tanist_rest_model::{
    DisposalRequest, OperationEnd, OperationStatus, SavepointRequest, StopRequest, Triggered,
};

use super::ask::Context;
use super::error::RestError;
use super::extract::{Parameters, PathParts, id, read_body};
use super::jobs::{describe, of_job, request_stop};
use super::json::savepoint::{find, operation};

/// Maximum size of a body, in bytes.
const MAX_BODY: usize = 64 * 1024;

/// Length of a trigger id, in hex digits.
const TRIGGER_DIGITS: usize = 32;

type Accepted = Result<(StatusCode, Json<Triggered>), RestError>;

/// A trigger id in the form in which it is kept.
fn trigger_of(text: &str) -> Option<String> {
    let is_trigger =
        text.len() == TRIGGER_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_trigger.then(|| text.to_ascii_lowercase())
}

/// The trigger id that the client chose.
fn chosen_trigger(text: Option<&str>) -> Result<Option<String>, RestError> {
    let wrong = |text| {
        let text = format!("triggerId \"{text}\" is not a trigger id (32 hex digits)");
        RestError::bad_request(text)
    };
    text.map(|text| trigger_of(text).ok_or_else(|| wrong(text)))
        .transpose()
}

fn trigger_in_path(text: &str) -> Result<String, RestError> {
    trigger_of(text).ok_or_else(|| {
        let text = format!("\"{text}\" is not a trigger id (32 hex digits)");
        RestError::bad_request(text)
    })
}

fn check_format(format: Option<&str>) -> Result<(), RestError> {
    let known = ["CANONICAL", "NATIVE"];
    match format {
        Some(format) if !known.iter().any(|it| it.eq_ignore_ascii_case(format)) => {
            Err(RestError::bad_request(format!(
                "there is no savepoint format {format:?}: there is one format, which `CANONICAL` and `NATIVE` both \
                 name; leave `formatType` out"
            )))
        }
        Some(_) | None => Ok(()),
    }
}

/// The directory that a request names in `field`.
fn directory_of(field: &str, text: &str) -> Result<String, RestError> {
    match text.parse::<StorageLocation>() {
        Ok(directory) => Ok(directory.to_string()),
        Err(wrong) => Err(RestError::bad_request(format!(
            "`{field}` is {text:?}: it {wrong}"
        ))),
    }
}

/// The body of a request; the default if it is empty.
async fn body_of<T: DeserializeOwned + Default>(
    headers: &HeaderMap,
    body: Body,
) -> Result<T, RestError> {
    let body = read_body(headers, body, MAX_BODY).await?;
    if body.is_empty() {
        return Ok(T::default());
    }
    parsed(&body)
}

fn parsed<T: DeserializeOwned>(body: &[u8]) -> Result<T, RestError> {
    serde_json::from_slice(body).map_err(|error| RestError::bad_request(invalid_json(&error)))
}

/// The text for an invalid body.
fn invalid_json(error: &serde_json::Error) -> String {
    let what = if error.is_data() {
        "the body is JSON of another shape"
    } else {
        "the body is not valid JSON"
    };
    let text = error.to_string();
    let (why, _) = text.rsplit_once(" at line").unwrap_or((&text, ""));
    format!(
        "{what}: line {}, column {}: {why}",
        error.line(),
        error.column()
    )
}

fn accepted(request_id: String) -> (StatusCode, Json<Triggered>) {
    (StatusCode::ACCEPTED, Json(Triggered { request_id }))
}

/// Accepted means that the store has the request.
pub(super) async fn take(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
    parameters: Parameters,
    headers: HeaderMap,
    body: Body,
) -> Accepted {
    let job: JobId = id(&job)?;
    let request: SavepointRequest = body_of(&headers, body).await?;
    check_format(request.format_type.as_deref())?;
    let trigger = chosen_trigger(request.trigger_id.as_deref())?;
    let directory = match &request.target_directory {
        Some(text) => directory_of(OF_SAVEPOINT.field, text)?,
        None => configured(&context, OF_SAVEPOINT)?,
    };
    let wanted = pb::TriggerSavepointRequest {
        job_id: job.to_string(),
        trigger_id: trigger.unwrap_or_else(random_trigger),
        directory,
        // Flink cancels the job after the savepoint (deprecated there). A stop writes no output after it either.
        stop: request.cancel_job.unwrap_or_default(),
    };
    trigger_savepoint(&context, wanted, &parameters).await
}

/// How a request names the directory of a savepoint.
#[derive(Debug, Clone, Copy)]
struct Naming {
    /// The argument of the command line.
    argument: &'static str,
    /// The field in REST.
    field: &'static str,
}

const OF_SAVEPOINT: Naming = Naming {
    argument: "tanist savepoint JOB DIRECTORY",
    field: "target-directory",
};
const OF_STOP: Naming = Naming {
    argument: "tanist stop --savepoint=DIRECTORY JOB",
    field: "targetDirectory",
};

/// The configured directory. The error says what to set.
fn configured(context: &Context, naming: Naming) -> Result<String, RestError> {
    let directory = &context.options.savepoint_dir;
    directory.clone().ok_or_else(|| {
        let Naming { argument, field } = naming;
        RestError::bad_request(format!(
            "it is not known where to write the savepoint: name a directory (`{argument}`; in REST the field `{field}`), \
             or set `execution.checkpointing.savepoint-dir` in the configuration of the JobManagers"
        ))
    })
}

fn random_trigger() -> String {
    format!("{:032x}", rand::random::<u128>())
}

async fn trigger_savepoint(
    context: &Context,
    wanted: pb::TriggerSavepointRequest,
    parameters: &Parameters,
) -> Accepted {
    let triggered = context
        .ask(async |dispatcher| dispatcher.trigger_savepoint(wanted.clone()).await)
        .await;
    if let Err(error) = triggered {
        // The job may have ended since an earlier attempt of the same request was accepted.
        let is_known = error.status == StatusCode::CONFLICT
            && describe(context, &wanted.job_id, parameters)
                .await
                .is_ok_and(|details| was_taken(&details, &wanted));
        if !is_known {
            return Err(error);
        }
    }
    Ok(accepted(wanted.trigger_id))
}

/// Whether an ended job had this request. For a job that runs, its JobMaster has compared the request with the one of
/// the same trigger id.
fn was_taken(job: &pb::JobDetails, wanted: &pb::TriggerSavepointRequest) -> bool {
    let known = find(job, &wanted.trigger_id).filter(|_| job.status().has_ended());
    known.is_some_and(|known| {
        let is_elsewhere = known.outcome() == pb::SavepointOutcome::Completed
            && !Path::new(&known.text).starts_with(&wanted.directory);
        known.stops == wanted.stop && !is_elsewhere
    })
}

/// Without a savepoint accepted means that the store has the wanted status STOPPED: the same as Flink's stop with
/// drain, but without its savepoint. With one it means that the store has the request for it.
pub(super) async fn stop(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
    parameters: Parameters,
    headers: HeaderMap,
    body: Body,
) -> Accepted {
    let job: JobId = id(&job)?;
    let request: StopRequest = body_of(&headers, body).await?;
    check_format(request.format_type.as_deref())?;
    let trigger = chosen_trigger(request.trigger_id.as_deref())?;
    let target = request.target_directory.as_deref();
    let directory = match (request.drain, target) {
        (Some(true), Some(_)) => {
            let text = "a drained job has processed all that its sources have read, so nothing can continue from it: \
                        leave `drain` out to stop with a savepoint, or `targetDirectory` to drain";
            return Err(RestError::bad_request(text));
        }
        (Some(true), None) => None,
        (Some(false) | None, Some(text)) => Some(directory_of(OF_STOP.field, text)?),
        (Some(false), None) => Some(configured(&context, OF_STOP).map_err(|error| {
            RestError::bad_request(format!(
                "{}; or stop with drain (`flink stop --drain`, `tanist stop`), and the job finishes with what its \
                 sources have read",
                error.errors.join("; ")
            ))
        })?),
        (None, None) => context.options.savepoint_dir.clone(),
    };
    if let Some(directory) = directory {
        let wanted = pb::TriggerSavepointRequest {
            job_id: job.to_string(),
            trigger_id: trigger.unwrap_or_else(random_trigger),
            directory,
            stop: true,
        };
        return trigger_savepoint(&context, wanted, &parameters).await;
    }
    request_stop(&context, job).await?;
    // Any trigger id leads to the job, whose record has the status of its stop.
    Ok(accepted(trigger.unwrap_or_else(|| job.to_string())))
}

/// The status of a savepoint or of a stop.
pub(super) async fn status(
    State(context): State<Context>,
    PathParts((job, trigger)): PathParts<(String, String)>,
    parameters: Parameters,
) -> Result<(HeaderMap, Json<OperationStatus>), RestError> {
    let trigger = trigger_in_path(&trigger)?;
    let details = describe(&context, &job, &parameters).await?;
    let unknown = || {
        RestError::not_found(format!(
            "job {} has no request for a savepoint or a stop with the trigger id {trigger} among its last ones",
            details.job_id
        ))
    };
    let status = operation(&details, &trigger).ok_or_else(unknown)?;
    Ok(of_job(&details, status))
}

/// Answered with 200 as by Flink, once the savepoint is removed.
pub(super) async fn dispose(
    State(context): State<Context>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Triggered>, RestError> {
    let body = read_body(&headers, body, MAX_BODY).await?;
    let request: DisposalRequest = parsed(&body)?;
    let path = directory_of("savepoint-path", &request.savepoint_path)?;
    context
        .ask(async |dispatcher| {
            let path = path.clone();
            let request = pb::DisposeSavepointRequest { path };
            dispatcher.dispose_savepoint(request).await
        })
        .await?;
    let request_id = removal_id(&format!("{:016x}", rand::random::<u64>()));
    Ok(Json(Triggered { request_id }))
}

/// The trigger id of a completed removal: a random half, and a half that follows from it. So any JobManager recognizes
/// an id that one of them gave out.
fn removal_id(random: &str) -> String {
    let mut digest = Sha256::new();
    digest.update(b"tanist savepoint removal\0");
    digest.update(random.as_bytes());
    let digest = digest.finalize();
    let derived: String = digest[..8]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{random}{derived}")
}

/// The status of a removal.
pub(super) async fn disposal(
    PathParts(trigger): PathParts<String>,
) -> Result<Json<OperationStatus>, RestError> {
    let trigger = trigger_in_path(&trigger)?;
    if removal_id(&trigger[..TRIGGER_DIGITS / 2]) != trigger {
        let text = format!("no savepoint was removed by a request with the trigger id {trigger}");
        return Err(RestError::not_found(text));
    }
    Ok(Json(OperationStatus::ended(OperationEnd::default())))
}
