//! The deadline of a submission, as given by its headers, and its form in the request to the leader.
//!
//! No clocks of two hosts are compared (ADR 29). A client that asked for the time of the leader's term gives the
//! deadline by that clock, together with the epoch; both go to the leader unchanged. For a client that gives none, this
//! process counts by its own clock for how long it has held the submission, and each attempt gives the leader the rest
//! by the leader's clock.

use std::time::Duration;

use axum::http::HeaderMap;
use tanist_gateway::{DispatcherGateway, GatewayResult};
use tanist_ha::clock::{Clock, Moment, millis};
use tanist_proto::v1 as pb;
use tanist_rest_model::headers::{DEADLINE, DEADLINE_EPOCH};

use super::error::RestError;
use super::extract::header_text;
use super::server::RestServerOptions;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Deadline {
    /// A time by the clock of this term.
    OfTerm { epoch: u64, until_ms: u64 },
    /// A time by the clock of this host.
    Here { until: Moment },
}

impl Deadline {
    /// The deadline in the headers; without one, the default.
    pub(super) fn of(
        headers: &HeaderMap,
        options: &RestServerOptions,
    ) -> Result<Deadline, RestError> {
        let until_ms = number(headers, DEADLINE, "time in milliseconds")?;
        let epoch = number(headers, DEADLINE_EPOCH, "epoch")?;
        match (until_ms, epoch) {
            (Some(until_ms), Some(epoch)) if epoch > 0 && until_ms > 0 => {
                Ok(Deadline::OfTerm { epoch, until_ms })
            }
            (None, None) => Ok(Deadline::Here {
                until: Clock::Boottime.now().after(options.submission_timeout),
            }),
            (Some(_), _) | (_, Some(_)) => Err(RestError::bad_request(
                "`Tanist-Deadline` is by the clock of the term that `Tanist-Deadline-Epoch` names, as `GET /ha/time` tells both: \
                 one needs the other, and both are above 0",
            )),
        }
    }

    /// Time that is left for work before the submission.
    pub(super) fn left(self, options: &RestServerOptions) -> Duration {
        match self {
            Deadline::OfTerm { .. } => options.submission_timeout,
            Deadline::Here { until } => until.since(Clock::Boottime.now()),
        }
    }

    /// Whether only the client can give another deadline.
    pub(super) fn is_clients(self) -> bool {
        matches!(self, Deadline::OfTerm { .. })
    }

    /// The request with this deadline, for one attempt with this leader.
    pub(super) async fn in_request(
        self,
        request: pb::SubmitJobRequest,
        leader: &dyn DispatcherGateway,
    ) -> GatewayResult<pb::SubmitJobRequest> {
        let (deadline_ms, deadline_epoch) = match self {
            Deadline::OfTerm { epoch, until_ms } => (until_ms, epoch),
            Deadline::Here { until } => {
                let time = leader.tell_term_time(pb::TermTimeRequest {}).await?;
                let left_ms = millis(until.since(Clock::Boottime.now()));
                let until_ms = time.now_ms.saturating_add(left_ms.min(time.longest_ms));
                (until_ms, time.epoch)
            }
        };
        Ok(pb::SubmitJobRequest {
            deadline_ms,
            deadline_epoch,
            ..request
        })
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
