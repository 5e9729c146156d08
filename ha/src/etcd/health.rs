//! Health as etcd's servers report it, for display. Each endpoint is asked, so that an unavailable one is detected;
//! a question that no server answers is listed as unknown, and fails nothing else.

use std::collections::BTreeMap;
use std::time::Duration;

use etcd_client::{AlarmAction, AlarmType, GetOptions, ResponseHeader, StatusResponse};
use futures::future::join_all;
use tokio::time::timeout;

use super::client::{Connection, Position, Repeat};
use super::status::{Failure, classify, is_compacted};
use crate::store::health::{ServerRole, StoreHealth, StoreServer};

/// Timeout for one server.
const TIMEOUT: Duration = Duration::from_secs(1);

/// etcd's default quota. Servers before 3.6 don't report theirs.
const DEFAULT_QUOTA: u64 = 2 * 1024 * 1024 * 1024;
/// Number of old revisions above which etcd counts as not compacted, or rarely. All kept revisions count for
/// its quota.
const MANY_REVISIONS: u64 = 100_000;

/// The alarm for a database that has reached its quota.
const NO_SPACE: &str = "NOSPACE";
/// The alarm for members whose data differ.
const CORRUPT: &str = "CORRUPT";

/// Asks all endpoints; `latency` was measured before.
pub(super) async fn health(connection: &Connection, latency: Duration) -> StoreHealth {
    let positions = connection.all_positions();
    let query = positions
        .iter()
        .map(|position| status(connection, *position));
    let answers = join_all(query).await;
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
    let mut reported = None;
    for (position, answer) in positions.into_iter().zip(answers) {
        let endpoint = connection.endpoint(position);
        match answer {
            Ok(status) => {
                let id = status.header().map_or(0, ResponseHeader::member_id);
                let size = u64::try_from(status.db_size()).ok();
                health.size_bytes = health.size_bytes.max(size);
                // Servers before 3.6 don't report it.
                let quota = u64::try_from(status.db_size_quota()).ok();
                reported = reported.or(quota.filter(|quota| *quota > 0));
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
    let quota = reported.or(connection.options().quota_bytes);
    health.quota_bytes = Some(quota.unwrap_or(DEFAULT_QUOTA));
    health.quota_is_assumed = quota.is_none();
    match keeps_more_than(connection, MANY_REVISIONS).await {
        Ok(is_so) => health.revisions_kept = is_so.then_some(MANY_REVISIONS),
        Err(reason) => health
            .unknown
            .push(format!("whether etcd is compacted: {reason}")),
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
    health.advice = advice(&health).map(str::to_owned);
    health
}

/// The commands for an operator. The most urgent problem comes first, and only its advice is given.
fn advice(health: &StoreHealth) -> Option<&'static str> {
    let has_alarm = |name: &str| health.alarms.iter().any(|alarm| alarm == name);
    if has_alarm(NO_SPACE) {
        Some(
            "etcd is out of space: the leader goes on and deletes, new records are refused, and no standby can take over from it. \
             Make room: etcdctl alarm list; etcdctl endpoint status -w json (revision); etcdctl compact REVISION; \
             etcdctl defrag --cluster; etcdctl alarm disarm. Start etcd with --auto-compaction-retention, and with a larger \
             --quota-backend-bytes if that does not last",
        )
    } else if has_alarm(CORRUPT) {
        Some(
            "etcd's members disagree on their data, and it answers no reads or writes: the leader decides nothing new. \
             Find the odd member (etcdctl endpoint hashkv --cluster), replace it (etcdctl member remove, member add), \
             then etcdctl alarm disarm",
        )
    } else if health.is_nearly_full() || health.revisions_kept.is_some() {
        Some(
            "before etcd is full and refuses to write: compact and defragment it (etcdctl compact REVISION; etcdctl defrag \
             --cluster), start it with --auto-compaction-retention, or with a larger --quota-backend-bytes",
        )
    } else {
        None
    }
}

async fn status(connection: &Connection, position: Position) -> Result<StatusResponse, String> {
    let query = async || {
        let client = connection.client(position).await?;
        client.maintenance_client().status().await.map_err(classify)
    };
    let query = async {
        match query().await {
            Err(Failure::Token(_)) => {
                let renewed = connection.renew_token(position).await;
                renewed.map_err(|error| error.to_string())?;
                query()
                    .await
                    .map_err(|failure| connection.error_of(failure).to_string())
            }
            answer => answer.map_err(|failure| connection.error_of(failure).to_string()),
        }
    };
    let answer = timeout(TIMEOUT, query).await;
    answer.unwrap_or_else(|_| Err(format!("none within {TIMEOUT:?}")))
}

/// Whether more than `many` old revisions are kept: tries to read one of that age. No server reports whether
/// etcd is compacted regularly.
pub(super) async fn keeps_more_than(connection: &Connection, many: u64) -> Result<bool, String> {
    let call = connection.call(Repeat::Always, |client| {
        let key = connection.options().namespace.clone();
        async move {
            let mut client = client.kv_client();
            // A serializable read from any server: all of them are compacted alike.
            let read = || GetOptions::new().with_serializable().with_count_only();
            let newest = client.get(key.as_str(), Some(read())).await?;
            let newest = newest.header().map_or(0, ResponseHeader::revision);
            let old = newest.saturating_sub(i64::try_from(many).unwrap_or(i64::MAX));
            if old < 1 {
                return Ok(false);
            }
            match client.get(key, Some(read().with_revision(old))).await {
                Ok(_) => Ok(true),
                Err(error) if is_compacted(&error) => Ok(false),
                Err(error) => Err(error),
            }
        }
    });
    let answer = timeout(TIMEOUT, call).await;
    match answer {
        Ok(answer) => answer.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {TIMEOUT:?}")),
    }
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
            AlarmType::Nospace => NO_SPACE.to_owned(),
            AlarmType::Corrupt => CORRUPT.to_owned(),
            AlarmType::None => "NONE".to_owned(),
        })
        .collect();
    alarms.dedup();
    Ok(alarms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_alarm(alarm: &str) -> StoreHealth {
        StoreHealth {
            alarms: vec![alarm.to_owned()],
            ..StoreHealth::default()
        }
    }

    #[test]
    fn the_operators_commands_are_said_before_and_after_etcd_is_full() {
        assert_eq!(advice(&StoreHealth::default()), None);
        let filling = StoreHealth {
            size_bytes: Some(85),
            quota_bytes: Some(100),
            ..StoreHealth::default()
        };
        let said = advice(&filling).expect("it fills up");
        assert!(said.contains("etcdctl defrag"), "{said}");
        let uncompacted = StoreHealth {
            revisions_kept: Some(MANY_REVISIONS),
            ..StoreHealth::default()
        };
        let said = advice(&uncompacted).expect("it fills up");
        assert!(said.contains("--auto-compaction-retention"), "{said}");
        let said = advice(&with_alarm(NO_SPACE)).expect("it is full");
        assert!(said.contains("etcdctl alarm disarm"), "{said}");
        assert!(said.contains("no standby can take over"), "{said}");
        let said = advice(&with_alarm(CORRUPT)).expect("it is damaged");
        let is_right = said.contains("hashkv") && !said.contains("compact");
        assert!(is_right, "{said}");
    }
}
