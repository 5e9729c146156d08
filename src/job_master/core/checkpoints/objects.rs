//! Names of objects of checkpoints, and which snapshots name them. Pure functions.
//!
//! An object of state is named `<number>-<generation>-<random>`, one that holds a manifest
//! `manifest-<number>-<random>`. `removal.rs` decides by the number in the name: a name without one is never garbage.

use tanist_proto::pieces::{Piece, pieces};
use tanist_proto::v1 as pb;

/// The number of the checkpoint for which an object was written. None: it is not a name of a checkpoint's object.
pub(super) fn number_of(object: &str) -> Option<u64> {
    object.split_once('-')?.0.parse().ok()
}

/// The number of the checkpoint whose manifest an object holds, by its name.
pub(super) fn number_of_manifest(object: &str) -> Option<u64> {
    number_of(object.strip_prefix("manifest-")?)
}

/// The objects that the snapshot of a subtask names.
pub(super) fn named_by_subtask(snapshot: &pb::SubtaskSnapshot) -> impl Iterator<Item = &str> {
    pieces(snapshot).filter_map(Piece::object)
}

/// The objects that the snapshot of a region names.
pub(super) fn named_by_region(snapshot: &pb::RegionSnapshot) -> impl Iterator<Item = &str> {
    snapshot.subtasks.iter().flat_map(named_by_subtask)
}

/// The objects that a manifest names.
pub(super) fn named_by(manifest: &pb::CheckpointManifest) -> impl Iterator<Item = &str> {
    manifest.regions.iter().flat_map(named_by_region)
}

/// The name of the object that holds a manifest. None: it stands in the record.
pub(super) fn manifest_object(stored: Option<&pb::StoredManifest>) -> Option<&str> {
    match stored?.place.as_ref()? {
        pb::stored_manifest::Place::Object(object) => Some(&object.name),
        pb::stored_manifest::Place::Inline(_) => None,
    }
}

/// The size of the state that a manifest names, in bytes.
pub(super) fn state_size(manifest: &pb::CheckpointManifest) -> u64 {
    let subtasks = manifest.regions.iter().flat_map(|it| &it.subtasks);
    subtasks.flat_map(pieces).map(Piece::size).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_an_object_is_in_its_name() {
        assert_eq!(number_of("12-3-0123456789abcdef"), Some(12));
        let manifest = "manifest-12-0123456789abcdef";
        assert_eq!(number_of(manifest), None);
        assert_eq!(number_of_manifest(manifest), Some(12));
        assert_eq!(number_of_manifest("12-3-0123456789abcdef"), None);
        assert_eq!(number_of("12"), None);
    }
}
