//! The snapshots of a task whose segments later snapshots may name again: the newest durable one, which is their base,
//! and those after it. `CheckpointControl` owns them. Pure.
//!
//! A later snapshot names a segment by its object, or repeats its content if that is small. A large segment has no
//! object until the TaskExecutor has said where it wrote it. Until then the snapshot is no base, and the next one is
//! written whole.

use std::collections::BTreeMap;
use std::sync::Arc;

use tanist_proto::v1::{StateSegment, SubtaskSnapshot};

/// Most bytes of a segment that is repeated.
const MOST_REPEATED: usize = 4 * 1024;

/// The snapshots by number; see the module.
#[derive(Debug, Default)]
pub(super) struct SavedSnapshots(BTreeMap<u64, Arc<SubtaskSnapshot>>);

impl SavedSnapshots {
    /// Adds the snapshot that the task is restored from, without the contents that are in objects.
    pub(super) fn restore(&mut self, number: u64, snapshot: &SubtaskSnapshot) {
        let segments = snapshot.segments.iter().map(|from| StateSegment {
            uid: from.uid.clone(),
            name: from.name.clone(),
            object: from.object.clone(),
            content: match from.object.is_empty() {
                true => from.content.clone(),
                false => Vec::new(),
            },
            superseded: from.superseded.clone(),
            ..*from
        });
        let snapshot = SubtaskSnapshot {
            segments: segments.collect(),
            ..SubtaskSnapshot::default()
        };
        self.0.insert(number, Arc::new(snapshot));
    }

    /// Adds a snapshot that the task has saved.
    pub(super) fn add(&mut self, number: u64, snapshot: Arc<SubtaskSnapshot>) {
        self.0.insert(number, snapshot);
    }

    /// Replaces a snapshot by the form in which it was written, which names the objects. `None`: it is not needed.
    pub(super) fn release(&mut self, number: u64, written: Option<Arc<SubtaskSnapshot>>) {
        match (self.0.get_mut(&number), written) {
            (Some(saved), Some(written)) => *saved = written,
            (Some(_), None) => {
                self.0.remove(&number);
            }
            (None, _) => {}
        }
    }

    /// The newest durable snapshot, as the base of one that is being taken. `None`: it is no base, or not known
    /// here. All others are forgotten: those between were aborted.
    pub(super) fn take_base(&mut self, newest: u64) -> Option<Arc<SubtaskSnapshot>> {
        self.0.retain(|number, _| *number == newest);
        let base = self.0.get(&newest)?;
        let mut segments = base.segments.iter();
        let is_placed =
            segments.all(|it| !it.object.is_empty() || it.content.len() <= MOST_REPEATED);
        is_placed.then(|| Arc::clone(base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(object: &str, bytes: usize) -> Arc<SubtaskSnapshot> {
        Arc::new(SubtaskSnapshot {
            segments: vec![StateSegment {
                object: object.to_owned(),
                content: vec![1; bytes],
                length: bytes as u64,
                written_in: 3,
                ..StateSegment::default()
            }],
            ..SubtaskSnapshot::default()
        })
    }

    #[test]
    fn only_the_newest_durable_snapshot_is_a_base_and_only_once_its_places_are_known() {
        let mut saved = SavedSnapshots::default();
        saved.add(3, snapshot("", MOST_REPEATED + 1));
        assert_eq!(saved.take_base(3), None);
        let written = snapshot("3-1-aa", 0);
        saved.release(3, Some(Arc::clone(&written)));
        assert_eq!(saved.take_base(3), Some(Arc::clone(&written)));
        saved.add(4, snapshot("", 1));
        assert_eq!(saved.take_base(3), Some(written), "4 was aborted");
        assert_eq!(saved.take_base(4), None);
        assert_eq!(saved.take_base(3), None);
        let small = snapshot("", MOST_REPEATED);
        saved.add(5, Arc::clone(&small));
        assert_eq!(saved.take_base(5), Some(small));
        saved.release(5, None);
        assert_eq!(saved.take_base(5), None);
        saved.release(6, Some(snapshot("6-1-aa", 0)));
        assert_eq!(saved.take_base(6), None, "it was never saved");
    }

    #[test]
    fn a_restored_snapshot_is_a_base_without_what_is_in_objects() {
        let mut saved = SavedSnapshots::default();
        saved.restore(3, &snapshot("3-1-aa", MOST_REPEATED + 1));
        let base = saved.take_base(3).expect("it has a place");
        assert_eq!(base.segments[0].object, "3-1-aa");
        assert_eq!(base.segments[0].written_in, 3);
        assert!(base.segments[0].content.is_empty());
        saved.restore(7, &snapshot("", 9));
        assert_eq!(saved.take_base(7), Some(snapshot("", 9)));
    }
}
