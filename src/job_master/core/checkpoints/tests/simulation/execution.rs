//! One execution of a task: reads records, takes barriers, saves its state, ends. Also one that its leader gave up.
//!
//! A source counts its records and sends each to all sinks of its region. A sink counts the records of each source.
//! Both put what they saw into parts: a part is sealed with a snapshot and named until a newer one is known to have it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tanist_proto::v1 as pb;

use super::super::super::event::TaskProgress;

/// What a channel carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    Record,
    Barrier(Barrier),
    End,
}

/// A barrier, as its trigger said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Barrier {
    pub(super) number: u64,
    pub(super) newest: u64,
    pub(super) floor: u64,
    /// Sources pause behind it.
    pub(super) pauses: bool,
}

/// The input from one source.
#[derive(Debug, Clone, Default)]
pub(super) struct Channel {
    pub(super) queue: VecDeque<Element>,
    pub(super) is_blocked: bool,
    pub(super) is_ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    Running,
    InputEnded,
    Ended,
    Dead,
}

/// What is being written for a number.
#[derive(Debug, Clone)]
pub(super) struct Writing {
    pub(super) number: u64,
    pub(super) snapshot: pb::SubtaskSnapshot,
    /// The object that it creates.
    pub(super) object: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct Execution {
    pub(super) task: usize,
    pub(super) region: usize,
    pub(super) generation: u64,
    pub(super) te: usize,
    pub(super) life: Life,
    pub(super) highest: u64,
    pub(super) progress: TaskProgress,
    pub(super) is_answered: bool,
    pub(super) writing: Option<Writing>,
    pub(super) barrier: Option<Barrier>,
    /// Sources: the number behind which it pauses.
    pub(super) paused_behind: Option<u64>,
    /// Sources: records read. It never changes for sinks.
    pub(super) position: u64,
    /// Sinks: records of each source of the region.
    pub(super) counts: Vec<u64>,
    /// Sinks: inputs, one a source of the region.
    pub(super) inputs: Vec<Channel>,
    /// Seen since the last part was sealed, as (source, index).
    pub(super) open: Vec<(usize, u64)>,
    /// Sealed parts, with the first number that names each.
    pub(super) parts: Vec<(u64, pb::CheckpointCommittable)>,
    pub(super) sealed: u64,
    /// The objects that its snapshots named, by number.
    pub(super) named: BTreeMap<u64, Vec<String>>,
    /// The objects that it wrote.
    pub(super) wrote: Vec<String>,
    pub(super) is_end_recorded: bool,
}

impl Execution {
    /// Takes up a number: the state of this moment is what it saves. `object` is created for it.
    pub(super) fn take_up(&mut self, barrier: Barrier, object: Option<String>, padding: usize) {
        let Barrier {
            number,
            newest,
            floor,
            ..
        } = barrier;
        // A part that snapshot `newest` has belongs to the job.
        self.parts.retain(|(first, _)| *first > newest);
        self.seal(number);
        let of_newest = self.named.get(&newest).cloned().unwrap_or_default();
        let is_usable = |name: &&String| {
            let number = super::super::super::objects::number_of(name);
            number.is_some_and(|number| number >= floor)
        };
        let wrote: Vec<String> = self.wrote.iter().filter(is_usable).cloned().collect();
        // An increment: some of what the newest snapshot names, and of what aborted ones left.
        let kept = of_newest.into_iter().chain(wrote).rev().take(2);
        let mut objects: Vec<String> = kept.collect();
        objects.extend(object.clone());
        objects.sort();
        objects.dedup();
        self.named.insert(number, objects.clone());
        let mut content: Vec<u8> = self.counts.iter().flat_map(|it| it.to_le_bytes()).collect();
        content.resize(content.len() + padding, 0);
        let snapshot = pb::SubtaskSnapshot {
            vertex_id: format!("t{}", self.task),
            subtask: 0,
            positions: vec![pb::SourcePosition {
                uid: "position".to_owned(),
                position: self.position.to_le_bytes().to_vec(),
                ..pb::SourcePosition::default()
            }],
            operators: vec![pb::OperatorState {
                uid: "counts".to_owned(),
                name: format!("{}/{number}", self.generation),
                content,
                place: None,
                redistribution: 0,
            }],
            segments: objects
                .into_iter()
                .map(|object| pb::StateSegment {
                    object,
                    length: 10,
                    ..pb::StateSegment::default()
                })
                .collect(),
            committables: self.parts.iter().map(|(_, part)| part.clone()).collect(),
            ..pb::SubtaskSnapshot::default()
        };
        for input in &mut self.inputs {
            input.is_blocked = false;
        }
        self.highest = number;
        self.progress = TaskProgress::Writing;
        self.barrier = None;
        self.is_answered = false;
        self.writing = Some(Writing {
            number,
            snapshot,
            object,
        });
    }

    /// What it saves is written.
    pub(super) fn finish_writing(&mut self) -> Option<String> {
        let writing = self.writing.take()?;
        self.wrote.extend(writing.object.clone());
        if self.highest == writing.number && self.progress == TaskProgress::Writing {
            self.progress = TaskProgress::Acknowledged(Arc::new(writing.snapshot));
        }
        writing.object
    }

    /// Restores a snapshot of its task.
    pub(super) fn restore(&mut self, newest: u64, snapshot: &pb::SubtaskSnapshot) {
        self.highest = newest;
        self.position = number(&snapshot.positions[0].position);
        let counts = snapshot.operators[0].content.chunks(8).map(number);
        self.counts = counts.take(self.inputs.len()).collect();
        let objects = snapshot.segments.iter().map(|it| it.object.clone());
        self.named.insert(newest, objects.collect());
    }

    fn seal(&mut self, number: u64) {
        if self.open.is_empty() {
            return;
        }
        self.sealed += 1;
        let records = std::mem::take(&mut self.open);
        let records = records.iter().map(|(source, at)| format!("{source}.{at}"));
        let records: Vec<String> = records.collect();
        let part = pb::CheckpointCommittable {
            uid: format!("t{}", self.task),
            kind: format!("g{}-{}", self.generation, self.sealed),
            content: records.join(" ").into_bytes(),
        };
        self.parts.push((number, part));
    }

    /// All that its end names.
    pub(super) fn last_parts(&mut self) -> Vec<pb::CheckpointCommittable> {
        self.seal(u64::MAX);
        self.parts.iter().map(|(_, part)| part.clone()).collect()
    }

    /// Whether all live inputs have delivered the number that it blocks for.
    pub(super) fn is_aligned(&self) -> bool {
        self.barrier.is_some() && self.inputs.iter().all(|it| it.is_blocked || it.is_ended)
    }

    /// Gives up the number that it blocks for, or refuses to take up others up to it.
    pub(super) fn give_up(&mut self, number: u64, progress: TaskProgress) {
        self.highest = number;
        self.progress = progress;
        self.barrier = None;
        for input in &mut self.inputs {
            input.is_blocked = false;
        }
    }

    pub(super) fn lives(&self) -> bool {
        matches!(self.life, Life::Running | Life::InputEnded)
    }
}

/// A number in a snapshot.
pub(super) fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}
