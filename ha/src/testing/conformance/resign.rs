//! Leadership is handed over without a timeout.

use super::{BOUND, CaseResult, Process, Subject, put};
use crate::clock::Clock;
use crate::election::{ElectionView, Epoch, SessionState};
use crate::testing::invariants::History;

/// The successor leads before the lease of the resigned process would end, so no timeout was involved.
pub async fn a_resigned_term_is_handed_over_without_a_timeout(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let b = Process::start(subject, "b").await?;
    b.agrees_with_the_store().await?;
    let lease = a.driver.session().borrow().clone();
    let resigned = Clock::Boottime.now();
    a.election.resign().await;
    let young = b.leads_after(old.epoch()).await;
    let took = Clock::Boottime.now().since(resigned);
    let SessionState::Alive { nonce, timeout, .. } = lease else {
        panic!("a leader has a session");
    };
    let kept = a.driver.session().borrow().nonce() == Some(&nonce);
    assert!(
        kept || took < timeout,
        "took {took:?}, longer than the lease of {timeout:?}"
    );
    a.is_over(&old).await;
    assert_eq!(
        young.epoch(),
        old.epoch().next(),
        "resigning begins no term"
    );
    let change = b
        .pipeline(subject, &young)
        .await?
        .commit(vec![put("item", "1")])
        .await?;
    assert_eq!(change.epoch, young.epoch());
    Ok(())
}

/// A process that closes, and gives its lease back without resigning, is not waited for either.
pub async fn a_closed_process_is_not_waited_for(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let b = Process::start(subject, "b").await?;
    b.agrees_with_the_store().await?;
    let SessionState::Alive { timeout, .. } = a.driver.session().borrow().clone() else {
        panic!("a leader has a session");
    };
    let closed = Clock::Boottime.now();
    a.election.close().await;
    b.leads_after(old.epoch()).await;
    let took = Clock::Boottime.now().since(closed);
    // The embedded store has no lease, so there is no timeout.
    assert!(
        subject.lease().is_none() || took < timeout,
        "took {took:?} of the lease's {timeout:?}"
    );
    Ok(())
}

/// If no other process takes over, a process that resigned leads again, in another term.
pub async fn a_lone_process_that_resigned_leads_again_in_another_term(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    a.election.resign().await;
    let young = a.leads_after(old.epoch()).await;
    a.is_over(&old).await;
    assert_eq!(young.incarnation(), old.incarnation());
    Ok(())
}

/// A view from before the resignation that arrives after its answer names the session of the resigned
/// process: it is ignored.
pub async fn a_term_that_was_resigned_is_not_granted_again(subject: &dyn Subject) -> CaseResult {
    let history = History::default();
    let a = Process::start(subject, "a").await?;
    let note = a.note_in(&history);
    let mut before = Epoch::ZERO;
    for _ in 0..3 {
        let term = a.leads_after(before).await;
        let mut observed = a.election.observed();
        let sees_itself = |view: &Option<ElectionView>| {
            let leader = view.as_ref().and_then(|view| view.leader.as_ref());
            leader.is_some_and(|leader| leader.epoch == term.epoch())
        };
        let seen = tokio::time::timeout(BOUND, observed.wait_for(sees_itself)).await;
        drop(seen.expect("the watch tells it")?);
        a.faults.hold_views();
        a.election.resign().await;
        a.faults.deliver_views_late();
        before = term.epoch();
    }
    a.leads_after(before).await;
    note.abort();
    history.check()?;
    Ok(())
}
