//! At most one process leads in an epoch, and its writes are in the store.

use std::sync::Arc;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use super::{BOUND, CaseResult, Process, Subject, key, put, read_item, until_definite};
use crate::election::{ElectionView, Leadership, ProcessId};
use crate::testing::faulty::Operation;
use crate::testing::invariants::{Event, History, acknowledged_commits_are_there};
use crate::testing::wait::wait_until;

const PROCESSES: usize = 4;
const ROUNDS: usize = 120;

/// Processes take, resign, depose each other, commit and lose answers at random; the history and the store
/// agree.
pub async fn at_most_one_process_leads_in_each_epoch(subject: &dyn Subject) -> CaseResult {
    let seed = std::env::var("TANIST_TEST_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok())
        .unwrap_or_else(rand::random);
    println!("TANIST_TEST_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let history = History::default();
    let mut processes = Vec::new();
    let mut notes = Vec::new();
    for number in 0..PROCESSES {
        let process = Process::start(subject, &format!("process-{number}")).await?;
        notes.push(process.note_in(&history));
        processes.push(process);
    }
    for round in 0..ROUNDS {
        // Some process leads, so that a deposition has an effect.
        wait_until("a leader", BOUND, async || {
            let view = processes[0].driver.read().await;
            let view = view.map_err(|error| error.to_string())?;
            let leader = view.leader.as_ref().map(drop);
            leader.ok_or_else(|| format!("{view:?}"))
        })
        .await;
        let process = processes.choose(&mut random).expect("there are processes");
        let leadership = process.election.leadership().borrow().clone();
        match (random.random_range(0..5), leadership) {
            (0, _) => {
                let operations = [Operation::Advance, Operation::Resign, Operation::Attach];
                let operation = operations.choose(&mut random).expect("there are some");
                process.faults.lose_replies(*operation, 1);
            }
            (1, Leadership::Granted(_)) => process.election.resign().await,
            (2, Leadership::Granted(_)) => {
                subject.interrupt(&process.id).await;
            }
            (_, Leadership::Granted(term)) => {
                let item = key(&format!("round-{round}"));
                let Ok(pipeline) = process.pipeline(subject, &term).await else {
                    // The term ended meanwhile.
                    continue;
                };
                let write = put(item.name.as_str(), "x");
                if let Ok(change) = pipeline.commit(vec![write]).await {
                    let keys = vec![item];
                    history.note(Event::Committed { change, keys });
                }
            }
            (_, _) => {
                // Its own term, which it may not know yet, can't be deposed by it.
                let view = process.driver.read().await;
                let of_another = |view: &ElectionView| {
                    view.leader
                        .as_ref()
                        .is_some_and(|leader| leader.process != process.id)
                };
                if let Some(view) = view.ok().filter(of_another) {
                    process.election.depose(view.youngest()).await?;
                }
            }
        }
    }
    let view = until_definite(async || processes[0].driver.read().await).await?;
    assert!(view.youngest().get() > 1, "the leader changed: {view:?}");
    for process in &processes {
        process.agrees_with_the_store().await?;
    }
    let store = subject.store(&ProcessId::new("checker")).await?;
    let last = until_definite(async || store.guard().await)
        .await?
        .change
        .number;
    let ring = until_definite(async || store.touched(1, last.max(1)).await).await?;
    let ring: Vec<_> = ring.into_iter().flatten().collect();
    history.check()?;
    acknowledged_commits_are_there(&history.events(), &ring)?;
    for note in notes {
        note.abort();
    }
    Ok(())
}

/// Two processes depose the same term at once: it is over, one of the two leads, and the other one knows.
pub async fn of_two_deposers_at_once_one_leads(subject: &dyn Subject) -> CaseResult {
    let history = History::default();
    let (a, b, c) = (
        Process::start(subject, "a").await?,
        Process::start(subject, "b").await?,
        Process::start(subject, "c").await?,
    );
    let notes = [&a, &b, &c].map(|process| process.note_in(&history));
    // Any of them leads first; the two others depose it.
    for _ in 0..5 {
        let view = a.agrees_with_the_store().await?;
        let youngest = view.youngest();
        let deposers: Vec<&Process> = [&a, &b, &c]
            .into_iter()
            .filter(|process| {
                view.leader.as_ref().map(|leader| &leader.process) != Some(&process.id)
            })
            .collect();
        let (first, second) = tokio::join!(
            deposers[0].election.depose(youngest),
            deposers[1].election.depose(youngest)
        );
        assert!(first? > youngest && second? > youngest);
    }
    let mut leaders = 0;
    for process in [&a, &b, &c] {
        let view = process.agrees_with_the_store().await?;
        leaders += usize::from(
            view.leader
                .is_some_and(|leader| leader.process == process.id),
        );
    }
    assert_eq!(leaders, 1);
    history.check()?;
    for note in notes {
        note.abort();
    }
    Ok(())
}

/// Two terms whose processes both believe that they lead write at once: only the younger term's writes are in
/// the store.
pub async fn of_two_that_believe_to_lead_only_the_younger_one_writes(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let old = a.leads().await;
    let of_old = Arc::new(a.pipeline(subject, &old).await?);
    of_old.commit(vec![put("item", "old")]).await?;
    let b = Process::start(subject, "b").await?;
    subject.stop(&a.id).await;
    let writing = {
        let of_old = of_old.clone();
        tokio::spawn(async move {
            let mut acknowledged = of_old.last();
            while let Ok(change) = of_old.commit(vec![put("item", "old")]).await {
                acknowledged = change;
            }
            acknowledged
        })
    };
    let young = b.leads_instead_of_stopped(subject, old.epoch()).await?;
    let of_young = b.pipeline(subject, &young).await?;
    let first = of_young.commit(vec![put("item", "young")]).await?;
    subject.cont(&a.id).await;
    a.is_over(&old).await;
    let acknowledged = writing.await?;
    assert!(
        acknowledged.number < first.number,
        "the old term wrote {acknowledged:?} after {first:?}"
    );
    let store = subject.store(&ProcessId::new("checker")).await?;
    assert_eq!(read_item(&*store, "item").await?, Some("young".into()));
    Ok(())
}
