//! Handler of slots and their jobs: allocates slots to jobs and offers them to the JobMasters, takes slots from jobs,
//! and ends jobs.
//!
//! - A slot becomes free only when nothing runs in it.
//! - A slot in which a task continues is not freed on request: the end of a task is decided in the store, by a
//!   generation, and arrives as a cancellation that names it.

use std::collections::BTreeSet;

use tanist_gateway::{GatewayError, GatewayResult, StoredGenerations};
use tanist_ha::clock::Uptime;
use tanist_proto::id::{AllocationId, JobId};
use tanist_proto::resources::ResourceProfile;
use tanist_proto::v1 as pb;
use tanist_proto::v1::request_slot_response::Answer;

use super::TaskExecutorCore;
use super::effect::{Effect, Target};
use super::executions::CancellationTimeouts;
use super::generation_check::StoredJob;
use super::isolation::IsolatedJobs;
use super::jobs::Jobs;
use super::lifecycle::Lifecycle;
use super::log_line::LogLine;
use super::messages::parse;
use super::output::Output;
use super::slot_table::{RequestAnswer, SlotHolder, SlotTable, allocation_message};

/// See the module.
#[derive(Debug)]
pub(super) struct SlotAllocation<'a> {
    slots: &'a mut SlotTable,
    jobs: &'a mut Jobs,
    isolated: &'a mut IsolatedJobs,
    lifecycle: &'a Lifecycle,
    output: &'a mut Output,
    /// For tasks that are cancelled.
    timeouts: CancellationTimeouts,
}

impl TaskExecutorCore {
    pub(super) fn slot_allocation(&mut self, now: Uptime) -> SlotAllocation<'_> {
        SlotAllocation {
            timeouts: self.cancellation_timeouts(now),
            slots: &mut self.slots,
            jobs: &mut self.jobs,
            isolated: &mut self.isolated,
            lifecycle: &self.lifecycle,
            output: &mut self.output,
        }
    }
}

