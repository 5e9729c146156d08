//! Faults planted into running tasks, and the verifier that finds each: every snapshot of a region is a cut that its
//! sources had reached, and what is restored from one goes on with each record once.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tanist_proto::v1::SubtaskSnapshot;

use super::region::{At, BOTH, Region, saved};
use super::scripted::{Feed, Waiting, position_in, records_in};
use super::*;
use crate::task::faults::{Fault, plant};

/// Records of each source that are read as fast as it can.
const RECORDS: i64 = 2_000;
/// Snapshots for which the sources send records one after the other, and how many.
const ROUNDS: i64 = 20;
const BEHIND: i64 = 20;
const BEFORE: i64 = 10;
/// Records of each source behind the restore.
const MORE: i64 = 100;

/// Panics if a snapshot of the region is no cut. Returns the snapshots of its tasks.
async fn cut_of(region: &Region, number: u64) -> [SubtaskSnapshot; 3] {
    let first = region.cut(0, number).await;
    cut_behind(region, number, first).await
}

async fn cut_behind(
    region: &Region,
    number: u64,
    first: Arc<SubtaskSnapshot>,
) -> [SubtaskSnapshot; 3] {
    let sources = [first, region.cut(1, number).await];
    let positions = sources.each_ref().map(|it| position_in(it));
    let sink = saved(&region.sink, number).await;
    let (found, expected) = (records_in(&sink), region.records(positions));
    assert_eq!(found, expected, "snapshot {number} is no cut");
    let [first, second] = sources.map(|it| (*it).clone());
    [first, second, (*sink).clone()]
}

/// Sources that emit as fast as they can, with snapshots meanwhile; then one that sends records behind its barrier
/// before the other one sends its own; then a restore from the last snapshot. Panics if a snapshot is no cut, or if
/// the collector has a record twice or lacks one.
async fn verify(at: At) {
    let region = Region::start(at).await;
    region.feeds.iter().for_each(|feed| feed.feed(RECORDS));
    let mut number = 0;
    while region.collector.records().len() < RECORDS as usize {
        number += 1;
        cut_of(&region, number).await;
    }
    let mut all = 2 * RECORDS;
    region.collector.has(all as usize).await;
    let mut last = cut_of(&region, number + 1).await;
    number += 1;
    for _ in 0..ROUNDS {
        number += 1;
        let first = region.cut(0, number).await;
        region.feeds[0].feed(BEHIND);
        region.feeds[1].feed(BEFORE);
        region.collector.has((all + BEFORE) as usize).await;
        last = cut_behind(&region, number, first).await;
        all += BEHIND + BEFORE;
        region.collector.has(all as usize).await;
    }
    drop(region);

    let positions = [position_in(&last[0]), position_in(&last[1])];
    let region = Region::restore(at, Waiting::default(), Some((number, last))).await;
    let ends = [BEHIND, BEFORE].map(|each| RECORDS + ROUNDS * each + MORE);
    for ((feed, position), end) in region.feeds.iter().zip(positions).zip(ends) {
        feed.feed(end - position);
    }
    region.feeds.iter().for_each(Feed::end);
    let ended = region.sink.ended().await;
    assert!(matches!(ended, TaskStatus::Finished { .. }), "{ended:?}");
    let expected = region.records(ends);
    assert_eq!(region.collector.records(), expected, "after the restore");
}

/// What the verifier says of tasks with this fault. `None`: nothing.
fn found(fault: Option<Fault>, at: At) -> Option<String> {
    // Tasks run in this thread, where the fault is planted.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    plant(fault);
    let verified = catch_unwind(AssertUnwindSafe(|| runtime.block_on(verify(at))));
    plant(None);
    let text = verified.err()?;
    let text = text.downcast_ref::<String>().cloned();
    Some(text.unwrap_or_default().chars().take(80).collect())
}

#[test]
fn each_fault_that_is_planted_into_running_tasks_is_found_in_one_run() {
    for at in BOTH {
        assert_eq!(found(None, at), None);
        for fault in [
            Fault::BarrierOvertakesRecords,
            Fault::BlockedChannelRead,
            Fault::OneBarrierCompletes,
            Fault::EmittedTwiceAtReplay,
        ] {
            // To another TaskManager the records wait for a credit of the consumer, which blocks for the barrier.
            if (fault, at) == (Fault::BarrierOvertakesRecords, At::OtherTaskManager) {
                continue;
            }
            let found = found(Some(fault), at);
            println!("{fault:?} ({at:?}): {found:?}");
            assert!(found.is_some(), "{fault:?} is not found: {at:?}");
        }
    }
}
