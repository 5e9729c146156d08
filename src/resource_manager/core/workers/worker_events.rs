//! Handles events about workers: results of the driver, messages of the workers, and results of writes. Pure, a
//! part of [`super`].

use std::time::Duration;

use tanist_ha::clock::Uptime;
use tanist_proto::id::ResourceId;

use super::super::LogLine;
use super::{Admission, Effect, Worker, WorkerState, Workers};
use crate::workers::{DriverError, Found};

/// Delay before a driver that failed to list workers is asked again.
const RECOVERY_RETRY: Duration = Duration::from_secs(1);
/// How long a worker that said goodbye may take to end.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(30);

impl Workers {
    /// Handles the driver's list of workers, or its failure.
    pub(crate) fn recovered(
        &mut self,
        now: Uptime,
        answer: Result<Vec<(ResourceId, Found)>, DriverError>,
    ) {
        let found = match answer {
            Ok(found) => found,
            Err(error) => {
                self.trouble = Some(error.to_string());
                self.log.push(LogLine::WorkersUnknown { error });
                self.recover_at = Some(now + RECOVERY_RETRY);
                return;
            }
        };
        self.is_recovered = true;
        self.trouble = None;
        for (id, found) in found {
            let deadline = now + self.options.registration_timeout;
            match (self.workers.get_mut(&id), found) {
                (None, Found::Running) => {
                    let worker = id.clone();
                    self.log.push(LogLine::WorkerUnrecorded { worker });
                    let record = self.new_record();
                    let worker = Worker {
                        state: WorkerState::Stopping { is_removed: false },
                        record,
                        requested_at: None,
                    };
                    self.workers.insert(id.clone(), worker);
                    self.effects.push(Effect::RemoveRecord(id));
                }
                (None, Found::Gone | Found::Unseen) => {}
                (Some(worker), Found::Running) => {
                    if worker.state == WorkerState::Recorded {
                        worker.state = WorkerState::Pending { deadline };
                    }
                    self.effects.push(Effect::Watch(id));
                }
                (Some(worker), Found::Unseen) => {
                    if worker.state == WorkerState::Recorded {
                        worker.state = WorkerState::Unseen { deadline };
                    }
                }
                (Some(worker), Found::Gone) => match worker.state {
                    WorkerState::Recorded | WorkerState::RecordedReleasing { .. } => {
                        let worker = id.clone();
                        self.log.push(LogLine::WorkerGone { worker });
                        self.stop(&id);
                    }
                    // It sent a message meanwhile, or is being started.
                    WorkerState::Requested { .. }
                    | WorkerState::Unseen { .. }
                    | WorkerState::Pending { .. }
                    | WorkerState::Registered { .. }
                    | WorkerState::Releasing { .. }
                    | WorkerState::Leaving { .. }
                    | WorkerState::Stopping { .. } => {}
                },
            }
        }
        // Workers that the driver did not mention can't be watched. And workers being released, even silent ones,
        // get a deadline.
        let deadline = now + self.options.registration_timeout;
        for worker in self.workers.values_mut() {
            if worker.state == WorkerState::Recorded {
                worker.state = WorkerState::Unseen { deadline };
            } else if worker.state == (WorkerState::RecordedReleasing { deadline: None }) {
                let deadline = Some(deadline);
                worker.state = WorkerState::RecordedReleasing { deadline };
            }
        }
    }

    /// Handles the result of a start.
    pub(crate) fn started(
        &mut self,
        now: Uptime,
        id: &ResourceId,
        answer: Result<(), DriverError>,
    ) {
        let deadline = now + self.options.registration_timeout;
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        match answer {
            Ok(()) => {
                if matches!(worker.state, WorkerState::Requested { .. }) {
                    worker.state = WorkerState::Pending { deadline };
                }
                self.effects.push(Effect::Watch(id.clone()));
            }
            Err(error) => self.fail(now, id, &error.to_string()),
        }
    }

