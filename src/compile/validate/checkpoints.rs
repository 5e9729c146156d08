//! Checkpoints: the job's settings, the names of state, and the steps that can't take part.

use std::collections::{HashMap, HashSet};

use tanist_model::name_problem;
use tanist_model::problem::Problem;

use super::Check;
use crate::checkpoints;

impl Check<'_> {
    pub(super) fn checkpoints(&mut self) {
        let settings = self.graph.checkpoints.as_ref();
        for problem in settings.iter().flat_map(|it| checkpoints::problems(it)) {
            let positions = &self.graph.checkpoint_positions;
            let position = positions.get(problem.field).copied();
            let problem = Problem::of_job(position, problem.to_string());
            self.problems.push(problem);
        }
        let wanted = settings.is_some_and(checkpoints::are_wanted);
        self.uids();
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(operator) = node.operator() else {
                continue;
            };
            match (operator.runs_program(), node.checkpoint) {
                (true, None) if wanted => self.report(
                    index,
                    "the job has `checkpoints`, but no checkpoint can save what is inside a program: write `checkpoint: false` for this step (then no \
                     checkpoint is taken of its region), or leave out `checkpoints`",
                ),
                (true, Some(true)) => self.report(
                    index,
                    "no checkpoint can save what is inside a program: write `checkpoint: false`",
                ),
                (false, Some(false)) => self.report(
                    index,
                    "`checkpoint: false` is for steps that run a program: checkpoints are taken of a region as a whole, so leave it out",
                ),
                (true, None | Some(false)) | (false, None | Some(true)) => {}
            }
        }
    }

    /// State is found by the uid of its step, or by its name if it has none: both must be unique together.
    fn uids(&mut self) {
        let mut names: HashMap<&str, usize> = HashMap::new();
        for (index, node) in self.nodes.iter().enumerate() {
            names.entry(&node.name).or_insert(index);
        }
        let mut seen: HashSet<&str> = HashSet::new();
        for (index, node) in self.nodes.iter().enumerate() {
            let Some(uid) = &node.uid else { continue };
            let named = names.get(uid.as_str()).filter(|named| **named != index);
            if let Some(problem) = name_problem(uid) {
                self.report(index, format!("its `uid` {problem}"));
            } else if !seen.insert(uid) {
                self.report(
                    index,
                    format!(
                        "another step has the `uid` `{uid}` already: give each step one of its own"
                    ),
                );
            } else if named.is_some() {
                self.report(
                    index,
                    format!("its `uid` `{uid}` is the name of another step: write another one"),
                );
            }
        }
    }
}
