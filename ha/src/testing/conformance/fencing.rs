//! No request of a deposed term is applied, whichever way it lost its leadership.

use super::{BOUND, CaseResult, Process, Subject, put, raw, read_item, until_definite};
use crate::election::{Attempt, LeaderKey, LeaderSession, Leadership, ProcessId};
use crate::error::Error;
use crate::store::pipeline::CommitError;
use crate::store::{Change, CommitReply, CommitRequest, CoordinationStore, Verdict};
use crate::testing::wait::wait_until;

/// Sends a transaction until the answer is definite, and returns the meaning of its refusal.
pub(super) async fn refusal(store: &dyn CoordinationStore, request: &CommitRequest) -> Verdict {
    let reply = wait_until("a definite answer", BOUND, async || {
        store.commit(request).await
    })
    .await;
    match reply {
        CommitReply::Applied => panic!("applied: {request:?}"),
        CommitReply::Refused(guard) => guard.verdict(request),
    }
}

/// Definitely not applied: a guard did not hold, or the lease for the key is gone.
fn is_refused(attempt: &crate::Result<Attempt>) -> bool {
    matches!(attempt, Ok(Attempt::Refused(_)) | Err(Error::SessionLost))
}

/// All requests that the term of `old` could still send are refused, and change nothing.
pub(super) async fn is_fenced(
    subject: &dyn Subject,
    process: &Process,
    old: &LeaderSession,
    key_of_old: &LeaderKey,
) -> CaseResult {
    let store = subject.store(&ProcessId::new("stranger")).await?;
    let look = async || {
        until_definite(async || Ok((process.driver.read().await?, store.guard().await?))).await
    };
    let before = look().await?;
    let far = Change {
        number: before.1.change.number + 1000,
        epoch: old.epoch(),
    };
    for after in [before.1.change, far] {
        let late = raw(old, after, vec![put("late", "x")]);
        let verdict = refusal(&*store, &late).await;
        assert!(matches!(verdict, Verdict::Fenced(_)), "{verdict:?}");
    }
    let token = old.fence().token;
    let info = crate::election::LeaderInformation {
        epoch: old.epoch(),
        process: old.process().clone(),
        addresses: Default::default(),
        since_ms: 1,
    };
    for attempt in [
        process.driver.publish(token, &info).await,
        process.driver.attach(token, key_of_old).await,
        process.driver.resign(token).await,
    ] {
        assert!(is_refused(&attempt), "{attempt:?}");
    }
    assert_eq!(before, look().await?);
    assert_eq!(read_item(&*store, "late").await?, None);
    Ok(())
}

async fn own_key(process: &Process, term: &LeaderSession) -> LeaderKey {
    LeaderKey {
        epoch: term.epoch(),
        process: process.id.clone(),
        nonce: process.nonce().await,
    }
}

/// The term's key was replaced by another process's key.
pub async fn a_deposed_term_cannot_write(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let pipeline = a.pipeline(subject, &old).await?;
    pipeline.commit(vec![put("item", "a")]).await?;
    let b = Process::start(subject, "b").await?;
    let youngest = b.election.depose(old.epoch()).await?;
    assert!(youngest > old.epoch());
    let young = b.leads_after(old.epoch()).await;
    a.is_over(&old).await;
    let refused = pipeline.commit(vec![put("item", "late")]).await;
    assert!(
        matches!(refused, Err(CommitError::NotApplied)),
        "{refused:?}"
    );
    is_fenced(subject, &a, &old, &own_key(&a, &old).await).await?;
    // The younger term continues where the older one ended.
    let change = b
        .pipeline(subject, &young)
        .await?
        .commit(vec![put("item", "b")])
        .await?;
    assert_eq!((change.number, change.epoch), (2, young.epoch()));
    Ok(())
}

/// Another writer deleted the term's key: nothing is written until the store has a leader again, and then it
/// continues.
pub async fn a_term_whose_key_a_stranger_deleted_cannot_write_without_it(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let first = a
        .pipeline(subject, &term)
        .await?
        .commit(vec![put("item", "1")])
        .await?;
    subject.stop(&a.id).await;
    subject.delete_leader().await?;
    let store = subject.store(&ProcessId::new("stranger")).await?;
    let write = raw(&term, first, vec![put("item", "without")]);
    assert_eq!(refusal(&*store, &write).await, Verdict::Detached);
    subject.cont(&a.id).await;
    // Attached again in the same term; in a younger one if the store can't distinguish this from a
    // resignation.
    let granted = |now: &Leadership| match now {
        Leadership::Granted(session) => *session != term || session.check().is_ok(),
        _ => false,
    };
    wait_until("a leader", BOUND, async || {
        let view = a.driver.read().await.map_err(|error| error.to_string())?;
        view.leader.map(drop).ok_or_else(|| "none".to_owned())
    })
    .await;
    let now = a.until("leading again", granted).await;
    let now = now.session().expect("granted").clone();
    let change = a
        .pipeline(subject, &now)
        .await?
        .commit(vec![put("item", "2")])
        .await?;
    assert_eq!(change.number, 2);
    assert_eq!(read_item(&*store, "item").await?, Some("2".into()));
    Ok(())
}

