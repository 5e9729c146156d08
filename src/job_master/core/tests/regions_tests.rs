//! Jobs whose regions are sets of subtasks: what a failure restarts, what their coordinators know, and how often a
//! record with very many regions is written.

use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState as S;
use tanist_proto::v1::ask_coordinator_response::Answer;
use tanist_proto::v1::coordinator_state::State;

use super::recovered::{Recovered, both, id, location, options, report, slot};
use super::testing::{graph_of, submitted};
use crate::core::failover::FailoverStrategy;
use crate::core::restart::RestartStrategy;
use crate::core::{CoordinatorAnswer, CoordinatorRequest, CoreOptions, Effect, Event};

/// Two vertices of two subtasks, joined by a forward edge: one region for each subtask number, in one slot.
fn forward() -> pb::JobGraph {
    let mut graph = graph_of(&[("a", 2), ("b", 2)], &[(0, 1)]);
    graph.edges[0].set_partitioning(pb::Partitioning::Forward);
    graph
}

/// Two subtasks that read files by splits, each in a region of its own.
fn of_files() -> pb::JobGraph {
    let mut graph = graph_of(&[("a", 2)], &[]);
    read_files(&mut graph);
    graph
}

/// Makes the first vertex read files by splits.
fn read_files(graph: &mut pb::JobGraph) {
    graph.vertices[0].operators = vec![pb::Operator {
        uid: String::new(),
        name: "lines".to_owned(),
        spec: r#"{"type":"file-source","paths":["f"]}"#.to_owned(),
        output: Vec::new(),
    }];
}

/// All edges connect subtasks of equal number. `sink` writes the records that `files` has read and those that
/// `beside` has made of the output of `maker`. That output is read by `after` as well.
fn beside_files() -> pb::JobGraph {
    let names = ["files", "maker", "beside", "sink", "after"];
    let edges = [(1, 2), (1, 4), (0, 3), (2, 3)];
    let mut graph = graph_of(&names.map(|name| (name, 2)), &edges);
    read_files(&mut graph);
    for edge in &mut graph.edges {
        edge.set_partitioning(pb::Partitioning::Forward);
    }
    for edge in &mut graph.edges[..2] {
        edge.set_exchange(pb::Exchange::Blocking);
    }
    graph
}

/// Restarts immediately, without limit.
fn at_once() -> CoreOptions {
    let restart_strategy = RestartStrategy::FixedDelay {
        attempts: u32::MAX,
        delay_ms: 0,
    };
    CoreOptions {
        restart_strategy,
        ..options()
    }
}

fn job_of(graph: &pb::JobGraph) -> Recovered {
    Recovered::with_options(graph, submitted(graph), 2, at_once())
}

/// A job that runs in its first generation, on two TaskManagers.
fn running(graph: &pb::JobGraph) -> Recovered {
    let mut job = job_of(graph);
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    assert_eq!(job.generations(), [1, 1]);
    for (name, subtask) in [("tm0", 0), ("tm1", 1)] {
        job.reports(name, both(subtask, 1, S::Running));
    }
    job.effects.clear();
    job
}

/// What is deployed, with its region.
fn deployed(job: &Recovered) -> Vec<(u32, u64, u32)> {
    let tasks = job.effects.iter().filter_map(|effect| match effect {
        Effect::Deploy { tasks, .. } => Some(tasks),
        _ => None,
    });
    let named = tasks
        .flatten()
        .map(|task| (task.subtask, task.generation, task.region));
    named.collect()
}

#[test]
fn a_lost_task_manager_costs_only_the_regions_that_it_had_a_part_of() {
    let mut job = running(&forward());
    let connection = job.connection("tm1");
    let cause = "no answer".to_owned();
    job.hear(Event::TaskManagerLost { connection, cause });
    assert_eq!(job.generations(), [1, 2]);
    job.register("tm2", "1", vec![]);
    assert_eq!(deployed(&job), [(1, 2, 1), (1, 2, 1)]);
    assert!(job.cancelled().is_empty(), "{:?}", job.cancelled());
    assert_eq!(job.stored.restarts.as_ref().map(|it| it.restarts), Some(1));
}

#[test]
fn the_next_leader_adopts_each_subtask_by_itself() {
    let former = running(&forward());
    let mut job = Recovered::with_options(&forward(), former.stored, 3, at_once());
    job.register("tm0", "1", both(0, 1, S::Running));
    job.register("tm1", "2", vec![]);
    assert_eq!(job.generations(), [1, 2]);
    assert_eq!(deployed(&job), [(1, 2, 1), (1, 2, 1)]);
}

