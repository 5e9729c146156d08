//! Hands over if the store has records of a newer version: to a process that can read them, if there is one.
//!
//! Such a record is intact: its job is quarantined, its tasks continue, and no write touches it. A JobManager that can
//! read it is recognized by its entry in the members' list. It is invited to depose this term, as in any transfer:
//! before anything of the term is started, and later as soon as one appears. This term ends only when the other process
//! has deposed it: if the invited process has ended, or refuses, this one continues to lead.

use std::convert::Infallible;
use std::time::Duration;

use tanist_dispatcher::JobStore;
use tanist_ha::election::{LeaderSession, Member};
use tracing::{info, warn};

use super::contender::reads_format;
use super::term::TermServices;

/// Interval between two searches for a newer process.
const SEARCH_INTERVAL: Duration = Duration::from_secs(3);
/// Pause after an invitation that no process accepted.
const PAUSE: Duration = Duration::from_secs(30);
/// Timeout for the store to list the members while a term waits for that.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Result of an attempt to hand over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The term is over.
    HandedOver,
    /// No process that reads the records is known.
    NoCandidate,
    /// The invited process did not take over.
    Refused,
}

/// Hands over before anything of the term is started. True: the term is over.
pub(super) async fn hand_over_before_start(
    services: &TermServices,
    session: &LeaderSession,
    store: &JobStore,
) -> bool {
    let Some(format) = store.needed_format() else {
        return false;
    };
    warn!(
        format,
        reads = reads_format(),
        "there are records of a newer version"
    );
    let handing_over = hand_over(services, session, format);
    tokio::time::timeout(TIMEOUT + services.options.ha.transfer_timeout, handing_over)
        .await
        .is_ok_and(|outcome| outcome == Outcome::HandedOver)
}

/// Hands over as soon as there is a process that reads what this one can't. Ends with the term, by being
/// dropped.
pub(super) async fn hand_over_when_possible(
    services: &TermServices,
    session: &LeaderSession,
    store: &JobStore,
) -> Infallible {
    loop {
        tokio::time::sleep(SEARCH_INTERVAL).await;
        let Some(format) = store.needed_format() else {
            continue;
        };
        match hand_over(services, session, format).await {
            Outcome::HandedOver | Outcome::NoCandidate => {}
            Outcome::Refused => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn hand_over(services: &TermServices, session: &LeaderSession, format: u16) -> Outcome {
    let Some(peers) = &services.peers else {
        return Outcome::NoCandidate;
    };
    let listed = tokio::time::timeout(TIMEOUT, services.ha.election.members()).await;
    let members = match listed {
        Ok(Ok(members)) => members,
        Ok(Err(_)) | Err(_) => return Outcome::NoCandidate,
    };
    let mut outcome = Outcome::NoCandidate;
    for member in readers(&members, session, format) {
        info!(to = %member.process, version = member.version, format, "handing over to a newer version");
        match peers.transfer(Some(&member.process)).await {
            Ok(_) => return Outcome::HandedOver,
            Err(error) => {
                warn!(to = %member.process, %error, "the newer version did not take over")
            }
        }
        if session.is_over() {
            return Outcome::HandedOver;
        }
        outcome = Outcome::Refused;
    }
    outcome
}

/// The other members that read a format, those with the newest format first.
fn readers<'a>(members: &'a [Member], session: &LeaderSession, format: u16) -> Vec<&'a Member> {
    let others = members
        .iter()
        .filter(|member| member.process != *session.process() && member.reads_format >= format);
    let mut readers: Vec<&Member> = others.collect();
    readers.sort_by_key(|member| std::cmp::Reverse(member.reads_format));
    readers
}
