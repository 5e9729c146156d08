//! One execution of a task: reads records, takes barriers, saves its state, ends. Also one that its leader gave up.
//!
//! A source counts its records and sends each to all sinks of its region. A sink counts the records of each source.
//! Both put what they saw into parts: a part is sealed with a snapshot and named until a newer one is known to have it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use tanist_proto::v1 as pb;

use super::super::super::effect::Barrier;
use super::super::super::event::{Event, TaskEnd, TaskProgress, TaskReport};
use crate::core::Connection;

/// What a channel carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Element {
    Record,
    Barrier(Barrier),
    End,
}

/// The input from one source.
#[derive(Debug, Clone, Default)]
pub(in crate::core) struct Channel {
    pub(in crate::core) queue: VecDeque<Element>,
    pub(in crate::core) is_blocked: bool,
    pub(in crate::core) is_ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::core) enum Life {
    Running,
    InputEnded,
    Ended,
    Dead,
}

/// What is being written for a number.
#[derive(Debug, Clone)]
pub(in crate::core) struct Writing {
    pub(in crate::core) number: u64,
    pub(in crate::core) snapshot: pb::SubtaskSnapshot,
    /// The object that it creates.
    pub(in crate::core) object: Option<String>,
}

#[derive(Debug, Clone)]
pub(in crate::core) struct Execution {
    pub(in crate::core) task: usize,
    /// Its vertex and its number there.
    pub(in crate::core) name: (String, u32),
    pub(in crate::core) region: usize,
    pub(in crate::core) generation: u64,
    pub(in crate::core) te: usize,
    pub(in crate::core) life: Life,
    pub(in crate::core) highest: u64,
    pub(in crate::core) progress: TaskProgress,
    pub(in crate::core) is_answered: bool,
    pub(in crate::core) writing: Option<Writing>,
    pub(in crate::core) barrier: Option<Barrier>,
    /// Sources: the number behind which it pauses.
    pub(in crate::core) paused_behind: Option<u64>,
    /// Sources: records read. It never changes for sinks.
    pub(in crate::core) position: u64,
    /// Sinks: records of each source of the region.
    pub(in crate::core) counts: Vec<u64>,
    /// Sinks: inputs, one a source of the region.
    pub(in crate::core) inputs: Vec<Channel>,
    /// Seen since the last part was sealed, as (source, index).
    pub(in crate::core) open: Vec<(usize, u64)>,
    /// Sealed parts, with the first number that names each.
    pub(in crate::core) parts: Vec<(u64, pb::CheckpointCommittable)>,
    pub(in crate::core) sealed: u64,
    /// The objects that its snapshots named, by number.
    pub(in crate::core) named: BTreeMap<u64, Vec<String>>,
    /// The objects that it wrote.
    pub(in crate::core) wrote: Vec<String>,
    pub(in crate::core) is_end_recorded: bool,
}

impl Execution {
    /// One that begins from the start, and reads from this number of sources.
    pub(in crate::core) fn new(
        (task, name): (usize, (String, u32)),
        (region, generation): (usize, u64),
        te: usize,
        inputs: usize,
    ) -> Execution {
        Execution {
            task,
            name,
            region,
            generation,
            te,
            life: Life::Running,
            highest: 0,
            progress: TaskProgress::Unheard,
            is_answered: true,
            writing: None,
            barrier: None,
            paused_behind: None,
            position: 0,
            counts: vec![0; inputs],
            inputs: vec![Channel::default(); inputs],
            open: vec![],
            parts: vec![],
            sealed: 0,
            named: BTreeMap::new(),
            wrote: vec![],
            is_end_recorded: false,
        }
    }

    /// The inputs from which it can read.
    pub(in crate::core) fn open_inputs(&self) -> Vec<usize> {
        let inputs = self.inputs.iter().enumerate();
        let open = inputs.filter(|(_, it)| !it.is_blocked && !it.queue.is_empty());
        open.map(|it| it.0).collect()
    }

