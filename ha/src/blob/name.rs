//! The names of objects: owner, writer and cluster.
//!
//! ```text
//! <owner>-<epoch>-<cluster>-<random>          written by the term of that epoch
//! <owner>-upload-<cluster>-<random>.<piece>   uploaded before the owner's submission, in pieces, by any process
//! ```
//!
//! Invariant: a name is never reused. Objects with other names are not this crate's and are left alone. Plain values.

use crate::election::{ClusterIncarnation, Epoch};
use crate::error::{Error, Result};
use crate::keys::Name;

const UPLOAD: &str = "upload";

/// Distinguishes the objects of a cluster from those of others in the same place: a few digits derived from
/// its incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ClusterTag(String);

impl ClusterTag {
    /// The tag of a cluster.
    pub fn of(incarnation: &ClusterIncarnation) -> ClusterTag {
        let sum = super::Checksum::of(incarnation.as_str().as_bytes());
        let digits = sum.as_bytes().iter().take(6);
        ClusterTag(digits.map(|byte| format!("{byte:02x}")).collect())
    }

    /// Its digits.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for ClusterTag {
    /// The tag of no particular cluster.
    fn default() -> ClusterTag {
        ClusterTag("0".repeat(12))
    }
}

/// The writer of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// A term: only this term writes the first pointer to it.
    Term(Epoch),
    /// A client, before its submission.
    Upload,
}

/// The fields of an object's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlobName {
    /// The owner: a job.
    pub owner: Name,
    /// The writer.
    pub origin: Origin,
    /// The cluster.
    pub tag: ClusterTag,
}

impl BlobName {
    /// Generates a name for an object of a term.
    pub(super) fn of_term(owner: &Name, epoch: Epoch, tag: &ClusterTag) -> Result<Name> {
        fresh(owner, &epoch.to_string(), tag)
    }

    /// Generates a name for an upload, without the number of a piece.
    pub(super) fn of_upload(owner: &Name, tag: &ClusterTag) -> Result<Name> {
        fresh(owner, UPLOAD, tag)
    }

    /// `None` for a name that this crate never generates.
    pub fn read(name: &Name) -> Option<BlobName> {
        let text = name.as_str();
        let (base, piece) = match text.split_once('.') {
            Some((base, piece)) => (base, Some(piece)),
            None => (text, None),
        };
        let mut parts = base.rsplitn(4, '-');
        let (random, tag) = (parts.next()?, parts.next()?);
        let (origin, owner) = (parts.next()?, parts.next()?);
        let is_hex = |text: &str, digits| {
            text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        if !is_hex(random, 16) || !is_hex(tag, 12) {
            return None;
        }
        let origin = match (origin, piece) {
            (UPLOAD, Some(piece)) if piece.bytes().all(|byte| byte.is_ascii_digit()) => {
                Origin::Upload
            }
            (epoch, None) => Origin::Term(epoch.parse().ok()?),
            (_, Some(_)) => return None,
        };
        Some(BlobName {
            owner: Name::new(owner).ok()?,
            origin,
            tag: ClusterTag(tag.to_owned()),
        })
    }
}

fn fresh(owner: &Name, origin: &str, tag: &ClusterTag) -> Result<Name> {
    let random = rand::random::<u64>();
    let name = Name::new(format!("{owner}-{origin}-{}-{random:016x}", tag.0));
    name.map_err(|error| Error::Misconfigured(error.to_string().into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).expect("a name")
    }

    #[test]
    fn a_name_says_whose_it_is_who_wrote_it_and_of_which_cluster() {
        let owner = name("0a-1b");
        let tags = ["one", "another"].map(|text| ClusterTag::of(&ClusterIncarnation::new(text)));
        assert_ne!(tags[0], tags[1]);
        for tag in tags {
            let of_term = BlobName::of_term(&owner, Epoch::new(7), &tag).expect("a name");
            let expected = |origin| BlobName {
                owner: owner.clone(),
                origin,
                tag: tag.clone(),
            };
            let read = BlobName::read(&of_term);
            assert_eq!(read, Some(expected(Origin::Term(Epoch::new(7)))));
            let of_upload = BlobName::of_upload(&owner, &tag).expect("a name");
            let piece = name(&format!("{of_upload}.0003"));
            assert_eq!(BlobName::read(&piece), Some(expected(Origin::Upload)));
        }
    }

    #[test]
    fn other_names_say_nothing() {
        for other in [
            "0a1b-7-0123456789abcdef",
            "a-b-c-d",
            "0a1b-7-0123456789ab-0123456789abcdef.0001",
            "0a1b-upload-0123456789ab-0123456789abcdef",
            "0a1b-x-0123456789ab-0123456789abcdef",
            "notes.txt",
        ] {
            assert_eq!(BlobName::read(&name(other)), None, "{other}");
        }
    }
}
