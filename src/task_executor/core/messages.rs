//! Reads the fields of requests. Pure.

use std::str::FromStr;

use tanist_gateway::{GatewayError, GatewayResult};
use tanist_proto::id::Generation;

use super::executions::ExecutionKey;

/// The key of an execution.
pub(super) fn execution_key(
    vertex: &str,
    subtask: u32,
    generation: u64,
) -> GatewayResult<ExecutionKey> {
    Ok(ExecutionKey {
        vertex: parse(vertex)?,
        subtask,
        generation: Generation::new(generation),
    })
}

/// The value of a field.
pub(super) fn parse<T: FromStr<Err: ToString>>(text: &str) -> GatewayResult<T> {
    text.parse()
        .map_err(|error: T::Err| GatewayError::Invalid(error.to_string()))
}

/// The refusal of an invalid request.
pub(super) fn invalid(reason: &str) -> GatewayError {
    GatewayError::Invalid(reason.to_owned())
}
