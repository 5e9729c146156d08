//! The checks of submitted graphs that only the compiler and the dataflow of this program can make.

use tanist_compile::validate_job_graph;
use tanist_dispatcher::GraphChecks;
use tanist_operators::custom::unknown_operators;

/// The checks of this program.
pub(super) fn graph_checks() -> GraphChecks {
    GraphChecks {
        invalid: |graph| {
            let checked = validate_job_graph(graph);
            checked.err().map(|invalid| invalid.to_string())
        },
        unknown_operators,
    }
}
