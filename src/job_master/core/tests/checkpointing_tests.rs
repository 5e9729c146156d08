//! What regions of a job with checkpoints are restored from, what waits for a write of them, and what is reported to
//! them.

use std::collections::BTreeSet;
use std::sync::Arc;

use tanist_ha::election::Epoch;
use tanist_proto::v1 as pb;
use tanist_proto::v1::ExecutionState as S;
use tanist_proto::v1::ask_coordinator_response::Answer;
use tanist_proto::v1::coordinator_state::State;

use super::recovered::{Recovered, both, end, one_region, options, placed, report};
use super::testing::submitted_whole;
use crate::core::checkpoints::{Event as News, RegionStart};
use crate::core::restart::RestartStrategy;
use crate::core::{
    CoordinatorAnswer, CoordinatorRequest, CoreOptions, Effect, Event, JobMasterCore, RestorePoints,
};

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

fn points(number: u64) -> Arc<RestorePoints> {
    Arc::new(RestorePoints {
        numbers: vec![number],
        ..RestorePoints::default()
    })
}

/// A job of one region that runs in its first generation.
fn running(graph: &pb::JobGraph) -> Recovered {
    let mut job = Recovered::with_options(graph, submitted_whole(graph), 2, at_once());
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    if !graph.vertices[0].operators.is_empty() {
        prepare(&mut job);
    }
    for (name, subtask) in [("tm0", 0), ("tm1", 1)] {
        job.reports(name, both(subtask, 1, S::Running));
    }
    job.effects.clear();
    job
}

fn prepare(job: &mut Recovered) {
    let generation = job.effects.iter().rev().find_map(|effect| match effect {
        Effect::Prepare { generation, .. } => Some(*generation),
        _ => None,
    });
    let generation = generation.expect("it is asked for");
    let state = pb::CoordinatorState {
        vertex_id: format!("{:032x}", 1),
        operator: "lines".to_owned(),
        generation,
        state: Some(State::FileSplits(pb::FileSplits {
            files: vec![pb::SplitFile {
                path: b"f".to_vec(),
                size: 100,
            }],
            ends: vec![50, 100],
            assigned: Vec::new(),
            read: Vec::new(),
        })),
    };
    job.hear(Event::Prepared {
        region: 0,
        generation,
        outcome: Ok(vec![state]),
    });
}

/// Task 0 of the first vertex fails, and all others end.
fn fail(job: &mut Recovered, generation: u64) {
    let mut reports = both(0, generation, S::Canceled);
    reports[0] = report(1, 0, generation, S::Failed);
    job.reports("tm0", reports);
    job.reports("tm1", both(1, generation, S::Canceled));
    job.pass(1);
}

fn restored_from(job: &Recovered) -> u64 {
    job.stored.regions[0].restored_from
}

#[test]
fn a_placement_names_the_snapshot_and_waits_while_a_write_may_change_it() {
    let mut job = running(&one_region());
    assert_eq!(restored_from(&job), 0);
    let held = RestorePoints {
        held: BTreeSet::from([0]),
        ..(*points(0)).clone()
    };
    job.hear(Event::CheckpointsChanged(Arc::new(held)));
    fail(&mut job, 1);
    assert!(job.deployed().is_empty(), "{:?}", job.deployed());
    assert!(job.stored.regions[0].placements.is_empty());
    job.hear(Event::CheckpointsChanged(points(4)));
    assert_eq!((job.generations(), restored_from(&job)), (vec![2], 4));
    let restored = job.effects.iter().filter_map(|effect| match effect {
        Effect::Deploy { tasks, .. } => Some(tasks),
        _ => None,
    });
    let numbers = restored
        .flatten()
        .map(|task| task.restore.as_ref().map(|restore| restore.number));
    assert_eq!(numbers.collect::<Vec<_>>(), [Some(4); 4]);
}

fn of_files() -> pb::JobGraph {
    let mut graph = one_region();
    graph.vertices[0].operators = vec![pb::Operator {
        uid: String::new(),
        name: "lines".to_owned(),
        spec: r#"{"type":"file-source","paths":["f"]}"#.to_owned(),
        output: Vec::new(),
    }];
    graph
}

fn ask(job: &mut Recovered, generation: u64, number: u64) -> Option<Answer> {
    job.effects.clear();
    let request = CoordinatorRequest {
        token: 1,
        execution: pb::ExecutionId {
            vertex_id: format!("{:032x}", 1),
            subtask: 0,
            generation,
        },
        operator: "lines".to_owned(),
        number,
    };
    let connection = job.connection("tm0");
    job.hear(Event::CoordinatorAsked {
        connection,
        request,
    });
    job.effects.iter().find_map(|effect| match effect {
        Effect::AnswerCoordinator {
            answer: CoordinatorAnswer::Decided(answer),
            ..
        } => Some(answer.clone()),
        _ => None,
    })
}

