//! Handlers about the checkpoints of a job. A job of which none are taken answers 404, as Flink does.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use tanist_ha::clock::wall_clock_ms;
use tanist_proto::id::JobVertexId;
use tanist_proto::v1 as pb;
use tanist_rest_model::{CheckpointInfo, CheckpointStatistics, VertexCheckpoint};

use super::ask::Context;
use super::error::RestError;
use super::extract::{Parameters, PathParts, id};
use super::jobs::{describe, of_job};
use super::json::checkpoints::{CheckpointConfig, checkpoint_of, checkpoint_statistics};
use super::json::vertex_checkpoints::vertex_checkpoint;

pub(super) async fn statistics(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
    parameters: Parameters,
) -> Result<(HeaderMap, Json<CheckpointStatistics>), RestError> {
    let details = describe(&context, &job, &parameters).await?;
    let body = checkpoint_statistics(checkpoints_of(&details)?, wall_clock_ms());
    Ok(of_job(&details, body))
}

pub(super) async fn config(
    State(context): State<Context>,
    PathParts(job): PathParts<String>,
    parameters: Parameters,
) -> Result<(HeaderMap, Json<CheckpointConfig>), RestError> {
    let details = describe(&context, &job, &parameters).await?;
    let body = CheckpointConfig::new(checkpoints_of(&details)?);
    Ok(of_job(&details, body))
}

pub(super) async fn checkpoint(
    State(context): State<Context>,
    PathParts((job, number)): PathParts<(String, String)>,
    parameters: Parameters,
) -> Result<(HeaderMap, Json<CheckpointInfo>), RestError> {
    let number = number_of(&number)?;
    let details = describe(&context, &job, &parameters).await?;
    let body = checkpoint_of(checkpoints_of(&details)?, number, wall_clock_ms());
    let body = body.ok_or_else(|| no_checkpoint(&details, number))?;
    Ok(of_job(&details, body))
}

/// The number of a checkpoint in the path.
fn number_of(text: &str) -> Result<u64, RestError> {
    text.parse().map_err(|_| {
        RestError::bad_request(format!(
            "{text:?} is not the number of a checkpoint: write a whole number"
        ))
    })
}

fn no_checkpoint(details: &pb::JobDetails, number: u64) -> RestError {
    let job = &details.job_id;
    let text = format!("job {job} has no checkpoint {number} among its last ones");
    RestError::not_found(text)
}

/// The subtasks of a vertex in a checkpoint.
pub(super) async fn vertex(
    State(context): State<Context>,
    PathParts((job, number, vertex)): PathParts<(String, String, String)>,
    parameters: Parameters,
) -> Result<(HeaderMap, Json<VertexCheckpoint>), RestError> {
    let number = number_of(&number)?;
    let vertex: JobVertexId = id(&vertex)?;
    let details = describe(&context, &job, &parameters).await?;
    let mut history = checkpoints_of(&details)?.history.iter();
    let checkpoint = history.find(|it| it.number == number);
    let checkpoint = checkpoint.ok_or_else(|| no_checkpoint(&details, number))?;
    let vertex = vertex.to_string();
    let mut vertices = checkpoint.vertices.iter();
    let known = vertices.find(|it| it.vertex_id == vertex).ok_or_else(|| {
        let job = &details.job_id;
        RestError::not_found(format!(
            "checkpoint {number} of job {job} was not taken of a vertex {vertex}"
        ))
    })?;
    let mut vertices = details.vertices.iter();
    let parallelism = vertices.find(|it| it.id == vertex);
    let parallelism = parallelism.map_or(known.subtasks, |it| it.parallelism);
    let body = vertex_checkpoint(checkpoint, known, parallelism, wall_clock_ms());
    Ok(of_job(&details, body))
}

/// Refuses a checkpoint by request, which Flink's clients can ask for.
pub(super) async fn trigger() -> RestError {
    let text = "a checkpoint is taken each `interval` of the job's `checkpoints`, and not by request: take a savepoint \
                (`flink savepoint`, `tanist savepoint`)";
    RestError::new(StatusCode::METHOD_NOT_ALLOWED, text)
}

fn checkpoints_of(details: &pb::JobDetails) -> Result<&pb::CheckpointDetails, RestError> {
    let missing = || {
        RestError::not_found(format!(
            "no checkpoints are taken of job {}: set `interval` of `checkpoints` in its job file, or `execution.checkpointing.interval`",
            details.job_id
        ))
    };
    details.checkpoints.as_ref().ok_or_else(missing)
}
