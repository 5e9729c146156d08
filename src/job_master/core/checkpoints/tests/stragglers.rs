//! A region whose checkpoints take long, or never complete, beside one that completes each.

use std::sync::Arc;

use tanist_proto::v1 as pb;

use super::super::record::NAMED_SUBSUMED;
use super::super::{Effect, Event};
use super::bench::{Bench, GENERATION, SINK, SOURCE, connection, placed, record, written};

const INTERVAL_MS: u64 = 100;
const TIMEOUT_MS: u64 = 60_000;

fn saved_in_object(task: usize, number: u64) -> Event {
    let segment = pb::StateSegment {
        object: format!("{number}-{GENERATION}-{task}"),
        length: 10,
        ..pb::StateSegment::default()
    };
    let snapshot = pb::SubtaskSnapshot {
        vertex_id: format!("t{task}"),
        segments: vec![segment],
        ..pb::SubtaskSnapshot::default()
    };
    Event::Acknowledged {
        connection: connection(task),
        task,
        generation: GENERATION,
        number,
        snapshot: Arc::new(snapshot),
    }
}

/// The clock goes on by one interval. Region 0 saves what is triggered, region 1 takes it up alone. Returns the numbers
/// that were triggered at region 1, and whether the directory was listed.
fn one_interval(bench: &mut Bench) -> (Vec<u64>, bool) {
    let (mut of_straggler, mut is_listed) = (Vec::new(), false);
    let mut effects = bench.pass(INTERVAL_MS);
    while !effects.is_empty() {
        let mut next = Vec::new();
        for effect in effects {
            match effect {
                Effect::Trigger {
                    sources, barrier, ..
                } => {
                    let (region, number) = (sources.region, barrier.number);
                    next.extend(bench.answer_trigger(2 * region, number));
                    if region == 1 {
                        of_straggler.push(number);
                        continue;
                    }
                    for task in [SOURCE, SINK] {
                        next.extend(bench.hear(saved_in_object(task, number)));
                    }
                }
                Effect::Write { write, .. } => next.extend(bench.hear(Event::Written { write })),
                Effect::Remove { removal, .. } => {
                    next.extend(bench.hear(Event::Removed { removal }));
                }
                Effect::List => {
                    is_listed = true;
                    next.extend(bench.hear(Event::Listed(Vec::new())));
                }
                _ => {}
            }
        }
        effects = next;
    }
    (of_straggler, is_listed)
}

#[test]
fn a_region_that_never_completes_holds_the_floor_for_two_numbers_and_the_record_stays_small() {
    let starts = vec![placed(0, vec![]), placed(1, vec![])];
    let mut bench = Bench::new(record(), starts);
    bench.adopt_regions(2);
    one_interval(&mut bench);
    let mut of_straggler: Vec<u64> = Vec::new();
    let mut listings = 0;
    for _ in 0..4 * TIMEOUT_MS / INTERVAL_MS {
        let (numbers, is_listed) = one_interval(&mut bench);
        // What the others complete with a number of the same round is written when the next round is due.
        if let ([.., before, _], []) = (of_straggler.as_slice(), numbers.as_slice()) {
            let floor = bench.core.durable().floor;
            assert!(floor >= *before, "{floor} {of_straggler:?}");
        }
        of_straggler.extend(numbers);
        listings += usize::from(is_listed);
        let durable = bench.core.durable();
        assert!(durable.removing.len() <= NAMED_SUBSUMED, "{durable:?}");
    }
    assert!(of_straggler.len() >= 4, "{of_straggler:?}");
    // What left the record is looked for once the floor has risen.
    assert!(listings >= 2, "{listings}");
}

#[test]
fn without_a_blob_store_a_region_that_is_too_large_does_not_take_the_others_along() {
    let (mut bench, number) = Bench::with_number(2);
    for task in [0, 2] {
        bench.answer_trigger(task, number);
    }
    bench.acknowledge(2, number, 100_000);
    bench.acknowledge(3, number, 1);
    bench.acknowledge(SOURCE, number, 1);
    let effects = bench.acknowledge(SINK, number, 1);
    let reason = effects.iter().find_map(|effect| match effect {
        Effect::Aborted { region, reason, .. } => Some((*region, reason.as_str())),
        _ => None,
    });
    let (region, reason) = reason.expect("one is given up");
    assert_eq!(region, 1);
    let words = [
        "the state of t2, t3 has 100",
        "high-availability.storageDir",
    ];
    assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
    let (_, manifest) = written(&effects).expect("the other one is written");
    let kinds = manifest.expect("it has a manifest").regions;
    let kinds: Vec<_> = kinds.iter().map(pb::RegionSnapshot::kind).collect();
    let expected = [
        pb::RegionSnapshotKind::Taken,
        pb::RegionSnapshotKind::FromStart,
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn what_an_earlier_leader_forgot_is_looked_for_once_the_floor_has_risen() {
    let mut bench = Bench::new(record(), vec![placed(0, vec![]), placed(1, vec![])]);
    bench.adopt_regions(2);
    // The first listing is at the beginning, while the floor is what the record says.
    let before = bench.core.durable().floor;
    let mut is_listed = false;
    while bench.core.durable().floor <= before {
        is_listed |= one_interval(&mut bench).1;
    }
    while !is_listed {
        is_listed |= one_interval(&mut bench).1;
        assert!(bench.now_ms < 4 * TIMEOUT_MS, "it is not looked for");
    }
}