#[test]
fn a_source_that_is_restored_goes_on_with_the_number_of_its_request() {
    let mut job = running(&of_files());
    let first = ask(&mut job, 1, 1).expect("answered");
    let second = ask(&mut job, 1, 2).expect("answered");
    assert_ne!(first, second);
    job.hear(Event::CheckpointsChanged(points(4)));
    fail(&mut job, 1);
    assert_eq!((job.generations(), restored_from(&job)), (vec![2], 4));
    let looks = |effect: &Effect| matches!(effect, Effect::Prepare { .. });
    assert!(!job.effects.iter().any(looks), "files are not listed again");
    job.reports("tm0", both(0, 2, S::Running));
    assert_eq!(ask(&mut job, 2, 2), Some(second));
    assert_eq!(ask(&mut job, 2, 3), Some(Answer::Exhausted(pb::Ack {})));
}

#[test]
fn without_a_snapshot_files_are_listed_again() {
    let mut job = running(&of_files());
    ask(&mut job, 1, 1).expect("answered");
    fail(&mut job, 1);
    prepare(&mut job);
    assert_eq!((job.generations(), restored_from(&job)), (vec![2], 0));
    let assigned = job.stored.coordinators.iter().filter_map(|it| {
        let State::FileSplits(splits) = it.state.as_ref()?;
        Some(splits.assigned.len())
    });
    assert_eq!(assigned.collect::<Vec<_>>(), [0]);
}

#[test]
fn a_result_waits_for_what_checkpoints_have_not_committed() {
    let mut job = running(&one_region());
    let uncommitted = RestorePoints {
        has_uncommitted: true,
        ..(*points(4)).clone()
    };
    job.hear(Event::CheckpointsChanged(Arc::new(uncommitted)));
    for (name, subtask) in [("tm0", 0), ("tm1", 1)] {
        job.reports(name, both(subtask, 1, S::Finished));
    }
    let commits = |job: &Recovered| {
        let is_commit = |effect: &&Effect| matches!(effect, Effect::CommitSinks(_));
        job.effects.iter().filter(is_commit).count()
    };
    assert_eq!(commits(&job), 0);
    job.hear(Event::CheckpointsChanged(points(5)));
    assert_eq!(commits(&job), 1);
    job.hear(Event::SinksCommitted);
    assert_eq!(job.ended_as(), Some(pb::JobStatus::Finished));
}

/// A core of a job with checkpoints, recovered from this state.
fn with_checkpoints(state: &pb::JobState) -> JobMasterCore {
    let points = Some(points(0));
    let built = JobMasterCore::build_from(
        (one_region(), state.clone(), points),
        true,
        CoreOptions {
            max_regions: 1,
            ..at_once()
        },
        (Epoch::new(2), 1_000_000),
    );
    built.expect("the record is of this graph")
}

/// Handles an event whose writes are durable at once. Returns the names of the news.
fn news(core: &mut JobMasterCore, event: Event) -> Vec<String> {
    let mut events = vec![event];
    let mut news = Vec::new();
    while let Some(event) = events.pop() {
        let effects = core.handle(1_000_000, event).expect("taken");
        for heard in core.take_news() {
            let text = format!("{heard:?}");
            let name = text.split([' ', '{', '(']).next().unwrap_or_default();
            news.push(name.to_owned());
            if let News::RegionFinished { ends, .. } = &heard {
                let highest = ends.iter().map(|(_, end)| end.highest);
                assert_eq!(highest.collect::<Vec<_>>(), [3; 4]);
            }
        }
        events.extend(effects.into_iter().filter_map(|effect| match effect {
            Effect::Persist { number, .. } => Some(Event::Persisted(number)),
            _ => None,
        }));
    }
    news
}

fn registered(subtask: u32, state: S) -> Event {
    let name = format!("tm{subtask}");
    Event::Registered {
        connection: crate::core::Connection {
            task_manager: super::recovered::id(&name),
            registration: crate::core::Registration::new(20),
        },
        location: super::recovered::location(&name, "1"),
        executions: both(subtask, 2, state),
        slots: vec![pb::SlotOffer {
            allocation_id: super::recovered::slot(subtask).to_string(),
            slot: 0,
            profile: None,
        }],
        outputs: vec![],
    }
}

fn reported(subtask: u32, state: S) -> Event {
    let mut executions = both(subtask, 2, state);
    for execution in &mut executions {
        execution.highest_checkpoint = 3;
    }
    Event::ExecutionsReported {
        connection: crate::core::Connection {
            task_manager: super::recovered::id(&format!("tm{subtask}")),
            registration: crate::core::Registration::new(20),
        },
        executions,
    }
}

