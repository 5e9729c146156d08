//! Followers of the store miss nothing, across broken connections and server restarts.

use super::{BOUND, CaseResult, Process, Subject, put, until_definite};
use crate::election::ProcessId;
use crate::keys::CHANGES_RING;
use crate::store::feed::{ChangeFeed, Fed};
use crate::testing::kinds::KINDS;

const TRANSACTIONS: u64 = 60;

/// Reads the feed up to a transaction; retries after store errors.
async fn fed_up_to(feed: &mut ChangeFeed, last: u64) -> CaseResult<Vec<Fed>> {
    let mut all = Vec::new();
    let reading = async {
        loop {
            let Ok(fed) = feed.next().await else {
                tokio::task::yield_now().await;
                continue;
            };
            let (Fed::Transaction(change, _) | Fed::Gap(change)) = &fed;
            let number = change.number;
            all.push(fed);
            if number >= last {
                return;
            }
        }
    };
    tokio::time::timeout(BOUND, reading).await?;
    Ok(all)
}

/// Each transaction arrives once and in order, with its keys, across server restarts and broken connections.
pub async fn a_feed_sees_every_transaction_across_reconnects(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let pipeline = a.pipeline(subject, &term).await?;
    let reader = ProcessId::new("reader");
    let mut feed = ChangeFeed::after(subject.store(&reader).await?, KINDS, 0);
    let reading = tokio::spawn(async move { fed_up_to(&mut feed, TRANSACTIONS).await });
    for number in 1..=TRANSACTIONS {
        match number {
            15 | 45 => subject.interrupt(&reader).await,
            30 => subject.restart().await?,
            _ => {}
        }
        let change = pipeline
            .commit(vec![put(&format!("item-{number}"), "x")])
            .await?;
        assert_eq!(change.number, number);
    }
    let fed = reading.await??;
    assert_eq!(fed.len() as u64, TRANSACTIONS, "{fed:?}");
    for (fed, number) in fed.iter().zip(1..) {
        let Fed::Transaction(change, keys) = fed else {
            panic!("nothing was so far behind: {fed:?}");
        };
        assert_eq!(change.number, number);
        assert_eq!(keys, &[super::key(&format!("item-{number}"))]);
    }
    Ok(())
}

/// Only a follower that is further behind than the ring gets a gap, and only for what it missed.
pub async fn a_feed_tells_of_a_gap_only_when_the_ring_was_passed(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let pipeline = a.pipeline(subject, &term).await?;
    let last = CHANGES_RING + 10;
    for _ in 0..last {
        pipeline.commit(vec![put("item", "x")]).await?;
    }
    assert_eq!(pipeline.last().number, last);
    let store = subject.store(&ProcessId::new("reader")).await?;

    let mut behind = ChangeFeed::after(store.clone(), KINDS, 9);
    let fed = fed_up_to(&mut behind, last).await?;
    assert_eq!(fed, [Fed::Gap(pipeline.last())]);
    pipeline.commit(vec![put("item", "y")]).await?;
    let fed = fed_up_to(&mut behind, last + 1).await?;
    assert!(
        matches!(&fed[..], [Fed::Transaction(change, _)] if change.number == last + 1),
        "{fed:?}"
    );

    let mut within = ChangeFeed::after(store.clone(), KINDS, last + 1 - CHANGES_RING);
    let fed = fed_up_to(&mut within, last + 1).await?;
    let numbers = fed.iter().map(|fed| match fed {
        Fed::Transaction(change, _) => change.number,
        Fed::Gap(_) => 0,
    });
    assert!(numbers.eq(last + 2 - CHANGES_RING..=last + 1));
    let touched = until_definite(async || store.touched(1, 20).await).await?;
    let known: Vec<bool> = touched.iter().map(Option::is_some).collect();
    let expected: Vec<bool> = (1..=20).map(|number| number > 11).collect();
    assert_eq!(known, expected, "what the ring has gone past is not there");
    Ok(())
}

/// An observer finally sees the leader, after any disturbance.
pub async fn an_observer_sees_the_leader_across_reconnects(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let b = Process::start(subject, "b").await?;
    let id = ProcessId::new("observer");
    let observer = subject.observer(&id).await?;
    let mut observed = observer.observed();
    for round in 0..4 {
        match round {
            1 | 3 => subject.interrupt(&id).await,
            2 => subject.restart().await?,
            _ => {}
        }
        let before = a.agrees_with_the_store().await;
        let Ok(before) = before else {
            // The restart is not over for all processes.
            continue;
        };
        let leads = before.leader.is_some_and(|leader| leader.process == a.id);
        let (leader, other) = if leads { (&a, &b) } else { (&b, &a) };
        other.election.depose(before_epoch(leader).await?).await?;
        let term = other.leads().await;
        other.confirm(&term).await?;
        let seen = observed.wait_for(|view| {
            let info = view.as_ref().and_then(|view| view.confirmed());
            info.is_some_and(|info| info.epoch >= term.epoch())
        });
        tokio::time::timeout(BOUND, seen).await??;
    }
    Ok(())
}

async fn before_epoch(leader: &Process) -> CaseResult<crate::election::Epoch> {
    Ok(until_definite(async || leader.driver.read().await)
        .await?
        .youngest())
}
