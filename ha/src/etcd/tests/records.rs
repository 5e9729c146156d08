//! Transactions and listings.

use super::*;

#[tokio::test]
async fn a_transaction_that_is_sent_twice_is_applied_once() -> TestResult {
    let options = options(shared_server().await?.endpoints(), "twice");
    let election = contender(&options).await?;
    let store = open_store(options, KINDS).await?;
    let fence = take(&election, "a").await?;
    let first = CommitRequest {
        fence: fence.clone(),
        after: Change::default(),
        writes: vec![put("item", "1"), put("other", "1")],
    };
    assert_eq!(store.commit(&first).await?, CommitReply::Applied);
    let CommitReply::Refused(guard) = store.commit(&first).await? else {
        return Err("applied twice".into());
    };
    assert_eq!(guard.verdict(&first), Verdict::AlreadyApplied);

    let second = CommitRequest {
        fence,
        after: first.change(),
        writes: vec![put("item", "2"), Write::Delete { key: key("other") }],
    };
    assert_eq!(store.commit(&second).await?, CommitReply::Applied);
    let CommitReply::Refused(guard) = store.commit(&first).await? else {
        return Err("a late duplicate was applied".into());
    };
    assert_eq!(guard.verdict(&first), Verdict::Overtaken(second.change()));
    let values = store.get(&[key("other"), key("item")]).await?;
    assert_eq!(values, [None, Some(Bytes::from("2"))]);
    let touched = store.touched(0, 2).await?;
    assert_eq!(
        touched,
        [None, Some(first.touched()), Some(second.touched())]
    );
    assert_eq!(
        store.touched(1025, 1025).await?,
        [None],
        "the ring has another's entry there"
    );
    level(&mut store.changes(), |change| {
        *change == Some(second.change())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn a_listing_is_paged_and_pinned_to_the_revision_of_its_first_page() -> TestResult {
    let server = shared_server().await?;
    let options = options(server.endpoints(), "paged");
    let election = contender(&options).await?;
    let store = open_store(options, KINDS).await?;
    let fence = take(&election, "a").await?;
    let mut after = Change::default();
    for batch in 0..3 {
        let writes = (0..100)
            .map(|n| put(&format!("item-{:03}", batch * 100 + n), "x"))
            .collect();
        let request = CommitRequest {
            fence: fence.clone(),
            after,
            writes,
        };
        assert_eq!(store.commit(&request).await?, CommitReply::Applied);
        after = request.change();
    }
    let first = store.list(DOCUMENTS, None, 120).await?;
    assert_eq!(first.items.len(), 120);
    let writes = vec![
        put("item-299x", "late"),
        Write::Delete {
            key: key("item-150"),
        },
    ];
    let request = CommitRequest {
        fence,
        after,
        writes,
    };
    assert_eq!(store.commit(&request).await?, CommitReply::Applied);

    let (mut names, mut next) = (first.items.len(), first.next.clone());
    while let Some(token) = next {
        let page = store.list(DOCUMENTS, Some(token), 120).await?;
        names += page.items.len();
        next = page.next;
    }
    assert_eq!(names, 300, "as at the first page");

    // When that revision is compacted, the listing continues at the newest one.
    let mut client = etcd_client::Client::connect(server.endpoints(), None).await?;
    let newest = client
        .get("x", None)
        .await?
        .header()
        .map(|header| header.revision());
    client
        .compact(newest.expect("etcd sends headers"), None)
        .await?;
    let page = store.list(DOCUMENTS, first.next, 1000).await?;
    assert_eq!(page.items.len(), 180, "without item-150, with item-299x");
    assert_eq!(page.next, None);
    assert!(store.list(REPORTS, None, 10).await?.items.is_empty());
    Ok(())
}

#[tokio::test]
async fn large_items_are_listed_in_pages_that_fit() -> TestResult {
    let options = options(shared_server().await?.endpoints(), "large");
    let election = contender(&options).await?;
    let store = open_store(options, KINDS).await?;
    let fence = take(&election, "a").await?;
    let value = Bytes::from(vec![7; store.limits().bytes - 1024]);
    let mut after = Change::default();
    for n in 0..40 {
        let writes = vec![put(&format!("item-{n:02}"), value.clone())];
        let request = CommitRequest {
            fence: fence.clone(),
            after,
            writes,
        };
        assert_eq!(store.commit(&request).await?, CommitReply::Applied);
        after = request.change();
    }
    let (mut sizes, mut next) = (Vec::new(), None);
    loop {
        let page = store.list(DOCUMENTS, next, 900).await?;
        sizes.extend(page.items.iter().map(|(_, value)| value.len()));
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(sizes, vec![value.len(); 40]);
    Ok(())
}

#[tokio::test]
async fn a_transaction_that_is_too_large_is_refused_before_it_is_sent() -> TestResult {
    let options = options(shared_server().await?.endpoints(), "too-large");
    let election = contender(&options).await?;
    let store = open_store(options, KINDS).await?;
    let fence = take(&election, "a").await?;
    let request = |writes| CommitRequest {
        fence: fence.clone(),
        after: Change::default(),
        writes,
    };
    let large = request(vec![put("item", vec![0; store.limits().bytes + 1])]);
    let error = store.commit(&large).await.expect_err("too large");
    assert!(matches!(error, Error::TooLarge { .. }), "{error}");
    assert_eq!(error.outcome(), Outcome::Fatal);
    let most = (0..store.limits().writes).map(|n| put(&format!("item-{n}"), "x"));
    let many = request(most.clone().chain([put("more", "x")]).collect());
    let error = store.commit(&many).await.expect_err("too many");
    assert_eq!(error.outcome(), Outcome::Fatal);
    assert_eq!(
        store.commit(&request(most.collect())).await?,
        CommitReply::Applied
    );
    Ok(())
}

#[tokio::test]
async fn a_cluster_that_is_removed_leaves_nothing_and_its_neighbours_alone() -> TestResult {
    let endpoints = shared_server().await?.endpoints();
    for namespace in ["removed", "removed-not"] {
        let options = options(endpoints.clone(), namespace);
        let election = contender(&options).await?;
        let store = open_store(options, KINDS).await?;
        let first = CommitRequest {
            fence: take(&election, "a").await?,
            after: Change::default(),
            writes: vec![put("item", "1"), put("other", "1")],
        };
        assert_eq!(store.commit(&first).await?, CommitReply::Applied);
    }
    // Repeated removal also succeeds.
    for _ in 0..2 {
        remove_cluster(options(endpoints.clone(), "removed")).await?;
    }
    let mut client = etcd_client::Client::connect(&endpoints, None).await?;
    let mut count = async |prefix: &str| {
        let below = etcd_client::GetOptions::new().with_prefix();
        client.get(prefix, Some(below.with_count_only())).await
    };
    assert_eq!(count("/test/removed/").await?.count(), 0);
    assert!(count("/test/removed-not/").await?.count() > 2);
    Ok(())
}
