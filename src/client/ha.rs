//! High availability, as a client asks for it: how leadership stands, how earlier terms went, and handing it over.

use std::collections::BTreeMap;

use hyper::Method;
use serde::Deserialize;

use super::error::ClientError;
use super::job_client::JobClient;
use super::rest_client::Request;

/// How leadership stands, as the JobManager knows that was asked.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct HaStatusInfo {
    /// `etcd`, `zookeeper` or `embedded`.
    pub store: String,
    /// Who was asked.
    pub process: String,
    /// The confirmed leader.
    pub leader: Option<LeaderInfo>,
    /// The youngest term.
    pub term: TermInfo,
    /// Every JobManager.
    pub members: Vec<MemberInfo>,
    /// Why the members are not known.
    #[serde(default)]
    pub members_error: Option<String>,
    /// How the store is.
    #[serde(default)]
    pub store_health: Option<StoreInfo>,
    /// Why that is not known.
    #[serde(default)]
    pub store_error: Option<String>,
    /// What an operator should look after.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// A leader.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeaderInfo {
    /// Its term.
    pub epoch: u64,
    /// The process.
    pub process: String,
    /// `host:port` of its REST server.
    pub rest_address: Option<String>,
    /// When it was confirmed: milliseconds since 1970.
    pub since: u64,
}

/// The youngest term.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct TermInfo {
    /// `leading`, `suspended`, `recovering` or `none`.
    pub state: String,
    /// Its epoch.
    pub epoch: u64,
    /// Whose it is.
    #[serde(default)]
    pub process: Option<String>,
    /// Since when it is led: milliseconds since 1970, or -1.
    pub since: i64,
    /// Since when it stands so: milliseconds since 1970, or -1.
    pub state_since: i64,
}

/// A JobManager.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MemberInfo {
    /// The process.
    pub process: String,
    /// Its version.
    pub version: String,
    /// `host:port` of its REST server.
    pub rest_address: Option<String>,
    /// Whether it leads.
    pub leads: bool,
    /// How it stands by its own account.
    #[serde(default)]
    pub role: Option<String>,
    /// Its warm cache.
    #[serde(default)]
    pub cache: Option<CacheInfo>,
    /// By how many milliseconds its clock is ahead of that of who was asked.
    #[serde(default)]
    pub clock_offset: Option<i64>,
    /// What a leader must be allowed in the store and it is not, in words; `None`: not known.
    #[serde(default)]
    pub lacking_permissions: Option<Vec<String>>,
}

/// A warm cache.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct CacheInfo {
    /// The change that it stands at.
    pub change: Option<u64>,
    /// Changes that it is behind.
    pub behind: Option<u64>,
    /// Its records.
    pub records: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Records that somebody had changed in the store by hand, since the process began.
    #[serde(default)]
    pub differed: u64,
}

/// How the store is.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct StoreInfo {
    /// How long a linearizable read took, in milliseconds.
    pub latency: f64,
    /// Bytes of its data.
    #[serde(default)]
    pub size_bytes: Option<u64>,
    /// Bytes above which it takes no writes.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// Whether nobody said so, and that is the store's default.
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
    /// Its epoch.
    pub epoch: u64,
    /// Who led.
    pub process: String,
    /// When it was confirmed: milliseconds since 1970.
    pub since: u64,
    /// How long it lasted so far, in milliseconds.
    pub duration: i64,
    /// How it ended, if it has and anybody knows.
    #[serde(default)]
    pub ended_how: Option<String>,
    /// By what the end of the term before was detected.
    #[serde(default)]
    pub detected_by: Option<String>,
    /// Jobs that it recovered.
    pub jobs: u64,
    /// What the takeover took, in milliseconds by name, in the order of the steps.
    pub phases: BTreeMap<String, f64>,
    /// Tasks that went on running.
    #[serde(default)]
    pub tasks_adopted: Option<u64>,
    /// Tasks that had to be started anew.
    #[serde(default)]
    pub tasks_restarted: Option<u64>,
    /// Whether the leader before turned out to have been well.
    #[serde(default)]
    pub false_alarm: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct HistoryBody {
    terms: Vec<TermHistory>,
}

impl JobClient {
    /// How leadership stands.
    pub async fn ha_status(&self) -> Result<HaStatusInfo, ClientError> {
        self.ask(&Request::get("/v1/ha/status")).await
    }

    /// The terms that are remembered, newest first.
    pub async fn ha_history(&self) -> Result<Vec<TermHistory>, ClientError> {
        let body: HistoryBody = self.ask(&Request::get("/v1/ha/history")).await?;
        Ok(body.terms)
    }

    /// Has the leader of `epoch` hand over to `to`, or to the most current standby, and gives who leads then. Repeated after it
    /// came about it does nothing.
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
