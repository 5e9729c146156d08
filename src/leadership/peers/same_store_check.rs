//! Checks whether the leader named in this process's store uses the same store: a copy of a store names the
//! original's leader too.
//!
//! This process is listed in its own store. It asks the leader whether that one's store lists it, and reads its
//! own store before and after. Successive reads of one linearizable store agree about a record that is not
//! removed meanwhile: the record is written under this process's session, and that is the same before and
//! after. A leader that does not find it therefore has another store, with the same content. A process that
//! finds this never leads, and dials no TaskExecutor.
//!
//! A new session may still find the record of the previous one, which disappears a moment later. That can
//! happen once per session: two contradictions in one session are proof.

use std::sync::Arc;
use std::time::Duration;

use tanist_gateway::peers::PeerConnector;
use tanist_ha::Result;
use tanist_ha::detector::service::PEER;
use tanist_ha::election::{ClusterIncarnation, ElectionView, LeaderElection, Nonce, TermHolder};
use tanist_proto::v1 as pb;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::debug;

/// Timeout for a leader's answer, including two reads of its store.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause after an answer that proved nothing.
const PAUSE: Duration = Duration::from_millis(100);
/// Pause after a query that was not answered.
const LONG_PAUSE: Duration = Duration::from_secs(2);
/// Number of queries without proof after which this process goes on without an answer.
const MAX_INCONCLUSIVE: u32 = 10;
/// Number of contradictions in one session that are proof.
const PROOF: u32 = 2;

/// What was found out about the leader named in the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Finding {
    /// It was not asked yet.
    Open,
    /// It has the same store, or there is no leader to ask.
    Nothing,
    /// It has another store with the same content; the text describes that.
    OtherStore(String),
}

/// Answers a peer from this process's store: whether it lists the peer.
pub(super) async fn answer(
    election: &LeaderElection,
    who: &TermHolder,
) -> Result<pb::AskBelongingResponse> {
    let members = election.members().await?;
    let view = election.read().await?;
    let record = view.epoch.map(|(record, _)| record);
    let holder = record.as_ref().and_then(|record| record.holder.clone());
    Ok(pb::AskBelongingResponse {
        cluster_incarnation: record
            .as_ref()
            .map(|record| record.incarnation.to_string())
            .unwrap_or_default(),
        is_member: members
            .iter()
            .any(|member| member.process == who.process && member.incarnation == who.start),
        epoch: record.map_or(0, |record| record.epoch.get()),
        holder_process: holder
            .as_ref()
            .map(|it| it.process.to_string())
            .unwrap_or_default(),
        holder_start: holder.map(|it| it.start).unwrap_or_default(),
    })
}

/// The entry of this process in its own store.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Own {
    incarnation: Option<ClusterIncarnation>,
    session: Option<Nonce>,
    is_listed: bool,
}

/// What an answer proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    /// The same store, or one of another cluster.
    Nothing,
    /// Nothing; query again.
    Open,
    /// Two stores, unless this session has only just begun.
    Contradiction,
}

fn verdict(before: &Own, answer: &pb::AskBelongingResponse, after: &Own) -> Verdict {
    let theirs = answer.cluster_incarnation.as_str();
    let ours = before.incarnation.as_ref().map(ClusterIncarnation::as_str);
    if answer.is_member || ours != Some(theirs) {
        return Verdict::Nothing;
    }
    let is_listed_throughout = before.is_listed && before.session.is_some() && before == after;
    match is_listed_throughout {
        true => Verdict::Contradiction,
        false => Verdict::Open,
    }
}

/// See the module.
pub(super) struct SameStoreCheck {
    pub(super) election: LeaderElection,
    pub(super) connector: Arc<dyn PeerConnector>,
    pub(super) finding: watch::Sender<Finding>,
}

impl SameStoreCheck {
    /// Asks each leader that the store names, until one has another store.
    pub(super) async fn run(self) {
        let mut observed = self.election.observed();
        let mut last = None;
        loop {
            let view = observed.borrow_and_update().clone();
            let named = view.as_ref().and_then(|view| self.named(view));
            // In this order: a leader that was not asked yet; then any view, with no leader to ask; then no view yet.
            match named {
                Some(address) if last.as_ref() != Some(&address) => {
                    if let Some(text) = self.query(&address).await {
                        self.finding.send_replace(Finding::OtherStore(text));
                        return;
                    }
                    self.allow_first_term();
                    last = Some(address);
                    continue;
                }
                Some(_) | None if view.is_some() => self.allow_first_term(),
                Some(_) | None => {}
            }
            if observed.changed().await.is_err() {
                return;
            }
        }
    }

    /// The address of the leader that the store names, unless it is this start of this process. A leader with
    /// this process's id is asked too: copies of a cluster also have copies of its configuration.
    fn named(&self, view: &ElectionView) -> Option<String> {
        let info = view.info.as_ref()?;
        let (record, _) = view.epoch.as_ref()?;
        let is_own =
            record.epoch == info.epoch && record.holder.as_ref() == Some(self.election.holder());
        let address = info.addresses.get(PEER).filter(|_| !is_own);
        address.cloned()
    }

