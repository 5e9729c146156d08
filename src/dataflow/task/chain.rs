//! The operators of a task, chained: what one emits is the next one's input by a direct call.

use std::task::Context;

use arrow_array::RecordBatch;
use tanist_proto::v1::Committable;

use super::plan::{Plan, PlannedOperator};
use super::run::TaskError;
use crate::dataflow::operator::{
    self, Built, EndOfInput, Operator, OperatorError, Output, PrepareCommit, Source, Standing,
};

/// Says which operator of which subtask an error comes from.
#[derive(Debug, Clone)]
pub(super) struct Place {
    operator: String,
    number: u32,
    parallelism: u32,
}

impl Place {
    pub(super) fn error(&self, source: OperatorError) -> TaskError {
        let Place {
            operator,
            number,
            parallelism,
        } = self.clone();
        TaskError::Operator {
            operator,
            number,
            parallelism,
            source: Box::new(source),
        }
    }
}

/// What a sink still has to do, and whose it is.
pub(super) struct Commit {
    place: Place,
    prepare: PrepareCommit,
}

impl Commit {
    /// Blocks.
    pub(super) fn prepare(self) -> Result<Vec<Committable>, TaskError> {
        (self.prepare)().map_err(|error| self.place.error(error))
    }
}

struct Link {
    place: Place,
    operator: Box<dyn Operator>,
}

/// A task's operators.
pub(super) struct Chain {
    source: Option<(Place, Box<dyn Source>)>,
    links: Vec<Link>,
}

impl Chain {
    pub(super) fn build(plan: &mut Plan) -> Result<Chain, TaskError> {
        let mut chain = Chain {
            source: None,
            links: Vec::new(),
        };
        let (number, parallelism) = (plan.subtask + 1, plan.parallelism);
        for planned in plan.operators.drain(..) {
            let PlannedOperator {
                name,
                spec,
                context,
            } = planned;
            let place = Place {
                operator: name,
                number,
                parallelism,
            };
            match operator::build(&spec, &context).map_err(|error| place.error(error))? {
                Built::Source(source) if chain.source.is_none() && chain.links.is_empty() => {
                    chain.source = Some((place, source));
                }
                Built::Source(_) => {
                    let message = "a source can only be the first of its chain".to_owned();
                    return Err(place.error(OperatorError::Specification(message)));
                }
                Built::Operator(operator) => chain.links.push(Link { place, operator }),
            }
        }
        Ok(chain)
    }

    /// Opens all operators, the last one first: nothing is emitted to one that is not open. Blocks.
    pub(super) fn open(mut self) -> Result<Chain, TaskError> {
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

    /// The source is polled by the task.
    pub(super) fn take_source(&mut self) -> Option<(Place, Box<dyn Source>)> {
        self.source.take()
    }

    /// Whether an operator also works by itself.
    pub(super) fn is_external(&mut self, index: usize) -> bool {
        let link = self.links.get_mut(index);
        link.is_some_and(|link| link.operator.external().is_some())
    }

    /// Lets an operator do what it does by itself; none if it does nothing so. What it emits goes through the rest of the
    /// chain; true: something of it went into an operator behind.
    pub(super) fn poll_external(
        &mut self,
        index: usize,
        cx: &mut Context<'_>,
        may_emit: bool,
        emitted: &mut Vec<RecordBatch>,
    ) -> Result<Option<(Standing, bool)>, TaskError> {
        let Some(link) = self.links.get_mut(index) else {
            return Ok(None);
        };
        let Some(external) = link.operator.external() else {
            return Ok(None);
        };
        let mut output = Output::default();
        let standing = external.poll(cx, may_emit, &mut output);
        let standing = standing.map_err(|error| link.place.error(error))?;
        let has_emitted = !output.is_empty();
        self.pass_on(index + 1, output, emitted)?;
        Ok(Some((standing, has_emitted)))
    }

    pub(super) fn len(&self) -> usize {
        self.links.len()
    }

    /// Sends a batch through all operators from one on; collects what the last one emits.
    pub(super) fn process(
        &mut self,
        from: usize,
        batch: RecordBatch,
        emitted: &mut Vec<RecordBatch>,
    ) -> Result<(), TaskError> {
        let Some(link) = self.links.get_mut(from) else {
            emitted.push(batch);
            return Ok(());
        };
        let mut output = Output::default();
        let processed = link.operator.process(batch, &mut output);
        processed.map_err(|error| link.place.error(error))?;
        self.pass_on(from + 1, output, emitted)
    }

    /// Tells one operator that its input has ended.
    pub(super) fn end_input(
        &mut self,
        index: usize,
        emitted: &mut Vec<RecordBatch>,
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
        output: Output,
        emitted: &mut Vec<RecordBatch>,
    ) -> Result<(), TaskError> {
        output
            .into_batches()
            .into_iter()
            .try_for_each(|batch| self.process(to, batch, emitted))
    }

    /// What the sinks still have to do.
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
