//! Random actions of a term, of time and of the store.

use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Move {
    Put(u8, usize),
    Delete(u8),
    /// A put during the cache's next reads, after this number of reads.
    PutDuring(usize, u8, usize),
    FailDuring(usize),
    Follow(u64),
    Depose,
    LoseWatch(bool),
    TakeOver,
    ByHand(u8, Option<usize>),
}

fn moves(by_hand: u32) -> impl Strategy<Value = Vec<Move>> {
    let one = prop_oneof![
        4 => (0_u8..6, 0_usize..700).prop_map(|(name, size)| Move::Put(name, size)),
        2 => (0_u8..6).prop_map(Move::Delete),
        3 => (0_usize..5, 0_u8..6, 0_usize..700)
            .prop_map(|(after, name, size)| Move::PutDuring(after, name, size)),
        1 => (0_usize..5).prop_map(Move::FailDuring),
        4 => (0_u64..50).prop_map(Move::Follow),
        1 => Just(Move::Depose),
        1 => any::<bool>().prop_map(Move::LoseWatch),
        1 => Just(Move::TakeOver),
        by_hand => (0_u8..6, prop::option::of(0_usize..700))
            .prop_map(|(name, size)| Move::ByHand(name, size)),
    ];
    prop::collection::vec(one, 1..40)
}

async fn play(moves: Vec<Move>) {
    let cluster = MemoryCluster::default();
    let mut term = Term::begin(&cluster, "first").await;
    let store = Met::new(&cluster);
    store.faults().delay(Duration::from_millis(3));
    let mut cache = cache_of(&store, 2000);
    let value = |size: usize| vec![b'v'; size];
    let mut by_hand = false;
    for one in moves {
        match one {
            Move::Put(name, size) => {
                let write = put(state(&name.to_string()), value(size));
                term.commit(vec![write]).await;
            }
            Move::Delete(name) => {
                term.delete(&name.to_string()).await;
            }
            Move::PutDuring(after, name, size) => {
                let write = put(state(&name.to_string()), value(size));
                store.act(std::iter::repeat_n(Act::Nothing, after));
                store.act([Act::Commit(term.clone(), vec![write])]);
            }
            Move::FailDuring(after) => {
                store.act(std::iter::repeat_n(Act::Nothing, after));
                store.act([Act::Fail]);
            }
            Move::Follow(millis) => {
                let bound = Duration::from_millis(millis);
                let _ = tokio::time::timeout(bound, cache.follow()).await;
            }
            Move::Depose => {
                store.acts.lock().clear();
                term = Term::begin(&cluster, "next").await;
            }
            Move::LoseWatch(lost) => {
                let lag = if lost { 3600 } else { 0 };
                store.faults().watch_lag(Duration::from_secs(lag));
            }
            Move::TakeOver => {
                // Late writes of the deposed term are refused.
                store.acts.lock().clear();
                term = Term::begin(&cluster, "next").await;
                let at = term.number().await;
                let proven = cache
                    .prove(&term.fence.incarnation, at)
                    .await
                    .expect("proven");
                if !by_hand {
                    assert_eq!(proven.records, stored(&cluster).await);
                }
            }
            Move::ByHand(name, size) => {
                by_hand = true;
                let value = size.map(|size| Bytes::from(value(size)));
                cluster.overwrite(&state(&name.to_string()), value);
            }
        }
        let status = *cache.status.borrow();
        assert!(status.bytes <= 2000 + 6 * 200, "{status:?}");
    }
    store.acts.lock().clear();
    if by_hand {
        store.faults().watch_lag(Duration::ZERO);
        let rounds = Duration::from_secs(300);
        let _ = tokio::time::timeout(rounds, cache.follow()).await;
    }
    taken_over(&cluster, &mut cache).await;
    assert!(term.fence.epoch >= Epoch::new(1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn whatever_happens_a_proven_cache_is_what_the_store_holds(moves in moves(0)) {
        run(moves);
    }

    #[test]
    fn whatever_is_changed_by_hand_a_cache_that_compares_comes_to_what_the_store_holds(moves in moves(4)) {
        run(moves);
    }
}

fn run(moves: Vec<Move>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(play(moves));
}