#[test]
fn a_job_that_would_have_too_many_regions_has_those_of_whole_vertices() {
    let options = CoreOptions {
        max_regions: 1,
        ..at_once()
    };
    let mut job = Recovered::with_options(&forward(), submitted(&forward()), 2, options);
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    assert_eq!(job.generations(), [1]);
    let regions = deployed(&job).into_iter().map(|(.., region)| region);
    assert!(regions.eq([0; 4]));
}

/// The last requested preparation: the region that names it, and the generation.
fn asked(job: &Recovered) -> Option<(usize, u64)> {
    job.effects.iter().rev().find_map(|effect| match effect {
        Effect::Prepare {
            region, generation, ..
        } => Some((*region, *generation)),
        _ => None,
    })
}

fn look(job: &mut Recovered, size: u64) {
    let (region, generation) = asked(job).expect("it is asked for");
    let state = pb::CoordinatorState {
        vertex_id: format!("{:032x}", 1),
        operator: "lines".to_owned(),
        generation,
        state: Some(State::FileSplits(pb::FileSplits {
            files: vec![pb::SplitFile {
                path: b"f".to_vec(),
                size,
            }],
            ends: vec![size / 2, size],
            assigned: Vec::new(),
            read: Vec::new(),
        })),
    };
    job.effects.clear();
    job.hear(Event::Prepared {
        region,
        generation,
        outcome: Ok(vec![state]),
    });
}

fn looked_at(job: &Recovered) -> Vec<u64> {
    let sizes = job.stored.coordinators.iter().map(|it| match &it.state {
        Some(State::FileSplits(splits)) => splits.files[0].size,
        None => 0,
    });
    sizes.collect()
}

#[test]
fn files_listed_for_a_generation_that_is_never_placed_are_listed_again() {
    let mut job = job_of(&of_files());
    assert_eq!(asked(&job), Some((0, 2)), "of both regions together");
    look(&mut job, 100);
    job.pass(20_000);
    assert_eq!(job.generations(), [2, 2]);
    look(&mut job, 200);
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    assert_eq!(looked_at(&job), [200]);
    assert_eq!(deployed(&job), [(0, 2, 0), (1, 2, 1)]);
}

#[test]
fn a_region_restarts_with_the_files_of_its_group_and_a_second_failure_lists_them_again() {
    let mut job = job_of(&of_files());
    look(&mut job, 100);
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    job.reports("tm0", vec![report(1, 0, 1, S::Running)]);
    job.reports("tm1", vec![report(1, 1, 1, S::Running)]);
    job.reports("tm1", vec![report(1, 1, 1, S::Failed)]);
    job.pass(1);
    assert_eq!(
        (job.generations(), looked_at(&job)),
        (vec![1, 2], vec![100])
    );
    job.reports("tm1", vec![report(1, 1, 2, S::Running)]);
    job.reports("tm1", vec![report(1, 1, 2, S::Failed)]);
    assert_eq!((job.generations(), looked_at(&job)), (vec![2, 3], vec![]));
    job.reports("tm0", vec![report(1, 0, 1, S::Canceled)]);
    job.pass(1);
    look(&mut job, 200);
    assert_eq!(looked_at(&job), [200]);
    assert_eq!(deployed(&job), [(0, 2, 0), (1, 3, 1)]);
}

/// Otherwise one source would read what the other, which stays finished, has read.
#[test]
fn a_preparation_stays_until_all_of_its_regions_have_durably_finished() {
    let mut graph = of_files();
    graph
        .vertices
        .extend(graph_of(&[("x", 1), ("b", 1)], &[]).vertices.pop());
    let together = CoreOptions {
        failover_strategy: FailoverStrategy::Full,
        ..at_once()
    };
    let mut job = Recovered::with_options(&graph, submitted(&graph), 2, together);
    look(&mut job, 100);
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    for (name, vertex, subtask) in [("tm0", 1, 0), ("tm0", 2, 0), ("tm1", 1, 1)] {
        job.reports(name, vec![report(vertex, subtask, 1, S::Running)]);
    }
    job.reports("tm0", vec![report(1, 0, 1, S::Finished)]);
    // The write of the second end is in flight when all regions that have not durably finished have to
    // restart.
    for (name, end) in [
        ("tm1", report(1, 1, 1, S::Finished)),
        ("tm0", report(2, 0, 1, S::Failed)),
    ] {
        let reported = Event::ExecutionsReported {
            connection: job.connection(name),
            executions: vec![end],
        };
        job.core.handle(job.now_ms, reported).expect("taken");
    }
    let generations = job
        .core
        .record
        .decided()
        .regions
        .iter()
        .map(|it| it.generation);
    assert_eq!(Vec::from_iter(generations), [1, 2, 2]);
    assert_eq!(
        job.core.record.decided().coordinators.len(),
        1,
        "read by the first already"
    );
}

