//! The core against a simulated world: a store, TaskManagers and a network that delay, lose, repeat and
//! reorder messages, and terms that end at any point while tasks run on. First with random faults, then
//! without: every job must run completely and end, and no step may break an invariant.

mod checkpoints;
mod coordinators;
mod drains;
mod graphs;
mod healthy;
mod invariants;
mod model;
mod network;
mod steps;
mod stops;
mod task_manager;
mod world;

use std::cell::RefCell;
use std::collections::BTreeMap;

use proptest::prelude::*;
use tanist_model::MAX_REGIONS;
use tanist_proto::v1 as pb;

use self::steps::Fails;
use self::world::{Reached, World};
use crate::core::Event;
use crate::core::failover::FailoverStrategy;
use crate::core::restart::RestartStrategy;

fn strategies() -> impl Strategy<Value = RestartStrategy> {
    prop_oneof![
        Just(RestartStrategy::None),
        Just(RestartStrategy::FixedDelay {
            attempts: 3,
            delay_ms: 700
        }),
        Just(RestartStrategy::default()),
    ]
}

fn failovers() -> impl Strategy<Value = FailoverStrategy> {
    prop_oneof![Just(FailoverStrategy::Region), Just(FailoverStrategy::Full)]
}

/// Vertices (name, parallelism), edges between their indices, and which edges are blocking.
type Shape = (Vec<(&'static str, u32)>, Vec<(usize, usize)>, Vec<usize>);

fn shapes() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just((vec![("a", 2), ("b", 2)], vec![(0, 1)], vec![])),
        Just((
            vec![("a", 1), ("b", 3), ("c", 2), ("d", 1)],
            vec![(0, 1), (2, 3)],
            vec![]
        )),
        // The subtasks of the first vertex read the same files, each in a region of its own.
        Just((vec![("a", 3), ("b", 2)], vec![], vec![])),
    ]
}

/// Stages in sequence, and two parallel stages that read the same one and are read by the same one.
fn shapes_in_stages() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just((
            vec![("a", 2), ("b", 2), ("c", 3), ("d", 1)],
            vec![(0, 1), (1, 2), (2, 3)],
            vec![1]
        )),
        Just((
            vec![("a", 2), ("b", 2), ("c", 2), ("d", 1)],
            vec![(0, 1), (0, 2), (1, 3), (2, 3)],
            vec![0, 1, 2, 3]
        )),
    ]
}

/// Runs `cases` cases, or `PROPTEST_CASES`, and as many again until all wanted situations have occurred or a
/// case fails. Returns the sum of the situations that occurred.
fn run_cases<T: std::fmt::Debug, const N: usize>(
    cases: u32,
    inputs: impl Strategy<Value = T>,
    case: impl Fn(T) -> Reached,
    wanted: impl Fn(&Reached) -> [u32; N],
) -> Reached {
    let all = RefCell::new(Reached::default());
    tanist_property_tests::run_cases(cases, file!(), inputs, |input, reached| {
        let of_case = case(input);
        let mut all = all.borrow_mut();
        all.add(&of_case);
        *reached = wanted(&all);
        Ok(())
    });
    all.into_inner()
}

fn steps(kinds: u8) -> impl Strategy<Value = Vec<(u8, u16)>> {
    prop::collection::vec((0..kinds, any::<u16>()), 0..500)
}

/// A request to cancel or to stop the job, in one of the first rounds without faults.
fn asked() -> impl Strategy<Value = (usize, Event)> {
    let what = prop_oneof![Just(Event::CancelRequested), Just(Event::StopRequested)];
    (0usize..20, what)
}

