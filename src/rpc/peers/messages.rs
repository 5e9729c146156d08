//! Conversion of heartbeats between peers, and of questions about them, to and from messages. An unknown value
//! from another version gets the weakest meaning.

use std::time::Duration;

use tanist_ha::clock::millis;
use tanist_ha::detector::{Beat, Phase, Progress, Question, Reply, Stance, Turns};
use tanist_ha::election::{Epoch, HostIdentity, ProcessId};
use tanist_proto::v1 as pb;

/// Converts the heartbeat of a process of this cluster to a message.
pub fn beat_message(cluster_id: &str, beat: Beat) -> pb::Beat {
    let stance = match beat.stance {
        Stance::Standby => pb::Stance::Standby,
        Stance::Leading(_) => pb::Stance::Leading,
        Stance::Suspended(_) => pb::Stance::Suspended,
    };
    let phase = match beat.progress.phase {
        Phase::Standby => pb::Phase::Standby,
        Phase::Recovering => pb::Phase::Recovering,
        Phase::Leading => pb::Phase::Leading,
    };
    pb::Beat {
        cluster_id: cluster_id.to_owned(),
        process: beat.process.to_string(),
        incarnation: beat.incarnation,
        stance: stance.into(),
        epoch: beat.stance.epoch().unwrap_or_default().get(),
        host: beat.host.map(|host| host.to_string()).unwrap_or_default(),
        phase: phase.into(),
        done: beat.progress.done,
        total: beat.progress.total,
        cached_change: beat.cached_change,
        witnesses: beat.witnesses,
        gave_up_epoch: beat.gave_up.unwrap_or_default().get(),
        runtime_turn_age_ms: beat.turns.runtime.map(millis),
        dispatcher_turn_age_ms: beat.turns.dispatcher.map(millis),
        resource_manager_turn_age_ms: beat.turns.resource_manager.map(millis),
        since_ms: beat.since_ms,
    }
}

/// Converts a heartbeat message for a process of the cluster `cluster_id`.
pub fn beat_of(cluster_id: &str, message: pb::Beat) -> Beat {
    let epoch = Epoch::new(message.epoch);
    let stance = match message.stance() {
        pb::Stance::Standby => Stance::Standby,
        pb::Stance::Leading => Stance::Leading(epoch),
        pb::Stance::Suspended => Stance::Suspended(epoch),
    };
    let phase = match message.phase() {
        pb::Phase::Standby => Phase::Standby,
        pb::Phase::Recovering => Phase::Recovering,
        pb::Phase::Leading => Phase::Leading,
    };
    // A process of another cluster at that address is never taken for one of ours, independent of its name and role.
    let (process, stance) = if message.cluster_id == cluster_id {
        (message.process, stance)
    } else {
        let foreign = format!("{}/{}", message.cluster_id, message.process);
        (foreign, Stance::Standby)
    };
    Beat {
        process: ProcessId::new(process),
        incarnation: message.incarnation,
        stance,
        host: Some(message.host)
            .filter(|host| !host.is_empty())
            .map(HostIdentity::new),
        progress: Progress {
            phase,
            done: message.done,
            total: message.total,
        },
        turns: Turns {
            runtime: message.runtime_turn_age_ms.map(Duration::from_millis),
            dispatcher: message.dispatcher_turn_age_ms.map(Duration::from_millis),
            resource_manager: message
                .resource_manager_turn_age_ms
                .map(Duration::from_millis),
        },
        gave_up: Some(Epoch::new(message.gave_up_epoch)).filter(|epoch| *epoch != Epoch::ZERO),
        cached_change: message.cached_change,
        witnesses: message.witnesses,
        since_ms: message.since_ms,
    }
}

/// Converts a question to a message.
pub fn question_message(cluster_id: &str, question: &Question) -> pb::AskAboutLeaderRequest {
    pb::AskAboutLeaderRequest {
        cluster_id: cluster_id.to_owned(),
        leader: question.leader.to_string(),
        epoch: question.epoch.get(),
        address: question.address.clone(),
        patience_ms: millis(question.patience),
    }
}

/// Converts a message to a question.
pub fn question_of(message: pb::AskAboutLeaderRequest) -> Question {
    Question {
        leader: ProcessId::new(message.leader),
        epoch: Epoch::new(message.epoch),
        address: message.address,
        patience: Duration::from_millis(message.patience_ms),
    }
}

/// Converts an answer to a message.
pub fn reply_message(reply: Reply) -> pb::AskAboutLeaderResponse {
    let (hearing, lost_for_ms) = match reply {
        Reply::Hears => (pb::Hearing::Hears, 0),
        Reply::Lost { since } => (pb::Hearing::Lost, millis(since)),
        Reply::Unsure => (pb::Hearing::Unsure, 0),
    };
    pb::AskAboutLeaderResponse {
        hearing: hearing.into(),
        lost_for_ms,
    }
}

/// Converts a message to an answer.
pub fn reply_of(message: pb::AskAboutLeaderResponse) -> Reply {
    match message.hearing() {
        pb::Hearing::Hears => Reply::Hears,
        pb::Hearing::Lost => Reply::Lost {
            since: Duration::from_millis(message.lost_for_ms),
        },
        pb::Hearing::Unsure => Reply::Unsure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beat() -> Beat {
        Beat {
            process: ProcessId::new("jm-1"),
            incarnation: "f00".to_owned(),
            stance: Stance::Suspended(Epoch::new(7)),
            host: Some(HostIdentity::new("boot/42")),
            progress: Progress {
                phase: Phase::Recovering,
                done: 3,
                total: 9,
            },
            since_ms: Some(1000),
            turns: Turns {
                runtime: Some(Duration::from_millis(3)),
                dispatcher: Some(Duration::ZERO),
                resource_manager: None,
            },
            gave_up: Some(Epoch::new(6)),
            cached_change: 12,
            witnesses: vec!["tm:1".to_owned()],
        }
    }

    #[test]
    fn a_beat_means_the_same_on_the_other_side() {
        assert_eq!(beat_of("c", beat_message("c", beat())), beat());
    }

    #[test]
    fn a_process_of_another_cluster_leads_nothing_here() {
        let heard = beat_of("ours", beat_message("theirs", beat()));
        assert_eq!(heard.stance, Stance::Standby);
        assert_ne!(heard.process, beat().process);
    }

    #[test]
    fn replies_mean_the_same_on_the_other_side() {
        let since = Duration::from_millis(250);
        for reply in [Reply::Hears, Reply::Unsure, Reply::Lost { since }] {
            assert_eq!(reply_of(reply_message(reply)), reply);
        }
    }
}
