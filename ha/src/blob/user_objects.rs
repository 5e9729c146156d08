//! Objects in S3 that are not this cluster's blobs: user files, read as a stream. Only their existence is
//! checked, not their content. `Unavailable` may pass; `Misconfigured` (a missing object, a refused read) does not.

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};

use super::STORE;
use super::s3::{self, RequestTimeout};
use crate::error::{Error, Result};

/// The size of an object, and its bytes as a stream.
pub type ObjectStream = (u64, BoxStream<'static, Result<Bytes>>);

/// Opens `s3://bucket/key` with the credentials of the environment. `Misconfigured` if there is no such
/// object, or no support for S3 in this build.
pub async fn read_elsewhere(url: &str) -> Result<ObjectStream> {
    let rest = url.strip_prefix("s3://").unwrap_or(url);
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    let objects = s3::open(url, bucket, RequestTimeout::Long)?;
    let path = Path::parse(key)
        .map_err(|error| Error::Misconfigured(format!("{url} is no address: {error}").into()))?;
    read(&*objects, &path).await
}

pub(super) async fn read(objects: &dyn ObjectStore, path: &Path) -> Result<ObjectStream> {
    let found = objects.get(path).await.map_err(failed)?;
    let size = found.meta.size;
    let pieces = found.into_stream().map(|piece| piece.map_err(failed));
    Ok((size, pieces.boxed()))
}

fn failed(error: object_store::Error) -> Error {
    match error {
        object_store::Error::NotFound { .. } => {
            Error::Misconfigured("there is no such object".into())
        }
        object_store::Error::PermissionDenied { .. }
        | object_store::Error::Unauthenticated { .. } => {
            Error::Misconfigured(format!("it may not be read: {error}").into())
        }
        other => Error::Unavailable {
            store: STORE,
            reason: other.to_string(),
        },
    }
}
