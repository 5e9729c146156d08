//! Single cases.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_cache_that_stands_at_the_number_is_proven_without_a_read() {
    let (cluster, term, store, mut cache) = followed().await;
    term.put("f", "1").await;
    term.put("a", "2").await;
    follow_to(&mut cache, 7).await;
    let status = *cache.status.borrow();
    assert_eq!((status.records, status.lag()), (6, Some(0)));
    store.reads();
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.proof, Proof::Current);
    assert_eq!((proven.from_cache, proven.read), (6, 0));
    assert!(store.reads().is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_was_written_between_the_last_look_and_the_deposing_is_read() {
    let (cluster, term, store, mut cache) = followed().await;
    term.put("b", "2").await;
    term.put("f", "1").await;
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.proof, Proof::CaughtUp);
    assert_eq!((proven.from_cache, proven.read), (4, 2));
    assert_eq!(store.reads(), ["touched", "get"]);
}

#[tokio::test(start_paused = true)]
async fn a_record_that_was_deleted_right_before_the_deposing_is_not_there_any_more() {
    let (cluster, term, _, mut cache) = followed().await;
    let ended = vec![
        Write::Delete { key: state("c") },
        put(key(REPORTS, "c"), "finished"),
    ];
    term.commit(ended).await;
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.records.get(&state("c")), None);
    assert!(proven.records.get(&key(REPORTS, "c")).is_some());
    assert_eq!((proven.from_cache, proven.read), (4, 1));
}

#[tokio::test(start_paused = true)]
async fn a_record_that_went_and_came_again_is_the_new_one() {
    let (cluster, term, _, mut cache) = followed().await;
    term.delete("a").await;
    term.put("a", "again").await;
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.records.get(&state("a")), Some(&Bytes::from("again")));
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_younger_than_the_position_is_read_again() {
    let (cluster, term, store, mut cache) = followed().await;
    term.put("a", "2").await;
    // After the ring was read, and before the value is read.
    let delete = vec![Write::Delete { key: state("a") }, put(state("b"), "2")];
    let delete = Act::Commit(term.clone(), delete);
    // It follows no further than requested.
    store.act([Act::Nothing, delete, Act::Hang]);
    follow_to(&mut cache, 6).await;
    store.act_no_more();
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.proof, Proof::CaughtUp);
    assert_eq!(proven.records.get(&state("a")), None);
}

