//! Who leads, and who may open a namespace.

use super::*;

#[tokio::test]
async fn a_deposed_leader_cannot_commit_publish_attach_or_resign() -> TestResult {
    let server = server().await?;
    let (a, b) = (election(&server).await?, election(&server).await?);
    let store = open_store(options(server.endpoints()), KINDS).await?;
    let old = take(&a, "a").await?;
    let first = request(&old, Change::default(), vec![put("item", "1")]);
    assert_eq!(store.commit(&first).await?, CommitReply::Applied);

    let new = take(&b, "b").await?;
    assert_eq!(new.fence.epoch, Epoch::new(2));
    let late = request(&old, first.change(), vec![put("item", "2")]);
    assert_eq!(
        refused(store.commit(&late).await?, &late),
        Verdict::Fenced(Epoch::new(2))
    );
    let info = LeaderInformation {
        epoch: old.fence.epoch,
        process: ProcessId::new("a"),
        addresses: BTreeMap::new(),
        since_ms: 1,
    };
    for attempt in [
        a.publish(old.fence.token, &info).await?,
        a.attach(old.fence.token, &old.leader).await?,
        a.resign(old.fence.token).await?,
    ] {
        let Attempt::Refused(view) = attempt else {
            panic!("{attempt:?}")
        };
        assert_eq!(view.leader.as_ref(), Some(&new.leader));
    }

    let info = LeaderInformation {
        epoch: new.fence.epoch,
        process: ProcessId::new("b"),
        ..info
    };
    for _ in 0..2 {
        let published = b.publish(new.fence.token, &info).await?;
        assert_eq!(published, Attempt::Applied(new.fence.token));
    }
    assert_eq!(
        observe(&a, |view| view.confirmed().is_some())
            .await
            .confirmed(),
        Some(&info)
    );
    let Attempt::Applied(after) = b.resign(new.fence.token).await? else {
        panic!("refused")
    };
    assert_ne!(after, new.fence.token);
    let view = observe(&a, |view| view.leader.is_none()).await;
    assert_eq!(
        view.youngest(),
        new.fence.epoch,
        "a resignation begins no term"
    );
    assert!(matches!(
        b.attach(new.fence.token, &new.leader).await?,
        Attempt::Refused(_)
    ));
    Ok(())
}

#[tokio::test]
async fn of_two_deposers_one_succeeds_and_closing_hands_over_at_once() -> TestResult {
    let server = server().await?;
    let lasting = ZooKeeperOptions {
        session_timeout: Duration::from_secs(10),
        ..options(server.endpoints())
    };
    let open = || open_election(lasting.clone(), Clock::Boottime, true);
    let (a, b) = (open().await?, open().await?);
    let (na, nb) = (alive(&a, None).await, alive(&b, None).await);
    let seen = ElectionView::default();
    let next = EpochRecord {
        epoch: Epoch::new(1),
        incarnation: ClusterIncarnation::generate(),
        holder: None,
        store: None,
    };
    let leader = |process: &str, nonce: &Nonce| LeaderKey {
        epoch: next.epoch,
        process: ProcessId::new(process),
        nonce: nonce.clone(),
    };
    let (la, lb) = (leader("a", &na), leader("b", &nb));
    let (ra, rb) = tokio::join!(a.advance(&seen, &next, &la), b.advance(&seen, &next, &lb));
    let applied = [ra?, rb?].map(|attempt| matches!(attempt, Attempt::Applied(_)));
    assert_eq!(
        applied.iter().filter(|applied| **applied).count(),
        1,
        "{applied:?}"
    );

    let (winner, other) = if applied[0] { (a, b) } else { (b, a) };
    let started = tokio::time::Instant::now();
    winner.close().await;
    observe(&other, |view| view.epoch.is_some() && view.leader.is_none()).await;
    assert!(
        started.elapsed() < lasting.session_timeout,
        "{:?}",
        started.elapsed()
    );
    assert_eq!(*winner.session().borrow(), SessionState::None);

    // Dropping closes in the background.
    let term = take(&other, "b").await?;
    let third = open().await?;
    observe(&third, |view| view.leader.as_ref() == Some(&term.leader)).await;
    let started = tokio::time::Instant::now();
    drop(other);
    observe(&third, |view| view.leader.is_none()).await;
    assert!(
        started.elapsed() < lasting.session_timeout,
        "{:?}",
        started.elapsed()
    );
    Ok(())
}

#[tokio::test]
async fn only_the_right_password_opens_a_protected_namespace() -> TestResult {
    let server = server().await?;
    let with = |digest: Option<(&str, &str)>| ZooKeeperOptions {
        digest: digest.map(|(user, password)| (user.to_owned(), password.to_owned())),
        ..options(server.endpoints())
    };
    let right = with(Some(("tanist", "right")));
    let a = open_election(right.clone(), Clock::Boottime, true).await?;
    let term = take(&a, "a").await?;
    let store = open_store(right, KINDS).await?;
    let first = request(&term, Change::default(), vec![put("x", "1")]);
    assert_eq!(store.commit(&first).await?, CommitReply::Applied);
    for wrong in [with(Some(("tanist", "wrong"))), with(None)] {
        let opened = open_store(wrong.clone(), KINDS).await;
        assert!(matches!(opened, Err(Error::Denied { .. })), "{opened:?}");
        let opened = open_election(wrong, Clock::Boottime, true).await;
        assert!(matches!(opened, Err(Error::Denied { .. })), "{opened:?}");
    }
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_opened_says_so_in_bounded_time() -> TestResult {
    let endpoint = format!("127.0.0.1:{}", crate::testing::servers::ports::free_port());
    let started = tokio::time::Instant::now();
    let failed = open_store(options(vec![endpoint.clone()]), KINDS).await;
    let Err(error @ Error::Unreachable { .. }) = failed else {
        panic!("{failed:?}")
    };
    assert!(error.to_string().contains(&endpoint), "{error}");
    assert!(
        started.elapsed() < Duration::from_secs(6),
        "{:?}",
        started.elapsed()
    );
    for namespace in ["", "/", "/a//b", "/a/../b", "/zookeeper/x"] {
        let options = ZooKeeperOptions::new(vec![endpoint.clone()], namespace);
        let failed = open_store(options, KINDS).await;
        assert!(
            matches!(failed, Err(Error::Misconfigured(_))),
            "{namespace}: {failed:?}"
        );
    }
    let failed = open_store(options(vec!["host:1/chroot".into()]), KINDS).await;
    assert!(matches!(failed, Err(Error::Misconfigured(_))), "{failed:?}");
    let version = super::nodes::version(EpochToken(u64::MAX));
    assert!(version.is_err_and(|error| error.outcome() == Outcome::Fatal));
    Ok(())
}
