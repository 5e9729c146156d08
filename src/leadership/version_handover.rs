//! Records of a newer version: the term that finds them gives way to a process that can read them, if there is
//! one.
//!
//! Such a record is intact, and nothing is done about it here: the job is set aside, its tasks run on, and no
//! write touches it. A JobManager that can read it is recognized by its entry in the members' list. It is
//! invited to depose this term, as in any transfer, before anything is started, and later whenever one appears
//! during the term. A term is therefore never given up for nothing: if the invited process is gone, or refuses,
//! this one leads on.

use std::convert::Infallible;
use std::time::Duration;

use tanist_dispatcher::JobStore;
use tanist_ha::election::{LeaderSession, Member};
use tracing::{info, warn};

use super::contender::reads_format;
use super::term::TermServices;

/// Interval between two searches for a newer process.
const LOOK: Duration = Duration::from_secs(3);
/// Pause after an invitation that no process accepted.
const PAUSE: Duration = Duration::from_secs(30);
/// Timeout for the store to list the members while a term waits for that.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Result of an attempt to give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The term is over.
    GaveWay,
    /// No process that reads the records is known.
    Nobody,
    /// The invited process did not take over.
    Refused,
}

/// Gives way before anything of the term is started. True: the term is over.
pub(super) async fn give_way_first(
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
    let looking = give_way(services, session, format);
    tokio::time::timeout(TIMEOUT + services.options.ha.transfer_timeout, looking)
        .await
        .is_ok_and(|outcome| outcome == Outcome::GaveWay)
}

/// Gives way as soon as there is a process that reads what this one can't. Ends with the term, by being
/// dropped.
pub(super) async fn give_way_when_possible(
    services: &TermServices,
    session: &LeaderSession,
    store: &JobStore,
) -> Infallible {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(format) = store.needed_format() else {
            continue;
        };
        match give_way(services, session, format).await {
            Outcome::GaveWay | Outcome::Nobody => {}
            Outcome::Refused => tokio::time::sleep(PAUSE).await,
        }
    }
}

async fn give_way(services: &TermServices, session: &LeaderSession, format: u16) -> Outcome {
    let Some(peers) = &services.peers else {
        return Outcome::Nobody;
    };
    let listed = tokio::time::timeout(TIMEOUT, services.ha.election.members()).await;
    let members = match listed {
        Ok(Ok(members)) => members,
        Ok(Err(_)) | Err(_) => return Outcome::Nobody,
    };
    let mut outcome = Outcome::Nobody;
    for member in readers(&members, session, format) {
        info!(to = %member.process, version = member.version, format, "giving way to a newer version");
        match peers.transfer(Some(&member.process)).await {
            Ok(_) => return Outcome::GaveWay,
            Err(error) => {
                warn!(to = %member.process, %error, "the newer version did not take over")
            }
        }
        if session.is_over() {
            return Outcome::GaveWay;
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