#[test]
fn no_order_of_events_and_faults_breaks_an_invariant_and_every_job_ends() {
    let asked = prop::option::of(asked());
    let shapes = prop_oneof![shapes(), shapes_in_stages()];
    let strategies = (strategies(), failovers());
    let inputs = (strategies, shapes, asked, steps(105));
    run_cases(
        400,
        inputs,
        |(strategies, shape, asked, steps)| {
            let mut world = World::new(&shape.0, &shape.1, &shape.2, strategies.0);
            world.fail_over_by(strategies.1);
            world.live(steps, asked);
            world.reached
        },
        |it| {
            [
                it.stale_refused,
                it.healthy,
                it.adopted,
                it.restarted,
                it.older_heard,
                it.given,
                it.given_again,
                it.not_served,
                it.failed_for_good,
                it.stopped_finished,
                it.stopped_failed,
            ]
        },
    );
}

#[test]
fn the_regions_of_any_graph_are_those_of_a_plain_model() {
    let regions = |graph: pb::JobGraph| {
        for max_regions in [1, MAX_REGIONS] {
            model::assert_regions(&graph, max_regions);
        }
        Reached::default()
    };
    run_cases(400, graphs::any_graph(), regions, |_| []);
}

#[test]
fn with_any_graph_no_order_of_events_and_faults_breaks_an_invariant_and_the_job_ends() {
    let asked = prop::option::weighted(0.2, asked());
    let strategies = (strategies(), failovers());
    let graphs = (graphs::any_graph(), any::<bool>());
    let inputs = (strategies, graphs, asked, steps(105));
    run_cases(
        100,
        inputs,
        |(strategies, graph, asked, steps)| {
            let mut world = match graph {
                (graph, true) => World::of_graph(graph, strategies.0),
                (graph, false) => World::of_whole_vertices(graph, strategies.0),
            };
            world.fail_over_by(strategies.1);
            world.live(steps, asked);
            world.reached
        },
        |it| [it.stale_refused, it.adopted, it.older_heard],
    );
}

/// Few faults, each after some rounds without: stages finish between them.
#[test]
fn whatever_goes_wrong_late_breaks_no_invariant_and_the_job_ends() {
    let strategies = (strategies(), failovers());
    let faults = prop::collection::vec((0usize..12, 84u8..98, any::<u16>()), 0..10);
    let inputs = (strategies, graphs::any_graph(), faults);
    run_cases(
        300,
        inputs,
        |(strategies, graph, faults)| {
            let mut world = World::of_graph(graph, strategies.0);
            world.fail_over_by(strategies.1);
            for (rounds, kind, pick) in faults {
                world.suffer_after(rounds, kind, usize::from(pick));
            }
            world.come_to_an_end(None);
            world.reached
        },
        |it| [it.given_again, it.adopted, it.restarted],
    );
}

#[test]
fn with_slots_for_its_largest_region_alone_every_job_finishes_region_by_region() {
    run_cases(
        200,
        graphs::any_graph(),
        |graph| {
            let mut world = World::with_few_slots(graph, RestartStrategy::None);
            world.come_to_an_end(None);
            let result = world.result.expect("it has ended");
            assert_eq!(result.status(), pb::JobStatus::Finished, "{}", result.cause);
            let generations = world.stored.regions.iter().map(|region| region.generation);
            assert_eq!(generations.max(), Some(1));
            world.reached
        },
        |_| [],
    );
}

#[test]
fn with_few_slots_no_order_of_events_and_faults_breaks_an_invariant_and_every_job_ends() {
    let strategies = (strategies(), failovers());
    let inputs = (strategies, graphs::any_graph(), steps(98));
    run_cases(
        200,
        inputs,
        |(strategies, graph, steps)| {
            let mut world = World::with_few_slots(graph, strategies.0);
            world.fail_over_by(strategies.1);
            for (kind, pick) in steps {
                world.step(kind, usize::from(pick));
            }
            world.come_to_an_end(None);
            world.reached
        },
        |it| [it.adopted, it.restarted],
    );
}

