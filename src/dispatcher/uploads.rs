//! Uploads of a job before its submission, as the Dispatcher sees them: they must exist when a graph that names
//! them is written, and are removed with the job.
//!
//! All uploads of a job are protected from before the check until its result names those to be removed; a graph that
//! names an upload that has a tombstone by then is refused (`sweep.rs`). So the uploads of an acknowledged
//! graph exist as long as the graph.

use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tanist_ha::blob::{Checksum, UploadPointer};
use tanist_ha::keys::Name;
use tanist_proto::v1 as pb;

use super::job_store::{JobStore, JobStoreError};

/// Number of uploads that are checked at the same time.
const LOOKS_IN_FLIGHT: usize = 8;

/// Returns the pointer to an artifact's content; `None` if it is invalid.
fn pointer_of(artifact: &pb::Artifact, uploaded: &pb::UploadedContent) -> Option<UploadPointer> {
    Some(UploadPointer {
        name: Name::new(&*uploaded.object).ok()?,
        pieces: uploaded.pieces,
        size: uploaded.size,
        sha256: Checksum::try_from(&artifact.sha256[..]).ok()?,
    })
}

/// Returns the names of all objects of an upload; none if it is invalid.
pub(super) fn objects_of(uploaded: &pb::UploadedContent) -> Vec<Name> {
    let pointer = Name::new(&*uploaded.object).map(|name| UploadPointer {
        name,
        pieces: uploaded.pieces,
        size: uploaded.size,
        sha256: Checksum::of(&[]),
    });
    let names = pointer.ok().and_then(|it| it.piece_names().ok());
    names.unwrap_or_default()
}

impl JobStore {
    /// Checks that all uploads of a graph exist and will stay. The job must be protected already.
    pub(super) async fn check_uploads(&self, graph: &pb::JobGraph) -> Result<(), JobStoreError> {
        let named = graph.artifacts.iter();
        let named = named.filter_map(|artifact| Some((artifact, artifact.uploaded.as_ref()?)));
        let looks = named.map(|(artifact, uploaded)| self.check_upload(artifact, uploaded));
        let looks: Vec<_> = looks.collect();
        let looking = stream::iter(looks).buffer_unordered(LOOKS_IN_FLIGHT);
        looking.try_collect::<()>().await
    }

    async fn check_upload(
        &self,
        artifact: &pb::Artifact,
        uploaded: &pb::UploadedContent,
    ) -> Result<(), JobStoreError> {
        let refused = |what: &str| {
            let name = &artifact.name;
            JobStoreError::NotUploaded(format!("artifact `{name}` {what}: upload it again"))
        };
        let Some(blobs) = self.records.blobs().filter(|it| it.survives_host()) else {
            return Err(refused("can't have been uploaded to this cluster"));
        };
        let pointer = pointer_of(artifact, uploaded);
        let pointer = pointer.ok_or_else(|| refused("names no upload"))?;
        let names = pointer.piece_names().map_err(JobStoreError::Refused)?;
        if self.ledger.has_tombstone(&names) {
            return Err(refused("was uploaded too long ago"));
        }
        match blobs.has_upload(&pointer).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(refused("is not there any more")),
            Err(error) => Err(JobStoreError::Refused(error)),
        }
    }
}
