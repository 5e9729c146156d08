//! The network of the simulation: requests and events arrive in any order, twice, or not at all.

use tanist_proto::v1 as pb;

use super::world::{Call, Request, World};
use crate::core::execution_graph::execution::is_terminal;
use crate::core::{Event, SubmitOutcome};

impl World {
    pub(super) fn register(&mut self, index: usize) {
        let (core_epoch, has_leader) = (self.epoch, self.core.is_some());
        let task_manager = &mut self.task_managers[index];
        if !has_leader {
            return;
        }
        task_manager.epoch = core_epoch;
        task_manager.registration += 1;
        self.report_registering(index);
        let task_manager = &self.task_managers[index];
        let event = Event::Registered {
            connection: task_manager.connection(),
            location: task_manager.location(),
            executions: task_manager.report(),
            slots: task_manager.offers(),
            outputs: task_manager.outputs(),
        };
        self.events.push((core_epoch, event));
    }

    /// A request arrives or is lost, and its answer arrives or is lost.
    pub(super) fn deliver(&mut self, request: Request, arrives: bool, is_answered: bool) {
        self.sent.push(request.clone());
        let Request {
            epoch,
            connection,
            call,
        } = request;
        let index = self
            .task_managers
            .iter()
            .position(|it| it.id == connection.task_manager);
        let index = index.expect("they stay");
        let task_manager = &mut self.task_managers[index];
        let is_current = arrives
            && epoch >= task_manager.epoch
            && connection.registration.get() == task_manager.registration;
        // A TaskExecutor that has registered again says so.
        let is_outdated = arrives && is_answered && !is_current && epoch >= task_manager.epoch;
        let is_stale = arrives && !is_current && !matches!(call, Call::Heartbeat(..));
        self.reached.stale_refused += u32::from(is_stale);
        let lost = "the answer was lost".to_owned();
        let event = match call {
            Call::Submit(tasks, stopping) => {
                task_manager.is_told_to_stop |= is_current && stopping;
                let ids = tasks.iter().map(|task| pb::ExecutionId {
                    vertex_id: task.vertex_id.clone(),
                    subtask: task.subtask,
                    generation: task.generation,
                });
                let ids = ids.collect();
                let refused = if is_current {
                    task_manager.submit(&tasks, &self.blocking)
                } else {
                    Vec::new()
                };
                if is_current {
                    let is_refused = |task: &pb::TaskDeployment| {
                        let key = (&task.vertex_id, task.subtask);
                        refused.iter().any(|it| (&it.vertex_id, it.subtask) == key)
                    };
                    for task in tasks.iter().filter(|task| !is_refused(task)) {
                        self.begin_stream(index, task);
                    }
                }
                let outcome = if is_current && is_answered {
                    SubmitOutcome::Answered(refused)
                } else if is_outdated {
                    SubmitOutcome::Outdated
                } else {
                    SubmitOutcome::Unknown(lost)
                };
                Event::TasksSubmitted {
                    connection,
                    tasks: ids,
                    outcome,
                }
            }
            Call::Cancel(tasks) => {
                if is_current {
                    task_manager.cancel(&tasks);
                }
                let is_confirmed = is_current && is_answered;
                Event::TasksCancelled {
                    connection,
                    tasks,
                    is_confirmed,
                }
            }
            Call::Acknowledge(executions) => {
                if is_current {
                    for id in executions {
                        let key = (id.vertex_id, id.subtask);
                        if let Some(running) = task_manager.running.get_mut(&key) {
                            running.retain(|it| {
                                it.generation != id.generation || !is_terminal(it.state)
                            });
                        }
                    }
                }
                return;
            }
            Call::Free(allocations) => {
                if is_current {
                    task_manager.free(&allocations);
                }
                return;
            }
            Call::Heartbeat(requested_in, stopping) => {
                task_manager.is_told_to_stop |= is_current && stopping;
                if !is_current || !is_answered {
                    return;
                }
                let event = Event::HeartbeatAnswered {
                    connection: connection.clone(),
                    requested_in,
                    executions: task_manager.report(),
                    outputs: task_manager.outputs(),
                    allocations: task_manager.slots.iter().flatten().copied().collect(),
                };
                self.report_answering(index, &connection);
                event
            }
            Call::Checkpoint(effect) => {
                let from = (epoch, connection);
                return self.deliver_to_streams(from, effect, is_current, is_answered);
            }
        };
        self.events.push((epoch, event));
    }

    /// A duplicate of any earlier request arrives. Its answer is dropped.
    pub(super) fn deliver_late_duplicate(&mut self, pick: usize) {
        if self.sent.is_empty() {
            return;
        }
        let duplicate = self.sent.swap_remove(pick % self.sent.len());
        let events = self.events.len();
        let told = self.checkpoints.as_ref().map(|at| at.told_count());
        self.deliver(duplicate, true, false);
        self.events.truncate(events);
        if let (Some(at), Some(told)) = (&mut self.checkpoints, told) {
            at.forget_told_after(told);
        }
    }

    pub(super) fn heartbeats(&mut self) {
        let Some(core) = &self.core else {
            return;
        };
        for (connection, _, _) in core.connections() {
            let call = Call::Heartbeat(core.turn(), core.tells_to_stop());
            self.requests.push(Request {
                epoch: self.epoch,
                connection,
                call,
            });
        }
    }

    /// Delivers an event to the core, unless its term is over.
    pub(super) fn deliver_event(&mut self, pick: usize) {
        if self.events.is_empty() {
            return;
        }
        let (epoch, event) = self.events.remove(pick % self.events.len());
        if epoch == self.epoch {
            self.hear(event);
        }
    }
}
