//! The body of `/ha/status`: who leads, who could, and how the JobManager stands that was asked.

use std::collections::BTreeMap;

use serde::Serialize;
use tanist_ha::election::{LeaderInformation, Member};

use crate::process::{HaStatus, Role};

/// `/ha/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct HaStatusBody {
    /// `etcd`, `zookeeper` or `embedded`.
    pub store: &'static str,
    /// The process that was asked.
    pub process: String,
    /// How it stands.
    pub role: &'static str,
    /// The youngest epoch that it has heard of; the leader's, or that of a successor who has yet to recover.
    pub epoch: u64,
    /// Tells the cluster from another one that its store held before.
    pub cluster_incarnation: Option<String>,
    /// The confirmed leader; `null` while there is none.
    pub leader: Option<LeaderBody>,
    /// Every JobManager.
    pub members: Vec<MemberBody>,
    /// Why the members are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members_error: Option<String>,
}

/// The leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct LeaderBody {
    /// Its term.
    pub epoch: u64,
    /// The process.
    pub process: String,
    /// `host:port` of its REST server.
    pub rest_address: Option<String>,
    /// `host:port` of its RPC server.
    pub rpc_address: Option<String>,
    /// When it was confirmed, in milliseconds since 1970.
    pub since: u64,
}

/// A JobManager.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct MemberBody {
    /// The process.
    pub process: String,
    /// Tells this start of it from earlier ones.
    pub incarnation: String,
    /// `host:port` of its REST server.
    pub rest_address: Option<String>,
    /// `host:port` of its RPC server.
    pub rpc_address: Option<String>,
    /// Its version.
    pub version: String,
    /// Whether it is the leader.
    pub leads: bool,
}

/// A role in a word.
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Connecting => "connecting",
        Role::Standby => "standby",
        Role::Recovering => "recovering",
        Role::Leading => "leading",
        Role::Suspended => "suspended",
        Role::Refused => "refused",
    }
}

fn address(addresses: &BTreeMap<String, String>, interface: &str) -> Option<String> {
    addresses.get(interface).cloned()
}

impl From<&LeaderInformation> for LeaderBody {
    fn from(leader: &LeaderInformation) -> LeaderBody {
        LeaderBody {
            epoch: leader.epoch.get(),
            process: leader.process.to_string(),
            rest_address: address(&leader.addresses, "rest"),
            rpc_address: address(&leader.addresses, "rpc"),
            since: leader.since_ms,
        }
    }
}

impl HaStatusBody {
    /// What one JobManager knows.
    pub fn new(status: &HaStatus) -> HaStatusBody {
        let leader = status.leader.leader.as_ref();
        let body = |member: &Member| MemberBody {
            process: member.process.to_string(),
            incarnation: member.incarnation.clone(),
            rest_address: address(&member.addresses, "rest"),
            rpc_address: address(&member.addresses, "rpc"),
            version: member.version.clone(),
            leads: leader.is_some_and(|leader| leader.process == member.process),
        };
        let (members, members_error) = match &status.members {
            Ok(members) => (members.iter().map(body).collect(), None),
            Err(error) => (Vec::new(), Some(error.clone())),
        };
        let incarnation = status.leader.incarnation.as_ref();
        HaStatusBody {
            store: status.store,
            process: status.process.to_string(),
            role: role_name(status.role),
            epoch: status.leader.epoch.get(),
            cluster_incarnation: incarnation.map(ToString::to_string),
            leader: leader.map(LeaderBody::from),
            members,
            members_error,
        }
    }
}