    /// Reads the next element of an input, which is from this source. Returns the number that it declines for a higher
    /// one.
    pub(in crate::core) fn read(&mut self, input: usize, source: usize) -> Option<u64> {
        let mut declined = None;
        match self.inputs[input].queue.pop_front()? {
            Element::Record => {
                self.open.push((source, self.counts[input]));
                self.counts[input] += 1;
            }
            Element::Barrier(barrier) => {
                let blocks_for = self.barrier.map(|it| it.number);
                if blocks_for == Some(barrier.number) {
                    self.inputs[input].is_blocked = true;
                } else if barrier.number > self.highest {
                    declined = blocks_for.map(|_| self.highest);
                    if let Some(number) = declined {
                        self.give_up(number, TaskProgress::Declined);
                    }
                    self.highest = barrier.number;
                    self.progress = TaskProgress::Blocked;
                    self.barrier = Some(barrier);
                    self.inputs[input].is_blocked = true;
                }
            }
            Element::End => self.inputs[input].is_ended = true,
        }
        declined
    }

    /// Takes up a number: the state of this moment is what it saves. `object` is created for it.
    pub(in crate::core) fn take_up(
        &mut self,
        barrier: Barrier,
        object: Option<String>,
        padding: usize,
    ) {
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
            vertex_id: self.name.0.clone(),
            subtask: self.name.1,
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
    pub(in crate::core) fn finish_writing(&mut self) -> Option<String> {
        let writing = self.writing.take()?;
        self.wrote.extend(writing.object.clone());
        if self.highest == writing.number && self.progress == TaskProgress::Writing {
            self.progress = TaskProgress::Acknowledged(Arc::new(writing.snapshot));
        }
        writing.object
    }

    /// Restores a snapshot of its task.
    pub(in crate::core) fn restore(&mut self, newest: u64, snapshot: &pb::SubtaskSnapshot) {
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
    pub(in crate::core) fn last_parts(&mut self) -> Vec<pb::CheckpointCommittable> {
        self.seal(u64::MAX);
        self.parts.iter().map(|(_, part)| part.clone()).collect()
    }

    /// Whether all live inputs have delivered the number that it blocks for.
    pub(in crate::core) fn is_aligned(&self) -> bool {
        self.barrier.is_some() && self.inputs.iter().all(|it| it.is_blocked || it.is_ended)
    }

    /// Gives up the number that it blocks for, or refuses to take up others up to it.
    pub(in crate::core) fn give_up(&mut self, number: u64, progress: TaskProgress) {
        self.highest = number;
        self.progress = progress;
        self.barrier = None;
        for input in &mut self.inputs {
            input.is_blocked = false;
        }
    }

    /// What it has done for the highest number that it knows.
    pub(in crate::core) fn report(&self) -> TaskReport {
        TaskReport {
            task: self.task,
            generation: self.generation,
            highest: self.highest,
            progress: self.progress.clone(),
            is_paused: self.paused_behind.is_some(),
            has_input_ended: matches!(self.life, Life::InputEnded | Life::Ended),
        }
    }

    /// Its end.
    pub(in crate::core) fn end(&mut self) -> TaskEnd {
        TaskEnd {
            highest: self.highest,
            committables: self.last_parts(),
            output: Vec::new(),
        }
    }

    /// What it tells of a number that it declines.
    pub(in crate::core) fn declined(&self, connection: Connection, number: u64) -> Event {
        Event::Declined {
            connection,
            task: self.task,
            generation: self.generation,
            number,
            reason: "it can't".to_owned(),
        }
    }

    /// What it tells once its input has ended.
    pub(in crate::core) fn input_ended(&self, connection: Connection) -> Event {
        Event::InputEnded {
            connection,
            task: self.task,
            generation: self.generation,
            highest: self.highest,
        }
    }

    /// What it tells until it is answered. None: it has saved nothing, or the answer has arrived.
    pub(in crate::core) fn acknowledged(&self, connection: Connection) -> Option<Event> {
        match &self.progress {
            TaskProgress::Acknowledged(snapshot) if !self.is_answered => {
                Some(Event::Acknowledged {
                    connection,
                    task: self.task,
                    generation: self.generation,
                    number: self.highest,
                    snapshot: snapshot.clone(),
                })
            }
            _ => None,
        }
    }

    pub(in crate::core) fn lives(&self) -> bool {
        matches!(self.life, Life::Running | Life::InputEnded)
    }
}

/// A number in a snapshot.
pub(in crate::core) fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("eight bytes"))
}
