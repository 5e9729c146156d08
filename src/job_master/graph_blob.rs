//! Serves the JobGraph to TaskManagers from the blob server if it is too large for messages. The JobMaster holds it for
//! as long as it lives, because deployments name it.

use std::sync::Arc;

use bytes::Bytes;
use prost::Message as _;
use tanist_gateway::blobs::{HeldBlob, ServedBlobs};
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_proto::v1 as pb;

/// Serves a graph to TaskManagers if it is too large to be sent with each deployment. Encoded on a blocking
/// thread: a large graph would block a runtime thread.
pub(super) async fn hold(
    graph: &Arc<pb::JobGraph>,
    most: usize,
    blobs: &ServedBlobs,
) -> GatewayResult<Option<HeldBlob>> {
    if graph.encoded_len() <= most {
        return Ok(None);
    }
    let graph = graph.clone();
    let encoded = tokio::task::spawn_blocking(move || Bytes::from(graph.encode_to_vec())).await;
    let encoded = encoded
        .map_err(|error| GatewayError::Internal(format!("the graph can't be encoded: {error}")))?;
    Ok(Some(blobs.hold(encoded).await?))
}
