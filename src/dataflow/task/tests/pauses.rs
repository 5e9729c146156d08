//! Sources that pause behind a barrier: nothing follows it, whatever happens, until they are resumed.

use std::time::Duration;

use tanist_proto::v1::SubtaskSnapshot;

use super::region::*;
use super::scripted::{Feed, Waiting, position_in, records_in};
use super::*;

/// Long enough for what must not happen to happen.
const A_WHILE: Duration = Duration::from_millis(150);

fn pausing(number: u64) -> CheckpointBarrier {
    CheckpointBarrier {
        savepoint: true,
        pause: true,
        ..barrier(number)
    }
}

/// Has both sources pause behind a number. Returns what the collecting task saved.
async fn pause(region: &Region, number: u64) -> Arc<SubtaskSnapshot> {
    for source in &region.sources {
        assert_eq!(source.trigger(pausing(number)), Answer::Injected(Ack {}));
        reached(source, |it| it.paused && it.highest == number).await;
    }
    saved(&region.sink, number).await
}

/// Feeds both sources, and checks that nothing of it arrives.
async fn stays_paused(region: &Region) {
    let before = region.collector.records();
    region.feeds.iter().for_each(|feed| feed.feed(2));
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(region.collector.records(), before);
    for source in &region.sources {
        let status = source.checkpoints().borrow().clone();
        assert!(status.paused && !status.input_ended, "{status:?}");
    }
}

fn is_paused(task: &RunningTask) -> bool {
    task.checkpoints().borrow().paused
}

#[tokio::test]
async fn nothing_follows_the_barrier_until_its_number_is_aborted() {
    for at in BOTH {
        for waiting in [Waiting::Notified, Waiting::ForAnHour, Waiting::Pending] {
            let region = Region::restore(at, waiting, None).await;
            region.feeds.iter().for_each(|feed| feed.feed(5));
            let snapshot = pause(&region, 3).await;
            let cut = region.sources.iter().map(|source| {
                match source.checkpoints().borrow().progress.clone() {
                    CheckpointProgress::Saved(saved) => position_in(&saved),
                    other => panic!("{other:?}"),
                }
            });
            let cut: Vec<i64> = cut.collect();
            assert_eq!(records_in(&snapshot), region.records([cut[0], cut[1]]));
            stays_paused(&region).await;
            region
                .sources
                .iter()
                .for_each(|source| source.abort_checkpoint(2));
            region.sink.abort_checkpoint(2);
            stays_paused(&region).await;
            assert_eq!(region.collector.records(), records_in(&snapshot), "{at:?}");
            assert!(!is_paused(&region.sink), "it has no source");
            region
                .sources
                .iter()
                .for_each(|source| source.abort_checkpoint(3));
            assert!(!region.sources.iter().any(is_paused));
            region.collector.has(18).await;
            assert_eq!(region.collector.records(), region.records([9, 9]));
        }
    }
}

#[tokio::test]
async fn a_higher_number_without_the_flag_resumes_and_one_with_it_does_not() {
    for at in BOTH {
        let region = Region::start(at).await;
        region.feeds.iter().for_each(|feed| feed.feed(5));
        region.collector.has(10).await;
        let first = pause(&region, 3).await;
        stays_paused(&region).await;
        let second = pause(&region, 5).await;
        assert_eq!(records_in(&second), records_in(&first));
        stays_paused(&region).await;
        region.cut(0, 6).await;
        region.cut(1, 6).await;
        let third = saved(&region.sink, 6).await;
        assert!(!region.sources.iter().any(is_paused));
        assert_eq!(records_in(&third), records_in(&first), "{at:?}");
        region.collector.has(18).await;
        assert_eq!(region.collector.records(), region.records([9, 9]));
        assert_eq!(region.collector.savepoints(), [3, 5]);
    }
}

