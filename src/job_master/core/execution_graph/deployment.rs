//! Deployment descriptors of tasks, with the places of their producers. Pure.
//!
//! Invariant: a descriptor names the generation and the places in the persisted record, for the task and for
//! all that it reads from.

use tanist_proto::v1 as pb;

use super::{ExecutionGraph, as_index};

/// The descriptor of a task that is placed, as are its producers. `restored_from` is the number of its region's
/// snapshot; 0: it begins from the start. The actor fills in the task's part of the snapshot (`checkpointing/`).
/// `takes_checkpoints`: checkpoints of its region are taken.
pub(crate) fn task_deployment(
    graph: &ExecutionGraph,
    task: usize,
    restored_from: u64,
    takes_checkpoints: bool,
) -> pb::TaskDeployment {
    let this = graph.task(task);
    let allocation = this
        .execution
        .place
        .as_ref()
        .map(|place| place.allocation.to_string());
    let inputs = graph
        .edges()
        .iter()
        .enumerate()
        .filter(|(_, edge)| edge.target == this.vertex);
    let inputs = inputs.map(|(number, edge)| {
        let source = &graph.vertices()[edge.source];
        let subtasks = if edge.is_forward {
            this.subtask..this.subtask + 1
        } else {
            0..source.parallelism
        };
        let channel = |subtask: u32| {
            let producer = graph.execution(source.first + as_index(subtask));
            pb::InputChannel {
                source_vertex_id: source.id.to_string(),
                source_subtask: subtask,
                generation: producer.generation.get(),
                location: producer
                    .place
                    .as_ref()
                    .map(|place| (*place.location).clone()),
            }
        };
        pb::InputGate {
            edge: u32::try_from(number).unwrap_or(u32::MAX),
            channels: subtasks.map(channel).collect(),
        }
    });
    pb::TaskDeployment {
        vertex_id: graph.vertex_of(task).id.to_string(),
        subtask: this.subtask,
        generation: this.execution.generation.get(),
        allocation_id: allocation.unwrap_or_default(),
        inputs: inputs.collect(),
        region: u32::try_from(this.region).unwrap_or(u32::MAX),
        restore: (restored_from > 0).then(|| pb::TaskRestore {
            number: restored_from,
            ..pb::TaskRestore::default()
        }),
        takes_checkpoints,
        storage: String::new(),
    }
}

/// The id of an execution on the wire.
pub(crate) fn execution_id(
    graph: &ExecutionGraph,
    task: usize,
    generation: u64,
) -> pb::ExecutionId {
    pb::ExecutionId {
        vertex_id: graph.vertex_of(task).id.to_string(),
        subtask: graph.task(task).subtask,
        generation,
    }
}

/// The cancellation of a task up to the generation of an execution.
pub(crate) fn cancellation(id: pb::ExecutionId) -> pb::TaskCancellation {
    pb::TaskCancellation {
        vertex_id: id.vertex_id,
        subtask: id.subtask,
        up_to_generation: id.generation,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::testing::graph_of;
    use tanist_model::MAX_REGIONS;

    #[test]
    fn a_forward_edge_gives_one_channel_and_every_other_edge_one_from_each_producer() {
        let mut graph = graph_of(&[("a", 3), ("b", 3)], &[(0, 1)]);
        let built = ExecutionGraph::build(&graph, MAX_REGIONS).expect("valid");
        assert_eq!(
            task_deployment(&built, 4, 0, false).inputs[0]
                .channels
                .len(),
            3
        );
        graph.edges[0].partitioning = pb::Partitioning::Forward.into();
        let built = ExecutionGraph::build(&graph, MAX_REGIONS).expect("valid");
        let channels = &task_deployment(&built, 4, 0, false).inputs[0].channels;
        assert_eq!(
            channels
                .iter()
                .map(|channel| channel.source_subtask)
                .collect::<Vec<_>>(),
            [1]
        );
        assert!(task_deployment(&built, 0, 0, false).inputs.is_empty());
    }

    #[test]
    fn a_descriptor_names_the_region_as_the_record_numbers_it() {
        let graph = graph_of(&[("a", 2), ("b", 1)], &[]);
        let numbers = |max_regions| {
            let built = ExecutionGraph::build(&graph, max_regions).expect("valid");
            (0..3).map(move |task| task_deployment(&built, task, 0, false).region)
        };
        assert!(numbers(2).eq([0, 0, 1]));
        assert!(numbers(3).eq([0, 1, 2]));
    }
}
