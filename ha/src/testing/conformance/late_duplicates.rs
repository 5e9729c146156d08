//! A duplicate request that arrives long after its outcome was definite changes nothing.

use super::{BOUND, CaseResult, Process, Subject, key, put, read_item, until_definite};
use crate::election::{Attempt, ElectionView, EpochRecord, LeaderKey, ProcessId};
use crate::store::Write;
use crate::testing::faulty::{Answer, Held, Holding, Operation};

/// Waits for the request to be held.
async fn held(holding: Holding) -> Held {
    let reached = tokio::time::timeout(BOUND, holding.reached()).await;
    reached
        .expect("a request in time")
        .expect("the process lives")
}

/// Lets it through, and asserts that the store refuses it.
async fn deliver_and_expect_refusal(held: Held) -> CaseResult {
    let answer = held.deliver().await?;
    assert!(
        !answer.is_applied(),
        "a late duplicate was applied: {answer:?}"
    );
    Ok(())
}

/// Commits that create, update and delete.
pub async fn late_creates_updates_and_deletes_change_nothing(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let (pipeline, faults) = a.faulty_pipeline(subject, &term).await?;
    let delete = |name| Write::Delete { key: key(name) };
    pipeline
        .commit(vec![put("updated", "0"), put("deleted", "0")])
        .await?;
    let mut late = Vec::new();
    for write in [put("created", "1"), put("updated", "1"), delete("deleted")] {
        let holding = faults.hold_next(Operation::Commit);
        // Its second copy commits it.
        pipeline.commit(vec![write]).await?;
        late.push(held(holding).await);
    }
    // Their effects have been undone since.
    pipeline
        .commit(vec![
            delete("created"),
            put("updated", "2"),
            put("deleted", "2"),
        ])
        .await?;
    let store = subject.store(&ProcessId::new("checker")).await?;
    let keys = ["created", "updated", "deleted"].map(key);
    let look =
        async || until_definite(async || Ok((store.get(&keys).await?, store.guard().await?))).await;
    let before = look().await?;
    assert_eq!(before.0, [None, Some("2".into()), Some("2".into())]);
    for held in late {
        deliver_and_expect_refusal(held).await?;
        assert_eq!(look().await?, before);
    }
    assert_eq!(pipeline.commit(vec![put("updated", "3")]).await?.number, 6);
    Ok(())
}

/// A commit that arrives when a younger term leads.
pub async fn a_commit_that_arrives_in_a_younger_term_changes_nothing(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let (pipeline, faults) = a.faulty_pipeline(subject, &old).await?;
    let b = Process::start(subject, "b").await?;
    let holding = faults.hold_next(Operation::Commit);
    // Later copies are applied, but no answer arrives, so the commit's outcome stays open.
    faults.lose_replies(Operation::Commit, 1000);
    let (late, committing) = {
        // Only the first copy is held.
        let pipeline = pipeline.clone();
        let committing =
            tokio::spawn(async move { pipeline.commit(vec![put("item", "old")]).await });
        (held(holding).await, committing)
    };
    b.election.depose(old.epoch()).await?;
    let young = b.leads_after(old.epoch()).await;
    a.is_over(&old).await;
    committing.await?.expect_err("its term is over");
    let of_young = b.pipeline(subject, &young).await?;
    of_young
        .commit(vec![Write::Delete { key: key("item") }])
        .await?;
    deliver_and_expect_refusal(late).await?;
    let store = subject.store(&ProcessId::new("checker")).await?;
    assert_eq!(read_item(&*store, "item").await?, None);
    Ok(())
}

/// A request to depose.
pub async fn a_late_acquisition_changes_nothing(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let b = Process::start(subject, "b").await?;
    let holding = b.faults.hold_next(Operation::Advance);
    b.election.depose(old.epoch()).await?;
    let late = held(holding).await;
    let young = b.leads_after(old.epoch()).await;
    a.is_over(&old).await;
    a.election.depose(young.epoch()).await?;
    let youngest = a.leads_after(young.epoch()).await;
    b.is_over(&young).await;
    deliver_and_expect_refusal(late).await?;
    a.leads_in(&youngest).await;
    a.agrees_with_the_store().await?;
    b.agrees_with_the_store().await?;
    Ok(())
}

/// A request to resign, also one that arrives when the same process leads again.
pub async fn a_late_resignation_changes_nothing(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let holding = a.faults.hold_next(Operation::Resign);
    a.election.resign().await;
    let late = held(holding).await;
    a.is_over(&old).await;
    let young = a.leads_after(old.epoch()).await;
    deliver_and_expect_refusal(late).await?;
    a.agrees_with_the_store().await?;
    a.leads_in(&young).await;
    Ok(())
}

/// A request to write the key again under a new lease.
pub async fn a_late_attachment_changes_nothing(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let key_of_old = LeaderKey {
        epoch: old.epoch(),
        process: a.id.clone(),
        nonce: a.nonce().await,
    };
    let token = old.fence().token;
    // Resigned: the epoch number is the same, and still the term must not come back.
    a.election.resign().await;
    let late = a.driver.attach(token, &key_of_old).await?;
    assert!(matches!(late, Attempt::Refused(_)), "{late:?}");
    let b = Process::start(subject, "b").await?;
    a.agrees_with_the_store().await?;
    let leader = b.agrees_with_the_store().await?.leader;
    let late = a.driver.attach(token, &key_of_old).await?;
    assert!(matches!(late, Attempt::Refused(_)), "{late:?}");
    assert!(leader.is_some_and(|leader| leader.epoch > old.epoch()));
    Ok(())
}

/// A leader's addresses.
pub async fn late_leader_information_changes_nothing(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let holding = a.faults.hold_next(Operation::Publish);
    a.confirm(&old).await?;
    let late = held(holding).await;
    let b = Process::start(subject, "b").await?;
    b.election.depose(old.epoch()).await?;
    let young = b.leads_after(old.epoch()).await;
    let unconfirmed = until_definite(async || b.driver.read().await).await?;
    assert_eq!(unconfirmed.confirmed(), None, "it is an older term's");
    b.confirm(&young).await?;
    deliver_and_expect_refusal(late).await?;
    let view: ElectionView = until_definite(async || b.driver.read().await).await?;
    let confirmed = view.confirmed().expect("confirmed");
    assert_eq!(
        (confirmed.epoch, &confirmed.process),
        (young.epoch(), &b.id)
    );
    let refused = a.confirm(&old).await;
    assert!(refused.is_err(), "{refused:?}");
    Ok(())
}

/// A request to take that its process has given up is applied after all: the process takes the term up,
/// because all others wait for it.
pub async fn an_acquisition_that_is_applied_after_it_was_given_up_is_taken_up(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let b = Process::start(subject, "b").await?;
    let seen = until_definite(async || b.driver.read().await).await?;
    let (record, _) = seen.epoch.clone().expect("a process leads");
    let next = EpochRecord {
        epoch: record.epoch.next(),
        ..record
    };
    let leader = LeaderKey {
        epoch: next.epoch,
        process: b.id.clone(),
        nonce: b.nonce().await,
    };
    // A request that b's election does not know.
    let applied = b.driver.advance(&seen, &next, &leader).await?;
    let Answer::Attempt(Attempt::Applied(token)) = Answer::Attempt(applied) else {
        panic!("nothing stood against it");
    };
    let young = b.leads_after(old.epoch()).await;
    assert_eq!((young.epoch(), young.fence().token), (next.epoch, token));
    a.is_over(&old).await;
    b.pipeline(subject, &young)
        .await?
        .commit(vec![put("item", "1")])
        .await?;
    Ok(())
}
