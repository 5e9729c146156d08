//! The operators of a task, chained: the output of one is passed to the next by a direct call.
//!
//! The task's loop owns the chain; the chain owns the operators, and until [`Chain::take_source`] the source. An error
//! of an operator is a [`TaskError`] that names the operator and the subtask. Sinks are opened first, and saved last.

use std::sync::Arc;
use std::task::Context;
use std::time::Duration;

use tanist_proto::v1::{CheckpointBarrier, SubtaskSnapshot};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::error::TaskError;
use super::memory::TaskMemory;
use super::pace::Pace;
use super::plan::{Plan, PlannedOperator};
use crate::operator::{
    Built, EndOfInput, ExternalStatus, Operator, OperatorError, OperatorFactory, Output,
    PrepareCommit, SinkOutput, Source, SourceState,
};
use crate::state::{Restored, Snapshot, UnencodedSnapshot};
use crate::time::Element;

/// Names the operator and subtask in an error, and the operator in a snapshot.
#[derive(Debug, Clone)]
pub(super) struct Place {
    operator: String,
    uid: String,
    number: u32,
    parallelism: u32,
    /// The kinds of output that the step declares to have committed.
    commits: Vec<String>,
}

impl Place {
    /// Checks that the step declares the kinds of output that the operator has committed. Otherwise the commit might
    /// find that nothing knows one of them.
    fn check_kinds<'k>(&self, mut kinds: impl Iterator<Item = &'k str>) -> Result<(), TaskError> {
        let undeclared = kinds.find(|kind| !self.commits.iter().any(|it| it == kind));
        let Some(kind) = undeclared else {
            return Ok(());
        };
        let message = format!(
            "it has output of kind `{kind}` committed, which its step does not declare: add `commits: [{kind}]` to the step, or \
             `CustomSpec::committing` to its specification"
        );
        Err(self.error(OperatorError::Specification(message)))
    }

    pub(super) fn error(&self, source: OperatorError) -> TaskError {
        let Place {
            operator,
            number,
            parallelism,
            uid: _,
            commits: _,
        } = self.clone();
        TaskError::Operator {
            operator,
            number,
            parallelism,
            source: Box::new(source),
        }
    }
}

/// The commit of a sink that is still to be prepared.
pub(super) struct Commit {
    place: Place,
    prepare: PrepareCommit,
}

impl Commit {
    /// Prepares the commit. Blocks.
    pub(super) fn prepare(self) -> Result<SinkOutput, TaskError> {
        let mut output = (self.prepare)().map_err(|error| self.place.error(error))?;
        let committables = output.checkpoint_committables.iter();
        self.place.check_kinds(committables.map(|it| &*it.kind))?;
        for committable in &mut output.checkpoint_committables {
            committable.uid.clone_from(&self.place.uid);
        }
        Ok(output)
    }
}

struct Link {
    place: Place,
    operator: Box<dyn Operator>,
    /// Memory of the keyed state that its last snapshot took.
    saved_bytes: u64,
}

/// Stands for a source that had read all of its input before the snapshot that its task is restored from.
struct EndedSource;

impl Source for EndedSource {
    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<(), OperatorError> {
        snapshot.save_end();
        Ok(())
    }

    fn next(&mut self, _now: Instant) -> Result<SourceState, OperatorError> {
        Ok(SourceState::End)
    }
}

/// The chained operators of a task.
pub(super) struct Chain {
    /// `None`: the first operator reads input, or the task's loop has taken the source out.
    source: Option<(Place, Box<dyn Source>)>,
    links: Vec<Link>,
    /// How long elements take through all operators.
    pace: Pace,
    /// How long ticks take.
    ticks: Pace,
    /// How long the task was paused, over all pauses. It is taken out of the time that is passed to operators.
    stood_still: Duration,
    /// Where the memory of the state is counted. `None`: before the operators are open.
    memory: Option<TaskMemory>,
    /// Whether the state may have changed since it was counted.
    is_uncounted: bool,
}

impl Chain {
    pub(super) fn build(
        plan: &mut Plan,
        operators: &dyn OperatorFactory,
    ) -> Result<Chain, TaskError> {
        let mut chain = Chain {
            source: None,
            links: Vec::new(),
            pace: Pace::default(),
            ticks: Pace::default(),
            stood_still: Duration::ZERO,
            memory: None,
            is_uncounted: false,
        };
        let (number, parallelism) = (plan.subtask + 1, plan.parallelism);
        for planned in plan.operators.drain(..) {
            let PlannedOperator {
                name,
                uid,
                spec,
                context,
            } = planned;
            let place = Place {
                operator: name,
                uid,
                number,
                parallelism,
                commits: spec.commits().into_iter().map(str::to_owned).collect(),
            };
            let built = operators.build(&spec, &context);
            match built.map_err(|error| place.error(error))? {
                Built::Source(source) if chain.source.is_none() && chain.links.is_empty() => {
                    chain.source = Some((place, source));
                }
                Built::Source(_) => {
                    let message = "a source can only be the first of its chain".to_owned();
                    return Err(place.error(OperatorError::Specification(message)));
                }
                Built::Operator(operator) => chain.links.push(Link {
                    place,
                    operator,
                    saved_bytes: 0,
                }),
            }
        }
        Ok(chain)
    }

