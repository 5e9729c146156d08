//! Records of a newer version: the term that finds them gives way to a process that reads them, if there is one.
//!
//! Nothing is wrong with such a record, and nothing is done about it here: the job is set aside, its tasks run on, and no write
//! touches it. A JobManager that can read it is known by what it says of itself in the members' list; it is invited to depose
//! this term, as in any transfer, before anything is started, and as long as the term lasts whenever one appears. So a term is
//! never given up in vain: if the invited one is gone, or refuses, this one leads on.

use std::convert::Infallible;
use std::time::Duration;

use tanist_ha::election::{LeaderSession, Member};
use tracing::{info, warn};

use super::contender::reads_format;
use super::term::TermServices;
use crate::dispatcher::JobStore;

/// How often a newer process is looked for.
const LOOK: Duration = Duration::from_secs(3);
/// After an invitation that led to nothing.
const PAUSE: Duration = Duration::from_secs(30);
/// How long the store may take to say who is there, while a term waits for that.
const PATIENCE: Duration = Duration::from_secs(2);

/// What came of looking for somebody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The term is over.
    GaveWay,
    /// Nobody who reads the records is known.
    Nobody,
    /// Who was invited did not take over.
    Refused,
}

/// Gives way before anything of the term is started. True: it is over.
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
    tokio::time::timeout(PATIENCE + services.options.ha.transfer_timeout, looking)
        .await
        .is_ok_and(|outcome| outcome == Outcome::GaveWay)
}

/// Gives way to whoever reads what this process can't, once there is somebody. Ends with the term, by being dropped.
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
    let listed = tokio::time::timeout(PATIENCE, services.ha.election.members()).await;
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

/// The other members that read a format, the most able first.
fn readers<'a>(members: &'a [Member], session: &LeaderSession, format: u16) -> Vec<&'a Member> {
    let others = members
        .iter()
        .filter(|member| member.process != *session.process() && member.reads_format >= format);
    let mut readers: Vec<&Member> = others.collect();
    readers.sort_by_key(|member| std::cmp::Reverse(member.reads_format));
    readers
}
