//! The jobs that an application has submitted, by their numbers. Ids follow from the numbers, so a count is enough and
//! no list is kept (`docs/adr/0037`).
//!
//! Invariants: a number that is recorded stays recorded. The size does not grow with the number of jobs, only by a few
//! bytes for each run of submissions that were refused and after which the program went on.

use serde::{Deserialize, Serialize};

/// Part of an [`ApplicationRecord`](super::ApplicationRecord).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubmittedJobs {
    /// All with numbers below this one...
    #[serde(rename = "submitted_below", default)]
    below: u32,
    /// ...except these ranges (first and last included, ascending): refused, or not acknowledged yet.
    #[serde(
        rename = "not_submitted",
        default,
        skip_serializing_if = "Vec::is_empty"
    )]
    except: Vec<(u32, u32)>,
}

impl SubmittedJobs {
    /// Whether the job with this number was submitted.
    pub fn has(&self, position: u32) -> bool {
        let next = self.except.partition_point(|row| row.1 < position);
        let is_excepted = self.except.get(next).is_some_and(|row| row.0 <= position);
        position < self.below && !is_excepted
    }

    /// Whether none was.
    pub fn is_empty(&self) -> bool {
        self.below == 0
    }

    /// The cluster has the job.
    pub(super) fn note(&mut self, position: u32) {
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

    fn noted(positions: impl IntoIterator<Item = u32>) -> SubmittedJobs {
        let mut submitted = SubmittedJobs::default();
        for position in positions {
            submitted.note(position);
        }
        submitted
    }

    #[test]
    fn very_many_jobs_take_a_few_bytes_for_each_range_that_was_refused() {
        let size = |submitted: &SubmittedJobs| serde_json::to_vec(submitted).expect("JSON").len();
        assert!(size(&noted(0..100_000)) < 30);
        // One in a thousand was refused.
        let most = noted((0..100_000).filter(|position| position % 1000 != 7));
        assert!(size(&most) < 2_000, "{}", size(&most));
        assert!(most.has(6) && !most.has(99_007) && most.has(99_999) && !most.has(100_000));
    }

    proptest! {
        #[test]
        fn in_any_order_it_has_the_noted_numbers_and_no_others(
            positions in proptest::collection::vec(0_u32..400, 0..400),
        ) {
            let submitted = noted(positions.iter().copied());
            for position in 0..401 {
                prop_assert_eq!(submitted.has(position), positions.contains(&position));
            }
        }
    }
}
