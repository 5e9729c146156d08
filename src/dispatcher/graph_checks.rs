//! Checks of job graphs that need more than the model: the compiler, and the operators of this program. The
//! Dispatcher depends on neither; its process says how they are checked.

use tanist_proto::v1 as pb;

/// The checks that a process has. Each returns a problem, or `None`. They block a thread.
#[derive(Debug, Clone, Copy)]
pub struct GraphChecks {
    /// Why no version may run the graph.
    pub invalid: fn(&pb::JobGraph) -> Option<String>,
    /// Which operator of a valid graph this program does not have.
    pub unknown_operators: fn(&pb::JobGraph) -> Option<String>,
}
