//! Deadline of a submission, by the clock of the leader's term. The client reads that clock before each try,
//! from the JobManager that it then tries.
//!
//! This host's clock is never compared with another one's (ADR 29). A request that is late because of the
//! network or a frozen process has a deadline that has passed, or one of a term that is over: it has no effect.

use std::time::Duration;

use serde::Deserialize;
use tanist_ha::clock::{Clock, Moment, millis, wall_clock_ms};

use super::error::ClientError;
use super::job_client::{JobClient, parse};
use super::rest_client::{Answer, Failure, Request};

/// Answer of `/ha/time`.
#[derive(Debug, Deserialize)]
struct TimeBody {
    epoch: u64,
    now: u64,
    longest: u64,
}

impl JobClient {
    /// Sends a submission, each try with a deadline, until a JobManager answers it or the timeout is over.
    pub(super) async fn send_with_deadline(
        &self,
        request: &Request,
    ) -> Result<Answer, ClientError> {
        let give_up = Clock::Boottime.now().after(self.rest().options().timeout);
        self.rest()
            .ask_around(async |address, patience| {
                self.try_until(address, request, give_up, patience).await
            })
            .await
    }

    async fn try_until(
        &self,
        address: &str,
        request: &Request,
        give_up: Moment,
        patience: Duration,
    ) -> Result<Answer, Failure> {
        let asking = Request::get("/v1/ha/time");
        let time = match self.rest().try_at(address, &asking, patience).await {
            Ok(answer) => Some(parse::<TimeBody>(&asking, &answer).map_err(Failure::Final)?),
            // An earlier version of the JobManager, or of the leader behind it: it compares a deadline with its
            // own clock. Any other refusal of the time must not prevent the submission; its answer is the
            // result.
            Err(Failure::Final(ClientError::Refused { .. })) => None,
            Err(failure) => return Err(failure),
        };
        let left = give_up.since(Clock::Boottime.now());
        let left_ms = millis(left);
        let mut request = request.clone();
        let until_ms = match &time {
            Some(time) => time.now.saturating_add(left_ms.min(time.longest)),
            None => wall_clock_ms().saturating_add(left_ms),
        };
        let headers = &mut request.headers;
        headers.push(("tanist-deadline", until_ms.to_string()));
        headers.extend(time.map(|time| ("tanist-deadline-epoch", time.epoch.to_string())));
        self.note_submission();
        self.rest().try_at(address, &request, patience).await
    }
}
