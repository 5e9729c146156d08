//! Keyed state is encoded while the task goes on.

use super::region::*;
use super::scripted::{Latch, records_in};
use super::*;

/// Both sources and the collecting task have passed the barrier of this number, and the state of the latter is being
/// encoded.
async fn freeze(region: &Region, number: u64) {
    for source in [0, 1] {
        region.cut(source, number).await;
    }
    reached(&region.sink, |it| {
        (it.highest, &it.progress) == (number, &CheckpointProgress::Encoding)
    })
    .await;
}

#[tokio::test]
async fn records_flow_while_state_is_encoded_and_it_is_that_of_the_cut() {
    let region = Region::start(At::SameTaskManager).await;
    let latch = Arc::new(Latch::default());
    region.collector.encode_behind(&latch);
    region.feeds[0].feed(10);
    region.collector.has(10).await;
    freeze(&region, 1).await;
    region.feeds[1].feed(7);
    region.collector.has(17).await;
    latch.open();
    let snapshot = saved(&region.sink, 1).await;
    assert_eq!(records_in(&snapshot), region.records([10, 0]));
    assert_eq!(snapshot.segments.len(), 1);
}

#[tokio::test]
async fn what_is_aborted_while_it_is_encoded_is_not_saved_and_the_next_number_is() {
    let region = Region::start(At::SameTaskManager).await;
    let latch = Arc::new(Latch::default());
    region.collector.encode_behind(&latch);
    freeze(&region, 1).await;
    region.sink.abort_checkpoint(1);
    let status = region.sink.checkpoints().borrow().clone();
    assert_eq!(status.progress, CheckpointProgress::Aborted);
    region.sources.iter().for_each(|it| it.abort_checkpoint(1));
    freeze(&region, 2).await;
    latch.open();
    saved(&region.sink, 2).await;
}

#[tokio::test]
async fn a_task_finishes_once_its_state_is_encoded() {
    let region = Region::start(At::SameTaskManager).await;
    let latch = Arc::new(Latch::default());
    region.collector.encode_behind(&latch);
    freeze(&region, 1).await;
    region.feeds.iter().for_each(|feed| feed.end());
    reached(&region.sink, |it| it.input_ended).await;
    assert_eq!(*region.sink.status().borrow(), TaskStatus::Running);
    latch.open();
    saved(&region.sink, 1).await;
    assert!(matches!(
        region.sink.ended().await,
        TaskStatus::Finished { .. }
    ));
}

#[tokio::test]
async fn a_task_that_is_cancelled_saves_nothing_and_ends_after_its_encoding() {
    let region = Region::start(At::SameTaskManager).await;
    let latch = Arc::new(Latch::default());
    region.collector.encode_behind(&latch);
    freeze(&region, 1).await;
    // One that has not begun is dropped.
    latch.awaited().await;
    region.sink.cancel();
    let mut status = region.sink.status();
    let canceling = status.wait_for(|it| *it == TaskStatus::Canceling);
    canceling.await.expect("it is held");
    latch.open();
    assert_eq!(region.sink.ended().await, TaskStatus::Canceled);
    let progress = region.sink.checkpoints().borrow().progress.clone();
    assert_eq!(progress, CheckpointProgress::Encoding);
}

#[tokio::test]
async fn a_snapshot_names_what_the_newest_durable_one_wrote() {
    let region = Region::start(At::SameTaskManager).await;
    let latch = Arc::new(Latch::default());
    region.collector.encode_behind(&latch);
    latch.open();
    let take = async |number, newest| {
        for source in &region.sources {
            let barrier = CheckpointBarrier {
                newest,
                ..barrier(number)
            };
            assert_eq!(source.trigger(barrier), Answer::Injected(Ack {}));
            saved(source, number).await;
        }
        saved(&region.sink, number).await
    };
    let first = take(1, 0).await;
    let mut written = (*first).clone();
    written.segments[0].content.clear();
    "1-1-aa".clone_into(&mut written.segments[0].object);
    let written = Arc::new(written);
    region.sink.release_snapshot(1, Some(Arc::clone(&written)));
    // Nothing has changed since. The second number is aborted, and the third goes on from the first again.
    for number in [2, 3] {
        let snapshot = take(number, 1).await;
        assert_eq!(snapshot.segments, written.segments);
    }
    // The second one was forgotten when the third was taken: all is written.
    let fourth = take(4, 2).await;
    assert_eq!(
        fourth.segments[0].content.len(),
        first.segments[0].content.len()
    );
}
