//! Requests of operators to their coordinators, until they are answered or their task has ended.

use tanist_dataflow::Requester;
use tanist_gateway::registration::Registered;
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ask_coordinator_response::Answer;

use super::core_world::{World, scope};
use crate::Options;
use crate::core::*;

const JOB: JobId = JobId::from_bits(1);
const REQUEST: u64 = 7;

/// Handles an event. Returns the runs in which the request is sent, and its answers.
fn turn(world: &mut World, event: Event) -> (Vec<u64>, Vec<Result<Answer, String>>) {
    world.core.handle(world.now, event);
    let at = world.at();
    world.core.after_event(world.now, at, 0);
    let (mut sent, mut answers) = (Vec::new(), Vec::new());
    for effect in world.core.take_effects() {
        if let Effect::AskCoordinator { to, request_id, .. } = effect {
            assert_eq!(request_id, REQUEST);
            sent.push(to.run);
        } else if let Effect::AnswerCoordinatorRequest { request_id, answer } = effect {
            assert_eq!(request_id, REQUEST);
            answers.push(answer);
        }
    }
    (sent, answers)
}

fn run(world: &World) -> u64 {
    let known = world.core.jobs.get(JOB);
    known.expect("it is known").connection().run()
}

fn task(world: &World) -> TaskKey {
    let (task, _) = &world.running[0];
    *task
}

/// A World whose task asks its coordinator. Returns the run in which the request is in flight.
fn asking() -> (World, u64) {
    let mut world = World::running();
    let TaskKey { job, execution } = task(&world);
    let requester = Requester {
        job,
        vertex: execution.vertex,
        subtask: execution.subtask,
        generation: execution.generation,
        operator: "numbers".to_owned(),
    };
    let asked = Event::CoordinatorAsked {
        request_id: REQUEST,
        requester,
        number: 1,
    };
    let in_flight = run(&world);
    assert_eq!(turn(&mut world, asked), (vec![in_flight], vec![]));
    (world, in_flight)
}

fn answered(run: u64, answer: GatewayResult<Answer>) -> Event {
    let response = |answer| pb::AskCoordinatorResponse {
        answer: Some(answer),
    };
    Event::CoordinatorAnswered {
        job: JOB,
        run,
        request_id: REQUEST,
        answer: answer.map(response),
    }
}

fn exhausted() -> Answer {
    Answer::Exhausted(pb::Ack {})
}

/// An event that changes nothing.
fn nothing() -> Event {
    Event::RegistrationSeen(0)
}

#[test]
fn a_request_is_sent_again_in_the_next_run_and_its_answer_in_an_earlier_one_does_not_count() {
    let (mut world, earlier) = asking();
    let disconnect = pb::DisconnectJobMasterRequest {
        sender: world.sender(0),
        job: scope(1),
        cause: "lost".to_owned(),
        job_ended: false,
    };
    let answer = world.core.disconnect_job_master(world.now, &disconnect);
    answer.expect("is registered");
    assert_eq!(turn(&mut world, nothing()), (vec![], vec![]));
    let run = run(&world);
    assert!(run > earlier);
    let prepared = world
        .core
        .prepare_job_master(world.now, JOB, run, &|_| None);
    prepared.expect("it registers");
    let result = Registered::Success((pb::RegistrationSuccess::default(), 1));
    let registered = Event::RegisteredAtJobMaster {
        job: JOB,
        run,
        result,
    };
    assert_eq!(turn(&mut world, registered), (vec![run], vec![]));
    let failure = || GatewayError::NotYet("a test says so".to_owned());
    for answer in [Ok(exhausted()), Err(failure())] {
        let late = answered(earlier, answer);
        assert_eq!(turn(&mut world, late), (vec![], vec![]));
    }
    let answer = answered(run, Ok(exhausted()));
    assert_eq!(turn(&mut world, answer), (vec![], vec![Ok(exhausted())]));
    assert_eq!(turn(&mut world, nothing()), (vec![], vec![]));
}

#[test]
fn a_request_whose_call_failed_is_sent_again_after_a_delay() {
    let (mut world, run) = asking();
    let failure = GatewayError::NotYet("a test says so".to_owned());
    let failed = answered(run, Err(failure));
    assert_eq!(turn(&mut world, failed), (vec![], vec![]));
    world.now += Options::default().retry_delay;
    assert_eq!(turn(&mut world, nothing()), (vec![run], vec![]));
    // That there will never be an answer is an answer.
    let never = answered(
        run,
        Err(GatewayError::Invalid("no such operator".to_owned())),
    );
    let answer = Err("no such operator".to_owned());
    assert_eq!(turn(&mut world, never), (vec![], vec![answer]));
}

#[test]
fn a_request_ends_with_its_task() {
    let (mut world, run) = asking();
    let ended = Event::TaskChanged {
        task: task(&world),
        status: TaskStatus::Canceled,
        metrics: None,
    };
    let answer = Err("its task has ended".to_owned());
    assert_eq!(turn(&mut world, ended), (vec![], vec![answer]));
    let late = answered(run, Ok(exhausted()));
    assert_eq!(turn(&mut world, late), (vec![], vec![]));
    world.now += Options::default().retry_delay;
    assert_eq!(turn(&mut world, nothing()), (vec![], vec![]));
}
