//! Connects the ResourceManager's core with the workers that it starts itself: passes registrations, slots and
//! requirements to [`super::workers`], which decides about workers, and applies the decisions to TaskExecutors.
//! Pure, a part of [`super`].

use std::collections::BTreeMap;

use tanist_ha::clock::Uptime;
use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

use super::packing::Room;
use super::task_executors::TaskExecutor;
use super::workers::WorkerEvent;
use super::workers::{self, Shortages};
use super::workers::{Admission, TaskExecutorView, Workers};
use super::{Effect, ResourceManagerCore};

impl ResourceManagerCore {
    /// The same core, with workers that it starts itself.
    #[must_use]
    pub(crate) fn with_workers(mut self, workers: Option<Workers>) -> ResourceManagerCore {
        if workers.is_some() {
            self.unfulfillable_jobs
                .wait_only(self.options.heartbeat_timeout);
        }
        self.workers_of_driver = workers;
        self.collect_worker_effects();
        self
    }

    /// The record of a worker to store.
    pub(crate) fn worker_record(&self, id: &ResourceId) -> Option<crate::workers::WorkerRecord> {
        self.workers_of_driver.as_ref()?.record_of(id).cloned()
    }

    /// Handles the result of an action on a worker.
    pub(super) fn worker_event(&mut self, now: Uptime, event: WorkerEvent) {
        if let WorkerEvent::Ended(id, how) = &event {
            // This is proof: no heartbeat timeout is needed.
            if let Some(to) = self.task_executors.connection(id) {
                let cause = format!("its process is gone: {how}");
                self.tell_gone(id, &cause);
                self.lose(now, &to, &cause);
            }
        }
        // The release failed, so slots may be requested from it again.
        if let WorkerEvent::ReleaseRecorded(id, false) = &event {
            let known = self.task_executors.get(id);
            let is_draining = known.is_some_and(|it| it.availability().is_draining);
            self.slots.set_draining(id, is_draining);
        }
        if let WorkerEvent::Stopped(id) = &event {
            self.forget(id);
        }
        if let Some(workers) = &mut self.workers_of_driver {
            workers.take_in(now, event);
        }
        self.collect_worker_effects();
        self.changed(now);
    }

    /// Forgets a worker that was stopped. Its id is never reused. Late messages of it may still come: without a
    /// record every registration is rejected, also one with a higher number.
    fn forget(&mut self, id: &ResourceId) {
        if self.task_executors.forget(id) {
            self.slots.forget_worker(id);
        }
    }

    /// Whether a TaskExecutor may register. `worker_of` says whether a driver has started it.
    pub(super) fn admit_worker(
        &mut self,
        id: &ResourceId,
        worker_of: &str,
        slots: u32,
    ) -> Admission {
        match &mut self.workers_of_driver {
            Some(workers) if !worker_of.is_empty() => {
                let admission = workers.register(id, slots);
                self.log.extend(workers.take_log());
                admission
            }
            Some(_) | None => Admission::Welcome {
                is_releasing: false,
            },
        }
    }

    /// Handles the end of a TaskExecutor that said goodbye or was lost.
    pub(super) fn worker_gone(&mut self, now: Uptime, id: &ResourceId, said_goodbye: bool) {
        if let Some(workers) = &mut self.workers_of_driver {
            if said_goodbye {
                workers.left(now, id);
            } else {
                workers.lost(id);
            }
        }
        self.collect_worker_effects();
    }

    /// The cluster ends: starts no more workers and releases all.
    pub(super) fn dismiss_workers(&mut self, now: Uptime) {
        if let Some(workers) = &mut self.workers_of_driver {
            workers.dismiss();
            self.changed(now);
        }
    }

    /// The workers, for display. `None`: no driver is configured.
    pub(crate) fn workers_overview(&self, now: Uptime, wall_ms: u64) -> Option<pb::WorkersInfo> {
        let workers = self.workers_of_driver.as_ref();
        workers.map(|workers| workers.overview(now, wall_ms))
    }

    /// Handles what is due for workers, and schedules a check if one is needed.
    pub(super) fn on_time_for_workers(&mut self, now: Uptime) {
        let Some(workers) = &mut self.workers_of_driver else {
            return;
        };
        let before = workers.next_deadline();
        let is_review_due = workers.on_time(now);
        if is_review_due || workers.next_deadline() != before {
            self.changed(now);
        }
        self.collect_worker_effects();
    }

    /// Starts and releases workers according to the slots, after matching.
    pub(super) fn review_workers(&mut self, now: Uptime) {
        let Some(known) = &self.workers_of_driver else {
            return;
        };
        let shortages = Shortages {
            needed: self.slots.shortages_by_job(),
            useful: self.slots.useful_by_job(),
            kept: self.slots.kept(),
        };
        let view = |(id, registered): (&ResourceId, &TaskExecutor)| {
            let (slots, free) = self.slots.slot_counts(id);
            let is_releasing = known.record_of(id).is_some_and(|record| record.releasing);
            let is_open = !registered.availability().is_draining && !is_releasing;
            let is_own = known.record_of(id).is_some();
            let is_useless =
                is_own && !is_releasing && free == slots && self.drained_host_of(id).is_some();
            let room = is_open.then(|| Room {
                free,
                left: self.slots.left(id),
                share: registered.spec().default_slot(),
            });
            let keeps_nothing = registered.kept_outputs().is_some_and(|(kept, version)| {
                kept == 0 && !version.is_before(self.slots.version_of(id))
            });
            let view = TaskExecutorView {
                slots: registered.spec().slots(),
                room,
                is_unused: (is_open || is_useless) && free == slots && keeps_nothing,
                is_useless,
            };
            (id.clone(), view)
        };
        let registered: BTreeMap<ResourceId, TaskExecutorView> =
            self.task_executors.iter().map(view).collect();
        if let Some(workers) = &mut self.workers_of_driver {
            let drained_host = self.drains.drained_host_of_workers();
            workers.set_drained_host(drained_host.map(str::to_owned));
            workers.review(now, shortages, &registered);
        }
        self.collect_worker_effects();
    }

    fn collect_worker_effects(&mut self) {
        let Some(workers) = &mut self.workers_of_driver else {
            return;
        };
        self.log.extend(workers.take_log());
        for effect in workers.take_effects() {
            match effect {
                workers::Effect::Release(id) => {
                    // No slots may be assigned there meanwhile.
                    self.slots.set_draining(&id, true);
                    self.effects
                        .push(Effect::Worker(workers::Effect::Release(id)));
                }
                workers::Effect::AskToLeave(id) => {
                    self.task_executors.release(&id);
                    self.send_heartbeat(&id);
                }
                other => self.effects.push(Effect::Worker(other)),
            }
        }
    }
}
