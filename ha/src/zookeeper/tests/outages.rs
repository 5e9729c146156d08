//! Servers that stop, restart, or lose their data.

use super::*;

#[tokio::test]
async fn watches_follow_through_a_restart_of_the_server() -> TestResult {
    let mut server = server().await?;
    let (a, b) = (election(&server).await?, election(&server).await?);
    let (writer, reader) = (
        open_store(options(server.endpoints()), KINDS).await?,
        open_store(options(server.endpoints()), KINDS).await?,
    );
    let mut term = take(&a, "a").await?;
    let mut after = Change::default();
    for round in 0..2 {
        if round == 1 {
            server.restart().await?;
            // The term continues, whether or not the session survived the restart.
            settle("attached", async || {
                term.leader.nonce = alive(&a, None).await;
                a.attach(term.fence.token, &term.leader).await
            })
            .await;
        }
        for _ in 0..20 {
            let request = request(&term, after, vec![put("x", "1")]);
            commit(&writer, &request).await;
            after = request.change();
        }
        let mut changes = reader.changes();
        let seen = changes.wait_for(|change| *change == Some(after));
        tokio::time::timeout(BOUND, seen).await??;
        observe(&b, |view| view.leader.as_ref() == Some(&term.leader)).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_session_that_expired_is_replaced_and_the_term_goes_on() -> TestResult {
    let server = server().await?;
    let a = election(&server).await?;
    let store = open_store(options(server.endpoints()), KINDS).await?;
    let term = take(&a, "a").await?;
    let member = Member::named("host:6123/%");
    a.announce(&member).await?;
    assert_eq!(a.members().await?, std::slice::from_ref(&member));
    let first = request(&term, Change::default(), vec![put("x", "1")]);
    assert_eq!(store.commit(&first).await?, CommitReply::Applied);

    let old = alive(&a, None).await;
    let believed = a.session().borrow().clone();
    let SessionState::Alive {
        deadline: Some(deadline),
        timeout,
        ..
    } = believed
    else {
        panic!("{believed:?}");
    };
    assert_eq!(timeout, Duration::from_secs(2), "what the server granted");
    assert!(deadline <= Clock::Boottime.now().after(timeout));
    server.stop();
    let mut session = a.session();
    tokio::time::timeout(
        BOUND,
        session.wait_for(|state| *state == SessionState::None),
    )
    .await??;
    assert!(
        !believed.is_valid_at(Clock::Boottime.now()),
        "the deadline passed first"
    );
    let failed = store
        .commit(&request(&term, first.change(), vec![put("x", "2")]))
        .await;
    assert!(failed.is_err_and(|error| error.outcome() != Outcome::Fatal));
    server.cont();

    let nonce = alive(&a, Some(&old)).await;
    let seen = a.read().await?;
    let stale = a
        .advance(&seen, &seen.epoch.clone().expect("taken").0, &term.leader)
        .await;
    assert!(matches!(stale, Err(Error::SessionLost)), "{stale:?}");
    let leader = LeaderKey {
        nonce,
        ..term.leader.clone()
    };
    let token = term.fence.token;
    assert_eq!(
        settle("attach", async || a.attach(token, &leader).await).await,
        Attempt::Applied(token)
    );
    let second = request(&term, first.change(), vec![put("x", "3")]);
    commit(&store, &second).await;
    wait_until("the member under the new session", BOUND, async || {
        let members = a.members().await.map_err(|error| error.to_string())?;
        if members == std::slice::from_ref(&member) {
            Ok(())
        } else {
            Err(format!("{members:?}"))
        }
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_wiped_store_refuses_the_old_incarnation() -> TestResult {
    let mut server = server().await?;
    let a = election(&server).await?;
    let store = open_store(options(server.endpoints()), KINDS).await?;
    let term = take(&a, "a").await?;
    let old = alive(&a, None).await;
    server.restart_wiped().await?;
    // The other cluster's term has the same epoch and the same data version.
    let b = election(&server).await?;
    let other = take(&b, "b").await?;
    assert_eq!(
        (other.fence.token, other.fence.epoch),
        (term.fence.token, term.fence.epoch)
    );

    let late = request(&term, Change::default(), vec![put("x", "1")]);
    let reply = settle("an answer", async || store.commit(&late).await).await;
    let found = Verdict::OtherIncarnation(Some(other.fence.incarnation.clone()));
    assert_eq!(refused(reply, &late), found);
    let nonce = alive(&a, Some(&old)).await;
    let leader = LeaderKey {
        nonce,
        ..term.leader.clone()
    };
    let attempt = settle("an answer", async || {
        a.attach(term.fence.token, &leader).await
    })
    .await;
    assert!(matches!(attempt, Attempt::Refused(_)), "{attempt:?}");
    let attempt = settle("an answer", async || a.resign(term.fence.token).await).await;
    assert!(matches!(attempt, Attempt::Refused(_)), "{attempt:?}");
    assert_eq!(b.read().await?.leader, Some(other.leader));
    Ok(())
}

/// Deletes everything at and below `path`, as an operator would with the command line tool.
async fn delete_all(stranger: &zookeeper_client::Client, path: &str) -> TestResult {
    for child in stranger.list_children(path).await? {
        Box::pin(delete_all(stranger, &format!("{path}/{child}"))).await?;
    }
    Ok(stranger.delete(path, None).await?)
}

#[tokio::test]
async fn a_stranger_who_deletes_all_under_living_sessions_ends_the_incarnation() -> TestResult {
    let server = server().await?;
    let (a, b) = (election(&server).await?, election(&server).await?);
    let store = open_store(options(server.endpoints()), KINDS).await?;
    let old = take(&a, "a").await?;
    let first = request(&old, Change::default(), vec![put("x", "1")]);
    assert_eq!(store.commit(&first).await?, CommitReply::Applied);
    let stranger = zookeeper_client::Client::connect(&server.endpoint()).await?;
    delete_all(&stranger, "/tanist").await?;
    let second = request(&old, first.change(), vec![put("x", "2")]);
    // Through another store, because the first one believes that it knows the version of `changes`.
    let other = open_store(options(server.endpoints()), KINDS).await?;
    let verdict = refused(other.commit(&second).await?, &second);
    assert_eq!(verdict, Verdict::OtherIncarnation(None));
    assert_eq!(a.read().await?, ElectionView::default());

    // The new incarnation has the same token, epoch, change, and data version of `changes`.
    let new = take(&b, "b").await?;
    assert_eq!(
        (new.fence.token, new.fence.epoch),
        (old.fence.token, old.fence.epoch)
    );
    let theirs = request(&new, Change::default(), vec![put("x", "1")]);
    assert_eq!(other.commit(&theirs).await?, CommitReply::Applied);
    let verdict = refused(store.commit(&second).await?, &second);
    assert_eq!(
        verdict,
        Verdict::OtherIncarnation(Some(new.fence.incarnation.clone()))
    );
    let attempt = a.attach(old.fence.token, &old.leader).await?;
    assert!(matches!(attempt, Attempt::Refused(_)), "{attempt:?}");
    assert_eq!(b.read().await?.leader, Some(new.leader));
    Ok(())
}

#[tokio::test]
async fn a_quorum_lost_for_longer_than_the_session_changes_no_leader() -> TestResult {
    let mut ensemble = ZooKeeperEnsemble::start(3, ZooKeeperServerOptions::default()).await?;
    let a = open_election(options(ensemble.endpoints()), Clock::Boottime, true).await?;
    let store = open_store(options(ensemble.endpoints()), KINDS).await?;
    let mut term = take(&a, "a").await?;
    let first = request(&term, Change::default(), vec![put("x", "1")]);
    commit(&store, &first).await;
    let old = alive(&a, None).await;
    for server in &mut ensemble.servers()[..2] {
        server.kill();
    }
    let mut session = a.session();
    let lost = session.wait_for(|state| *state == SessionState::None);
    tokio::time::timeout(BOUND, lost).await??;
    assert!(
        a.read()
            .await
            .is_err_and(|error| error.outcome() != Outcome::Fatal)
    );
    for server in &mut ensemble.servers()[..2] {
        server.restart().await?;
    }
    term.leader.nonce = alive(&a, Some(&old)).await;
    let token = term.fence.token;
    let attached = settle("attached", async || a.attach(token, &term.leader).await).await;
    assert_eq!(attached, Attempt::Applied(token));
    commit(&store, &request(&term, first.change(), vec![put("x", "2")])).await;
    Ok(())
}
