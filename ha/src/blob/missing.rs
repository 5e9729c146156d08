//! For tests: a bucket that is missing until the test makes it appear, such as one that is renamed, being recreated,
//! or hidden by a gateway. Answers like S3. The objects are in memory and shared by all clones.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use super::BlobStore;

/// Controls the bucket. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct MissingBucket {
    objects: Arc<InMemory>,
    is_there: Arc<AtomicBool>,
    /// Whether it is missing for the next request alone.
    is_away: Arc<AtomicBool>,
}

impl MissingBucket {
    /// A blob store on this bucket.
    pub fn store(&self) -> BlobStore {
        BlobStore::at(Arc::new(self.clone()), true, "the bucket")
    }

    /// Makes the bucket exist, with everything that was ever written.
    pub fn appear(&self) {
        self.is_there.store(true, Ordering::Relaxed);
    }

    /// Makes the bucket missing.
    pub fn vanish(&self) {
        self.is_there.store(false, Ordering::Relaxed);
    }

    /// Makes the bucket missing for the next request, and for no other.
    pub fn vanish_for_a_moment(&self) {
        self.is_away.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<()> {
        let is_away = self.is_away.swap(false, Ordering::Relaxed);
        if self.is_there.load(Ordering::Relaxed) && !is_away {
            return Ok(());
        }
        Err(Error::NotFound {
            path: "the bucket".to_owned(),
            source: "404 Not Found: NoSuchBucket".into(),
        })
    }
}

impl fmt::Display for MissingBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a bucket that may be missing")
    }
}

#[async_trait]
impl ObjectStore for MissingBucket {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.check()?;
        self.objects.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.check()?;
        self.objects.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.check()?;
        self.objects.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        match self.check() {
            Ok(()) => self.objects.delete_stream(locations),
            Err(error) => futures::stream::iter([Err(error)]).boxed(),
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        match self.check() {
            Ok(()) => self.objects.list(prefix),
            Err(error) => futures::stream::iter([Err(error)]).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.check()?;
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.check()?;
        self.objects.copy_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::Outcome;
    use crate::election::Epoch;
    use crate::keys::Name;

    #[tokio::test]
    async fn what_is_written_to_or_read_from_a_bucket_that_is_missing_may_be_so_later() {
        let bucket = MissingBucket::default();
        let blobs = bucket.store();
        let job = Name::new("0a1b").expect("a name");
        let put = async || {
            let bytes = Bytes::from_static(b"state");
            blobs.put(&job, Epoch::new(3), bytes).await
        };
        let refused = put().await.expect_err("no bucket");
        assert_eq!(refused.outcome(), Outcome::Transient, "{refused}");
        let upload = blobs.upload(&job).expect("a name");
        let refused = upload.finish().await.expect_err("no bucket");
        assert_eq!(refused.outcome(), Outcome::Transient, "{refused}");
        let refused = blobs.list().await.expect_err("no bucket");
        assert_eq!(refused.outcome(), Outcome::Transient, "{refused}");

        bucket.appear();
        let pointer = put().await.expect("taken");
        let read = blobs.get(&pointer).await;
        assert_eq!(read.expect("there"), Bytes::from_static(b"state"));
        bucket.vanish();
        let unread = blobs.get(&pointer).await.expect_err("no bucket");
        assert_eq!(unread.outcome(), Outcome::Transient, "{unread}");
        let unread = blobs.stream(&pointer.name).await.err().expect("no bucket");
        assert_eq!(unread.outcome(), Outcome::Transient, "{unread}");
        bucket.appear();
        // The object is missing, and there again when the store checks the bucket.
        bucket.vanish_for_a_moment();
        let unread = blobs.get(&pointer).await.expect_err("no bucket");
        assert_eq!(unread.outcome(), Outcome::Transient, "{unread}");
        blobs.get(&pointer).await.expect("there");
        blobs.delete(&pointer.name).await.expect("deleted");
        let missing = blobs.get(&pointer).await.expect_err("gone");
        assert_eq!(missing.outcome(), Outcome::Fatal, "{missing}");
    }
}
