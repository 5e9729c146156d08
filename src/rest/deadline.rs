//! The deadline of a submission, as given by its headers, and its form in the request to the leader.
//!
//! Clocks of two hosts are not compared where that can be avoided (ADR 29). A client that asked for the time of
//! the leader's term gives the deadline by that clock, and the epoch with it; both are forwarded unchanged. For
//! other clients, this process counts the time that it held the submission by its own clock, and each attempt
//! sends the remaining time by the leader's clock.

use std::time::Duration;

use axum::http::HeaderMap;
use tanist_ha::clock::{Clock, Moment, millis, wall_clock_ms};
use tanist_proto::v1 as pb;

use super::error::RestError;
use super::extract::header_text;
use super::server::RestServerOptions;
use crate::gateway::{DispatcherGateway, GatewayError, GatewayResult};

const DEADLINE: &str = "tanist-deadline";
const EPOCH: &str = "tanist-deadline-epoch";

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deadline {
    /// A time by the clock of this term.
    OfTerm { epoch: u64, until_ms: u64 },
    /// A time by the clock of this host.
    Here { until: Moment },
    /// It had passed on arrival, by the wall clock of this host: the leader decides, as the job may be known.
    Passed { until_ms: u64 },
}

impl Deadline {
    /// The deadline in the headers; without one, the default.
    pub(super) fn of(
        headers: &HeaderMap,
        options: &RestServerOptions,
    ) -> Result<Deadline, RestError> {
        let until_ms = number(headers, DEADLINE, "time in milliseconds since 1970")?;
        let epoch = number(headers, EPOCH, "epoch")?;
        let here = |left| Deadline::Here {
            until: Clock::Boottime.now().after(left),
        };
        Ok(match (until_ms, epoch) {
            (Some(until_ms), Some(epoch)) if epoch > 0 && until_ms > 0 => {
                Deadline::OfTerm { epoch, until_ms }
            }
            (_, Some(_)) => {
                return Err(RestError::bad_request(
                    "`Tanist-Deadline-Epoch` tells by which term's clock `Tanist-Deadline` is: both are above 0",
                ));
            }
            (Some(until_ms), None) => match until_ms.checked_sub(wall_clock_ms()) {
                Some(left) => here(Duration::from_millis(left)),
                None => Deadline::Passed { until_ms },
            },
            (None, None) => here(options.submission_timeout),
        })
    }

    /// Time that is left for work before the submission.
    pub(super) fn left(self, options: &RestServerOptions) -> Duration {
        match self {
            Deadline::OfTerm { .. } => options.submission_timeout,
            Deadline::Here { until } => until.since(Clock::Boottime.now()),
            Deadline::Passed { .. } => Duration::ZERO,
        }
    }

    /// Whether only the client can give another deadline.
    pub(super) fn is_clients(self) -> bool {
        matches!(self, Deadline::OfTerm { .. })
    }

    /// The request with this deadline, for one attempt with this leader.
    pub(super) async fn told(
        self,
        request: pb::SubmitJobRequest,
        leader: &dyn DispatcherGateway,
    ) -> GatewayResult<pb::SubmitJobRequest> {
        let (deadline_ms, deadline_epoch) = match self {
            Deadline::OfTerm { epoch, until_ms } => (until_ms, epoch),
            Deadline::Passed { until_ms } => (until_ms.max(1), 0),
            Deadline::Here { until } => {
                let time = term_time(leader).await?;
                let left = until.since(Clock::Boottime.now());
                let left_ms = millis(left);
                match time {
                    Some(time) => {
                        let left_ms = left_ms.min(time.longest_ms);
                        (time.now_ms.saturating_add(left_ms), time.epoch)
                    }
                    None => (wall_clock_ms().saturating_add(left_ms), 0),
                }
            }
        };
        Ok(pb::SubmitJobRequest {
            deadline_ms,
            deadline_epoch,
            ..request
        })
    }
}

/// The time by the clock of the leader's term; `None` if the leader is of an earlier version, which has no such
/// clock.
pub(super) async fn term_time(
    leader: &dyn DispatcherGateway,
) -> GatewayResult<Option<pb::TermTime>> {
    match leader.tell_term_time(pb::TermTimeRequest {}).await {
        Ok(time) => Ok(Some(time)),
        // An unknown call: it fails with this error for no other reason.
        Err(GatewayError::Internal(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn number(headers: &HeaderMap, name: &str, what: &str) -> Result<Option<u64>, RestError> {
    let Some(text) = header_text(headers, name)? else {
        return Ok(None);
    };
    let number = text.trim().parse();
    number
        .map(Some)
        .map_err(|_| RestError::bad_request(format!("`{name}: {text}` is no {what}")))
}
