//! When a worker started by a driver counts as idle: not before it has reported, since its last slot was freed,
//! that it keeps no outputs.

use std::time::Duration;

use tanist_gateway::registration::Answer;
use tanist_gateway::{GatewayError, GatewayResult};
use tanist_ha::clock::Uptime;
use tanist_ha::election::{ClusterIncarnation, Epoch, ProcessId, TermHolder};
use tanist_proto::id::{AllocationId, JobId, ResourceId};
use tanist_proto::resources::{Resources, WorkerResourceSpec};
use tanist_proto::v1 as pb;

use crate::Options;
use crate::core::slot_manager::Turn;
use crate::core::workers::{Starter, WorkerEvent, Workers};
use crate::core::{Connection, Effect, ResourceManagerCore, Term};
use crate::tests::scripted::{id, needs, registration};
use crate::workers::{Found, WorkerRecord, WorkersOptions};

/// Shorter than `heartbeat.interval`.
const IDLE_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct World {
    pub(super) core: ResourceManagerCore,
    pub(super) now: Uptime,
    turn: Turn,
}

pub(super) fn worker() -> ResourceId {
    "tm".parse().expect("an id")
}

/// The report about its one slot.
pub(super) fn slots(is_free: bool, version: u64) -> pb::SlotReport {
    let allocation = pb::SlotAllocation {
        allocation_id: AllocationId::from_bits(1).to_string(),
        job_id: JobId::from_bits(1).to_string(),
    };
    pb::SlotReport {
        slots: vec![pb::SlotStatus {
            slot: 0,
            allocation: (!is_free).then_some(allocation),
            ..pb::SlotStatus::default()
        }],
        version,
    }
}

impl World {
    /// One worker, with a job in its slot.
    pub(super) fn start() -> World {
        let mut world = World::expecting();
        world.registers(1).expect("it registers");
        world.turn = world.core.turn();
        world
    }

    pub(super) fn options() -> WorkersOptions {
        WorkersOptions {
            idle_timeout: IDLE_TIMEOUT,
            ..WorkersOptions::of(WorkerResourceSpec::new(Resources::ZERO, 1))
        }
    }

    /// The same, before it has registered.
    pub(super) fn expecting() -> World {
        World::expecting_with(World::options())
    }

    fn expecting_with(options: WorkersOptions) -> World {
        let now = Uptime::START;
        let term = Term {
            cluster_id: "test".to_owned(),
            incarnation: ClusterIncarnation::new("c1"),
            epoch: Epoch::new(5),
            holder: TermHolder::starting(ProcessId::new("jm")),
            store: None,
        };
        let record = WorkerRecord {
            driver: "test".to_owned(),
            place: "here".to_owned(),
            epoch: 4,
            requested_at_ms: 1,
            slots: 1,
            resources: None,
            releasing: false,
        };
        let starter = Starter {
            driver: "test",
            place: "here".to_owned(),
            epoch: 5,
            seed: 1,
        };
        let workers = Workers::new(options, starter, vec![(worker(), record)]);
        let mut core =
            ResourceManagerCore::new(now, Options::default(), term, 1).with_workers(Some(workers));
        let found = vec![(worker(), Found::Running)];
        core.worker_event(now, WorkerEvent::Recovered(Ok(found)));
        let turn = core.turn();
        World { core, now, turn }
    }

    /// It registers, with a job in its slot.
    pub(super) fn registers(
        &mut self,
        number: u64,
    ) -> GatewayResult<Answer<pb::RegistrationSuccess>> {
        let registration = pb::RegisterTaskExecutorRequest {
            worker_of: "test".to_owned(),
            ..registration(5, number, slots(false, 1))
        };
        self.core.register(self.now, registration)
    }

    /// It answers a heartbeat that was sent at `asked_at`.
    pub(super) fn answers(
        &mut self,
        asked_at: Turn,
        slot_report: pb::SlotReport,
        kept_outputs: u32,
    ) {
        let to = Connection {
            worker: worker(),
            registration: 1,
            address: "tm:1".to_owned(),
        };
        let answer = pb::HeartbeatFromResourceManagerResponse {
            slot_report: Some(slot_report),
            kept_outputs,
        };
        self.core
            .heartbeat_answered(self.now, &to, asked_at, Ok(answer));
    }

    /// It notifies that its slot is free, without being asked.
    fn frees(&mut self, version: u64) {
        let pb::SlotReport { slots, version } = slots(true, version);
        let request = pb::NotifySlotsAvailableRequest {
            sender: registration(5, 1, pb::SlotReport::default()).sender,
            resource_id: worker().to_string(),
            slots,
            slots_version: version,
            are_all: true,
            ..pb::NotifySlotsAvailableRequest::default()
        };
        let taken = self.core.slots_available(self.now, request);
        taken.expect("it is registered");
    }

    /// Drains its host, or undoes that.
    fn drain_host(&mut self, undrain: bool) {
        let host = pb::DrainTaskManagerRequest {
            host: "tm".to_owned(),
            undrain,
            ..pb::DrainTaskManagerRequest::default()
        };
        let change = self.core.decide_drain(0, &host);
        let change = change.expect("it is known").expect("it is not so yet");
        self.core.drain_decided(self.now, 0, change);
    }

