//! The configured places of a cluster's objects, and opening them as one [`BlobStore`].

use std::sync::Arc;

use super::{BlobStore, options};
use crate::error::Result;

/// Configuration of a blob store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobOptions {
    /// An absolute path, `file:///path` or `s3://bucket/prefix`.
    pub url: String,
    /// Whether the directory is shared by all hosts of the cluster.
    pub shared: bool,
}

/// The places of a cluster's objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobPlaces {
    /// The place of all objects but those of checkpoints.
    pub blobs: BlobOptions,
    /// The place of the objects of checkpoints; `None`: the same one.
    pub checkpoints: Option<BlobOptions>,
}

impl BlobPlaces {
    /// Opens both.
    pub async fn open(&self) -> Result<BlobStore> {
        let blobs = BlobStore::open_named(&self.blobs, options::BLOBS).await?;
        let checkpoints = match &self.checkpoints {
            Some(place) => {
                let opened = BlobStore::open_named(place, options::CHECKPOINTS).await?;
                Some(Arc::new(opened))
            }
            None => None,
        };
        Ok(BlobStore {
            checkpoints,
            ..blobs
        })
    }
}
