//! Where the manifest of a checkpoint is kept: in the record of its job, or in an object that the record names.

/// Size in bytes up to which a manifest stands in the record if there is a blob store for larger ones.
pub const INLINE: usize = 8 * 1024;
/// The same if there is none: larger manifests are declined.
pub const INLINE_ALONE: usize = 64 * 1024;

/// A name for the object of the manifest with this number. It is used once.
pub fn object_name(number: u64) -> String {
    format!("manifest-{number}-{:016x}", rand::random::<u64>())
}