#[test]
fn however_often_leaders_change_no_task_that_runs_is_touched() {
    let reached = run_cases(
        200,
        (shapes(), steps(91)),
        |(shape, steps)| {
            let mut world = World::new(&shape.0, &shape.1, &shape.2, RestartStrategy::None);
            world.come_to_run();
            for (kind, pick) in steps {
                world.step_of_leaders(kind, usize::from(pick));
            }
            world.come_to_run();
            let generations = world.stored.regions.iter().map(|region| region.generation);
            assert_eq!(generations.max(), Some(1));
            world.come_to_an_end(None);
            let result = world.result.expect("it has ended");
            assert_eq!(result.status(), pb::JobStatus::Finished, "{}", result.cause);
            world.reached
        },
        |it| [it.stale_refused, it.adopted, it.given_again],
    );
    assert_eq!(reached.restarted, 0, "{reached:?}");
}

#[test]
fn however_often_leaders_change_what_no_restart_mends_fails_the_job_in_its_first_attempt() {
    let inputs = (shapes(), any::<u16>(), steps(91), steps(91));
    run_cases(
        200,
        inputs,
        |(shape, pick, before, after)| {
            let strategy = RestartStrategy::default();
            let mut world = World::new(&shape.0, &shape.1, &shape.2, strategy);
            world.come_to_run();
            for (kind, pick) in before {
                world.step_of_leaders(kind, usize::from(pick));
            }
            let pick = usize::from(pick);
            let count = world.task_managers.len();
            let mut order = (0..count).map(|offset| (pick + offset) % count);
            let index = order.find(|index| !world.task_managers[*index].running.is_empty());
            world.progress(index.expect("it runs"), pick, Fails::ForGood);
            for (kind, pick) in after {
                world.step_of_leaders(kind, usize::from(pick));
            }
            world.come_to_an_end(None);
            let generations = world.stored.regions.iter().map(|region| region.generation);
            assert_eq!(generations.max(), Some(1));
            let result = world.result.expect("it has ended");
            assert_eq!(result.status(), pb::JobStatus::Failed);
            assert!(result.cause.contains("would not help"), "{}", result.cause);
            world.reached
        },
        |it| [it.adopted],
    );
}

#[test]
fn however_often_leaders_change_no_stage_that_has_finished_runs_again() {
    run_cases(
        200,
        (shapes_in_stages(), steps(101)),
        |(shape, steps)| {
            let strategy = RestartStrategy::default();
            let mut world = World::new(&shape.0, &shape.1, &shape.2, strategy);
            world.come_to_run();
            let mut finished: BTreeMap<usize, u64> = BTreeMap::new();
            for (kind, pick) in steps {
                world.step_of_leaders(kind, usize::from(pick));
                for (region, generation) in &finished {
                    let present = world.stored.regions[*region].generation;
                    assert_eq!(present, *generation, "region {region} runs again");
                }
                finished = world.finished_regions();
            }
            world.come_to_an_end(None);
            let result = world.result.expect("it has ended");
            assert_eq!(result.status(), pb::JobStatus::Finished, "{}", result.cause);
            world.reached
        },
        |it| [it.adopted],
    );
}

#[test]
fn whatever_goes_wrong_a_job_without_end_that_is_stopped_ends() {
    let inputs = (strategies(), shapes(), 0usize..20, steps(105));
    run_cases(
        200,
        inputs,
        |(strategy, shape, stopped_in, steps)| {
            let mut world = World::new(&shape.0, &shape.1, &shape.2, strategy).without_end();
            world.live(steps, Some((stopped_in, Event::StopRequested)));
            world.reached
        },
        |it| [it.stopped_finished, it.stopped_failed],
    );
}

