//! A job that the next term has recovered, for the tests of adoption: the state that the earlier term left,
//! and a core whose writes are durable immediately.

use tanist_ha::election::Epoch;
use tanist_model::MAX_REGIONS;
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::{ExecutionState as S, JobStatus};

use super::testing::{graph_of, submitted};
use crate::core::failover::FailoverStrategy;
use crate::core::restart::RestartStrategy;
use crate::core::{Connection, CoreOptions, Effect, Event, JobMasterCore, Refusal, Registration};

pub(crate) const RECONCILE_MS: u64 = 50_000;

pub(crate) fn id(name: &str) -> ResourceId {
    name.parse().expect("a resource id")
}

pub(crate) fn slot(number: u32) -> AllocationId {
    AllocationId::from_bits(u128::from(number) + 1)
}

pub(crate) fn location(name: &str, incarnation: &str) -> pb::TaskManagerLocation {
    pb::TaskManagerLocation {
        resource_id: name.to_owned(),
        incarnation: incarnation.to_owned(),
        rpc_address: format!("{name}:1"),
        data_address: format!("{name}:2"),
    }
}

/// Two vertices of two subtasks in one region, each pair of subtasks in one slot on `tm0` or `tm1`.
pub(crate) fn one_region() -> pb::JobGraph {
    graph_of(&[("a", 2), ("b", 2)], &[(0, 1)])
}

/// The same vertices in a region each, as no more are allowed.
pub(crate) fn two_regions() -> pb::JobGraph {
    graph_of(&[("a", 2), ("b", 2)], &[])
}

/// The state that a term of epoch 1 has left: every region in this generation, subtask 0 on `tm0` and 1 on
/// `tm1`.
pub(crate) fn placed(graph: &pb::JobGraph, generation: u64) -> pb::JobState {
    let mut state = submitted(graph);
    let placements = |ids: Vec<&str>| {
        let subtasks = ids
            .into_iter()
            .flat_map(|id| [(id.to_owned(), 0), (id.to_owned(), 1)]);
        subtasks
            .map(|(vertex_id, subtask)| pb::Placement {
                vertex_id,
                subtask,
                allocation_id: slot(subtask).to_string(),
                location: Some(location(&format!("tm{subtask}"), "1")),
            })
            .collect()
    };
    let ids: Vec<&str> = graph.vertices.iter().map(|it| it.id.as_str()).collect();
    let regions = match graph.edges.is_empty() {
        true => ids.into_iter().map(|id| vec![id]).collect(),
        false => vec![ids],
    };
    state.regions = regions
        .into_iter()
        .map(|ids: Vec<&str>| pb::RegionState {
            generation,
            epoch: 1,
            placements: placements(ids),
            placed_at_ms: 5,
            created_at_ms: 3,
            scheduled_at_ms: 4,
            ..pb::RegionState::default()
        })
        .collect();
    state.job_incarnation = 1;
    state
}

pub(crate) fn report(vertex: u32, subtask: u32, generation: u64, state: S) -> pb::ExecutionReport {
    pb::ExecutionReport {
        vertex_id: format!("{vertex:032x}"),
        subtask,
        generation,
        state: state.into(),
        allocation_id: slot(subtask).to_string(),
        ..pb::ExecutionReport::default()
    }
}

/// A TaskManager's reports of its two tasks.
pub(crate) fn both(subtask: u32, generation: u64, state: S) -> Vec<pb::ExecutionReport> {
    [1, 2]
        .map(|vertex| report(vertex, subtask, generation, state))
        .to_vec()
}

pub(crate) fn end(vertex: u32, subtask: u32, generation: u64, state: S) -> pb::TerminalExecution {
    pb::TerminalExecution {
        vertex_id: format!("{vertex:032x}"),
        subtask,
        generation,
        state: state.into(),
        ended_at_ms: 1,
        ..pb::TerminalExecution::default()
    }
}

/// Options without restarts.
pub(crate) fn options() -> CoreOptions {
    CoreOptions {
        slot_request_timeout_ms: 10_000,
        max_slots: None,
        slot_idle_timeout_ms: 5_000,
        task_cancellation_timeout_ms: 180_000,
        reconcile_timeout_ms: RECONCILE_MS,
        restart_strategy: RestartStrategy::None,
        failover_strategy: FailoverStrategy::Region,
        exception_history_size: 16,
        max_regions: MAX_REGIONS,
        seed: 1,
    }
}

/// A job recovered by the next term.
pub(crate) struct Recovered {
    pub(crate) core: JobMasterCore,
    pub(crate) stored: pb::JobState,
    pub(crate) writes: u32,
    pub(crate) now_ms: u64,
    pub(crate) registrations: u64,
    pub(crate) effects: Vec<Effect>,
}

impl Recovered {
    pub(crate) fn new(graph: &pb::JobGraph, state: pb::JobState) -> Recovered {
        Recovered::in_term(graph, state, 2)
    }

    /// The status with which the job ended, if it has. Its result is not written yet.
    pub(crate) fn ended_as(&self) -> Option<JobStatus> {
        self.core.end.result().map(pb::JobResult::status)
    }

    pub(crate) fn in_term(graph: &pb::JobGraph, state: pb::JobState, epoch: u64) -> Recovered {
        Recovered::with_options(graph, state, epoch, options())
    }

    pub(crate) fn with_options(
        graph: &pb::JobGraph,
        state: pb::JobState,
        epoch: u64,
        options: CoreOptions,
    ) -> Recovered {
        Recovered::at(graph, state, epoch, options, 1_000_000)
    }

