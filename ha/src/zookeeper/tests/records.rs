//! Transactions and listings.

use super::*;

#[tokio::test]
async fn a_transaction_sent_twice_is_applied_once() -> TestResult {
    let server = server().await?;
    let a = election(&server).await?;
    let store = open_store(options(server.endpoints()), KINDS).await?;
    let term = take(&a, "a").await?;
    let first = request(&term, Change::default(), vec![put("x", "1")]);
    assert_eq!(store.commit(&first).await?, CommitReply::Applied);
    assert_eq!(
        refused(store.commit(&first).await?, &first),
        Verdict::AlreadyApplied
    );

    // A store without knowledge replaces existing nodes, and deletes existing and missing ones.
    let fresh = open_store(options(server.endpoints()), KINDS).await?;
    let delete = |name| Write::Delete {
        key: key(DOCUMENTS, name),
    };
    let second = request(
        &term,
        first.change(),
        vec![delete("none"), put("x", "2"), put("y", "2")],
    );
    assert_eq!(fresh.commit(&second).await?, CommitReply::Applied);
    // The first store's knowledge is outdated by now.
    let third = request(
        &term,
        second.change(),
        vec![delete("y"), delete("x"), put("z", "3")],
    );
    assert_eq!(store.commit(&third).await?, CommitReply::Applied);
    let fourth = request(&term, third.change(), vec![delete("y"), put("x", "4")]);
    assert_eq!(fresh.commit(&fourth).await?, CommitReply::Applied);
    let keys = ["x", "y", "z"].map(|name| key(DOCUMENTS, name));
    let values = store.get(&keys).await?;
    assert_eq!(
        values,
        [Some(Bytes::from("4")), None, Some(Bytes::from("3"))]
    );

    let touched = store.touched(0, 5).await?;
    let numbers: Vec<_> = touched
        .iter()
        .map(|entry| entry.as_ref().map(|entry| entry.change.number))
        .collect();
    assert_eq!(numbers, [None, Some(1), Some(2), Some(3), Some(4), None]);
    assert_eq!(touched[4].as_ref().map(|entry| entry.keys.len()), Some(2));
    assert_eq!(store.guard().await?.change, fourth.change());

    // Detached and attached again, it continues.
    let session = alive(&a, None).await;
    a.close().await;
    let fifth = request(&term, fourth.change(), vec![put("v", "5")]);
    assert_eq!(
        refused(store.commit(&fifth).await?, &fifth),
        Verdict::Detached
    );
    let again = election(&server).await?;
    let nonce = alive(&again, Some(&session)).await;
    let leader = LeaderKey {
        nonce,
        ..term.leader.clone()
    };
    assert_eq!(
        again.attach(term.fence.token, &leader).await?,
        Attempt::Applied(term.fence.token)
    );
    assert_eq!(store.commit(&fifth).await?, CommitReply::Applied);
    Ok(())
}

#[tokio::test]
async fn a_listing_goes_page_by_page_and_a_request_that_is_too_large_harms_nothing() -> TestResult {
    let server = server().await?;
    let a = election(&server).await?;
    let store = open_store(options(server.endpoints()), KINDS).await?;
    let term = take(&a, "a").await?;
    let mut after = Change::default();
    for batch in 0..3 {
        let names = (0..400).map(|number| format!("item-{:05}", batch * 400 + number));
        let write = names.map(|name| put(&name, "large")).collect();
        let request = request(&term, after, write);
        assert_eq!(store.commit(&request).await?, CommitReply::Applied);
        after = request.change();
    }
    let (mut page, mut names) = (None, Vec::new());
    loop {
        let listed = store.list(DOCUMENTS, page, 500).await?;
        assert!(listed.items.len() <= 500);
        names.extend(listed.items.into_iter().map(|(name, _)| name));
        page = listed.next;
        if page.is_none() {
            break;
        }
    }
    assert_eq!(names.len(), 1200);
    assert!(names.is_sorted());
    assert_eq!(store.list(REPORTS, None, 10).await?, Page::default());

    // A request within the limits passes, with names of maximum length.
    let limits = store.limits();
    let long = |number: usize| key(REPORTS, &format!("{number:0>200}"));
    let blank = Write::Put {
        key: long(0),
        value: Bytes::new(),
    };
    let value = Bytes::from(vec![7; limits.bytes / limits.writes - blank.size()]);
    let write = |number| Write::Put {
        key: long(number),
        value: value.clone(),
    };
    let full = request(&term, after, (0..limits.writes).map(write).collect());
    assert_eq!(store.commit(&full).await?, CommitReply::Applied);
    let value = Bytes::from(vec![7; 1 << 20]);
    let large = Write::Put {
        key: key(DOCUMENTS, "large"),
        value,
    };
    let large = request(&term, full.change(), vec![large]);
    let (failed, read) = tokio::join!(store.commit(&large), store.guard());
    assert!(matches!(failed, Err(Error::TooLarge { .. })), "{failed:?}");
    assert_eq!(read?.change, full.change());
    let next = request(&term, full.change(), vec![put("small", "1")]);
    assert_eq!(store.commit(&next).await?, CommitReply::Applied);
    Ok(())
}

