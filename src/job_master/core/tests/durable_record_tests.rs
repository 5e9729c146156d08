//! The job's record alone: one write at a time, and nothing is durable that was not written.

use std::sync::Arc;

use tanist_ha::election::Epoch;
use tanist_model::MAX_REGIONS;
use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, WantedStatus};

use super::recovered::{end, one_region, placed};
use crate::core::durable_record::DurableRecord;
use crate::core::execution_graph::ExecutionGraph;
use crate::core::output::Output;
use crate::core::{Effect, Milestone};

fn graph() -> ExecutionGraph {
    ExecutionGraph::build(&one_region(), MAX_REGIONS).expect("valid")
}

/// The record of a job in generation 1, which a term of epoch 2 takes over.
fn record(graph: &ExecutionGraph) -> DurableRecord {
    let state = Arc::new(placed(&one_region(), 1));
    DurableRecord::new(state, Epoch::new(2), 16, graph)
}

/// Writes the record, if that is due. Returns the number of the write and its milestones.
fn write(record: &mut DurableRecord) -> Option<(u64, Vec<Milestone>)> {
    if !record.is_to_write() {
        return None;
    }
    let mut out = Output::default();
    record.write(false, false, 5, &mut out);
    match out.take_effects().pop() {
        Some(Effect::Persist {
            number, milestones, ..
        }) => Some((number, milestones)),
        other => panic!("no write: {other:?}"),
    }
}

#[test]
fn a_decision_during_a_write_is_in_the_next_one() {
    let graph = graph();
    let mut record = record(&graph);
    assert_eq!(write(&mut record), None, "nothing is decided");
    record.take_over(None, false, 1);
    let (first, _) = write(&mut record).expect("it is due");
    record.want(WantedStatus::Canceled);
    assert_eq!(write(&mut record), None, "one is in flight");
    assert!(record.confirm(first, &graph).is_some());
    assert!(record.is_durable() && !record.is_durably_stopping());
    let (second, milestones) = write(&mut record).expect("it is due");
    assert_eq!(milestones, [Milestone::CancelDecided]);
    assert!(record.confirm(first, &graph).is_none(), "an old answer");
    assert!(record.confirm(second, &graph).is_some());
    assert!(record.is_durably_stopping() && !record.is_to_write());
}

#[test]
fn what_is_noted_beside_a_decision_makes_no_write() {
    let mut record = record(&graph());
    record.add_failure(pb::FailureRecord::default());
    record.add_events(vec![pb::JobEvent::default()], Vec::new());
    assert_eq!(write(&mut record), None);
}

#[test]
fn a_generation_that_is_given_up_is_never_deployed_and_loses_its_ends() {
    let graph = graph();
    let mut record = record(&graph);
    record.record_end(end(1, 0, 1, S::Finished));
    let (number, _) = write(&mut record).expect("it is due");
    let ended = record.confirm(number, &graph).expect("it is in flight");
    assert_eq!((ended.ended.len(), ended.given_up.len()), (1, 0));
    assert!(record.placement_to_deploy(0).is_none(), "of another term");
    record.give_up(0, 9, 4);
    assert!(!record.is_generation_durable(0));
    let (state, before) = (&record.decided().regions[0], record.durable());
    assert_eq!((state.generation, before.regions[0].generation), (2, 1));
    assert_eq!((state.restart_at_ms, state.restart_delay_ms), (9, 5));
    assert!(state.placed_before && state.placements.is_empty());
    record.forget_stale_ends(&graph);
    let (number, _) = write(&mut record).expect("it is due");
    let ended = record.confirm(number, &graph).expect("it is in flight");
    assert_eq!((ended.ended.len(), ended.given_up.len()), (0, 1));
    assert!(record.decided().terminal.is_empty());
}

#[test]
fn a_placement_is_deployed_once_it_is_durable() {
    let graph = graph();
    let mut record = record(&graph);
    record.give_up(0, 0, 4);
    let placement = placed(&one_region(), 1).regions.remove(0);
    record.place(0, placement, Vec::new());
    assert!(record.placement_to_deploy(0).is_none(), "not durable");
    let (number, milestones) = write(&mut record).expect("it is due");
    assert_eq!(milestones, [Milestone::GenerationPlaced]);
    assert!(record.confirm(number, &graph).is_some());
    let deployed = record.placement_to_deploy(0).expect("durable");
    assert_eq!((deployed.generation, deployed.epoch), (2, 2));
    record.give_up(0, 0, 4);
    assert!(record.placement_to_deploy(0).is_none(), "given up again");
}