    /// Creates a chain of operators that are already open.
    #[cfg(test)]
    pub(super) fn of(operators: Vec<Box<dyn Operator>>) -> Chain {
        let link = |operator| Link {
            place: Place {
                operator: "tested".to_owned(),
                uid: "tested".to_owned(),
                number: 1,
                parallelism: 1,
                commits: vec!["file".to_owned()],
            },
            operator,
            saved_bytes: 0,
        };
        Chain {
            source: None,
            links: operators.into_iter().map(link).collect(),
            pace: Pace::default(),
            ticks: Pace::default(),
            stood_still: Duration::ZERO,
            memory: None,
            is_uncounted: false,
        }
    }

    /// Saves the state of the source, if there is one, and then of the operators, in the order of the chain. `base` is
    /// the newest durable snapshot of the task, if it is known.
    pub(super) fn snapshot(
        &mut self,
        barrier: CheckpointBarrier,
        source: Option<(&Place, &mut Box<dyn Source>)>,
        base: Option<&Arc<SubtaskSnapshot>>,
        saved: &mut UnencodedSnapshot,
    ) -> Result<(), TaskError> {
        if let Some((place, source)) = source {
            let mut snapshot = Snapshot::of(barrier).going_on_from(base, &place.uid);
            let taken = source.snapshot(&mut snapshot);
            taken.map_err(|error| place.error(error))?;
            place.check_kinds(snapshot.kinds())?;
            saved.add(snapshot, &place.uid);
        }
        for Link {
            place,
            operator,
            saved_bytes,
        } in &mut self.links
        {
            let mut snapshot = Snapshot::of(barrier).going_on_from(base, &place.uid);
            let taken = operator.snapshot(&mut snapshot);
            taken.map_err(|error| place.error(error))?;
            place.check_kinds(snapshot.kinds())?;
            *saved_bytes = snapshot.memory();
            saved.add(snapshot, &place.uid);
        }
        self.is_uncounted = true;
        Ok(())
    }

    fn restore(&mut self, subtask: &SubtaskSnapshot, own: Option<u64>) -> Result<(), TaskError> {
        if let Some((place, source)) = &mut self.source {
            let restored = Restored::of(&place.uid, subtask).with_own_number(own);
            if restored.has_ended() {
                *source = Box::new(EndedSource);
            } else {
                let restored = source.restore(&restored);
                restored.map_err(|error| place.error(error))?;
            }
        }
        for Link {
            place, operator, ..
        } in &mut self.links
        {
            let restored = Restored::of(&place.uid, subtask).with_own_number(own);
            let restored = operator.restore(&restored);
            restored.map_err(|error| place.error(error))?;
        }
        Ok(())
    }

    /// Opens all operators, the last one first, so that no operator emits to one that is not open. If there is a
    /// snapshot of this subtask, all of them have taken their state from it before; `own` is its number if the task
    /// itself saved it. Blocks.
    pub(super) fn open(
        mut self,
        snapshot: Option<&SubtaskSnapshot>,
        own: Option<u64>,
    ) -> Result<Chain, TaskError> {
        if let Some(snapshot) = snapshot {
            self.restore(snapshot, own)?;
        }
        for link in self.links.iter_mut().rev() {
            link.operator
                .open()
                .map_err(|error| link.place.error(error))?;
        }
        if let Some((place, source)) = &mut self.source {
            source.open().map_err(|error| place.error(error))?;
        }
        Ok(self)
    }

    /// Counts the memory of the state in `memory` from now on.
    pub(super) fn count_state(&mut self, memory: TaskMemory) {
        self.memory = Some(memory);
        self.is_uncounted = true;
    }

    /// Counts the memory of the state if it may have changed and the last count is long enough ago. Returns when it is
    /// to be called again; `None`: after the next element.
    fn measure(&mut self, now: Instant) -> Option<Instant> {
        let memory = self.memory.as_mut().filter(|_| self.is_uncounted)?;
        if let Some(next) = memory.next().filter(|next| now < *next) {
            return Some(next);
        }
        let of_link = |link: &Link| link.operator.state_bytes().unwrap_or(link.saved_bytes);
        memory.measure(now, self.links.iter().map(of_link).sum());
        self.is_uncounted = false;
        None
    }

    /// Takes the source out. The task's loop polls it.
    pub(super) fn take_source(&mut self) -> Option<(Place, Box<dyn Source>)> {
        self.source.take()
    }