    /// Number of workers started while three times the timeout passes.
    fn started(&mut self) -> usize {
        for _ in 0..6 {
            self.core.on_time(self.now);
            self.now += IDLE_TIMEOUT / 2;
        }
        let effects = self.core.take_effects().into_iter();
        let is_start =
            |it: &Effect| matches!(it, Effect::Worker(crate::core::workers::Effect::Start(_)));
        effects.filter(is_start).count()
    }

    /// Whether it is released while three times the timeout passes.
    fn is_released(&mut self) -> bool {
        for _ in 0..6 {
            self.core.on_time(self.now);
            self.now += IDLE_TIMEOUT / 2;
        }
        let effects = self.core.take_effects();
        effects.contains(&Effect::Worker(crate::core::workers::Effect::Release(
            worker(),
        )))
    }
}

#[test]
fn a_worker_is_idle_only_when_it_has_said_since_its_slot_was_freed_that_it_keeps_nothing() {
    let mut world = World::start();
    let before = world.turn;
    world.answers(before, slots(false, 1), 0);
    world.frees(2);
    assert!(!world.is_released(), "it has not said what it keeps");
    world.answers(before, slots(false, 1), 0);
    assert!(!world.is_released(), "that answer is from before");
    let turn = world.core.turn();
    world.answers(turn, slots(true, 2), 1);
    assert!(!world.is_released(), "it keeps an output");
    world.answers(turn, slots(true, 2), 0);
    assert!(world.is_released(), "it is idle");
}

#[test]
fn an_answer_that_tells_of_a_free_slot_also_tells_of_what_was_made_in_it() {
    let mut world = World::start();
    world.answers(world.turn, slots(true, 2), 0);
    assert!(world.is_released());
}

#[test]
fn a_worker_that_registers_again_while_its_release_is_written_leaves_only_when_that_is_durable() {
    for is_durable in [true, false] {
        let mut world = World::start();
        world.answers(world.turn, slots(true, 2), 0);
        assert!(world.is_released());
        let again = pb::RegisterTaskExecutorRequest {
            worker_of: "test".to_owned(),
            ..registration(5, 2, slots(true, 3))
        };
        let answer = world.core.register(world.now, again);
        let Answer::Success(registered) = answer.expect("it leads") else {
            panic!("it is accepted");
        };
        assert!(!registered.draining, "its release is not durable");
        let job = JobId::from_bits(2);
        let at_job_master = world.core.register_job_master(world.now, job, id(1));
        at_job_master.expect("it leads");
        let declared = world.core.declare(world.now, needs(job, 1));
        declared.expect("it is registered");
        world.now += IDLE_TIMEOUT;
        world.core.on_time(world.now);
        let effects = world.core.take_effects();
        let uses = |it: &Effect| matches!(it, Effect::RequestSlot { .. });
        assert!(!effects.iter().any(uses), "{effects:?}");
        let event = WorkerEvent::ReleaseRecorded(worker(), is_durable);
        world.core.worker_event(world.now, event);
        world.now += IDLE_TIMEOUT;
        world.core.on_time(world.now);
        let effects = world.core.take_effects();
        let leaves = |it: &Effect| {
            matches!(
                it,
                Effect::Heartbeat {
                    is_releasing: true,
                    ..
                }
            )
        };
        assert_eq!(effects.iter().any(leaves), is_durable, "{effects:?}");
        assert_eq!(effects.iter().any(uses), !is_durable, "{effects:?}");
    }
}

#[test]
fn a_worker_that_is_drained_with_its_host_serves_nobody_and_is_released() {
    let mut world = World::start();
    world.drain_host(false);
    assert_eq!(world.core.unmatched_drains(world.now), []);
    assert!(!world.is_released(), "its slot is in use");
    let alone = pb::DrainTaskManagerRequest {
        resource_id: worker().to_string(),
        undrain: true,
        ..pb::DrainTaskManagerRequest::default()
    };
    let undrained = world.core.decide_drain(0, &alone);
    assert!(
        matches!(&undrained, Err(GatewayError::Conflict(text)) if text.contains("host tm")),
        "{undrained:?}"
    );
    world.answers(world.turn, slots(true, 2), 0);
    assert!(world.is_released());
}

#[test]
fn no_worker_is_started_on_a_host_that_is_drained() {
    let options = WorkersOptions {
        min_slots: 1,
        ..World::options()
    };
    let mut world = World::expecting_with(options);
    world.registers(1).expect("it registers");
    world.turn = world.core.turn();
    world.drain_host(false);
    world.answers(world.turn, slots(true, 2), 0);
    assert!(world.is_released());
    for event in [
        WorkerEvent::Ended(worker(), "it was released".to_owned()),
        WorkerEvent::Removed(worker()),
        WorkerEvent::Stopped(worker()),
    ] {
        world.core.worker_event(world.now, event);
    }
    assert_eq!(world.started(), 0, "it would be drained, too");
    let told = world.core.workers_overview(world.now, 0);
    let text = told.expect("there is a driver").text;
    assert!(text.contains("host tm is drained"), "{text}");
    world.drain_host(true);
    assert_eq!(world.started(), 1);
}