#[test]
fn however_often_leaders_change_a_job_that_is_stopped_finishes_in_its_first_attempt() {
    let inputs = (shapes(), steps(91), steps(101));
    run_cases(
        200,
        inputs,
        |(shape, before, after)| {
            let strategy = RestartStrategy::None;
            let mut world = World::new(&shape.0, &shape.1, &shape.2, strategy).without_end();
            world.come_to_run();
            for (kind, pick) in before {
                world.step_of_leaders(kind, usize::from(pick));
            }
            for (kind, pick) in after {
                world.stop_unless_acknowledged();
                world.step_of_leaders(kind, usize::from(pick));
            }
            world.stop_unless_acknowledged();
            world.come_to_an_end(None);
            let generations = world.stored.regions.iter().map(|region| region.generation);
            assert_eq!(generations.max(), Some(1));
            let result = world.result.expect("it has ended");
            assert_eq!(result.status(), pb::JobStatus::Finished, "{}", result.cause);
            world.reached
        },
        |it| [it.adopted, it.stopped_finished],
    );
}

#[test]
fn without_faults_a_job_finishes_in_its_first_generation() {
    let mut world = World::new(&[("a", 2), ("b", 2)], &[(0, 1)], &[], RestartStrategy::None);
    world.come_to_an_end(None);
    let result = world.result.expect("it has ended");
    assert_eq!(result.status(), pb::JobStatus::Finished, "{}", result.cause);
    assert!(
        world
            .deployed
            .iter()
            .all(|(_, generation)| *generation == 1)
    );
}

#[test]
fn whatever_is_drained_no_order_of_events_and_faults_breaks_an_invariant_and_every_job_ends() {
    let strategies = (strategies(), failovers());
    let inputs = (strategies, (graphs::any_graph(), any::<bool>()), steps(113));
    run_cases(
        200,
        inputs,
        |(strategies, (graph, is_small), steps)| {
            let mut world = match is_small {
                true => World::with_few_slots(graph, strategies.0),
                false => World::of_graph(graph, strategies.0),
            };
            world.fail_over_by(strategies.1);
            for (kind, pick) in steps {
                world.step(kind, usize::from(pick));
            }
            world.undrain_all();
            world.come_to_an_end(None);
            world.reached
        },
        |it| [it.moved, it.adopted, it.restarted],
    );
}

/// Drains and faults, each after some rounds without: a move is often complete before the next step.
#[test]
fn whatever_is_drained_late_breaks_no_invariant_and_the_job_ends() {
    let strategies = (strategies(), failovers());
    let kinds = prop_oneof![1 => 84u8..98, 2 => 105u8..113];
    let steps = prop::collection::vec((0usize..12, kinds, any::<u16>()), 0..10);
    let inputs = (strategies, (graphs::any_graph(), any::<bool>()), steps);
    run_cases(
        300,
        inputs,
        |(strategies, (graph, is_small), steps)| {
            let mut world = match is_small {
                true => World::with_few_slots(graph, strategies.0),
                false => World::of_graph(graph, strategies.0),
            };
            world.fail_over_by(strategies.1);
            for (rounds, kind, pick) in steps {
                world.suffer_after(rounds, kind, usize::from(pick));
            }
            world.undrain_all();
            world.come_to_an_end(None);
            world.reached
        },
        |it| [it.moved, it.adopted, it.restarted],
    );
}

#[test]
fn however_often_leaders_change_what_is_drained_is_left_and_nothing_fails_or_runs_twice() {
    let shapes = prop_oneof![shapes(), shapes_in_stages()];
    let isolations = prop_oneof![
        Just(pb::Isolation::default()),
        Just(pb::Isolation::StopFirst)
    ];
    run_cases(
        200,
        (shapes, failovers(), isolations, steps(108)),
        |(shape, failover, isolation, steps)| {
            let world = World::new(&shape.0, &shape.1, &shape.2, RestartStrategy::None);
            let mut world = world.with_nothing_but_drains(isolation);
            world.fail_over_by(failover);
            world.come_to_run();
            for (kind, pick) in steps {
                world.step_of_gentle_drains(kind, usize::from(pick));
                world.assert_nothing_runs_twice();
            }
            world.come_to_leave();
            world.come_to_an_end(None);
            let result = world.result.expect("it has ended");
            assert_eq!(result.status(), pb::JobStatus::Finished, "{}", result.cause);
            world.reached
        },
        |it| [it.moved, it.adopted, it.stale_refused],
    );
}