/// The process was stopped beyond its lease and deposed; when it runs again, it still believes that it leads.
pub async fn a_process_stopped_past_its_lease_and_deposed_cannot_write(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let key_of_old = own_key(&a, &old).await;
    let pipeline = a.pipeline(subject, &old).await?;
    let last = pipeline.commit(vec![put("item", "a")]).await?;
    let b = Process::start(subject, "b").await?;
    subject.stop(&a.id).await;
    let young = b.leads_instead_of_stopped(subject, old.epoch()).await?;
    assert!(!old.is_over(), "it could not learn of it");
    let store = subject.store(&ProcessId::new("stranger")).await?;
    let late = raw(&old, last, vec![put("item", "late")]);
    assert_eq!(
        refusal(&*store, &late).await,
        Verdict::Fenced(young.epoch())
    );
    let committing = {
        let pipeline = pipeline.clone();
        tokio::spawn(async move { pipeline.commit(vec![put("item", "late")]).await })
    };
    subject.cont(&a.id).await;
    a.is_over(&old).await;
    let refused = tokio::time::timeout(BOUND, committing).await??;
    assert!(
        matches!(refused, Err(CommitError::NotApplied)),
        "{refused:?}"
    );
    is_fenced(subject, &a, &old, &key_of_old).await?;
    a.agrees_with_the_store().await?;
    b.leads_in(&young).await;
    Ok(())
}

/// It was cut off and suspended itself, and is deposed meanwhile: once it learns that, its term is over for
/// good.
pub async fn a_suspended_term_that_is_already_over_does_not_come_back(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let key_of_old = own_key(&a, &old).await;
    let history = crate::testing::invariants::History::default();
    let notes = a.note_in(&history);
    let b = Process::start(subject, "b").await?;
    subject.isolate(&a.id).await;
    if subject.lease().is_some() {
        let suspended = |now: &Leadership| matches!(now, Leadership::Suspended(_));
        a.until("suspended", suspended).await;
        assert!(old.check().is_err() && !old.is_over());
    }
    let young = b.leads_instead_of_stopped(subject, old.epoch()).await?;
    subject.heal(&a.id).await;
    a.is_over(&old).await;
    a.agrees_with_the_store().await?;
    is_fenced(subject, &a, &old, &key_of_old).await?;
    b.leads_in(&young).await;
    notes.abort();
    history.check()?;
    Ok(())
}

/// It resigns while another process deposes it: it is over once, one process leads, and the old term is
/// fenced.
pub async fn a_term_that_resigns_while_it_is_deposed_ends_once(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let b = Process::start(subject, "b").await?;
    for _ in 0..5 {
        let view = a.agrees_with_the_store().await?;
        let leads = |process: &Process| {
            view.leader.as_ref().map(|leader| &leader.process) == Some(&process.id)
        };
        let (leader, other) = if leads(&a) { (&a, &b) } else { (&b, &a) };
        let old = leader.leads().await;
        let key_of_old = own_key(leader, &old).await;
        let ((), deposed) =
            tokio::join!(leader.election.resign(), other.election.depose(old.epoch()));
        assert!(deposed? > old.epoch());
        leader.is_over(&old).await;
        is_fenced_for_ever(subject, leader, &old, &key_of_old).await?;
    }
    let view = a.agrees_with_the_store().await?;
    assert_eq!(b.agrees_with_the_store().await?.leader, view.leader);
    Ok(())
}

/// Same as [`is_fenced`], while the store may move on.
async fn is_fenced_for_ever(
    subject: &dyn Subject,
    process: &Process,
    old: &LeaderSession,
    key_of_old: &LeaderKey,
) -> CaseResult {
    let store = subject.store(&ProcessId::new("stranger")).await?;
    let late = raw(
        old,
        until_definite(async || store.guard().await).await?.change,
        vec![put("late", "x")],
    );
    let verdict = refusal(&*store, &late).await;
    assert!(matches!(verdict, Verdict::Fenced(_)), "{verdict:?}");
    let token = old.fence().token;
    for attempt in [
        process.driver.attach(token, key_of_old).await,
        process.driver.resign(token).await,
    ] {
        assert!(is_refused(&attempt), "{attempt:?}");
    }
    Ok(())
}

/// It writes its key again (as after a new lease) at the moment when another process deposes it: whichever
/// comes first, the deposer's key stays.
pub async fn a_term_that_attaches_while_it_is_deposed_does_not_undo_that(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let b = Process::start(subject, "b").await?;
    for _ in 0..10 {
        let view = a.agrees_with_the_store().await?;
        let leads = |process: &Process| {
            view.leader.as_ref().map(|leader| &leader.process) == Some(&process.id)
        };
        let (leader, other) = if leads(&a) { (&a, &b) } else { (&b, &a) };
        let old = leader.leads().await;
        let key_of_old = own_key(leader, &old).await;
        let token = old.fence().token;
        let attaching = async {
            loop {
                match leader.driver.attach(token, &key_of_old).await {
                    Ok(Attempt::Applied(_)) => {}
                    Ok(Attempt::Refused(view)) => return Ok(view),
                    Err(error) if error.outcome() == crate::Outcome::Fatal => return Err(error),
                    Err(_) => {}
                }
            }
        };
        let (refused, deposed) = tokio::join!(attaching, other.election.depose(old.epoch()));
        let (refused, deposed) = (refused?, deposed?);
        assert!(refused.youngest() > old.epoch(), "{refused:?}");
        assert!(deposed > old.epoch());
        leader.is_over(&old).await;
        let view = until_definite(async || other.driver.read().await).await?;
        let leader = view.leader.expect("the deposer leads");
        assert!(leader.epoch > old.epoch(), "{leader:?}");
    }
    Ok(())
}
