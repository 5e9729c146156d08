//! Conversion of heartbeats between peers, and of queries about them, to and from messages. An unknown value
//! from another version gets the weakest meaning.

use std::time::Duration;

use tanist_ha::clock::millis;
use tanist_ha::detector::{
    LivenessQuery, PeerHeartbeat, Phase, Progress, Reply, Role, SchedulingAges,
};
use tanist_ha::election::{Epoch, HostIdentity, ProcessId};
use tanist_proto::v1 as pb;

/// Converts the heartbeat of a process of this cluster to a message.
pub(super) fn heartbeat_message(cluster_id: &str, heartbeat: PeerHeartbeat) -> pb::PeerHeartbeat {
    let role = match heartbeat.role {
        Role::Standby => pb::Role::Standby,
        Role::Leading(_) => pb::Role::Leading,
        Role::Suspended(_) => pb::Role::Suspended,
    };
    let phase = match heartbeat.progress.phase {
        Phase::Standby => pb::Phase::Standby,
        Phase::Recovering => pb::Phase::Recovering,
        Phase::Leading => pb::Phase::Leading,
    };
    pb::PeerHeartbeat {
        cluster_id: cluster_id.to_owned(),
        process: heartbeat.process.to_string(),
        incarnation: heartbeat.incarnation,
        role: role.into(),
        epoch: heartbeat.role.epoch().unwrap_or_default().get(),
        host: heartbeat
            .host
            .map(|host| host.to_string())
            .unwrap_or_default(),
        phase: phase.into(),
        done: heartbeat.progress.done,
        total: heartbeat.progress.total,
        cached_change: heartbeat.cached_change,
        witnesses: heartbeat.witnesses,
        gave_up_epoch: heartbeat.stalled_term.unwrap_or_default().get(),
        runtime_turn_age_ms: heartbeat.scheduling_ages.runtime.map(millis),
        dispatcher_turn_age_ms: heartbeat.scheduling_ages.dispatcher.map(millis),
        resource_manager_turn_age_ms: heartbeat.scheduling_ages.resource_manager.map(millis),
        since_ms: heartbeat.since_ms,
    }
}

/// Converts a heartbeat message for a process of the cluster `cluster_id`.
pub(super) fn heartbeat_of(cluster_id: &str, message: pb::PeerHeartbeat) -> PeerHeartbeat {
    let epoch = Epoch::new(message.epoch);
    let role = match message.role() {
        pb::Role::Standby => Role::Standby,
        pb::Role::Leading => Role::Leading(epoch),
        pb::Role::Suspended => Role::Suspended(epoch),
    };
    let phase = match message.phase() {
        pb::Phase::Standby => Phase::Standby,
        pb::Phase::Recovering => Phase::Recovering,
        pb::Phase::Leading => Phase::Leading,
    };
    // A process of another cluster at that address is never taken for one of ours, independent of its name and role.
    let (process, role) = if message.cluster_id == cluster_id {
        (message.process, role)
    } else {
        let foreign = format!("{}/{}", message.cluster_id, message.process);
        (foreign, Role::Standby)
    };
    PeerHeartbeat {
        process: ProcessId::new(process),
        incarnation: message.incarnation,
        role,
        host: Some(message.host)
            .filter(|host| !host.is_empty())
            .map(HostIdentity::new),
        progress: Progress {
            phase,
            done: message.done,
            total: message.total,
        },
        scheduling_ages: SchedulingAges {
            runtime: message.runtime_turn_age_ms.map(Duration::from_millis),
            dispatcher: message.dispatcher_turn_age_ms.map(Duration::from_millis),
            resource_manager: message
                .resource_manager_turn_age_ms
                .map(Duration::from_millis),
        },
        stalled_term: Some(Epoch::new(message.gave_up_epoch)).filter(|epoch| *epoch != Epoch::ZERO),
        cached_change: message.cached_change,
        witnesses: message.witnesses,
        since_ms: message.since_ms,
    }
}

/// Converts a query to a message.
pub(super) fn query_message(cluster_id: &str, query: &LivenessQuery) -> pb::AskAboutLeaderRequest {
    pb::AskAboutLeaderRequest {
        cluster_id: cluster_id.to_owned(),
        leader: query.leader.to_string(),
        epoch: query.epoch.get(),
        address: query.address.clone(),
        timeout_ms: millis(query.timeout),
    }
}

/// Converts a message to a query.
pub(super) fn query_of(message: pb::AskAboutLeaderRequest) -> LivenessQuery {
    LivenessQuery {
        leader: ProcessId::new(message.leader),
        epoch: Epoch::new(message.epoch),
        address: message.address,
        timeout: Duration::from_millis(message.timeout_ms),
    }
}

/// Converts an answer to a message.
pub(super) fn reply_message(reply: Reply) -> pb::AskAboutLeaderResponse {
    let (hearing, lost_for_ms) = match reply {
        Reply::Reachable => (pb::Hearing::Hears, 0),
        Reply::Lost { since } => (pb::Hearing::Lost, millis(since)),
        Reply::Unsure => (pb::Hearing::Unsure, 0),
    };
    pb::AskAboutLeaderResponse {
        hearing: hearing.into(),
        lost_for_ms,
    }
}

/// Converts a message to an answer.
pub(super) fn reply_of(message: pb::AskAboutLeaderResponse) -> Reply {
    match message.hearing() {
        pb::Hearing::Hears => Reply::Reachable,
        pb::Hearing::Lost => Reply::Lost {
            since: Duration::from_millis(message.lost_for_ms),
        },
        pb::Hearing::Unsure => Reply::Unsure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heartbeat() -> PeerHeartbeat {
        PeerHeartbeat {
            process: ProcessId::new("jm-1"),
            incarnation: "f00".to_owned(),
            role: Role::Suspended(Epoch::new(7)),
            host: Some(HostIdentity::new("boot/42")),
            progress: Progress {
                phase: Phase::Recovering,
                done: 3,
                total: 9,
            },
            since_ms: Some(1000),
            scheduling_ages: SchedulingAges {
                runtime: Some(Duration::from_millis(3)),
                dispatcher: Some(Duration::ZERO),
                resource_manager: None,
            },
            stalled_term: Some(Epoch::new(6)),
            cached_change: 12,
            witnesses: vec!["tm:1".to_owned()],
        }
    }

    #[test]
    fn a_heartbeat_means_the_same_on_the_other_side() {
        assert_eq!(
            heartbeat_of("c", heartbeat_message("c", heartbeat())),
            heartbeat()
        );
    }

    #[test]
    fn a_process_of_another_cluster_leads_nothing_here() {
        let heard = heartbeat_of("ours", heartbeat_message("theirs", heartbeat()));
        assert_eq!(heard.role, Role::Standby);
        assert_ne!(heard.process, heartbeat().process);
    }

    #[test]
    fn replies_mean_the_same_on_the_other_side() {
        let since = Duration::from_millis(250);
        for reply in [Reply::Reachable, Reply::Unsure, Reply::Lost { since }] {
            assert_eq!(reply_of(reply_message(reply)), reply);
        }
    }
}
