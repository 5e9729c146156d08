//! CPU time of the JobMaster's core for all decisions about one job: no I/O, no threads, one TaskManager after another.

use std::time::Duration;

use anyhow::{bail, ensure};
use tanist_ha::election::Epoch;
use tanist_job_master::{
    Connection, CoreOptions, Effect, Event, FailoverStrategy, JobMasterCore, Registration,
    RestartStrategy, SubmitOutcome,
};
use tanist_model::MAX_REGIONS;
use tanist_proto::id::AllocationId;
use tanist_proto::v1 as pb;
use tokio::time::Instant;

/// From the first event until all tasks are RUNNING.
pub fn of(graph: pb::JobGraph, slots: u32, task_managers: usize) -> anyhow::Result<Duration> {
    let tasks: u32 = graph.vertices.iter().map(|vertex| vertex.parallelism).sum();
    let mut job = Job::new(graph)?;
    let connections: Vec<Connection> = (0..task_managers)
        .map(connection)
        .collect::<Result<_, _>>()?;
    let start = Instant::now();
    job.handle(Event::Started)?;
    for connection in &connections {
        job.handle(registered(connection))?;
    }
    for slot in 0..slots {
        let (index, slot) = (
            slot as usize % task_managers,
            slot / u32::try_from(task_managers)?,
        );
        job.handle(offered(&connections[index], index, slot))?;
    }
    ensure!(
        job.deployed == tasks,
        "{} of {tasks} tasks were deployed",
        job.deployed
    );
    for (connection, ids) in std::mem::take(&mut job.to_report) {
        for id in ids {
            let report = pb::ExecutionReport {
                vertex_id: id.vertex_id,
                subtask: id.subtask,
                generation: id.generation,
                state: pb::ExecutionState::Running.into(),
                ..pb::ExecutionReport::default()
            };
            job.handle(Event::ExecutionsReported {
                connection: connection.clone(),
                executions: vec![report],
            })?;
        }
    }
    let took = start.elapsed();
    let details = job.core.details();
    let subtasks = details.vertices.iter().flat_map(|vertex| &vertex.subtasks);
    let running = subtasks.filter(|it| it.state() == pb::ExecutionState::Running);
    ensure!(running.count() == tasks as usize, "not all run");
    Ok(took)
}

/// The core, with a store and TaskManagers that answer at once.
struct Job {
    core: JobMasterCore,
    deployed: u32,
    to_report: Vec<(Connection, Vec<pb::ExecutionId>)>,
}

impl Job {
    fn new(graph: pb::JobGraph) -> anyhow::Result<Job> {
        let state = pb::JobState {
            job_id: graph.job_id.clone(),
            name: graph.name.clone(),
            ..pb::JobState::default()
        };
        let options = CoreOptions {
            slot_request_timeout_ms: 300_000,
            max_slots: None,
            slot_idle_timeout_ms: 50_000,
            task_cancellation_timeout_ms: 180_000,
            reconcile_timeout_ms: 50_000,
            restart_strategy: RestartStrategy::default(),
            failover_strategy: FailoverStrategy::Region,
            exception_history_size: 16,
            max_regions: MAX_REGIONS,
            seed: 1,
        };
        let core = JobMasterCore::build(graph, state, false, Epoch::new(1), options, 1)?;
        Ok(Job {
            core,
            deployed: 0,
            to_report: Vec::new(),
        })
    }

    fn handle(&mut self, event: Event) -> anyhow::Result<()> {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            for effect in self.core.handle(2, event)? {
                match effect {
                    Effect::Persist { number, .. } => events.push(Event::Persisted(number)),
                    Effect::Deploy { connection, tasks } => {
                        let ids = tasks.iter().map(|task| pb::ExecutionId {
                            vertex_id: task.vertex_id.clone(),
                            subtask: task.subtask,
                            generation: task.generation,
                        });
                        let ids: Vec<pb::ExecutionId> = ids.collect();
                        self.deployed += u32::try_from(ids.len())?;
                        self.to_report.push((connection.clone(), ids.clone()));
                        events.push(Event::TasksSubmitted {
                            connection,
                            tasks: ids,
                            outcome: SubmitOutcome::Answered(Vec::new()),
                        });
                    }
                    Effect::Declare { .. } | Effect::AnswerOffer { .. } => {}
                    other => bail!("nothing went wrong, and it wants {other:?}"),
                }
            }
            // Computed here because the actor also computes it after each event.
            let _ = self.core.next_deadline_ms();
        }
        Ok(())
    }
}

fn connection(number: usize) -> anyhow::Result<Connection> {
    Ok(Connection {
        task_manager: format!("simulated-{number:05}").parse()?,
        registration: Registration::new(1),
    })
}

fn registered(connection: &Connection) -> Event {
    let location = pb::TaskManagerLocation {
        resource_id: connection.task_manager.to_string(),
        incarnation: format!("{:016x}", 1),
        rpc_address: "127.0.0.1:50100".to_owned(),
        data_address: "127.0.0.1:50101".to_owned(),
    };
    Event::Registered {
        connection: connection.clone(),
        location,
        executions: Vec::new(),
        slots: Vec::new(),
        outputs: Vec::new(),
    }
}

fn offered(connection: &Connection, index: usize, slot: u32) -> Event {
    let allocation = AllocationId::from_bits((index as u128) << 64 | u128::from(slot));
    Event::SlotsOffered {
        connection: connection.clone(),
        slots: vec![pb::SlotOffer {
            allocation_id: allocation.to_string(),
            slot,
            profile: None,
        }],
    }
}

#[cfg(test)]
mod tests {
    use tanist_compile::{CompileOptions, JobBuilder};

    use super::*;

    #[test]
    fn a_job_comes_to_run_in_the_core_alone() -> anyhow::Result<()> {
        let job = JobBuilder::new("numbers").parallelism(12);
        let job = job.datagen("numbers", Some(1), None, 1, 1).discard("out");
        let graph = job.build().compile(&CompileOptions::default())?;
        assert!(of(graph, 12, 3)? > Duration::ZERO);
        Ok(())
    }
}
