//! Writes that bypass the program: by an operator, or by another program that uses the same keys. Also the
//! intended one: accepting a store.

use super::{BOUND, CaseResult, Process, Subject, put};
use crate::Error;
use crate::election::{Leadership, NotLeading, ProcessId, accept, propose};
use crate::keys::path;
use crate::retrieval;
use crate::testing::wait::wait_until;

/// During a term a deleted or overwritten `leader-info` is repaired, and the term continues.
pub async fn leader_information_that_a_stranger_removed_is_published_again(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    a.confirm(&term).await?;
    let observer = subject.observer(&ProcessId::new("observer")).await?;
    for value in [None, Some("rubbish"), None] {
        subject.overwrite(path::LEADER_INFO, value).await?;
        wait_until("the leader to be found", BOUND, async || {
            let view = observer.read().await.map_err(|error| error.to_string())?;
            match view.confirmed() {
                Some(info) if info.process == a.id => Ok(()),
                _ => Err(format!("{view:?}")),
            }
        })
        .await;
    }
    assert_eq!(term.check(), Ok(()));
    Ok(())
}

/// While `epoch` can't be read, the fence of every write can't hold: the leader reports that it is suspended
/// and why, and no process takes over. After it is restored, a process leads and writes.
pub async fn a_term_whose_epoch_a_stranger_overwrote_is_suspended_until_it_is_put_back(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    a.confirm(&term).await?;
    let b = Process::start(subject, "b").await?;
    let view = b.agrees_with_the_store().await?;
    let (record, _) = view.epoch.expect("a process leads");
    let text = serde_json::to_string(&record)?;

    let mut leaders = retrieval::follow(b.driver.observed());
    let found = tokio::time::timeout(BOUND, leaders.wait_for(|view| view.leader.is_some())).await;
    drop(found.expect("the leader is found")?);

    subject.overwrite(path::EPOCH, Some("rubbish")).await?;
    let lost = tokio::time::timeout(BOUND, leaders.wait_for(|view| view.leader.is_none())).await;
    let epoch = lost.expect("no process is said to lead")?.epoch;
    assert_eq!(epoch, term.epoch(), "the youngest that there was");
    let suspended = |now: &Leadership| matches!(now, Leadership::Suspended(_));
    a.until("suspended", suspended).await;
    assert_eq!(term.check(), Err(NotLeading::Suspended));
    for process in [&a, &b] {
        let mut unreadable = process.election.unreadable();
        let named =
            unreadable.wait_for(|why| why.as_ref().is_some_and(|why| why.contains("epoch")));
        let named = tokio::time::timeout(BOUND, named).await;
        drop(named.expect("both say what is wrong")?);
    }
    let leadership = b.election.leadership().borrow().clone();
    assert!(matches!(leadership, Leadership::Standby), "{leadership:?}");

    subject.overwrite(path::EPOCH, Some(&text)).await?;
    let leader = wait_until("a leader", BOUND, async || {
        for process in [&a, &b] {
            if let Leadership::Granted(session) = &*process.election.leadership().borrow() {
                return Ok((process.id.clone(), session.clone()));
            }
        }
        Err("no process leads")
    })
    .await;
    let (id, session) = leader;
    let process = if id == a.id { &a } else { &b };
    let pipeline = process.pipeline(subject, &session).await?;
    pipeline.commit(vec![put("item", "1")]).await?;
    assert_eq!(*process.election.unreadable().borrow(), None);
    Ok(())
}

/// If a stranger writes the record of `epoch` again, with other spaces and an unknown field, its term can still be
/// deposed: the guard of a takeover is the record, not its text.
pub async fn a_term_whose_epoch_a_stranger_wrote_in_other_bytes_can_be_deposed(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let b = Process::start(subject, "b").await?;
    let view = b.agrees_with_the_store().await?;
    let (record, _) = view.epoch.expect("a process leads");
    let text = serde_json::to_string(&record)?.replacen('{', "{ \"note\": \"by hand\", ", 1);
    subject.overwrite(path::EPOCH, Some(&text)).await?;
    let deposed = tokio::time::timeout(BOUND, b.election.depose(term.epoch())).await;
    let youngest = deposed.expect("the next epoch is taken")?;
    assert!(youngest > term.epoch(), "{youngest}");
    Ok(())
}

