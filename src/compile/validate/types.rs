//! Output columns of each step, starting at the sources, and the keys and windows of aggregations.

use tanist_model::operators::{EventTime, Input, KeyBy};
use tanist_model::{OperatorSpec, Schema, Transformation};

use super::Check;
use crate::typing;

impl Check<'_> {
    /// Computes what each step emits, starting at the sources.
    pub(super) fn types(&mut self, order: &[usize]) {
        self.order = order.to_vec();
        for &index in order {
            self.known[index].group = self.slot_sharing_group(index);
            let Some(inputs) = self.known[index].inputs.clone() else {
                continue;
            };
            let Some(transformation) = &self.nodes[index].transformation else {
                continue;
            };
            let Some(keys) = self.keys(index, transformation, &inputs) else {
                continue;
            };
            let bounded = inputs.iter().all(|&input| self.known[input].bounded);
            let Some(input) = self.input_schema(index, &inputs) else {
                self.known[index].bounded = bounded;
                continue;
            };
            match transformation {
                Transformation::KeyBy(key_by) => self.key_by(index, key_by, &input, bounded),
                Transformation::Operator(spec) => {
                    self.step_output(index, spec.clone(), &input, &keys, bounded);
                }
            }
        }
    }

    fn key_by(&mut self, index: usize, key_by: &KeyBy, input: &Schema, bounded: bool) {
        let problems = tanist_model::check_keys(input, &key_by.columns);
        self.known[index].bounded = bounded;
        self.known[index].event_time = self.event_time(index);
        if problems.is_empty() && !key_by.columns.is_empty() {
            self.known[index].output = Some(input.clone());
        } else if key_by.columns.is_empty() {
            self.report(index, "`columns` is empty: name at least one column");
        }
        problems
            .into_iter()
            .for_each(|problem| self.report(index, problem));
    }

    fn step_output(
        &mut self,
        index: usize,
        mut spec: OperatorSpec,
        input: &Schema,
        keys: &[String],
        bounded: bool,
    ) {
        // Completed before it is checked: the rules of its fields apply to what the input implies, too.
        let event_time = self.event_time(index);
        let completed = spec.complete(&Input {
            schema: input,
            keys,
            bounded,
            event_time: event_time.as_ref(),
        });
        if let Err(problem) = completed {
            self.report(index, problem);
            return;
        }
        if !bounded && spec.waits_for_the_end() {
            self.report(
                index,
                "`emit: final` waits for the end of its input, which never ends: write `emit: updates`",
            );
        }
        let time_problem = spec.event_time_problem(event_time.as_ref());
        let has_right_time = time_problem.is_none();
        if let Some(problem) = time_problem {
            self.report(index, problem);
        }
        self.known[index].event_time = spec.event_time(event_time.as_ref());
        let fields = spec.submission_problems();
        let output = typing::output(&spec, input);
        let is_valid = fields.is_empty() && has_right_time;
        fields
            .into_iter()
            .for_each(|problem| self.report(index, problem));
        self.known[index].bounded = if spec.is_source() {
            spec.is_bounded_source()
        } else {
            bounded
        };
        match output {
            Ok(output) => {
                self.known[index].output = Some(output);
                self.known[index].spec = is_valid.then_some(spec);
            }
            Err(problems) => problems
                .into_iter()
                .for_each(|problem| self.report(index, problem)),
        }
    }

    /// The event time of all its inputs.
    fn event_time(&self, index: usize) -> Option<EventTime> {
        let inputs = self.known[index].inputs.iter().flatten();
        EventTime::of_all(inputs.map(|&input| self.known[input].event_time.as_ref()))
    }

    /// Returns the columns of all inputs, which must be equal; empty for a source.
    fn input_schema(&mut self, index: usize, inputs: &[usize]) -> Option<Schema> {
        let schemas: Option<Vec<&Schema>> = inputs
            .iter()
            .map(|&input| self.known[input].output.as_ref())
            .collect();
        let schemas = schemas?;
        let Some(first) = schemas.first() else {
            return Some(Schema::default());
        };
        let different = schemas.iter().position(|schema| schema != first);
        if let Some(other) = different {
            let message = format!(
                "its inputs are not alike: `{}` emits ({first}), `{}` emits ({}); read only steps that emit the same columns",
                self.nodes[inputs[0]].name, self.nodes[inputs[other]].name, schemas[other]
            );
            self.report(index, message);
            return None;
        }
        Some((*first).clone())
    }

    /// Returns the key columns of a step that needs them; empty for other steps, `None` if they are wrong or
    /// unknown.
    fn keys(
        &mut self,
        index: usize,
        transformation: &Transformation,
        inputs: &[usize],
    ) -> Option<Vec<String>> {
        let is_keyed = transformation
            .operator()
            .is_some_and(|it| it.keys().is_some());
        if !is_keyed {
            return Some(Vec::new());
        }
        if inputs
            .iter()
            .any(|&input| self.nodes[input].transformation.is_none())
        {
            return None;
        }
        let kind = transformation.kind();
        let all: Option<Vec<&[String]>> = inputs
            .iter()
            .map(|&input| self.nodes[input].key_columns())
            .collect();
        let Some(all) = all else {
            self.report(
                index,
                format!("{kind} works by key: put a `key-by: {{ columns: [...] }}` step before it"),
            );
            return None;
        };
        let first = *all.first()?;
        if all.iter().any(|keys| *keys != first) {
            self.report(
                index,
                format!("its inputs are keyed by different columns: let all key-bys before {kind} name the same"),
            );
            return None;
        }
        Some(first.to_vec())
    }
}