#[test]
fn the_checkpoints_receive_the_changes_of_a_region_in_order() {
    let mut core = with_checkpoints(&placed(&one_region(), 2));
    let start = core.checkpoint_start();
    let is_placed = |region: &RegionStart| match region {
        RegionStart::Placed {
            generation, places, ..
        } => (*generation, places.len()) == (2, 4),
        _ => false,
    };
    assert!(start.regions.iter().all(is_placed), "{start:?}");
    assert!(news(&mut core, Event::Started).is_empty());
    assert!(news(&mut core, registered(0, S::Running)).is_empty());
    let adopted = news(&mut core, registered(1, S::Running));
    assert_eq!(adopted, ["RegionAdopted", "RegionRunning"]);
    let ended = news(&mut core, reported(0, S::Finished));
    assert_eq!(ended, ["TaskEnded", "TaskEnded", "RegionRunning"]);
    let finished = news(&mut core, reported(1, S::Finished));
    assert_eq!(finished, ["TaskEnded", "TaskEnded", "RegionFinished"]);
}

#[test]
fn the_checkpoints_receive_at_once_that_a_region_has_failed_and_that_the_job_ends() {
    let mut core = with_checkpoints(&placed(&one_region(), 2));
    news(&mut core, Event::Started);
    news(&mut core, registered(0, S::Running));
    news(&mut core, registered(1, S::Running));
    let failed = core
        .handle(1_000_000, reported(0, S::Failed))
        .expect("taken");
    let is_write = |effect: &Effect| matches!(effect, Effect::Persist { .. });
    assert!(failed.iter().any(is_write), "which is not durable yet");
    let told = core.take_news();
    assert!(
        matches!(told[..], [News::RegionFailed { region: 0 }]),
        "{told:?}"
    );
    let write = failed.into_iter().find_map(|effect| match effect {
        Effect::Persist { number, .. } => Some(number),
        _ => None,
    });
    news(&mut core, Event::Persisted(write.expect("a write")));
    let canceled = news(&mut core, Event::CancelRequested);
    assert_eq!(canceled, ["EndDecided"]);
}

#[test]
fn a_region_of_which_an_end_is_durable_begins_with_it() {
    let mut state = placed(&one_region(), 2);
    let of_task = |vertex, subtask| pb::TerminalExecution {
        highest_checkpoint: 3,
        ..end(vertex, subtask, 2, S::Finished)
    };
    state.terminal = vec![of_task(1, 0)];
    let start = with_checkpoints(&state).checkpoint_start();
    let RegionStart::Placed { ends, .. } = &start.regions[0] else {
        panic!("{start:?} is awaited");
    };
    assert_eq!((ends.len(), ends[0].1.highest), (1, 3));
    state.terminal = vec![of_task(1, 0), of_task(1, 1), of_task(2, 0), of_task(2, 1)];
    let start = with_checkpoints(&state).checkpoint_start();
    let is_finished = |region: &RegionStart| matches!(region, RegionStart::Finished { ends, .. } if ends.len() == 4);
    assert!(start.regions.iter().all(is_finished), "{start:?}");
}

#[test]
fn a_job_that_goes_on_with_one_of_its_sources_prepares_the_others() {
    let mut graph = of_files();
    let mut other = graph.vertices[0].operators[0].clone();
    other.name = "others".to_owned();
    graph.vertices[1].operators = vec![other];
    let mut state = submitted_whole(&graph);
    state.coordinators = vec![pb::CoordinatorState {
        vertex_id: format!("{:032x}", 1),
        operator: "lines".to_owned(),
        generation: 1,
        state: Some(State::FileSplits(pb::FileSplits::default())),
    }];
    let mut job = Recovered::with_options(&graph, state, 2, at_once());
    job.register("tm0", "1", vec![]);
    job.register("tm1", "1", vec![]);
    let asked = job.effects.iter().filter_map(|effect| match effect {
        Effect::Prepare { operators, .. } => Some(operators),
        _ => None,
    });
    let asked = asked.flat_map(|operators| operators.iter().map(|it| it.operator.clone()));
    assert_eq!(asked.collect::<Vec<_>>(), ["others"]);
    assert!(job.deployed().is_empty());
    let other = pb::CoordinatorState {
        vertex_id: format!("{:032x}", 2),
        operator: "others".to_owned(),
        generation: 1,
        state: Some(State::FileSplits(pb::FileSplits::default())),
    };
    job.hear(Event::Prepared {
        region: 0,
        generation: 1,
        outcome: Ok(vec![other]),
    });
    assert_eq!(job.deployed().len(), 4);
    let recorded = job.stored.coordinators.iter();
    let recorded = recorded.map(|it| it.operator.clone());
    assert_eq!(recorded.collect::<Vec<_>>(), ["lines", "others"]);
}
