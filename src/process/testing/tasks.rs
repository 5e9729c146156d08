//! Scripted tasks: they run until the test ends them, or finish by themselves after a while.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tanist_dataflow::{CheckpointProgress, CheckpointStatus, CoordinatorRequest, Requester};
use tanist_proto::id::{Generation, JobId, JobVertexId};
use tanist_proto::v1 as pb;
use tanist_proto::v1::ask_coordinator_response::Answer;
use tanist_proto::v1::trigger_answer::Answer as TriggerAnswer;
use tanist_task_executor::{RunningTask, TaskLauncher, TaskStart, TaskStatus};
use tokio::sync::{mpsc, oneshot, watch};

use super::history::{AttemptKey, Event};
use super::world::World;

#[derive(Debug, Clone)]
struct Running {
    life: String,
    status: Arc<watch::Sender<TaskStatus>>,
}

/// A running task, as far as it takes part in checkpoints.
#[derive(Debug, Clone)]
struct Saver {
    status: Arc<watch::Sender<CheckpointStatus>>,
    sources: Vec<AttemptKey>,
}

impl Saver {
    /// Takes up a number, unless it knows it. Some are declined.
    fn take_up(&self, attempt: &AttemptKey, number: u64) {
        let snapshot = pb::SubtaskSnapshot {
            vertex_id: attempt.vertex.clone(),
            subtask: attempt.subtask,
            ..pb::SubtaskSnapshot::default()
        };
        self.status.send_if_modified(|status| {
            let is_new = number > status.highest;
            if is_new {
                status.highest = number;
                status.progress = match number % 7 {
                    0 => CheckpointProgress::Declined("by chance".to_owned()),
                    _ => CheckpointProgress::Saved(Arc::new(snapshot)),
                };
            }
            is_new
        });
    }
}

/// All tasks of all TaskManagers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tasks {
    running: Arc<Mutex<BTreeMap<AttemptKey, Running>>>,
    durations: Arc<Mutex<BTreeMap<JobId, Duration>>>,
    /// Jobs whose tasks finish by themselves when all their sources have.
    followers: Arc<Mutex<BTreeSet<JobId>>>,
    finished: Arc<Mutex<BTreeSet<AttemptKey>>>,
    stubborn: Arc<Mutex<BTreeSet<JobId>>>,
    /// What running tasks have saved, and what each of them reads from.
    savers: Arc<Mutex<BTreeMap<AttemptKey, Saver>>>,
    /// Where the tasks of each TaskManager's life send their requests to coordinators.
    coordinator_requests: Arc<Mutex<BTreeMap<String, mpsc::Sender<CoordinatorRequest>>>>,
}

impl Tasks {
    /// The running tasks of a job, each with its TaskManager's life.
    pub(crate) fn of(&self, job: JobId) -> Vec<(AttemptKey, String)> {
        let running = self.running.lock();
        let of_job = running.iter().filter(|(key, _)| key.job == job);
        of_job
            .map(|(key, running)| (key.clone(), running.life.clone()))
            .collect()
    }

    /// Makes tasks of this job ignore cancellations: they end with their process.
    pub(crate) fn ignore_cancellations(&self, job: JobId) {
        self.stubborn.lock().insert(job);
    }

    /// Makes tasks of this job that start later finish by themselves.
    pub(crate) fn finish_after(&self, job: JobId, time: Duration) {
        self.durations.lock().insert(job, time);
    }

    /// Makes tasks of this job that read others finish by themselves, some time after those have finished
    /// because the job is being stopped.
    pub(crate) fn follow_stopped_sources(&self, job: JobId) {
        self.followers.lock().insert(job);
    }

