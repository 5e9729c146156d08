//! Operators of an application's own binary. They are registered by name before the process starts anything.
//!
//! The registry belongs to the process: a binary has its operators in every cluster. JobManagers use it to
//! refuse graphs with unknown operators, TaskManagers to run them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use serde_json::Value;
use tanist_dataflow::{Built, Operator, OperatorContext, OperatorError, Source};
use tanist_model::{CustomRole, CustomSpec, OperatorSpec};
use tanist_proto::v1::JobGraph;

use super::committers;
use super::factory::{Runtime, Setup};

/// Creates an operator from its config and context. Touches no file: `open` does that.
type Make<T> = dyn Fn(&Value, &OperatorContext) -> Result<Box<T>, OperatorError> + Send + Sync;

/// Creates the operators of one name, one per subtask.
#[derive(Clone)]
pub enum CustomOperator {
    /// Creates sources.
    Source(Arc<Make<dyn Source>>),
    /// Creates operators and sinks.
    Operator(Arc<Make<dyn Operator>>),
}

impl fmt::Debug for CustomOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CustomOperator::Source(_) => "Source",
            CustomOperator::Operator(_) => "Operator",
        })
    }
}

static REGISTRY: RwLock<BTreeMap<String, CustomOperator>> = RwLock::new(BTreeMap::new());

/// Registers an operator of this process, or replaces the one of that name.
pub fn register(name: impl Into<String>, operator: CustomOperator) {
    let mut registry = REGISTRY.write();
    registry.insert(name.into(), operator);
}

fn find(name: &str) -> Option<CustomOperator> {
    let registry = REGISTRY.read();
    registry.get(name).cloned()
}

/// Returns why a graph can't be run with the operators of this process; `None` if it can.
pub fn unknown_operators(graph: &JobGraph) -> Option<String> {
    let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    for operator in operators {
        // Most graphs have no custom operator; skip parsing their specs.
        if !operator.spec.contains("\"custom\"") {
            continue;
        }
        let Ok(OperatorSpec::Custom(spec)) = OperatorSpec::from_json(&operator.spec) else {
            continue;
        };
        let unknown = registered(&spec).err().map(|error| error.to_string());
        if let Some(problem) = unknown.or_else(|| committers::missing(&spec)) {
            return Some(format!("step `{}`: {problem}", operator.name));
        }
    }
    None
}

fn registered(spec: &CustomSpec) -> Result<CustomOperator, OperatorError> {
    let name = &spec.name;
    let wrong = |is: &str, used_as: &str| {
        OperatorError::Unavailable(format!(
            "the operator `{name}` of this binary is {is}, and the job uses it as {used_as}: the job needs the binary of its application"
        ))
    };
    match (find(name), spec.role) {
        (None, _) => Err(OperatorError::Unavailable(format!(
            "this binary has no operator `{name}`: the job needs the binary of its application"
        ))),
        (Some(CustomOperator::Source(_)), CustomRole::Operator | CustomRole::Sink) => {
            Err(wrong("a source", "an operator or sink"))
        }
        (Some(CustomOperator::Operator(_)), CustomRole::Source) => {
            Err(wrong("no source", "a source"))
        }
        (Some(found), _) => Ok(found),
    }
}