/// An accepted store is another incarnation, with its own identity: processes that belonged to it before are
/// refused and write nothing, and a process that is started on it leads in the next epoch. A store with a
/// living leader is accepted only by force.
pub async fn an_accepted_store_refuses_all_that_belonged_to_it_before(
    subject: &dyn Subject,
) -> CaseResult {
    let operator = subject.observer(&ProcessId::new("operator")).await?;
    let nothing = propose(&*operator).await;
    assert!(
        matches!(nothing, Err(Error::Misconfigured(_))),
        "{nothing:?}"
    );
    let a = Process::start(subject, "a").await?;
    let former = a.leads().await;
    let pipeline = a.pipeline(subject, &former).await?;
    pipeline.commit(vec![put("item", "1")]).await?;

    let wanted = propose(&*operator).await?;
    let alive = accept(&*operator, &wanted, false).await;
    assert!(matches!(alive, Err(Error::Misconfigured(_))), "{alive:?}");
    accept(&*operator, &wanted, true).await?;
    accept(&*operator, &wanted, true).await?;
    let refused = |now: &Leadership| matches!(now, Leadership::Refused(_));
    a.until("refused", refused).await;
    assert_eq!(former.check(), Err(NotLeading::Over));
    pipeline
        .commit(vec![put("item", "2")])
        .await
        .expect_err("it belongs to the former incarnation");
    a.election.close().await;

    let view = operator.read().await?;
    let (record, _) = view.epoch.clone().expect("it was accepted");
    assert_eq!(record, wanted.next);
    let b = Process::start(subject, "b").await?;
    let young = b.leads().await;
    assert_eq!(young.epoch(), former.epoch().next().next());
    assert_ne!(young.incarnation(), former.incarnation());
    assert_eq!(young.incarnation(), &wanted.next.incarnation);
    b.pipeline(subject, &young)
        .await?
        .commit(vec![put("item", "3")])
        .await?;
    Ok(())
}

/// Same for a store whose `epoch` can't be read: its former value is unknown, so it no longer counts.
pub async fn a_store_whose_epoch_can_not_be_read_is_led_again_once_it_is_accepted(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let former = a.leads().await;
    subject.overwrite(path::EPOCH, Some("rubbish")).await?;
    let operator = subject.observer(&ProcessId::new("operator")).await?;
    let wanted = propose(&*operator).await?;
    accept(&*operator, &wanted, true).await?;
    let refused = |now: &Leadership| matches!(now, Leadership::Refused(_));
    a.until("refused", refused).await;
    let b = Process::start(subject, "b").await?;
    let young = b.leads().await;
    assert!(young.epoch() > former.epoch());
    assert_ne!(young.incarnation(), former.incarnation());
    Ok(())
}

/// An epoch is written together with its holder and the store in which it was taken; both stay after a
/// resignation.
pub async fn an_epoch_names_who_took_it_and_where(subject: &dyn Subject) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let observer = subject.observer(&ProcessId::new("observer")).await?;
    let b = Process::start(subject, "b").await?;
    for is_resigned in [false, true] {
        let view = observer.read().await?;
        let (record, _) = view.epoch.clone().expect("it was taken");
        if record.epoch == term.epoch() {
            assert_eq!(record.holder.as_ref(), Some(term.holder()));
        }
        assert_eq!(record.store, view.store);
        assert_eq!(term.store(), view.store.as_ref());
        if !is_resigned {
            a.election.resign().await;
        }
    }
    let next = b.leads_after(term.epoch()).await;
    assert_ne!(next.holder(), term.holder());
    let view = observer.read().await?;
    let (record, _) = view.epoch.expect("it was taken");
    assert_eq!(record.holder.as_ref(), Some(next.holder()));
    Ok(())
}
