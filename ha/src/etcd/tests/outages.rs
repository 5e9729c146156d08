//! Failing servers and connections, and credentials.

use super::*;

#[tokio::test]
async fn watches_follow_through_a_restart_of_the_server() -> TestResult {
    let mut server = EtcdServer::start(EtcdServerOptions::default()).await?;
    let options = options(server.endpoints(), "restart");
    let election = contender(&options).await?;
    let store = open_store(options.clone(), KINDS).await?;
    let fence = take(&election, "a").await?;
    let epoch = |epoch: Epoch| {
        move |view: &Option<ElectionView>| view.as_ref().is_some_and(|v| v.youngest() == epoch)
    };
    level(&mut election.observed(), epoch(fence.epoch)).await?;
    server.restart().await?;
    let other = contender(&options).await?;
    let new = take(&other, "b").await?;
    level(&mut election.observed(), epoch(new.epoch)).await?;
    let request = CommitRequest {
        fence: new,
        after: Change::default(),
        writes: vec![put("item", "x")],
    };
    assert_eq!(store.commit(&request).await?, CommitReply::Applied);
    level(&mut store.changes(), |change| {
        *change == Some(request.change())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_server_shows_its_identity_over_a_restart_and_another_one_shows_another() -> TestResult {
    let mut server = EtcdServer::start(EtcdServerOptions::default()).await?;
    let election = contender(&options(server.endpoints(), "identity")).await?;
    let identity = election.read().await?.store;
    assert!(identity.is_some(), "it is in each answer");
    server.restart().await?;
    let again = contender(&options(server.endpoints(), "identity")).await?;
    assert_eq!(again.read().await?.store, identity);
    let other = contender(&options(shared_server().await?.endpoints(), "identity")).await?;
    assert_ne!(other.read().await?.store, identity);
    Ok(())
}

#[tokio::test]
async fn a_wiped_store_refuses_the_terms_of_its_former_incarnation() -> TestResult {
    let mut server = EtcdServer::start(EtcdServerOptions::default()).await?;
    let options = options(server.endpoints(), "wiped");
    let election = contender(&options).await?;
    let store = open_store(options.clone(), KINDS).await?;
    let old = take(&election, "a").await?;
    server.restart_wiped().await?;
    let other = contender(&options).await?;
    let new = loop {
        // Until the revision that was the old term's token is reached again.
        let new = take(&other, "b").await?;
        if new.token >= old.token {
            break new;
        }
    };
    assert_eq!(
        new.token, old.token,
        "the trap: the same token in another incarnation"
    );
    let stale = CommitRequest {
        fence: old.clone(),
        after: Change::default(),
        writes: vec![put("item", "x")],
    };
    let CommitReply::Refused(guard) = store.commit(&stale).await? else {
        return Err("another incarnation's term wrote".into());
    };
    assert_eq!(
        guard.verdict(&stale),
        Verdict::OtherIncarnation(Some(new.incarnation))
    );
    let resigned = election.resign(old.token).await?;
    assert!(matches!(resigned, Attempt::Refused(_)), "{resigned:?}");
    Ok(())
}

#[tokio::test]
async fn a_lost_answer_is_ambiguous_and_a_refused_connection_is_not() -> TestResult {
    let server = shared_server().await?;
    let proxy = TcpProxy::start(server.address()).await?;
    let direct = options(server.endpoints(), "lost");
    let election = contender(&direct).await?;
    let fence = take(&election, "a").await?;
    let request_timeout = Duration::from_secs(1);
    let endpoints = vec![proxy.address().to_string()];
    let store = open_store(
        EtcdOptions {
            endpoints,
            request_timeout,
            ..direct
        },
        KINDS,
    )
    .await?;
    let request = |after, name: &str| CommitRequest {
        fence: fence.clone(),
        after,
        writes: vec![put(name, "x")],
    };

    let first = request(Change::default(), "first");
    proxy.drop_answers();
    let error = store.commit(&first).await.expect_err("its answer is lost");
    assert_eq!(error.outcome(), Outcome::Ambiguous, "{error}");
    proxy.cut();
    wait_until("a refused connection", BOUND, async || {
        match store.commit(&first).await {
            Err(error @ Error::Unreachable { .. }) => {
                assert!(
                    error.to_string().contains(&proxy.address().to_string()),
                    "{error}"
                );
                Ok(())
            }
            other => Err(other),
        }
    })
    .await;
    proxy.forward();
    wait_until("a definite answer", BOUND, async || {
        match store.commit(&first).await {
            Ok(CommitReply::Refused(guard)) => {
                assert_eq!(guard.verdict(&first), Verdict::AlreadyApplied);
                Ok(())
            }
            other => Err(other),
        }
    })
    .await;

    // A request that arrives after its outcome was definite changes nothing.
    let second = request(first.change(), "second");
    proxy.hold_requests();
    let held = wait_until("the held request", BOUND, async || {
        match proxy.held_requests() {
            held if held > 0 => {
                proxy.freeze();
                Ok(())
            }
            held => Err(held),
        }
    });
    let (error, ()) = tokio::join!(store.commit(&second), held);
    let error = error.expect_err("its connection is gone");
    assert_eq!(error.outcome(), Outcome::Ambiguous, "{error}");
    assert_eq!(store.commit(&second).await?, CommitReply::Applied);
    let third = CommitRequest {
        writes: vec![Write::Delete { key: key("second") }],
        ..request(second.change(), "second")
    };
    assert_eq!(store.commit(&third).await?, CommitReply::Applied);
    proxy.thaw();
    wait_until("the late request's delivery", BOUND, async || {
        match proxy.held_requests() {
            0 => Ok(()),
            held => Err(held),
        }
    })
    .await;
    assert_eq!(store.guard().await?.change, third.change());
    assert_eq!(store.get(&[key("second")]).await?, [None]);
    Ok(())
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_an_expired_token_is_renewed() -> TestResult {
    let user = ("tanist".to_owned(), "secret".to_owned());
    let server = EtcdServer::start(EtcdServerOptions {
        user: Some(user.clone()),
        token_ttl: Some(Duration::from_secs(1)),
        ..EtcdServerOptions::default()
    })
    .await?;
    // It is renewed each second.
    let nobody = EtcdOptions {
        lease_ttl: Duration::from_secs(3),
        ..options(server.endpoints(), "denied")
    };
    let wrong = Some((user.0.clone(), "wrong".to_owned()));
    for refused in [
        nobody.clone(),
        EtcdOptions {
            user: wrong,
            ..nobody.clone()
        },
    ] {
        let error = open_store(refused.clone(), KINDS)
            .await
            .expect_err("denied");
        assert!(matches!(error, Error::Denied { .. }), "{error}");
        let error = open_election(refused, Clock::Boottime, true)
            .await
            .expect_err("denied");
        assert!(matches!(error, Error::Denied { .. }), "{error}");
    }
    let right = EtcdOptions {
        user: Some(user),
        ..nobody
    };
    assert!(!format!("{right:?}").contains("secret"));
    let election = contender(&right).await?;
    let store = open_store(right, KINDS).await?;
    let fence = take(&election, "a").await?;
    let nonce = nonce(&election).await?;
    // Commits and renewals continue while tokens expire.
    let mut after = Change::default();
    let started = Clock::Boottime.now();
    while Clock::Boottime.now().since(started) < Duration::from_secs(4) {
        let writes = vec![put("item", "x")];
        let request = CommitRequest {
            fence: fence.clone(),
            after,
            writes,
        };
        assert_eq!(store.commit(&request).await?, CommitReply::Applied);
        after = request.change();
        level(&mut store.changes(), |change| *change == Some(after)).await?;
    }
    assert_eq!(
        election.session().borrow().nonce(),
        Some(&nonce),
        "still the same lease"
    );
    Ok(())
}

#[tokio::test]
async fn an_unreachable_server_is_named_soon() -> TestResult {
    let port = crate::testing::servers::ports::free_port();
    let options = options(vec![format!("http://127.0.0.1:{port}")], "nowhere");
    let opening = open_election(options, Clock::Boottime, false);
    let error = tokio::time::timeout(Duration::from_secs(5), opening)
        .await?
        .expect_err("nothing listens there");
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&port.to_string()), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_stopped_and_a_dead_member_of_a_cluster_are_left() -> TestResult {
    let mut cluster = EtcdCluster::start(3, EtcdServerOptions::default()).await?;
    let options = EtcdOptions {
        request_timeout: Duration::from_secs(2),
        ..options(cluster.endpoints(), "cluster")
    };
    let election = contender(&options).await?;
    let store = open_store(options, KINDS).await?;
    let fence = take(&election, "a").await?;
    let mut after = Change::default();
    for member in 0..3 {
        if member % 2 == 0 {
            cluster.servers()[member].kill();
        } else {
            cluster.servers()[member].stop();
        }
        let request = CommitRequest {
            fence: fence.clone(),
            after,
            writes: vec![put("item", "x")],
        };
        after = request.change();
        wait_until("a definite answer", BOUND, async || {
            match store.commit(&request).await {
                Ok(CommitReply::Applied) => Ok(()),
                Ok(CommitReply::Refused(guard)) => match guard.verdict(&request) {
                    Verdict::AlreadyApplied => Ok(()),
                    // `leader` was removed with its lease meanwhile: the election part writes it again.
                    Verdict::Detached => {
                        let process = ProcessId::new("a");
                        let nonce = election.session().borrow().nonce().cloned();
                        if let Some(nonce) = nonce {
                            let leader = LeaderKey {
                                epoch: fence.epoch,
                                process,
                                nonce,
                            };
                            let _ = election.attach(fence.token, &leader).await;
                        }
                        Err(format!("{guard:?}"))
                    }
                    other => panic!("{other:?}"),
                },
                Err(error) => Err(error.to_string()),
            }
        })
        .await;
        level(&mut store.changes(), |change| *change == Some(after)).await?;
        level(&mut election.observed(), |view| {
            view.as_ref()
                .is_some_and(|view| view.youngest() == fence.epoch)
        })
        .await?;
        if member % 2 == 0 {
            cluster.servers()[member].restart().await?;
        } else {
            cluster.servers()[member].cont();
        }
        cluster.wait_ready().await?;
    }
    Ok(())
}

#[tokio::test]
async fn dropping_ends_the_tasks() -> TestResult {
    let server = shared_server().await?;
    let proxy = TcpProxy::start(server.address()).await?;
    let options = options(vec![proxy.address().to_string()], "dropped");
    let election = contender(&options).await?;
    let store = open_store(options, KINDS).await?;
    nonce(&election).await?;
    drop((election, store));
    wait_until("the end of all connections", BOUND, async || {
        match proxy.connections() {
            0 => Ok(()),
            connections => Err(connections),
        }
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn a_term_goes_on_after_the_quorum_was_lost_for_longer_than_its_lease() -> TestResult {
    let mut cluster = EtcdCluster::start(3, EtcdServerOptions::default()).await?;
    let options = EtcdOptions {
        lease_ttl: Duration::from_secs(2),
        request_timeout: Duration::from_secs(1),
        ..options(cluster.endpoints(), "quorum")
    };
    let election = contender(&options).await?;
    let store = open_store(options, KINDS).await?;
    let fence = take(&election, "a").await?;
    for server in &mut cluster.servers()[1..] {
        server.kill();
    }
    wait_until("the end of belief", BOUND, async || {
        let state = election.session().borrow().clone();
        if state.is_valid_at(Clock::Boottime.now()) {
            Err(state)
        } else {
            Ok(())
        }
    })
    .await;
    let error = election.read().await.expect_err("there is no quorum");
    assert_ne!(error.outcome(), Outcome::Fatal, "{error}");
    cluster.restart().await?;

    let mut session = election.session();
    let believed = |state: &SessionState| state.is_valid_at(Clock::Boottime.now());
    let state = level(&mut session, believed).await?;
    let leader = LeaderKey {
        epoch: fence.epoch,
        process: ProcessId::new("a"),
        nonce: state.nonce().cloned().expect("it is believed"),
    };
    assert_eq!(
        election.attach(fence.token, &leader).await?,
        Attempt::Applied(fence.token)
    );
    let request = CommitRequest {
        fence,
        after: Change::default(),
        writes: vec![put("item", "x")],
    };
    assert_eq!(store.commit(&request).await?, CommitReply::Applied);
    level(&mut store.changes(), |change| {
        *change == Some(request.change())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_token_that_ended_with_the_server_is_renewed() -> TestResult {
    let user = ("root".to_owned(), "secret".to_owned());
    let mut server = EtcdServer::start(EtcdServerOptions {
        user: Some(user.clone()),
        ..EtcdServerOptions::default()
    })
    .await?;
    let options = EtcdOptions {
        user: Some(user),
        ..options(server.endpoints(), "restarted-denied")
    };
    let election = contender(&options).await?;
    let store = open_store(options, KINDS).await?;
    let fence = take(&election, "a").await?;
    server.restart().await?;
    let request = CommitRequest {
        fence,
        after: Change::default(),
        writes: vec![put("item", "x")],
    };
    wait_until("a definite answer", BOUND, async || {
        match store.commit(&request).await {
            Ok(CommitReply::Applied) => Ok(()),
            // Errors of the old connection; a refused token is not an error.
            Err(error) if error.outcome() != Outcome::Fatal => Err(error),
            other => panic!("{other:?}"),
        }
    })
    .await;
    level(&mut store.changes(), |change| {
        *change == Some(request.change())
    })
    .await?;
    Ok(())
}
