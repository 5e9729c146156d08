//! The jobs that an application has submitted, by number: ids follow from numbers, so a count says as much as a
//! list.
//!
//! Invariants: what is noted stays noted. The stored size is bounded for any number of jobs; it grows only if
//! the program goes on after submissions that were refused, by a few bytes for each run of consecutive
//! refusals.
//!
//! Up to [`LISTED`] jobs are stored as ids, which all versions read; more are stored as a count
//! (`docs/adr/0037`).

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tanist_ha::keys::Name;
use tanist_proto::id::JobId;

use super::context::job_id_of;

/// Maximum number of jobs that an application's record lists by id.
pub(super) const LISTED: usize = 100;
/// How many numbers may have been refused before the last listed job. Bounds the search for the numbers of a
/// list.
const REFUSED: usize = 100_000;

/// Part of an [`ApplicationRecord`](super::ApplicationRecord).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmittedJobs {
    /// Ids, in the order of submission.
    #[serde(rename = "submitted", default)]
    listed: Vec<String>,
    /// Besides the listed jobs, all with numbers below this one...
    #[serde(
        rename = "submitted_below",
        default,
        skip_serializing_if = "is_nothing"
    )]
    below: u32,
    /// ...except these ranges (first and last included, ascending): refused, or not acknowledged yet.
    #[serde(
        rename = "not_submitted",
        default,
        skip_serializing_if = "Vec::is_empty"
    )]
    except: Vec<(u32, u32)>,
}

fn is_nothing(below: &u32) -> bool {
    *below == 0
}

impl SubmittedJobs {
    /// Whether the job with this number and id was submitted.
    pub fn has(&self, position: u32, job: JobId) -> bool {
        self.counts(position) || self.listed.contains(&job.to_string())
    }

    /// Whether no job was submitted.
    pub fn is_empty(&self) -> bool {
        self.listed.is_empty() && self.below == 0
    }

    fn counts(&self, position: u32) -> bool {
        let next = self.except.partition_point(|row| row.1 < position);
        let is_excepted = self.except.get(next).is_some_and(|row| row.0 <= position);
        position < self.below && !is_excepted
    }

    /// Notes that the cluster has the job.
    pub(super) fn note(&mut self, cluster_id: &Name, position: u32, job: JobId) {
        if self.has(position, job) {
            return;
        }
        if self.below == 0 && self.listed.len() < LISTED {
            self.listed.push(job.to_string());
            return;
        }
        self.shorten(cluster_id);
        self.count(position);
    }

    /// Replaces a long list by a count. Ids that are not this cluster's stay listed.
    pub(super) fn shorten(&mut self, cluster_id: &Name) {
        if self.below > 0 || self.listed.len() < LISTED {
            return;
        }
        let mut listed: BTreeSet<String> = std::mem::take(&mut self.listed).into_iter().collect();
        for position in (0..=u32::MAX).take(listed.len() + REFUSED) {
            if listed.is_empty() {
                break;
            }
            if listed.remove(&job_id_of(cluster_id, position).to_string()) {
                self.count(position);
            }
        }
        self.listed = listed.into_iter().collect();
    }

    fn count(&mut self, position: u32) {
        if position >= self.below {
            if position > self.below {
                self.except.push((self.below, position - 1));
            }
            self.below = position.saturating_add(1);
            return;
        }
        let at = self.except.partition_point(|row| row.1 < position);
        if let Some(&(first, last)) = self.except.get(at)
            && first <= position
        {
            let before = (first < position).then(|| (first, position - 1));
            let after = (position < last).then(|| (position + 1, last));
            self.except.splice(at..=at, before.into_iter().chain(after));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cluster() -> Name {
        Name::new("c").expect("a name")
    }

    fn noted(positions: impl IntoIterator<Item = u32>) -> SubmittedJobs {
        let mut submitted = SubmittedJobs::default();
        for position in positions {
            submitted.note(&cluster(), position, job_id_of(&cluster(), position));
        }
        submitted
    }

    fn size(submitted: &SubmittedJobs) -> usize {
        serde_json::to_vec(submitted).expect("JSON").len()
    }

    fn has(submitted: &SubmittedJobs, position: u32) -> bool {
        submitted.has(position, job_id_of(&cluster(), position))
    }

    #[test]
    fn very_many_jobs_take_no_more_than_a_hundred() {
        let hundred = size(&noted(0..100));
        assert!(size(&noted(0..100_000)) < hundred, "{hundred}");
        // One in a thousand was refused.
        let most = noted((0..100_000).filter(|position| position % 1000 != 7));
        assert!(size(&most) < hundred, "{}", size(&most));
        assert!(has(&most, 6) && !has(&most, 99_007) && has(&most, 99_999) && !has(&most, 100_000));
    }

    #[test]
    fn few_jobs_are_kept_as_every_version_reads_them() {
        let ids: Vec<String> = [0, 2]
            .map(|it| job_id_of(&cluster(), it).to_string())
            .into();
        let expected = serde_json::json!({ "submitted": ids });
        let kept = serde_json::to_value(noted([0, 2])).expect("JSON");
        assert_eq!(kept, expected);
    }

    #[test]
    fn a_list_of_an_earlier_version_is_counted_and_what_is_not_of_the_cluster_stays_listed() {
        let other = Name::new("d").expect("a name");
        let foreign = job_id_of(&other, 0);
        let positions = (0..5000).filter(|it| *it != 17);
        let mut ids: Vec<String> = positions
            .map(|it| job_id_of(&cluster(), it).to_string())
            .collect();
        ids.push(foreign.to_string());
        let kept = serde_json::json!({ "submitted": ids });
        let mut read: SubmittedJobs = serde_json::from_value(kept).expect("readable");
        assert!(has(&read, 0) && has(&read, 4999) && !has(&read, 17));
        read.shorten(&cluster());
        assert!(size(&read) < 200, "{read:?}");
        assert!(has(&read, 0) && has(&read, 4999) && !has(&read, 17) && !has(&read, 5000));
        assert!(read.has(9999, foreign));
    }

    proptest! {
        #[test]
        fn whatever_the_order_it_has_what_was_noted_and_nothing_else(
            positions in proptest::collection::vec(0_u32..400, 0..400),
        ) {
            let submitted = noted(positions.iter().copied());
            for position in 0..401 {
                prop_assert_eq!(has(&submitted, position), positions.contains(&position));
            }
        }
    }
}