    /// A source takes up a number. So does each task that reads from sources all of which have.
    fn take_up(&self, source: &AttemptKey, number: u64) {
        let savers = self.savers.lock();
        let has_it = |attempt: &AttemptKey| {
            let saver = savers.get(attempt);
            saver.is_some_and(|saver| saver.status.borrow().highest >= number)
        };
        if let Some(saver) = savers.get(source) {
            saver.take_up(source, number);
        }
        for (reader, saver) in savers.iter() {
            let reads = saver.sources.contains(source);
            if reads && saver.sources.iter().all(has_it) {
                saver.take_up(reader, number);
            }
        }
    }

    fn may_follow(&self, attempt: &AttemptKey, sources: &[AttemptKey]) -> bool {
        let finished = self.finished.lock();
        self.followers.lock().contains(&attempt.job)
            && sources.iter().all(|source| finished.contains(source))
    }
}

/// A coordinator's answer to a task, or why there will be none.
pub(crate) type CoordinatorAnswer = Result<Answer, String>;

impl World {
    /// Sends a request of a running task's operator to its coordinator.
    pub(crate) fn ask(
        &self,
        attempt: &AttemptKey,
        operator: &str,
        number: u64,
    ) -> oneshot::Receiver<CoordinatorAnswer> {
        let (reply, answer) = oneshot::channel();
        let running = self.tasks.running.lock();
        let life = &running.get(attempt).expect("it runs").life;
        let request = CoordinatorRequest {
            requester: Requester {
                job: attempt.job,
                vertex: attempt.vertex.parse().expect("a vertex"),
                subtask: attempt.subtask,
                generation: Generation::new(attempt.generation),
                operator: operator.to_owned(),
            },
            number,
            reply,
        };
        let line = self.tasks.coordinator_requests.lock()[life].clone();
        line.try_send(request).expect("few questions wait");
        answer
    }

    /// Ends a task with this status.
    pub(crate) fn end_task(&self, attempt: &AttemptKey, status: TaskStatus) {
        let removed = self.tasks.running.lock().remove(attempt);
        self.tasks.savers.lock().remove(attempt);
        if let Some(running) = removed {
            self.note(Event::Ended(attempt.clone()));
            running.status.send_replace(status);
        }
    }

    /// Finishes all running tasks of a job.
    pub(crate) fn finish_tasks(&self, job: JobId) {
        for (attempt, _) in self.tasks.of(job) {
            self.finish_task(&attempt);
        }
    }

    pub(crate) fn finish_task(&self, attempt: &AttemptKey) {
        self.tasks.finished.lock().insert(attempt.clone());
        let committables = vec![committable(attempt)];
        self.end_task(attempt, TaskStatus::finished(committables));
    }
}

/// The output that a task's sink would have written.
pub(crate) fn committable(attempt: &AttemptKey) -> pb::Committable {
    let AttemptKey {
        job,
        vertex,
        subtask,
        generation,
    } = attempt;
    pb::Committable {
        pending_path: format!("/out/.pending/{job}/{vertex}-{subtask}-{generation}"),
        final_path: format!("/out/{job}/{vertex}-{subtask}"),
    }
}

/// Runs the tasks of one life of a TaskManager.
#[derive(Debug)]
pub(crate) struct ScriptedTasks {
    pub world: World,
    pub life: String,
}

