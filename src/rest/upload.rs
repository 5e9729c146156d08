//! The handler of uploads: the content of a file of a job, before the submission that names it.
//!
//! `PUT /jobs/ID/artifacts/SHA256`, on any JobManager: the content is streamed into the blob store, under any
//! leader. The answer has the values that the job's graph must contain. Nothing else is written: content that
//! no submission names is removed after a time. Only a few uploads are accepted at once, each until its data
//! stops arriving; other clients are soon asked to retry.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::{Extension, Json};
use futures::StreamExt as _;
use tanist_gateway::GatewayError;
use tanist_ha::blob::{Checksum, Upload, UploadPointer};
use tanist_ha::keys::Name;
use tanist_net::Reservation;
use tanist_proto::id::JobId;
use tanist_rest_model::Uploaded;

use super::ask::Context;
use super::error::RestError;
use super::extract::{PathParts, broken_body, content_length, id};
use super::server::UPLOADS_AT_ONCE;

/// Timeout of an upload that waits for its turn: shorter than the silence after which a client tries another
/// JobManager.
const PERMIT_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn upload(
    State(context): State<Context>,
    PathParts((job, sha256)): PathParts<(String, String)>,
    reservation: Option<Extension<Arc<Reservation>>>,
    headers: HeaderMap,
    body: Body,
) -> Result<(StatusCode, Json<Uploaded>), RestError> {
    if let Some(reason) = &context.options.refuses_submissions {
        return Err(RestError::new(StatusCode::FORBIDDEN, reason.as_str()));
    }
    let job: JobId = id(&job)?;
    let wanted: Checksum = id(&sha256)?;
    let limit = context.options.max_artifact_size;
    if content_length(&headers)?.is_some_and(|length| length > limit) {
        return Err(too_large(limit));
    }
    let store = context.view.uploads()?;
    // Each upload holds a piece or two in memory.
    let turn = tokio::time::timeout(PERMIT_TIMEOUT, context.uploads.acquire());
    let Ok(permit) = turn.await else {
        return Err(RestError::busy(format!(
            "other files are being uploaded, and {UPLOADS_AT_ONCE} at once are taken"
        )));
    };
    let owner: Name = id(&job.to_string())?;
    let mut upload = store.upload(&owner).map_err(unavailable)?;
    let release = |bytes| {
        if let Some(Extension(reservation)) = &reservation {
            reservation.release(bytes);
        }
    };
    let taken = take(&mut upload, body, limit, release).await;
    let pointer = match taken {
        Ok(()) => upload.finish().await.map_err(unavailable)?,
        Err(error) => {
            if let Err(error) = upload.abort().await {
                tracing::debug!(%job, %error, "an upload that was broken off is left to be swept");
            }
            return Err(error);
        }
    };
    drop(permit);
    if pointer.sha256 != wanted {
        return Err(RestError::bad_request(format!(
            "the content has the SHA-256 {}, not {wanted}: it was changed or cut off",
            pointer.sha256
        )));
    }
    let UploadPointer {
        name, pieces, size, ..
    } = pointer;
    tracing::info!(%job, object = %name, size, "took an upload");
    let object = name.to_string();
    let body = Uploaded {
        object,
        pieces,
        size,
    };
    Ok((StatusCode::CREATED, Json(body)))
}

/// Writes the body as it arrives, and reports to `release` how many bytes are no longer in memory.
async fn take(
    upload: &mut Upload,
    body: Body,
    limit: u64,
    release: impl Fn(usize),
) -> Result<(), RestError> {
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|error| broken_body(&error, || too_large(limit)))?;
        if upload.size().saturating_add(chunk.len() as u64) > limit {
            return Err(too_large(limit));
        }
        upload.write(&chunk).await.map_err(unavailable)?;
        release(chunk.len());
    }
    Ok(())
}

fn too_large(limit: u64) -> RestError {
    let text = format!(
        "the file is larger than the {limit} bytes that the files of a job may have (artifacts.max-size)"
    );
    RestError::new(StatusCode::PAYLOAD_TOO_LARGE, text)
}

fn unavailable(error: tanist_ha::Error) -> RestError {
    GatewayError::NotYet(error.to_string()).into()
}