#[tokio::test(start_paused = true)]
async fn what_is_written_while_everything_is_listed_is_not_missed() {
    let cluster = MemoryCluster::default();
    let term = Term::begin(&cluster, "first").await;
    for number in 0..9 {
        term.put(&format!("item-{number}"), "1").await;
    }
    for place in 0..6 {
        let store = Met::new(&cluster);
        let mut cache = cache_of(&store, ROOM);
        let number = term.number().await.number;
        let writes = vec![
            put(state(&format!("a-first-{place}")), "x"),
            put(state("item-4"), format!("{place}")),
            Write::Delete {
                key: state(&format!("item-{place}")),
            },
        ];
        store.act(std::iter::repeat_n(Act::Nothing, place));
        store.act([Act::Commit(term.clone(), writes)]);
        follow_to(&mut cache, number + 1).await;
        let at = term.number().await;
        assert_eq!(at.number, number + 1);
        let proven = cache
            .prove(&term.fence.incarnation, at)
            .await
            .expect("proven");
        assert_eq!(proven.proof, Proof::Current);
        assert_eq!(
            proven.records,
            stored(&cluster).await,
            "written at read {place}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_the_ring_has_left_behind_lists_again() {
    for behind in [CHANGES_RING, CHANGES_RING + 1] {
        let (cluster, term, store, mut cache) = followed().await;
        term.delete("a").await;
        for _ in 1..behind {
            term.put("b", "x").await;
        }
        let proven = taken_over(&cluster, &mut cache).await;
        if behind == CHANGES_RING {
            assert_eq!(proven.proof, Proof::CaughtUp);
            assert!(!store.reads().contains(&"list"));
        } else {
            assert_eq!(proven.proof, Proof::Listed);
            assert_eq!((proven.from_cache, proven.read), (0, 4));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_ring_that_is_passed_while_it_is_read_is_noticed() {
    let (cluster, term, store, mut cache) = followed().await;
    term.delete("a").await;
    // The watch reported one transaction; by the time its entry is read, the entry belongs to another one.
    let mut status = cache.status.subscribe();
    let many = (0..CHANGES_RING).map(|number| {
        let writes = vec![put(state("b"), number.to_string())];
        (term.clone(), writes)
    });
    let many: Vec<_> = many.collect();
    tokio::select! {
        never = cache.follow() => match never {},
        () = async {
            for (term, writes) in many {
                term.commit(writes).await;
            }
            let end = term.number().await;
            status.wait_for(|it| it.change == Some(end)).await.expect("it lives");
        } => {}
    }
    drop(store);
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.records.get(&state("a")), None);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_tells_nothing_costs_time_and_no_record() {
    let (cluster, term, store, mut cache) = followed().await;
    store.faults().watch_lag(Duration::from_secs(3600));
    term.put("a", "2").await;
    term.delete("b").await;
    let before_it_compares = Duration::from_secs(50);
    let following = tokio::time::timeout(before_it_compares, cache.follow()).await;
    assert!(following.is_err());
    assert_eq!(cache.status.borrow().change.map(|it| it.number), Some(5));
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!((proven.proof, proven.read), (Proof::CaughtUp, 1));
}

#[tokio::test(start_paused = true)]
async fn records_beyond_the_bound_are_known_by_name_and_read_at_the_takeover() {
    let cluster = MemoryCluster::default();
    let term = Term::begin(&cluster, "first").await;
    let store = Met::new(&cluster);
    let mut cache = cache_of(&store, 3000);
    for number in 1..=8 {
        term.put(&format!("item-{number}"), &"x".repeat(500)).await;
        follow_to(&mut cache, number).await;
    }
    let status = *cache.status.borrow();
    assert_eq!((status.records, status.named_only), (8, 4));
    // Room for some of the others.
    term.delete("item-1").await;
    term.delete("item-2").await;
    follow_to(&mut cache, 10).await;
    let status = *cache.status.borrow();
    assert_eq!((status.records, status.named_only), (6, 2));
    assert!(status.bytes <= 3000, "{status:?}");
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.proof, Proof::Current);
    assert_eq!((proven.from_cache, proven.read), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn a_proof_that_reads_long_shows_that_it_moves_and_goes_on_where_it_failed() {
    let cluster = MemoryCluster::default();
    let term = Term::begin(&cluster, "first").await;
    let records = 8 * PAGE;
    let numbers: Vec<usize> = (0..records).collect();
    for some in numbers.chunks(100) {
        let writes = some.iter().map(|it| put(state(&format!("{it}")), "x"));
        term.commit(writes.collect()).await;
    }
    let at = term.number().await;
    let store = Met::new(&cluster);
    let mut cache = cache_of(&store, 50);
    follow_to(&mut cache, at.number).await;
    let status = cache.status.subscribe();
    assert_eq!(status.borrow().named_only, records);
    let before = status.borrow().reads;

    // After some reads were answered, with others in flight.
    store.faults().delay(Duration::from_secs(50));
    store.reads();
    store.act(std::iter::repeat_n(Act::Nothing, 6));
    store.act([Act::Fail]);
    let failed = cache.prove(&term.fence.incarnation, at).await;
    failed.expect_err("a read fails");
    let moved = usize::try_from(status.borrow().reads - before).expect("a few");
    assert!((1..8).contains(&moved), "{moved}");
    store.reads();
    let proven = cache.prove(&term.fence.incarnation, at).await;
    assert_eq!(proven.expect("proven").records, stored(&cluster).await);
    assert_eq!(store.reads().len(), 8 - moved, "the rest alone");
}

#[tokio::test(start_paused = true)]
async fn another_incarnation_at_the_same_number_is_read_again() {
    let (cluster, term, _, mut cache) = followed().await;
    cluster.wipe();
    let other = Term::begin(&cluster, "other").await;
    assert_eq!(other.fence.epoch, term.fence.epoch);
    for _ in 0..5 {
        other.put("z", "1").await;
    }
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!(proven.proof, Proof::Listed);
    assert_eq!(proven.records.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_went_back_is_listed_again_by_its_followers() {
    let (cluster, _, _, mut cache) = followed().await;
    cluster.wipe();
    let other = Term::begin(&cluster, "other").await;
    other.put("z", "1").await;
    follow_to(&mut cache, 1).await;
    assert_eq!(cache.status.borrow().records, 1);
    let proven = taken_over(&cluster, &mut cache).await;
    assert_eq!((proven.from_cache, proven.read), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn an_empty_store_is_nothing_to_stand_on() {
    let cluster = MemoryCluster::default();
    let store = Met::new(&cluster);
    let mut cache = cache_of(&store, ROOM);
    let following = tokio::time::timeout(Duration::from_secs(1), cache.follow()).await;
    assert!(following.is_err());
    assert_eq!(cache.status.borrow().lag(), None);
    // The first leader, with no records to recover.
    let term = Term::begin(&cluster, "first").await;
    let at = term.number().await;
    let proven = cache
        .prove(&term.fence.incarnation, at)
        .await
        .expect("proven");
    assert!(proven.records.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_proof_gives_the_records_away_and_leaves_nothing() {
    let (cluster, term, store, mut cache) = followed().await;
    taken_over(&cluster, &mut cache).await;
    let status = *cache.status.borrow();
    assert_eq!((status.change, status.records, status.bytes), (None, 0, 0));
    drop(term);
    store.reads();
    // After the term it starts empty.
    follow_to(&mut cache, 5).await;
    assert_eq!(store.reads().first(), Some(&"guard"));
    assert_eq!(cache.status.borrow().records, 5);
}

#[tokio::test(start_paused = true)]
async fn a_number_that_moved_on_proves_nothing() {
    let (cluster, _, _, mut cache) = followed().await;
    let deposed = Term::begin(&cluster, "deposed").await;
    let at = deposed.number().await;
    let younger = Term::begin(&cluster, "younger").await;
    younger.put("a", "2").await;
    follow_to(&mut cache, 6).await;
    let proven = cache.prove(&deposed.fence.incarnation, at).await;
    assert!(proven.is_err(), "{proven:?}");
    let at = younger.number().await;
    let proven = cache
        .prove(&younger.fence.incarnation, at)
        .await
        .expect("proven");
    assert_eq!(proven.records, stored(&cluster).await);
}

#[tokio::test(start_paused = true)]
async fn a_proof_that_fails_at_any_read_succeeds_when_it_is_tried_again() {
    for failing in 0..8 {
        let (cluster, term, store, mut cache) = followed().await;
        let is_cold = failing % 2 == 0;
        if is_cold {
            cache = cache_of(&store, ROOM);
        }
        term.put("a", "2").await;
        store.act(std::iter::repeat_n(Act::Nothing, failing / 2));
        store.act([Act::Fail]);
        let successor = Term::begin(&cluster, "successor").await;
        let at = successor.number().await;
        let incarnation = &successor.fence.incarnation;
        let mut proven = cache.prove(incarnation, at).await;
        if proven.is_err() {
            proven = cache.prove(incarnation, at).await;
        }
        assert_eq!(proven.expect("proven").records, stored(&cluster).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_is_interrupted_at_any_moment_stays_right() {
    for stop_after in 0..40 {
        let (cluster, term, store, mut cache) = followed().await;
        if stop_after % 2 == 0 {
            cache = cache_of(&store, ROOM);
        }
        store.faults().delay(Duration::from_millis(10));
        term.put("a", "2").await;
        term.delete("b").await;
        let bound = Duration::from_millis(3 * stop_after);
        let _ = tokio::time::timeout(bound, cache.follow()).await;
        term.put("c", "2").await;
        taken_over(&cluster, &mut cache).await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_changed_by_hand_is_found_within_a_round_and_what_a_transaction_changed_is_none_of_it()
 {
    let (cluster, term, store, mut cache) = followed().await;
    cluster.overwrite(&state("a"), None);
    cluster.overwrite(&state("b"), Some(Bytes::from("by hand")));
    cluster.overwrite(&key(DOCUMENTS, "z"), Some(Bytes::from("by hand")));
    // During the comparison the term writes, also to records that were changed by hand.
    let ended = vec![
        put(state("c"), "2"),
        put(state("d"), "2"),
        Write::Delete { key: state("e") },
    ];
    let mut status = cache.status.subscribe();
    store.act([Act::Nothing, Act::Nothing, Act::Commit(term.clone(), ended)]);
    let noticed = async {
        tokio::select! {
            never = cache.follow() => match never {},
            found = status.wait_for(|it| it.differed >= 3) => drop(found.expect("the cache lives")),
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(70), noticed).await;
    assert!(in_time.is_ok(), "{:?}", cache.status.borrow());
    // An hour of rounds finds no further difference.
    let _ = tokio::time::timeout(Duration::from_secs(3600), cache.follow()).await;
    assert_eq!(cache.status.borrow().differed, 3);
    taken_over(&cluster, &mut cache).await;
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_records_are_compared_in_some_minutes_at_a_bounded_rate() {
    let cluster = MemoryCluster::default();
    let term = Term::begin(&cluster, "first").await;
    let value = vec![b'v'; 1500];
    for some in (0..10_000).collect::<Vec<u32>>().chunks(50) {
        let of_number = |number: &u32| {
            let name = format!("{number:05}");
            [
                put(key(DOCUMENTS, &name), &value),
                put(state(&name), &value),
            ]
        };
        term.commit(some.iter().flat_map(of_number).collect()).await;
    }
    let options = CacheOptions {
        kinds: vec![DOCUMENTS, ITEMS],
        max_bytes: 64 << 20,
        compare_interval: Duration::from_secs(60),
    };
    let store = Arc::new(cluster.store());
    let mut cache = WarmCache::new(store, options, watch::Sender::default());
    follow_to(&mut cache, 200).await;
    let reads_before = cache.status.borrow().reads;
    let last = state("09999");
    cluster.overwrite(&last, Some(Bytes::from("by hand")));
    let mut status = cache.status.subscribe();
    let began = Instant::now();
    tokio::select! {
        never = cache.follow() => match never {},
        found = status.wait_for(|it| it.differed == 1) => drop(found.expect("the cache lives")),
    }
    let took = began.elapsed();
    assert!(took < Duration::from_secs(60 + 180), "{took:?}");
    // One page a second, and a second read of differing records.
    let reads = cache.status.borrow().reads - reads_before;
    let comparing = took.as_secs() - 60;
    assert!(reads <= comparing + 3, "{reads} reads in {comparing} s");
}
