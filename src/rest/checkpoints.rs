//! Handlers about the checkpoints of a job. A job of which none are taken answers 404, as Flink does.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use tanist_ha::clock::wall_clock_ms;
use tanist_proto::v1 as pb;
use tanist_rest_model::{CheckpointInfo, CheckpointStatistics};

use super::ask::Context;
use super::error::RestError;
use super::extract::{Parameters, PathParts, id};
use super::jobs::{describe, of_job};
use super::json::checkpoints::{CheckpointConfig, checkpoint_of, checkpoint_statistics};

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
    let number: u64 = id(&number)?;
    let details = describe(&context, &job, &parameters).await?;
    let body = checkpoint_of(checkpoints_of(&details)?, number, wall_clock_ms());
    let body = body.ok_or_else(|| {
        let job = &details.job_id;
        RestError::not_found(format!(
            "job {job} has no checkpoint {number} among its last ones"
        ))
    })?;
    Ok(of_job(&details, body))
}

fn checkpoints_of(details: &pb::JobDetails) -> Result<&pb::CheckpointDetails, RestError> {
    let missing = || {
        RestError::not_found(format!(
            "no checkpoints are taken of job {}: set `checkpoints` in its job file, or `execution.checkpointing.interval`",
            details.job_id
        ))
    };
    details.checkpoints.as_ref().ok_or_else(missing)
}
