//! Which objects of the blob store hold an upload of a job: an artifact that a client sent before it submitted the
//! job. Pure. A graph that names an invalid upload has no objects here: its submission is refused.

use tanist_ha::blob::{Checksum, UploadPointer};
use tanist_ha::keys::Name;
use tanist_proto::v1 as pb;

/// Returns the pointer to an artifact's content; `None` if it is invalid.
pub(super) fn pointer_of(
    artifact: &pb::Artifact,
    uploaded: &pb::UploadedContent,
) -> Option<UploadPointer> {
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
        // No part of the objects' names.
        sha256: Checksum::of(&[]),
    });
    let names = pointer.ok().and_then(|it| it.piece_names().ok());
    names.unwrap_or_default()
}
