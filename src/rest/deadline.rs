//! Until when a submission has an effect, as its headers tell it, and how the leader is told.
//!
//! No clock of two hosts is compared where that can be helped (ADR 29). A client that asked for the time of the leader's term names
//! the deadline by that clock and the epoch beside it; that goes to the leader as it is. For everybody else the time that this
//! process held the submission is counted by its own clock, and each try tells the leader what is left by the leader's clock.

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
    /// By the clock of this term.
    OfTerm { epoch: u64, until_ms: u64 },
    /// Then, by the clock of this host.
    Here { until: Moment },
    /// It had passed when it came, by the wall clock of this host: the leader decides, as the job may be known.
    Passed { until_ms: u64 },
}

impl Deadline {
    /// What the headers say; without any, what is usual.
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

    /// How long what has to be done before the submission may take.
    pub(super) fn left(self, options: &RestServerOptions) -> Duration {
        match self {
            Deadline::OfTerm { .. } => options.submission_timeout,
            Deadline::Here { until } => until.since(Clock::Boottime.now()),
            Deadline::Passed { .. } => Duration::ZERO,
        }
    }

    /// Whether only the client can name another one.
    pub(super) fn is_clients(self) -> bool {
        matches!(self, Deadline::OfTerm { .. })
    }

    /// The request with this deadline, for one try with this leader.
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

/// What the clock of the leader's term shows; none if the leader is of an earlier version, which has no such clock.
pub(super) async fn term_time(
    leader: &dyn DispatcherGateway,
) -> GatewayResult<Option<pb::TermTime>> {
    match leader.tell_term_time(pb::TermTimeRequest {}).await {
        Ok(time) => Ok(Some(time)),
        // A call that is not known: nothing else makes this one fail so.
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
