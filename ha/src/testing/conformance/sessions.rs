//! Leases and sessions that end while the process lives, or remain when it is dead.

use std::collections::BTreeMap;

use super::{BOUND, CaseResult, Process, Subject, put};
use crate::clock::Clock;
use crate::election::{Leadership, Member};
use crate::testing::faulty::Operation;
use crate::testing::wait::wait_until;

/// Waits until the store has expired the lease of a stopped process, and so deleted its key.
async fn lease_ends(subject: &dyn Subject) -> CaseResult {
    if subject.lease().is_none() {
        return Ok(());
    }
    let observer = subject.observer(&"observer".parse()?).await?;
    let mut observed = observer.observed();
    let gone = observed.wait_for(|view| view.as_ref().is_some_and(|view| view.leader.is_none()));
    tokio::time::timeout(BOUND, gone).await??;
    Ok(())
}

/// A leader loses its lease, and no other process takes over: it attaches its term to the next lease, even if
/// the answers to that are lost.
pub async fn a_term_whose_lease_was_lost_is_attached_to_the_next_one(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let pipeline = a.pipeline(subject, &term).await?;
    pipeline.commit(vec![put("item", "1")]).await?;
    let nonce = a.nonce().await;
    a.faults.lose_replies(Operation::Attach, 2);
    subject.stop(&a.id).await;
    lease_ends(subject).await?;
    let committing = {
        let pipeline = pipeline.clone();
        tokio::spawn(async move { pipeline.commit(vec![put("item", "2")]).await })
    };
    subject.cont(&a.id).await;
    assert_eq!(committing.await??.number, 2);
    a.leads_in(&term).await;
    let view = a.agrees_with_the_store().await?;
    let leader = view.leader.expect("it leads");
    assert_eq!(leader.epoch, term.epoch());
    assert_eq!(leader.nonce != nonce, subject.lease().is_some());
    Ok(())
}

/// A process finds its own key from an earlier start: it takes over at once, because that start is certainly
/// gone.
pub async fn a_restarted_process_takes_over_from_its_earlier_start_at_once(
    subject: &dyn Subject,
) -> CaseResult {
    let earlier = Process::start(subject, "a").await?;
    let old = earlier.leads().await;
    let old_nonce = earlier.nonce().await;
    let crashed = Clock::Boottime.now();
    earlier.crash(subject).await;
    let later = Process::start(subject, "a").await?;
    let young = later.leads().await;
    let took = Clock::Boottime.now().since(crashed);
    assert!(young.epoch() > old.epoch());
    let (seen, _) = later.faults.acquisitions().pop().expect("it took");
    match (seen.leader, subject.lease()) {
        (Some(leader), _) => assert_eq!(leader.nonce, old_nonce),
        // The lease expired before the process looked; or there is no lease, and dead processes are known.
        (None, Some(lease)) => assert!(took > lease, "it waited for the lease to end"),
        (None, None) => {}
    }
    later.agrees_with_the_store().await?;
    Ok(())
}

/// A leader that dies silently is replaced by a standby.
pub async fn a_dead_leader_is_replaced(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let b = Process::start(subject, "b").await?;
    a.crash(subject).await;
    b.leads_after(old.epoch()).await;
    b.agrees_with_the_store().await?;
    Ok(())
}

/// Members are listed while they live, and all processes see what a leader confirmed.
pub async fn members_and_the_confirmed_leader_are_known_to_all(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let b = Process::start(subject, "b").await?;
    let observer = subject.observer(&"observer".parse()?).await?;
    for process in [&a, &b] {
        let member = Member {
            process: process.id.clone(),
            incarnation: process.start.to_string(),
            addresses: BTreeMap::new(),
            reads_format: 1,
            version: "test".to_owned(),
            cache: None,
            host: None,
        };
        process.election.announce(&member).await?;
    }
    let listed = async || {
        let members = observer
            .members()
            .await
            .map_err(|error| error.to_string())?;
        let mut names: Vec<String> = members.iter().map(|m| m.process.to_string()).collect();
        names.sort();
        Ok::<_, String>(names)
    };
    let exactly = |wanted: &'static [&'static str]| {
        let listed = &listed;
        wait_until("the members", BOUND, async move || match listed().await {
            Ok(names) if names == wanted => Ok(()),
            other => Err(other),
        })
    };
    exactly(&["a", "b"]).await;
    let a_leads = a.agrees_with_the_store().await?;
    let leads = a_leads.leader.is_some_and(|leader| leader.process == a.id);
    let (leader, other) = if leads { (a, b) } else { (b, a) };
    let term = leader.leads().await;
    leader.confirm(&term).await?;
    let mut observed = observer.observed();
    let confirmed = observed.wait_for(|view| {
        let info = view.as_ref().and_then(|view| view.confirmed());
        info.is_some_and(|info| info.process == leader.id && info.epoch == term.epoch())
    });
    tokio::time::timeout(BOUND, confirmed).await??;
    let name = other.id.clone();
    leader.crash(subject).await;
    wait_until("the dead one to go", BOUND, async || match listed().await {
        Ok(names) if names == [name.as_str()] => Ok(()),
        other => Err(other),
    })
    .await;
    let leadership = other.election.leadership().borrow().clone();
    assert!(
        !matches!(leadership, Leadership::Refused(_)),
        "{leadership:?}"
    );
    Ok(())
}
