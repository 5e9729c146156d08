//! What TaskExecutors say of their slots, taken out of the messages.

use tanist_proto::id::ResourceId;
use tanist_proto::v1 as pb;

use super::slot_manager::{RequestOutcome, SlotHolder};
use crate::gateway::{GatewayError, GatewayResult};

/// What a TaskExecutor's answer to a slot request means.
pub(super) fn slot_outcome(worker: &ResourceId, answer: pb::RequestSlotResponse) -> RequestOutcome {
    use pb::request_slot_response::Answer;
    match answer.answer {
        Some(Answer::Allocated(_)) => RequestOutcome::Allocated,
        Some(Answer::Occupied(holder)) => match parse_holder(&holder) {
            Ok(holder) => RequestOutcome::Occupied(holder),
            Err(error) => {
                tracing::warn!(task_manager = %worker, %error, "bad answer to a slot request");
                RequestOutcome::Refused
            }
        },
        Some(Answer::Refused(reason)) => {
            tracing::info!(task_manager = %worker, reason, "slot request was refused");
            RequestOutcome::Refused
        }
        None => RequestOutcome::Refused,
    }
}

/// The slots that a report names.
pub(super) fn parse_report(
    report: pb::SlotReport,
) -> GatewayResult<Vec<(u32, Option<SlotHolder>)>> {
    let slot = |status: pb::SlotStatus| {
        Ok((
            status.slot,
            status.allocation.as_ref().map(parse_holder).transpose()?,
        ))
    };
    report.slots.into_iter().map(slot).collect()
}

fn parse_holder(allocation: &pb::SlotAllocation) -> GatewayResult<SlotHolder> {
    let bad = |error| GatewayError::Invalid(format!("{error}"));
    Ok(SlotHolder {
        job: allocation.job_id.parse().map_err(bad)?,
        allocation: allocation.allocation_id.parse().map_err(bad)?,
    })
}
