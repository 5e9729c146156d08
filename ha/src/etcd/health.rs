//! What etcd's servers say of themselves. Each endpoint is asked, so that one that is away is seen.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmType, StatusResponse};
use futures::future::join_all;
use tokio::time::timeout;

use super::client::{Connection, Position, Repeat};
use super::status::{Failure, classify};
use crate::store::health::{ServerRole, StoreHealth, StoreServer};

/// How long one server may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks all endpoints; `latency` was measured before.
pub(super) async fn health(connection: &Connection, latency: Duration) -> StoreHealth {
    let positions = connection.all_positions();
    let asked = positions
        .iter()
        .map(|position| status(connection, *position));
    let answers = join_all(asked).await;
    let mut health = StoreHealth {
        latency,
        ..StoreHealth::default()
    };
    let names = match names(connection).await {
        Ok(names) => names,
        Err(reason) => {
            health
                .unknown
                .push(format!("the members of etcd: {reason}"));
            BTreeMap::new()
        }
    };
    let mut answered = Vec::new();
    for (position, answer) in positions.into_iter().zip(answers) {
        let endpoint = connection.endpoint(position);
        match answer {
            Ok(status) => {
                let id = status
                    .header()
                    .map_or(0, etcd_client::ResponseHeader::member_id);
                let size = u64::try_from(status.db_size()).ok();
                health.size_bytes = health.size_bytes.max(size);
                // Servers before 3.6 don't say it.
                let quota = u64::try_from(status.db_size_quota()).ok();
                health.quota_bytes = health.quota_bytes.or(quota.filter(|quota| *quota > 0));
                // Several endpoints may lead to one server.
                if !answered.contains(&id) {
                    answered.push(id);
                    health.servers.push(StoreServer {
                        name: names
                            .get(&id)
                            .cloned()
                            .unwrap_or_else(|| endpoint.to_owned()),
                        role: if status.leader() == id {
                            ServerRole::Leader
                        } else {
                            ServerRole::Follower
                        },
                        version: Some(status.version().to_owned()),
                    });
                }
            }
            Err(reason) => health.servers.push(StoreServer {
                name: endpoint.to_owned(),
                role: ServerRole::Unreachable(reason),
                version: None,
            }),
        }
    }
    let all_answered = health.servers.len() == answered.len();
    let others = names.into_iter().filter(|(id, _)| !answered.contains(id));
    if all_answered {
        health.servers.extend(others.map(|(_, name)| StoreServer {
            name,
            role: ServerRole::Unknown,
            version: None,
        }));
    }
    match alarms(connection).await {
        Ok(alarms) => health.alarms = alarms,
        Err(reason) => health.unknown.push(format!("etcd's alarms: {reason}")),
    }
    health
}

async fn status(connection: &Connection, position: Position) -> Result<StatusResponse, String> {
    let ask = async || {
        let client = connection.client(position).await?;
        client.maintenance_client().status().await.map_err(classify)
    };
    let asked = async {
        match ask().await {
            Err(Failure::Token(_)) => {
                let renewed = connection.renew_token(position).await;
                renewed.map_err(|error| error.to_string())?;
                ask()
                    .await
                    .map_err(|failure| connection.give_up(failure).to_string())
            }
            answer => answer.map_err(|failure| connection.give_up(failure).to_string()),
        }
    };
    let answer = timeout(PATIENCE, asked).await;
    answer.unwrap_or_else(|_| Err(format!("none within {PATIENCE:?}")))
}

/// The names of all members, by id.
async fn names(connection: &Connection) -> Result<BTreeMap<u64, String>, String> {
    let call = connection.call(Repeat::Always, |client| async move {
        client.cluster_client().member_list().await
    });
    let members = call.await.map_err(|error| error.to_string())?;
    let named = members.members().iter().map(|member| {
        let name = member.name();
        // A member that has not started yet has no name.
        let name = if name.is_empty() { "not started" } else { name };
        (member.id(), name.to_owned())
    });
    Ok(named.collect())
}

async fn alarms(connection: &Connection) -> Result<Vec<String>, String> {
    let call = connection.call(Repeat::Always, |client| async move {
        let mut client = client.maintenance_client();
        client.alarm(AlarmAction::Get, AlarmType::None, None).await
    });
    let answer = call.await.map_err(|error| error.to_string())?;
    let mut alarms: Vec<String> = answer
        .alarms()
        .iter()
        .map(|alarm| match alarm.alarm() {
            AlarmType::Nospace => "NOSPACE".to_owned(),
            AlarmType::Corrupt => "CORRUPT".to_owned(),
            AlarmType::None => "NONE".to_owned(),
        })
        .collect();
    alarms.dedup();
    Ok(alarms)
}