    /// Handles the end of a worker's process.
    pub(crate) fn ended(&mut self, now: Uptime, id: &ResourceId, how: &str) {
        let Some(worker) = self.workers.get(id) else {
            return;
        };
        match worker.state {
            WorkerState::Requested { .. } | WorkerState::Recorded | WorkerState::Pending { .. } => {
                self.fail(now, id, &format!("it ended before it registered: {how}"));
            }
            WorkerState::Releasing { .. }
            | WorkerState::RecordedReleasing { .. }
            | WorkerState::Leaving { .. } => {
                self.log.push(LogLine::WorkerEnded {
                    worker: id.clone(),
                    how: how.to_owned(),
                });
                self.stop(id);
            }
            WorkerState::Registered { .. } | WorkerState::Unseen { .. } => {
                self.log.push(LogLine::WorkerDied {
                    worker: id.clone(),
                    how: how.to_owned(),
                });
                self.stop(id);
            }
            WorkerState::Stopping { .. } => {}
        }
    }

    /// Handles the registration of a TaskExecutor that says it is a worker.
    pub(crate) fn register(&mut self, id: &ResourceId, slots: u32) -> Admission {
        let Some(worker) = self.workers.get_mut(id) else {
            return Admission::Unknown;
        };
        let wanted = worker.record.slots;
        if wanted != slots && wanted != 0 {
            self.log.push(LogLine::WorkerSlotsDiffer {
                worker: id.clone(),
                slots,
                wanted,
            });
        }
        match worker.state {
            WorkerState::Stopping { is_removed: true } => Admission::Unknown,
            WorkerState::Stopping { is_removed: false } => Admission::Undecided,
            // It is asked to leave once that is durable.
            WorkerState::Releasing { is_recorded } => Admission::Welcome {
                is_releasing: is_recorded,
            },
            WorkerState::RecordedReleasing { .. } => {
                worker.state = WorkerState::Releasing { is_recorded: true };
                Admission::Welcome { is_releasing: true }
            }
            WorkerState::Requested { .. }
            | WorkerState::Recorded
            | WorkerState::Unseen { .. }
            | WorkerState::Pending { .. }
            | WorkerState::Registered { .. }
            | WorkerState::Leaving { .. } => {
                worker.state = WorkerState::Registered { idle_since: None };
                self.trouble = None;
                Admission::Welcome {
                    is_releasing: false,
                }
            }
        }
    }

    /// Handles the goodbye of a registered TaskExecutor. Its process is expected to end by itself.
    pub(crate) fn left(&mut self, now: Uptime, id: &ResourceId) {
        if let Some(worker) = self.workers.get_mut(id)
            && !matches!(worker.state, WorkerState::Stopping { .. })
        {
            let deadline = now + LEAVE_TIMEOUT;
            worker.state = WorkerState::Leaving { deadline };
        }
    }

    /// Handles the loss of a registered TaskExecutor. It will get no more requests.
    pub(crate) fn lost(&mut self, id: &ResourceId) {
        if self.workers.contains_key(id) {
            self.stop(id);
        }
    }

    /// This process stood still and could receive nothing: extends all deadlines.
    pub(crate) fn put_off(&mut self, by: Duration) {
        let states = self.workers.values_mut().map(|worker| &mut worker.state);
        for deadline in states.filter_map(WorkerState::deadline_mut) {
            *deadline += by;
        }
    }

    /// Handles the result of writing a release: it is durable, or the store did not accept it.
    pub(crate) fn release_recorded(&mut self, id: &ResourceId, is_durable: bool) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        if worker.state == (WorkerState::Releasing { is_recorded: false }) {
            if is_durable {
                worker.state = WorkerState::Releasing { is_recorded: true };
                self.effects.push(Effect::AskToLeave(id.clone()));
            } else {
                worker.record.releasing = false;
                worker.state = WorkerState::Registered { idle_since: None };
            }
        }
    }

    /// Handles the durable removal of a worker's record: from here on the worker is unwanted.
    pub(crate) fn removed(&mut self, id: &ResourceId) {
        if let Some(worker) = self.workers.get_mut(id)
            && worker.state == (WorkerState::Stopping { is_removed: false })
        {
            worker.state = WorkerState::Stopping { is_removed: true };
            self.effects.push(Effect::Stop(id.clone()));
        }
    }

    /// Forgets a worker that is gone.
    pub(crate) fn stopped(&mut self, id: &ResourceId) {
        self.workers.remove(id);
    }
}
