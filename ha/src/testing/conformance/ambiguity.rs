//! Lost answers: the process still learns the state of the store.

use super::{CaseResult, Process, Subject, put, read_item, until_definite};
use crate::election::{Epoch, ProcessId};
use crate::testing::faulty::{Faults, Operation};

/// The answer to taking is lost.
pub async fn a_process_whose_answer_to_taking_is_lost_finds_that_it_leads(
    subject: &dyn Subject,
) -> CaseResult {
    let faults = Faults::default();
    faults.lose_replies(Operation::Advance, 1000);
    let a = Process::start_with(subject, "a", faults).await?;
    let term = a.leads().await;
    let view = a.agrees_with_the_store().await?;
    assert_eq!(view.youngest(), term.epoch());
    let change = a
        .pipeline(subject, &term)
        .await?
        .commit(vec![put("item", "1")])
        .await?;
    assert_eq!(change.number, 1);
    Ok(())
}

/// The request to take is lost, not its answer: it is sent again.
pub async fn a_process_whose_request_to_take_is_lost_takes_all_the_same(
    subject: &dyn Subject,
) -> CaseResult {
    let faults = Faults::default();
    let never_arrives = faults.hold_next(Operation::Advance);
    let a = Process::start_with(subject, "a", faults).await?;
    assert!(never_arrives.reached().await.is_some());
    let term = a.leads().await;
    assert_eq!(term.epoch(), Epoch::new(1));
    a.agrees_with_the_store().await?;
    Ok(())
}

/// The answer to deposing is lost.
pub async fn a_deposer_whose_answer_is_lost_finds_that_it_leads(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let b = Process::start(subject, "b").await?;
    b.faults.lose_replies(Operation::Advance, 1);
    let youngest = b.election.depose(old.epoch()).await?;
    assert!(youngest > old.epoch());
    a.is_over(&old).await;
    b.leads_after(old.epoch()).await;
    let view = a.agrees_with_the_store().await?;
    assert_eq!(b.agrees_with_the_store().await?.leader, view.leader);
    Ok(())
}

/// The answer to taking is lost, and another process deposes the taker before it can find out.
pub async fn a_taker_that_is_deposed_before_it_knows_does_not_lead(
    subject: &dyn Subject,
) -> CaseResult {
    let b = Process::start(subject, "b").await?;
    let first = b.leads().await;
    let a = Process::start(subject, "a").await?;
    let history = crate::testing::invariants::History::default();
    let notes = [a.note_in(&history), b.note_in(&history)];
    for _ in 0..5 {
        let view = a.agrees_with_the_store().await?;
        let led_by_a = view.leader.as_ref().map(|leader| &leader.process) == Some(&a.id);
        let (leader, taker) = if led_by_a { (&a, &b) } else { (&b, &a) };
        taker.faults.lose_replies(Operation::Advance, 1);
        let youngest = view.youngest();
        // The leader only waits for the taker's term, to end it.
        let (taken, deposed) = tokio::join!(
            taker.election.depose(youngest),
            leader.election.depose(youngest.next())
        );
        assert!(taken? > youngest);
        assert!(deposed? > youngest.next());
    }
    assert!(first.is_over());
    let view = a.agrees_with_the_store().await?;
    assert_eq!(b.agrees_with_the_store().await?.leader, view.leader);
    for note in notes {
        note.abort();
    }
    history.check()?;
    Ok(())
}

/// The answer to resigning is lost.
pub async fn a_process_whose_answer_to_resigning_is_lost_has_resigned(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let b = Process::start(subject, "b").await?;
    a.faults.lose_replies(Operation::Resign, 2);
    a.election.resign().await;
    a.is_over(&term).await;
    b.leads_after(term.epoch()).await;
    a.agrees_with_the_store().await?;
    Ok(())
}

/// The answers to committing are lost: the commit is applied once.
pub async fn a_commit_whose_answers_are_lost_is_applied_once(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let (pipeline, faults) = a.faulty_pipeline(subject, &term).await?;
    let store = subject.store(&ProcessId::new("checker")).await?;
    for number in 1..=5 {
        faults.lose_replies(Operation::Commit, 2);
        let change = pipeline
            .commit(vec![put("item", &number.to_string())])
            .await?;
        assert_eq!(change.number, number);
        let guard = until_definite(async || store.guard().await).await?;
        assert_eq!(guard.change, change);
        let value = read_item(&*store, "item").await?;
        assert_eq!(value, Some(number.to_string().into()));
    }
    Ok(())
}

/// The answers to committing are lost until the term is over: the caller learns that the commit may have
/// been applied.
pub async fn a_commit_of_a_term_that_ends_before_its_answer_is_not_denied(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let b = Process::start(subject, "b").await?;
    let (pipeline, faults) = a.faulty_pipeline(subject, &old).await?;
    // No answer to this term arrives from here on.
    faults.lose_replies(Operation::Commit, 1000);
    let committing = {
        let pipeline = pipeline.clone();
        tokio::spawn(async move { pipeline.commit(vec![put("item", "old")]).await })
    };
    let store = subject.store(&ProcessId::new("checker")).await?;
    let mut changes = store.changes();
    let applied = changes.wait_for(|change| change.is_some_and(|change| change.number == 1));
    tokio::time::timeout(super::BOUND, applied).await??;
    b.election.depose(old.epoch()).await?;
    let young = b.leads_after(old.epoch()).await;
    b.pipeline(subject, &young)
        .await?
        .commit(vec![put("other", "young")])
        .await?;
    let told = committing.await?;
    assert!(
        matches!(told, Err(crate::store::pipeline::CommitError::Unknown)),
        "it was applied: {told:?}"
    );
    assert_eq!(read_item(&*store, "item").await?, Some("old".into()));
    Ok(())
}