impl TaskLauncher for ScriptedTasks {
    fn start(&self, task: TaskStart) -> Box<dyn RunningTask> {
        let attempt = AttemptKey {
            job: task.job,
            vertex: task.deployment.vertex_id.clone(),
            subtask: task.deployment.subtask,
            generation: task.deployment.generation,
        };
        let status = Arc::new(watch::Sender::new(TaskStatus::Running));
        self.world.note(Event::Started {
            attempt: attempt.clone(),
            task_manager: self.life.clone(),
            epoch: task.epoch.get(),
        });
        let restore = task.deployment.restore.as_ref();
        let number = restore.map_or(0, |restore| restore.number);
        if task.deployment.takes_checkpoints {
            let attempt = attempt.clone();
            self.world.note(Event::Restored { attempt, number });
        }
        let sources = sources_of(&task);
        let checkpoints = Arc::new(watch::Sender::new(CheckpointStatus {
            highest: number,
            ..CheckpointStatus::default()
        }));
        let saver = Saver {
            status: checkpoints.clone(),
            sources: sources.clone(),
        };
        self.world
            .tasks
            .savers
            .lock()
            .insert(attempt.clone(), saver);
        let running = Running {
            life: self.life.clone(),
            status: status.clone(),
        };
        self.world
            .tasks
            .running
            .lock()
            .insert(attempt.clone(), running);
        let duration = self.world.tasks.durations.lock().get(&task.job).copied();
        if let Some(duration) = duration {
            let (world, attempt) = (self.world.clone(), attempt.clone());
            tokio::spawn(async move {
                tokio::time::sleep(duration).await;
                world.finish_task(&attempt);
            });
        }
        Box::new(ScriptedTask {
            world: self.world.clone(),
            attempt,
            status,
            checkpoints,
            sources,
        })
    }

    fn release_task(&self, _job: JobId, _vertex: JobVertexId, _subtask: u32, _up_to: Generation) {}

    fn release_job(&self, _job: JobId, _up_to: Generation) {}

    fn kept_outputs(&self) -> watch::Receiver<usize> {
        watch::channel(0).1
    }

    fn coordinator_requests(&self) -> Option<mpsc::Receiver<CoordinatorRequest>> {
        let (line, coordinator_requests) = mpsc::channel(16);
        self.world
            .tasks
            .coordinator_requests
            .lock()
            .insert(self.life.clone(), line);
        Some(coordinator_requests)
    }
}

#[derive(Debug)]
struct ScriptedTask {
    world: World,
    attempt: AttemptKey,
    status: Arc<watch::Sender<TaskStatus>>,
    checkpoints: Arc<watch::Sender<CheckpointStatus>>,
    /// The tasks that it reads from; empty for a source.
    sources: Vec<AttemptKey>,
}

/// The subtasks that a task reads from. They are in its own region.
fn sources_of(task: &TaskStart) -> Vec<AttemptKey> {
    let edges = task.graph.edges.iter();
    let read = edges.filter(|edge| edge.target == task.deployment.vertex_id);
    let vertices = read.flat_map(|edge| {
        let mut vertices = task.graph.vertices.iter();
        vertices.find(|vertex| vertex.id == edge.source)
    });
    let subtasks = vertices.flat_map(|vertex| {
        (0..vertex.parallelism).map(|subtask| AttemptKey {
            job: task.job,
            vertex: vertex.id.clone(),
            subtask,
            generation: task.deployment.generation,
        })
    });
    subtasks.collect()
}

impl RunningTask for ScriptedTask {
    fn cancel(&self) {
        if self.world.tasks.stubborn.lock().contains(&self.attempt.job) {
            return;
        }
        self.world.end_task(&self.attempt, TaskStatus::Canceled);
    }

    fn stop(&self) {
        // It is asked again with each heartbeat.
        if self.sources.is_empty() || self.world.tasks.may_follow(&self.attempt, &self.sources) {
            self.world.finish_task(&self.attempt);
        }
    }

    fn metrics(&self) -> pb::TaskMetrics {
        pb::TaskMetrics::default()
    }

    fn status(&self) -> watch::Receiver<TaskStatus> {
        self.status.subscribe()
    }

    fn trigger(&self, barrier: pb::CheckpointBarrier) -> TriggerAnswer {
        self.world.tasks.take_up(&self.attempt, barrier.number);
        TriggerAnswer::Injected(pb::Ack {})
    }

    fn checkpoints(&self) -> watch::Receiver<CheckpointStatus> {
        self.checkpoints.subscribe()
    }
}

impl Drop for ScriptedTask {
    fn drop(&mut self) {
        self.world.end_task(&self.attempt, TaskStatus::Canceled);
    }
}
