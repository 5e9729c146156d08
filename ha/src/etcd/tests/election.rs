//! Terms and leases.

use super::*;

#[tokio::test]
async fn a_resigned_term_is_over_and_its_epoch_goes_on() -> TestResult {
    let options = options(shared_server().await?.endpoints(), "resigned");
    let election = contender(&options).await?;
    let fence = take(&election, "a").await?;
    let Attempt::Applied(token) = election.resign(fence.token).await? else {
        return Err("refused to resign".into());
    };
    assert_ne!(
        token, fence.token,
        "nothing of the term can be applied any more"
    );
    let view = election.read().await?;
    assert_eq!((view.youngest(), &view.leader), (fence.epoch, &None));
    let leader = LeaderKey {
        epoch: fence.epoch,
        process: ProcessId::new("a"),
        nonce: nonce(&election).await?,
    };
    let late = election.attach(fence.token, &leader).await?;
    assert!(matches!(late, Attempt::Refused(_)), "{late:?}");
    assert_eq!(take(&election, "a").await?.epoch, fence.epoch.next());
    Ok(())
}

#[tokio::test]
async fn a_lost_lease_is_replaced_and_the_member_announced_again() -> TestResult {
    let server = shared_server().await?;
    let options = EtcdOptions {
        lease_ttl: Duration::from_secs(2),
        ..options(server.endpoints(), "lease")
    };
    let election = contender(&options).await?;
    let store = open_store(options, KINDS).await?;
    let member = Member {
        process: ProcessId::new("host:1"),
        incarnation: "x".to_owned(),
        addresses: BTreeMap::new(),
        reads_format: 1,
        version: "test".to_owned(),
        cache: None,
        host: None,
    };
    election.announce(&member).await?;
    let fence = take(&election, "host:1").await?;
    wait_until("the member", BOUND, async || {
        match election.members().await {
            Ok(members) if members == [member.clone()] => Ok(()),
            other => Err(other),
        }
    })
    .await;

    // It outlives its time to live, because it is renewed.
    let SessionState::Alive {
        deadline,
        timeout,
        nonce: old,
    } = election.session().borrow().clone()
    else {
        return Err("no session".into());
    };
    assert_eq!(timeout, Duration::from_secs(2));
    let mut session = election.session();
    let renewed = |state: &SessionState| match state {
        SessionState::Alive {
            deadline: later, ..
        } => *later > deadline,
        SessionState::None => false,
    };
    level(&mut session, renewed).await?;

    let mut client = etcd_client::Client::connect(server.endpoints(), None).await?;
    let lease = lease::lease_of(&old).expect("a lease's id");
    client.lease_revoke(lease).await?;
    let replaced = |state: &SessionState| state.nonce().is_some_and(|nonce| *nonce != old);
    let state = level(&mut session, replaced).await?;
    let gone = |view: &Option<ElectionView>| view.as_ref().is_some_and(|v| v.leader.is_none());
    level(&mut election.observed(), gone).await?;
    let request = CommitRequest {
        fence: fence.clone(),
        after: Change::default(),
        writes: vec![put("item", "x")],
    };
    let CommitReply::Refused(guard) = store.commit(&request).await? else {
        return Err("a leader without its key committed".into());
    };
    assert_eq!(guard.verdict(&request), Verdict::Detached);
    let info = LeaderInformation {
        epoch: fence.epoch,
        process: ProcessId::new("host:1"),
        addresses: BTreeMap::new(),
        since_ms: 0,
    };
    let published = election.publish(fence.token, &info).await?;
    assert!(matches!(published, Attempt::Refused(_)), "{published:?}");
    wait_until("the member again", BOUND, async || {
        match election.members().await {
            Ok(members) if members == [member.clone()] => Ok(()),
            other => Err(other),
        }
    })
    .await;

    // Same term, same epoch, under the new lease.
    let process = ProcessId::new("host:1");
    let dead = LeaderKey {
        epoch: fence.epoch,
        process: process.clone(),
        nonce: old,
    };
    let error = election
        .attach(fence.token, &dead)
        .await
        .expect_err("that lease is gone");
    assert!(matches!(error, Error::SessionLost), "{error}");
    let nonce = state.nonce().cloned().expect("it was waited for");
    let leader = LeaderKey { nonce, ..dead };
    assert_eq!(
        election.attach(fence.token, &leader).await?,
        Attempt::Applied(fence.token)
    );
    assert_eq!(store.commit(&request).await?, CommitReply::Applied);
    assert_eq!(
        election.publish(fence.token, &info).await?,
        Attempt::Applied(fence.token)
    );
    let there = |view: &Option<ElectionView>| {
        view.as_ref()
            .is_some_and(|view| view.leader.as_ref() == Some(&leader))
    };
    level(&mut election.observed(), there).await?;

    // Closing removes both at once.
    election.close().await;
    let view = election.read().await?;
    assert_eq!((view.youngest(), view.leader), (fence.epoch, None));
    assert!(election.members().await?.is_empty());
    Ok(())
}

#[tokio::test]
async fn a_deposed_terms_writes_are_refused() -> TestResult {
    let options = options(shared_server().await?.endpoints(), "deposed");
    let (first, second) = (contender(&options).await?, contender(&options).await?);
    let store = open_store(options, KINDS).await?;
    let old = take(&first, "a").await?;
    let write = |fence: &Fence, after| CommitRequest {
        fence: fence.clone(),
        after,
        writes: vec![put("item", "x")],
    };
    let request = write(&old, Change::default());
    assert_eq!(store.commit(&request).await?, CommitReply::Applied);

    let new = take(&second, "b").await?;
    assert_eq!(new.epoch, old.epoch.next());
    let late = write(&old, request.change());
    let CommitReply::Refused(guard) = store.commit(&late).await? else {
        return Err("the deposed term's commit was applied".into());
    };
    assert_eq!(guard.verdict(&late), Verdict::Fenced(new.epoch));
    let nonce = nonce(&first).await?;
    let leader = LeaderKey {
        epoch: old.epoch,
        process: ProcessId::new("a"),
        nonce,
    };
    let info = LeaderInformation {
        epoch: old.epoch,
        process: ProcessId::new("a"),
        addresses: BTreeMap::new(),
        since_ms: 0,
    };
    for attempt in [
        first.attach(old.token, &leader).await?,
        first.publish(old.token, &info).await?,
        first.resign(old.token).await?,
    ] {
        let Attempt::Refused(view) = attempt else {
            return Err("the deposed term wrote".into());
        };
        assert_eq!(view.leader.map(|leader| leader.epoch), Some(new.epoch));
    }
    assert_eq!(
        store.commit(&write(&new, request.change())).await?,
        CommitReply::Applied
    );
    Ok(())
}
