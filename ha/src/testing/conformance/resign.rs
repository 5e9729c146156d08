//! Leadership is handed over without waiting for anything.

use super::{CaseResult, Process, Subject, put};
use crate::clock::Clock;
use crate::election::SessionState;

/// The successor leads while the lease of the process that resigned goes on: no timeout had a part in it.
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

/// A process that ends in order, and gives its lease back without resigning, is not waited for either.
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
    // The embedded store has no lease, so nothing could be waited for.
    assert!(
        subject.lease().is_none() || took < timeout,
        "took {took:?} of the lease's {timeout:?}"
    );
    Ok(())
}

/// If nobody else takes over, a process that resigned leads again, in another term.
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
