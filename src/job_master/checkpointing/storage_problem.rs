//! Objects of checkpoints that can't be removed: since when, and why. Nothing waits for them, but they use up space
//! until an operator repairs the storage. Owned by `Checkpoints`, for people.

use tanist_proto::v1 as pb;

/// A problem that lasts this long is an event of the job, in milliseconds.
const LONG_MS: u64 = 5_000;

/// Why the last removal or listing failed; see the module.
#[derive(Debug, Default)]
pub(super) struct StorageProblem {
    present: Option<Present>,
}

#[derive(Debug)]
struct Present {
    text: String,
    since_ms: u64,
    is_announced: bool,
}

impl StorageProblem {
    /// A removal or a listing succeeded.
    pub(super) fn clear(&mut self) {
        self.present = None;
    }

    /// A removal or a listing failed. Returns the text of an event: once, if this has lasted for a while.
    pub(super) fn note(&mut self, text: String, now_ms: u64) -> Option<String> {
        let present = self.present.get_or_insert_with(|| Present {
            text: String::new(),
            since_ms: now_ms,
            is_announced: false,
        });
        present.text = text;
        let is_long = present.since_ms.saturating_add(LONG_MS) <= now_ms;
        let is_news = is_long && !std::mem::replace(&mut present.is_announced, is_long);
        is_news.then(|| present.text.clone())
    }

    /// For people.
    pub(super) fn described(&self) -> Option<pb::StorageProblem> {
        let present = self.present.as_ref()?;
        Some(pb::StorageProblem {
            text: present.text.clone(),
            since_ms: present.since_ms,
        })
    }
}