const FILES: u32 = 1;
const MAKER: u32 = 2;
const BESIDE: u32 = 3;
const SINK: u32 = 4;
const AFTER: u32 = 5;

/// The tasks of these vertices with this subtask number run, then finish.
fn live(job: &mut Recovered, vertices: &[u32], subtask: u32, generation: u64) {
    for state in [S::Running, S::Finished] {
        let reports = vertices.iter();
        let reports = reports.map(|vertex| report(*vertex, subtask, generation, state));
        job.reports(&format!("tm{subtask}"), reports.collect());
    }
}

/// The answer to this request of the source.
fn ask(job: &mut Recovered, subtask: u32, generation: u64, number: u64) -> Answer {
    job.effects.clear();
    let request = CoordinatorRequest {
        token: 1,
        execution: pb::ExecutionId {
            vertex_id: format!("{FILES:032x}"),
            subtask,
            generation,
        },
        operator: "lines".to_owned(),
        number,
    };
    job.hear(Event::CoordinatorAsked {
        connection: job.connection(&format!("tm{subtask}")),
        request,
    });
    let answer = job.effects.iter().find_map(|effect| match effect {
        Effect::AnswerCoordinator {
            answer: CoordinatorAnswer::Decided(answer),
            ..
        } => Some(answer.clone()),
        _ => None,
    });
    answer.unwrap_or_else(|| panic!("it is answered: {:?}", job.effects))
}

/// Otherwise it would read everything that the other one, which stays finished, has read.
#[test]
fn a_source_that_runs_again_because_an_output_was_lost_gets_the_same_splits() {
    let mut job = job_of(&beside_files());
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    for subtask in [0, 1] {
        live(&mut job, &[MAKER], subtask, 1);
    }
    look(&mut job, 100);
    for (subtask, name) in (0..).zip(["tm0", "tm1"]) {
        let tasks = [FILES, BESIDE, SINK, AFTER];
        let running = tasks.map(|vertex| report(vertex, subtask, 1, S::Running));
        job.reports(name, running.to_vec());
    }
    let given = [0, 1].map(|subtask| ask(&mut job, subtask, 1, 1));
    assert_ne!(given[0], given[1]);
    for subtask in [0, 1] {
        let nothing_left = ask(&mut job, subtask, 1, 2);
        assert_eq!(nothing_left, Answer::Exhausted(pb::Ack {}));
        live(&mut job, &[FILES, BESIDE, SINK], subtask, 1);
    }
    // `after` still has to read the output of `maker`, which is lost with its TaskManager.
    let connection = job.connection("tm1");
    let cause = "no answer".to_owned();
    job.hear(Event::TaskManagerLost { connection, cause });
    job.pass(1);
    job.register("tm1", "2", vec![]);
    live(&mut job, &[MAKER], 1, 2);
    assert_eq!(looked_at(&job), [100]);
    job.reports("tm1", vec![report(FILES, 1, 2, S::Running)]);
    assert_eq!(ask(&mut job, 1, 2, 1), given[1]);
    let nothing_left = ask(&mut job, 1, 2, 2);
    assert_eq!(nothing_left, Answer::Exhausted(pb::Ack {}));
}

#[test]
fn very_many_regions_that_get_their_slots_one_by_one_cost_some_dozens_of_writes() {
    const MANY: u32 = 1_000;
    let graph = graph_of(&[("a", MANY)], &[]);
    let mut job = job_of(&graph);
    job.hear(Event::Registered {
        connection: crate::core::Connection {
            task_manager: id("tm0"),
            registration: crate::core::Registration::new(1),
        },
        location: location("tm0", "1"),
        executions: vec![],
        slots: vec![],
        outputs: vec![],
    });
    for number in 0..MANY - 1 {
        let offer = pb::SlotOffer {
            allocation_id: slot(number).to_string(),
            slot: number,
            profile: None,
        };
        job.hear(Event::SlotsOffered {
            connection: job.connection("tm0"),
            slots: vec![offer],
        });
    }
    assert!((65..200).contains(&job.writes), "{}", job.writes);
    let before = job.deployed().len();
    job.pass(20);
    let after = job.deployed().len();
    assert!(
        before < after && after == MANY as usize - 1,
        "{before}, {after}"
    );
}