#[tokio::test]
async fn a_late_duplicate_changes_nothing() -> TestResult {
    let server = server().await?;
    let a = election(&server).await?;
    let term = take(&a, "a").await?;
    let proxy = TcpProxy::start(server.address()).await?;
    let slow = ZooKeeperOptions {
        request_timeout: Duration::from_millis(300),
        ..options(vec![proxy.address().to_string()])
    };
    let store = settle("open", async || open_store(slow.clone(), KINDS).await).await;
    let first = request(&term, Change::default(), vec![put("x", "1")]);
    commit(&store, &first).await;
    let second = request(&term, first.change(), vec![put("x", "2"), put("y", "2")]);
    proxy.hold_requests();
    let lost = store.commit(&second).await;
    assert_eq!(
        lost.map_err(|error| error.outcome()),
        Err(Outcome::Ambiguous)
    );
    // No further request is sent while the connection is known to be broken.
    proxy.cut();
    wait_until("the loss is noticed", BOUND, async || {
        match store.guard().await {
            Err(Error::Unavailable { .. }) => Ok(()),
            other => Err(other),
        }
    })
    .await;
    proxy.forward();
    commit(&store, &second).await;
    let third = request(&term, second.change(), vec![put("x", "3")]);
    commit(&store, &third).await;

    proxy.hold_requests();
    let fourth = request(&term, third.change(), vec![put("x", "4")]);
    assert_eq!(
        store.commit(&fourth).await.map_err(|error| error.outcome()),
        Err(Outcome::Ambiguous)
    );
    proxy.freeze();
    let resolved = open_store(options(server.endpoints()), KINDS).await?;
    assert_eq!(resolved.commit(&fourth).await?, CommitReply::Applied);
    let fifth = request(&term, fourth.change(), vec![put("x", "5")]);
    assert_eq!(resolved.commit(&fifth).await?, CommitReply::Applied);
    proxy.thaw();
    wait_until("the late request arrived", BOUND, async || {
        match proxy.held_requests() {
            0 => Ok(()),
            held => Err(held),
        }
    })
    .await;
    assert_eq!(resolved.guard().await?.change, fifth.change());
    assert_eq!(
        resolved.get(&[key(DOCUMENTS, "x")]).await?,
        [Some(Bytes::from("5"))]
    );
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_is_removed_leaves_nothing_and_its_neighbours_alone() -> TestResult {
    let server = server().await?;
    let of = |namespace: &str| ZooKeeperOptions {
        namespace: format!("/tanist/{namespace}"),
        ..options(server.endpoints())
    };
    for namespace in ["removed", "removed-not"] {
        let election = open_election(of(namespace), Clock::Boottime, true).await?;
        let store = open_store(of(namespace), KINDS).await?;
        let term = take(&election, "a").await?;
        let mut last = Change::default();
        for _ in 0..3 {
            let some = (0..100).map(|n| put(&format!("item-{n}"), "1"));
            let next = request(&term, last, some.collect());
            assert_eq!(store.commit(&next).await?, CommitReply::Applied);
            last = next.change();
        }
    }
    // Repeated removal also succeeds.
    for _ in 0..2 {
        remove_cluster(of("removed")).await?;
    }
    let client = zookeeper_client::Client::connect(&server.endpoints().join(",")).await?;
    let left = client.list_children("/tanist").await?;
    assert_eq!(left, ["removed-not"]);
    let left = client
        .list_children("/tanist/removed-not/documents")
        .await?;
    assert_eq!(left.len(), 100);
    Ok(())
}