#[tokio::test]
async fn an_abort_of_any_number_that_is_not_below_resumes() {
    let region = Region::start(At::SameTaskManager).await;
    pause(&region, 3).await;
    region.sources[0].abort_checkpoint(9);
    region.feeds[0].feed(4);
    region.collector.has(4).await;
    assert!(!is_paused(&region.sources[0]) && is_paused(&region.sources[1]));
    // The collecting task has heard of no abort, and takes the next number up.
    region.sources[1].abort_checkpoint(3);
    region.cut(0, 10).await;
    region.cut(1, 10).await;
    saved(&region.sink, 10).await;
}

#[tokio::test]
async fn a_number_that_is_aborted_before_it_was_taken_up_pauses_nothing() {
    let region = Region::start(At::SameTaskManager).await;
    region.sources[0].trigger(pausing(3));
    region.sources[0].abort_checkpoint(3);
    region.feeds[0].feed(4);
    region.collector.has(4).await;
    assert!(!is_paused(&region.sources[0]));
}

#[tokio::test]
async fn sources_stay_paused_when_a_task_behind_them_declines_until_the_abort() {
    let region = Region::start(At::SameTaskManager).await;
    region.collector.fail_to_save(true);
    for source in &region.sources {
        source.trigger(pausing(3));
    }
    reached(&region.sink, |it| {
        it.highest == 3 && matches!(it.progress, CheckpointProgress::Declined(_))
    })
    .await;
    // The task behind it has declined: the abort that follows informs the sources.
    stays_paused(&region).await;
    region
        .sources
        .iter()
        .for_each(|source| source.abort_checkpoint(3));
    region.collector.has(4).await;
}

#[tokio::test]
async fn a_stop_and_the_end_of_the_input_wait_until_the_source_is_resumed() {
    let region = Region::start(At::SameTaskManager).await;
    pause(&region, 3).await;
    region.sources[0].stop();
    region.feeds[1].end();
    stays_paused(&region).await;
    for source in &region.sources {
        assert_eq!(*source.status().borrow(), TaskStatus::Running);
    }
    region
        .sources
        .iter()
        .for_each(|source| source.abort_checkpoint(3));
    region.feeds.iter().for_each(Feed::end);
    for task in region.sources.iter().chain([&region.sink]) {
        let ended = task.ended().await;
        assert!(matches!(ended, TaskStatus::Finished { .. }), "{ended:?}");
    }
}

#[tokio::test]
async fn a_paused_source_ends_when_it_is_cancelled() {
    let region = Region::start(At::OtherTaskManager).await;
    let snapshot = pause(&region, 3).await;
    for task in [&region.sink].into_iter().chain(&region.sources) {
        task.cancel();
        assert_eq!(task.ended().await, TaskStatus::Canceled);
        reached(task, |it| !it.paused).await;
    }
    assert_eq!(region.collector.records(), records_in(&snapshot));
}

#[tokio::test]
async fn the_time_of_operators_stands_still_while_their_region_is_paused() {
    let region = Region::start(At::SameTaskManager).await;
    let started = Instant::now();
    region.collector.tick_from_now_on();
    region.feeds[0].feed(1);
    wait_until("it ticks", || region.collector.ticks().len() > 3).await;
    pause(&region, 3).await;
    let paused = Instant::now();
    let before = region.collector.ticks();
    tokio::time::sleep(A_WHILE).await;
    assert_eq!(region.collector.ticks().len(), before.len());
    let paused = paused.elapsed();
    region
        .sources
        .iter()
        .for_each(|source| source.abort_checkpoint(3));
    region.sink.abort_checkpoint(3);
    let has_ticked = || region.collector.ticks().len() > before.len();
    wait_until("it ticks again", has_ticked).await;
    let next = region.collector.ticks()[before.len()];
    let passed = next - *before.last().expect("it has ticked");
    let most = started.elapsed() - paused;
    assert!(passed <= most, "{passed:?} of at most {most:?}");
}
