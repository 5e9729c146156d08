//! Handler of Flink's asynchronous operations: no savepoint is ever taken, but a stop through Flink's API is
//! followed here.
//!
//! The status of a stop is derived from the job's record. So each JobManager can answer, also after failovers,
//! and keeps nothing for it.

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;

use super::ask::Context;
use super::error::RestError;
use super::extract::{Parameters, PathParts};
use super::jobs::{describe, of_job};
use super::json::savepoint::Operation;

/// Whether Flink's clients accept `text` as the id of an operation.
pub(super) fn is_trigger(text: &str) -> bool {
    text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

pub(super) async fn operation(
    State(context): State<Context>,
    PathParts((job, trigger)): PathParts<(String, String)>,
    parameters: Parameters,
) -> Result<(HeaderMap, Json<Operation>), RestError> {
    if !is_trigger(&trigger) {
        let text = format!("\"{trigger}\" is not a trigger id (32 hex digits)");
        return Err(RestError::bad_request(text));
    }
    let details = describe(&context, &job, &parameters).await?;
    let unknown = || {
        let text = format!("job {} was not asked to stop", details.job_id);
        RestError::not_found(text)
    };
    let operation = Operation::of_stop(&details).ok_or_else(unknown)?;
    Ok(of_job(&details, operation))
}
