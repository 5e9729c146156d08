//! The JobGraph of a running job, used to deploy and to describe the job. There may be very many jobs, so a
//! small graph is kept encoded, in a fifth of the memory; a large one is kept decoded, since decoding takes
//! time.

use std::sync::Arc;

use prost::Message as _;
use tanist_proto::v1 as pb;

use super::failover::is_stop_first;

/// Encoded size in bytes up to which a graph is decoded in a fraction of a millisecond.
const SMALL: usize = 16 * 1024;

/// A JobGraph in either form; see the module. Cheap to clone.
#[derive(Debug, Clone)]
pub struct KeptGraph {
    form: Form,
    is_stop_first: bool,
}

#[derive(Debug, Clone)]
enum Form {
    Encoded(Arc<[u8]>),
    Decoded(Arc<pb::JobGraph>),
}

impl KeptGraph {
    /// Keeps a graph in the form that fits its size.
    pub fn of(graph: &Arc<pb::JobGraph>) -> KeptGraph {
        let form = match graph.encoded_len() <= SMALL {
            true => Form::Encoded(graph.encode_to_vec().into()),
            false => Form::Decoded(graph.clone()),
        };
        let is_stop_first = is_stop_first(graph);
        KeptGraph {
            form,
            is_stop_first,
        }
    }

    /// The graph, possibly decoded for this call. Callers don't keep it.
    pub fn get(&self) -> Arc<pb::JobGraph> {
        match &self.form {
            Form::Encoded(bytes) => {
                let decoded = pb::JobGraph::decode(&bytes[..]);
                Arc::new(decoded.expect("it was encoded here"))
            }
            Form::Decoded(graph) => graph.clone(),
        }
    }

    /// Whether no two attempts of a subtask may run at the same time.
    pub fn is_stop_first(&self) -> bool {
        self.is_stop_first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::testing::graph_of;

    #[test]
    fn a_graph_is_the_same_in_either_form() {
        let mut graph = graph_of(&[("a", 2), ("b", 1)], &[(0, 1)]);
        let small = Arc::new(graph.clone());
        assert_eq!(KeptGraph::of(&small).get(), small);
        graph.name = "x".repeat(SMALL);
        let large = Arc::new(graph);
        let kept = KeptGraph::of(&large);
        assert!(Arc::ptr_eq(&kept.get(), &large));
    }
}
