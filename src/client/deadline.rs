//! Deadline of a submission, by the clock of the leader's term. The client reads that clock before each try,
//! from the JobManager that it then tries.
//!
//! This host's clock is never compared with another one's (ADR 29). A request that is late because of the
//! network or a frozen process has a deadline that has passed, or one of a term that is over: it has no effect.

use std::time::Duration;

use tanist_ha::clock::{Clock, Moment, millis};
use tanist_rest_model::{TermTime, headers, paths};

use super::error::ClientError;
use super::job_client::{JobClient, parse};
use super::rest_client::{Answer, Failure, Request};

impl JobClient {
    /// Sends a submission, each try with a deadline, until a JobManager answers it or the timeout is over.
    pub(super) async fn send_with_deadline(
        &self,
        request: &Request,
    ) -> Result<Answer, ClientError> {
        let give_up = Clock::Boottime.now().after(self.rest().options().timeout);
        self.rest()
            .try_each(async |address, timeout| {
                self.try_until(address, request, give_up, timeout).await
            })
            .await
    }

    async fn try_until(
        &self,
        address: &str,
        request: &Request,
        give_up: Moment,
        timeout: Duration,
    ) -> Result<Answer, Failure> {
        let asking = Request::get(paths::HA_TIME);
        let answer = self.rest().try_at(address, &asking, timeout).await?;
        let time: TermTime = parse(&asking, &answer).map_err(Failure::Final)?;
        let left_ms = millis(give_up.since(Clock::Boottime.now()));
        let until_ms = time.now.saturating_add(left_ms.min(time.longest));
        let mut request = request.clone();
        request.headers.extend([
            (headers::DEADLINE, until_ms.to_string()),
            (headers::DEADLINE_EPOCH, time.epoch.to_string()),
        ]);
        self.note_submission();
        self.rest().try_at(address, &request, timeout).await
    }
}
