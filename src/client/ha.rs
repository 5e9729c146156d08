//! High availability for clients: election status, history of terms, and handover of leadership.

use std::collections::BTreeMap;

use hyper::Method;
use serde::Deserialize;

use super::error::ClientError;
use super::job_client::JobClient;
use super::rest_client::Request;

/// Election status, as known to the JobManager that was asked.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HaStatusInfo {
    /// `etcd`, `zookeeper` or `embedded`.
    pub store: String,
    /// The process that was asked.
    pub process: String,
    /// The confirmed leader.
    pub leader: Option<LeaderInfo>,
    /// The latest term.
    pub term: TermInfo,
    /// Every JobManager.
    pub members: Vec<MemberInfo>,
    /// Why the members are unknown.
    #[serde(default)]
    pub members_error: Option<String>,
    /// Status of the store.
    #[serde(default)]
    pub store_health: Option<StoreInfo>,
    /// Why the store's status is unknown.
    #[serde(default)]
    pub store_error: Option<String>,
    /// Problems that an operator should look into.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// A leader.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeaderInfo {
    /// Epoch of its term.
    pub epoch: u64,
    /// Id of the process.
    pub process: String,
    /// `host:port` of its REST server.
    pub rest_address: Option<String>,
    /// Time of its confirmation, in milliseconds since 1970.
    pub since: u64,
}

/// The latest term.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TermInfo {
    /// `leading`, `suspended`, `recovering` or `none`.
    pub state: String,
    /// Epoch of the term.
    pub epoch: u64,
    /// The process that holds it.
    #[serde(default)]
    pub process: Option<String>,
    /// Time of its confirmation, in milliseconds since 1970, or -1.
    pub since: i64,
    /// Time at which the term entered this state, in milliseconds since 1970, or -1.
    pub state_since: i64,
}

/// A JobManager.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MemberInfo {
    /// Id of the process.
    pub process: String,
    /// Version of the process.
    pub version: String,
    /// `host:port` of its REST server.
    pub rest_address: Option<String>,
    /// Whether it leads.
    pub leads: bool,
    /// Its role, as it reports it.
    #[serde(default)]
    pub role: Option<String>,
    /// Its warm cache.
    #[serde(default)]
    pub cache: Option<CacheInfo>,
    /// How many milliseconds its clock is ahead of that of the process asked.
    #[serde(default)]
    pub clock_offset: Option<i64>,
    /// Permissions in the store that a leader needs and this process lacks, as texts; `None`: unknown.
    #[serde(default)]
    pub lacking_permissions: Option<Vec<String>>,
}

/// A warm cache.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CacheInfo {
    /// The store's change number that it has reached.
    pub change: Option<u64>,
    /// Number of changes that it is behind.
    pub behind: Option<u64>,
    /// Number of records.
    pub records: u64,
    /// Size of the records in bytes.
    pub bytes: u64,
    /// Number of records since the process started that differed from the store because of manual changes.
    #[serde(default)]
    pub differed: u64,
}

/// Status of the store.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct StoreInfo {
    /// Duration of a linearizable read, in milliseconds.
    pub latency: f64,
    /// Size of its data in bytes.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Size in bytes above which it accepts no writes.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// Whether the quota is assumed to be the store's default, because it was not reported.
    #[serde(default)]
    pub quota_assumed: bool,
    /// Alarms that it has raised.
    #[serde(default)]
    pub alarms: Vec<String>,
    /// Its servers.
    #[serde(default)]
    pub servers: Vec<StoreServerInfo>,
}

/// A server of the store.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct StoreServerInfo {
    /// Its name or address.
    pub name: String,
    /// `leader`, `follower`, `standalone`, `unknown` or `unreachable`.
    pub role: String,
}

/// A term, present or past.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TermHistory {
    /// Epoch of the term.
    pub epoch: u64,
    /// The process that led.
    pub process: String,
    /// Time of its confirmation, in milliseconds since 1970.
    pub since: u64,
    /// Duration so far, in milliseconds.
    pub duration: i64,
    /// How it ended, if it has and that is known.
    #[serde(default)]
    pub ended_how: Option<String>,
    /// How the end of the previous term was detected.
    #[serde(default)]
    pub detected_by: Option<String>,
    /// Number of recovered jobs.
    pub jobs: u64,
    /// Durations of the takeover's steps in milliseconds, by name, in the order of the steps.
    pub phases: BTreeMap<String, f64>,
    /// Number of tasks that continued to run.
    #[serde(default)]
    pub tasks_adopted: Option<u64>,
    /// Number of tasks that had to be restarted.
    #[serde(default)]
    pub tasks_restarted: Option<u64>,
    /// Whether the previous leader turned out to have been healthy.
    #[serde(default)]
    pub false_alarm: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct HistoryBody {
    terms: Vec<TermHistory>,
}

impl JobClient {
    /// Returns the election status.
    pub async fn ha_status(&self) -> Result<HaStatusInfo, ClientError> {
        self.ask(&Request::get("/v1/ha/status")).await
    }

    /// Returns the recorded terms, newest first.
    pub async fn ha_history(&self) -> Result<Vec<TermHistory>, ClientError> {
        let body: HistoryBody = self.ask(&Request::get("/v1/ha/history")).await?;
        Ok(body.terms)
    }

    /// Makes the leader of `epoch` hand over to `to`, or to the most current standby. Returns the leader after
    /// that. A repetition after success does nothing.
    pub async fn transfer_leadership(
        &self,
        epoch: u64,
        to: Option<&str>,
    ) -> Result<LeaderInfo, ClientError> {
        let wanted = serde_json::json!({"epoch": epoch, "to": to});
        let request = Request {
            method: Method::POST,
            headers: vec![("content-type", "application/json".to_owned())],
            body: wanted.to_string().into(),
            ..Request::get("/v1/ha/transfer")
        };
        self.ask(&request).await
    }
}
