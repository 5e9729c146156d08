//! High availability for clients: election status, history of terms, and handover of leadership.

use tanist_rest_model::{HaStatusInfo, LeaderInfo, TermHistory, TermList, TransferRequest, paths};

use super::error::ClientError;
use super::job_client::JobClient;
use super::rest_client::Request;

impl JobClient {
    /// Returns the election status.
    pub async fn ha_status(&self) -> Result<HaStatusInfo, ClientError> {
        self.fetch_json(&Request::get(paths::HA_STATUS)).await
    }

    /// Returns the recorded terms, newest first.
    pub async fn ha_history(&self) -> Result<Vec<TermHistory>, ClientError> {
        let body: TermList = self.fetch_json(&Request::get(paths::HA_HISTORY)).await?;
        Ok(body.terms)
    }

    /// Makes the leader of `epoch` hand over to `to`, or to the most current standby. Returns the leader after
    /// that. A repetition after success does nothing.
    pub async fn transfer_leadership(
        &self,
        epoch: u64,
        to: Option<&str>,
    ) -> Result<LeaderInfo, ClientError> {
        let wanted = TransferRequest {
            epoch: Some(epoch),
            to: to.map(str::to_owned),
        };
        self.fetch_json(&Request::post(paths::HA_TRANSFER, &wanted))
            .await
    }
}