    pub(crate) fn at(
        graph: &pb::JobGraph,
        state: pb::JobState,
        epoch: u64,
        mut options: CoreOptions,
        now_ms: u64,
    ) -> Recovered {
        if !state.regions.is_empty() {
            // As many as the former term had.
            options.max_regions = state.regions.len();
        }
        let epoch = Epoch::new(epoch);
        let core = JobMasterCore::build(graph.clone(), state.clone(), true, epoch, options, now_ms);
        let mut recovered = Recovered {
            core: core.expect("the record is of this graph"),
            stored: state,
            writes: 0,
            now_ms,
            registrations: 10 * epoch.get(),
            effects: Vec::new(),
        };
        recovered.hear(Event::Started);
        recovered
    }

    pub(crate) fn try_hear(&mut self, event: Event) -> Result<(), Refusal> {
        let mut effects = self.core.handle(self.now_ms, event)?;
        while let Some(at) = effects
            .iter()
            .position(|effect| matches!(effect, Effect::Persist { .. }))
        {
            let Effect::Persist { number, state, .. } = effects.remove(at) else {
                unreachable!("that is what was looked for");
            };
            self.stored = (*state).clone();
            self.writes += 1;
            let follows = self.core.handle(self.now_ms, Event::Persisted(number));
            effects.extend(follows.expect("an answer of the store is heard"));
            self.core.assert_consistent();
        }
        self.core.assert_consistent();
        self.effects.extend(effects);
        Ok(())
    }

    pub(crate) fn hear(&mut self, event: Event) {
        self.try_hear(event).expect("taken");
    }

    pub(crate) fn register(
        &mut self,
        name: &str,
        incarnation: &str,
        executions: Vec<pb::ExecutionReport>,
    ) {
        self.registrations += 1;
        let number = name
            .trim_start_matches("tm")
            .parse()
            .expect("tm and a number");
        let slots = vec![pb::SlotOffer {
            allocation_id: slot(number).to_string(),
            slot: 0,
            profile: None,
        }];
        self.hear(Event::Registered {
            connection: Connection {
                task_manager: id(name),
                registration: Registration::new(self.registrations),
            },
            location: location(name, incarnation),
            executions,
            slots,
            outputs: vec![],
        });
    }

    pub(crate) fn connection(&self, name: &str) -> Connection {
        let mut known = self.core.connections().into_iter();
        let known = known.find(|it| it.0.task_manager == id(name));
        known.expect("it is registered").0
    }

    pub(crate) fn reports(&mut self, name: &str, executions: Vec<pb::ExecutionReport>) {
        let connection = self.connection(name);
        self.hear(Event::ExecutionsReported {
            connection,
            executions,
        });
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        self.hear(Event::TimePassed);
    }

    pub(crate) fn generations(&self) -> Vec<u64> {
        let regions = self.stored.regions.iter();
        regions.map(|region| region.generation).collect()
    }

    pub(crate) fn deployed(&self) -> Vec<(String, u64)> {
        let mut deployed = Vec::new();
        for effect in &self.effects {
            if let Effect::Deploy { connection, tasks } = effect {
                let to = connection.task_manager.to_string();
                deployed.extend(tasks.iter().map(|task| (to.clone(), task.generation)));
            }
        }
        deployed
    }

    pub(crate) fn cancelled(&self) -> Vec<(String, u32, u64)> {
        let mut cancelled = Vec::new();
        for effect in &self.effects {
            if let Effect::Cancel { connection, tasks } = effect {
                let to = connection.task_manager.to_string();
                let all = tasks.iter();
                cancelled.extend(all.map(|task| (to.clone(), task.subtask, task.up_to_generation)));
            }
        }
        cancelled
    }

    pub(crate) fn declared(&self) -> Vec<u32> {
        let needed = |effect: &Effect| match effect {
            Effect::Declare(needs) => Some(needs.slots.iter().map(|(_, number)| number).sum()),
            _ => None,
        };
        self.effects.iter().filter_map(needed).collect()
    }

    /// Asserts that only the takeover was written, nothing was sent, and the job runs with its old attempts.
    pub(crate) fn assert_adopted(&self, tasks: u32) {
        assert_eq!(self.core.status(), JobStatus::Running);
        assert_eq!((self.deployed(), self.cancelled()), (vec![], vec![]));
        assert_eq!(self.writes, 1);
        let adoption = self.core.adoption().expect("nothing is awaited");
        assert_eq!(
            (adoption.tasks_adopted, adoption.tasks_restarted),
            (tasks, 0)
        );
        assert_eq!(self.declared(), [2]);
    }

    /// Asserts that the remaining executions of the old generation stop, then all of the next one is
    /// deployed.
    pub(crate) fn assert_restarts(&mut self, old: u64, left: &[(&str, u32)]) {
        assert!(self.deployed().is_empty(), "{:?}", self.deployed());
        assert_eq!(
            self.generations(),
            [old + 1],
            "written before anything is cancelled"
        );
        for (name, subtask) in left {
            let of_it = (name.to_string(), *subtask, old);
            assert!(self.cancelled().contains(&of_it), "{:?}", self.cancelled());
            self.reports(name, both(*subtask, old, S::Canceled));
        }
        for name in ["tm0", "tm1"] {
            let here = self.core.location(&id(name)).is_some();
            if !here {
                self.register(name, "2", vec![]);
            }
        }
        let deployed = self.deployed();
        assert_eq!(deployed.len(), 4, "{deployed:?}");
        assert!(
            deployed
                .iter()
                .all(|(_, generation)| *generation == old + 1)
        );
        let region = &self.stored.regions[0];
        assert_eq!((region.generation, region.epoch), (old + 1, 2));
    }
}