    /// Ends the wait of the first term: nothing that was found until now prevents this process from leading.
    fn allow_first_term(&self) {
        self.finding.send_if_modified(|finding| {
            let is_open = *finding == Finding::Open;
            if is_open {
                *finding = Finding::Nothing;
            }
            is_open
        });
    }

    /// Asks the leader at `address` until an answer proves something, or it is not the leader any more.
    async fn query(&self, address: &str) -> Option<String> {
        let mut contradicted: (Option<Nonce>, u32) = (None, 0);
        let mut inconclusive = 0;
        loop {
            match self.query_once(address).await {
                Ok((Verdict::Nothing, ..)) => return None,
                Ok((Verdict::Open, ..)) => {
                    contradicted = (None, 0);
                    inconclusive += 1;
                }
                Ok((Verdict::Contradiction, session, answer)) => {
                    let count = if contradicted.0 == session {
                        contradicted.1 + 1
                    } else {
                        1
                    };
                    if count >= PROOF {
                        return Some(text(address, &answer));
                    }
                    contradicted = (session, count);
                }
                Err(reason) => {
                    debug!(
                        address,
                        reason, "the leader that the store names does not answer"
                    );
                    self.allow_first_term();
                    if self.is_over(address, LONG_PAUSE).await {
                        return None;
                    }
                    continue;
                }
            }
            if inconclusive >= MAX_INCONCLUSIVE || self.is_over(address, PAUSE).await {
                return None;
            }
        }
    }

    /// Waits; returns whether the store then names another leader.
    async fn is_over(&self, address: &str, pause: Duration) -> bool {
        sleep(pause).await;
        let observed = self.election.observed();
        let view = observed.borrow();
        let info = view.as_ref().and_then(|view| view.info.as_ref());
        info.is_none_or(|info| info.addresses.get(PEER).is_none_or(|it| it != address))
    }

    async fn query_once(
        &self,
        address: &str,
    ) -> Result<(Verdict, Option<Nonce>, pb::AskBelongingResponse), String> {
        let before = self.own().await?;
        let who = self.election.holder();
        let answer = timeout(ANSWER_TIMEOUT, self.connector.ask_belonging(address, who));
        let late = |_| format!("none within {ANSWER_TIMEOUT:?}");
        let answer = answer.await.map_err(late)??;
        let after = self.own().await?;
        Ok((verdict(&before, &answer, &after), before.session, answer))
    }

    async fn own(&self) -> Result<Own, String> {
        let session = self.election.lease().borrow().nonce().cloned();
        let answer = answer(&self.election, self.election.holder());
        let answer = answer.await.map_err(|error| error.to_string())?;
        // The session that the record is read in must be there before and after.
        let is_same = self.election.lease().borrow().nonce() == session.as_ref();
        Ok(Own {
            incarnation: Some(answer.cluster_incarnation)
                .filter(|it| !it.is_empty())
                .map(ClusterIncarnation::new),
            session: session.filter(|_| is_same),
            is_listed: answer.is_member,
        })
    }
}

fn text(address: &str, answer: &pb::AskBelongingResponse) -> String {
    format!(
        "the leader at {address}, named in the store of this process, has another store with the same content: epoch {} of {} is \
         the youngest there, and this process is no member; one of the two stores is a copy of the other, and the processes that it names belong \
         to the other; if this process is to lead a cluster of its own in it, run `tanist ha accept` there first",
        answer.epoch, answer.holder_process
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own(session: Option<&str>, is_listed: bool) -> Own {
        Own {
            incarnation: Some(ClusterIncarnation::new("c1")),
            session: session.map(Nonce::new),
            is_listed,
        }
    }

    fn answer(incarnation: &str, is_member: bool) -> pb::AskBelongingResponse {
        pb::AskBelongingResponse {
            cluster_incarnation: incarnation.to_owned(),
            is_member,
            ..pb::AskBelongingResponse::default()
        }
    }

    #[test]
    fn only_a_record_that_was_there_in_one_session_contradicts_a_leader_that_misses_it() {
        let (listed, missed) = (own(Some("s1"), true), answer("c1", false));
        assert_eq!(verdict(&listed, &missed, &listed), Verdict::Contradiction);
        for other in [
            own(Some("s2"), true),
            own(Some("s1"), false),
            own(None, true),
        ] {
            assert_eq!(
                verdict(&listed, &missed, &other),
                Verdict::Open,
                "{other:?}"
            );
            assert_eq!(
                verdict(&other, &missed, &listed),
                Verdict::Open,
                "{other:?}"
            );
        }
        let lost = own(None, true);
        assert_eq!(verdict(&lost, &missed, &lost), Verdict::Open);
    }

    #[test]
    fn a_leader_that_lists_this_process_or_is_of_another_cluster_says_nothing_against_it() {
        let listed = own(Some("s1"), true);
        for answer in [answer("c1", true), answer("c2", false), answer("", false)] {
            assert_eq!(
                verdict(&listed, &answer, &listed),
                Verdict::Nothing,
                "{answer:?}"
            );
        }
    }
}