    /// Whether an operator also emits without input.
    pub(super) fn is_external(&mut self, index: usize) -> bool {
        let link = self.links.get_mut(index);
        link.is_some_and(|link| link.operator.external().is_some())
    }

    /// Polls an operator that emits without input; `None` if it is not such an operator. Its output goes
    /// through the rest of the chain. The bool says whether it emitted something.
    pub(super) fn poll_external(
        &mut self,
        index: usize,
        cx: &mut Context<'_>,
        may_emit: bool,
        emitted: &mut Output,
    ) -> Result<Option<(ExternalStatus, bool)>, TaskError> {
        let Some(link) = self.links.get_mut(index) else {
            return Ok(None);
        };
        let Some(external) = link.operator.external() else {
            return Ok(None);
        };
        let mut output = Output::default();
        let status = external.poll(cx, may_emit, &mut output);
        let status = status.map_err(|error| link.place.error(error))?;
        let has_emitted = !output.is_empty();
        self.pass_on(index + 1, output, emitted)?;
        Ok(Some((status, has_emitted)))
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// Sends an element through all operators from index `from` on and collects the output of the last one.
    pub(super) fn process(
        &mut self,
        from: usize,
        element: Element,
        emitted: &mut Output,
    ) -> Result<(), TaskError> {
        let Some(link) = self.links.get_mut(from) else {
            emitted.put(element);
            return Ok(());
        };
        let mut output = Output::default();
        let processed = match element {
            Element::Batch(batch) => link.operator.process(batch, &mut output),
            Element::Time(signal) => link.operator.signal(signal, &mut output),
        };
        processed.map_err(|error| link.place.error(error))?;
        self.pass_on(from + 1, output, emitted)
    }

    /// Sends an element through all operators. A slow call does not delay the other tasks of the runtime.
    pub(super) fn process_beside(
        &mut self,
        element: Element,
        emitted: &mut Output,
    ) -> Result<(), TaskError> {
        self.is_uncounted = true;
        let mut pace = self.pace;
        let processed = pace.step(|| self.process(0, element, emitted));
        self.pace = pace;
        processed
    }

    /// Passes the current time to all operators. Returns the next time at which one of them needs it again.
    pub(super) fn tick(
        &mut self,
        now: Instant,
        emitted: &mut Output,
    ) -> Result<Option<Instant>, TaskError> {
        let measured = self.measure(now);
        let now = now - self.stood_still;
        let mut next: Option<Instant> = None;
        for index in 0..self.links.len() {
            let mut output = Output::default();
            let link = &mut self.links[index];
            let wanted = link.operator.tick(now, &mut output);
            let wanted = wanted.map_err(|error| link.place.error(error))?;
            next = next.into_iter().chain(wanted).min();
            self.pass_on(index + 1, output, emitted)?;
        }
        let next = next.map(|at| at + self.stood_still);
        Ok(next.into_iter().chain(measured).min())
    }

    /// Takes the duration of a pause out of the time that is passed to operators.
    pub(super) fn stood_still(&mut self, duration: Duration) {
        self.stood_still += duration;
    }

    /// Like [`Chain::tick`], and a slow call does not delay the other tasks of the runtime.
    pub(super) fn tick_beside(
        &mut self,
        now: Instant,
        emitted: &mut Output,
    ) -> Result<Option<Instant>, TaskError> {
        let mut ticks = self.ticks;
        let next = ticks.step(|| self.tick(now, emitted));
        self.ticks = ticks;
        next
    }

    /// Returns the signal for free room if an operator is full; `None` if there is room.
    pub(super) fn without_room(&self) -> Option<Arc<Notify>> {
        self.links
            .iter()
            .find_map(|link| link.operator.without_room())
    }

    /// Tells one operator that its input has ended.
    pub(super) fn end_input(
        &mut self,
        index: usize,
        emitted: &mut Output,
    ) -> Result<EndOfInput, TaskError> {
        let Some(link) = self.links.get_mut(index) else {
            return Ok(EndOfInput::Done);
        };
        let mut output = Output::default();
        let end = link.operator.end_input(&mut output);
        let end = end.map_err(|error| link.place.error(error))?;
        self.pass_on(index + 1, output, emitted)?;
        Ok(end)
    }

    fn pass_on(
        &mut self,
        to: usize,
        mut output: Output,
        emitted: &mut Output,
    ) -> Result<(), TaskError> {
        emitted.count(&output);
        let elements = output.take();
        elements
            .into_iter()
            .try_for_each(|element| self.process(to, element, emitted))
    }

    /// Returns the commits that the sinks still have to prepare.
    pub(super) fn commits(&mut self) -> Vec<Commit> {
        let commits = self.links.iter_mut().filter_map(|link| {
            let prepare = link.operator.prepare_commit()?;
            Some(Commit {
                place: link.place.clone(),
                prepare,
            })
        });
        commits.collect()
    }

    pub(super) fn close(&mut self) {
        self.links.iter_mut().for_each(|link| link.operator.close());
    }
}
