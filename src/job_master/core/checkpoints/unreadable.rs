//! Whether a JobMaster can begin with the manifests of a record. Pure functions.
//!
//! Invariant: a manifest that can't be used is an error. It never means that a region begins from the start.

use tanist_proto::manifest::ManifestError;
use tanist_proto::v1 as pb;

use super::options::Topology;

/// Why a JobMaster can't begin with a record: a manifest can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// It is damaged, or of a later version.
    #[error("the manifest of checkpoint {number} can't be read: {error}")]
    Manifest {
        /// The checkpoint.
        number: u64,
        /// What is wrong.
        error: ManifestError,
    },
    /// It does not exist.
    #[error("the manifest of checkpoint {number} is missing: the object {object:?} does not exist")]
    Missing {
        /// The checkpoint.
        number: u64,
        /// Its object.
        object: String,
    },
    /// It is intact, and not of this job as it is laid out.
    #[error("the manifest of checkpoint {number} does not fit the job: {reason}")]
    Unfit {
        /// The checkpoint.
        number: u64,
        /// What does not fit.
        reason: String,
    },
}

/// Why an origin does not belong to this record: this job may have given its number out.
pub(super) fn unfit_origin(
    record: &pb::JobCheckpoints,
    origin: &pb::CheckpointOrigin,
) -> Option<String> {
    let (number, next) = (origin.number, record.next);
    let is_below = number < next && record.retained.iter().all(|it| number < it.number);
    // Subsumed ones may be of a former layout, with lower numbers.
    let is_known = record.removing.iter().any(|it| it.number == number);
    (!is_below || is_known).then(|| {
        format!("it is the origin of the job, and own numbers of the job are not above it: next is {next}")
    })
}

/// Why an intact manifest does not belong to this record. It must not be accepted: a region that it lacks would begin
/// from the start.
pub(super) fn unfit(
    record: &pb::JobCheckpoints,
    topology: &Topology,
    (number, manifest): (u64, &pb::CheckpointManifest),
    is_newest: bool,
) -> Option<String> {
    if manifest.job_id != record.job_id {
        return Some(format!("it is of job {:?}", manifest.job_id));
    }
    if manifest.number != number {
        return Some(format!("it is of checkpoint {}", manifest.number));
    }
    if manifest.layout != record.layout {
        let (is, wanted) = (manifest.layout, record.layout);
        return Some(format!(
            "it is of layout {is}, and the job has layout {wanted}"
        ));
    }
    let (is, wanted) = (manifest.regions.len(), topology.region_count());
    if is != wanted {
        return Some(format!("it has {is} regions, and the job has {wanted}"));
    }
    let mut regions = manifest.regions.iter().enumerate();
    regions.find_map(|(region, snapshot)| {
        let takes_part = topology.not_checkpointed(region).is_none();
        match snapshot.kind() {
            pb::RegionSnapshotKind::Unspecified => Some(format!(
                "it does not say what region {region} is restored from"
            )),
            // Only in the newest manifest: an older one may have been written while there was an origin.
            pb::RegionSnapshotKind::FromOrigin
                if is_newest && takes_part && record.origin.is_none() =>
            {
                Some(format!(
                    "region {region} is restored from an origin, and there is none"
                ))
            }
            pb::RegionSnapshotKind::Taken if snapshot.number == 0 || snapshot.number > number => {
                let taken = snapshot.number;
                Some(format!(
                    "its snapshot of region {region} has the number {taken}"
                ))
            }
            pb::RegionSnapshotKind::Taken
            | pb::RegionSnapshotKind::FromOrigin
            | pb::RegionSnapshotKind::FromStart => None,
        }
    })
}
