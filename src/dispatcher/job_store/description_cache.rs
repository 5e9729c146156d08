//! The descriptions of ended jobs that are kept in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use prost::Message as _;
use tanist_proto::id::JobId;
use tanist_proto::v1 as pb;

/// Recently written or read descriptions, limited in bytes. The least recently used is dropped first.
#[derive(Debug)]
pub(super) struct DescriptionCache {
    limit: usize,
    bytes: usize,
    turn: u64,
    held: BTreeMap<JobId, Held>,
    /// Job by time of last use, oldest first.
    by_use: BTreeMap<u64, JobId>,
}

#[derive(Debug)]
struct Held {
    details: Arc<pb::JobDetails>,
    size: usize,
    used_in: u64,
}

impl DescriptionCache {
    pub(super) fn new(limit: usize) -> DescriptionCache {
        DescriptionCache {
            limit,
            bytes: 0,
            turn: 0,
            held: BTreeMap::new(),
            by_use: BTreeMap::new(),
        }
    }

    pub(super) fn get(&mut self, job: JobId) -> Option<Arc<pb::JobDetails>> {
        self.turn += 1;
        let held = self.held.get_mut(&job)?;
        self.by_use.remove(&held.used_in);
        held.used_in = self.turn;
        self.by_use.insert(self.turn, job);
        Some(held.details.clone())
    }

    pub(super) fn put(&mut self, job: JobId, details: Arc<pb::JobDetails>) {
        self.forget(job);
        let size = details.encoded_len();
        if size > self.limit {
            return;
        }
        self.turn += 1;
        self.bytes += size;
        let used_in = self.turn;
        let held = Held {
            details,
            size,
            used_in,
        };
        self.held.insert(job, held);
        self.by_use.insert(used_in, job);
        while self.bytes > self.limit {
            let Some((_, oldest)) = self.by_use.first_key_value() else {
                return;
            };
            self.forget(*oldest);
        }
    }

    pub(super) fn forget(&mut self, job: JobId) {
        if let Some(held) = self.held.remove(&job) {
            self.bytes -= held.size;
            self.by_use.remove(&held.used_in);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(failures: usize) -> pb::JobDetails {
        let failure = pb::FailureRecord {
            cause: "a cause".to_owned(),
            ..pb::FailureRecord::default()
        };
        pb::JobDetails {
            failures: vec![failure; failures],
            ..pb::JobDetails::default()
        }
    }

    #[test]
    fn the_cache_keeps_what_was_used_last_within_its_limit() {
        let size = described(1).encoded_len();
        let mut cache = DescriptionCache::new(2 * size);
        let job = |number| JobId::from_bits(number);
        for number in 1..=2 {
            cache.put(job(number), Arc::new(described(1)));
        }
        assert!(cache.get(job(1)).is_some());
        cache.put(job(3), Arc::new(described(1)));
        assert!(cache.get(job(1)).is_some() && cache.get(job(3)).is_some());
        assert!(cache.get(job(2)).is_none());
        cache.put(job(4), Arc::new(described(100)));
        assert!(cache.get(job(4)).is_none(), "it would take all");
        assert_eq!(cache.bytes, 2 * size);
        cache.forget(job(1));
        assert_eq!(cache.bytes, size);
    }
}
