//! Parses the slot reports and slot answers of TaskExecutors. Pure. A report with one id that can't be read is an error
//! as a whole; an answer that can't be read counts as a refusal, and the slot is requested again later.

use std::collections::BTreeMap;

use tanist_gateway::{GatewayError, GatewayResult};
use tanist_proto::id::{AllocationId, ResourceId};
use tanist_proto::resources::{ResourceProfile, Resources, WorkerResourceSpec};
use tanist_proto::v1 as pb;

use super::LogLine;
use super::slot_manager::{ReportedSlot, RequestOutcome, SlotHolder, SlotsReport, SlotsVersion};

/// The outcome of a slot request.
pub(super) fn slot_outcome(
    worker: &ResourceId,
    answer: pb::RequestSlotResponse,
    log: &mut Vec<LogLine>,
) -> RequestOutcome {
    use pb::request_slot_response::Answer;
    match answer.answer {
        Some(Answer::Allocated(_)) => RequestOutcome::Allocated,
        Some(Answer::Occupied(holder)) => match parse_holder(&holder) {
            Ok(holder) => RequestOutcome::Occupied(holder),
            Err(error) => {
                log.push(LogLine::BadSlotAnswer {
                    task_manager: worker.clone(),
                    error,
                });
                RequestOutcome::Refused
            }
        },
        Some(Answer::Refused(reason)) => {
            log.push(LogLine::SlotRefused {
                task_manager: worker.clone(),
                reason,
            });
            RequestOutcome::Refused
        }
        None => RequestOutcome::Refused,
    }
}

/// The slots in a report. `are_all`: whether the report has all slots.
pub(super) fn parse_report(report: pb::SlotReport, are_all: bool) -> GatewayResult<SlotsReport> {
    let slot = |status: pb::SlotStatus| {
        Ok(ReportedSlot {
            number: status.slot,
            holder: status.allocation.as_ref().map(parse_holder).transpose()?,
            profile: ResourceProfile::from_message(status.profile.as_ref()),
        })
    };
    let slots = report.slots.into_iter().map(slot);
    Ok(SlotsReport {
        slots: slots.collect::<GatewayResult<_>>()?,
        version: SlotsVersion(report.version),
        are_all,
    })
}

/// Number of tasks in each allocation.
pub(super) type TaskCounts = BTreeMap<AllocationId, u32>;

/// The task counts in a report.
pub(super) fn task_counts(report: &pb::SlotReport) -> TaskCounts {
    let count = |status: &pb::SlotStatus| {
        let allocation = status.allocation.as_ref()?;
        Some((allocation.allocation_id.parse().ok()?, status.tasks))
    };
    report.slots.iter().filter_map(count).collect()
}

/// The resources of a registering TaskExecutor. If it does not report them, it has only its default slots.
pub(super) fn worker_of(request: &pb::RegisterTaskExecutorRequest) -> WorkerResourceSpec {
    let reported = request.slot_report.as_ref().map_or(0, |it| it.slots.len());
    let slots = match request.number_of_slots {
        0 => u32::try_from(reported).unwrap_or(u32::MAX),
        slots => slots,
    };
    let default_slot = request.default_slot_profile.as_ref().map(Resources::from);
    let of_slots = || default_slot.unwrap_or_default().times(slots);
    let total = request.total_profile.as_ref().map(Resources::from);
    WorkerResourceSpec::new(total.unwrap_or_else(of_slots), slots)
}

fn parse_holder(allocation: &pb::SlotAllocation) -> GatewayResult<SlotHolder> {
    let bad = |error| GatewayError::Invalid(format!("{error}"));
    Ok(SlotHolder {
        job: allocation.job_id.parse().map_err(bad)?,
        allocation: allocation.allocation_id.parse().map_err(bad)?,
    })
}