impl SlotAllocation<'_> {
    /// Allocates a slot to a job. Returns the answer, and the job if the slot is to be offered to its JobMaster.
    pub(super) fn request(
        &mut self,
        request: &pb::RequestSlotRequest,
    ) -> GatewayResult<(Answer, Option<JobId>)> {
        let job: JobId = parse(&request.job_id)?;
        let allocation: AllocationId = parse(&request.allocation_id)?;
        let holder = SlotHolder { job, allocation };
        if let Some(reason) = self.lifecycle.slot_refusal(self.slots.is_held(holder)) {
            return Ok((Answer::Refused(reason.to_owned()), None));
        }
        if self.jobs.get(job).is_some_and(|known| known.is_ending()) {
            let reason = "the job is ending on this TaskManager".to_owned();
            return Ok((Answer::Refused(reason), None));
        }
        let wanted = ResourceProfile::from_message(request.profile.as_ref());
        Ok(match self.slots.request(request.slot, holder, &wanted) {
            RequestAnswer::Allocated { is_new: true } => {
                self.output.log(LogLine::SlotAllocated {
                    job,
                    allocation,
                    slot: request.slot,
                    profile: wanted,
                });
                self.jobs.get_or_add(job).offer(allocation);
                (Answer::Allocated(pb::Ack {}), Some(job))
            }
            RequestAnswer::Allocated { is_new: false } => (Answer::Allocated(pb::Ack {}), None),
            RequestAnswer::Occupied(present) => {
                (Answer::Occupied(allocation_message(present)), None)
            }
            RequestAnswer::Refused(reason) => (Answer::Refused(reason), None),
        })
    }

    /// Frees a slot in which no task continues, for the ResourceManager or for a JobMaster that returns slots of its
    /// job. No record in the store proves the request: the sender may be a leader that was suspended, or one that has
    /// forgotten its deployments. Returns the job that held the slot, if it is freed.
    pub(super) fn free(
        &mut self,
        from: Target,
        allocation: AllocationId,
        cause: &str,
    ) -> Option<JobId> {
        let job = self.slots.job_of(allocation)?;
        let known = self.jobs.get(job);
        let may_free = match from {
            Target::JobMaster(of) => {
                of == job && known.is_none_or(|it| !it.continues_in(allocation, self.output))
            }
            Target::ResourceManager => known.is_none_or(|it| {
                !it.connection().is_registered() && !it.executions().is_in_use(allocation)
            }),
        };
        if !may_free {
            return None;
        }
        self.output.log(LogLine::SlotFreed {
            job,
            allocation,
            cause: cause.to_owned(),
        });
        self.release(job, allocation);
        Some(job)
    }

    /// Handles the answer to an offer. What was not answered is offered again at `retry_at`. Returns the error of a
    /// failed call.
    pub(super) fn offer_answered(
        &mut self,
        job: JobId,
        run: u64,
        answer: GatewayResult<pb::OfferSlotsResponse>,
        retry_at: Uptime,
    ) -> Option<GatewayError> {
        let known = self.jobs.in_run(job, run)?;
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => {
                known.offer_failed(retry_at);
                return Some(error);
            }
        };
        let accepted = parse_all(&answer.accepted_allocation_ids);
        let rejected = parse_all(&answer.rejected_allocation_ids);
        let lost = known.offer_answered(&accepted, &rejected, retry_at, self.output);
        for allocation in accepted {
            self.slots.activate(allocation);
        }
        for allocation in lost {
            self.release(job, allocation);
        }
        None
    }

    /// Frees slots that no JobMaster has accepted in time.
    pub(super) fn free_expired(&mut self, now: Uptime) {
        for SlotHolder { job, allocation } in self.slots.expired(now) {
            let not_accepted = LogLine::SlotNotAccepted { job, allocation };
            self.output.log(not_accepted);
            self.release(job, allocation);
        }
    }

    /// Cancels the tasks in a slot, which is free after their end.
    fn release(&mut self, job: JobId, allocation: AllocationId) {
        if self.slots.release(allocation)
            && let Some(known) = self.jobs.get_mut(job)
        {
            known.lose_slot(allocation, self.timeouts, self.output);
        }
    }

    /// Cancels the tasks of a job and releases its slots. The job is forgotten after their end.
    pub(super) fn end_job(&mut self, job: JobId, cause: &str) {
        let known = self.jobs.get_mut(job);
        let Some(known) = known.filter(|known| !known.is_ending()) else {
            return;
        };
        let cause = cause.to_owned();
        self.output.log(LogLine::JobEnds { job, cause });
        known.end(self.timeouts, self.output);
        let target = Target::JobMaster(job);
        self.output.effect(Effect::StopRegistering(target));
        let held: Vec<AllocationId> = self.slots.held_by(job).collect();
        for allocation in held {
            self.slots.release(allocation);
        }
    }

    /// Ends all jobs.
    pub(super) fn end_all_jobs(&mut self, cause: &str) {
        for job in self.jobs.ids() {
            self.end_job(job, cause);
        }
    }

    /// Handles the store's answer about a job.
    pub(super) fn apply_stored(&mut self, stored: StoredJob) {
        let StoredJob {
            job,
            run,
            asked_at,
            generations,
        } = stored;
        let Some(known) = self.jobs.get_mut(job) else {
            return;
        };
        // If the job has registered meanwhile, its JobMaster decides; it may have started after the store was read.
        let is_as_asked = known.connection().run() == run;
        match generations {
            StoredGenerations::Present(regions) => {
                let timeouts = self.isolated.timeouts(job, self.timeouts);
                // While a superseded task runs, no answer extends the time of the job's tasks.
                if !known.cancel_superseded(&regions, timeouts, self.output) {
                    self.isolated.confirm(job, asked_at, self.output);
                }
            }
            StoredGenerations::Ended if is_as_asked => {
                self.end_job(job, "the store has its result");
            }
            StoredGenerations::Absent if is_as_asked => {
                self.end_job(job, "it is gone from the store");
            }
            StoredGenerations::Unreadable(reason) => {
                self.output.log(LogLine::StateUnreadable { job, reason });
            }
            StoredGenerations::Ended | StoredGenerations::Absent => {}
        }
    }

    /// Frees slots that are being released and in which nothing runs any more, with the files of jobs that have no
    /// other slot. Returns their states.
    pub(super) fn free_released(&mut self) -> Vec<pb::SlotStatus> {
        let freed = self
            .slots
            .free_released(|holder| self.jobs.is_in_use(holder));
        for (_, holder) in &freed {
            let known = self.jobs.get_mut(holder.job);
            if let Some(known) = known.filter(|_| !self.slots.is_used_by(holder.job)) {
                known.release_files(self.output);
            }
        }
        let numbers = freed.into_iter().map(|(number, _)| number);
        self.slots.statuses(numbers)
    }

    /// Forgets jobs that have ended, whose tasks have ended, and that have no slot.
    pub(super) fn forget_ended_jobs(&mut self) {
        let has_slot = |job| self.slots.is_used_by(job);
        self.jobs.forget_ended(has_slot, self.output);
        self.isolated.retain(self.jobs);
    }
}

fn parse_all(texts: &[String]) -> BTreeSet<AllocationId> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}
