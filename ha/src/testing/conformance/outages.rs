//! Store outages, with and without loss of data.

use std::time::Duration;

use super::fencing::refusal;
use super::{BOUND, CaseResult, Process, Subject, put, raw, read_item};
use crate::clock::Clock;
use crate::election::{Leadership, NotLeading, ProcessId};
use crate::store::{Change, Verdict};
use crate::testing::wait::wait_until;

/// A substitute lease time for stores without leases.
const NO_LEASE: Duration = Duration::from_secs(1);

/// Quorum is lost for longer than the lease, and for longer than 1.4 times the session, after which
/// ZooKeeper's clients give up: the leader does not change, and the same process continues in the same epoch.
pub async fn a_quorum_lost_for_longer_than_any_lease_changes_no_leader(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let pipeline = a.pipeline(subject, &term).await?;
    pipeline.commit(vec![put("item", "1")]).await?;
    let b = Process::start(subject, "b").await?;

    subject.lose_quorum().await?;
    let lost = Clock::Boottime.now();
    if subject.lease().is_some() {
        let suspended = |now: &Leadership| matches!(now, Leadership::Suspended(_));
        a.until("suspended", suspended).await;
        assert_eq!(term.check(), Err(NotLeading::Suspended));
    }
    let committing = {
        let pipeline = pipeline.clone();
        tokio::spawn(async move { pipeline.commit(vec![put("item", "2")]).await })
    };
    let outage = subject.lease().unwrap_or(NO_LEASE).mul_f32(1.6);
    wait_until("the outage to last", BOUND, async || {
        let lasted = Clock::Boottime.now().since(lost);
        if lasted > outage { Ok(()) } else { Err(lasted) }
    })
    .await;
    assert!(!committing.is_finished(), "nothing is decided meanwhile");
    subject.regain_quorum().await?;

    a.leads_in(&term).await;
    assert_eq!(committing.await??.number, 2);
    let view = a.agrees_with_the_store().await?;
    assert_eq!(view.youngest(), term.epoch());
    let leadership = b.election.leadership().borrow().clone();
    assert!(matches!(leadership, Leadership::Standby), "{leadership:?}");
    Ok(())
}

/// A restart with its data is an outage like any other.
pub async fn a_server_that_restarts_with_its_data_changes_no_leader(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let term = a.leads().await;
    let pipeline = a.pipeline(subject, &term).await?;
    pipeline.commit(vec![put("item", "1")]).await?;
    subject.restart().await?;
    assert_eq!(pipeline.commit(vec![put("item", "2")]).await?.number, 2);
    a.leads_in(&term).await;
    let store = subject.store(&ProcessId::new("checker")).await?;
    assert_eq!(read_item(&*store, "item").await?, Some("2".into()));
    let view = a.agrees_with_the_store().await?;
    assert_eq!(view.youngest(), term.epoch());
    Ok(())
}

/// Without its data it is another incarnation: processes that knew the old one refuse it, and no write of
/// theirs is applied.
pub async fn a_server_that_restarts_without_its_data_is_refused_loudly(
    subject: &dyn Subject,
) -> CaseResult {
    let a = Process::start(subject, "a").await?;
    let first = a.leads().await;
    // Both have led, so both know the cluster.
    let b = Process::start(subject, "b").await?;
    b.election.depose(first.epoch()).await?;
    let second = b.leads_after(first.epoch()).await;
    a.election.depose(second.epoch()).await?;
    let old = a.leads_after(second.epoch()).await;
    let pipeline = a.pipeline(subject, &old).await?;
    pipeline.commit(vec![put("item", "old")]).await?;

    subject.restart_wiped().await?;
    for process in [&a, &b] {
        let refused = |now: &Leadership| matches!(now, Leadership::Refused(_));
        let Leadership::Refused(text) = process.until("refusing", refused).await else {
            panic!("as waited for");
        };
        assert!(text.contains(old.incarnation().as_str()), "{text}");
    }
    assert_eq!(old.check(), Err(NotLeading::Over));
    let late = pipeline.commit(vec![put("item", "late")]).await;
    assert!(late.is_err(), "{late:?}");

    let c = Process::start(subject, "c").await?;
    let young = c.leads().await;
    assert_ne!(young.incarnation(), old.incarnation());
    let store = subject.store(&ProcessId::new("stranger")).await?;
    for after in [Change::default(), pipeline.last()] {
        let late = raw(&old, after, vec![put("item", "late")]);
        let found = Some(young.incarnation().clone());
        assert_eq!(
            refusal(&*store, &late).await,
            Verdict::OtherIncarnation(found)
        );
    }
    assert_eq!(read_item(&*store, "item").await?, None);
    let leadership = a.election.leadership().borrow().clone();
    assert!(
        matches!(leadership, Leadership::Refused(_)),
        "{leadership:?}"
    );
    Ok(())
}