impl Runtime for CustomSpec {
    fn build(&self, setup: &Setup<'_>) -> Result<Built, OperatorError> {
        if !self.commits.is_empty() && !setup.context.takes_checkpoints {
            return Err(OperatorError::specification(format!(
                "its output of kind `{}` becomes visible with checkpoints, and none is taken of its task: set \
                 `checkpoints` for the job, and have each step of the region save its state",
                self.commits.join("`, `")
            )));
        }
        Ok(match registered(self)? {
            CustomOperator::Source(make) => Built::Source(make(&self.config, setup.context)?),
            CustomOperator::Operator(make) => Built::Operator(make(&self.config, setup.context)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use tanist_proto::v1;

    use super::*;
    use crate::print::Discard;
    use crate::testing::{operator, texts};

    fn graph(spec: &CustomSpec) -> JobGraph {
        let operator = v1::Operator {
            name: "step".to_owned(),
            spec: OperatorSpec::Custom(spec.clone()).to_json(),
            ..v1::Operator::default()
        };
        JobGraph {
            vertices: vec![v1::JobVertex {
                operators: vec![operator],
                ..v1::JobVertex::default()
            }],
            ..JobGraph::default()
        }
    }

    #[test]
    fn a_graph_that_names_an_operator_of_another_binary_is_told_which() {
        let spec = CustomSpec::sink("custom-tests-sink").with_config(7);
        let unknown = unknown_operators(&graph(&spec)).expect("it is unknown");
        assert!(unknown.contains("`custom-tests-sink`"), "{unknown}");
        let make = |_: &Value, _: &OperatorContext| -> Result<Box<dyn Operator>, OperatorError> {
            Ok(Box::new(Discard::default()))
        };
        register(
            "custom-tests-sink",
            CustomOperator::Operator(Arc::new(make)),
        );
        assert_eq!(unknown_operators(&graph(&spec)), None);
        let source = CustomSpec {
            role: CustomRole::Source,
            ..spec
        };
        let wrong = unknown_operators(&graph(&source)).expect("it is none");
        assert!(wrong.contains("no source"), "{wrong}");
    }

    #[test]
    fn a_graph_whose_sink_declares_a_kind_without_a_committer_is_told_which() {
        let make = |_: &Value, _: &OperatorContext| -> Result<Box<dyn Operator>, OperatorError> {
            Ok(Box::new(Discard::default()))
        };
        let name = "custom-tests-committing";
        register(name, CustomOperator::Operator(Arc::new(make)));
        let spec = CustomSpec::sink(name)
            .saving_state()
            .committing("custom-tests-a")
            .committing("custom-tests-b");
        let committer = || committers::Committer::new(async |_| Ok(()));
        committers::register("custom-tests-a", committer());
        let unknown = unknown_operators(&graph(&spec)).expect("one is missing");
        for part in ["step `step`", "`custom-tests-b`", "Application::committer"] {
            assert!(unknown.contains(part), "{unknown}");
        }
        committers::register("custom-tests-b", committer());
        assert_eq!(unknown_operators(&graph(&spec)), None);
    }

    #[test]
    fn only_sinks_that_save_their_state_commit_and_no_output_of_file_sinks() {
        let problems = |spec: CustomSpec| OperatorSpec::from(spec).field_problems();
        let sink = || CustomSpec::sink("rows").saving_state();
        assert_eq!(problems(sink().committing("rows")), [""; 0]);
        let column = [("n", tanist_model::ColumnType::Int64)];
        for (spec, problem) in [
            (
                CustomSpec::operator("rows", column)
                    .saving_state()
                    .committing("rows"),
                "only a sink",
            ),
            (
                CustomSpec::sink("rows").committing("rows"),
                "`saves-state: true`",
            ),
            (sink().committing("file"), "kind `file`"),
            (sink().committing(""), "kind ``"),
        ] {
            let found = problems(spec);
            assert!(found.len() == 1 && found[0].contains(problem), "{found:?}");
        }
    }

    #[test]
    fn a_sink_that_commits_needs_checkpoints() {
        let spec = CustomSpec::sink("custom-tests-uncommitted").saving_state();
        let spec = spec.committing("rows");
        let input = texts("line", &[]);
        let error = operator(&spec.into(), input.schema()).err();
        let error = error.expect("no checkpoint is taken of it");
        assert!(
            error.to_string().contains("`rows` becomes visible with"),
            "{error}"
        );
        assert!(error.is_unrecoverable());
    }

    #[test]
    fn an_operator_says_itself_what_no_restart_mends() {
        let error = || Box::new(std::io::Error::other("no such table"));
        assert!(OperatorError::Unrecoverable(error()).is_unrecoverable());
        assert!(!OperatorError::Custom(error()).is_unrecoverable());
        let spec = CustomSpec::sink("custom-tests-nobody-has-it");
        let Err(unknown) = registered(&spec) else {
            panic!("it is not registered");
        };
        // Another TaskManager may run another binary.
        assert!(!unknown.is_unrecoverable());
    }
}
